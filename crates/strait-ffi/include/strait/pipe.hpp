// Data pipes: one-way streams of bytes in shared memory.

#ifndef STRAIT_PIPE_HPP
#define STRAIT_PIPE_HPP

#include <strait/values.hpp>

namespace strait {

class Producer;
class Consumer;

// Room of a producer for writing in place. Destroying the object without `commit` writes nothing. The producer must
// outlive the object.
class Room {
public:
    explicit Room(strait_producer *producer, std::span<std::byte> bytes) noexcept : producer_(producer), bytes_(bytes) {}

    // Returns the memory, for writing only: do not read from the memory, since the peer may change the bytes.
    std::span<std::byte> bytes() const noexcept { return bytes_; }
    std::size_t size() const noexcept { return bytes_.size(); }

    // Ends writing in place: the first `size` bytes were written.
    result<void> commit(std::size_t size) {
        auto committed = detail::done(strait_producer_commit(producer_.get(), size));
        if (committed) {
            producer_.release();
        }
        return committed;
    }

private:
    static void cancel(strait_producer *producer) noexcept { strait_producer_commit(producer, 0); }

    detail::Owned<strait_producer, cancel> producer_;
    std::span<std::byte> bytes_;
};

// Bytes of a consumer, in the memory written by the producer. The producer can still change the bytes: copy the bytes
// on which a decision depends, once. Destroying the object without `consume` reads nothing. The consumer must outlive
// the object. At the end of the stream the object is empty, and holds nothing.
class Unread {
public:
    explicit Unread(strait_consumer *consumer, std::span<const std::byte> bytes) noexcept : consumer_(consumer), bytes_(bytes) {}

    std::span<const std::byte> bytes() const noexcept { return bytes_; }
    std::size_t size() const noexcept { return bytes_.size(); }
    // Returns whether the stream has ended.
    bool empty() const noexcept { return bytes_.empty(); }

    // Ends reading in place: the first `size` bytes were read.
    result<void> consume(std::size_t size) {
        if (empty() && size == 0) {
            return {};
        }
        auto consumed = detail::done(strait_consumer_consume(consumer_.get(), size));
        if (consumed) {
            consumer_.release();
        }
        return consumed;
    }

private:
    static void cancel(strait_consumer *consumer) noexcept { strait_consumer_consume(consumer, 0); }

    detail::Owned<strait_consumer, cancel> consumer_;
    std::span<const std::byte> bytes_;
};

// The writing end of a data pipe. Destroying it ends the stream.
class Producer {
public:
    Producer() noexcept = default;
    explicit Producer(strait_producer *producer) noexcept : producer_(producer) {}

    // Writes as many bytes as fit now, at least one element, and returns their number.
    result<std::size_t> write(Bytes bytes, Deadline deadline = Deadline::never()) const {
        std::size_t written = 0;
        const auto status = strait_producer_write(producer_.get(), bytes.data(), bytes.size(), &written, deadline.get());
        if (status != STRAIT_OK) {
            return Error::last(status);
        }
        return written;
    }
    // Writes all bytes at once, or nothing.
    result<void> write_whole(Bytes bytes, Deadline deadline = Deadline::never()) const {
        return detail::done(strait_producer_write_whole(producer_.get(), bytes.data(), bytes.size(), deadline.get()));
    }
    // Returns room for writing in place, at least one element.
    result<Room> begin_write(Deadline deadline = Deadline::never()) const {
        void *room = nullptr;
        std::size_t size = 0;
        if (const auto status = strait_producer_begin(producer_.get(), &room, &size, deadline.get()); status != STRAIT_OK) {
            return Error::last(status);
        }
        return Room(producer_.get(), {static_cast<std::byte *>(room), size});
    }
    // Returns the number of bytes with room now.
    result<std::size_t> room() const {
        std::size_t room = 0;
        if (const auto status = strait_producer_room(producer_.get(), &room); status != STRAIT_OK) {
            return Error::last(status);
        }
        return room;
    }

    // Aborts the stream: the consumer reads everything written before, and then fails with STRAIT_ABORTED; its
    // Error::details().asked is the reason. Empties this object.
    void abort(std::uint32_t reason) noexcept { strait_producer_abort(producer_.release(), reason); }

    std::size_t capacity() const noexcept { return strait_producer_capacity(producer_.get()); }
    std::size_t element() const noexcept { return strait_producer_element(producer_.get()); }
    explicit operator bool() const noexcept { return producer_.get() != nullptr; }
    strait_producer *get() const noexcept { return producer_.get(); }
    strait_producer *release() noexcept { return producer_.release(); }

private:
    detail::Owned<strait_producer, strait_producer_free> producer_;
};

// The reading end of a data pipe.
class Consumer {
public:
    Consumer() noexcept = default;
    explicit Consumer(strait_consumer *consumer) noexcept : consumer_(consumer) {}

    // Reads the bytes available now, at least one element, and returns their number: 0 at the end of the stream.
    result<std::size_t> read(std::span<std::byte> out, Deadline deadline = Deadline::never()) const {
        return count([&](auto *count) {
            return strait_consumer_read(consumer_.get(), out.data(), out.size(), count, deadline.get());
        });
    }
    // Fills all of `out`, or reads nothing.
    result<void> read_whole(std::span<std::byte> out, Deadline deadline = Deadline::never()) const {
        return detail::done(strait_consumer_read_whole(consumer_.get(), out.data(), out.size(), deadline.get()));
    }
    // Copies the bytes available now; the next read returns the same bytes again.
    result<std::size_t> peek(std::span<std::byte> out) const {
        return count([&](auto *count) { return strait_consumer_peek(consumer_.get(), out.data(), out.size(), count); });
    }
    result<std::size_t> discard(std::size_t most) const {
        return count([&](auto *count) { return strait_consumer_discard(consumer_.get(), most, count); });
    }
    // Returns the bytes available now, for reading in place.
    result<Unread> begin_read(Deadline deadline = Deadline::never()) const {
        const void *bytes = nullptr;
        std::size_t size = 0;
        if (const auto status = strait_consumer_begin(consumer_.get(), &bytes, &size, deadline.get()); status != STRAIT_OK) {
            return Error::last(status);
        }
        return Unread(size > 0 ? consumer_.get() : nullptr, {static_cast<const std::byte *>(bytes), size});
    }
    // Returns the number of readable bytes.
    result<std::size_t> available() const {
        return count([&](auto *count) { return strait_consumer_available(consumer_.get(), count); });
    }

    // Closes the end with a reason: the producer's writes fail with STRAIT_ABORTED, with the reason in
    // Error::details().asked. Empties the object.
    void abort(std::uint32_t reason) noexcept { strait_consumer_abort(consumer_.release(), reason); }

    std::size_t capacity() const noexcept { return strait_consumer_capacity(consumer_.get()); }
    std::size_t element() const noexcept { return strait_consumer_element(consumer_.get()); }
    explicit operator bool() const noexcept { return consumer_.get() != nullptr; }
    strait_consumer *get() const noexcept { return consumer_.get(); }
    strait_consumer *release() noexcept { return consumer_.release(); }

private:
    template <class Call> static result<std::size_t> count(Call call) {
        std::size_t count = 0;
        if (const auto status = call(&count); status != STRAIT_OK) {
            return Error::last(status);
        }
        return count;
    }

    detail::Owned<strait_consumer, strait_consumer_free> consumer_;
};

// The two ends of a data pipe.
struct DataPipe {
    Producer producer;
    Consumer consumer;

    // Makes a data pipe whose buffer has `capacity` bytes, rounded up to whole elements.
    static result<DataPipe> create(std::size_t capacity, std::uint32_t element = 1) {
        strait_producer *producer = nullptr;
        strait_consumer *consumer = nullptr;
        if (const auto status = strait_pipe_new(capacity, element, &producer, &consumer); status != STRAIT_OK) {
            return Error::last(status);
        }
        return DataPipe{Producer(producer), Consumer(consumer)};
    }
};

} // namespace strait

#endif
