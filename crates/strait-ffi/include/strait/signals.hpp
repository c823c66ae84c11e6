// Waits that a signal ends.

#ifndef STRAIT_SIGNALS_HPP
#define STRAIT_SIGNALS_HPP

#include <strait/strait.h>

namespace strait {

// As long as it exists, a signal that interrupts a sleep of the thread that made it ends the wait with
// STRAIT_SIGNALLED. See strait_signals_begin. It is destroyed in the same thread.
class SignalGuard {
  public:
    SignalGuard() noexcept { strait_signals_begin(); }
    ~SignalGuard() { strait_signals_end(); }
    SignalGuard(const SignalGuard &) = delete;
    SignalGuard &operator=(const SignalGuard &) = delete;
};

} // namespace strait

#endif
