// A plug-in that enters a sandbox: it takes its channel, gives up everything else, and only then looks at what the host
// sends.
//
// It keeps the system calls that Strait makes to wait, receive and map memory, and those that read and write
// descriptors that it was given. It cannot open, connect, start or signal anything, and is killed if it tries.

#include <strait/strait.hpp>

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
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

// Permits only these system calls from now on; any other one kills the process.
constexpr unsigned allowed[] = {
    // System calls to wait, wake, talk to the host and watch that it is alive. docs/reference/system-calls.md explains
    // each.
    __NR_futex, __NR_ppoll, __NR_sendmsg, __NR_recvmsg, __NR_recvfrom, __NR_getsockopt, __NR_setsockopt, __NR_getpeername,
    __NR_shutdown, __NR_pidfd_open, __NR_prlimit64, __NR_getrandom, __NR_clock_gettime, __NR_sched_yield, __NR_getpid, __NR_gettid,
#ifdef __NR_poll
    __NR_poll,
#endif
    // System calls for memory, its own and that of the host. Memory must not become executable: see below.
    __NR_mmap, __NR_munmap, __NR_mremap, __NR_madvise, __NR_brk,
    // System calls for descriptors that the plug-in has.
    __NR_read, __NR_write, __NR_pread64, __NR_pwrite64, __NR_close, __NR_fcntl, __NR_fstat, __NR_statx, __NR_fstatfs, __NR_lseek,
#ifdef __NR_newfstatat
    __NR_newfstatat,
#endif
    // System calls to exit.
    __NR_exit, __NR_exit_group, __NR_rt_sigreturn, __NR_rt_sigprocmask, __NR_sigaltstack,
};

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
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        // mmap with PROT_EXEC, the third argument.
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_mmap, 0, 4),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, 4, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
    };
    for (const auto number : allowed) {
        filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1));
        filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
    }
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
        // The filter kills the process here.
        std::FILE *file = std::fopen("/etc/passwd", "r");
        return channel->send(file == nullptr ? "there is no file" : "I am out") ? 0 : 1;
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
    // No process can change a sealed region, not even one that has its handle.
    const bool tried = picture.map_writable().error() == STRAIT_READ_ONLY;
    if (pwrite(answer.get(), &sum, sizeof sum, 0) != static_cast<ssize_t>(sizeof sum)) {
        return 1;
    }
    return channel->send(tried ? "done, and the picture is read-only" : "done, and the picture can be changed") ? 0 : 1;
}
