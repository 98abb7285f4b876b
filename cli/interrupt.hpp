// cli/interrupt.hpp -- Ctrl-C during work: stop cleanly, leave nothing half-written.
//
//   CatchInterrupts guard;                // in a command that may run long
//   options.progress = ...                // returns !interrupted()
//   check_interrupt();                    // between steps: throws Cancelled
//
// While a guard exists, the first SIGINT, SIGTERM or SIGHUP only sets a flag; the second one ends
// the process at once, for work that does not check the flag. Otherwise signals keep their usual
// effect.
#pragma once

namespace knear::cli {

class CatchInterrupts {
 public:
  CatchInterrupts();
  ~CatchInterrupts();
  CatchInterrupts(const CatchInterrupts&) = delete;
  CatchInterrupts& operator=(const CatchInterrupts&) = delete;
};

// Ignores the signals that would end a server although they ask nothing of it: SIGUSR1, SIGUSR2,
// those of timers and of input, and the real-time ones. Signals with a handler keep it. For all
// threads, until the process ends.
void ignore_other_signals();

// The signal that arrived, or 0.
int interrupting_signal();
inline bool interrupted() { return interrupting_signal() != 0; }

// Throws Cancelled if a signal has arrived.
void check_interrupt();

}  // namespace knear::cli
