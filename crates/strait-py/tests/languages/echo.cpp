// A program that echoes each message of its parent, with the handles.
//
// echo                      echoes the messages itself
// echo PROGRAM ARGUMENTS    starts PROGRAM, and echoes by way of PROGRAM

#include <strait/strait.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <sys/wait.h>

using namespace std::chrono_literals;

template <class T> static T must(strait::result<T> done, const char *what) {
    if (!done) {
        std::fprintf(stderr, "%s: %s\n", what, std::string(done.error().text()).c_str());
        std::exit(1);
    }
    if constexpr (!std::is_void_v<T>) {
        return *std::move(done);
    }
}

// Sends the contents of `message` over a channel.
static void pass_on(strait::Message &message, const strait::Channel &channel) {
    auto handles = must(message.take_handles(), "taking the handles");
    must(channel.send(message.bytes(), handles, 60s), "sending");
}

int main(int argc, char **argv) {
    auto parent = must(strait::Channel::from_parent(), "the channel to the parent");
    std::optional<strait::Child> child;
    if (argc > 1) {
        child = must(strait::spawn({argv[1], {argv + 1, argv + argc}, {}}), "starting the other program");
    }
    for (;;) {
        auto message = parent.recv();
        if (!message) {
            break;
        }
        if (child) {
            pass_on(*message, child->channel);
            *message = must(child->channel.recv(60s), "receiving from the other program");
        }
        pass_on(*message, parent);
    }
    int ended = 0;
    if (child) {
        child->channel = {};
        waitpid(child->pid, &ended, 0);
    }
    return ended == 0 ? 0 : 1;
}
