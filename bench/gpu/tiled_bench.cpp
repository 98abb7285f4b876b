#include "bench/gpu/tiled_bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "bench/gpu/library_product.hpp"
#include "bench/gpu/made_vectors.hpp"
#include "bench/gpu/matrix_products.hpp"
#include "bench/gpu/tiled_codes.hpp"
#include "bench/gpu/tiled_launches.hpp"
#include "knear/distance/reference.hpp"
#include "knear/knn/knn.hpp"

namespace knear::bench {
namespace {

template <ProductType type>
struct TypesOf;
template <>
struct TypesOf<ProductType::f32> {
  using Code = float;
  using Product = float;
};
template <>
struct TypesOf<ProductType::bf16> {
  using Code = bf16;
  using Product = float;
};
template <>
struct TypesOf<ProductType::i8> {
  using Code = std::int8_t;
  using Product = std::int32_t;
};

// A stream of its own, or `stream`, with products by the library.
template <ProductType type>
class LibraryLane {
 public:
  using Queue = cuda::Queue;
  using Code = typename TypesOf<type>::Code;
  using Product = typename TypesOf<type>::Product;
  static constexpr std::size_t workspace_bytes = std::size_t{32} << 20;

  LibraryLane(const ProductLibrary& library, const cuda::Stream& stream)
      : library_(library),
        stream_(stream),
        queue_(queue_on(stream)),
        workspace_(queue_.allocate<std::byte>(workspace_bytes)) {}

  Queue& queue() { return queue_; }
  // Multiplies queries [count x dim] by rows [n x dim]. Throws DeviceError where the library
  // cannot.
  void multiply(const Code* queries, std::int64_t count, const Code* rows, std::int64_t n,
                std::int64_t dim, Product* out, std::int64_t stride) {
    auto at = products_.find({count, n});
    if (at == products_.end())
      at = products_.try_emplace({count, n}, library_, type, n, count, dim, stride, workspace_bytes)
               .first;
    at->second.run(rows, queries, out, workspace_.data(), stream_.get());
  }
  void wait_for(LibraryLane& other) {
    other.given_.record(other.stream_);
    other.given_.hold_back(stream_);
  }

 private:
  const ProductLibrary& library_;
  const cuda::Stream& stream_;
  Queue queue_;
  Queue::Array<std::byte> workspace_;
  cuda::Event given_;
  // Products by shape: whole tiles, and those at the ends. All have the same dim and stride.
  std::map<std::pair<std::int64_t, std::int64_t>, LibraryProduct> products_;
};

// Fields that all types of products share. Rows are contiguous.
struct Question {
  MatrixView<float> base, queries;
  Neighbors truth;                   // for the queries `sample` and the largest k
  std::vector<std::int64_t> sample;  // queries
};

// Recall of the sampled queries: the share of neighbours that are among the k true ones, and that
// of those no farther than the k-th.
struct Recall {
  double ids = 0, distance = 0;
};
Recall recall_of(const Question& question, int k, const std::vector<std::int64_t>& ids) {
  std::int64_t same = 0, near = 0;
  for (std::size_t s = 0; s < question.sample.size(); ++s) {
    const std::int64_t q = question.sample[s];
    const Id* const truth = question.truth.ids.row(static_cast<std::int64_t>(s));
    const auto distance = [&](std::int64_t id) {
      return reference_distance(Metric::l2, question.queries.row(q), question.base.row(id),
                                question.base.cols());
    };
    const double kth = distance(truth[k - 1]);
    for (int i = 0; i < k; ++i) {
      const std::int64_t id = ids[static_cast<std::size_t>(q * k + i)];
      same += std::find(truth, truth + k, id) != truth + k;
      near += id >= 0 && id < question.base.rows() && distance(id) <= kth;
    }
  }
  const double all = static_cast<double>(question.sample.size()) * k;
  return {static_cast<double>(same) / all, static_cast<double>(near) / all};
}

// One type of products: codes and vectors on the device, and the runs with them.
template <ProductType type>
class TiledBench {
  using Lane = LibraryLane<type>;
  using Code = typename Lane::Code;

 public:
  TiledBench(const cuda::Stream& stream, const Question& question, Report& report)
      : stream_(stream),
        question_(question),
        report_(report),
        base_(tiled_codes<Code>(question.base)),
        queries_(tiled_codes<Code>(question.queries)),
        first_(library_, stream),
        second_(library_, second_stream_) {
    codes_ = upload(base_.codes);
    norms_ = upload(base_.norms);
    query_codes_ = upload(queries_.codes);
    if (!rescored) return;
    std::vector<std::uint32_t> numbers(base_.norms.size());
    std::iota(numbers.begin(), numbers.end(), 0u);
    numbers_ = upload(numbers);
    rows_ = upload(question.base.row(0), base_.codes.size());
    std::vector<double> vectors(queries_.codes.size());  // as the library measures from
    const float* from = question.queries.row(0);
    std::copy(from, from + vectors.size(), vectors.begin());
    vectors_ = upload(vectors.data(), vectors.size());
    first_.queue().wait();
  }

  // Why the library cannot multiply, or an empty string.
  std::string why_not(TileSizes tiles) {
    for (const std::int64_t n : {tiles.rows, question_.base.rows() % tiles.rows})
      for (const std::int64_t count : {tiles.queries, question_.queries.rows() % tiles.queries}) {
        if (n == 0 || count == 0) continue;
        const LibraryProduct product(library_, type, n, count, question_.base.cols(), tiles.rows,
                                     Lane::workspace_bytes);
        if (!product.available()) return product.why_not();
      }
    return "";
  }

  void run(int k, TileSizes tiles, double budget) {
    Work work(*this, k, tiles);
    const Timing timing = time_runs(stream_, budget, [&](int) { work.run(); });
    const Timing alone = time_runs(stream_, budget / 2, [&](int) { work.multiply_alone(); });

    const std::int64_t count = question_.queries.rows(), rows = question_.base.rows(),
                       dim = question_.base.cols();
    const std::string name = fmt::format("tiled search {} k={}", name_of(type), k);
    const std::string what =
        fmt::format("{} x {} x {}, tiles {} x {}", count, rows, dim, tiles.queries, tiles.rows);
    const double operations =
        2e-12 * static_cast<double>(count) * static_cast<double>(rows) * static_cast<double>(dim);
    Entry entry{name,
                what,
                operations / timing.seconds,
                type == ProductType::i8 ? "Top/s" : "Tflop/s",
                timing.seconds,
                timing.spread,
                {},
                ""};
    const std::string product = fmt::format("{} product", name_of(type)),
                      shape = fmt::format("cuBLASLt, {} x {} x {}", count, rows, dim);
    for (const Entry& e : report_.entries)
      if (e.name == product && e.what == shape)
        entry.of_peak = e.seconds / timing.seconds, entry.peak = "the product";
    report_.add(entry);

    const Answer answer = work.answer();
    std::string note = fmt::format("{}, {}: products of the tiles alone {:.2f} ms of {:.2f}", name,
                                   what, alone.seconds * 1e3, timing.seconds * 1e3);
    if (rescored)
      note += fmt::format("; {} kept and measured, {:.2f} % of queries certain", kept_for(k),
                          100 * certain(k, answer, name));
    const Recall recall = recall_of(question_, k, answer.ids);
    report_.notes.push_back(
        fmt::format("{}; recall of {} queries {:.5f} by ids, {:.5f} by distance{}", note,
                    question_.sample.size(), recall.ids, recall.distance,
                    rescored ? "" : " (keys are rounded: not an exact search)"));
    check_recall(recall, name + ", " + what);
  }

  // Checks the answer, without timing.
  void check(int k, TileSizes tiles) {
    Work work(*this, k, tiles);
    work.run();
    const Answer answer = work.answer();
    const std::string name = fmt::format("tiled search {} k={}", name_of(type), k);
    if (rescored) certain(k, answer, name);
    check_recall(recall_of(question_, k, answer.ids), name);
  }

 private:
  static constexpr bool rescored = type != ProductType::f32;

  // The rows kept for k, each a shape of WarpSelect. int8 codes separate rows less well.
  static int kept_for(int k) {
    if (!rescored) return k;
    if (type == ProductType::bf16) return k <= 16 ? 32 : k <= 64 ? 128 : 256;
    return k <= 16 ? 128 : k <= 32 ? 256 : warp_select_max_k;
  }

  struct Answer {
    std::vector<float> values;      // [queries x kept] keys
    std::vector<int> rows;          // [queries x kept]
    std::vector<double> distances;  // [queries x k], if rescored
    std::vector<std::int64_t> ids;  // [queries x k]
  };

  // One search on the device, and its results.
  class Work {
   public:
    Work(TiledBench& bench, int k, TileSizes tiles)
        : bench_(bench),
          k_(k),
          kept_(kept_for(k)),
          count_(bench.question_.queries.rows()),
          queue_(bench.first_.queue()),
          search_(bench.first_, bench.second_, tiles),
          base_{bench.codes_.data(), bench.norms_.data(), bench.question_.base.rows(),
                bench.question_.base.cols()},
          queries_{bench.query_codes_.data(), nullptr, count_, base_.dim} {
      const auto places = static_cast<std::size_t>(count_ * kept_),
                 answers = static_cast<std::size_t>(rescored ? count_ * k : 0);
      values_ = queue_.template allocate<float>(places);
      rows_ = queue_.template allocate<int>(places);
      keys_ = queue_.template allocate<double>(answers);
      ids_ = queue_.template allocate<std::int64_t>(answers);
      queue_.fill_bytes(values_.data(), 0xff, places);
      queue_.fill_bytes(rows_.data(), 0x5a, places);
    }

    void run() {
      search_.run(base_, queries_, bench_.queries_.factor(bench_.base_), kept_, values_.data(),
                  rows_.data());
      if (rescored)
        rescore_kept(queue_, bench_.rows_.data(), bench_.numbers_.data(), bench_.vectors_.data(),
                     count_, base_.dim, rows_.data(), kept_, k_, keys_.data(), ids_.data());
    }
    void multiply_alone() { search_.multiply_alone(base_, queries_); }

    Answer answer() {
      Answer out{download(values_), download(rows_), download(keys_), download(ids_)};
      if (!rescored) out.ids.assign(out.rows.begin(), out.rows.end());  // kept is k
      return out;
    }

   private:
    template <class T>
    std::vector<T> download(const cuda::Queue::Array<T>& from) {
      std::vector<T> out(from.size());
      queue_.download(out.data(), from.data(), out.size());
      queue_.wait();
      return out;
    }

    TiledBench& bench_;
    int k_, kept_;
    std::int64_t count_;
    cuda::Queue& queue_;
    TiledSearch<Lane> search_;
    TiledRows<Code> base_, queries_;
    cuda::Queue::Array<float> values_;
    cuda::Queue::Array<int> rows_;
    cuda::Queue::Array<double> keys_;
    cuda::Queue::Array<std::int64_t> ids_;
  };

  template <class T>
  cuda::Queue::Array<T> upload(const T* from, std::size_t count) {
    auto out = first_.queue().template allocate<T>(count);
    first_.queue().upload(out.data(), from, count);
    return out;
  }
  template <class T>
  cuda::Queue::Array<T> upload(const std::vector<T>& from) {
    auto out = upload(from.data(), from.size());
    first_.queue().wait();
    return out;
  }

  // The share of queries that is certain; a sampled query that is certain but has another answer is
  // a failure.
  double certain(int k, const Answer& answer, const std::string& name) {
    const std::int64_t count = question_.queries.rows();
    const int kept = kept_for(k);
    std::vector<bool> sure(static_cast<std::size_t>(count));
    for (std::int64_t q = 0; q < count; ++q) {
      const auto kth = static_cast<std::size_t>((q + 1) * k - 1),
                 last = static_cast<std::size_t>((q + 1) * kept - 1);
      sure[static_cast<std::size_t>(q)] =
          is_certain(queries_, q, base_, question_.base.cols(), answer.distances[kth],
                     answer.values[last], answer.rows[last]);
    }
    for (std::size_t s = 0; s < question_.sample.size(); ++s) {
      const std::int64_t q = question_.sample[s];
      if (!sure[static_cast<std::size_t>(q)]) continue;
      ++report_.tests;
      const Id* const truth = question_.truth.ids.row(static_cast<std::int64_t>(s));
      if (!std::equal(truth, truth + k, answer.ids.begin() + q * k))
        report_.fail(fmt::format("{}: query {} is certain but not exact", name, q));
    }
    return static_cast<double>(std::count(sure.begin(), sure.end(), true)) /
           static_cast<double>(count);
  }

  // Codes of 8 bits may lose some neighbours; the other types differ from float64 only in ties up
  // to rounding.
  void check_recall(const Recall& recall, const std::string& name) {
    ++report_.tests;
    if (recall.distance < (type == ProductType::i8 ? 0.9 : 0.99))
      report_.fail(fmt::format("{}: recall {:.5f}", name, recall.distance));
  }

  const cuda::Stream& stream_;
  const Question& question_;
  Report& report_;
  TiledCodes<Code> base_, queries_;
  ProductLibrary library_;
  cuda::Stream second_stream_;
  Lane first_, second_;
  cuda::Queue::Array<Code> codes_, query_codes_;
  cuda::Queue::Array<float> norms_, rows_;
  cuda::Queue::Array<double> vectors_;
  cuda::Queue::Array<std::uint32_t> numbers_;
};

// Vectors to search, and the true neighbours of `samples` of the queries.
struct Vectors {
  AnyMatrix base, queries;
  Question question;

  Vectors(std::int64_t rows, std::int64_t count, std::int64_t dim, std::int64_t samples,
          std::int64_t k)
      : base(make_clusters(ElementType::f32, rows, dim, 41)),
        queries(make_clusters(ElementType::f32, count, dim, 42)) {
    question.base = AnyMatrixView(base).as<float>();
    question.queries = AnyMatrixView(queries).as<float>();
    AnyMatrix sampled(ElementType::f32, samples, dim);
    for (std::int64_t s = 0; s < samples; ++s) {
      question.sample.push_back((count - 1) * s / (samples - 1));
      std::copy_n(question.queries.row(question.sample.back()), dim,
                  static_cast<float*>(sampled.row(s)));
    }
    question.truth = knn(sampled, base, k);
  }
  Vectors(const Vectors&) = delete;
  Vectors& operator=(const Vectors&) = delete;
};

template <ProductType type>
void check_type(const cuda::Stream& stream, const Question& question, Report& report) {
  // Several tiles each way, and a partial one at the ends; then a single one.
  for (const TileSizes tiles : {TileSizes{40, 1024}, TileSizes{88, 4096}}) {
    TiledBench<type> bench(stream, question, report);  // a lane has products of one stride
    if (const std::string why = bench.why_not(tiles); !why.empty())
      report.skipped.push_back(fmt::format("tests of tiled search {}: {}", name_of(type), why));
    else
      for (const int k : {1, 10, 100}) bench.check(k, tiles);
  }
}

template <ProductType type>
void bench_type(const cuda::Stream& stream, const Question& question, const Deadline& deadline,
                Report& report) {
  const std::int64_t queries = question.queries.rows(), rows = question.base.rows();
  const std::string name = fmt::format("tiled search {}", name_of(type));
  if (deadline.left() < 5) {
    report.skipped.push_back(name + ": out of time");
    return;
  }
  // The product in fp32 was measured for the exact search.
  if (type != ProductType::f32)
    bench_search_product(type, queries, rows, question.base.cols(), stream,
                         std::min(2.0, deadline.left() / 8), report);
  const std::size_t l2 = report.device->l2_bytes;
  for (const std::size_t bytes : {l2 / 2, 16 * l2}) {
    const TileSizes tiles = choose_tiles(queries, rows, bytes);
    TiledBench<type> bench(stream, question, report);
    if (const std::string why = bench.why_not(tiles); !why.empty()) {
      report.skipped.push_back(
          fmt::format("{}, tiles {} x {}: {}", name, tiles.queries, tiles.rows, why));
      continue;
    }
    for (const int k : {10, 100}) {
      if (deadline.left() > 0)
        bench.run(k, tiles, std::min(1.0, deadline.left() / 8));
      else
        report.skipped.push_back(fmt::format("{} k={}: out of time", name, k));
    }
  }
}

}  // namespace

void bench_tiled_search(const cuda::Stream& stream, const Deadline& deadline, Report& report) {
  constexpr std::int64_t queries = 10000, rows = 1000000, dim = 128;
  if (deadline.left() < 10) {
    report.skipped.push_back("tiled search: out of time");
    return;
  }
  std::size_t free_bytes = 0, all_bytes = 0;
  KNEAR_CHECK(cudaMemGetInfo(&free_bytes, &all_bytes));
  // Vectors, codes, tiles of 16 times the cache, and the rows kept for each query.
  const double needed = double(rows * dim) * 8 + 16.0 * double(report.device->l2_bytes) +
                        double(queries) * warp_select_max_k * 32;
  if (needed > double(free_bytes) * 0.8) {
    report.skipped.push_back(fmt::format("tiled search of {} x {}: {:.1f} GB are free", rows, dim,
                                         double(free_bytes) / 1e9));
    return;
  }
  fmt::print(stderr, "tiled search of {} x {}\n", rows, dim);
  const Vectors vectors(rows, queries, dim, 200, 100);
  bench_type<ProductType::f32>(stream, vectors.question, deadline, report);
  bench_type<ProductType::bf16>(stream, vectors.question, deadline, report);
  bench_type<ProductType::i8>(stream, vectors.question, deadline, report);
}

void check_tiled_search(const cuda::Stream& stream, Report& report) {
  const Vectors vectors(4000, 170, 32, 170, 100);
  check_type<ProductType::f32>(stream, vectors.question, report);
  check_type<ProductType::bf16>(stream, vectors.question, report);
  check_type<ProductType::i8>(stream, vectors.question, report);
}

}  // namespace knear::bench
