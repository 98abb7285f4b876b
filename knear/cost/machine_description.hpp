// knear/cost/machine_description.hpp -- one machine of many, as its owner describes it: what it
// computes and reads per second, its memory, its network, its price.
//
//   MachineDescription machine = parse_machine(text, "rack.json");   // throws CorruptFile
//   machine.peaks.int8_ops, machine.memory_bytes, machine.price_per_hour
//
// `knear roofline --out FILE` writes such a file of this machine. It is a JSON object with these
// fields; all numbers are decimal and finite:
//
//   name                       text, what the machine is called
//   isa                        "avx512_vnni", ...: level of the instructions that were timed
//   threads                    all rates are sums over so many threads
//   fp32_flops, int8_ops, cop_per_second, memory_bytes_per_second
//                              as in cost/peaks.hpp; needed
//   int16_ops, bf16_flops, cycles_per_second
//                              the same; may be null or left out
//   caches                     [{"bytes", "bytes_per_second"}, ...], at most three; may be left out
//   memory_bytes               of the whole machine; needed
//   new_memory_bytes_per_second
//                              as cost/new_memory.hpp measures it; null or left out: not known
//   first_use_bytes_per_second as cost/first_use.hpp does; null or left out: not known
//   network_bytes_per_second   of its link, each way     null or left out: 1.25e9 (10 Gbit/s) are
//   network_latency_seconds    from one machine to another, one way    assumed, and 50e-6
//   price_per_hour             of one machine, in any currency; null or left out: not known
//
// Other fields are errors, so that a misspelt one is not one left out, and so is one that is there
// twice.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "knear/cost/peaks.hpp"

namespace knear {

inline constexpr double assumed_network_bytes_per_second = 1.25e9;
inline constexpr double assumed_network_latency_seconds = 50e-6;

struct MachineDescription {
  std::string name;
  MachinePeaks peaks;
  double memory_bytes = 0;
  std::optional<double> new_memory_bytes_per_second = {}, first_use_bytes_per_second = {};
  std::optional<double> network_bytes_per_second = {}, network_latency_seconds = {};
  std::optional<double> price_per_hour = {};
};

// Throws CorruptFile that names `where` and the first field that is missing or makes no sense: a
// rate outside [1e6, 1e18] a second, memory outside [2^20, 2^50] bytes, a latency outside
// [0, 60] seconds, a price outside [0, 1e9], threads outside [1, 65536].
MachineDescription parse_machine(std::string_view text, std::string_view where);

// The text of such a file; what is not known is null.
std::string text_of_machine(const MachineDescription& machine);

}  // namespace knear
