#include "knear/index/plain_search.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "knear/core/cpu.hpp"
#include "knear/core/error.hpp"
#include "knear/core/public_call.hpp"
#include "knear/core/threads.hpp"
#include "knear/distance/exact.hpp"
#include "knear/distance/exact_neighbors.hpp"
#include "knear/index/impl/index_impl.hpp"
#include "knear/quantize/plain_kernels.hpp"
#include "knear/scan/kernels/code_key.hpp"

namespace knear::detail {
namespace {

constexpr double unit = 0x1p-24;  // of a rounding to float
constexpr std::int64_t queries_together = 1024;
// Rows whose sums are made before any is looked at: they stay in the first cache.
constexpr std::int64_t rows_together = 128;

// The rows of a list, or all.
struct AllRows {
  static constexpr bool scattered = false;  // over memory
  std::int64_t n;
  std::int64_t size() const { return n; }
  Id operator[](std::int64_t i) const { return i; }
};
struct SomeRows {
  static constexpr bool scattered = true;
  std::span<const Id> rows;
  std::int64_t size() const { return std::ssize(rows); }
  Id operator[](std::int64_t i) const { return rows[i]; }
};

double length_of(const float* x, std::int64_t n) {
  double sum = 0;
  for (std::int64_t j = 0; j < n; ++j) sum += double{x[j]} * x[j];
  return std::sqrt(sum);
}

void unpack_4_bits(const std::uint8_t* in, std::int64_t n, std::uint8_t* out) {
  for (std::int64_t b = 0; b < n / 2; ++b) out[2 * b] = in[b] & 15, out[2 * b + 1] = in[b] >> 4;
  if (n % 2 == 1) out[n - 1] = in[n / 2] & 15;
}

static_assert(std::endian::native == std::endian::little);  // as codes are
void unpack_6_bits(const std::uint8_t* in, std::int64_t n, std::uint8_t* out) {
  std::int64_t j = 0;
  // Six bytes of a word at a time, whose numbers are moved to bytes of their own in three steps.
  for (; j + 11 <= n; j += 8, in += 6) {
    std::uint64_t word;
    std::memcpy(&word, in, sizeof word);
    word = (word & 0xffffff) | (word << 8 & 0xffffff00000000);
    word = (word & 0xfff00000fff) | (word << 4 & 0xfff00000fff0000);
    word = (word & 0x3f003f003f003f) | (word << 2 & 0x3f003f003f003f00);
    std::memcpy(out + j, &word, sizeof word);
  }
  for (std::int64_t bit = 0; j < n; ++j, bit += 6) {
    const int low = in[bit / 8] >> bit % 8,
              high = bit % 8 > 2 ? in[bit / 8 + 1] << (8 - bit % 8) : 0;
    out[j] = static_cast<std::uint8_t>((low | high) & 63);
  }
}

}  // namespace

std::pair<std::vector<Id>, std::vector<Id>> rows_by_list(std::span<const Id> list_of,
                                                         std::int64_t lists) {
  std::vector<Id> rows(list_of.size()), begin(static_cast<std::size_t>(lists) + 1);
  for (const Id list : list_of) ++begin[list + 1];
  std::partial_sum(begin.begin(), begin.end(), begin.begin());
  std::vector<Id> next(begin.begin(), begin.end() - 1);
  for (std::size_t i = 0; i < list_of.size(); ++i) rows[next[list_of[i]]++] = static_cast<Id>(i);
  return {std::move(rows), std::move(begin)};
}

PlainSearch::Kind PlainSearch::kind_of(std::string_view name) {
  if (name == "8") return Kind::codes8;
  if (name == "4") return Kind::codes4;
  if (name == "6") return Kind::bits6;
  if (name == "fp16") return Kind::f16;
  if (name == "bf16") return Kind::bf16;
  if (name == "f32") return Kind::f32;
  throw InvalidArgument("kind must be 8, 4, 6, fp16, bf16 or f32, but is {}", name);
}

PlainSearch::PlainSearch(const Options& options)
    : kind_(options.kind), metric_(options.metric), dim_(options.dim) {
  check_by_products(metric_, "a search of rows by FAISS's codes");
  if (traits_of(metric_).unit_rows)
    throw InvalidArgument("metric must be l2 or ip, but is {}", name_of(metric_));
  if (is_codes()) {
    const auto state = options.like ? options.like->body().one().state() : nullptr;
    const ScalarCode code = kind_ == Kind::codes8 ? ScalarCode::bits8 : ScalarCode::bits4;
    const ScalarQuantizer* const levels =
        state && state->coder ? state->coder->quantizer().levels() : nullptr;
    if (!levels || levels->code() != code || levels->dim() != dim_ ||
        options.like->body().one().shape.metric != metric_)
      throw InvalidArgument("like must be an index of such codes and of the same metric");
    coder_ = state->coder;
    const ScalarQuantizer& scalar = *levels;
    low_.assign(scalar.low().begin(), scalar.low().end());
    step_.assign(scalar.step().begin(), scalar.step().end());
    last_ = kind_ == Kind::codes8 ? 255 : 15;
    double squares = 0;
    for (std::size_t j = 0; j < low_.size(); ++j) {
      const double most =
          std::max(std::abs(double{low_[j]}), std::abs(low_[j] + last_ * double{step_[j]}));
      squares += most * most;
    }
    longest_ = std::sqrt(squares);
    if (state->coarse) lists_ = state->coarse->lists();
    if (state->coarse && coder_->shape().residual) {
      const MatrixView<float> from = state->coarse->centroids();
      own_centroids_ = Matrix<float>(from.rows(), from.cols());
      std::vector<double> middle(dim_);
      for (std::int64_t l = 0; l < from.rows(); ++l) {
        std::copy_n(from.row(l), dim_, own_centroids_.row(l));
        for (std::int64_t j = 0; j < dim_; ++j)
          middle[j] += double{from.row(l)[j]} / static_cast<double>(from.rows());
      }
      for (std::int64_t l = 0; l < from.rows(); ++l) {
        double sum = 0;
        for (std::int64_t j = 0; j < dim_; ++j) {
          const double apart = from.row(l)[j] - middle[j];
          sum += apart * apart;
        }
        apart_.push_back(std::sqrt(sum));
      }
    }
  } else {
    if (kind_ == Kind::bits6) {
      if (std::ssize(options.low) != dim_ || std::ssize(options.span) != dim_)
        throw ShapeMismatch("low and span have {} and {} numbers, but {} are due",
                            options.low.size(), options.span.size(), dim_);
      least_.assign(options.low.begin(), options.low.end());
      span_.assign(options.span.begin(), options.span.end());
      last_ = 63;
      for (std::size_t j = 0; j < least_.size(); ++j) {
        low_.push_back(static_cast<float>(least_[j] + 0.5 / last_ * span_[j]));
        step_.push_back(static_cast<float>(span_[j] / last_));
      }
    }
    if (options.centroids.cols() > 0) {
      if (options.centroids.cols() != dim_)
        throw ShapeMismatch("centroids have {} columns, rows {}", options.centroids.cols(), dim_);
      own_centroids_ = Matrix<float>(options.centroids.rows(), dim_);
      for (std::int64_t l = 0; l < options.centroids.rows(); ++l)
        std::copy_n(options.centroids.row(l), dim_, own_centroids_.row(l));
      lists_ = options.centroids.rows();
    }
  }
  if (own_centroids_.cols() > 0) centroids_ = own_centroids_.view();
  if (options.coarse.cols() > 0) {
    if (options.coarse.cols() != dim_)
      throw ShapeMismatch("coarse has {} columns, rows {}", options.coarse.cols(), dim_);
    coarse_rows_ = Matrix<float>(options.coarse.rows(), dim_);
    for (std::int64_t l = 0; l < options.coarse.rows(); ++l)
      std::copy_n(options.coarse.row(l), dim_, coarse_rows_.row(l));
    coarse_ =
        std::make_unique<PlainSearch>(Options{.kind = Kind::f32, .metric = metric_, .dim = dim_});
    lists_ = options.coarse.rows();
  }
}

std::optional<PlainSearch::Answer> PlainSearch::nearest(const Rows& rows, MatrixView<float> queries,
                                                        std::int64_t probes, std::int64_t k,
                                                        int threads) const {
  if (!coarse_) throw InvalidArgument("probes are {}, but there are no lists", probes);
  if (probes < 1 || probes > lists_)
    throw InvalidArgument("probes must be from 1 to {}, but are {}", lists_, probes);
  const Rows centroids{.bytes = reinterpret_cast<const std::uint8_t*>(coarse_rows_.data()),
                       .n = lists_};
  const std::optional<Answer> lists =
      coarse_->nearest(centroids, queries, MatrixView<Id>(), probes, threads);
  if (!lists) return {};
  return nearest(rows, queries, lists->neighbors.ids.view(), k, threads);
}

PlainSearch::~PlainSearch() = default;

std::int64_t PlainSearch::row_bytes() const {
  switch (kind_) {
    case Kind::codes8:
      return dim_;
    case Kind::codes4:
      return (dim_ + 1) / 2;
    case Kind::bits6:
      return (6 * dim_ + 7) / 8;
    case Kind::f16:
    case Kind::bf16:
      return 2 * dim_;
    case Kind::f32:
      break;
  }
  return 4 * dim_;
}

// Some queries, from the comparison of all rows in their lists to the answer. One thread's.
class PlainSearch::Block {
 public:
  // probes [queries x p]: no_id behind all others.
  Block(const PlainSearch& of, const Rows& rows, MatrixView<float> queries, MatrixView<Id> probes,
        std::int64_t k)
      : of_(of),
        rows_(rows),
        queries_(queries),
        probes_(probes),
        k_(k),
        squared_(!larger_is_nearer(of.metric_)),
        states_(queries.rows()) {
    for (State& state : states_) state.cut_at = first_cut();
    switch (of.kind_) {
      case Kind::codes8:
      case Kind::codes4:
      case Kind::bits6:
        compare_ = kernels_.of_bytes;
        break;
      case Kind::f16:
        compare_ = kernels_.of_f16;
        break;
      case Kind::bf16:
        compare_ = kernels_.of_bf16;
        break;
      case Kind::f32:
        compare_ = kernels_.of_f32;
        break;
    }
    if (of.kind_ == Kind::codes4 || of.kind_ == Kind::bits6)
      numbers_.resize(rows_together * of.dim_);
  }

  // Compares all rows; false: a number is not finite. rows_of(list) are those of a list.
  template <class RowsOf>
  bool compare(RowsOf rows_of) {
    std::vector<Pair> pairs;
    for (std::int64_t q = 0; q < queries_.rows(); ++q) {
      if (probes_.cols() == 0) pairs.push_back({0, q, 0});
      for (std::int64_t p = 0; p < probes_.cols() && probes_.row(q)[p] != no_id; ++p)
        pairs.push_back({probes_.row(q)[p], q, p});
    }
    std::stable_sort(pairs.begin(), pairs.end(),
                     [](const Pair& a, const Pair& b) { return a.list < b.list; });
    for (std::size_t first = 0, end = 0; first < pairs.size(); first = end) {
      while (end < pairs.size() && pairs[end].list == pairs[first].list) ++end;
      const std::span<Pair> some = std::span(pairs).subspan(first, end - first);
      const auto rows = rows_of(some.front().list);
      probed += rows.size() * std::ssize(some);
      if (rows.size() == 0) continue;
      targets_.resize(some.size() * static_cast<std::size_t>(of_.dim_));
      for (std::size_t i = 0; i < some.size(); ++i) {
        prepare(some[i], targets_.data() + i * static_cast<std::size_t>(of_.dim_));
        if (!std::isfinite(some[i].base) || !std::isfinite(states_of(some[i]).error)) return false;
      }
      if (!compare_list(some, rows)) return false;
    }
    return true;
  }

  // Puts the answers of the queries into rows `first` and following of `out`.
  void measure(std::int64_t first, ExactNeighbors& out) {
    Matrix<float> terms;
    if (of_.is_codes() && of_.centroids_.cols() > 0)
      terms = of_.coder_->terms(queries_, probes_, 1);
    std::vector<std::pair<double, Id>> near;
    for (std::int64_t q = 0; q < queries_.rows(); ++q) {
      State& state = states_[q];
      cut(state);
      near.clear();
      if (of_.is_codes())
        measure_codes(q, state, terms, near);
      else
        measure_vectors(q, state, near);
      const std::int64_t count = std::min(out.columns(), std::ssize(near));
      std::partial_sort(near.begin(), near.begin() + count, near.end());
      for (std::int64_t i = 0; i < out.columns(); ++i) {
        const std::size_t at = i;
        out.keys.row(first + q)[i] =
            i < count ? near[at].first : std::numeric_limits<double>::infinity();
        out.ids.row(first + q)[i] = i < count ? near[at].second : no_id;
      }
    }
  }

  std::int64_t probed = 0;

 private:
  struct Pair {
    Id list;
    std::int64_t query, probe;
    float base = 0;  // of products: what does not depend on the row
  };
  struct Candidate {
    float key;
    std::uint32_t probe;
    std::int64_t row;
  };
  struct State {
    std::vector<Candidate> found;
    double kth = std::numeric_limits<double>::infinity();  // key of the k-th nearest so far
    float limit = std::numeric_limits<float>::infinity();  // of keys of rows that may be among k
    std::size_t cut_at = 0;                                // candidates
    double error = 0;                                      // of keys, whatever they are
    double apart = 0;  // of squares: the error of a difference, as a length
    double size = 0;   // of products: the largest sum of absolute values
  };

  State& states_of(const Pair& pair) { return states_[pair.query]; }
  std::size_t first_cut() const { return 2 * k_ + 128; }

  // Writes what rows are compared with [dim], and notes what it is wrong by.
  void prepare(Pair& pair, float* to) {
    const std::int64_t n = of_.dim_;
    const double share = static_cast<double>(n + 16) * unit;
    const float* const query = queries_.row(pair.query);
    const float* const centroid =
        of_.centroids_.cols() > 0 ? of_.centroids_.row(pair.list) : nullptr;
    const bool numbers = !of_.low_.empty();
    State& state = states_of(pair);
    double beside = 0, sizes = 0, apart = 0;
    for (std::int64_t j = 0; j < n; ++j) {
      const std::size_t at = j;
      const double c = centroid ? centroid[j] : 0, low = numbers ? of_.low_[at] : 0,
                   step = numbers ? of_.step_[at] : 1, q = query[j];
      if (squared_) {
        to[j] = static_cast<float>(q - c - low);
        const double size = std::abs(q) + std::abs(c) + std::abs(low) + of_.last_ * std::abs(step);
        sizes += size * size;
        apart += (q - c) * (q - c);
      } else {
        to[j] = static_cast<float>(-q * step);
        beside -= q * (c + low);
        sizes += std::abs(q) * (std::abs(c) + std::abs(low));
      }
    }
    if (squared_) {
      state.apart = std::max(state.apart, 8 * unit * std::sqrt(sizes));
      if (of_.is_codes() && centroid) {
        // |q - c|^2, |r|^2 + 2 <c - m, r> and the products of -2 (q - m) and r are added as floats.
        const double r = of_.longest_, m = of_.apart_[pair.list];
        state.error =
            std::max(state.error, share * (apart + r * r + r * (4 * m + 2 * std::sqrt(apart))));
      }
    } else {
      pair.base = static_cast<float>(beside);
      const double codes =
          of_.is_codes()
              ? length_of(query, n) * (of_.longest_ + (centroid ? length_of(centroid, n) : 0))
              : 0;
      state.error = std::max(state.error, share * (sizes + codes));
    }
    set_limit(state);
  }

  template <class List>
  bool compare_list(std::span<Pair> pairs, const List& list) {
    const std::int64_t bytes = of_.row_bytes(), n = of_.dim_;
    const std::uint8_t* rows[rows_together];
    Id numbers[rows_together];
    for (std::int64_t i = 0; i < list.size();) {
      std::int64_t count = 0;
      for (; i < list.size() && count < rows_together; ++i) {
        const Id row = list[i];
        if (!rows_.allowed.empty() && rows_.allowed[row] == 0) continue;
        numbers[count] = row;
        rows[count++] = rows_.bytes + row * bytes;
      }
      if (!numbers_.empty())
        for (std::int64_t r = 0; r < count; ++r) {
          std::uint8_t* const to = numbers_.data() + r * n;
          (of_.kind_ == Kind::codes4 ? unpack_4_bits : unpack_6_bits)(rows[r], n, to);
          rows[r] = to;
        }
      // Rows all over memory are asked for while those before them are compared.
      const std::uint8_t* later[rows_together];
      const std::int64_t coming =
          List::scattered ? std::min<std::int64_t>(count, list.size() - i) : 0;
      for (std::int64_t r = 0; r < coming; ++r) later[r] = rows_.bytes + list[i + r] * bytes;
      for (std::size_t p = 0; p < pairs.size(); p += PlainComparison::most_queries)
        if (!compare_rows(pairs, p, rows, numbers, count, {later, p == 0 ? coming : 0, bytes}))
          return false;
    }
    return true;
  }

  bool compare_rows(std::span<Pair> pairs, std::size_t first, const std::uint8_t* const* rows,
                    const Id* numbers, std::int64_t count, PlainComparison::Later later) {
    constexpr int most = PlainComparison::most_queries;
    float sums[most][rows_together], sizes[most][rows_together];
    const int queries = static_cast<int>(std::min<std::size_t>(most, pairs.size() - first));
    PlainComparison with{.rows = rows,
                         .count = count,
                         .n = of_.dim_,
                         .queries = {},
                         .scale = of_.step_.empty() ? nullptr : of_.step_.data(),
                         .sums = {},
                         .sizes = {},
                         .later = later};
    for (int q = 0; q < queries; ++q) {
      with.queries[q] = targets_.data() +
                        (first + static_cast<std::size_t>(q)) * static_cast<std::size_t>(of_.dim_);
      with.sums[q] = sums[q], with.sizes[q] = sizes[q];
    }
    if (!(squared_ ? compare_.squares : compare_.products)(with, queries)) return false;
    for (int q = 0; q < queries; ++q) {
      const Pair& pair = pairs[first + static_cast<std::size_t>(q)];
      State& state = states_of(pair);
      if (!squared_) {
        float size = 0;
        for (std::int64_t r = 0; r < count; ++r) size = std::max(size, sizes[q][r]);
        if (size > state.size) {
          state.size = size;
          set_limit(state);
        }
      }
      const float base = pair.base;
      float limit = state.limit;
      for (std::int64_t r = 0; r < count; ++r) {
        const float key = base + sums[q][r];
        if (key > limit) continue;
        state.found.push_back({key, static_cast<std::uint32_t>(pair.probe), numbers[r]});
        if (state.found.size() < state.cut_at) continue;
        cut(state);
        limit = state.limit;
      }
    }
    return true;
  }

  // The largest key of a row that may be among the nearest k, where these have keys up to `kth`.
  // With the error e(x) of a key x, x - e(x) > kth + e(kth) has to hold for all that are larger.
  // For squares e(x) is at least apart^2 and grows by 2 apart sqrt(x), so that 8 e(kth) suffice.
  void set_limit(State& state) const {
    const double share = static_cast<double>(2 * of_.dim_ + 40) * unit, key = state.kth;
    const double error = squared_
                             ? 8 * (state.error + share * key +
                                    state.apart * (2 * std::sqrt(std::max(0.0, key)) + state.apart))
                             : 3 * (state.error + share * state.size);
    state.limit =
        std::nextafter(static_cast<float>(key + error), std::numeric_limits<float>::infinity());
  }

  // Drops each candidate that has k others which are certainly nearer.
  void cut(State& state) const {
    if (std::ssize(state.found) <= k_ || k_ == 0) return;
    const auto nearer = [](const Candidate& a, const Candidate& b) { return a.key < b.key; };
    const auto kth = state.found.begin() + (k_ - 1);
    std::nth_element(state.found.begin(), kth, state.found.end(), nearer);
    state.kth = kth->key;
    set_limit(state);
    std::erase_if(state.found, [&](const Candidate& one) { return one.key > state.limit; });
    state.cut_at = std::max(first_cut(), 2 * state.found.size());
  }

  // Levels are computed, as tables of them would have to be fetched. The sum is that of CodeBook.
  void measure_codes(std::int64_t q, const State& state, const Matrix<float>& terms,
                     std::vector<std::pair<double, Id>>& out) {
    const RowCoder& coder = *of_.coder_;
    prepared_.resize(of_.dim_);
    decoded_.resize(prepared_.size());
    coder.prepare(queries_, q, prepared_.data());
    const bool squares = coder.squared(), scalars = coder.has_scalars();
    const ScalarQuantizer& levels = *coder.quantizer().levels();
    for (const Candidate& one : state.found) {
      levels.decode_one(rows_.bytes + one.row * coder.code_size(), decoded_.data());
      float sum = 0;
      for (std::size_t j = 0; j < decoded_.size(); ++j) {
        const double x = decoded_[j], y = prepared_[j];
        sum += static_cast<float>(squares ? (y - x) * (y - x) : y * x);
      }
      const Id list = probes_.cols() > 0 ? probes_.row(q)[one.probe] : 0;
      const float scalar = scalars ? coder.scalar_of(decoded_.data(), list) : 0;
      const float term = terms.cols() > 0 ? terms.row(q)[one.probe] : 0;
      out.emplace_back(code_key(of_.metric_, term, sum, scalar), one.row);
    }
  }

  void measure_vectors(std::int64_t q, const State& state,
                       std::vector<std::pair<double, Id>>& out) {
    const bool as_they_are = of_.kind_ != Kind::bits6 && of_.centroids_.cols() == 0;
    const ElementType type = of_.kind_ == Kind::f16    ? ElementType::f16
                             : of_.kind_ == Kind::bf16 ? ElementType::bf16
                                                       : ElementType::f32;
    ExactDistance distance(of_.metric_, as_they_are ? type : ElementType::f32);
    distance.set_query(queries_, q);
    std::vector<float> vector(as_they_are ? 0 : static_cast<std::size_t>(of_.dim_));
    for (const Candidate& one : state.found) {
      const std::uint8_t* const row = rows_.bytes + one.row * of_.row_bytes();
      if (!as_they_are)
        decode(row, of_.centroids_.cols() > 0 ? probes_.row(q)[one.probe] : no_id, vector);
      out.emplace_back(distance.key(as_they_are ? static_cast<const void*>(row) : vector.data()),
                       one.row);
    }
  }

  // What a row stands for, each step rounded to float as knear.faiss does.
  void decode(const std::uint8_t* row, Id list, std::vector<float>& out) {
    std::vector<std::uint8_t> numbers;
    if (of_.kind_ == Kind::bits6) {
      numbers.resize(out.size());
      unpack_6_bits(row, of_.dim_, numbers.data());
    }
    for (std::size_t j = 0; j < out.size(); ++j) {
      switch (of_.kind_) {
        case Kind::bits6: {
          const float middle = static_cast<float>(numbers[j]) + 0.5f;
          out[j] = of_.least_[j] + middle / 63.0f * of_.span_[j];
          break;
        }
        case Kind::f16:
          out[j] = to_float(reinterpret_cast<const f16*>(row)[j]);
          break;
        case Kind::bf16:
          out[j] = to_float(reinterpret_cast<const bf16*>(row)[j]);
          break;
        default:
          out[j] = reinterpret_cast<const float*>(row)[j];
      }
      if (list != no_id) out[j] += of_.centroids_.row(list)[j];
    }
  }

  const PlainSearch& of_;
  const Rows& rows_;
  const MatrixView<float> queries_;
  const MatrixView<Id> probes_;
  const std::int64_t k_;
  const bool squared_;
  const PlainKernels& kernels_ = plain_kernels(active_isa());
  PlainKernels::Comparisons compare_{};
  std::vector<State> states_;
  std::vector<float> targets_;         // [pairs of a list x dim]
  std::vector<std::uint8_t> numbers_;  // [rows_together x dim]
  std::vector<double> prepared_;       // [dim]
  std::vector<float> decoded_;         // [dim]
};

std::optional<PlainSearch::Answer> PlainSearch::nearest(const Rows& rows, MatrixView<float> queries,
                                                        MatrixView<Id> probes, std::int64_t k,
                                                        int threads) const {
  return public_call([&]() -> std::optional<Answer> {
    threads = resolve_threads(threads);
    // The lists of each query, those that are no_id last.
    Matrix<Id> lists(probes.rows(), probes.cols());
    Id most = lists_ > 0 ? lists_ : std::ssize(rows.begin) - 1;
    for (std::int64_t q = 0; q < probes.rows(); ++q) {
      Id* const end = std::copy_if(probes.row(q), probes.row(q) + probes.cols(), lists.row(q),
                                   [](Id list) { return list != no_id; });
      std::fill(end, lists.row(q) + probes.cols(), no_id);
      for (const Id* list = lists.row(q); list < end; ++list) {
        if (*list < 0 || (lists_ > 0 && *list >= lists_))
          throw InvalidArgument("probes hold {}, but there are {} lists", *list, lists_);
        most = std::max(most, *list + 1);
      }
    }
    // The rows of these lists.
    std::vector<Id> begin, by_list;
    std::span<const Id> begins = rows.begin, listed = rows.by_list;
    if (probes.cols() > 0 && begins.empty()) {
      std::vector<std::uint8_t> wanted(most);
      for (std::int64_t i = 0; i < lists.rows() * lists.cols(); ++i)
        if (lists.data()[i] != no_id) wanted[lists.data()[i]] = 1;
      std::vector<Id> places;
      begin.resize(wanted.size() + 1);
      for (std::int64_t i = 0; i < rows.n; ++i) {
        const std::size_t list = rows.list_of[i];
        if (list < wanted.size() && wanted[list]) places.push_back(i), ++begin[list + 1];
      }
      std::partial_sum(begin.begin(), begin.end(), begin.begin());
      std::vector<Id> next(begin.begin(), begin.end() - 1);
      by_list.resize(places.size());
      for (const Id row : places) by_list[next[rows.list_of[row]]++] = row;
      begins = begin, listed = by_list;
    }
    const auto rows_of = [&](Id list) {
      const std::size_t at = list;
      if (at + 1 >= begins.size()) return SomeRows{};
      return SomeRows{listed.subspan(begins[at], begins[at + 1] - begins[at])};
    };
    const std::int64_t n = queries.rows();
    const std::int64_t together =
        std::clamp<std::int64_t>((n + threads - 1) / threads, 1, queries_together);
    const std::int64_t tasks = (n + together - 1) / together;
    ExactNeighbors found(n, std::min(k, rows.n));
    std::vector<std::int64_t> probed(tasks, -1);
    parallel_for(threads, tasks, [&](std::int64_t task) {
      const std::int64_t first = task * together, end = std::min(n, first + together);
      Block block(*this, rows, queries.rows(first, end),
                  probes.cols() > 0 ? lists.view().rows(first, end) : MatrixView<Id>(),
                  found.columns());
      if (!(probes.cols() > 0 ? block.compare(rows_of)
                              : block.compare([&](Id) { return AllRows{rows.n}; })))
        return;
      block.measure(first, found);
      probed[task] = block.probed;
    });
    if (std::find(probed.begin(), probed.end(), -1) != probed.end()) return {};
    return Answer{rounded(found, metric_, n, k, threads),
                  std::accumulate(probed.begin(), probed.end(), std::int64_t{0})};
  });
}

}  // namespace knear::detail
