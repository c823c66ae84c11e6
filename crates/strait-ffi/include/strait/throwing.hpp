// Strait for those who like exceptions: the same classes, whose calls return the value itself, or throw strait::Exception.
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

// A call that failed.
class Exception : public std::runtime_error {
public:
    explicit Exception(Error error) : std::runtime_error(std::string(error.text())), error_(std::move(error)) {}

    const Error &error() const noexcept { return error_; }
    strait_status status() const noexcept { return error_.status(); }

private:
    Error error_;
};

// The value of a result; throws if there is none.
template <class T> T or_throw(result<T> &&result) {
    if (!result) {
        throw Exception(result.error());
    }
    if constexpr (!std::is_void_v<T>) {
        return *std::move(result);
    }
}

namespace throwing {

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
    static Channel invited(Deadline deadline, const Options &options = {}) { return or_throw(Base::invited(deadline, options)); }
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
    void recv_to(Message &message, Deadline deadline = Deadline::never()) const { or_throw(Base::recv_to(message, deadline)); }
    std::size_t recv_into(std::span<std::byte> buffer, Deadline deadline = Deadline::never(), Message *handles = nullptr) const {
        return or_throw(Base::recv_into(buffer, deadline, handles));
    }
    std::size_t recv_many(std::span<Message> messages, Deadline deadline = Deadline::never()) const {
        return or_throw(Base::recv_many(messages, deadline));
    }
    View recv_in_place(Deadline deadline = Deadline::never()) const { return or_throw(Base::recv_in_place(deadline)); }
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
    void rehome(Deadline deadline) const { or_throw(Base::rehome(deadline)); }

    // That there is no room, or no message, is no surprise here: false, or nothing.
    bool try_send(Bytes bytes) const {
        auto sent = Base::try_send(bytes);
        return sent.error() == STRAIT_WOULD_BLOCK ? false : (or_throw(std::move(sent)), true);
    }
    std::optional<Message> try_recv() const {
        auto received = Base::try_recv();
        if (received.error() == STRAIT_WOULD_BLOCK) {
            return std::nullopt;
        }
        return or_throw(std::move(received));
    }
};

class WaitSet : public strait::WaitSet {
    using Base = strait::WaitSet;

public:
    WaitSet() : Base(or_throw(Base::create())) {}

    void add(const strait::Channel &channel, std::uint64_t key, Interest interest = Interest::readable, Mode mode = Mode::level) const {
        or_throw(Base::add(channel, key, interest, mode));
    }
    void rearm(const strait::Channel &channel) const { or_throw(Base::rearm(channel)); }
    void remove(const strait::Channel &channel) const { or_throw(Base::remove(channel)); }
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

inline Channel connect(const char *name, Deadline deadline, const ConnectOptions &options = {}) {
    return or_throw(strait::connect(name, deadline, options));
}

inline Child spawn(const Program &program, const Options &options = {}) { return or_throw(strait::spawn(program, options)); }

} // namespace throwing

} // namespace strait

#endif
