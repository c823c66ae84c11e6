// Channels, messages and handles.

#ifndef STRAIT_CHANNEL_HPP
#define STRAIT_CHANNEL_HPP

#include <strait/pipe.hpp>
#include <strait/region.hpp>

#include <array>
#include <vector>

namespace strait {

class Channel;
struct Halves;

using Peer = strait_peer;
using Counters = strait_counters;
using ChannelState = strait_channel_state;
using Usage = strait_usage;
// The fate of the link to a process reported as a bad peer.
enum class Reported : strait_reported {
    closed = STRAIT_REPORTED_CLOSED,
    gone = STRAIT_REPORTED_GONE,
    within = STRAIT_REPORTED_WITHIN,
    brought = STRAIT_REPORTED_BROUGHT,
};
// The sizes of the next message, before the receive.
using MessageInfo = strait_message_info;

// An object that a message can carry: a file descriptor, an end of a channel or of a data pipe, or a region. A handle
// owns its object, or is empty. Of an end of a channel, a handle owns a reference, like a Channel: the end stays open
// while there are others.
class Handle {
public:
    Handle() noexcept = default;
    Handle(Fd fd) noexcept {
        if (fd) {
            handle_ = strait_handle_from_fd(fd.release());
        }
    }
    inline Handle(Channel channel) noexcept;
    Handle(Region region) noexcept {
        if (region) {
            handle_ = strait_handle_from_region(region.release());
        }
    }
    Handle(Producer producer) noexcept {
        if (producer) {
            handle_ = strait_handle_from_producer(producer.release());
        }
    }
    Handle(Consumer consumer) noexcept {
        if (consumer) {
            handle_ = strait_handle_from_consumer(consumer.release());
        }
    }
    explicit Handle(strait_handle handle) noexcept : handle_(handle) {}
    Handle(Handle &&other) noexcept : handle_(other.release()) {}
    Handle &operator=(Handle &&other) noexcept {
        Handle taken(std::move(other));
        std::swap(handle_, taken.handle_);
        return *this;
    }
    ~Handle() {
        if (is_channel()) {
            strait_channel_unref(static_cast<strait_channel *>(handle_.object));
        } else if (*this) {
            strait_handle_close(&handle_);
        }
    }

    bool is_fd() const noexcept { return handle_.kind == STRAIT_HANDLE_FD; }
    bool is_channel() const noexcept { return handle_.kind == STRAIT_HANDLE_CHANNEL; }
    bool is_region() const noexcept { return handle_.kind == STRAIT_HANDLE_REGION; }
    bool is_producer() const noexcept { return handle_.kind == STRAIT_HANDLE_PRODUCER; }
    bool is_consumer() const noexcept { return handle_.kind == STRAIT_HANDLE_CONSUMER; }
    explicit operator bool() const noexcept { return handle_.kind != STRAIT_HANDLE_NONE; }

    // Takes the object out of the handle, if the object has the asked type; then the handle is empty. Otherwise returns
    // an empty object, and leaves the handle unchanged.
    Fd into_fd() noexcept { return Fd(strait_handle_take_fd(&handle_)); }
    inline Channel into_channel() noexcept;
    Region into_region() noexcept { return Region(strait_handle_take_region(&handle_)); }
    Producer into_producer() noexcept { return Producer(strait_handle_take_producer(&handle_)); }
    Consumer into_consumer() noexcept { return Consumer(strait_handle_take_consumer(&handle_)); }

    strait_handle release() noexcept { return std::exchange(handle_, strait_handle{STRAIT_HANDLE_NONE, -1, nullptr}); }

private:
    friend class Channel;
    friend class Reservation;
    friend struct Outgoing;

    strait_handle handle_{STRAIT_HANDLE_NONE, -1, nullptr};
};

namespace detail {

// An array of Handle has the layout of an array of strait_handle.
static_assert(sizeof(Handle) == sizeof(strait_handle) && std::is_standard_layout_v<Handle>);

inline strait_handle *raw(std::span<Handle> handles) noexcept { return reinterpret_cast<strait_handle *>(handles.data()); }

// Returns all handles given out by `take`.
template <class Take> result<std::vector<Handle>> take_all(Take take) {
    // The array owns the handles if there is no memory for the vector.
    std::array<Handle, STRAIT_MAX_HANDLES> taken;
    std::size_t count = 0;
    if (const auto status = take(raw(taken), taken.size(), &count); status != STRAIT_OK) {
        return Error::last(status);
    }
    std::vector<Handle> handles;
    handles.reserve(count);
    for (std::size_t i = 0; i < count; i++) {
        handles.push_back(std::move(taken[i]));
    }
    return handles;
}

} // namespace detail

// A received message. The next receive into the message reuses the memory, and closes the handles still in the message.
class Message {
public:
    Message() : message_(strait_message_new()) {}

    // Returns the bytes, valid until the message is received into again, moved from or destroyed.
    std::span<const std::byte> bytes() const noexcept {
        return {static_cast<const std::byte *>(strait_message_bytes(message_.get())), size()};
    }
    std::string_view text() const noexcept {
        return {static_cast<const char *>(strait_message_bytes(message_.get())), size()};
    }
    std::size_t size() const noexcept { return strait_message_len(message_.get()); }

    // Reports the sender of the message as a bad peer, as Channel::report_bad does.
    result<Reported> report_bad(const char *reason) const {
        strait_reported reported = 0;
        if (const auto status = strait_message_report_bad(message_.get(), reason, &reported); status != STRAIT_OK) {
            return Error::last(status);
        }
        return static_cast<Reported>(reported);
    }

    // Takes the handles in the order of sending; none if already taken.
    result<std::vector<Handle>> take_handles() {
        return detail::take_all([this](auto... to) { return strait_message_take_handles(message_.get(), to...); });
    }

    // Takes the handle with the given index among the handles still in the message, and leaves the others. Returns an
    // empty handle if there is none.
    result<Handle> take_handle(std::size_t index) {
        strait_handle raw;
        if (const auto status = strait_message_take_handle(message_.get(), index, &raw); status != STRAIT_OK) {
            return Error::last(status);
        }
        return Handle(raw);
    }

    // Empties the message: closes, without blocking, the handles that were not taken. Keeps the memory for the next
    // receive.
    void clear() noexcept { strait_message_clear(message_.get()); }

    strait_message *get() const noexcept { return message_.get(); }

private:
    detail::Owned<strait_message, strait_message_free> message_;
};

// A received message in the memory written by the peer. Unless the message is sealed, the peer can change the bytes
// while this process reads them: copy the bytes on which a decision depends, and decide on the copy.
class View {
public:
    explicit View(strait_view *view) noexcept : view_(view) {}

    std::size_t size() const noexcept { return strait_view_len(view_.get()); }

    // Copies bytes from `offset` on until `out` is full.
    result<void> read_at(std::span<std::byte> out, std::size_t offset) const {
        return detail::done(strait_view_read_at(view_.get(), out.data(), out.size(), offset));
    }

    // Returns the bytes if no process can change them any more; otherwise nothing.
    std::optional<std::span<const std::byte>> sealed() const noexcept {
        if (!strait_view_is_sealed(view_.get())) {
            return std::nullopt;
        }
        return std::span(static_cast<const std::byte *>(strait_view_data(view_.get())), size());
    }

    // Returns the address of the bytes, for code that can handle changing bytes.
    const volatile void *untrusted() const noexcept { return strait_view_data(view_.get()); }

    // Forwards the message with its handles over another channel without reading it. The bytes seen here are certain to
    // be the bytes sent only if the message is sealed.
    result<void> forward(const Channel &channel, Deadline deadline = Deadline::never());

    result<std::vector<Handle>> take_handles() {
        return detail::take_all([this](auto... to) { return strait_view_take_handles(view_.get(), to...); });
    }

private:
    detail::Owned<strait_view, strait_view_free> view_;
};

// Room for a message, to be filled in the memory where the peer will read. Destroying the object without a commit sends
// nothing.
class Reservation {
public:
    Reservation(strait_reservation *room, std::size_t size) noexcept : room_(room), size_(size) {}

    // Returns the memory, for writing only: do not read from the memory.
    std::span<std::byte> data() noexcept { return {static_cast<std::byte *>(strait_reservation_data(room_.get())), size_}; }

    // Sends all bytes, or the first `size` bytes. Takes the handles only on success.
    result<void> commit(std::span<Handle> handles = {}) && { return std::move(*this).commit_first(size_, handles); }
    result<void> commit_first(std::size_t size, std::span<Handle> handles = {}) && {
        return detail::done(strait_reservation_commit(room_.release(), size, detail::raw(handles), handles.size()));
    }

private:
    detail::Owned<strait_reservation, strait_reservation_cancel> room_;
    std::size_t size_;
};

// A message of a batch. The named memory and handles must exist until the batch is sent; sending takes the handles.
struct Outgoing {
    std::span<const iovec> parts;
    std::span<Handle> handles = {};
};

namespace detail {

// An array of Message has the layout of an array of pointers.
static_assert(sizeof(Message) == sizeof(strait_message *) && std::is_standard_layout_v<Message>);

inline strait_message *const *raw(std::span<Message> messages) noexcept {
    return reinterpret_cast<strait_message *const *>(messages.data());
}

// Returns a batch in the form of the C library.
inline std::vector<strait_outgoing> row(std::span<const Outgoing> messages) {
    std::vector<strait_outgoing> row;
    row.reserve(messages.size());
    for (const auto &message : messages) {
        row.push_back({message.parts.data(), message.parts.size(), raw(message.handles), message.handles.size()});
    }
    return row;
}

} // namespace detail

// One end of a channel. For several threads at once, give each thread an object of its own, made by `share`.
class Channel {
public:
    // An empty object: every function fails with STRAIT_INVALID_ARGUMENT.
    Channel() noexcept = default;
    explicit Channel(strait_channel *channel) noexcept : channel_(channel) {}

    // Makes a channel with both ends in this process.
    static result<std::pair<Channel, Channel>> pair(const Options &options = {}) {
        strait_channel *a, *b;
        if (const auto status = strait_channel_pair(options.get(), &a, &b); status != STRAIT_OK) {
            return Error::last(status);
        }
        return std::pair(Channel(a), Channel(b));
    }

    // Makes a channel over a connected SOCK_SEQPACKET Unix socket. Takes the socket only on success.
    static result<Channel> over(Fd &&socket, const Options &options = {}) {
        auto made = make([&](auto **out) { return strait_channel_over(socket.get(), options.get(), out); });
        if (made) {
            socket.release();
        }
        return made;
    }

    // Takes the channel to the parent process, which started this process.
    static result<Channel> from_parent(const Options &options = {}) {
        return make([&](auto **out) { return strait_from_parent(options.get(), out); });
    }

    // Connects to the process that sent an invitation over the standard input of this process.
    static result<Channel> invited(const Options &options, Deadline deadline) {
        return make([&](auto **out) { return strait_invited(options.get(), out, deadline.get()); });
    }
    static result<Channel> invited(Deadline deadline) { return invited({}, deadline); }

    // Makes another reference to this end, for another thread. The end closes when the last reference is gone.
    Channel share() const noexcept { return Channel(strait_channel_ref(channel_.get())); }

    // Closes the end. Function calls through other references fail with STRAIT_CLOSED from now on.
    void close() noexcept { strait_channel_close(channel_.release()); }
    // Closes the end, with a reason for the peer.
    void close_with(std::uint32_t reason) noexcept { strait_channel_close_with(channel_.release(), reason); }
    // Returns why the other end was closed, once a receive has failed with STRAIT_PEER_CLOSED; nothing if it did not say.
    std::optional<std::uint32_t> close_reason() const noexcept {
        std::uint32_t reason = 0;
        return strait_channel_close_reason(channel_.get(), &reason) ? std::optional(reason) : std::nullopt;
    }

    result<void> send(Bytes bytes, Deadline deadline = Deadline::never()) const {
        return detail::done(strait_send(channel_.get(), bytes.data(), bytes.size(), deadline.get()));
    }
    result<void> try_send(Bytes bytes) const { return send(bytes, Deadline::now()); }

    // Sends bytes with handles. Takes the handles only on success; after a failure the caller still owns them.
    result<void> send(Bytes bytes, std::span<Handle> handles, Deadline deadline = Deadline::never()) const {
        const auto part = bytes.part();
        return sendv({&part, 1}, handles, deadline);
    }
    result<void> send(Bytes bytes, Handle &&handle, Deadline deadline = Deadline::never()) const {
        return send(bytes, std::span(&handle, 1), deadline);
    }

    // Sends a message made of the parts, one after the other.
    result<void> sendv(std::span<const iovec> parts, std::span<Handle> handles = {}, Deadline deadline = Deadline::never()) const {
        return detail::done(
            strait_sendv(channel_.get(), parts.data(), parts.size(), detail::raw(handles), handles.size(), deadline.get()));
    }

    // Sends a batch of messages with one wake-up. `sent` receives the number of messages sent, also on failure.
    result<void> send_many(std::span<const Outgoing> messages, std::size_t &sent, Deadline deadline = Deadline::never()) const {
        const auto row = detail::row(messages);
        return detail::done(strait_send_many(channel_.get(), row.data(), row.size(), &sent, deadline.get()));
    }

    result<Message> recv(Deadline deadline = Deadline::never()) const {
        Message message;
        if (const auto status = strait_recv(channel_.get(), message.get(), deadline.get()); status != STRAIT_OK) {
            return Error::last(status);
        }
        return message;
    }
    result<Message> try_recv() const { return recv(Deadline::now()); }

    // Receives into an existing message. A steady flow of messages allocates no memory.
    result<void> recv_message(Message &message, Deadline deadline = Deadline::never()) const {
        return detail::done(strait_recv(channel_.get(), message.get(), deadline.get()));
    }

    // Receives into a buffer of the caller's, and returns the number of bytes. If the buffer is too small, `asked` of
    // the error is the number needed, and the message stays. The handles go into `handles`; without `handles`, they are
    // closed.
    result<std::size_t> recv_into(std::span<std::byte> buffer, Message &handles, Deadline deadline = Deadline::never()) const {
        return into(buffer, handles.get(), deadline);
    }
    result<std::size_t> recv_into(std::span<std::byte> buffer, Deadline deadline = Deadline::never()) const {
        return into(buffer, nullptr, deadline);
    }

    // Receives all queued messages, at least one and at most as many as `messages` has, and returns their number.
    result<std::size_t> recv_many(std::span<Message> messages, Deadline deadline = Deadline::never()) const {
        std::size_t count = 0;
        const auto status = strait_recv_many(channel_.get(), detail::raw(messages), messages.size(), &count, deadline.get());
        if (status != STRAIT_OK) {
            return Error::last(status);
        }
        return count;
    }

    // Returns the sizes of the next message, and leaves it there. Fails with STRAIT_WOULD_BLOCK if no message is there,
    // or while another thread waits for one.
    result<MessageInfo> peek() const {
        return get<MessageInfo>([this](auto *out) { return strait_channel_peek(channel_.get(), out); });
    }

    result<View> recv_in_place(Deadline deadline = Deadline::never()) const {
        strait_view *view;
        if (const auto status = strait_recv_in_place(channel_.get(), &view, deadline.get()); status != STRAIT_OK) {
            return Error::last(status);
        }
        return View(view);
    }

    // Forwards a received message with its handles; then the message is empty. Memory sealed by the sender is passed on
    // without a copy. After a failure the message is as before.
    result<void> forward(Message &message, Deadline deadline = Deadline::never()) const {
        return detail::done(strait_forward(channel_.get(), message.get(), deadline.get()));
    }

    // Makes room for a message of `size` bytes. The deadline also applies to the commit.
    result<Reservation> reserve(std::size_t size, Deadline deadline = Deadline::never()) const {
        return room(strait_reserve, size, deadline);
    }
    // Makes memory for a message of `size` bytes. Once the message is sent, no process can change the bytes.
    result<Reservation> reserve_sealed(std::size_t size, Deadline deadline = Deadline::never()) const {
        return room(strait_reserve_sealed, size, deadline);
    }

    bool is_readable() const noexcept { return strait_channel_is_readable(channel_.get()); }
    bool is_writable() const noexcept { return strait_channel_is_writable(channel_.get()); }
    bool is_peer_closed() const noexcept { return strait_channel_is_peer_closed(channel_.get()); }

    // Returns the process at the other end, as the kernel describes it.
    result<Peer> peer() const {
        return get<Peer>([this](auto *out) { return strait_channel_peer(channel_.get(), out); });
    }
    result<Fd> peer_pidfd() const {
        int fd;
        if (const auto status = strait_channel_peer_pidfd(channel_.get(), &fd); status != STRAIT_OK) {
            return Error::last(status);
        }
        return Fd(fd);
    }
    // Returns how much is queued to be received, whether there is room to send, and whether the other end is closed.
    result<ChannelState> status() const {
        return get<ChannelState>([this](auto *out) { return strait_channel_status(channel_.get(), out); });
    }
    // Reports the process at the other end as a bad peer, and ends this channel. The library keeps a copy of `reason` for
    // the life of the process: give one of a few texts.
    result<Reported> report_bad(const char *reason) const {
        strait_reported reported = 0;
        if (const auto status = strait_channel_report_bad(channel_.get(), reason, &reported); status != STRAIT_OK) {
            return Error::last(status);
        }
        return static_cast<Reported>(reported);
    }
    result<Counters> counters() const {
        return get<Counters>([this](auto *out) { return strait_channel_counters(channel_.get(), out); });
    }
    result<Usage> peer_usage(strait_resource resource) const {
        return get<Usage>([this, resource](auto *out) { return strait_channel_peer_usage(channel_.get(), resource, out); });
    }

    // Ends the link to the process at the other end, and every channel over the link. Returns whether there was a link.
    result<bool> disconnect() const {
        return get<bool>([this](bool *out) { return strait_channel_disconnect(channel_.get(), out); });
    }

    // Moves the channel into memory shared by no other processes than the two at the ends.
    result<void> rehome(Deadline deadline) const { return detail::done(strait_channel_rehome(channel_.get(), deadline.get())); }

    // Splits the end into a sender and a receiver, each for one thread: see halves.hpp. On success this object is
    // empty, and function calls through other references fail with STRAIT_MOVED.
    inline result<Halves> split() &&;

    explicit operator bool() const noexcept { return channel_.get() != nullptr; }
    strait_channel *get() const noexcept { return channel_.get(); }
    strait_channel *release() noexcept { return channel_.release(); }

    // Returns the channel made by a function of the C library.
    template <class Call> static result<Channel> make(Call call) {
        strait_channel *channel = nullptr;
        if (const auto status = call(&channel); status != STRAIT_OK) {
            return Error::last_with_text(status);
        }
        return Channel(channel);
    }

private:
    template <class T, class Call> static result<T> get(Call call) {
        T value;
        if (const auto status = call(&value); status != STRAIT_OK) {
            return Error::last(status);
        }
        return value;
    }

    result<std::size_t> into(std::span<std::byte> buffer, strait_message *handles, Deadline deadline) const {
        std::size_t size = 0;
        const auto status = strait_recv_into(channel_.get(), buffer.data(), buffer.size(), &size, handles, deadline.get());
        if (status != STRAIT_OK) {
            return Error::last(status);
        }
        return size;
    }

    template <class Call> result<Reservation> room(Call call, std::size_t size, Deadline deadline) const {
        strait_reservation *made;
        if (const auto status = call(channel_.get(), size, &made, deadline.get()); status != STRAIT_OK) {
            return Error::last(status);
        }
        return Reservation(made, size);
    }

    detail::Owned<strait_channel, strait_channel_unref> channel_;
};

inline result<void> View::forward(const Channel &channel, Deadline deadline) {
    return detail::done(strait_view_forward(view_.get(), channel.get(), deadline.get()));
}

inline Handle::Handle(Channel channel) noexcept {
    if (channel) {
        handle_ = strait_handle_from_channel(channel.release());
    }
}

inline Channel Handle::into_channel() noexcept { return Channel(strait_handle_take_channel(&handle_)); }

// Sets the limits of a resource: for one peer process, and for all peer processes of one user.
inline result<void> set_limit(strait_resource resource, std::uint64_t peer, std::uint64_t user) {
    return detail::done(strait_set_limit(resource, peer, user));
}

// Sets the limit on the bytes of memory that this process keeps for outgoing large messages, over all channels.
inline void set_pool_limit(std::size_t bytes) noexcept { strait_set_pool_limit(bytes); }
inline std::size_t pool_limit() noexcept { return strait_pool_limit(); }

// Returns the number of bytes kept now.
inline std::size_t pool_held() noexcept { return strait_pool_held(); }

// Gives back the unused part of the kept memory, and returns the number of bytes given back.
inline std::size_t trim() noexcept { return strait_trim(); }

} // namespace strait

#endif
