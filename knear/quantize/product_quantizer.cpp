// Codebooks of the parts, one k-means each; codes by the scan for the nearest centroid.
#include "knear/quantize/product_quantizer.hpp"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "knear/cluster/centroid_scan.hpp"
#include "knear/cluster/codebook.hpp"
#include "knear/core/error.hpp"
#include "knear/core/public_call.hpp"
#include "knear/core/sample.hpp"
#include "knear/core/threads.hpp"
#include "knear/core/value_range.hpp"
#include "knear/scan/methods/few_rows_scan.hpp"
#include "knear/scan/packing/code_book.hpp"

namespace knear {
namespace {

using detail::FewRowsScan;

// Columns [first, first + count) of rows.
AnyMatrixView columns(AnyMatrixView rows, std::int64_t first, std::int64_t count) {
  return {rows.type(), static_cast<const std::byte*>(rows.data()) + first * size_of(rows.type()),
          rows.rows(), count, rows.stride()};
}

void check_shape(std::int64_t dim, std::int64_t sub_quantizers, int bits) {
  if (bits != 4 && bits != 8) throw InvalidArgument("bits must be 4 or 8, but is {}", bits);
  if (dim < 1 || dim > 65536)
    throw InvalidArgument("rows must have between 1 and 65536 columns, but has {}", dim);
  if (sub_quantizers < 1 || dim % sub_quantizers != 0)
    throw InvalidArgument("sub_quantizers must divide the columns, which are {}, but is {}", dim,
                          sub_quantizers);
}

// The progress of tasks that run at once: the mean of theirs.
class SharedProgress {
 public:
  SharedProgress(const Progress& progress, std::string_view stage, std::int64_t tasks)
      : progress_(progress), stage_(stage), done_(tasks) {}

  Progress of(std::int64_t task) {
    if (!progress_) return {};
    return [this, task](std::string_view, double fraction) {
      const std::lock_guard lock(mutex_);
      double& mine = done_[task];
      sum_ += fraction - mine, mine = fraction;
      return progress_(stage_, std::min(1.0, sum_ / static_cast<double>(done_.size())));
    };
  }

 private:
  const Progress& progress_;
  std::string_view stage_;
  std::mutex mutex_;
  std::vector<double> done_;
  double sum_ = 0;
};

}  // namespace

struct ProductQuantizer::State {
  detail::CodeBook book;
  std::int64_t dim, parts;  // parts: sub-quantisers
  int bits;
  std::int64_t count() const { return book.count(); }
  std::int64_t width() const { return book.width(); }
  std::int64_t code_size() const { return book.code_size(); }
  MatrixView<float> part(std::int64_t m) const { return book.part(m); }

  State(Matrix<float> all, std::int64_t sub_quantizers, int bits_)
      : book(std::move(all), sub_quantizers, bits_),
        dim(book.dim()),
        parts(sub_quantizers),
        bits(bits_) {}

  bool suits_registers() const { return FewRowsScan::suits(count(), width()); }
  // One for each part, where they suit. They are made by the first call, since codes of scalar
  // quantisers need none.
  const std::vector<FewRowsScan>& scans() const {
    std::call_once(once_, [&] {
      for (std::int64_t m = 0; m < parts; ++m) scans_.emplace_back(part(m));
    });
    return scans_;
  }

  void put(std::uint8_t* code, std::int64_t m, std::uint32_t centroid) const {
    if (bits == 8)
      code[m] = static_cast<std::uint8_t>(centroid);
    else
      code[m / 2] = static_cast<std::uint8_t>(code[m / 2] | centroid << (m % 2 * 4));
  }
  std::int64_t get(const std::uint8_t* code, std::int64_t m) const { return book.get(code, 1, m); }

  void encode_in_registers(AnyMatrixView rows, int threads, const Progress& progress,
                           Matrix<std::uint8_t>& codes) const;
  void encode_by_codes(AnyMatrixView rows, int threads, const Progress& progress,
                       Matrix<std::uint8_t>& codes) const;
  void check_codes(MatrixView<std::uint8_t> codes, std::string_view argument) const {
    if (codes.cols() != code_size())
      throw ShapeMismatch("{} have {} columns, the quantizer's codes {}", argument, codes.cols(),
                          code_size());
  }
  void check_vectors(AnyMatrixView vectors, std::string_view argument) const {
    if (vectors.cols() != dim)
      throw ShapeMismatch("{} have {} columns, the quantizer {}", argument, vectors.cols(), dim);
  }

 private:
  mutable std::once_flag once_;
  mutable std::vector<FewRowsScan> scans_;
};

ProductQuantizer::ProductQuantizer(std::shared_ptr<const State> state) : state_(std::move(state)) {}

ProductQuantizer ProductQuantizer::train(AnyMatrixView rows, std::int64_t sub_quantizers, int bits,
                                         const ProductQuantizerOptions& options) {
  return detail::public_call([&] {
    check_shape(rows.cols(), sub_quantizers, bits);
    const std::int64_t count = std::int64_t{1} << bits, width = rows.cols() / sub_quantizers;
    if (rows.rows() < count)
      throw InvalidArgument("rows are {}, but {} bits take {} at least", rows.rows(), bits, count);
    if (options.iterations < 0)
      throw InvalidArgument("iterations must not be negative, but is {}", options.iterations);
    if (options.most_rows < 0 || (options.most_rows > 0 && options.most_rows < count))
      throw InvalidArgument("most_rows must be 0 or at least {}, but is {}", count,
                            options.most_rows);
    const int threads = resolve_threads(options.threads);
    AnyMatrix sample;
    rows = detail::sampled_rows(rows, options.most_rows, options.seed, sample);
    find_value_range(rows, Metric::l2, "rows", threads);
    check_float32_tells_apart(rows, "rows", "codes");

    Matrix<float> centroids(sub_quantizers * count, width);
    SharedProgress progress(options.progress, "train quantizer", sub_quantizers);
    // All threads have sub-quantisers of their own, or all work on one.
    const bool apart = sub_quantizers >= threads;
    parallel_for(apart ? threads : 1, sub_quantizers, [&](std::int64_t m) {
      // Parts of rows lie apart: copied together once for all iterations.
      std::vector<std::int64_t> all(rows.rows());
      std::iota(all.begin(), all.end(), 0);
      const AnyMatrix part = detail::rows_at(columns(rows, m * width, width), all);
      KMeansOptions each;
      each.iterations = options.iterations;
      each.seed = options.seed + static_cast<std::uint64_t>(m);
      each.threads = apart ? 1 : threads;
      each.progress = progress.of(m);
      const Matrix<float> found = detail::codebook(part.view(), count, each);
      std::copy_n(found.data(), count * width, centroids.row(m * count));
    });
    return ProductQuantizer(
        std::make_shared<const State>(std::move(centroids), sub_quantizers, bits));
  });
}

ProductQuantizer ProductQuantizer::from_centroids(MatrixView<float> centroids,
                                                  std::int64_t sub_quantizers, int bits) {
  return detail::public_call([&] {
    Matrix<float> own = Matrix<float>::unset(centroids.rows(), centroids.cols());
    for (std::int64_t c = 0; c < centroids.rows(); ++c)
      std::copy_n(centroids.row(c), centroids.cols(), own.row(c));
    return from_centroids(std::move(own), sub_quantizers, bits);
  });
}

ProductQuantizer ProductQuantizer::from_centroids(Matrix<float>&& centroids,
                                                  std::int64_t sub_quantizers, int bits) {
  return detail::public_call([&] {
    if (sub_quantizers < 1)
      throw InvalidArgument("sub_quantizers must be at least 1, but is {}", sub_quantizers);
    check_shape(centroids.cols() * sub_quantizers, sub_quantizers, bits);
    if (centroids.rows() != sub_quantizers << bits)
      throw ShapeMismatch("centroids are {}, but {} sub-quantizers of {} bits have {}",
                          centroids.rows(), sub_quantizers, bits, sub_quantizers << bits);
    find_value_range(centroids.view(), Metric::l2, "centroids", 1);
    return ProductQuantizer(
        std::make_shared<const State>(std::move(centroids), sub_quantizers, bits));
  });
}

std::int64_t ProductQuantizer::dim() const { return state_->dim; }
std::int64_t ProductQuantizer::sub_quantizers() const { return state_->parts; }
int ProductQuantizer::bits() const { return state_->bits; }
std::int64_t ProductQuantizer::code_size() const { return state_->code_size(); }
MatrixView<float> ProductQuantizer::centroids(std::int64_t m) const {
  if (m < 0 || m >= state_->parts)
    throw InvalidArgument("sub-quantizer must be from 0 to {}, but is {}", state_->parts - 1, m);
  return state_->part(m);
}
MatrixView<float> ProductQuantizer::all_centroids() const { return state_->book.centroids(); }
const detail::CodeBook& ProductQuantizer::book() const { return state_->book; }

Matrix<std::uint8_t> ProductQuantizer::encode(AnyMatrixView rows, int threads,
                                              const Progress& progress) const {
  return detail::public_call([&] {
    state_->check_vectors(rows, "rows");
    threads = resolve_threads(threads);
    find_value_range(rows, Metric::l2, "rows", threads);
    Matrix<std::uint8_t> out(rows.rows(), code_size());
    if (state_->suits_registers())
      state_->encode_in_registers(rows, threads, progress, out);
    else
      state_->encode_by_codes(rows, threads, progress, out);
    return out;
  });
}

void ProductQuantizer::State::encode_in_registers(AnyMatrixView rows, int threads,
                                                  const Progress& progress,
                                                  Matrix<std::uint8_t>& codes) const {
  constexpr std::int64_t task_rows = 4096, together = 256;  // together: stay in the first caches
  const std::int64_t tasks = (rows.rows() + task_rows - 1) / task_rows;
  Reporter reporter(progress, "encode", tasks);
  const Isa isa = active_isa();
  const std::vector<FewRowsScan>& scans = this->scans();
  parallel_for(threads, tasks, [&](std::int64_t task) {
    std::uint32_t nearest[together];
    const std::int64_t end = std::min(rows.rows(), (task + 1) * task_rows);
    for (std::int64_t begin = task * task_rows; begin < end; begin += together) {
      const std::int64_t some = std::min(together, end - begin);
      for (std::int64_t m = 0; m < parts; ++m) {
        const AnyMatrixView part = columns(rows.rows(begin, begin + some), m * width(), width());
        scans[m].find(part, isa, std::span(nearest, some));
        for (std::int64_t i = 0; i < some; ++i) put(codes.row(begin + i), m, nearest[i]);
      }
    }
    reporter.add(1);
  });
}

void ProductQuantizer::State::encode_by_codes(AnyMatrixView rows, int threads,
                                              const Progress& progress,
                                              Matrix<std::uint8_t>& codes) const {
  constexpr std::int64_t together = 1 << 15;
  const std::int64_t blocks = (rows.rows() + together - 1) / together;
  SharedProgress shared(progress, "encode", blocks * parts);
  std::vector<std::uint32_t> nearest;
  for (std::int64_t m = 0; m < parts; ++m) {
    detail::CentroidScan scan(part(m), Metric::l2, threads);
    for (std::int64_t b = 0; b < blocks; ++b) {
      const std::int64_t begin = b * together, end = std::min(rows.rows(), begin + together);
      nearest.resize(end - begin);
      scan.assign(columns(rows.rows(begin, end), m * width(), width()), false, nearest, {},
                  shared.of(m * blocks + b));
      for (std::int64_t i = begin; i < end; ++i) put(codes.row(i), m, nearest[i - begin]);
    }
  }
}

Matrix<float> ProductQuantizer::decode(MatrixView<std::uint8_t> codes, int threads) const {
  return detail::public_call([&] {
    const State& s = *state_;
    s.check_codes(codes, "codes");
    constexpr std::int64_t together = 4096;
    Matrix<float> out(codes.rows(), s.dim);
    parallel_for(resolve_threads(threads), (codes.rows() + together - 1) / together,
                 [&](std::int64_t task) {
                   const std::int64_t end = std::min(codes.rows(), (task + 1) * together);
                   for (std::int64_t i = task * together; i < end; ++i)
                     s.book.decode(codes.row(i), 1, out.row(i));
                 });
    return out;
  });
}

Matrix<float> ProductQuantizer::tables(AnyMatrixView queries, Metric metric, int threads) const {
  return detail::public_call([&] {
    const State& s = *state_;
    s.check_vectors(queries, "queries");
    check_by_products(metric, "a distance to codes");
    if (traits_of(metric).unit_rows)
      throw InvalidArgument(
          "metric must be l2 or ip for the distances of codes, but is cosine: give vectors unit "
          "length and take ip");
    threads = resolve_threads(threads);
    find_value_range(queries, metric, "queries", threads);
    Matrix<float> out(queries.rows(), s.parts * s.count());
    const Isa isa = active_isa();
    parallel_for(threads, queries.rows(), [&](std::int64_t q) {
      std::vector<double> query(s.dim);
      visit(queries, [&](auto typed) {
        std::transform(typed.row(q), typed.row(q) + s.dim, query.begin(),
                       [](auto x) { return to_double(x); });
      });
      s.book.fill_tables(query.data(), traits_of(metric).squared, isa, out.row(q));
    });
    return out;
  });
}

Matrix<float> ProductQuantizer::distances(AnyMatrixView queries, MatrixView<std::uint8_t> codes,
                                          Metric metric, int threads) const {
  return detail::public_call([&] {
    const State& s = *state_;
    s.check_codes(codes, "codes");
    s.check_vectors(queries, "queries");
    constexpr std::int64_t queries_together = 256, codes_together = 4096;
    Matrix<float> out(queries.rows(), codes.rows());
    const std::int64_t code_tasks = (codes.rows() + codes_together - 1) / codes_together;
    for (std::int64_t begin = 0; begin < queries.rows(); begin += queries_together) {
      const std::int64_t some = std::min(queries_together, queries.rows() - begin);
      const Matrix<float> each = tables(queries.rows(begin, begin + some), metric, threads);
      parallel_for(resolve_threads(threads), some * code_tasks, [&](std::int64_t task) {
        const float* table = each.row(task / code_tasks);
        float* to = out.row(begin + task / code_tasks);
        const std::int64_t first = task % code_tasks * codes_together;
        const std::int64_t end = std::min(codes.rows(), first + codes_together);
        for (std::int64_t i = first; i < end; ++i) {
          float sum = 0;
          for (std::int64_t m = 0; m < s.parts; ++m)
            sum += table[m * s.count() + s.get(codes.row(i), m)];
          to[i] = sum;
        }
      });
    }
    return out;
  });
}

Matrix<float> ProductQuantizer::code_distances(MatrixView<std::uint8_t> from,
                                               MatrixView<std::uint8_t> to, Metric metric,
                                               int threads) const {
  return detail::public_call([&] {
    state_->check_codes(from, "from");
    return distances(decode(from, threads).view(), to, metric, threads);
  });
}

}  // namespace knear
