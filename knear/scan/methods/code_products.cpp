#include "knear/scan/methods/code_products.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "knear/scan/kernels/code_kernels.hpp"
#include "knear/scan/packing/coding.hpp"
#include "knear/scan/packing/packed_base.hpp"
#include "knear/scan/scores.hpp"

namespace knear::detail {
namespace {

constexpr float largest_float = std::numeric_limits<float>::max();
// Of sums of float32: four roundings for each part.
constexpr double float_slack = 0x1p-22;

// A float32 below the smallest normal one is off by as much as this; four for each part.
constexpr double least_slack = 0x1p-147;
// Sums of table entries beyond may overflow on the way.
constexpr double most_sum = 1e38;

// w of the head of code_products.hpp.
void load(const CodeBook& book, bool squared, const double* p, double* w) {
  const std::vector<double>& mean = book.tiles().mean;
  for (std::int64_t j = 0; j < book.dim(); ++j) w[j] = squared ? 2 * (p[j] - mean[j]) : -p[j];
}

// The mean of the queries, where it is worth a sum of its own for each row: where it makes them
// much shorter, and there are some. Else empty.
std::vector<double> middle_of(const CodeBook& book, bool squared, MatrixView<double> queries) {
  constexpr std::int64_t least_queries = 32;
  if (queries.rows() < least_queries) return {};
  std::vector<double> sum(book.dim()), w(sum.size());
  double squares = 0;
  for (std::int64_t q = 0; q < queries.rows(); ++q) {
    load(book, squared, queries.row(q), w.data());
    squares += dot(w.data(), w.data(), book.dim());
    for (std::size_t j = 0; j < w.size(); ++j) sum[j] += w[j];
  }
  for (double& x : sum) x /= static_cast<double>(queries.rows());
  const double saved =
      static_cast<double>(queries.rows()) * dot(sum.data(), sum.data(), book.dim());
  if (!(saved > squares / 4) || !std::isfinite(saved)) return {};
  return sum;
}

}  // namespace

bool rows_have_sums(const CodeBook& book, bool squared, MatrixView<double> queries) {
  return squared || !middle_of(book, squared, queries).empty();
}

CodeProducts::CodeProducts(const CodeBook& book, Metric metric, bool squared, Isa isa)
    : book_(book), metric_(metric), squared_(squared), isa_(isa) {}

void CodeProducts::set_queries(Matrix<double> queries) {
  queries_ = std::move(queries);
  const CodeTiles& tiles = book_.tiles();
  const ScanKernels& kernels = scan_kernels(isa_);
  const std::int64_t n = queries_.rows(), dim = queries_.cols(), steps = tiles.steps();
  std::vector<double> middle = middle_of(book_, squared_, queries_.view());
  if (middle.empty()) middle.resize(dim);
  std::vector<double> w(middle.size());
  const double slack = static_cast<double>(dim + 32) * 0x1p-50;
  const double mean_squares = dot(tiles.mean.data(), tiles.mean.data(), dim);
  middle_norm_ = norm_above(dot(middle.data(), middle.data(), dim), slack);

  coded_.assign(n, {});
  codes_ = AlignedArray<std::uint8_t>::unset(static_cast<std::size_t>(n * steps * step_bytes));
  for (std::int64_t q = 0; q < n; ++q) {
    Query& query = coded_[q];
    load(book_, squared_, queries_.row(q), w.data());
    const double squares = dot(w.data(), w.data(), dim),
                 of_mean = squared_ ? 0 : dot(w.data(), tiles.mean.data(), dim);
    const double length = norm_above(squares, slack);
    query.length = length + middle_norm_ + 2 * norm_above(mean_squares, slack);
    query.offset = squared_ ? squares / 4 : -of_mean;
    query.size =
        squared_ ? length * length / 2 + 2 * tiles.norm * tiles.norm : length * tiles.row_norm;
    for (std::size_t j = 0; j < w.size(); ++j) w[j] -= middle[j];
    const VectorSize size = kernels.measure(w.data(), dim);
    std::uint8_t* const out = codes_.data() + q * steps * step_bytes;
    query.norm = norm_above(size.squares, slack) + slack * query.length;
    // Of queries that are all the same it is zero.
    query.scale = size.largest > 0 ? scale_for(format_int8, size.largest, query.norm)
                                   : std::max(query.norm, 1e-75);
    if (!std::isfinite(query.norm) || !(query.scale < 1e100)) {
      query.norm = std::numeric_limits<double>::infinity();  // nothing is known of it
      std::fill_n(out, steps * step_bytes, std::uint8_t{0});
      continue;
    }
    const CodeSize coded =
        kernels.encode[format_int8](w.data(), dim, query.scale, 0, out, step_bytes);
    query.error = error_above(coded.error, query.norm, slack) + slack * query.length;
    query.correction = static_cast<std::int32_t>(128 * coded.sum);
  }

  const std::int64_t count = book_.count(), width = book_.width();
  terms_.clear();
  if (middle_norm_ <= least_length && !squared_) return;
  terms_.resize(book_.parts() * count);
  for (std::int64_t m = 0; m < book_.parts(); ++m)
    for (std::int64_t c = 0; c < count; ++c) {
      const float* const centroid = book_.part(m).row(c);
      double of_middle = 0, of_itself = 0;
      for (std::int64_t j = 0; j < width; ++j) {
        const std::size_t at = m * width + j;
        const double v = centroid[j] - tiles.mean[at];
        of_middle += middle[at] * v, of_itself += v * v;
      }
      terms_[m * count + c] = static_cast<float>(of_middle - (squared_ ? of_itself : 0));
    }
}

void CodeProducts::set_rows(std::span<const DecodedRun> runs, bool decoded) {
  runs_.assign(runs.begin(), runs.end());
  panels_ = (runs.back().place + runs.back().rows + panel_rows - 1) / panel_rows;
  scalars_.assign(places(), 0.0f);
  largest_scalar_ = 0;
  for (const DecodedRun& run : runs) {
    if (!run.lists->has_scalars()) continue;
    largest_scalar_ = std::max<double>(largest_scalar_, run.lists->largest_scalar());
    std::copy_n(run.lists->scalars() + run.row, run.rows, scalars_.begin() + run.place);
  }
  if (decoded) decode_rows();
}

void CodeProducts::decode_rows() {
  const CodeTiles& tiles = book_.tiles();
  // Groups are decoded whole.
  const std::size_t wanted = (panels_ + 1) * tiles.panel_bytes();
  if (row_codes_.size() < wanted) row_codes_ = AlignedArray<std::uint8_t>(wanted);
  own_.assign(scalars_.size(), 0.0);
  for (const DecodedRun& run : runs_) {
    const std::uint8_t* const codes = run.lists->groups(run.row, run.rows);
    for (std::int64_t first = 0; first < run.rows; first += code_group_rows)
      tiles.decode(codes + first * run.lists->width(), std::min(code_group_rows, run.rows - first),
                   isa_,
                   row_codes_.data() + (run.place + first) / panel_rows * tiles.panel_bytes());
    if (!terms_.empty()) add_terms(run, codes);
  }
  if (traits_of(metric_).squared)
    for (std::size_t i = 0; i < own_.size(); ++i) own_[i] -= scalars_[i];
  bias_.set(own_, runs_);
  if (!traits_of(metric_).unit_rows) return;
  // Scalars as they are less: the smallest of them counts least.
  for (std::size_t i = 0; i < own_.size(); ++i) own_[i] = -double{scalars_[i]};
  scalar_bias_.set(own_, runs_);
}

// What is the row's own in g, by the kernel that sums up tables.
void CodeProducts::add_terms(const DecodedRun& run, const std::uint8_t* codes) {
  const std::size_t room = run.rows + code_group_rows;
  own_sums_.resize(room), own_numbers_.resize(room);
  all_.assign(run.rows / code_group_rows + 1, ~std::uint64_t{0});
  all_.back() = (std::uint64_t{1} << run.rows % code_group_rows) - 1;
  const CodeSumArgs args{codes,         run.rows,    run.lists->width(), book_.parts(),
                         terms_.data(), all_.data(), own_sums_.data(),   own_numbers_.data()};
  code_kernels(isa_).sums8(&args);
  std::copy_n(own_sums_.begin(), run.rows, own_.begin() + run.place);
}

void CodeProducts::Bias::set(const std::vector<double>& numbers, std::span<const DecodedRun> runs) {
  double least = std::numeric_limits<double>::infinity();
  largest = -least;
  bool finite = true;
  for (const DecodedRun& run : runs)
    for (std::int64_t i = run.place; i < run.place + run.rows; ++i) {
      const double x = numbers[i];
      least = std::min(least, x), largest = std::max(largest, x);
      finite &= std::isfinite(x);
    }
  span = finite ? largest - least : std::numeric_limits<double>::infinity();
  unit = span > 1e-200 && span < 1e200 ? std::ldexp(1.0, std::ilogb(span)) : 1;
  values.resize(numbers.size());
  for (std::size_t i = 0; i < numbers.size(); ++i)
    values[i] = static_cast<float>((numbers[i] - largest) / unit);
}

void CodeProducts::multiply(std::span<const std::uint32_t> queries) {
  const CodeTiles& tiles = book_.tiles();
  group_.assign(queries.begin(), queries.end());
  const std::int64_t steps = tiles.steps();
  GroupSize size = group_12;
  if (queries.size() <= 4) size = queries.size() == 1 ? group_1 : group_4;
  const std::int64_t lanes = group_sizes[size];
  if (group_codes_.size() == 0)
    group_codes_ = AlignedArray<std::uint8_t>(steps * max_group * step_bytes);
  for (std::int64_t lane = 0; lane < lanes; ++lane) {
    const std::size_t q = queries[std::min(static_cast<std::size_t>(lane), queries.size() - 1)];
    const std::uint8_t* const from = codes_.data() + static_cast<std::int64_t>(q) * steps * 4;
    std::uint8_t* const to = group_codes_.data() + lane * step_bytes;
    for (std::int64_t step = 0; step < steps; ++step)
      std::memcpy(to + step * lanes * step_bytes, from + step * step_bytes, step_bytes);
  }
  const std::size_t wanted = max_group * places();
  if (scores_.size() < wanted) scores_ = AlignedArray<std::int32_t>(wanted);
  TileArgs args{};
  args.codes = row_codes_.data(), args.steps = steps;
  args.query_codes = group_codes_.data();
  args.panel = 0, args.panel_end = panels_;
  args.scores = scores_.data(), args.score_stride = places();
  scan_kernels(isa_).scores[size](&args);
}

float* CodeProducts::bounds_of(int lane, float bound) {
  const CodeTiles& tiles = book_.tiles();
  const Query& query = coded_[group_[lane]];
  at_hand_ = &query, per_unit_ = 0;
  const double size = (query.norm + query.error) * tiles.norm;
  if (!(size > 1e-200 && size < 1e200) || !(query.size < most_sum)) return nullptr;
  if (!std::isfinite(bias_.span) || !std::isfinite(scalar_bias_.span)) return nullptr;
  const double per_unit = std::ldexp(1.0, -std::ilogb(size));
  // Of cosine g is lowered by the scalar times this: a key of `bound` at most is what is asked for.
  const bool cosine = traits_of(metric_).unit_rows;
  const double slope = cosine && bound < float_infinity ? 1 - double{bound} : 0;
  const double of_scalars = slope > 0 ? slope * scalar_bias_.largest : -slope * largest_scalar_;
  // The terms of rows are sums of float32.
  const double term_size = middle_norm_ * tiles.norm + (squared_ ? tiles.norm * tiles.norm : 0);
  const double off =
      query.norm * tiles.error + query.error * tiles.norm +
      static_cast<double>(book_.parts() + 4) * (float_slack * term_size + least_slack);
  const double most = bias_.largest + of_scalars + off;
  const double magnitude =
      size + bias_.span + std::abs(bias_.largest) + off + std::abs(slope) * largest_scalar_;
  constexpr double less = 1 - 0x1p-20;
  const auto is_normal = [](float x) {
    return std::isfinite(x) && x >= std::numeric_limits<float>::min();
  };
  ScoreUnits units;
  units.unit = static_cast<float>(query.scale * tiles.scale * per_unit);
  units.bias_unit = static_cast<float>(bias_.unit * per_unit * less);
  units.most = static_cast<float>((most + 0x1p-20 * magnitude) * per_unit + 1e-30);
  const float scalar_unit =
      slope > 0 ? static_cast<float>(slope * scalar_bias_.unit * per_unit * less) : 0;
  if (!std::isfinite(units.unit) || !std::isfinite(units.most) || !is_normal(units.bias_unit) ||
      (slope > 0 && !is_normal(scalar_unit)))
    return nullptr;
  units_.assign(panels_, units);
  bounds_.resize(places());
  scan_kernels(isa_).upper_ends(scores_.data() + lane * places(), query.correction,
                                bias_.values.data(), units_.data(), panels_, bounds_.data());
  if (slope > 0)
    for (std::size_t i = 0; i < bounds_.size(); ++i)
      bounds_[i] += scalar_unit * scalar_bias_.values[i];
  for (std::size_t r = 0; r < runs_.size(); ++r)
    std::fill(bounds_.begin() + runs_[r].place + runs_[r].rows,
              r + 1 < runs_.size() ? bounds_.begin() + runs_[r + 1].place : bounds_.end(),
              -float_infinity);
  per_unit_ = per_unit;
  return bounds_.data();
}

float CodeProducts::least_of(float term, float bound) const {
  if (!(bound < float_infinity)) return -largest_float;
  const CodeTiles& tiles = book_.tiles();
  const bool cosine = traits_of(metric_).unit_rows;
  // What the float32 roundings of a key may take off it, and those of float64 before.
  const double of_bound = cosine ? (std::abs(double{bound} - 1) + 1) * largest_scalar_
                                 : largest_scalar_ + std::abs(double{bound});
  const double factor = cosine ? 1 + largest_scalar_ : 1;
  const double room = static_cast<double>(book_.parts() + 8) * float_slack *
                          (at_hand_->size + std::abs(double{term}) + of_bound) +
                      static_cast<double>(book_.parts() + 8) * least_slack * factor +
                      0x1p-40 * at_hand_->length * (tiles.norm + tiles.row_norm);
  const double least =
      (double{term} + at_hand_->offset - (cosine ? 0 : double{bound}) - room) * per_unit_;
  if (!(least > -1e30)) return -largest_float;
  const double bounded = std::min(least, 1e30);
  return static_cast<float>(bounded - std::abs(bounded) * 0x1p-22 - 1e-30);
}

void CodeProducts::sums(std::uint32_t query, const std::uint32_t* at, std::int64_t count,
                        float* out) {
  std::int64_t done = 0;
  for (const DecodedRun& run : runs_) {
    in_run_.clear();
    while (done + std::ssize(in_run_) < count &&
           at[done + std::ssize(in_run_)] < run.place + run.rows)
      in_run_.push_back(at[done + std::ssize(in_run_)] - static_cast<std::uint32_t>(run.place));
    if (in_run_.empty()) continue;
    const DirectSumArgs args{run.lists->groups(run.row, run.rows),
                             run.rows,
                             book_.parts(),
                             book_.width(),
                             book_.centroids().data(),
                             queries_.row(query),
                             squared_,
                             in_run_.data(),
                             std::ssize(in_run_),
                             out + done};
    code_kernels(isa_).direct_sums8(&args);
    done += std::ssize(in_run_);
  }
}

}  // namespace knear::detail
