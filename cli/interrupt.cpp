#include "cli/interrupt.hpp"

#include <signal.h>

#include "knear/core/error.hpp"

namespace knear::cli {
namespace {

volatile sig_atomic_t received = 0;

void note_signal(int signal) { received = signal; }

void set_handlers(void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  // SA_RESETHAND: the second signal takes the default action, which ends the process.
  action.sa_flags = handler == SIG_DFL ? 0 : static_cast<int>(SA_RESETHAND) | SA_RESTART;
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction old = {};
    sigaction(signal, nullptr, &old);
    // A signal that the shell (of a job in the background) or nohup has ignored stays ignored.
    if (old.sa_handler != SIG_IGN) sigaction(signal, &action, nullptr);
  }
}

}  // namespace

CatchInterrupts::CatchInterrupts() { set_handlers(note_signal); }
CatchInterrupts::~CatchInterrupts() { set_handlers(SIG_DFL); }

void ignore_other_signals() {
  const auto ignore = [](int number) {
    struct sigaction old = {};
    if (sigaction(number, nullptr, &old) != 0 || (old.sa_flags & SA_SIGINFO) != 0 ||
        old.sa_handler != SIG_DFL)
      return;
    signal(number, SIG_IGN);
  };
  // Tools send the first two to make other servers open their logs again.
  for (const int number : {SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGIO}) ignore(number);
#ifdef SIGPWR
  ignore(SIGPWR);
#endif
#ifdef SIGSTKFLT
  ignore(SIGSTKFLT);
#endif
#ifdef SIGRTMIN
  for (int number = SIGRTMIN; number <= SIGRTMAX; ++number) ignore(number);
#endif
}

int interrupting_signal() { return received; }

void check_interrupt() {
  if (interrupted()) throw Cancelled("interrupted");
}

}  // namespace knear::cli
