// One pass, block after block: XXH3 and the sums keep up with a fast disk on one core.
#include "knear/io/statistics.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "knear/core/error.hpp"
#include "knear/core/public_call.hpp"
#include "knear/io/number_conversion.hpp"
#include "knear/io/row_reader.hpp"

namespace knear::io {
namespace {

double as_double(f16 x) { return to_float(x); }
template <class T>
double as_double(T x) {
  return static_cast<double>(x);
}

struct Extremes {
  bool any = false;
  double least = 0, greatest = 0;

  void add(double x) {
    least = any ? std::min(least, x) : x;
    greatest = any ? std::max(greatest, x) : x;
    any = true;
  }
};

class StatisticsCollector {
 public:
  explicit StatisticsCollector(Statistics& out) : out_(out) {}

  template <class T>
  void add_row(const std::byte* row, std::int64_t dim, std::int64_t index) {
    const std::int64_t bad_before = out_.nan_count + out_.infinity_count;
    double squares = 0;
    for (std::int64_t j = 0; j < dim; ++j) {
      T stored;
      std::memcpy(&stored, row + j * static_cast<std::int64_t>(sizeof stored), sizeof stored);
      const double x = as_double(stored);
      if (!std::isfinite(x)) {
        ++(std::isnan(x) ? out_.nan_count : out_.infinity_count);
        continue;
      }
      if (x != std::trunc(x)) out_.whole_numbers = false;
      values_.add(x);
      squares += x * x;
    }
    if (out_.nan_count + out_.infinity_count == bad_before) {
      ++out_.finite_rows;
      norms_.add(std::sqrt(squares));
    } else if (out_.first_bad_row < 0) {
      out_.first_bad_row = index;
    }
  }

  void finish() {
    out_.least = values_.least;
    out_.greatest = values_.greatest;
    out_.least_norm = norms_.least;
    out_.greatest_norm = norms_.greatest;
  }

 private:
  Statistics& out_;
  Extremes values_, norms_;
};

// XXH3, 64 bits, of bytes that come one after another.
class Checksum {
 public:
  Checksum() : state_(XXH3_createState(), XXH3_freeState) {
    if (!state_) throw MemoryBudgetError("no memory to compute a checksum");
    XXH3_64bits_reset(state_.get());
  }
  void add(const void* data, std::int64_t bytes) { XXH3_64bits_update(state_.get(), data, bytes); }
  std::uint64_t value() const { return XXH3_64bits_digest(state_.get()); }

 private:
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state_;
};

}  // namespace

Statistics compute_statistics(const std::string& path, const Progress& progress) {
  return detail::public_call([&] {
    RowReader reader(path, {});
    Statistics out{.info = reader.info()};
    Checksum hash;
    StatisticsCollector collector(out);
    read_rows(reader, [&](std::int64_t first, std::int64_t count, const std::byte* block) {
      const std::int64_t row_bytes = reader.packed_row_bytes();
      hash.add(block, count * row_bytes);
      visit_scalar(reader.scalar(), [&](auto scalar) {
        for (std::int64_t i = 0; i < count; ++i)
          collector.add_row<decltype(scalar)>(block + i * row_bytes, reader.dim(), first + i);
      });
      report_progress(progress, "read", first + count, reader.rows());
    });
    collector.finish();
    out.checksum = hash.value();
    return out;
  });
}

std::uint64_t checksum_of(AnyMatrixView rows, const Progress& progress) {
  constexpr std::int64_t block_bytes = std::int64_t{1} << 26;
  const std::int64_t row_bytes = rows.cols() * size_of(rows.type());
  const std::int64_t together =
      rows.stride() == rows.cols()
          ? std::max<std::int64_t>(1, block_bytes / std::max<std::int64_t>(1, row_bytes))
          : 1;
  Checksum hash;
  for (std::int64_t i = 0; i < rows.rows(); i += together) {
    const std::int64_t count = std::min(together, rows.rows() - i);
    hash.add(rows.row(i), count * row_bytes);
    if (together > 1 || i % 65536 == 0)
      report_progress(progress, "checksum", i + count, rows.rows());
  }
  return hash.value();
}

}  // namespace knear::io
