// Calls over a channel: requests with replies, which may come in any order.

#ifndef STRAIT_CALLS_HPP
#define STRAIT_CALLS_HPP

#include <strait/channel.hpp>

namespace strait {

// The object for the reply to one request. If it is destroyed without a reply, the caller gets STRAIT_NOT_ANSWERED.
class Replier {
public:
    Replier() noexcept = default;
    explicit Replier(strait_replier *replier) noexcept : replier_(replier) {}

    // Returns whether the caller has stopped waiting for the reply, as far as this process knows.
    bool is_cancelled() const noexcept { return strait_replier_is_cancelled(replier_.get()); }

    // Replies, once. After a failure the replier can be used again, and the caller still owns the handles.
    result<void> reply(Bytes bytes, std::span<Handle> handles = {}, Deadline deadline = Deadline::never()) {
        const auto part = bytes.part();
        return detail::done(
            strait_replier_reply(replier_.get(), &part, 1, detail::raw(handles), handles.size(), deadline.get()));
    }

private:
    detail::Owned<strait_replier, strait_replier_free> replier_;
};

// A request, and the object for the reply.
struct Request {
    Message message;
    Replier replier;
};

// An end of a channel for calls in both directions. Any number of threads may use it at once.
class CallEnd {
public:
    explicit CallEnd(strait_call_end *end) noexcept : end_(end) {}

    // Turns an end of a channel into a call end. Takes the channel only on success.
    static result<CallEnd> over(Channel &&channel) {
        strait_call_end *end = nullptr;
        if (const auto status = strait_call_end_over(channel.get(), &end); status != STRAIT_OK) {
            return Error::last(status);
        }
        channel.release();
        return CallEnd(end);
    }

    // Sends a request, and returns the reply. After STRAIT_OUTCOME_UNKNOWN or STRAIT_NOT_ANSWERED the request was sent.
    // After other failures it was not, and the caller still owns the handles.
    result<Message> call(Bytes bytes, std::span<Handle> handles = {}, Deadline deadline = Deadline::never()) const {
        Message reply;
        const auto part = bytes.part();
        const auto status = strait_call(end_.get(), &part, 1, detail::raw(handles), handles.size(), reply.get(), deadline.get());
        if (status != STRAIT_OK) {
            return Error::last(status);
        }
        return reply;
    }

    result<Request> next_request(Deadline deadline = Deadline::never()) const {
        Message message;
        strait_replier *replier = nullptr;
        if (const auto status = strait_call_next(end_.get(), message.get(), &replier, deadline.get()); status != STRAIT_OK) {
            return Error::last(status);
        }
        return Request{std::move(message), Replier(replier)};
    }

private:
    detail::Owned<strait_call_end, strait_call_end_free> end_;
};

} // namespace strait

#endif
