// Wait sets: waiting for many channels and other descriptors at once.

#ifndef STRAIT_WAIT_SET_HPP
#define STRAIT_WAIT_SET_HPP

#include <strait/halves.hpp>
#include <strait/meeting.hpp>

namespace strait {

enum class Interest : strait_events { readable = STRAIT_READABLE, writable = STRAIT_WRITABLE, both = STRAIT_READABLE | STRAIT_WRITABLE };
enum class Mode : strait_mode { level = STRAIT_LEVEL, one_shot = STRAIT_ONE_SHOT };

// An event of a member of a set: the member's `key`, and the events found.
struct Event : strait_event {
    bool readable() const noexcept { return (events & STRAIT_READABLE) != 0; }
    bool writable() const noexcept { return (events & STRAIT_WRITABLE) != 0; }
    bool has_moved() const noexcept { return (events & STRAIT_HAS_MOVED) != 0; }
};

class WaitSet {
public:
    static result<WaitSet> create() {
        strait_wait_set *set;
        if (const auto status = strait_wait_set_new(&set); status != STRAIT_OK) {
            return Error::last(status);
        }
        return WaitSet(set);
    }

    explicit WaitSet(strait_wait_set *set) noexcept : set_(set) {}

    result<void> add(const Channel &channel, std::uint64_t key, Interest interest = Interest::readable, Mode mode = Mode::level) const {
        return detail::done(strait_wait_set_add(set_.get(), channel.get(), key, static_cast<strait_events>(interest),
                                                static_cast<strait_mode>(mode)));
    }
    // Replaces the key, the interest and the mode of a member, and arms its registration. With the values of `add`, arms
    // a one-shot registration again.
    result<void> modify(const Channel &channel, std::uint64_t key, Interest interest, Mode mode) const {
        return detail::done(strait_wait_set_modify(set_.get(), channel.get(), key, static_cast<strait_events>(interest),
                                                   static_cast<strait_mode>(mode)));
    }
    // Arms a channel for one event: the send that has just failed with `STRAIT_WOULD_BLOCK` in this thread may succeed
    // now, also if the message is large.
    result<void> await_room(const Channel &channel, std::uint64_t key) const {
        return detail::done(strait_wait_set_await_room(set_.get(), channel.get(), key));
    }
    result<void> await_room(const Sender &half, std::uint64_t key) const {
        return detail::done(strait_wait_set_await_room_sender(set_.get(), half.get(), key));
    }
    result<void> remove(const Channel &channel) const { return detail::done(strait_wait_set_remove(set_.get(), channel.get())); }

    // Members can also be ends of data pipes. A producer is ready when writable, or when the consumer is gone; a
    // consumer is ready when readable, or when the stream has ended.
    result<void> add(const Producer &end, std::uint64_t key, Mode mode = Mode::level) const {
        return detail::done(strait_wait_set_add_producer(set_.get(), end.get(), key, static_cast<strait_mode>(mode)));
    }
    result<void> add(const Consumer &end, std::uint64_t key, Mode mode = Mode::level) const {
        return detail::done(strait_wait_set_add_consumer(set_.get(), end.get(), key, static_cast<strait_mode>(mode)));
    }
    result<void> modify(const Producer &end, std::uint64_t key, Mode mode) const {
        return detail::done(strait_wait_set_modify_producer(set_.get(), end.get(), key, static_cast<strait_mode>(mode)));
    }
    result<void> modify(const Consumer &end, std::uint64_t key, Mode mode) const {
        return detail::done(strait_wait_set_modify_consumer(set_.get(), end.get(), key, static_cast<strait_mode>(mode)));
    }
    result<void> remove(const Producer &end) const { return detail::done(strait_wait_set_remove_producer(set_.get(), end.get())); }
    result<void> remove(const Consumer &end) const { return detail::done(strait_wait_set_remove_consumer(set_.get(), end.get())); }

    // Members can also be halves of ends, whose calls take a lock from then on. A half must be added by the thread that
    // uses the half.
    result<void> add(const Sender &half, std::uint64_t key, Mode mode = Mode::level) const {
        return detail::done(strait_wait_set_add_sender(set_.get(), half.get(), key, static_cast<strait_mode>(mode)));
    }
    result<void> add(const Receiver &half, std::uint64_t key, Mode mode = Mode::level) const {
        return detail::done(strait_wait_set_add_receiver(set_.get(), half.get(), key, static_cast<strait_mode>(mode)));
    }
    result<void> modify(const Sender &half, std::uint64_t key, Mode mode) const {
        return detail::done(strait_wait_set_modify_sender(set_.get(), half.get(), key, static_cast<strait_mode>(mode)));
    }
    result<void> modify(const Receiver &half, std::uint64_t key, Mode mode) const {
        return detail::done(strait_wait_set_modify_receiver(set_.get(), half.get(), key, static_cast<strait_mode>(mode)));
    }
    result<void> remove(const Sender &half) const { return detail::done(strait_wait_set_remove_sender(set_.get(), half.get())); }
    result<void> remove(const Receiver &half) const { return detail::done(strait_wait_set_remove_receiver(set_.get(), half.get())); }

    // A listener is ready when `accept` has something to do, though not always something to return.
    result<void> add(const Listener &listener, std::uint64_t key, Mode mode = Mode::level) const {
        return detail::done(strait_wait_set_add_listener(set_.get(), listener.get(), key, static_cast<strait_mode>(mode)));
    }
    result<void> modify(const Listener &listener, std::uint64_t key, Mode mode) const {
        return detail::done(strait_wait_set_modify_listener(set_.get(), listener.get(), key, static_cast<strait_mode>(mode)));
    }
    result<void> remove(const Listener &listener) const {
        return detail::done(strait_wait_set_remove_listener(set_.get(), listener.get()));
    }

    // Any other descriptor: the set watches a duplicate. Remove the descriptor from the set before you close it.
    result<void> add_fd(int fd, std::uint64_t key, Interest interest = Interest::readable, Mode mode = Mode::level) const {
        return detail::done(strait_wait_set_add_fd(set_.get(), fd, key, static_cast<strait_events>(interest),
                                                   static_cast<strait_mode>(mode)));
    }
    result<void> modify_fd(int fd, std::uint64_t key, Interest interest, Mode mode) const {
        return detail::done(strait_wait_set_modify_fd(set_.get(), fd, key, static_cast<strait_events>(interest),
                                                      static_cast<strait_mode>(mode)));
    }
    result<void> remove_fd(int fd) const { return detail::done(strait_wait_set_remove_fd(set_.get(), fd)); }

    // Waits until a member is ready. Returns the events, at the front of `events`; none if the deadline has passed.
    result<std::span<const Event>> wait(std::span<Event> events, Deadline deadline = Deadline::never()) const {
        static_assert(sizeof(Event) == sizeof(strait_event));
        std::size_t count = 0;
        const auto status = strait_wait_set_wait(set_.get(), events.data(), events.size(), &count, deadline.get());
        if (status != STRAIT_OK) {
            return Error::last(status);
        }
        return std::span<const Event>(events.first(count));
    }

    // Returns a descriptor, owned by the set, that is readable whenever `wait` may have events.
    int fd() const noexcept { return strait_wait_set_fd(set_.get()); }
    // Whether there is more work although a wait has returned no event; for edge-triggered event loops.
    bool has_more() const noexcept { return strait_wait_set_has_more(set_.get()); }
    std::size_t size() const noexcept { return strait_wait_set_len(set_.get()); }

private:
    detail::Owned<strait_wait_set, strait_wait_set_free> set_;
};

} // namespace strait

#endif
