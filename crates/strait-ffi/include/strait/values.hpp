// Small argument types: bytes, deadlines, descriptors, options.

#ifndef STRAIT_VALUES_HPP
#define STRAIT_VALUES_HPP

#include <strait/result.hpp>

#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <ranges>
#include <span>
#include <string>
#include <type_traits>

namespace strait {

// Borrowed bytes to send: a text, or a contiguous range whose elements are single bytes.
class Bytes {
public:
    constexpr Bytes() noexcept = default;
    constexpr Bytes(const void *data, std::size_t size) noexcept : data_(data), size_(size) {}
    constexpr Bytes(std::string_view text) noexcept : data_(text.data()), size_(text.size()) {}
    // The text before the zero byte.
    constexpr Bytes(const char *text) noexcept : Bytes(std::string_view(text)) {}

    template <class Range>
        requires(std::ranges::contiguous_range<const Range &> && !std::is_array_v<Range> &&
                 sizeof(std::ranges::range_value_t<const Range &>) == 1 &&
                 std::is_trivially_copyable_v<std::ranges::range_value_t<const Range &>>)
    constexpr Bytes(const Range &range) noexcept : data_(std::ranges::data(range)), size_(std::ranges::size(range)) {}

    constexpr const void *data() const noexcept { return data_; }
    constexpr std::size_t size() const noexcept { return size_; }

    // Returns the bytes as a part of a message.
    iovec part() const noexcept { return {const_cast<void *>(data_), size_}; }

private:
    const void *data_ = nullptr;
    std::size_t size_ = 0;
};

// How long a function may block. A duration counts from now; a time point is one of the steady clock (CLOCK_MONOTONIC).
class Deadline {
public:
    static constexpr Deadline now() noexcept { return Deadline(STRAIT_NOW); }
    static constexpr Deadline never() noexcept { return Deadline(STRAIT_NEVER); }

    template <class Rep, class Period> Deadline(std::chrono::duration<Rep, Period> after) noexcept {
        using wide = std::chrono::duration<long double, std::nano>;
        constexpr auto most = static_cast<long double>(STRAIT_NEVER);
        const auto nanoseconds = std::chrono::duration_cast<wide>(after).count();
        at_ = nanoseconds >= most ? STRAIT_NEVER : strait_after(static_cast<std::int64_t>(nanoseconds < -most ? -most : nanoseconds));
    }

    Deadline(std::chrono::steady_clock::time_point at) noexcept
        : at_(std::chrono::nanoseconds(at.time_since_epoch()).count()) {
        // The start of the clock has passed long ago, but its number means STRAIT_NOW.
        if (at_ == STRAIT_NOW) {
            at_ = -1;
        }
    }

    constexpr strait_deadline get() const noexcept { return at_; }

private:
    explicit constexpr Deadline(strait_deadline at) noexcept : at_(at) {}

    strait_deadline at_;
};

// A file descriptor, closed by the destructor.
class Fd {
public:
    Fd() noexcept = default;
    explicit Fd(int fd) noexcept : fd_(fd) {}
    Fd(Fd &&other) noexcept : fd_(other.release()) {}
    Fd &operator=(Fd &&other) noexcept {
        Fd(std::move(other)).swap(*this);
        return *this;
    }
    ~Fd() {
        if (fd_ >= 0) {
            ::close(fd_);
        }
    }

    int get() const noexcept { return fd_; }
    int release() noexcept { return std::exchange(fd_, -1); }
    explicit operator bool() const noexcept { return fd_ >= 0; }
    void swap(Fd &other) noexcept { std::swap(fd_, other.fd_); }

private:
    int fd_ = -1;
};

enum class Wait : strait_wait { adaptive = STRAIT_WAIT_ADAPTIVE, spin = STRAIT_WAIT_SPIN, block = STRAIT_WAIT_BLOCK };

// Options of one end of a channel. An unset option has the default; strait_options explains each option.
class Options {
public:
    Options &wait(Wait wait) noexcept { return options_.wait = static_cast<strait_wait>(wait), *this; }
    Options &spin(std::chrono::nanoseconds spin) noexcept { return set(&strait_options::spin, static_cast<std::uint64_t>(spin.count())); }
    Options &ring(std::uint64_t bytes) noexcept { return set(&strait_options::ring, bytes); }
    Options &ring_max(std::uint64_t bytes) noexcept { return set(&strait_options::ring_max, bytes); }
    Options &inline_max(std::uint64_t bytes) noexcept { return set(&strait_options::inline_max, bytes); }
    Options &queue_bytes(std::uint64_t bytes) noexcept { return set(&strait_options::queue_bytes, bytes); }
    Options &queue_messages(std::uint64_t messages) noexcept { return set(&strait_options::queue_messages, messages); }
    Options &queue_handles(std::uint64_t handles) noexcept { return set(&strait_options::queue_handles, handles); }
    Options &max_message(std::uint64_t bytes) noexcept { return set(&strait_options::max_message, bytes); }
    Options &max_handles(std::uint64_t handles) noexcept { return set(&strait_options::max_handles, handles); }
    Options &pool(std::uint64_t bytes) noexcept { return set(&strait_options::pool, bytes); }
    Options &peer_memory(std::uint64_t bytes) noexcept { return set(&strait_options::peer_memory, bytes); }
    Options &refuse_descriptors() noexcept { return options_.refuse_descriptors = 1, *this; }

    const strait_options *get() const noexcept { return &options_; }

private:
    Options &set(std::uint64_t strait_options::*option, std::uint64_t value) noexcept {
        options_.*option = value == 0 ? STRAIT_ZERO : value;
        return *this;
    }

    strait_options options_{};
};

namespace detail {

// Owns an object of the C library, and frees it in the destructor.
template <class T, void (*Free)(T *)> class Owned {
public:
    Owned() noexcept = default;
    explicit Owned(T *object) noexcept : object_(object) {}
    Owned(Owned &&other) noexcept : object_(other.release()) {}
    Owned &operator=(Owned &&other) noexcept {
        Owned taken(std::move(other));
        std::swap(object_, taken.object_);
        return *this;
    }
    ~Owned() {
        if (object_ != nullptr) {
            Free(object_);
        }
    }

    T *get() const noexcept { return object_; }
    T *release() noexcept { return std::exchange(object_, nullptr); }

private:
    T *object_ = nullptr;
};

} // namespace detail

} // namespace strait

#endif
