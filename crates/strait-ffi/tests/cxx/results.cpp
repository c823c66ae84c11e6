// Tests of every function of the C++ interface, without exceptions and without run-time types: the results, and that
// nothing is left behind.

#include "check.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <thread>

using namespace std::literals;
using strait::Bytes, strait::Channel, strait::Deadline, strait::Fd, strait::Handle, strait::Message;

namespace {

Fd null() { return Fd(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

void bytes() {
    auto [a, b] = Channel::pair().value();
    const std::vector<std::byte> some(3, std::byte{7});
    const std::array<unsigned char, 2> two{1, 2};
    const char buffer[4] = {'a', 'b', '\0', 'c'};
    CHECK(a.send("text") && a.send("view"sv) && a.send(some) && a.send(two) && a.send(std::string("string")) && a.send({}));
    CHECK(a.send({buffer, 3}));
    for (const auto size : {4u, 4u, 3u, 2u, 6u, 0u, 3u}) {
        CHECK(b.recv(1s)->size() == size);
    }
    const std::array parts{Bytes("one ").part(), Bytes().part(), Bytes("two").part()};
    CHECK(a.sendv(parts) && b.recv()->text() == "one two");
}

void deadlines() {
    auto [a, b] = Channel::pair().value();
    CHECK(b.try_recv().error() == STRAIT_WOULD_BLOCK);
    for (const Deadline passed : {Deadline(0ms), Deadline(-5h), Deadline(std::chrono::steady_clock::now() - 1s),
                                  Deadline(std::chrono::steady_clock::time_point())}) {
        CHECK(b.recv(passed).error() == STRAIT_TIMED_OUT);
    }
    CHECK(Deadline(std::chrono::hours::max()).get() == STRAIT_NEVER && Deadline(1e300s).get() == STRAIT_NEVER);
    CHECK(b.recv(Deadline(std::chrono::steady_clock::now() + 1ms)).error() == STRAIT_TIMED_OUT);
}

void errors() {
    auto [a, b] = Channel::pair(strait::Options().max_message(3).max_handles(0).wait(strait::Wait::block)).value();
    const auto failed = a.send("four");
    CHECK(!failed && failed.error() == STRAIT_MESSAGE_TOO_LARGE && failed.error().asked() == 4 && failed.error().limit() == 3);
    CHECK(failed.error().text().find("strait_options.max_message") != std::string_view::npos);
    const strait::Error copy = failed.error();
    CHECK(copy.text() == failed.error().text());
    CHECK(a.send("", Handle(null())).error() == STRAIT_TOO_MANY_HANDLES);
    b.close();
    CHECK(a.send("x").error() == STRAIT_PEER_CLOSED && a.recv().error().text() == "peer closed" && a.is_peer_closed());
    CHECK(Channel().send("x").error() == STRAIT_INVALID_ARGUMENT && b.try_recv().status() == STRAIT_INVALID_ARGUMENT);
    CHECK(a.recv().value_or(Message()).size() == 0);
    CHECK(strait::connect("nobody-is-here", 1s).error() == STRAIT_NOBODY_THERE);
    auto size = Channel::pair().and_then([](auto ends) { return ends.first.counters(); });
    CHECK(size && size->messages_sent == 0);
}

void handles() {
    auto [a, b] = Channel::pair().value();
    auto [x, y] = Channel::pair().value();
    std::vector<Handle> given;
    given.emplace_back(null());
    given.emplace_back(std::move(x));
    given.emplace_back();
    CHECK(!x && given[1].is_channel() && !given[2]);
    // The last handle is empty: no message is sent, and the other handles stay.
    CHECK(a.send("three", given).error() == STRAIT_BAD_HANDLE && given[0].is_fd() && given[1].is_channel());
    CHECK(a.send("two", std::span(given).first(2)) && !given[0] && !given[1]);
    auto message = b.recv().value();
    auto got = message.take_handles().value();
    CHECK(got.size() == 2 && message.take_handles()->empty() && !got[0].into_channel() && fcntl(got[0].into_fd().get(), F_GETFD) >= 0);
    CHECK(y.send("through") && got[1].into_channel().recv()->text() == "through");
    // The handles are received beside a buffer, and not taken.
    CHECK(a.send("five!", Handle(null())));
    std::array<std::byte, 8> buffer;
    CHECK(b.recv_into(std::span(buffer).first(4)).error().asked() == 5);
    CHECK(b.peek()->len == 5 && b.peek()->handles == 1);
    CHECK(*b.recv_into(buffer, message, 1s) == 5 && message.size() == 0 && message.take_handles()->size() == 1);
    // A handle is taken by index, and the other handle stays.
    std::array<Handle, 2> two{Handle(null()), Handle(strait::Region::create(1).value())};
    CHECK(b.peek().error() == STRAIT_WOULD_BLOCK && a.send("two", two));
    message = b.recv().value();
    CHECK(message.take_handle(1)->is_region() && !*message.take_handle(1) && message.take_handle(0)->is_fd());
    CHECK(!*a.disconnect());
}

void rows() {
    auto [a, b] = Channel::pair().value();
    const auto one = Bytes("one").part(), two = Bytes("two").part();
    std::array<Handle, 1> handle{Handle(null())};
    const std::array row{strait::Outgoing{{&one, 1}}, strait::Outgoing{{&two, 1}, handle}, strait::Outgoing{}};
    std::size_t sent = 0;
    CHECK(a.send_many(row, sent) && sent == 3 && !handle[0]);
    std::array<Message, 4> messages;
    CHECK(*b.recv_many(messages) == 3 && messages[1].text() == "two" && messages[1].take_handles()->size() == 1);
    CHECK(b.recv_many(messages, Deadline::now()).error() == STRAIT_WOULD_BLOCK);
    CHECK(a.counters()->messages_sent == 3 && b.counters()->bytes_received == 6);
    CHECK(a.send("bad") && b.status()->messages == 1 && b.status()->bytes == 3 && b.status()->arrived == 4);
    auto bad = b.recv().value();
    CHECK(*bad.report_bad("no sense") == strait::Reported::within && *b.report_bad("no sense") == strait::Reported::within);
    CHECK(b.recv().error() == STRAIT_BAD_PEER && Channel().report_bad("no").error() == STRAIT_INVALID_ARGUMENT);
}

void in_place() {
    auto [a, b] = Channel::pair().value();
    for (const std::size_t size : {std::size_t{100}, std::size_t{1} << 20}) {
        auto room = a.reserve(size).value();
        CHECK(room.data().size() == size);
        std::memset(room.data().data(), 5, size);
        CHECK(std::move(room).commit());
        auto view = b.recv_in_place().value();
        std::array<std::byte, 2> end;
        CHECK(view.size() == size && !view.sealed() && view.read_at(end, size - 2) && end[1] == std::byte{5} && view.untrusted() != nullptr);
        CHECK(view.read_at(end, size - 1).error() == STRAIT_INVALID_ARGUMENT && view.take_handles()->empty());
    }
    { auto cancelled = a.reserve(10).value(); }
    auto room = a.reserve_sealed(5).value();
    std::memcpy(room.data().data(), "fixed", 5);
    std::array<Handle, 1> handle{Handle(null())};
    CHECK(std::move(room).commit(handle) && !handle[0]);
    auto view = b.recv_in_place().value();
    CHECK(view.sealed() && std::memcmp(view.sealed()->data(), "fixed", 5) == 0 && view.take_handles()->size() == 1);
    CHECK(std::move(*a.reserve(10)).commit_first(3) && b.recv()->size() == 3);
}

// Messages are forwarded: a sealed message with its memory, and a message in a view.
void forwarding() {
    auto [a, in] = Channel::pair().value();
    auto [out, b] = Channel::pair().value();
    auto room = a.reserve_sealed(1 << 20).value();
    std::memset(room.data().data(), 6, 1 << 20);
    std::array<Handle, 1> handle{Handle(null())};
    CHECK(std::move(room).commit(handle));
    auto message = in.recv().value();
    CHECK(out.forward(message) && message.size() == 0);
    {
        auto view = b.recv_in_place().value();
        CHECK(view.sealed() && view.size() == 1 << 20 && (*view.sealed())[9] == std::byte{6} && view.take_handles()->size() == 1);
    }

    CHECK(a.send("passed on", Handle(null())));
    CHECK(in.recv_in_place()->forward(out));
    CHECK(b.recv_message(message) && message.text() == "passed on" && message.take_handles()->size() == 1);

    // The other end is closed: the message stays.
    b = Channel();
    CHECK(a.send("kept"));
    CHECK(in.recv_message(message));
    CHECK(out.forward(message).error() == STRAIT_PEER_CLOSED && message.text() == "kept");
}

void regions() {
    auto [a, b] = Channel::pair().value();
    auto region = strait::Region::create(8).value();
    CHECK(region.size() == 8 && *region.access() == strait::Access::writable && region.view().error() == STRAIT_NOT_SEALED);
    region.map_writable()->data()[0] = std::byte{'r'};
    CHECK(region.write_at("egion", 1) && region.write_at("too far", 7).error().limit() == 8);
    CHECK(region.reader()->write_at("x", 0).error() == STRAIT_READ_ONLY && region.map()->data()[1] == std::byte{'e'});
    CHECK(region.seal() && a.send("a region", Handle(region.duplicate())));
    auto received = b.recv()->take_handles().value();
    CHECK(received[0].is_region() && !received[0].into_fd());
    auto same = received[0].into_region();
    CHECK(std::memcmp(same.view()->bytes().data(), "region", 6) == 0);
    auto copy = same.copy_on_write().value();
    copy.bytes()[0] = std::byte{'R'};
    std::array<std::byte, 8> bytes;
    CHECK(region.read_at(bytes, 0) && bytes[0] == std::byte{'r'});
    CHECK(strait::Region::from_fd(same.to_fd().value())->size() == 8 && strait::Region::from_fd(null()).error() == STRAIT_NOT_A_REGION);
    CHECK(strait::Region::sealed("text")->view()->bytes().size() == 4 && strait::Region().seal().error() == STRAIT_INVALID_ARGUMENT);
    CHECK(strait::Region::create(1)->admit_no_writer());
    auto named = strait::Region::create(3 << 20, {.name = "frames-of-a-test", .huge_pages = true}).value();
    auto part = named.map_writable(1 << 20, 1 << 20).value();
    CHECK(part.trusted().size() == 1 << 20 && named.map(3 << 20, 1).error() == STRAIT_OUT_OF_RANGE);
    std::ranges::fill(part.trusted(), std::byte{7});
    CHECK(named.map()->trusted()[(1 << 20) - 1] == std::byte{0} && named.map((2 << 20) - 1, 2)->data()[0] == std::byte{7});
    std::ifstream maps("/proc/self/maps");
    CHECK(std::string(std::istreambuf_iterator(maps), {}).find("frames-of-a-test") != std::string::npos);
    CHECK(strait::Region::writer(1, {.name = "frames-of-a-test"}));
    auto writer = strait::Region::writer(6).value();
    std::memcpy(writer.bytes().data(), "filled", 6);
    const auto *address = writer.bytes().data();
    auto filled = writer.seal().value();
    writer.bytes()[0] = std::byte{'F'};
    CHECK(writer.bytes().data() == address && std::memcmp(filled.view()->bytes().data(), "filled", 6) == 0);
    CHECK(writer.seal().error() == STRAIT_INVALID_ARGUMENT && *filled.access() == strait::Access::sealed);
}

void pipes() {
    auto [producer, consumer] = strait::DataPipe::create(8).value();
    CHECK(producer.capacity() == 8 && consumer.element() == 1 && consumer.available() && *consumer.available() == 0);
    std::array<std::byte, 8> out;
    CHECK(consumer.read(out, Deadline::now()).error() == STRAIT_WOULD_BLOCK && consumer.read(out, 1ms).error() == STRAIT_TIMED_OUT);
    CHECK(*producer.write("0123456789", 1s) == 8 && *producer.room() == 0 && *consumer.peek(out) == 8 && *consumer.discard(6) == 6);
    CHECK(consumer.read_whole(std::span(out).first(2)) && out[1] == std::byte{'7'});
    {
        auto room = producer.begin_write().value();
        CHECK(producer.write("x").error() == STRAIT_IN_USE && room.commit(9).error() == STRAIT_OUT_OF_RANGE);
        std::memcpy(room.bytes().data(), "ab", 2);
        CHECK(room.commit(2));
    }
    // An object that is destroyed without a commit has written, or read, nothing.
    CHECK(producer.begin_write()->size() == 6 && consumer.begin_read()->size() == 2);
    CHECK(producer.write_whole("c"));
    {
        auto unread = consumer.begin_read().value();
        CHECK(!unread.empty() && unread.size() == 3 && std::memcmp(unread.bytes().data(), "abc", 3) == 0);
        auto moved = std::move(unread);
        CHECK(consumer.read(out).error() == STRAIT_IN_USE && moved.consume(1));
    }
    auto [a, b] = Channel::pair().value();
    auto set = strait::WaitSet::create().value();
    std::array<strait::Event, 4> events;
    CHECK(set.add(producer, 1) && set.add(consumer, 2, strait::Mode::one_shot) && set.wait(events, 10s)->size() == 2);
    CHECK(set.modify(consumer, 2, strait::Mode::one_shot) && set.remove(consumer) && set.remove(producer) && set.remove(producer).error() == STRAIT_NOT_IN_SET);
    CHECK(a.send("", Handle(std::move(consumer))) && !consumer);
    auto received = b.recv()->take_handles().value();
    CHECK(received[0].is_consumer() && !received[0].is_producer() && !received[0].into_producer());
    auto same = received[0].into_consumer();
    CHECK(b.send("", Handle(std::move(producer))) && a.recv()->take_handles()->at(0).into_producer());
    CHECK(*same.read(out) == 2 && out[0] == std::byte{'b'} && *same.read(out) == 0);
    {
        // Nothing is held at the end of the stream.
        auto end = same.begin_read().value();
        CHECK(end.empty() && same.begin_read()->empty() && *same.read(out) == 0 && end.consume(0) && end.consume(0) && !end.consume(1));
        CHECK(a.send("", Handle(std::move(same))));
    }
    CHECK(strait::Consumer().read(out).error() == STRAIT_INVALID_ARGUMENT && strait::DataPipe::create(4, 8)->consumer.capacity() == 8);
}

void calls() {
    auto [a, b] = Channel::pair().value();
    auto client = strait::CallEnd::over(std::move(a)).value();
    auto server = strait::CallEnd::over(std::move(b)).value();
    CHECK(!a && strait::CallEnd::over(Channel()).error() == STRAIT_INVALID_ARGUMENT);
    CHECK(server.next_request(Deadline::now()).error() == STRAIT_WOULD_BLOCK);
    std::thread other([&server] {
        auto first = server.next_request(20s).value();
        auto handles = first.message.take_handles().value();
        CHECK(first.message.text() == "ask" && handles.size() == 1 && !first.replier.is_cancelled());
        CHECK(first.replier.reply("answer", handles, 20s) && first.replier.reply("again").error() == STRAIT_INVALID_ARGUMENT);
        CHECK(server.next_request(20s)->message.text() == "drop me");
    });
    std::array handles{Handle(null())};
    auto reply = client.call("ask", handles, 20s).value();
    CHECK(reply.text() == "answer" && !handles[0] && reply.take_handles()->size() == 1);
    CHECK(client.call("drop me", {}, 20s).error() == STRAIT_NOT_ANSWERED);
    other.join();
    CHECK(client.call("late", {}, 50ms).error() == STRAIT_OUTCOME_UNKNOWN);
}

std::atomic<bool> handled;

void signals() {
    struct sigaction action {};
    action.sa_handler = [](int) { handled = true; };
    CHECK(sigaction(SIGUSR1, &action, nullptr) == 0);
    auto [a, b] = Channel::pair().value();
    std::atomic<bool> over = false;
    std::thread waits([&end = a, &over] {
        strait::SignalGuard guard;
        CHECK(end.recv(60s).error() == STRAIT_SIGNALLED && handled);
        over = true;
    });
    while (!over) {
        pthread_kill(waits.native_handle(), SIGUSR1);
        std::this_thread::sleep_for(1ms);
    }
    waits.join();
}

void wait_sets() {
    auto set = strait::WaitSet::create().value();
    auto [a, b] = Channel::pair().value();
    auto [over, far] = Channel::pair().value();
    CHECK(set.add(b, 7, strait::Interest::readable, strait::Mode::one_shot) && set.add(a, 8) && set.size() == 2 && set.fd() >= 0);
    std::array<strait::Event, 4> events;
    CHECK(set.wait(events, 0s)->empty() && a.send("x"));
    auto found = set.wait(events, 10s).value();
    CHECK(found.size() == 1 && found[0].key == 7 && found[0].readable() && !found[0].writable());
    CHECK(set.wait(events, Deadline::now())->empty());
    CHECK(set.modify(b, 9, strait::Interest::both, strait::Mode::one_shot));
    found = set.wait(events, 10s).value();
    CHECK(found.size() == 1 && found[0].key == 9 && found[0].readable() && found[0].writable());
    CHECK(set.remove(a) && set.remove(a).error() == STRAIT_NOT_IN_SET);
    CHECK(set.modify(b, 7, strait::Interest::readable, strait::Mode::one_shot));
    CHECK(over.send("", Handle(std::move(b))));
    found = set.wait(events, 10s).value();
    CHECK(found.size() == 1 && found[0].has_moved() && set.size() == 0);
    // Other descriptors, and listeners.
    int pipe[2];
    CHECK(pipe2(pipe, O_CLOEXEC) == 0 && set.add_fd(pipe[0], 3, strait::Interest::readable, strait::Mode::one_shot));
    CHECK(set.add_fd(pipe[0], 3).error() == STRAIT_IN_SET && set.wait(events, 0s)->empty() && write(pipe[1], "x", 1) == 1);
    found = set.wait(events, 10s).value();
    CHECK(found.size() == 1 && found[0].key == 3 && found[0].readable() && set.wait(events, 0s)->empty());
    CHECK(set.modify_fd(pipe[0], 4, strait::Interest::readable, strait::Mode::level) && set.wait(events, 10s)->front().key == 4);
    CHECK(set.remove_fd(pipe[0]) && set.remove_fd(pipe[0]).error() == STRAIT_NOT_IN_SET && set.wait(events, 0s)->empty());
    close(pipe[0]);
    close(pipe[1]);
    const auto name = "strait-cxx-set-" + std::to_string(getpid());
    auto listener = strait::Listener::bind(name.c_str()).value();
    // A wait that ends at its deadline says for whom it waited.
    const auto late = strait::connect(name.c_str(), 1ms);
    CHECK(late.error() == STRAIT_TIMED_OUT && late.error().text().find(name) != std::string_view::npos);
    CHECK(listener.accept(1ms).status() == STRAIT_TIMED_OUT);
    CHECK(set.add(listener, 5, strait::Mode::one_shot));
    // On a busy machine, the client that gave up may still be in the queue.
    while (!set.wait(events, 0s)->empty()) {
        CHECK(listener.accept(1ms).status() == STRAIT_TIMED_OUT && set.modify(listener, 5, strait::Mode::one_shot));
    }
    std::thread client([&name] { CHECK(strait::connect(name.c_str(), 60s)); });
    auto accepted = listener.accept(Deadline::now());
    while (!accepted) {
        CHECK(set.wait(events, 60s)->front().key == 5 && set.modify(listener, 5, strait::Mode::one_shot));
        accepted = listener.accept(Deadline::now());
    }
    client.join();
    CHECK(set.remove(listener) && set.size() == 0);
}

void meeting() {
    const auto name = "strait-cxx-" + std::to_string(getpid());
    int refused = 0;
    bool let_in = false;
    auto listener = strait::Listener::bind(name.c_str(), {.policy = [&](const strait::Peer &peer) { return let_in && peer.uid == getuid(); },
                                                          .on_refused = [&](const strait::Peer *, const strait::Error &why) {
                                                              refused += why == STRAIT_REFUSED && !why.text().empty();
                                                          }})
                        .value();
    CHECK(listener.path().find(name) != std::string_view::npos && listener.fd() >= 0);
    CHECK(strait::Listener::bind(name.c_str()).error() == STRAIT_NAME_TAKEN);
    std::thread client([&] { CHECK(strait::connect(name.c_str(), 20s).error() == STRAIT_REFUSED); });
    while (refused == 0) {
        CHECK(listener.accept(10ms).error() == STRAIT_TIMED_OUT);
    }
    client.join();
    {
        auto stopped = strait::Listener::bind((name + "-stopped").c_str()).value();
        std::thread waiting([&] { CHECK(stopped.accept().error() == STRAIT_CLOSED); });
        stopped.stop();
        waiting.join();
    }
    let_in = true;
    client = std::thread([&] { CHECK(strait::connect(name.c_str(), 20s)->send("hello")); });
    auto channel = listener.accept(20s).value();
    CHECK(channel.recv(20s)->text() == "hello");
    const auto peer = channel.peer().value();
    CHECK(peer.pid == getpid() && peer.uid == getuid());
    CHECK(channel.peer_usage(STRAIT_DESCRIPTORS)->peer.limit == 8192 && strait::set_limit(STRAIT_DESCRIPTORS, 5000, 32768));
    CHECK(channel.peer_usage(STRAIT_DESCRIPTORS)->peer.limit == 5000 && strait::set_limit(STRAIT_DESCRIPTORS, 8192, 32768));
    CHECK(channel.rehome(1s) || true);
    client.join();
    // A client may start before its server, and may give the path as the name.
    const auto later = "strait-cxx-later-" + std::to_string(getpid());
    client = std::thread([&] { CHECK(strait::connect(later.c_str(), {.wait_for_listener = true}, 20s)->send("waited")); });
    auto second = strait::Listener::bind(later.c_str()).value();
    CHECK(second.accept(20s)->recv(20s)->text() == "waited");
    client.join();
    client = std::thread([path = std::string(second.path())] { CHECK(strait::connect(path.c_str(), 20s)->send("by path")); });
    CHECK(second.accept(20s)->recv(20s)->text() == "by path");
    client.join();
    auto names = 0;
    CHECK(strait_names(
              nullptr,
              [](const strait_listening *there, void *count) {
                  *static_cast<int *>(count) += std::string_view(there->name).starts_with("strait-cxx-") && there->is_live == 1;
              },
              &names) == STRAIT_OK);
    CHECK(names >= 1);
}

void processes(const char *self) {
    auto child = strait::spawn({self, {self, "--child"}}).value();
    CHECK(child.channel.send("to the child") && child.channel.recv(20s)->text() == "to the child");
    const auto peer = child.channel.peer().value();
    CHECK(peer.pid == child.pid && peer.uid == getuid() && peer.is_alive == 1 && child.channel.peer_pidfd()->get() >= 0);
    child.channel.close();
    int ended;
    CHECK(waitpid(child.pid, &ended, 0) == child.pid && ended == 0);

    auto inheritance = strait::Inheritance::create(9).value();
    CHECK(inheritance.value.starts_with("9:") && inheritance.descriptor.get() >= 0 && inheritance.channel.send("early"));
    inheritance.channel.close_with(3);
    auto [left, right] = Channel::pair().value();
    left.close_with(9);
    CHECK(right.recv().error() == STRAIT_PEER_CLOSED && right.close_reason() == 9);
    // With an environment of its own, the program lacks the other variables of the parent, but has its channel.
    child = strait::spawn({self, {self, "--child"}, {"A=B"}}).value();
    CHECK(child.channel.send("x") && child.channel.recv(20s)->text() == "x");
    child.channel.close();
    CHECK(waitpid(child.pid, &ended, 0) == child.pid && ended == 0);

    auto listener = strait::Listener::bind(("strait-cxx-i" + std::to_string(getpid())).c_str(), {.invited_only = true}).value();
    auto invitation = listener.invite(60s).value();
    const auto pid = invitation.spawn({self, {self, "--invited"}}).value();
    auto channel = invitation.accept(20s).value();
    CHECK(channel.send("invited") && channel.recv(20s)->text() == "invited");
    channel.close();
    CHECK(waitpid(pid, &ended, 0) == pid && ended == 0);

    // The test starts the program by fork and exec, with a socket whose number is an argument.
    int sockets[2];
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) == 0);
    Fd ours(sockets[0]), theirs(sockets[1]);
    const auto forked = fork();
    if (forked == 0) {
        // Channels made before the fork belong to the parent.
        if (listener.accept(0s).error() != STRAIT_FORKED) {
            _exit(3);
        }
        fcntl(theirs.get(), F_SETFD, 0);
        execl(self, self, "--over", std::to_string(theirs.get()).c_str(), nullptr);
        _exit(4);
    }
    theirs = Fd();
    channel = Channel::over(std::move(ours)).value();
    CHECK(!ours && channel.send("forked") && channel.recv(20s)->text() == "forked");
    channel.close();
    CHECK(waitpid(forked, &ended, 0) == forked && ended == 0);
}

int echo(strait::result<Channel> channel) {
    for (;;) {
        auto message = channel->recv(20s);
        if (!message) {
            return message.error() == STRAIT_PEER_CLOSED ? 0 : 1;
        }
        CHECK(channel->send(message->bytes()));
    }
}

void shared() {
    auto [a, b] = Channel::pair().value();
    std::thread other([end = b.share()] { CHECK(end.recv().error() == STRAIT_CLOSED); });
    b.close();
    other.join();
    CHECK(a.try_recv().error() == STRAIT_PEER_CLOSED);

    // A failed send of a shared end leaves the end open for the other references.
    auto [c, d] = Channel::pair().value();
    CHECK(a.send("", Handle(c.share())).error() == STRAIT_PEER_CLOSED);
    CHECK(c.send("still open") && d.recv()->text() == "still open");
    { Handle last(std::move(c)); }
    CHECK(d.recv(20s).error() == STRAIT_PEER_CLOSED);
}

// Each half belongs to one thread; joined halves are the end again.
void halves() {
    auto [a, b] = Channel::pair().value();
    auto [c, d] = Channel::pair().value();
    auto [sender, receiver] = std::move(a).split().value();
    auto other = std::move(c).split().value();
    CHECK(!a && sender && receiver && std::move(a).split().error() == STRAIT_INVALID_ARGUMENT);
    std::thread answers([&b = b] {
        while (auto message = b.recv(60s)) {
            CHECK(b.send(message->bytes()));
        }
    });
    std::thread sends([&sender = sender] {
        for (int number = 0; number < 1000; number++) {
            CHECK(sender.send(std::to_string(number), 60s));
        }
    });
    Message message;
    std::array<std::byte, 8> buffer;
    for (int number = 0; number < 1000; number += 2) {
        CHECK(receiver.recv_message(message, 60s) && message.text() == std::to_string(number));
        CHECK(receiver.recv_into(buffer, 60s).value() == std::to_string(number + 1).size());
    }
    sends.join();
    CHECK(receiver.try_recv().error() == STRAIT_WOULD_BLOCK);

    // A batch with a handle in one message.
    const iovec parts[] = {{const_cast<char *>("one"), 3}, {const_cast<char *>("two"), 3}};
    Handle handle(strait::Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC)));
    const std::array<strait::Outgoing, 2> batch{{{std::span(parts, 1)}, {std::span(parts + 1, 1), std::span(&handle, 1)}}};
    std::size_t sent = 0;
    CHECK(sender.send_many(batch, sent, 60s) && sent == 2);
    std::array<Message, 2> slots;
    std::string got;
    for (std::size_t count = 0; got.size() < 6; got += slots[0].text(), got += count == 2 ? slots[1].text() : "") {
        count = receiver.recv_many(slots, 60s).value();
    }
    CHECK(got == "onetwo" && receiver.try_recv().error() == STRAIT_WOULD_BLOCK);
    auto room = sender.reserve(4).value();
    std::memcpy(room.data().data(), "room", 4);
    CHECK(sender.send("x").error() == STRAIT_IN_USE && std::move(room).commit());
    CHECK(receiver.recv_message(message, 60s) && message.text() == "room" && sender.reserve_sealed(4)->data().size() == 4);
    auto set = strait::WaitSet::create().value();
    CHECK(set.add(receiver, 3) && set.modify(receiver, 4, strait::Mode::level) && set.remove(receiver) && set.add(sender, 5));
    std::array<strait::Event, 2> events;
    CHECK(set.wait(events, 60s)->front().key == 5 && set.modify(sender, 6, strait::Mode::level) && set.await_room(sender, 7) &&
          set.remove(sender));

    CHECK(std::move(sender).join(std::move(other.receiver)).error() == STRAIT_INVALID_ARGUMENT && sender && other.receiver);
    auto joined = std::move(sender).join(std::move(receiver));
    CHECK(joined && !sender && !receiver && sender.send("x").error() == STRAIT_INVALID_ARGUMENT);
    CHECK(receiver.try_recv().error() == STRAIT_INVALID_ARGUMENT);
    CHECK(other.sender.send("with the end", Handle(*std::move(joined))));
    auto arrived = d.recv(60s)->take_handle(0)->into_channel();
    CHECK(arrived.send("still there") && arrived.recv(60s)->text() == "still there");
    arrived.close();
    answers.join();
}

} // namespace

int main(int argc, char **argv) {
    if (argc > 1 && argv[1] == "--child"sv) {
        return echo(Channel::from_parent());
    }
    if (argc > 1 && argv[1] == "--invited"sv) {
        return echo(Channel::invited(strait::Options().ring(1 << 16), 20s));
    }
    if (argc > 2 && argv[1] == "--over"sv) {
        return echo(Channel::over(Fd(std::atoi(argv[2]))));
    }
    long before = 0;
    for (int round = 0; round < 2; round++) {
        bytes();
        deadlines();
        errors();
        handles();
        rows();
        in_place();
        forwarding();
        regions();
        pipes();
        calls();
        signals();
        wait_sets();
        halves();
        shared();
        meeting();
        processes(argv[0]);
        // A thread of the library may still be closing the last ones.
        for (int tries = 0; round > 0 && descriptors() != before && tries < 2000; tries++) {
            std::this_thread::sleep_for(10ms);
        }
        CHECK(round == 0 || descriptors() == before);
        before = descriptors();
    }
    return 0;
}
