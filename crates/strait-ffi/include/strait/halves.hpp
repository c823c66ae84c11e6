// The halves of an end, a sender and a receiver, each for one thread at a time.

#ifndef STRAIT_HALVES_HPP
#define STRAIT_HALVES_HPP

#include <strait/channel.hpp>

namespace strait {

class Receiver;

// The sending half of an end, made by Channel::split. Only one thread at a time uses the half, so the calls need no
// lock, and are faster than on a channel.
class Sender {
public:
    // An empty object: every function fails with STRAIT_INVALID_ARGUMENT.
    Sender() noexcept = default;
    explicit Sender(strait_sender *sender) noexcept : sender_(sender) {}

    result<void> send(Bytes bytes, Deadline deadline = Deadline::never()) {
        return detail::done(strait_sender_send(sender_.get(), bytes.data(), bytes.size(), deadline.get()));
    }
    result<void> try_send(Bytes bytes) { return send(bytes, Deadline::now()); }

    // Sends bytes with handles. Takes the handles only on success; after a failure the caller still owns them.
    result<void> send(Bytes bytes, std::span<Handle> handles, Deadline deadline = Deadline::never()) {
        const auto part = bytes.part();
        return sendv({&part, 1}, handles, deadline);
    }
    result<void> send(Bytes bytes, Handle &&handle, Deadline deadline = Deadline::never()) {
        return send(bytes, std::span(&handle, 1), deadline);
    }
    // Sends a message made of the parts, one after the other.
    result<void> sendv(std::span<const iovec> parts, std::span<Handle> handles = {}, Deadline deadline = Deadline::never()) {
        return detail::done(
            strait_sender_sendv(sender_.get(), parts.data(), parts.size(), detail::raw(handles), handles.size(), deadline.get()));
    }

    // Sends a batch of messages, as Channel::send_many does.
    result<void> send_many(std::span<const Outgoing> messages, std::size_t &sent, Deadline deadline = Deadline::never()) {
        const auto row = detail::row(messages);
        return detail::done(strait_sender_send_many(sender_.get(), row.data(), row.size(), &sent, deadline.get()));
    }

    // Makes room for a message of `size` bytes. The deadline also applies to the commit. The sender must outlive the
    // reservation; until its end, other calls on the sender fail with STRAIT_IN_USE.
    result<Reservation> reserve(std::size_t size, Deadline deadline = Deadline::never()) {
        return room(strait_sender_reserve, size, deadline);
    }
    // Makes memory for a message of `size` bytes. Once the message is sent, no process can change the bytes.
    result<Reservation> reserve_sealed(std::size_t size, Deadline deadline = Deadline::never()) {
        return room(strait_sender_reserve_sealed, size, deadline);
    }

    // Joins this object and `receiver` to the end from which both were split. On success both objects are empty. Fails
    // with STRAIT_INVALID_ARGUMENT if the halves belong to different ends.
    inline result<Channel> join(Receiver &&receiver) &&;

    explicit operator bool() const noexcept { return sender_.get() != nullptr; }
    strait_sender *get() const noexcept { return sender_.get(); }
    strait_sender *release() noexcept { return sender_.release(); }

private:
    template <class Reserve> result<Reservation> room(Reserve make, std::size_t size, Deadline deadline) {
        strait_reservation *made = nullptr;
        if (const auto status = make(sender_.get(), size, &made, deadline.get()); status != STRAIT_OK) {
            return Error::last(status);
        }
        return Reservation(made, size);
    }

    detail::Owned<strait_sender, strait_sender_free> sender_;
};

// The receiving half of an end, made by Channel::split. Only one thread at a time uses the half, so the calls need no
// lock, and are faster than on a channel.
class Receiver {
public:
    // An empty object: every function fails with STRAIT_INVALID_ARGUMENT.
    Receiver() noexcept = default;
    explicit Receiver(strait_receiver *receiver) noexcept : receiver_(receiver) {}

    result<Message> recv(Deadline deadline = Deadline::never()) {
        Message message;
        if (const auto received = recv_message(message, deadline); !received) {
            return received.error();
        }
        return message;
    }
    result<Message> try_recv() { return recv(Deadline::now()); }

    // Receives into an existing message. A steady flow of messages allocates no memory.
    result<void> recv_message(Message &message, Deadline deadline = Deadline::never()) {
        return detail::done(strait_receiver_recv(receiver_.get(), message.get(), deadline.get()));
    }
    // Receives into a buffer of the caller's, as Channel::recv_into does.
    result<std::size_t> recv_into(std::span<std::byte> buffer, Message &handles, Deadline deadline = Deadline::never()) {
        return into(buffer, handles.get(), deadline);
    }
    result<std::size_t> recv_into(std::span<std::byte> buffer, Deadline deadline = Deadline::never()) {
        return into(buffer, nullptr, deadline);
    }
    // Receives all queued messages, at least one and at most as many as `messages` has, and returns their number.
    result<std::size_t> recv_many(std::span<Message> messages, Deadline deadline = Deadline::never()) {
        std::size_t count = 0;
        const auto status =
            strait_receiver_recv_many(receiver_.get(), detail::raw(messages), messages.size(), &count, deadline.get());
        if (status != STRAIT_OK) {
            return Error::last(status);
        }
        return count;
    }
    // Returns why the other end was closed, once a receive has failed with STRAIT_PEER_CLOSED; nothing if it did not say.
    std::optional<std::uint32_t> close_reason() const noexcept {
        std::uint32_t reason = 0;
        return strait_receiver_close_reason(receiver_.get(), &reason) ? std::optional(reason) : std::nullopt;
    }

    explicit operator bool() const noexcept { return receiver_.get() != nullptr; }
    strait_receiver *get() const noexcept { return receiver_.get(); }
    strait_receiver *release() noexcept { return receiver_.release(); }

private:
    result<std::size_t> into(std::span<std::byte> buffer, strait_message *handles, Deadline deadline) {
        std::size_t size = 0;
        const auto status =
            strait_receiver_recv_into(receiver_.get(), buffer.data(), buffer.size(), &size, handles, deadline.get());
        if (status != STRAIT_OK) {
            return Error::last(status);
        }
        return size;
    }

    detail::Owned<strait_receiver, strait_receiver_free> receiver_;
};

// Both halves of an end. The end closes when both are destroyed.
struct Halves {
    Sender sender;
    Receiver receiver;
};

inline result<Halves> Channel::split() && {
    strait_sender *sender = nullptr;
    strait_receiver *receiver = nullptr;
    if (const auto status = strait_channel_split(channel_.get(), &sender, &receiver); status != STRAIT_OK) {
        return Error::last(status);
    }
    channel_.release();
    return Halves{Sender(sender), Receiver(receiver)};
}

inline result<Channel> Sender::join(Receiver &&receiver) && {
    auto joined = Channel::make([&](auto **out) { return strait_sender_join(sender_.get(), receiver.get(), out); });
    if (joined) {
        sender_.release();
        receiver.release();
    }
    return joined;
}

} // namespace strait

#endif
