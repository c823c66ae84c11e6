// Channels, and what travels over them.

#ifndef STRAIT_CHANNEL_HPP
#define STRAIT_CHANNEL_HPP

#include <strait/pipe.hpp>
#include <strait/region.hpp>

#include <array>
#include <vector>

namespace strait {

class Channel;

using Peer = strait_peer;
using Counters = strait_counters;
using Usage = strait_usage;

// Something that travels in a message: a file descriptor, an end of a channel, or a region. It owns that, or is empty.
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
    ~Handle() { strait_handle_close(&handle_); }

    bool is_fd() const noexcept { return handle_.kind == STRAIT_HANDLE_FD; }
    bool is_channel() const noexcept { return handle_.kind == STRAIT_HANDLE_CHANNEL; }
    bool is_region() const noexcept { return handle_.kind == STRAIT_HANDLE_REGION; }
    bool is_producer() const noexcept { return handle_.kind == STRAIT_HANDLE_PRODUCER; }
    bool is_consumer() const noexcept { return handle_.kind == STRAIT_HANDLE_CONSUMER; }
    explicit operator bool() const noexcept { return handle_.kind != STRAIT_HANDLE_NONE; }

    // What it is, if it is that; then it is empty. Otherwise nothing, and it stays as it is.
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

// A row of handles is a row of what they hold.
static_assert(sizeof(Handle) == sizeof(strait_handle) && std::is_standard_layout_v<Handle>);

inline strait_handle *raw(std::span<Handle> handles) noexcept { return reinterpret_cast<strait_handle *>(handles.data()); }

// All handles that `take` gives.
template <class Take> result<std::vector<Handle>> take_all(Take take) {
    std::array<strait_handle, STRAIT_MAX_HANDLES> raw;
    std::size_t count = 0;
    if (const auto status = take(raw.data(), raw.size(), &count); status != STRAIT_OK) {
        return Error::last(status);
    }
    std::vector<Handle> handles;
    handles.reserve(count);
    for (std::size_t i = 0; i < count; i++) {
        handles.emplace_back(raw[i]);
    }
    return handles;
}

} // namespace detail

// A received message. Receiving into it again uses its memory again, and closes the handles that were not taken.
class Message {
public:
    Message() : message_(strait_message_new()) {}

    // Valid until it is received into again, moved from or destroyed.
    std::span<const std::byte> bytes() const noexcept {
        return {static_cast<const std::byte *>(strait_message_bytes(message_.get())), size()};
    }
    std::string_view text() const noexcept {
        return {static_cast<const char *>(strait_message_bytes(message_.get())), size()};
    }
    std::size_t size() const noexcept { return strait_message_len(message_.get()); }

    // Its handles, in the order in which they were sent; none if they were taken before.
    result<std::vector<Handle>> take_handles() {
        return detail::take_all([this](auto... to) { return strait_message_take_handles(message_.get(), to...); });
    }

    strait_message *get() const noexcept { return message_.get(); }

private:
    detail::Owned<strait_message, strait_message_free> message_;
};

// A received message, where the peer wrote it. Unless it is sealed, the peer can change the bytes while they are looked at: copy what you
// decide on, and decide on the copy.
class View {
public:
    explicit View(strait_view *view) noexcept : view_(view) {}

    std::size_t size() const noexcept { return strait_view_len(view_.get()); }

    // Copies from `offset` on into all of `out`.
    result<void> copy(std::size_t offset, std::span<std::byte> out) const {
        return detail::done(strait_view_copy(view_.get(), offset, out.data(), out.size()));
    }

    // The bytes, if nobody can change them any more.
    std::optional<std::span<const std::byte>> sealed() const noexcept {
        if (!strait_view_is_sealed(view_.get())) {
            return std::nullopt;
        }
        return std::span(static_cast<const std::byte *>(strait_view_data(view_.get())), size());
    }

    // Where the bytes are, for code that copes with bytes that change.
    const volatile void *untrusted() const noexcept { return strait_view_data(view_.get()); }

    // Sends it on over another channel without looking at it, handles and all. What was seen here is for certain what is sent only if it
    // is sealed.
    result<void> forward(const Channel &channel, Deadline deadline = Deadline::never());

    result<std::vector<Handle>> take_handles() {
        return detail::take_all([this](auto... to) { return strait_view_take_handles(view_.get(), to...); });
    }

private:
    detail::Owned<strait_view, strait_view_free> view_;
};

// Room for a message, to be filled where the peer will read it. Destroyed without a commit it is given back.
class Reservation {
public:
    Reservation(strait_reservation *room, std::size_t size) noexcept : room_(room), size_(size) {}

    // To be written to and not read.
    std::span<std::byte> data() noexcept { return {static_cast<std::byte *>(strait_reservation_data(room_.get())), size_}; }

    // Sends all of it, or the first bytes of it. The handles are taken if that succeeds.
    result<void> commit(std::span<Handle> handles = {}) && { return std::move(*this).commit_first(size_, handles); }
    result<void> commit_first(std::size_t size, std::span<Handle> handles = {}) && {
        return detail::done(strait_reservation_commit(room_.release(), size, detail::raw(handles), handles.size()));
    }

private:
    detail::Owned<strait_reservation, strait_reservation_cancel> room_;
    std::size_t size_;
};

// One of a row of messages. What it names must be there until the row is sent; its handles are taken with it.
struct Outgoing {
    std::span<const iovec> parts;
    std::span<Handle> handles = {};
};

// One end of a channel. Several threads may use one object at once only through references of their own, made by `share`.
class Channel {
public:
    // No end at all: every call fails with STRAIT_INVALID_ARGUMENT.
    Channel() noexcept = default;
    explicit Channel(strait_channel *channel) noexcept : channel_(channel) {}

    // Both ends in this process.
    static result<std::pair<Channel, Channel>> pair(const Options &options = {}) {
        strait_channel *a, *b;
        if (const auto status = strait_channel_pair(options.get(), &a, &b); status != STRAIT_OK) {
            return Error::last(status);
        }
        return std::pair(Channel(a), Channel(b));
    }

    // Over a connected SOCK_SEQPACKET Unix socket. The socket is taken if that succeeds.
    static result<Channel> over(Fd &&socket, const Options &options = {}) {
        auto made = make([&](auto **out) { return strait_channel_over(socket.get(), options.get(), out); });
        if (made) {
            socket.release();
        }
        return made;
    }

    // The channel to the process that started this one.
    static result<Channel> from_parent(const Options &options = {}) {
        return make([&](auto **out) { return strait_from_parent(options.get(), out); });
    }

    // The channel to whoever invited this process over its standard input.
    static result<Channel> invited(Deadline deadline, const Options &options = {}) {
        return make([&](auto **out) { return strait_invited(options.get(), out, deadline.get()); });
    }

    // Another reference to the same end, for another thread. When the last is gone, the end is closed.
    Channel share() const noexcept { return Channel(strait_channel_ref(channel_.get())); }

    // Closes the end, whatever other references there are: they fail with STRAIT_CLOSED from now on.
    void close() noexcept { strait_channel_close(channel_.release()); }

    result<void> send(Bytes bytes, Deadline deadline = Deadline::never()) const {
        return detail::done(strait_send(channel_.get(), bytes.data(), bytes.size(), deadline.get()));
    }
    result<void> try_send(Bytes bytes) const { return send(bytes, Deadline::now()); }

    // With handles, which are taken if that succeeds; otherwise they are the caller's as before.
    result<void> send(Bytes bytes, std::span<Handle> handles, Deadline deadline = Deadline::never()) const {
        const auto part = bytes.part();
        return sendv({&part, 1}, handles, deadline);
    }
    result<void> send(Bytes bytes, Handle &&handle, Deadline deadline = Deadline::never()) const {
        return send(bytes, std::span(&handle, 1), deadline);
    }

    // The parts, one after the other.
    result<void> sendv(std::span<const iovec> parts, std::span<Handle> handles = {}, Deadline deadline = Deadline::never()) const {
        return detail::done(
            strait_sendv(channel_.get(), parts.data(), parts.size(), detail::raw(handles), handles.size(), deadline.get()));
    }

    // A row of messages, with one wake-up. `sent` is how many were, also on failure.
    result<void> send_many(std::span<const Outgoing> messages, std::size_t &sent, Deadline deadline = Deadline::never()) const {
        std::vector<strait_outgoing> row;
        row.reserve(messages.size());
        for (const auto &message : messages) {
            row.push_back({message.parts.data(), message.parts.size(), detail::raw(message.handles), message.handles.size()});
        }
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

    // Into a message that is used again: nothing is allocated in steady flow.
    result<void> recv_to(Message &message, Deadline deadline = Deadline::never()) const {
        return detail::done(strait_recv(channel_.get(), message.get(), deadline.get()));
    }

    // Into a buffer of the caller's: how many bytes. If it is too small, the error's `asked` is what is needed, and the message stays.
    // Its handles go into `handles`; without one they are closed.
    result<std::size_t> recv_into(std::span<std::byte> buffer, Deadline deadline = Deadline::never(),
                                  Message *handles = nullptr) const {
        std::size_t size = 0;
        const auto status = strait_recv_into(channel_.get(), buffer.data(), buffer.size(), &size,
                                             handles == nullptr ? nullptr : handles->get(), deadline.get());
        if (status != STRAIT_OK) {
            return Error::last(status);
        }
        return size;
    }

    // As many as are there, at least one: how many.
    result<std::size_t> recv_many(std::span<Message> messages, Deadline deadline = Deadline::never()) const {
        static_assert(sizeof(Message) == sizeof(strait_message *) && std::is_standard_layout_v<Message>);
        std::size_t count = 0;
        const auto status = strait_recv_many(channel_.get(), reinterpret_cast<strait_message *const *>(messages.data()),
                                             messages.size(), &count, deadline.get());
        if (status != STRAIT_OK) {
            return Error::last(status);
        }
        return count;
    }

    result<View> recv_in_place(Deadline deadline = Deadline::never()) const {
        strait_view *view;
        if (const auto status = strait_recv_in_place(channel_.get(), &view, deadline.get()); status != STRAIT_OK) {
            return Error::last(status);
        }
        return View(view);
    }

    // Sends a received message on, handles and all; then it is empty. The memory of one that its sender has sealed is passed on, without
    // a copy. If that fails it is as it was.
    result<void> forward(Message &message, Deadline deadline = Deadline::never()) const {
        return detail::done(strait_forward(channel_.get(), message.get(), deadline.get()));
    }

    // Room for a message of so many bytes. The deadline holds for the commit too.
    result<Reservation> reserve(std::size_t size, Deadline deadline = Deadline::never()) const {
        return room(strait_reserve, size, deadline);
    }
    // The same in memory that nobody can change once it is sent.
    result<Reservation> reserve_sealed(std::size_t size, Deadline deadline = Deadline::never()) const {
        return room(strait_reserve_sealed, size, deadline);
    }

    bool is_readable() const noexcept { return strait_channel_is_readable(channel_.get()); }
    bool is_writable() const noexcept { return strait_channel_is_writable(channel_.get()); }
    bool is_peer_closed() const noexcept { return strait_channel_is_peer_closed(channel_.get()); }

    // Who is at the other end, as the kernel says.
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
    result<Counters> counters() const {
        return get<Counters>([this](auto *out) { return strait_channel_counters(channel_.get(), out); });
    }
    result<Usage> peer_usage(strait_resource resource) const {
        return get<Usage>([this, resource](auto *out) { return strait_channel_peer_usage(channel_.get(), resource, out); });
    }

    // Into memory that nobody has but the two processes at its ends.
    result<void> rehome(Deadline deadline) const { return detail::done(strait_channel_rehome(channel_.get(), deadline.get())); }

    explicit operator bool() const noexcept { return channel_.get() != nullptr; }
    strait_channel *get() const noexcept { return channel_.get(); }
    strait_channel *release() noexcept { return channel_.release(); }

    // A channel that a call of the C library makes.
    template <class Call> static result<Channel> make(Call call) {
        strait_channel *channel = nullptr;
        if (const auto status = call(&channel); status != STRAIT_OK) {
            return Error::last(status);
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

// Sets how much of something this process holds: for one peer process, and for all of one user.
inline result<void> set_limit(strait_resource resource, std::uint64_t peer, std::uint64_t user) {
    return detail::done(strait_set_limit(resource, peer, user));
}

} // namespace strait

#endif
