// Strait with exceptions: classes of the same names, whose functions return the value itself, or throw
// strait::Exception.
//
//     using namespace strait::throwing;
//     auto [a, b] = Channel::pair();
//     a.send("hello");
//     assert(b.recv().text() == "hello");

#ifndef STRAIT_THROWING_HPP
#define STRAIT_THROWING_HPP

#include <strait/strait.hpp>

#include <stdexcept>

namespace strait {

// The failure of a function.
class Exception : public std::runtime_error {
public:
    explicit Exception(Error error) : std::runtime_error(std::string(error.text())), error_(std::move(error)) {}

    const Error &error() const noexcept { return error_; }
    strait_status status() const noexcept { return error_.status(); }

private:
    Error error_;
};

// Returns the value of a result; throws if there is none.
template <class T> T or_throw(result<T> &&result) {
    if (!result) {
        throw Exception(result.error());
    }
    if constexpr (!std::is_void_v<T>) {
        return *std::move(result);
    }
}

// Returns the value of a result; nothing if the function would have had to wait. Throws for other errors.
template <class T> std::optional<T> unless_it_would_block(result<T> &&result) {
    if (result.error() == STRAIT_WOULD_BLOCK) {
        return std::nullopt;
    }
    return or_throw(std::move(result));
}

namespace throwing {

struct Halves;

class Channel : public strait::Channel {
    using Base = strait::Channel;

public:
    using Base::Base;
    Channel(Base channel) noexcept : Base(std::move(channel)) {}

    static std::pair<Channel, Channel> pair(const Options &options = {}) {
        auto [a, b] = or_throw(Base::pair(options));
        return {std::move(a), std::move(b)};
    }
    static Channel over(Fd &&socket, const Options &options = {}) { return or_throw(Base::over(std::move(socket), options)); }
    static Channel from_parent(const Options &options = {}) { return or_throw(Base::from_parent(options)); }
    static Channel invited(const Options &options, Deadline deadline) { return or_throw(Base::invited(options, deadline)); }
    static Channel invited(Deadline deadline) { return or_throw(Base::invited(deadline)); }
    Channel share() const noexcept { return Base::share(); }

    void send(Bytes bytes, Deadline deadline = Deadline::never()) const { or_throw(Base::send(bytes, deadline)); }
    void send(Bytes bytes, std::span<Handle> handles, Deadline deadline = Deadline::never()) const {
        or_throw(Base::send(bytes, handles, deadline));
    }
    void send(Bytes bytes, Handle &&handle, Deadline deadline = Deadline::never()) const {
        or_throw(Base::send(bytes, std::move(handle), deadline));
    }
    void sendv(std::span<const iovec> parts, std::span<Handle> handles = {}, Deadline deadline = Deadline::never()) const {
        or_throw(Base::sendv(parts, handles, deadline));
    }
    void send_many(std::span<const Outgoing> messages, std::size_t &sent, Deadline deadline = Deadline::never()) const {
        or_throw(Base::send_many(messages, sent, deadline));
    }
    Message recv(Deadline deadline = Deadline::never()) const { return or_throw(Base::recv(deadline)); }
    void recv_message(Message &message, Deadline deadline = Deadline::never()) const { or_throw(Base::recv_message(message, deadline)); }
    std::size_t recv_into(std::span<std::byte> buffer, Message &handles, Deadline deadline = Deadline::never()) const {
        return or_throw(Base::recv_into(buffer, handles, deadline));
    }
    std::size_t recv_into(std::span<std::byte> buffer, Deadline deadline = Deadline::never()) const {
        return or_throw(Base::recv_into(buffer, deadline));
    }
    std::size_t recv_many(std::span<Message> messages, Deadline deadline = Deadline::never()) const {
        return or_throw(Base::recv_many(messages, deadline));
    }
    View recv_in_place(Deadline deadline = Deadline::never()) const { return or_throw(Base::recv_in_place(deadline)); }
    void forward(Message &message, Deadline deadline = Deadline::never()) const { or_throw(Base::forward(message, deadline)); }
    void forward(View &view, Deadline deadline = Deadline::never()) const { or_throw(view.forward(*this, deadline)); }
    Reservation reserve(std::size_t size, Deadline deadline = Deadline::never()) const {
        return or_throw(Base::reserve(size, deadline));
    }
    Reservation reserve_sealed(std::size_t size, Deadline deadline = Deadline::never()) const {
        return or_throw(Base::reserve_sealed(size, deadline));
    }
    Peer peer() const { return or_throw(Base::peer()); }
    Fd peer_pidfd() const { return or_throw(Base::peer_pidfd()); }
    Counters counters() const { return or_throw(Base::counters()); }
    Usage peer_usage(strait_resource resource) const { return or_throw(Base::peer_usage(resource)); }
    bool disconnect() const { return or_throw(Base::disconnect()); }
    void rehome(Deadline deadline) const { or_throw(Base::rehome(deadline)); }

    inline Halves split() &&;

    // These return false, or nothing, if there is no room or no message, and throw for other errors.
    bool try_send(Bytes bytes) const {
        auto sent = Base::try_send(bytes);
        return sent.error() == STRAIT_WOULD_BLOCK ? false : (or_throw(std::move(sent)), true);
    }
    std::optional<Message> try_recv() const { return unless_it_would_block(Base::try_recv()); }
    std::optional<MessageInfo> peek() const { return unless_it_would_block(Base::peek()); }
};

class Receiver : public strait::Receiver {
    using Base = strait::Receiver;

public:
    using Base::Base;
    Receiver(Base receiver) noexcept : Base(std::move(receiver)) {}

    Message recv(Deadline deadline = Deadline::never()) { return or_throw(Base::recv(deadline)); }
    void recv_message(Message &message, Deadline deadline = Deadline::never()) { or_throw(Base::recv_message(message, deadline)); }
    std::size_t recv_into(std::span<std::byte> buffer, Message &handles, Deadline deadline = Deadline::never()) {
        return or_throw(Base::recv_into(buffer, handles, deadline));
    }
    std::size_t recv_into(std::span<std::byte> buffer, Deadline deadline = Deadline::never()) {
        return or_throw(Base::recv_into(buffer, deadline));
    }
    std::optional<Message> try_recv() { return unless_it_would_block(Base::try_recv()); }
};

class Sender : public strait::Sender {
    using Base = strait::Sender;

public:
    using Base::Base;
    Sender(Base sender) noexcept : Base(std::move(sender)) {}

    void send(Bytes bytes, Deadline deadline = Deadline::never()) { or_throw(Base::send(bytes, deadline)); }
    void send(Bytes bytes, std::span<Handle> handles, Deadline deadline = Deadline::never()) {
        or_throw(Base::send(bytes, handles, deadline));
    }
    void send(Bytes bytes, Handle &&handle, Deadline deadline = Deadline::never()) {
        or_throw(Base::send(bytes, std::move(handle), deadline));
    }
    void sendv(std::span<const iovec> parts, std::span<Handle> handles = {}, Deadline deadline = Deadline::never()) {
        or_throw(Base::sendv(parts, handles, deadline));
    }
    bool try_send(Bytes bytes) {
        auto sent = Base::try_send(bytes);
        return sent.error() == STRAIT_WOULD_BLOCK ? false : (or_throw(std::move(sent)), true);
    }
    Channel join(strait::Receiver &&receiver) && { return or_throw(static_cast<Base &&>(*this).join(std::move(receiver))); }
};

struct Halves {
    Sender sender;
    Receiver receiver;
};

inline Halves Channel::split() && {
    auto halves = or_throw(static_cast<Base &&>(*this).split());
    return {std::move(halves.sender), std::move(halves.receiver)};
}

// Room of a producer, and bytes of a consumer. Destroying them acts as in the classes without exceptions.
class Room : public strait::Room {
    using Base = strait::Room;

public:
    Room(Base room) noexcept : Base(std::move(room)) {}

    void commit(std::size_t size) { or_throw(Base::commit(size)); }
};

class Unread : public strait::Unread {
    using Base = strait::Unread;

public:
    Unread(Base unread) noexcept : Base(std::move(unread)) {}

    void consume(std::size_t size) { or_throw(Base::consume(size)); }
};

class Producer : public strait::Producer {
    using Base = strait::Producer;

public:
    using Base::Base;
    Producer(Base producer) noexcept : Base(std::move(producer)) {}

    std::size_t write(Bytes bytes, Deadline deadline = Deadline::never()) const { return or_throw(Base::write(bytes, deadline)); }
    void write_whole(Bytes bytes, Deadline deadline = Deadline::never()) const { or_throw(Base::write_whole(bytes, deadline)); }
    Room begin_write(Deadline deadline = Deadline::never()) const { return or_throw(Base::begin_write(deadline)); }
    std::size_t room() const { return or_throw(Base::room()); }

    // Returns nothing if there is no room.
    std::optional<std::size_t> try_write(Bytes bytes) const { return unless_it_would_block(Base::write(bytes, Deadline::now())); }
};

class Consumer : public strait::Consumer {
    using Base = strait::Consumer;

public:
    using Base::Base;
    Consumer(Base consumer) noexcept : Base(std::move(consumer)) {}

    std::size_t read(std::span<std::byte> out, Deadline deadline = Deadline::never()) const {
        return or_throw(Base::read(out, deadline));
    }
    void read_whole(std::span<std::byte> out, Deadline deadline = Deadline::never()) const {
        or_throw(Base::read_whole(out, deadline));
    }
    std::size_t peek(std::span<std::byte> out) const { return or_throw(Base::peek(out)); }
    std::size_t discard(std::size_t most) const { return or_throw(Base::discard(most)); }
    Unread begin_read(Deadline deadline = Deadline::never()) const { return or_throw(Base::begin_read(deadline)); }
    std::size_t available() const { return or_throw(Base::available()); }

    // Returns nothing if there are no bytes yet; 0 at the end of the stream.
    std::optional<std::size_t> try_read(std::span<std::byte> out) const { return unless_it_would_block(Base::read(out, Deadline::now())); }
};

struct DataPipe {
    Producer producer;
    Consumer consumer;

    static DataPipe create(std::size_t capacity, std::uint32_t element = 1) {
        auto pipe = or_throw(strait::DataPipe::create(capacity, element));
        return {std::move(pipe.producer), std::move(pipe.consumer)};
    }
};

class Replier : public strait::Replier {
    using Base = strait::Replier;

public:
    using Base::Base;
    Replier(Base replier) noexcept : Base(std::move(replier)) {}

    void reply(Bytes bytes, std::span<Handle> handles = {}, Deadline deadline = Deadline::never()) {
        or_throw(Base::reply(bytes, handles, deadline));
    }
};

struct Request {
    Message message;
    Replier replier;
};

class CallEnd : public strait::CallEnd {
    using Base = strait::CallEnd;

public:
    // Takes the channel, except if the constructor throws.
    explicit CallEnd(strait::Channel &&channel) : Base(or_throw(Base::over(std::move(channel)))) {}

    // Sends a request, and returns the reply. If this throws with STRAIT_OUTCOME_UNKNOWN or STRAIT_NOT_ANSWERED, the
    // request was sent. Otherwise it was not, and the caller still owns the handles.
    Message call(Bytes bytes, std::span<Handle> handles = {}, Deadline deadline = Deadline::never()) const {
        return or_throw(Base::call(bytes, handles, deadline));
    }
    Request next_request(Deadline deadline = Deadline::never()) const { return of(or_throw(Base::next_request(deadline))); }
    std::optional<Request> try_next_request() const {
        auto request = unless_it_would_block(Base::next_request(Deadline::now()));
        return request ? std::optional(of(std::move(*request))) : std::nullopt;
    }

private:
    static Request of(strait::Request &&request) { return {std::move(request.message), std::move(request.replier)}; }
};

class WaitSet : public strait::WaitSet {
    using Base = strait::WaitSet;

public:
    WaitSet() : Base(or_throw(Base::create())) {}

    void add(const strait::Producer &end, std::uint64_t key, Mode mode = Mode::level) const { or_throw(Base::add(end, key, mode)); }
    void add(const strait::Consumer &end, std::uint64_t key, Mode mode = Mode::level) const { or_throw(Base::add(end, key, mode)); }
    void modify(const strait::Producer &end, std::uint64_t key, Mode mode) const { or_throw(Base::modify(end, key, mode)); }
    void modify(const strait::Consumer &end, std::uint64_t key, Mode mode) const { or_throw(Base::modify(end, key, mode)); }
    void remove(const strait::Producer &end) const { or_throw(Base::remove(end)); }
    void remove(const strait::Consumer &end) const { or_throw(Base::remove(end)); }
    void add(const strait::Channel &channel, std::uint64_t key, Interest interest = Interest::readable, Mode mode = Mode::level) const {
        or_throw(Base::add(channel, key, interest, mode));
    }
    void modify(const strait::Channel &channel, std::uint64_t key, Interest interest, Mode mode) const {
        or_throw(Base::modify(channel, key, interest, mode));
    }
    void add(const strait::Listener &listener, std::uint64_t key, Mode mode = Mode::level) const {
        or_throw(Base::add(listener, key, mode));
    }
    void modify(const strait::Listener &listener, std::uint64_t key, Mode mode) const { or_throw(Base::modify(listener, key, mode)); }
    void remove(const strait::Listener &listener) const { or_throw(Base::remove(listener)); }
    void add(const strait::Sender &half, std::uint64_t key, Mode mode = Mode::level) const { or_throw(Base::add(half, key, mode)); }
    void add(const strait::Receiver &half, std::uint64_t key, Mode mode = Mode::level) const { or_throw(Base::add(half, key, mode)); }
    void modify(const strait::Sender &half, std::uint64_t key, Mode mode) const { or_throw(Base::modify(half, key, mode)); }
    void modify(const strait::Receiver &half, std::uint64_t key, Mode mode) const { or_throw(Base::modify(half, key, mode)); }
    void remove(const strait::Sender &half) const { or_throw(Base::remove(half)); }
    void remove(const strait::Receiver &half) const { or_throw(Base::remove(half)); }
    void add_fd(int fd, std::uint64_t key, Interest interest = Interest::readable, Mode mode = Mode::level) const {
        or_throw(Base::add_fd(fd, key, interest, mode));
    }
    void modify_fd(int fd, std::uint64_t key, Interest interest, Mode mode) const { or_throw(Base::modify_fd(fd, key, interest, mode)); }
    void remove_fd(int fd) const { or_throw(Base::remove_fd(fd)); }
    void remove(const strait::Channel &channel) const { or_throw(Base::remove(channel)); }
    void await_room(const strait::Channel &channel, std::uint64_t key) const { or_throw(Base::await_room(channel, key)); }
    std::span<const Event> wait(std::span<Event> events, Deadline deadline = Deadline::never()) const {
        return or_throw(Base::wait(events, deadline));
    }
};

class Listener : public strait::Listener {
    using Base = strait::Listener;

public:
    explicit Listener(const char *name, ListenerOptions options = {}) : Base(or_throw(Base::bind(name, std::move(options)))) {}

    Channel accept(Deadline deadline = Deadline::never()) const { return or_throw(Base::accept(deadline)); }
    Invitation invite(std::chrono::nanoseconds valid_for) const { return or_throw(Base::invite(valid_for)); }
};

inline Channel connect(const char *name, const ConnectOptions &options, Deadline deadline) {
    return or_throw(strait::connect(name, options, deadline));
}
inline Channel connect(const char *name, Deadline deadline) { return or_throw(strait::connect(name, deadline)); }

inline Child spawn(const Program &program, const Options &options = {}) { return or_throw(strait::spawn(program, options)); }

} // namespace throwing

} // namespace strait

#endif
