//! The system calls to allow in a sandbox.

use strait::sandbox::SYSCALLS;

use crate::status::call_or;

/// The activity of a process after its sandbox is active, for `strait_system_calls`.
pub type strait_phase = u32;

/// Messages, waiting, and channels over existing links or over a socket of the program. Every process needs the calls
/// of this list.
pub const STRAIT_PHASE_RUNNING: strait_phase = 0;
/// Regions: calls needed in addition.
pub const STRAIT_PHASE_WITH_REGIONS: strait_phase = 1;
/// Listening, connecting, and taking a channel from the parent: these system calls in addition.
pub const STRAIT_PHASE_CONNECTING: strait_phase = 2;
/// System calls that the library tries, and can do without. A filter that kills the process for a forbidden call must
/// let these calls fail with `EPERM`, or allow all of them. If a call is in the list of another phase too, the filter
/// must allow the call in that phase.
pub const STRAIT_PHASE_DISPENSABLE: strait_phase = 3;

/// Writes the numbers of the system calls of a phase, one of `STRAIT_PHASE_*`, to `numbers`, as many as `capacity` has
/// room for. They are the calls of the library and of the allocator below it, on the architecture for which the library
/// was built. Returns how many the phase has; 0 for an unknown phase. `numbers` may be `NULL` if `capacity` is 0.
///
/// A process takes its channel first, then activates the filter, and then looks at messages of its peers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_system_calls(phase: strait_phase, numbers: *mut i64, capacity: usize) -> usize {
    call_or(0, || {
        let calls = match phase {
            STRAIT_PHASE_RUNNING => SYSCALLS.running,
            STRAIT_PHASE_WITH_REGIONS => SYSCALLS.with_regions,
            STRAIT_PHASE_CONNECTING => SYSCALLS.connecting,
            STRAIT_PHASE_DISPENSABLE => SYSCALLS.dispensable,
            _ => return 0,
        };
        let room = if numbers.is_null() { 0 } else { capacity };
        for (index, call) in calls.iter().take(room).enumerate() {
            // SAFETY: the header requires room for `capacity` numbers, and `index` is less.
            unsafe { numbers.add(index).write(call.number) };
        }
        calls.len()
    })
}
