// knear/core/cpu_groups.hpp -- the processors that this process may use, in groups that have memory
// of their own (NUMA nodes), for work that stays on some of them (run_on() in core/threads.hpp).
//
//   const std::vector<CpuSet> groups = cpu_groups();  // one on most machines
//   run_on(cpus_of_part(groups, part, parts), [&] { ... });
//
// A page of memory belongs to the node whose processor is the first to write to it, and others read
// it more slowly. So what makes a part of an index and what searches it later run in the same
// group.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

namespace knear {

// Numbers of processors as the system counts them, ascending, each once.
using CpuSet = std::vector<int>;

// The processors of the calling thread's affinity, by NUMA node, in the order of nodes; all in one
// group where the system tells of none, and within run_on(). The environment variable
// KNEAR_CPU_GROUPS (read anew at each call) makes groups of one's own: "0-7,16-23:8-15,24-31" are
// two, of which a thread has those processors that it may use. Throws InvalidArgument if it cannot
// be read that way, or names a processor twice or one that the process may not use.
std::vector<CpuSet> cpu_groups();

// The processors for one of several parts that work at the same time: some of the groups where
// there are more groups than parts, otherwise one, in the order of parts.
CpuSet cpus_of_part(const std::vector<CpuSet>& groups, std::int64_t part, std::int64_t parts);

// "0-3,8" as {0, 1, 2, 3, 8}; empty where it is no such list.
CpuSet parse_cpu_list(std::string_view text);

}  // namespace knear
