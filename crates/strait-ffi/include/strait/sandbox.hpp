// The system calls to allow in a sandbox.

#ifndef STRAIT_SANDBOX_HPP
#define STRAIT_SANDBOX_HPP

#include <strait/strait.h>

#include <cstdint>
#include <vector>

namespace strait {

// The activity of a process after its sandbox is active.
enum class Phase : strait_phase {
    // Messages, waiting, and channels over links that exist or over a socket of the program: every process.
    running = STRAIT_PHASE_RUNNING,
    // Regions: calls needed in addition.
    with_regions = STRAIT_PHASE_WITH_REGIONS,
    // Listening, connecting, and taking a channel from the parent: these system calls in addition.
    connecting = STRAIT_PHASE_CONNECTING,
    // System calls that the library tries, and can do without: a killing filter must let these calls fail with EPERM.
    dispensable = STRAIT_PHASE_DISPENSABLE,
};

// Returns the numbers of the system calls of a phase: the calls of the library and of the allocator below.
inline std::vector<std::int64_t> system_calls(Phase phase) {
    const auto which = static_cast<strait_phase>(phase);
    std::vector<std::int64_t> numbers(strait_system_calls(which, nullptr, 0));
    strait_system_calls(which, numbers.data(), numbers.size());
    return numbers;
}

} // namespace strait

#endif
