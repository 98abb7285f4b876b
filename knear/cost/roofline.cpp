#include "knear/cost/roofline.hpp"

#include <fmt/ranges.h>

#include <bit>
#include <limits>
#include <vector>

#include "knear/core/error.hpp"

namespace knear {
namespace {

constexpr double none = std::numeric_limits<double>::quiet_NaN();

// pi is the rate of the matrix unit at 16 bits; gamma that of fp32 outside it, which is also the
// rate of rescoring.
constexpr KnownMachine accelerator(std::string_view name, std::string_view title,
                                   std::string_view source, double fp32, double bf16, double int8,
                                   double bytes, double coefficient_wise) {
  MachinePeaks peaks;
  peaks.threads = 1, peaks.matrix_unit = true;
  peaks.fp32_flops = fp32, peaks.bf16_flops = bf16, peaks.int16_ops = none, peaks.int8_ops = int8;
  peaks.memory_bytes_per_second = bytes, peaks.cop_per_second = coefficient_wise;
  return {name, title, source, peaks};
}

constexpr std::string_view paper = "Chern et al. 2022, Table 1";
constexpr KnownMachine machines[] = {
    accelerator("v100", "NVIDIA V100", paper, 15.7e12, 125e12, none, 900e9, 15.7e12),
    accelerator("a100", "NVIDIA A100", paper, 19.5e12, 312e12, 624e12, 1555e9, 19.5e12),
    accelerator("tpu-v3", "TPU v3", paper, 4.0e12, 126e12, none, 858e9, 4.0e12),
    accelerator("tpu-v4", "TPU v4", paper, 4.3e12, 274e12, none, 1144e9, 4.3e12),
    // 132 multiprocessors x 128 lanes at a sustained 1.755 GHz.
    accelerator("h200", "NVIDIA H200 SXM", "data sheet, without sparsity", 66.9e12, 989.4e12,
                1979e12, 4800e9, 29.7e12)};

}  // namespace

std::string_view name_of(Limit limit) {
  switch (limit) {
    case Limit::multiply_adds:
      return "multiply-adds";
    case Limit::memory:
      return "memory";
    case Limit::coefficient_wise:
      return "coefficient-wise operations";
  }
  return "?";
}

Attainable attainable_rate(const Roofs& roofs, const Intensity& intensity) {
  for (const double x : {roofs.operations, roofs.bytes, roofs.coefficient_wise, intensity.memory,
                         intensity.coefficient_wise})
    if (!(x > 0)) throw InvalidArgument("roofs and intensity must be positive, but there is {}", x);
  Attainable out{roofs.operations, Limit::multiply_adds};
  const double memory = roofs.bytes * intensity.memory;
  const double coefficient_wise = roofs.coefficient_wise * intensity.coefficient_wise;
  if (memory < out.rate) out = {memory, Limit::memory};
  if (coefficient_wise < out.rate) out = {coefficient_wise, Limit::coefficient_wise};
  return out;
}

int coefficient_wise_per_score(const PartialReduceShape& shape) {
  return 3 + (!shape.padded && shape.dim % 128 != 0) +
         !std::has_single_bit(static_cast<std::uint64_t>(shape.rows)) +
         (traits_of(shape.metric).squared ? 2 : 0);
}

Intensity intensity_of(const PartialReduceShape& shape) {
  for (const std::int64_t x : {shape.rows, shape.dim, shape.queries, shape.bins, shape.query_block})
    if (x < 1) throw InvalidArgument("shape must hold positive numbers, but holds {}", x);
  const double m = static_cast<double>(shape.queries), n = static_cast<double>(shape.rows);
  const double d = static_cast<double>(shape.padded ? (shape.dim + 127) / 128 * 128 : shape.dim);
  const double bytes = 4 * (m * d + m * n * d / static_cast<double>(shape.query_block) +
                            2 * m * static_cast<double>(shape.bins));
  return {2 * m * n * d / bytes, 2 * d / coefficient_wise_per_score(shape)};
}

std::span<const KnownMachine> known_machines() { return machines; }

const KnownMachine& known_machine(std::string_view name) {
  std::vector<std::string_view> names;
  for (const KnownMachine& machine : machines) {
    if (machine.name == name) return machine;
    names.push_back(machine.name);
  }
  throw InvalidArgument("machine must be one of {}, but is '{}'", fmt::join(names, ", "), name);
}

}  // namespace knear
