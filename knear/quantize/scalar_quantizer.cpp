#include "knear/quantize/scalar_quantizer.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/core/public_call.hpp"
#include "knear/core/sample.hpp"
#include "knear/core/threads.hpp"
#include "knear/core/value_range.hpp"
#include "knear/distance/exact.hpp"
#include "knear/distance/reference.hpp"

namespace knear {
namespace {

constexpr std::int64_t rows_per_task = 1024;  // rows of a task

bool has_levels(ScalarCode code) { return code == ScalarCode::bits8 || code == ScalarCode::bits4; }
int last_level(ScalarCode code) { return code == ScalarCode::bits8 ? 255 : 15; }

struct Levels {
  double low = 0, step = 0;
  // The nearest one, ties to the lower.
  int of(double x, int last) const {
    if (!(step > 0)) return 0;
    const double t = std::ceil((x - low) / step - 0.5);
    return static_cast<int>(std::clamp(t, 0.0, static_cast<double>(last)));
  }
};

// The levels that lose least of the values: each value goes to its nearest level, and the levels to
// where the values want them (linear regression), in turn, from ranges of several widths.
Levels best_levels(const std::vector<double>& values, int last) {
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  const auto n = static_cast<double>(values.size());
  double mean = 0, squares = 0;
  for (const double x : values) mean += x / n;
  for (const double x : values) squares += (x - mean) * (x - mean) / n;
  Levels best;
  double best_loss = -1;
  for (const double deviations : {2.0, 2.7, 3.5, 1e300}) {
    const double reach = deviations < 1e300 ? deviations * std::sqrt(squares) : *most - *least;
    const double low = std::max(*least, mean - reach), high = std::min(*most, mean + reach);
    Levels levels{low, (high - low) / last};
    for (int round = 0; round < 8; ++round) {
      double loss = 0, sum_c = 0, sum_cc = 0, sum_x = 0, sum_cx = 0;
      for (const double x : values) {
        const double c = levels.of(x, last), off = x - (levels.low + c * levels.step);
        loss += off * off;
        sum_c += c, sum_cc += c * c, sum_x += x - mean, sum_cx += c * (x - mean);
      }
      if (best_loss < 0 || loss < best_loss) best_loss = loss, best = levels;
      const double divisor = n * sum_cc - sum_c * sum_c;
      if (!(divisor > 0)) break;
      const double step = (n * sum_cx - sum_c * sum_x) / divisor;
      levels = {mean + (sum_x - step * sum_c) / n, step};
    }
  }
  return best;
}

constexpr std::int64_t columns_together = 16;  // columns that lie in the same cache line

using Ranges = std::vector<std::pair<double, double>>;  // the least and the largest value

// The range of each column over the rows that are not `far` [n]; empty: over all.
Ranges ranges_of(AnyMatrixView rows, const std::vector<char>& far, int threads) {
  Ranges out(rows.cols(), {INFINITY, -INFINITY});
  parallel_for(threads, (rows.cols() + columns_together - 1) / columns_together,
               [&](std::int64_t task) {
                 const std::int64_t first = task * columns_together,
                                    end = std::min(rows.cols(), first + columns_together);
                 visit(rows, [&](auto typed) {
                   for (std::int64_t i = 0; i < typed.rows(); ++i) {
                     if (!far.empty() && far[i]) continue;
                     for (std::int64_t j = first; j < end; ++j) {
                       const double x = to_double(typed.row(i)[j]);
                       auto& [least, most] = out[j];
                       least = std::min(least, x), most = std::max(most, x);
                     }
                   }
                 });
               });
  return out;
}

// Beyond these a value is far: the middle 98 % of a sample of the column, widened by 16 times their
// width. Columns in which most values are equal have no such limits.
Ranges far_limits(AnyMatrixView rows, int threads) {
  constexpr std::int64_t most_sampled = 2048;
  constexpr double width = 16;
  AnyMatrix sample;
  rows = detail::sampled_rows(rows, most_sampled, 2, sample);
  Ranges out(rows.cols());
  parallel_for(threads, rows.cols(), [&](std::int64_t j) {
    std::vector<double> values;
    visit(rows, [&](auto typed) {
      for (std::int64_t i = 0; i < typed.rows(); ++i) values.push_back(to_double(typed.row(i)[j]));
    });
    const std::ptrdiff_t rank = std::ssize(values) / 100;
    std::nth_element(values.begin(), values.begin() + rank, values.end());
    const double low = values[rank];
    std::nth_element(values.begin(), values.end() - 1 - rank, values.end());
    const double high = values[values.size() - 1 - static_cast<std::size_t>(rank)];
    const double reach = high > low ? width * (high - low) : INFINITY;
    out[j] = {low - reach, high + reach};
  });
  return out;
}

// Which rows are far [n]; empty: none, or so many that they are no exceptions.
std::vector<char> far_rows(AnyMatrixView rows, const Ranges& ranges, int threads) {
  constexpr std::int64_t least_rows = 200, share = 1000;
  if (rows.rows() < least_rows) return {};
  const Ranges limits = far_limits(rows, threads);
  std::vector<std::int64_t> suspects;
  for (std::size_t j = 0; j < limits.size(); ++j)
    if (ranges[j].first < limits[j].first || ranges[j].second > limits[j].second)
      suspects.push_back(static_cast<std::int64_t>(j));
  if (suspects.empty()) return {};
  std::vector<char> out(rows.rows());
  visit(rows, [&](auto typed) {
    for (std::int64_t i = 0; i < typed.rows(); ++i)
      for (const std::int64_t j : suspects) {
        const double x = to_double(typed.row(i)[j]);
        const auto& [low, high] = limits[j];
        out[i] |= x < low || x > high;
      }
  });
  const auto count = std::count(out.begin(), out.end(), 1);
  return count <= std::max<std::int64_t>(1, rows.rows() / share) ? out : std::vector<char>();
}

}  // namespace

std::string_view name_of(ScalarCode code) {
  switch (code) {
    case ScalarCode::bits8:
      return "8";
    case ScalarCode::bits4:
      return "4";
    case ScalarCode::f16:
      return "fp16";
    case ScalarCode::bf16:
      break;
  }
  return "bf16";
}

struct ScalarQuantizer::State {
  ScalarCode code;
  std::int64_t dim;
  std::vector<float> low, step;  // [dim], where there are levels

  std::int64_t code_size() const {
    switch (code) {
      case ScalarCode::bits8:
        return dim;
      case ScalarCode::bits4:
        return (dim + 1) / 2;
      case ScalarCode::f16:
      case ScalarCode::bf16:
        break;
    }
    return 2 * dim;
  }
  void check_vectors(AnyMatrixView vectors, std::string_view argument) const {
    if (vectors.cols() != dim)
      throw ShapeMismatch("{} have {} columns, the quantizer {}", argument, vectors.cols(), dim);
  }
  void check_codes(MatrixView<std::uint8_t> codes, std::string_view argument) const {
    if (codes.cols() != code_size())
      throw ShapeMismatch("{} have {} columns, the quantizer's codes {}", argument, codes.cols(),
                          code_size());
  }
  template <class T>
  void encode(const T* row, std::int64_t number, std::uint8_t* out) const {
    if (!has_levels(code)) return encode_halves(row, number, out);
    for (std::int64_t j = 0; j < dim; ++j) {
      const std::size_t at = j;
      const int level = Levels{low[at], step[at]}.of(to_double(row[j]), last_level(code));
      if (code == ScalarCode::bits8)
        out[j] = static_cast<std::uint8_t>(level);
      else
        out[j / 2] = static_cast<std::uint8_t>(out[j / 2] | level << (j % 2 * 4));
    }
  }
  template <class T>
  void encode_halves(const T* row, std::int64_t number, std::uint8_t* out) const {
    const ElementType half = code == ScalarCode::f16 ? ElementType::f16 : ElementType::bf16;
    constexpr std::int64_t together = 256;
    float values[together];
    std::uint16_t halves[together];
    static_assert(std::endian::native == std::endian::little);  // as codes are
    for (std::int64_t begin = 0; begin < dim; begin += together) {
      const std::int64_t count = std::min(together, dim - begin);
      const float* from = values;
      if constexpr (std::is_same_v<T, float>)
        from = row + begin;
      else
        for (std::int64_t j = 0; j < count; ++j)
          values[j] = static_cast<float>(widened(row[begin + j]));
      if (!to_halves(half, from, count, halves)) refuse_half(row, number);
      std::memcpy(out + 2 * begin, halves, 2 * static_cast<std::size_t>(count));
    }
  }
  // Of a row that has a number beyond the range of halves.
  template <class T>
  [[noreturn]] void refuse_half(const T* row, std::int64_t number) const {
    std::int64_t j = 0;
    const auto fits = [&](float x) {
      return std::isfinite(code == ScalarCode::f16 ? to_float(to_f16(x)) : to_float(to_bf16(x)));
    };
    while (j + 1 < dim && fits(static_cast<float>(widened(row[j])))) ++j;
    throw InvalidArgument("rows must be finite as {}, but row {} column {} is {}", name_of(code),
                          number, j, to_double(row[j]));
  }
  // A loop for each kind, so that compilers make vectors of it.
  void decode(const std::uint8_t* in, float* out) const {
    const auto bits = [in](std::int64_t j) {
      return static_cast<std::uint16_t>(in[2 * j] | in[2 * j + 1] << 8);
    };
    const float *lows = low.data(), *steps = step.data();
    const auto level = [=](std::int64_t j, int c) {
      return static_cast<float>(lows[j] + c * double{steps[j]});
    };
    switch (code) {
      case ScalarCode::bits8:
        for (std::int64_t j = 0; j < dim; ++j) out[j] = level(j, in[j]);
        break;
      case ScalarCode::bits4:
        for (std::int64_t j = 0; j < dim; ++j) out[j] = level(j, in[j / 2] >> (j % 2 * 4) & 15);
        break;
      case ScalarCode::f16:
        for (std::int64_t j = 0; j < dim; ++j) out[j] = to_float(f16{bits(j)});
        break;
      case ScalarCode::bf16:
        for (std::int64_t j = 0; j < dim; ++j) out[j] = to_float(bf16{bits(j)});
        break;
    }
  }
};

ScalarQuantizer::ScalarQuantizer(std::shared_ptr<const State> state) : state_(std::move(state)) {}

ScalarQuantizer ScalarQuantizer::of_halves(ScalarCode code, std::int64_t dim) {
  return detail::public_call([&] {
    if (has_levels(code))
      throw InvalidArgument("code must be fp16 or bf16 without levels, but is {}", name_of(code));
    if (dim < 1 || dim > 65536)
      throw InvalidArgument("dim must be from 1 to 65536, but is {}", dim);
    return ScalarQuantizer(std::make_shared<const State>(State{code, dim, {}, {}}));
  });
}

ScalarQuantizer ScalarQuantizer::from_levels(ScalarCode code, std::span<const float> low,
                                             std::span<const float> step) {
  return detail::public_call([&] {
    if (!has_levels(code))
      throw InvalidArgument("code must be 8 or 4 to have levels, but is {}", name_of(code));
    if (low.size() != step.size())
      throw ShapeMismatch("low has {} elements, step {}", low.size(), step.size());
    if (low.empty() || low.size() > 65536)
      throw InvalidArgument("low must have from 1 to 65536 elements, but has {}", low.size());
    for (std::size_t j = 0; j < low.size(); ++j) {
      const double last = low[j] + double{step[j]} * last_level(code);
      if (!std::isfinite(low[j]) || !(step[j] >= 0) || !std::isfinite(static_cast<float>(last)))
        throw InvalidArgument(
            "levels must be finite and ascend, but column {} begins with {} in steps of {}", j,
            low[j], step[j]);
    }
    return ScalarQuantizer(std::make_shared<const State>(
        State{code, std::ssize(low), {low.begin(), low.end()}, {step.begin(), step.end()}}));
  });
}

ScalarQuantizer ScalarQuantizer::train(AnyMatrixView rows, ScalarCode code, int threads) {
  return detail::public_call([&] {
    if (rows.cols() < 1 || rows.cols() > 65536)
      throw InvalidArgument("rows must have between 1 and 65536 columns, but has {}", rows.cols());
    if (rows.rows() < 1)
      throw InvalidArgument("rows must be at least 1 to train on, but are {}", rows.rows());
    threads = resolve_threads(threads);
    find_value_range(rows, Metric::l2, "rows", threads);
    check_float32_tells_apart(rows, "rows", "codes");
    if (!has_levels(code)) return of_halves(code, rows.cols());
    AnyMatrix sample;
    constexpr std::int64_t most_rows = 65536;
    if (code == ScalarCode::bits4) rows = detail::sampled_rows(rows, most_rows, 1, sample);
    const int last = last_level(code);
    std::vector<float> low(rows.cols()), step(low.size());
    Ranges ranges = ranges_of(rows, {}, threads);
    const std::vector<char> far = far_rows(rows, ranges, threads);
    if (!far.empty()) ranges = ranges_of(rows, far, threads);
    parallel_for(
        threads, (rows.cols() + columns_together - 1) / columns_together, [&](std::int64_t task) {
          const std::int64_t first = task * columns_together,
                             end = std::min(rows.cols(), first + columns_together);
          std::vector<std::vector<double>> values(end - first);
          if (code == ScalarCode::bits4)
            visit(rows, [&](auto typed) {
              for (std::int64_t i = 0; i < typed.rows(); ++i) {
                if (!far.empty() && far[i]) continue;
                for (std::int64_t j = first; j < end; ++j)
                  values[j - first].push_back(to_double(typed.row(i)[j]));
              }
            });
          for (std::int64_t j = first; j < end; ++j) {
            const auto& [least, most] = ranges[j];
            const Levels levels = code == ScalarCode::bits8 ? Levels{least, (most - least) / last}
                                                            : best_levels(values[j - first], last);
            // A step beyond the range of floats cannot be: levels end within that of the values.
            low[j] = static_cast<float>(levels.low);
            step[j] = static_cast<float>(std::max(0.0, levels.step));
          }
        });
    return from_levels(code, low, step);
  });
}

std::int64_t ScalarQuantizer::dim() const { return state_->dim; }
ScalarCode ScalarQuantizer::code() const { return state_->code; }
std::int64_t ScalarQuantizer::code_size() const { return state_->code_size(); }
std::span<const float> ScalarQuantizer::low() const { return state_->low; }
std::span<const float> ScalarQuantizer::step() const { return state_->step; }

Matrix<std::uint8_t> ScalarQuantizer::encode(AnyMatrixView rows, int threads,
                                             const Progress& progress) const {
  return detail::public_call([&] {
    state_->check_vectors(rows, "rows");
    threads = resolve_threads(threads);
    find_value_range(rows, Metric::l2, "rows", threads);
    Matrix<std::uint8_t> out(rows.rows(), code_size());
    const std::int64_t tasks = (rows.rows() + rows_per_task - 1) / rows_per_task;
    Reporter reporter(progress, "encode", tasks);
    parallel_for(threads, tasks, [&](std::int64_t task) {
      visit(rows, [&](auto typed) {
        const std::int64_t end = std::min(rows.rows(), (task + 1) * rows_per_task);
        for (std::int64_t i = task * rows_per_task; i < end; ++i)
          state_->encode(typed.row(i), i, out.row(i));
      });
      reporter.add(1);
    });
    return out;
  });
}

Matrix<float> ScalarQuantizer::decode(MatrixView<std::uint8_t> codes, int threads) const {
  return detail::public_call([&] {
    state_->check_codes(codes, "codes");
    Matrix<float> out(codes.rows(), state_->dim);
    parallel_for(resolve_threads(threads), (codes.rows() + rows_per_task - 1) / rows_per_task,
                 [&](std::int64_t task) {
                   const std::int64_t end = std::min(codes.rows(), (task + 1) * rows_per_task);
                   for (std::int64_t i = task * rows_per_task; i < end; ++i)
                     state_->decode(codes.row(i), out.row(i));
                 });
    return out;
  });
}

void ScalarQuantizer::decode_one(const std::uint8_t* code, float* out) const {
  state_->decode(code, out);
}

Matrix<float> ScalarQuantizer::distances(AnyMatrixView queries, MatrixView<std::uint8_t> codes,
                                         Metric metric, int threads) const {
  return detail::public_call([&] {
    check_by_products(metric, "a distance to codes");
    state_->check_vectors(queries, "queries");
    state_->check_codes(codes, "codes");
    threads = resolve_threads(threads);
    find_value_range(queries, metric, "queries", threads);
    Matrix<float> out(queries.rows(), codes.rows());
    const Isa isa = active_isa();
    parallel_for(
        threads, (codes.rows() + rows_per_task - 1) / rows_per_task, [&](std::int64_t task) {
          const std::int64_t begin = task * rows_per_task,
                             end = std::min(codes.rows(), begin + rows_per_task);
          const Matrix<float> rows = decode(codes.rows(begin, end), 1);
          ExactDistance distance(metric, ElementType::f32, isa);
          for (std::int64_t q = 0; q < queries.rows(); ++q) {
            distance.set_query(queries, q);
            for (std::int64_t i = begin; i < end; ++i)
              out.row(q)[i] =
                  static_cast<float>(distance_of_key(metric, distance.key(rows.row(i - begin))));
          }
        });
    return out;
  });
}

Matrix<float> ScalarQuantizer::code_distances(MatrixView<std::uint8_t> from,
                                              MatrixView<std::uint8_t> to, Metric metric,
                                              int threads) const {
  return detail::public_call([&] {
    state_->check_codes(from, "from");
    return distances(decode(from, threads).view(), to, metric, threads);
  });
}

}  // namespace knear
