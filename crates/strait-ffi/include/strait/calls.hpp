// Calls: requests with replies in any order, over a channel.

#ifndef STRAIT_CALLS_HPP
#define STRAIT_CALLS_HPP

#include <strait/channel.hpp>

namespace strait {

// What answers a request. Destroyed without an answer, it has the caller told so.
class Replier {
public:
    Replier() noexcept = default;
    explicit Replier(strait_replier *replier) noexcept : replier_(replier) {}

    // Whether nobody waits for the answer any more, as far as is known here.
    bool is_cancelled() const noexcept { return strait_replier_is_cancelled(replier_.get()); }

    // Once; after a failure it can answer still, and has its handles.
    result<void> reply(Bytes bytes, std::span<Handle> handles = {}, Deadline deadline = Deadline::never()) {
        const auto part = bytes.part();
        return detail::done(
            strait_replier_reply(replier_.get(), &part, 1, detail::raw(handles), handles.size(), deadline.get()));
    }

private:
    detail::Owned<strait_replier, strait_replier_free> replier_;
};

// A request, and what answers it.
struct Request {
    Message message;
    Replier replier;
};

// An end of a channel for calls, both ways. Any number of threads may use it at once.
class CallEnd {
public:
    explicit CallEnd(strait_call_end *end) noexcept : end_(end) {}

    // The channel is taken if that succeeds.
    static result<CallEnd> over(Channel &&channel) {
        strait_call_end *end = nullptr;
        if (const auto status = strait_call_end_over(channel.get(), &end); status != STRAIT_OK) {
            return Error::last(status);
        }
        channel.release();
        return CallEnd(end);
    }

    // The reply. With STRAIT_OUTCOME_UNKNOWN and STRAIT_NOT_ANSWERED the request was sent; otherwise not, and the handles are there still.
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
