// Sends messages of 64 bytes through a channel in one process, with the C functions and with the C++ objects. calls.rs
// loads this library.

#include <strait/strait.hpp>

#include <array>
#include <chrono>

namespace {

template <class Once> std::int64_t timed(std::int64_t rounds, Once once) {
    const auto begin = std::chrono::steady_clock::now();
    for (std::int64_t i = 0; i < rounds; i++) {
        once();
    }
    return std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count();
}

void must(bool done) {
    if (!done) {
        std::abort();
    }
}

std::int64_t c(std::int64_t rounds, bool shared) {
    strait_channel *a, *b;
    must(strait_channel_pair(nullptr, &a, &b) == STRAIT_OK);
    if (shared) {
        strait_channel_ref(a);
        strait_channel_ref(b);
    }
    auto *message = strait_message_new();
    char bytes[64] = {};
    const auto took = timed(rounds, [&] {
        must(strait_send(a, bytes, sizeof bytes, STRAIT_NOW) == STRAIT_OK);
        must(strait_recv(b, message, STRAIT_NOW) == STRAIT_OK);
    });
    strait_message_free(message);
    strait_channel_close(a);
    strait_channel_close(b);
    if (shared) {
        strait_channel_unref(a);
        strait_channel_unref(b);
    }
    return took;
}

} // namespace

extern "C" std::int64_t measure_c(std::int64_t rounds) { return c(rounds, false); }
extern "C" std::int64_t measure_c_shared(std::int64_t rounds) { return c(rounds, true); }

extern "C" std::int64_t measure_cxx(std::int64_t rounds) {
    auto [a, b] = strait::Channel::pair().value();
    strait::Message message;
    const std::array<std::byte, 64> bytes{};
    return timed(rounds, [&, &a = a, &b = b] { must(a.try_send(bytes) && b.recv_message(message, strait::Deadline::now())); });
}
