// tests/core/present_cpus.hpp -- where a thread may run, as the system says it.
#pragma once
#include <sched.h>

#include "knear/core/cpu_groups.hpp"

namespace knear::test {

// The processors of the calling thread, ascending.
inline CpuSet present_cpus() {
  cpu_set_t set;
  CpuSet out;
  if (sched_getaffinity(0, sizeof set, &set) == 0)
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &set)) out.push_back(cpu);
  return out;
}

}  // namespace knear::test
