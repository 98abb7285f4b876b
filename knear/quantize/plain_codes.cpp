#include "knear/quantize/plain_codes.hpp"

#include <algorithm>
#include <bit>
#include <mutex>

#include "knear/core/cpu.hpp"
#include "knear/core/error.hpp"
#include "knear/core/public_call.hpp"
#include "knear/core/stop_check.hpp"
#include "knear/core/threads.hpp"
#include "knear/quantize/plain_kernels.hpp"

namespace knear::detail {
namespace {

// Numbers of a task: few rows are not worth a second thread.
constexpr std::int64_t numbers_per_task = 1 << 17;

// The absolute values from these bits on have no code.
std::int32_t first_without_code(PlainCode::Kind kind) {
  switch (kind) {
    case PlainCode::Kind::f16:
      return 0x477ff000;
    case PlainCode::Kind::bf16:
      return 0x7f7f8000;
    default:
      return 0x7f800000;
  }
}

void pack_4_bits(const std::uint8_t* in, std::int64_t n, std::uint8_t* out) {
  std::int64_t b = 0;
  for (; 2 * b + 1 < n; ++b) out[b] = static_cast<std::uint8_t>(in[2 * b] | in[2 * b + 1] << 4);
  if (2 * b < n) out[b] = in[2 * b];
}

// in: four numbers more than n, zeros.
void pack_6_bits(const std::uint8_t* in, std::int64_t n, std::uint8_t* out) {
  for (std::int64_t left = (6 * n + 7) / 8; left > 0; left -= 3, in += 4, out += 3) {
    const std::uint8_t bytes[] = {static_cast<std::uint8_t>(in[0] | in[1] << 6),
                                  static_cast<std::uint8_t>(in[1] >> 2 | in[2] << 4),
                                  static_cast<std::uint8_t>(in[2] >> 4 | in[3] << 2)};
    std::copy_n(bytes, std::min<std::int64_t>(3, left), out);
  }
}

}  // namespace

PlainCode::Kind PlainCode::kind_of(std::string_view name) {
  if (name == "8") return Kind::bits8;
  if (name == "6") return Kind::bits6;
  if (name == "4") return Kind::bits4;
  if (name == "fp16") return Kind::f16;
  if (name == "bf16") return Kind::bf16;
  throw InvalidArgument("code must be 8, 6, 4, fp16 or bf16, but is {}", name);
}

PlainCode::PlainCode(Kind kind, std::int64_t dim, std::span<const float> low,
                     std::span<const float> span)
    : kind_(kind), dim_(dim), low_(low.begin(), low.end()), span_(span.begin(), span.end()) {
  if (dim < 1) throw InvalidArgument("dim must be at least 1, but is {}", dim);
  const bool halves = kind == Kind::f16 || kind == Kind::bf16;
  const std::int64_t due = halves ? 0 : dim;
  if (std::ssize(low_) != due || std::ssize(span_) != due)
    throw ShapeMismatch("low and span have {} and {} numbers, but {} are due", low_.size(),
                        span_.size(), due);
  const float last = kind == Kind::bits8 ? 255 : kind == Kind::bits6 ? 63 : 15;
  for (float& width : span_) {  // columns of one value have the number 0
    top_.push_back(width > 0 ? last : 0);
    if (!(width > 0)) width = 1;
  }
}

std::int64_t PlainCode::code_size() const {
  switch (kind_) {
    case Kind::bits8:
      return dim_;
    case Kind::bits6:
      return (6 * dim_ + 7) / 8;
    case Kind::bits4:
      return (dim_ + 1) / 2;
    default:
      return 2 * dim_;
  }
}

std::int64_t PlainCode::encode(MatrixView<float> rows, MatrixView<float> centroids,
                               std::span<const std::int64_t> list_of, int threads,
                               std::uint8_t* out) const {
  static_assert(std::endian::native == std::endian::little);  // as codes are
  const PlainKernels& kernels = plain_kernels(active_isa());
  const std::int64_t n = rows.rows(), size = code_size();
  const std::int64_t together = std::max<std::int64_t>(1, numbers_per_task / dim_);
  const std::int32_t bad = first_without_code(kind_);
  const PlainLevels levels{low_.data(), span_.data(), top_.data()};
  std::int64_t first_bad = n;
  std::mutex mutex;
  public_call([&] {
    parallel_for(resolve_threads(threads), (n + together - 1) / together, [&](std::int64_t task) {
      stop_if_asked();
      std::vector<std::uint8_t> numbers;
      if (kind_ == Kind::bits6 || kind_ == Kind::bits4)
        numbers.resize(static_cast<std::size_t>(dim_) + 4);
      const std::int64_t end = std::min(n, (task + 1) * together);
      for (std::int64_t i = task * together; i < end; ++i) {
        std::uint8_t* const to = out + i * size;
        const PlainRow row{rows.row(i), centroids.cols() > 0 ? centroids.row(list_of[i]) : nullptr,
                           dim_};
        std::int32_t largest = 0;
        switch (kind_) {
          case Kind::bits8:
            largest = kernels.numbers(row, levels, to);
            break;
          case Kind::bits6:
            largest = kernels.numbers(row, levels, numbers.data());
            pack_6_bits(numbers.data(), dim_, to);
            break;
          case Kind::bits4:
            largest = kernels.numbers(row, levels, numbers.data());
            pack_4_bits(numbers.data(), dim_, to);
            break;
          case Kind::f16:
            largest = kernels.f16(row, reinterpret_cast<std::uint16_t*>(to));
            break;
          case Kind::bf16:
            largest = kernels.bf16(row, reinterpret_cast<std::uint16_t*>(to));
            break;
        }
        if (largest < bad) continue;
        std::lock_guard lock(mutex);
        first_bad = std::min(first_bad, i);
        return;
      }
    });
  });
  return first_bad;
}

}  // namespace knear::detail
