// The results of functions: a value, or an error whose text has advice. Nothing here throws; strait/throwing.hpp does.

#ifndef STRAIT_RESULT_HPP
#define STRAIT_RESULT_HPP

#include <strait/strait.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace strait {

// Why a function failed. An error is small and cheap to make. Rare errors carry a text and numbers, which copies share.
class Error {
public:
    // Returns the last failure of the thread, which had the given status.
    static Error last(strait_status status) {
        Error error(status);
        switch (status) {
        // Frequent errors, whose details contain no more than the status.
        case STRAIT_OK:
        case STRAIT_WOULD_BLOCK:
        case STRAIT_TIMED_OUT:
        case STRAIT_PEER_CLOSED:
        case STRAIT_CLOSED:
        case STRAIT_MOVED:
            break;
        default:
            error.details_ = details();
        }
        return error;
    }

    // Returns the last failure of the thread, which had the given status, with its text. For functions that are called
    // seldom: `last` leaves out the texts of frequent errors.
    static Error last_with_text(strait_status status) {
        Error error(status);
        if (status != STRAIT_OK && status != STRAIT_WOULD_BLOCK) {
            error.details_ = details();
        }
        return error;
    }

    explicit Error(strait_status status = STRAIT_OK) noexcept : status_(status) {}

    strait_status status() const noexcept { return status_; }

    // Returns a text about the event and what to do.
    std::string_view text() const noexcept {
        return details_ ? std::string_view(details_->text) : std::string_view(strait_status_text(status_));
    }

    // Returns the errno of STRAIT_SYSTEM; otherwise 0.
    int os_error() const noexcept { return details_ ? details_->figures.os_error : 0; }

    // The fields of the same names in strait_error.
    std::uint64_t asked() const noexcept { return details_ ? details_->figures.asked : 0; }
    std::uint64_t limit() const noexcept { return details_ ? details_->figures.limit : 0; }

    friend bool operator==(const Error &error, strait_status status) noexcept { return error.status_ == status; }

private:
    struct Details {
        strait_error figures;
        std::string text;
    };

    static std::shared_ptr<const Details> details() {
        auto details = std::make_shared<Details>();
        strait_last_error(&details->figures);
        details->text.resize(strait_last_error_text(nullptr, 0));
        strait_last_error_text(details->text.data(), details->text.size() + 1);
        return details;
    }

    strait_status status_;
    std::shared_ptr<const Details> details_;
};

namespace detail {

[[noreturn]] inline void no_value(const Error &error) {
    std::fprintf(stderr, "strait: a value was taken where there is an error: %.*s\n", static_cast<int>(error.text().size()),
                 error.text().data());
    std::abort();
}

} // namespace detail

// A value, or the reason why there is none, like std::expected<T, Error> of C++23. Taking the value of an error aborts
// the program.
template <class T> class [[nodiscard]] result {
public:
    result(T value) : value_(std::move(value)) {}
    result(Error error) : error_(std::move(error)) {}

    bool has_value() const noexcept { return value_.has_value(); }
    explicit operator bool() const noexcept { return has_value(); }

    T &value() & { return check(), *value_; }
    const T &value() const & { return check(), *value_; }
    T value() && { return check(), std::move(*value_); }
    T &operator*() & { return value(); }
    const T &operator*() const & { return value(); }
    T operator*() && { return std::move(*this).value(); }
    T *operator->() { return &value(); }
    const T *operator->() const { return &value(); }

    template <class U> T value_or(U &&otherwise) && {
        return value_ ? std::move(*value_) : static_cast<T>(std::forward<U>(otherwise));
    }

    // Returns the error; its status is STRAIT_OK if there is a value.
    const Error &error() const noexcept { return error_; }
    strait_status status() const noexcept { return error_.status(); }

    // Returns next(value), or the error if there is no value.
    template <class F> auto and_then(F &&next) && -> decltype(next(std::declval<T>())) {
        if (!value_) {
            return error_;
        }
        return std::forward<F>(next)(std::move(*value_));
    }

private:
    void check() const {
        if (!value_) {
            detail::no_value(error_);
        }
    }

    std::optional<T> value_;
    Error error_;
};

// The result of a function without a value: success, or an error.
template <> class [[nodiscard]] result<void> {
public:
    result() = default;
    result(Error error) : error_(std::move(error)) {}

    bool has_value() const noexcept { return error_.status() == STRAIT_OK; }
    explicit operator bool() const noexcept { return has_value(); }

    void value() const {
        if (!has_value()) {
            detail::no_value(error_);
        }
    }

    const Error &error() const noexcept { return error_; }
    strait_status status() const noexcept { return error_.status(); }

private:
    Error error_;
};

namespace detail {

inline result<void> done(strait_status status) {
    if (status == STRAIT_OK) [[likely]] {
        return {};
    }
    return Error::last(status);
}

} // namespace detail

} // namespace strait

#endif
