// Waits ended by signals.

#ifndef STRAIT_SIGNALS_HPP
#define STRAIT_SIGNALS_HPP

#include <strait/strait.h>

namespace strait {

// During the life of the object, a signal that interrupts a sleep of its thread ends the wait with STRAIT_SIGNALLED.
// See strait_signals_begin. Must be destroyed in the thread that made the object.
class SignalGuard {
  public:
    SignalGuard() noexcept { strait_signals_begin(); }
    ~SignalGuard() { strait_signals_end(); }
    SignalGuard(const SignalGuard &) = delete;
    SignalGuard &operator=(const SignalGuard &) = delete;
};

} // namespace strait

#endif
