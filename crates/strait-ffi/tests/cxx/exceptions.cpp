// Tests of the C++ interface with exceptions: functions return their value, and throw their errors.

#include "check.hpp"

#include <strait/throwing.hpp>

#include <fcntl.h>

#include <cstring>
#include <new>
#include <thread>

using namespace std::literals;
using namespace strait::throwing;

// Whether there is no memory for C++ objects.
static bool no_memory = false;

void *operator new(std::size_t size) {
    void *memory = no_memory ? nullptr : std::malloc(size);
    return memory != nullptr ? memory : throw std::bad_alloc();
}

void operator delete(void *memory) noexcept { std::free(memory); }
void operator delete(void *memory, std::size_t) noexcept { std::free(memory); }

template <class Call> static strait_status thrown(Call call) {
    try {
        call();
    } catch (const strait::Exception &exception) {
        CHECK(exception.error().text() == exception.what());
        return exception.status();
    }
    return STRAIT_OK;
}

static void pipes() {
    auto [producer, consumer] = DataPipe::create(8);
    std::array<std::byte, 8> out;
    CHECK(!consumer.try_read(out) && consumer.available() == 0 && producer.room() == 8);
    CHECK(producer.write("0123456789") == 8 && !producer.try_write("x") && consumer.peek(out) == 8 && consumer.discard(6) == 6);
    consumer.read_whole(std::span(out).first(2));
    CHECK(out[1] == std::byte{'7'} && thrown([&, &p = producer] { p.write_whole("longer than it is"); }) == STRAIT_OUT_OF_RANGE);
    CHECK(thrown([&, &c = consumer] { c.read(out, 1ms); }) == STRAIT_TIMED_OUT);
    {
        auto room = producer.begin_write();
        CHECK(thrown([&] { room.commit(9); }) == STRAIT_OUT_OF_RANGE && thrown([&, &p = producer] { p.write("x"); }) == STRAIT_IN_USE);
        std::memcpy(room.bytes().data(), "ab", 2);
        room.commit(2);
    }
    WaitSet set;
    std::array<strait::Event, 2> events;
    set.add(producer, 1);
    set.add(consumer, 2, strait::Mode::one_shot);
    CHECK(set.wait(events, 10s).size() == 2);
    set.modify(consumer, 2, strait::Mode::one_shot);
    set.add_fd(STDIN_FILENO, 3);
    set.modify_fd(STDIN_FILENO, 3, strait::Interest::readable, strait::Mode::one_shot);
    set.remove_fd(STDIN_FILENO);
    CHECK(thrown([&] { set.remove_fd(STDIN_FILENO); }) == STRAIT_NOT_IN_SET);
    set.remove(consumer);
    set.remove(producer);
    CHECK(thrown([&, &p = producer] { set.remove(p); }) == STRAIT_NOT_IN_SET);
    // Ends are sent, and are received as objects of the interface with exceptions.
    auto [a, b] = Channel::pair();
    a.send("", strait::Handle(std::move(consumer)));
    Consumer there = strait::or_throw(b.recv().take_handles()).at(0).into_consumer();
    {
        auto unread = there.begin_read();
        CHECK(std::memcmp(unread.bytes().data(), "ab", 2) == 0 && thrown([&] { unread.consume(3); }) == STRAIT_OUT_OF_RANGE);
        unread.consume(1);
    }
    producer = Producer();
    CHECK(there.read(out) == 1 && there.try_read(out) == 0u && there.begin_read().empty());
    CHECK(thrown([] { Consumer().available(); }) == STRAIT_INVALID_ARGUMENT);
}

static void calls() {
    auto [a, b] = Channel::pair();
    CallEnd client(std::move(a)), server(std::move(b));
    CHECK(thrown([] { CallEnd none{Channel()}; }) == STRAIT_INVALID_ARGUMENT && !server.try_next_request());
    std::thread other([&] {
        auto first = server.next_request(20s);
        auto handles = strait::or_throw(first.message.take_handles());
        CHECK(first.message.text() == "ask" && handles.size() == 1 && !first.replier.is_cancelled());
        first.replier.reply("answer", handles, 20s);
        CHECK(thrown([&] { first.replier.reply("again"); }) == STRAIT_INVALID_ARGUMENT);
        std::optional<Request> second;
        while (!(second = server.try_next_request())) {
            std::this_thread::yield();
        }
        CHECK(second->message.text() == "drop me");
    });
    std::array handles{strait::Handle(strait::Fd(open("/dev/null", O_RDONLY | O_CLOEXEC)))};
    auto reply = client.call("ask", handles, 20s);
    CHECK(reply.text() == "answer" && !handles[0] && strait::or_throw(reply.take_handles()).size() == 1);
    CHECK(thrown([&] { client.call("drop me", {}, 20s); }) == STRAIT_NOT_ANSWERED);
    other.join();
    CHECK(thrown([&] { client.call("late", {}, 50ms); }) == STRAIT_OUTCOME_UNKNOWN);
}

int main() {
    pipes();
    calls();
    auto [a, b] = Channel::pair();
    a.send("hello");
    CHECK(b.peek()->len == 5 && !a.peek() && !a.disconnect());
    CHECK(b.recv().text() == "hello" && !b.try_recv() && a.try_send("again") && b.try_recv()->text() == "again");
    CHECK(thrown([&, &b = b] { b.recv(1ms); }) == STRAIT_TIMED_OUT);
    CHECK(thrown([] { connect("nobody-is-here", 1s); }) == STRAIT_NOBODY_THERE);

    auto room = a.reserve(3);
    std::memcpy(room.data().data(), "abc", 3);
    strait::or_throw(std::move(room).commit());
    CHECK(b.recv_in_place().size() == 3 && a.counters().messages_sent == 3);

    a.send("on");
    auto on = b.recv();
    b.forward(on);
    CHECK(a.recv().text() == "on");
    a.send("and on");
    {
        auto view = b.recv_in_place();
        b.forward(view);
    }
    CHECK(a.recv().text() == "and on" && thrown([&] { strait::throwing::Channel().forward(on); }) == STRAIT_INVALID_ARGUMENT);

    WaitSet set;
    set.add(b, 1);
    std::array<strait::Event, 2> events;
    CHECK(set.wait(events, strait::Deadline::now()).empty());
    CHECK(thrown([&, &b = b] { set.add(b, 2); }) == STRAIT_IN_SET);

    strait::Handle handle(strait::Fd(open("/dev/null", O_RDONLY | O_CLOEXEC)));
    a.send("with a handle", std::move(handle));
    CHECK(set.wait(events, 10s).size() == 1 && strait::or_throw(b.recv().take_handles()).size() == 1);

    auto [sender, receiver] = std::move(a).split();
    sender.send("from a half");
    CHECK(sender.try_send("twice") && b.recv(20s).text() == "from a half" && b.recv(20s).text() == "twice");
    CHECK(!receiver.try_recv() && thrown([&, &r = receiver] { r.recv(1ms); }) == STRAIT_TIMED_OUT);
    strait::Message handles;
    std::array<std::byte, 8> buffer;
    b.send("half", strait::Handle(strait::Fd(open("/dev/null", O_RDONLY | O_CLOEXEC))));
    CHECK(receiver.recv_into(buffer, handles, 20s) == 4 && strait::or_throw(handles.take_handles()).size() == 1);
    CHECK(thrown([&, &r = receiver] { r.recv_into(buffer, 1ms); }) == STRAIT_TIMED_OUT);
    a = std::move(sender).join(std::move(receiver));
    b.send("whole", strait::Handle(strait::Fd(open("/dev/null", O_RDONLY | O_CLOEXEC))));
    CHECK(a.recv_into(buffer, handles, 20s) == 5 && strait::or_throw(handles.take_handles()).size() == 1);
    CHECK(thrown([&, &a = a] { a.recv_into(buffer, 1ms); }) == STRAIT_TIMED_OUT);

    const auto name = "strait-throwing-" + std::to_string(getpid());
    Listener listener(name.c_str());
    std::thread client([&] { connect(name.c_str(), 20s).send("hello"); });
    CHECK(listener.accept(20s).recv().text() == "hello");
    client.join();
    CHECK(thrown([] { connect("nobody-is-here", {.server = 0}, 1s); }) == STRAIT_NOBODY_THERE);
    // Nobody has invited this process.
    CHECK(thrown([] { Channel::invited(strait::Deadline::now()); }) != STRAIT_OK);
    CHECK(thrown([] { Channel::invited({}, strait::Deadline::now()); }) != STRAIT_OK);

    a.close();
    CHECK(thrown([&, &b = b] { b.recv(); }) == STRAIT_PEER_CLOSED);
    // Unwinding the stack closes held objects.
    const auto before = descriptors();
    CHECK(thrown([] {
              WaitSet lost;
              auto [x, y] = Channel::pair();
              x.close();
              lost.add(y, 1);
              y.recv();
          }) == STRAIT_PEER_CLOSED);
    CHECK(descriptors() == before);

    // Handles that are taken without memory for their vector are closed.
    auto [c, d] = Channel::pair();
    auto [x, y] = Channel::pair();
    c.send("an end", strait::Handle(std::move(x)));
    auto message = d.recv(20s);
    bool is_thrown = false;
    no_memory = true;
    try {
        auto taken = message.take_handles();
    } catch (const std::bad_alloc &) {
        is_thrown = true;
    }
    no_memory = false;
    CHECK(is_thrown && thrown([&, &y = y] { y.recv(20s); }) == STRAIT_PEER_CLOSED);
    return 0;
}
