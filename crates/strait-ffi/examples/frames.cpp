// Three processes pass large frames on: a camera fills a frame, a filter changes it in place, a screen looks at it.
//
//     ./frames [NUMBER [BYTES]]      200 frames of 8 MiB, if nothing else is given
//
//     camera ──number──▶ filter ──number──▶ screen
//        ▲                                     │
//        └──────── number of a free frame ─────┘
//
// * The frames lie in a few regions, which the camera makes once and gives to the other two processes. Each process maps
//   each region once. From then on a message is the number of a region, so no frame is copied, and no frame costs a
//   system call or a page fault.
// * The process that has received a number owns the frame until it sends the number on. The processes trust each other
//   in this respect: so they may use trusted().
// * If one of the three processes dies, the other two are notified at once, and end.

#include <strait/throwing.hpp>

#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iostream>

using namespace std::literals;
using namespace strait::throwing;

namespace {

constexpr std::size_t FRAMES = 4;

// No frame takes so long on a working machine; a stuck process ends with an error instead of a hang.
constexpr auto LIMIT = 60s;

using Frames = std::vector<strait::SharedMapping>;

// Frames begin with their number.
std::uint64_t number_of(std::span<const std::byte> frame) {
    std::uint64_t number;
    std::memcpy(&number, frame.data(), sizeof number);
    return number;
}

std::size_t recv_index(const Channel &from) {
    std::array<std::byte, 1> index;
    from.recv_into(index, LIMIT);
    if (std::to_integer<std::size_t>(index[0]) >= FRAMES) {
        throw std::runtime_error("there is no such frame");
    }
    return std::to_integer<std::size_t>(index[0]);
}

void send_index(const Channel &to, std::size_t index) {
    const std::array index_byte{static_cast<std::byte>(index)};
    to.send(index_byte, LIMIT);
}

// What the camera gives to the other two processes: the regions, mapped, and the two neighbours.
struct Work {
    Frames frames;
    Channel from, to;
};

Work begin_work() {
    const auto parent = Channel::from_parent();
    auto handles = strait::or_throw(parent.recv(LIMIT).take_handles());
    if (handles.size() != FRAMES + 2) {
        throw std::runtime_error("the camera sent something else");
    }
    Work work;
    for (std::size_t index = 0; index < FRAMES; index++) {
        work.frames.push_back(strait::or_throw(handles[index].into_region().map_writable()));
    }
    work.from = handles[FRAMES].into_channel();
    work.to = handles[FRAMES + 1].into_channel();
    return work;
}

// Inverts each frame.
void filter() {
    const auto work = begin_work();
    for (;;) {
        const auto index = recv_index(work.from);
        auto pixels = work.frames[index].trusted().subspan(sizeof(std::uint64_t));
        for (auto &pixel : pixels) {
            pixel = ~pixel;
        }
        send_index(work.to, index);
    }
}

// Checks that every frame arrives, in order and whole.
void screen() {
    const auto work = begin_work();
    for (std::uint64_t number = 0;; number++) {
        const auto index = recv_index(work.from);
        const auto frame = work.frames[index].trusted();
        const auto wanted = ~static_cast<std::byte>(number % 251);
        if (number_of(frame) != number || frame[sizeof number] != wanted || frame.back() != wanted) {
            throw std::runtime_error("a wrong frame");
        }
        send_index(work.to, index);
    }
}

// Starts the other two processes. Returns the processes, with the frames and channels of the camera.
std::pair<std::vector<strait::Child>, Work> start(const std::string &program, std::size_t size) {
    auto [to_filter, filter_from] = Channel::pair();
    auto [filter_to, screen_from] = Channel::pair();
    auto [screen_to, from_screen] = Channel::pair();

    std::vector<strait::Child> children;
    children.push_back(spawn({program, {program, "filter"}}));
    children.push_back(spawn({program, {program, "screen"}}));
    Work work{{}, std::move(from_screen), std::move(to_filter)};
    std::array<std::vector<strait::Handle>, 2> handles;
    for (std::size_t index = 0; index < FRAMES; index++) {
        auto region = strait::or_throw(strait::Region::create(size, {.name = "frames", .huge_pages = true}));
        work.frames.push_back(strait::or_throw(region.map_writable()));
        handles[0].push_back(region.duplicate());
        handles[1].push_back(std::move(region));
    }
    handles[0].push_back(std::move(filter_from));
    handles[0].push_back(std::move(filter_to));
    handles[1].push_back(std::move(screen_from));
    handles[1].push_back(std::move(screen_to));
    for (std::size_t child = 0; child < 2; child++) {
        strait::or_throw(children[child].channel.send("work", handles[child]));
    }
    return {std::move(children), std::move(work)};
}

void camera(const std::string &program, std::uint64_t count, std::size_t size) {
    auto [children, work] = start(program, size);
    const auto begin = std::chrono::steady_clock::now();
    for (std::uint64_t number = 0; number < count; number++) {
        // The first frames are free from the beginning; later ones come back from the screen.
        const auto index = number < FRAMES ? static_cast<std::size_t>(number) : recv_index(work.from);
        auto frame = work.frames[index].trusted();
        std::memset(frame.data(), static_cast<int>(number % 251), frame.size());
        std::memcpy(frame.data(), &number, sizeof number);
        send_index(work.to, index);
    }
    for (std::uint64_t left = std::min<std::uint64_t>(count, FRAMES); left > 0; left--) {
        recv_index(work.from);
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    std::cout << count << " frames of " << size << " bytes through three processes, every one right\n";
    std::cerr << static_cast<double>(count) / took.count() << " frames a second\n";

    // The filter ends when the camera closes its channel, and the screen when the filter does.
    work.to.close();
    work.from.close();
    for (const auto &child : children) {
        int ended = 0;
        waitpid(child.pid, &ended, 0);
        if (!WIFEXITED(ended) || WEXITSTATUS(ended) != 0) {
            throw std::runtime_error("a process failed");
        }
    }
}

} // namespace

int main(int argc, char **argv) {
    const std::string role = argc > 1 ? argv[1] : "200";
    try {
        if (role == "filter" || role == "screen") {
            try {
                role == "filter" ? filter() : screen();
            } catch (const strait::Exception &exception) {
                // The neighbour has ended, so the work has ended too.
                if (exception.status() != STRAIT_PEER_CLOSED) {
                    throw;
                }
            }
            return 0;
        }
        camera(argv[0], std::stoull(role), argc > 2 ? std::stoull(argv[2]) : 8 << 20);
        return 0;
    } catch (const std::exception &exception) {
        std::cerr << role << ": " << exception.what() << '\n';
        return 1;
    }
}
