// A program with an untrusted plug-in.
//
// The host starts the plug-in. The host gives the plug-in a picture as a sealed region (which the plug-in cannot
// change), a file for the answer, and a request. The plug-in enters a sandbox before looking at the three: see
// plugin.cpp. The plug-in can only answer, be silent, pause or die; in each case the host continues.
//
//   ./host ./plugin        adds up a picture
//   ./host ./plugin evil   the plug-in tries to get out first

#include <strait/strait.hpp>

#include <sys/mman.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <numeric>

using namespace std::literals;

namespace {

// Returns the value of a result; ends the program if there is none.
template <class T> T must(strait::result<T> result, const char *what) {
    if (!result) {
        std::fprintf(stderr, "%s: %.*s\n", what, static_cast<int>(result.error().text().size()), result.error().text().data());
        std::exit(1);
    }
    return std::move(result).value();
}

} // namespace

int main(int argc, char **argv) {
    if (argc < 2) {
        std::fprintf(stderr, "usage: %s PLUGIN [evil]\n", argv[0]);
        return 2;
    }

    // The host accepts no descriptors from the plug-in, and sends no message above 4 KiB.
    auto plugin = must(strait::spawn({argv[1], {argv[1]}}, strait::Options().refuse_descriptors().max_message(4096)), "the plug-in");

    std::vector<std::byte> picture(640 * 480);
    for (std::size_t i = 0; i < picture.size(); i++) {
        picture[i] = static_cast<std::byte>(i % 251);
    }
    strait::Fd answer(memfd_create("answer", MFD_CLOEXEC));
    std::array<strait::Handle, 2> handles{must(strait::Region::sealed(picture), "a region"),
                                          strait::Fd(dup(answer.get()))};
    must(plugin.channel.send(argc > 2 ? argv[2] : "sum", handles, 5s), "asking");

    auto said = plugin.channel.recv(10s);
    plugin.channel.close();
    // The plug-in has answered, or never will. The host gives it no time to end: it may be paused, or go on.
    int ended = 0;
    if (waitpid(plugin.pid, &ended, WNOHANG) == 0) {
        kill(plugin.pid, SIGKILL);
        waitpid(plugin.pid, &ended, 0);
    }
    if (!said) {
        std::printf("no answer: %.*s (ended with %d)\n", static_cast<int>(said.error().text().size()), said.error().text().data(),
                    WIFSIGNALED(ended) ? WTERMSIG(ended) : -WEXITSTATUS(ended));
        return 3;
    }
    // The host trusts neither the plug-in's message nor its file: the host checks the sizes, and works on copies.
    std::printf("the plug-in says: %.*s\n", static_cast<int>(said->size()), said->text().data());
    unsigned long long sum = 0;
    if (pread(answer.get(), &sum, sizeof sum, 0) != static_cast<ssize_t>(sizeof sum)) {
        std::printf("it wrote nothing\n");
        return 3;
    }
    const auto right = std::accumulate(picture.begin(), picture.end(), 0ull,
                                       [](auto so_far, auto byte) { return so_far + std::to_integer<unsigned>(byte); });
    std::printf("it wrote %llu, which is %s\n", sum, sum == right ? "right" : "wrong");
    return sum == right ? 0 : 4;
}
