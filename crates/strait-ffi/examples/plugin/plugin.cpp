// A plug-in that enters a sandbox: the plug-in takes its channel, gives up everything else, and only then looks at
// messages of the host.
//
// The sandbox leaves the system calls of Strait for waiting, receiving and mapping memory, and calls for reading and
// writing received descriptors. The plug-in cannot connect, start or signal anything, and is killed if it tries; it
// cannot open a file.

#include <strait/strait.hpp>

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>

#if defined(__x86_64__)
#define ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#else
#error "the number of this architecture for seccomp is missing here"
#endif

using namespace std::literals;

namespace {

// The plug-in's own system calls, on descriptors that it has. The library lists its calls.
constexpr std::int64_t own[] = {__NR_lseek};

// The arguments of some calls of the library: with others, the plug-in could change the limits of its host, or have the
// kernel send its host a signal. Each call must have one of the values in those bits of a half of an argument.
struct Rule {
    unsigned call;
    unsigned half; // of the arguments: 0 is the lower half of the first, 1 the upper half.
    unsigned bits;
    std::vector<unsigned> values;
};
const std::vector<Rule> rules{
    {__NR_mmap, 4, PROT_EXEC, {0}},
    {__NR_mprotect, 4, PROT_EXEC, {0}},
    {__NR_fcntl, 2, ~0U, {F_DUPFD_CLOEXEC, F_GETFD, F_SETFD, F_GETFL, F_ADD_SEALS, F_GET_SEALS}},
    {__NR_prlimit64, 0, ~0U, {0}},
    {__NR_prlimit64, 4, ~0U, {0}},
    {__NR_prlimit64, 5, ~0U, {0}},
    {__NR_socketpair, 2, ~unsigned{SOCK_CLOEXEC | SOCK_NONBLOCK}, {SOCK_SEQPACKET}},
};

// Permits only the system calls of the library and of the plug-in from now on. Some fail; any other one kills the process.
bool lock_up() {
    // No new files, no core dump, limited memory and time; an executed program gets no more rights than this process.
    const rlimit none{0, 0}, memory{512 << 20, 512 << 20}, descriptors{32, 32}, seconds{10, 10};
    if (setrlimit(RLIMIT_CORE, &none) != 0 || setrlimit(RLIMIT_AS, &memory) != 0 || setrlimit(RLIMIT_NOFILE, &descriptors) != 0 ||
        setrlimit(RLIMIT_CPU, &seconds) != 0 || setrlimit(RLIMIT_NPROC, &none) != 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0) {
        return false;
    }
    std::vector<sock_filter> filter{
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCHITECTURE, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    for (const auto &[call, half, bits, values] : rules) {
        const auto count = static_cast<unsigned char>(values.size());
        filter.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)));
        filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, static_cast<unsigned char>(count + 3)));
        filter.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<unsigned>(offsetof(seccomp_data, args)) + 4 * half));
        filter.push_back(BPF_STMT(BPF_ALU | BPF_AND | BPF_K, bits));
        for (unsigned char at = 0; at < count; ++at) {
            filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, values[at], static_cast<unsigned char>(count - at), 0));
        }
        filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS));
    }
    filter.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)));
    const auto answer = [&filter](const auto &numbers, unsigned with) {
        for (const auto number : numbers) {
            filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(number), 0, 1));
            filter.push_back(BPF_STMT(BPF_RET | BPF_K, with));
        }
    };
    answer(strait::system_calls(strait::Phase::running), SECCOMP_RET_ALLOW);
    answer(strait::system_calls(strait::Phase::with_regions), SECCOMP_RET_ALLOW);
    answer(own, SECCOMP_RET_ALLOW);
    answer(strait::system_calls(strait::Phase::dispensable), SECCOMP_RET_ERRNO | EPERM);
    filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS));
    const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
    return syscall(__NR_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0;
}

} // namespace

int main() {
    auto channel = strait::Channel::from_parent();
    if (!channel || !lock_up()) {
        return 1;
    }
    auto request = channel->recv(10s);
    if (!request) {
        return 1;
    }
    auto handles = request->take_handles();
    if (!handles || handles->size() != 2) {
        return 1;
    }
    if (request->text() == "evil") {
        if (std::fopen("/etc/passwd", "r") != nullptr) {
            return channel->send("I am out") ? 0 : 1;
        }
        // The filter kills the process here.
        socket(AF_UNIX, SOCK_STREAM, 0);
        return channel->send("I am out") ? 0 : 1;
    }
    auto picture = (*handles)[0].into_region();
    auto answer = (*handles)[1].into_fd();
    auto view = picture.view();
    if (!view) {
        return 1;
    }
    unsigned long long sum = 0;
    for (const auto byte : view->bytes()) {
        sum += std::to_integer<unsigned>(byte);
    }
    // No process can change a sealed region, not even with a handle of the region.
    const bool tried = picture.map_writable().error() == STRAIT_READ_ONLY;
    if (pwrite(answer.get(), &sum, sizeof sum, 0) != static_cast<ssize_t>(sizeof sum)) {
        return 1;
    }
    return channel->send(tried ? "done, and the picture is read-only" : "done, and the picture can be changed") ? 0 : 1;
}
