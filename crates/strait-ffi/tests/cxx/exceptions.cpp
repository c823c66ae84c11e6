// The second layer of the C++ interface: calls return what they are for, and throw what goes wrong.

#include "check.hpp"

#include <strait/throwing.hpp>

#include <fcntl.h>

#include <cstring>
#include <thread>

using namespace std::literals;
using namespace strait::throwing;

template <class Call> static strait_status thrown(Call call) {
    try {
        call();
    } catch (const strait::Exception &exception) {
        CHECK(exception.error().text() == exception.what());
        return exception.status();
    }
    return STRAIT_OK;
}

int main() {
    auto [a, b] = Channel::pair();
    a.send("hello");
    CHECK(b.recv().text() == "hello" && !b.try_recv() && a.try_send("again") && b.try_recv()->text() == "again");
    CHECK(thrown([&, &b = b] { b.recv(1ms); }) == STRAIT_TIMED_OUT);
    CHECK(thrown([] { connect("nobody-is-here", 1s); }) == STRAIT_NOBODY_THERE);

    auto room = a.reserve(3);
    std::memcpy(room.data().data(), "abc", 3);
    strait::or_throw(std::move(room).commit());
    CHECK(b.recv_in_place().size() == 3 && a.counters().messages_sent == 3);

    WaitSet set;
    set.add(b, 1);
    std::array<strait::Event, 2> events;
    CHECK(set.wait(events, strait::Deadline::now()).empty());
    CHECK(thrown([&, &b = b] { set.add(b, 2); }) == STRAIT_IN_SET);

    strait::Handle handle(strait::Fd(open("/dev/null", O_RDONLY | O_CLOEXEC)));
    a.send("with a handle", std::move(handle));
    CHECK(set.wait(events, 10s).size() == 1 && strait::or_throw(b.recv().take_handles()).size() == 1);

    const auto name = "strait-throwing-" + std::to_string(getpid());
    Listener listener(name.c_str());
    std::thread client([&] { connect(name.c_str(), 20s).send("hello"); });
    CHECK(listener.accept(20s).recv().text() == "hello");
    client.join();

    a.close();
    CHECK(thrown([&, &b = b] { b.recv(); }) == STRAIT_PEER_CLOSED);
    // Unwinding closes what was held.
    const auto before = descriptors();
    CHECK(thrown([] {
              WaitSet lost;
              auto [x, y] = Channel::pair();
              x.close();
              lost.add(y, 1);
              y.recv();
          }) == STRAIT_PEER_CLOSED);
    CHECK(descriptors() == before);
    return 0;
}
