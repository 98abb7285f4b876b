// k-means on the emulated GPU: the processor's bits, for all options, in whatever blocks rows come
// and wherever there is no memory.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "knear/cluster/device/assignment_on_device.hpp"
#include "knear/core/error.hpp"
#include "knear/core/random.hpp"
#include "tests/core/peer_threads.hpp"
#include "tests/knn/knn_cases.hpp"
#include "tests/simt/emulated_launches.hpp"

namespace knear {
namespace {

using namespace test;
using detail::assignment_on;
using detail::AssignmentJob;
using detail::DeviceAssignment;
using detail::OpenAssignment;

constexpr std::size_t plenty = std::size_t{1} << 40;

OpenAssignment emulated(std::size_t budget = plenty, std::uint64_t seed = 7) {
  return assignment_on<HostQueue>([=] { return HostQueue(seed, budget); });
}

// Rows around some middles, and some of them twice.
AnyMatrix blobs(std::int64_t rows, std::int64_t dim, std::uint64_t seed,
                ElementType type = ElementType::f32) {
  constexpr int count = 9;
  Random random(seed);
  Matrix<double> middles(count, dim), made(rows, dim);
  for (std::int64_t i = 0; i < count * dim; ++i) middles.data()[i] = 20 * random.uniform() - 8;
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < dim; ++j)
      made.row(i)[j] = middles.row(i % count)[j] + 3 * random.uniform();
  for (std::int64_t i = 10; i + 10 < rows; i += 10) std::copy_n(made.row(i), dim, made.row(i + 7));
  return make(type, rows, dim, [&](std::int64_t i, std::int64_t j) {
    const double x = made.row(i)[j];
    return type == ElementType::u8 ? std::max(0.0, std::rint(4 * x + 40)) : x;
  });
}

// The rows in blocks of these sizes, and how often they were read.
struct Stream {
  AnyMatrixView rows;
  std::vector<std::int64_t> sizes;
  int reads = 0;

  RowBlocks blocks() {
    return {rows.rows(), rows.cols(), [this](const std::function<void(AnyMatrixView)>& take) {
              ++reads;
              std::int64_t begin = 0;
              for (std::size_t i = 0; begin < rows.rows(); ++i) {
                const std::int64_t end = std::min(rows.rows(), begin + sizes[i % sizes.size()]);
                take(rows.rows(begin, end));
                begin = end;
              }
            }};
  }
};

void expect_same(const KMeans& got, const KMeans& wanted, const std::string& what) {
  ASSERT_EQ(got.centroids.rows(), wanted.centroids.rows()) << what;
  ASSERT_EQ(got.steps.size(), wanted.steps.size()) << what;
  for (std::size_t i = 0; i < got.steps.size(); ++i) {
    ASSERT_EQ(got.steps[i].objective, wanted.steps[i].objective) << what << ", step " << i;
    ASSERT_EQ(got.steps[i].moved, wanted.steps[i].moved) << what << ", step " << i;
    ASSERT_EQ(got.steps[i].empty, wanted.steps[i].empty) << what << ", step " << i;
  }
  const auto bytes =
      static_cast<std::size_t>(wanted.centroids.rows() * wanted.centroids.cols()) * sizeof(float);
  ASSERT_EQ(std::memcmp(got.centroids.data(), wanted.centroids.data(), bytes), 0) << what;
}

std::int64_t fallback_rows(const KMeans& found) {
  std::int64_t out = 0;
  for (const KMeansStep& step : found.steps) out += step.fallback_rows;
  return out;
}

// On the device and on the processor; the device did all of it.
void expect_same_there(AnyMatrixView rows, std::int64_t k, const KMeansOptions& options,
                       const std::string& what) {
  const KMeans got = k_means_on(emulated(), rows, k, options);
  expect_same(got, k_means(rows, k, options), what);
  EXPECT_EQ(fallback_rows(got), 0) << what;
}

TEST(DeviceKMeans, HasTheProcessorsBits) {
  std::vector<float> weights(150);
  Random random(5);
  for (float& weight : weights)
    weight = random.below(4) == 0 ? 0 : static_cast<float>(random.uniform() / 8);
  int number = 0;
  for (const Metric metric : metrics)
    for (const std::int64_t dim : {1, 8, 96, 130})
      for (const std::int64_t k : {1, 3, 100}) {
        const ElementType types[] = {ElementType::f32, ElementType::u8, ElementType::f16,
                                     ElementType::f64, ElementType::i8, ElementType::bf16};
        const ElementType type = types[++number % 6];
        const AnyMatrix rows = blobs(150, dim, static_cast<std::uint64_t>(number), type);
        KMeansOptions options{
            .metric = metric, .iterations = 2 + number % 2, .seed = 3, .threads = 2};
        if (number % 3 == 0) options.weights = weights;
        expect_same_there(rows, k, options,
                          std::string(name_of(metric)) + " " + std::string(name_of(type)) +
                              ", dim " + std::to_string(dim) + ", k " + std::to_string(k));
        if (HasFatalFailure()) return;
      }
}

TEST(DeviceKMeans, OfManyCentroids) {
  const AnyMatrix rows = blobs(1010, 8, 21);
  expect_same_there(rows, 1000, {.iterations = 2, .threads = 2}, "k 1000");
}

TEST(DeviceKMeans, OtherOptionsToo) {
  const AnyMatrix rows = blobs(400, 12, 22);
  const Matrix<float> initial = k_means(rows, 4, {.iterations = 1}).centroids;
  expect_same_there(rows, 9, {.iterations = 4, .initial = initial.view(), .frozen_rows = 2},
                    "frozen");
  expect_same_there(rows, 5, {.iterations = 2, .restarts = 2, .tolerance = 1e-2}, "restarts");
  expect_same_there(rows, 6, {.iterations = 3, .rows_per_centroid = 20}, "a sample");
  expect_same_there(rows, 30, {.iterations = 2, .levels = 2}, "two levels");
}

// Ties go to the smaller number, wherever equal centroids lie in panels; and where rows or
// centroids are all alike lists are full, so that all centroids are measured.
TEST(DeviceKMeans, TiesAndRowsThatAreAlike) {
  const AnyMatrix copies =
      make(ElementType::u8, 140, 6, [](std::int64_t i, std::int64_t) { return i % 5; });
  for (const Metric metric : metrics)
    expect_same_there(copies, 40, {.metric = metric, .iterations = 3}, "copies");
  // 300 centroids that 8 bits do not tell apart, beside others far away.
  Random random(3);
  const AnyMatrix close = make(ElementType::f32, 310, 5, [&](std::int64_t i, std::int64_t) {
    return 100 + 1e-4 * random.uniform() + (i % 97 == 0 ? 300 : 0);
  });
  expect_same_there(close, 300, {.iterations = 1, .threads = 2}, "alike");
  // One centroid, many times, is the nearest of all; zeros have no direction.
  Matrix<float> same(265, 3);
  for (std::int64_t i = 0; i < 265 * 3; ++i) same.data()[i] = static_cast<float>(i % 3 + 1);
  const AnyMatrix some = make(ElementType::f32, 265, 3, [&](std::int64_t i, std::int64_t) {
    return i % 4 == 0 ? 0 : random.uniform();
  });
  for (const Metric metric : metrics)
    expect_same_there(some, 265, {.metric = metric, .iterations = 1, .initial = same.view()},
                      "equal centroids");
}

// Most centroids are equally far from all rows, and a few are beside them, each in a panel with
// others: of some rows a list is full before all of these have come, and short after the next step.
TEST(DeviceKMeans, ListsThatWereFullOnTheWay) {
  Random random(4);
  const auto beside_rows = [&](std::int64_t j) {
    return j == 0 ? 300 + 1e-3 * random.uniform() : random.uniform();
  };
  const AnyMatrix rows =
      make(ElementType::f32, 60, 6, [&](std::int64_t, std::int64_t j) { return beside_rows(j); });
  const std::vector<std::uint32_t> none(60, DeviceAssignment::no_centroid);
  for (const std::int64_t count : {900, 1000}) {
    const AnyMatrix centroids =
        make(ElementType::f32, count, 6, [&](std::int64_t i, std::int64_t j) {
          if (i % 200 == 100) return beside_rows(j);
          return j == 1 ? (i % 2 == 0 ? 300 : -300) + 1e-3 * random.uniform() : 0;
        });
    const MatrixView<float> view = centroids.view().as<float>();
    const Assignment wanted = nearest_centroids(view, rows);
    std::vector<std::uint32_t> got;
    const auto done = [&](std::int64_t, std::span<const std::uint32_t> nearest,
                          std::span<const double>) {
      got.insert(got.end(), nearest.begin(), nearest.end());
    };
    const auto device = emulated()({60, 6, count, Metric::l2, {}, 1e-9, 1e-9, 1, done});
    ASSERT_TRUE(device->begin(view));
    // A block of few rows too, whose lists are updated in another way.
    for (const std::int64_t first : {0, 3})
      ASSERT_TRUE(device->assign(first, rows.view().rows(first, first == 0 ? 3 : 60), none));
    EXPECT_EQ(device->finish(/*fetch=*/true), 60);
    ASSERT_EQ(got.size(), 60u);
    for (std::size_t i = 0; i < 60; ++i) ASSERT_EQ(got[i], wanted.ids[i]) << i;
  }
}

// Far from the middle of the first centroids: rows are coded anew.
TEST(DeviceKMeans, CodesAreMadeAnewWhenCentroidsMove) {
  const AnyMatrix rows = make(ElementType::f32, 260, 10, [](std::int64_t i, std::int64_t j) {
    return 1000 + static_cast<double>(i * 7 % 31) + static_cast<double>(j * i % 13);
  });
  Matrix<float> initial(4, 10);
  for (std::int64_t i = 0; i < 40; ++i) initial.data()[i] = static_cast<float>(i % 7);
  expect_same_there(rows, 4, {.iterations = 4, .initial = initial.view()}, "moving");
}

TEST(DeviceKMeans, StreamsStayOnTheDeviceIfThereIsMemory) {
  const AnyMatrix rows = blobs(700, 16, 23);
  std::vector<float> weights(700);
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<float>(i % 4) / 3;
  for (const Metric metric : metrics) {
    const KMeansOptions options{
        .metric = metric, .iterations = 4, .weights = weights, .threads = 2};
    const KMeans wanted = k_means(rows, 20, options);
    Stream stream{rows, {130, 1, 300}};
    KMeans got = k_means_on(emulated(), stream.blocks(), 20, options);
    expect_same(got, wanted, "held");
    EXPECT_EQ(fallback_rows(got), 0);
    EXPECT_EQ(stream.reads, 3);  // value range, first centroids, rows
    // Of little memory some blocks stay, and others come in each iteration.
    stream.reads = 0;
    got = k_means_on(emulated(190 << 10), stream.blocks(), 20, options);
    expect_same(got, wanted, "coming and going");
    EXPECT_EQ(fallback_rows(got), 0);
    EXPECT_EQ(stream.reads, 6);
    if (HasFailure()) return;
  }
}

// Whatever there is memory for the device does; the processor does the rest.
TEST(DeviceKMeans, WithoutMemoryTheProcessorDoesIt) {
  const AnyMatrix rows = blobs(500, 20, 24);
  const KMeansOptions options{.metric = Metric::cosine, .iterations = 3, .threads = 2};
  const KMeans wanted = k_means(rows, 15, options);
  const KMeans none = k_means_on(emulated(1000), rows.view(), 15, options);
  expect_same(none, wanted, "none");
  EXPECT_EQ(fallback_rows(none), 500 * static_cast<std::int64_t>(wanted.steps.size()));
  for (const int kilobytes : {20, 100, 280, 340, 420, 500}) {
    const KMeans got =
        k_means_on(emulated(static_cast<std::size_t>(kilobytes) << 10), rows.view(), 15, options);
    expect_same(got, wanted, std::to_string(kilobytes));
    if (HasFatalFailure()) return;
  }
}

// A queue that has no memory now and then.
class FailingQueue : public HostQueue {
 public:
  FailingQueue(std::uint64_t seed, std::shared_ptr<Random> random, std::uint64_t one_in)
      : HostQueue(seed), random_(std::move(random)), one_in_(one_in) {}
  template <class T>
  Array<T> allocate(std::size_t size) {
    fail();
    return HostQueue::allocate<T>(size);
  }
  template <class T>
  HostArray<T> allocate_host(std::size_t size) {
    fail();
    return HostQueue::allocate_host<T>(size);
  }

 private:
  void fail() {
    if (random_->below(one_in_) == 0) throw MemoryBudgetError("no memory");
  }
  std::shared_ptr<Random> random_;
  std::uint64_t one_in_;
};

TEST(DeviceKMeans, MemoryThatFailsAtRandom) {
  const AnyMatrix rows = blobs(450, 9, 25);
  std::int64_t by_processor = 0, all = 0;
  for (std::uint64_t seed = 0; seed < 16; ++seed) {
    const Metric metric = metrics[seed % 3];
    const KMeansOptions options{.metric = metric, .iterations = 4, .threads = 2};
    const auto random = std::make_shared<Random>(seed);
    const OpenAssignment open = assignment_on<FailingQueue>(
        [&] { return FailingQueue(seed, random, seed % 2 == 0 ? 15 : 60); });
    Stream stream{rows, {130, 200}};
    const KMeans got = k_means_on(open, stream.blocks(), 11, options);
    expect_same(got, k_means(rows, 11, options), "seed " + std::to_string(seed));
    if (HasFatalFailure()) return;
    by_processor += fallback_rows(got), all += 450 * std::ssize(got.steps);
  }
  EXPECT_GT(by_processor, all / 10);
  EXPECT_LT(by_processor, all * 9 / 10);
}

TEST(DeviceKMeans, OfManyProcesses) {
  const AnyMatrix rows = blobs(600, 9, 26);
  for (const Metric metric : metrics) {
    const KMeansOptions options{.metric = metric, .iterations = 3};
    const KMeans wanted = k_means(rows, 12, options);
    // Two have a device each, one of them for few rows, and one has none.
    as_peers(3, [&](Peers& peers) {
      const std::int64_t begin[] = {0, 40, 350, 600};
      Stream own{rows.view().rows(begin[peers.rank()], begin[peers.rank() + 1]), {170}};
      KMeansOptions mine = options;
      mine.threads = 1;
      const KMeans got = k_means_on(peers.rank() == 1 ? OpenAssignment{} : emulated(), own.blocks(),
                                    peers, 12, mine);
      expect_same(got, wanted, std::string(name_of(metric)));
    });
    if (HasFailure()) return;
  }
}

// Devices of processes that are threads: their memory is the processor's.
class SumsOfThreads : public DeviceSums {
 public:
  SumsOfThreads(Peers& peers, int fails_at = -1) : peers_(peers), fails_at_(fails_at) {}
  void sum(const unsigned long long* from, unsigned long long* to, std::size_t count,
           void* stream) override {
    EXPECT_NE(stream, nullptr);
    if (calls_++ == fails_at_) throw Error("a device is gone");
    std::vector<std::int64_t> values(from, from + count);
    peers_.sum(values);
    std::copy(values.begin(), values.end(), to);
    ++waiting_;
  }
  void wait(const std::function<bool()>& done) override {
    EXPECT_EQ(waiting_--, 1);
    while (!done()) {
    }
  }
  int calls() const { return calls_; }

 private:
  Peers& peers_;
  const int fails_at_;
  int calls_ = 0, waiting_ = 0;
};

std::int64_t steps_by_devices(const KMeans& found) {
  return std::count_if(found.steps.begin(), found.steps.end(),
                       [](const KMeansStep& step) { return step.summed_by_devices; });
}

// Rows of process r begin at begin[r]; the second has none.
constexpr std::int64_t begin_of_four[] = {0, 250, 250, 300, 600};
void as_four(const std::function<void(Peers&, Stream& own, std::int64_t first)>& process,
             AnyMatrixView rows) {
  as_peers(4, [&](Peers& peers) {
    const std::int64_t* const begin = begin_of_four + peers.rank();
    Stream own{rows.rows(begin[0], begin[1]), {120}};
    process(peers, own, begin[0]);
  });
}

TEST(DeviceKMeans, DevicesOfManyProcessesAddUp) {
  const AnyMatrix rows = blobs(600, 9, 30);
  std::vector<float> weights(600);
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<float>(i % 5) / 3;
  std::vector<KMeansOptions> cases;
  for (const Metric metric : metrics) cases.push_back({.metric = metric, .iterations = 4});
  cases.push_back({.iterations = 3, .seeding = Seeding::k_means_plus_plus, .restarts = 2});
  cases.push_back({.iterations = 3, .rows_per_centroid = 20});
  cases.push_back({.iterations = 3, .weights = weights});
  for (const KMeansOptions& options : cases) {
    const KMeans wanted = k_means(rows, 12, options);
    EXPECT_EQ(steps_by_devices(wanted), 0);
    as_four(
        [&](Peers& peers, Stream& own, std::int64_t first) {
          KMeansOptions mine = options;
          mine.threads = 1;
          const auto count = static_cast<std::size_t>(own.rows.rows());
          if (!weights.empty() && !options.weights.empty())
            mine.weights = options.weights.subspan(static_cast<std::size_t>(first), count);
          SumsOfThreads sums(peers);
          const KMeans got = k_means_on(emulated(), own.blocks(), peers, 12, mine, &sums);
          expect_same(got, wanted, std::string(name_of(options.metric)));
          EXPECT_EQ(steps_by_devices(got), std::ssize(got.steps));
          // Each run sums up once before its first step.
          EXPECT_GT(sums.calls(), std::ssize(got.steps));
        },
        rows);
    if (HasFailure()) return;
  }
}

// A device that has no memory, for sums or for some of the rows, leaves them to its processor; then
// the processors of all add up.
TEST(DeviceKMeans, ProcessorsAddUpWhatTheyHaveThemselves) {
  const AnyMatrix rows = blobs(600, 9, 31);
  const KMeansOptions options{.metric = Metric::cosine, .iterations = 4, .threads = 1};
  const KMeans wanted = k_means(rows, 12, options);
  std::int64_t by_devices = 0, all = 0;
  const auto expect_wanted = [&](const std::function<OpenAssignment(int rank)>& open,
                                 const std::string& what) {
    as_four(
        [&](Peers& peers, Stream& own, std::int64_t) {
          SumsOfThreads sums(peers);
          const KMeans got =
              k_means_on(open(peers.rank()), own.blocks(), peers, 12, options, &sums);
          expect_same(got, wanted, what);
          if (peers.rank() != 0) return;
          by_devices += steps_by_devices(got), all += std::ssize(got.steps);
        },
        rows);
  };
  expect_wanted([](int rank) { return emulated(rank == 2 ? 1000 : plenty); }, "no sums");
  EXPECT_EQ(by_devices, 0);
  expect_wanted([](int rank) { return rank == 3 ? OpenAssignment{} : emulated(); }, "no device");
  EXPECT_EQ(by_devices, 0);
  for (std::uint64_t seed = 0; seed < 12 && !HasFailure(); ++seed)
    expect_wanted(
        [seed](int rank) {
          const auto random = std::make_shared<Random>(100 * seed + static_cast<unsigned>(rank));
          return assignment_on<FailingQueue>(
              [=] { return FailingQueue(seed, random, seed % 2 == 0 ? 40 : 200); });
        },
        "seed " + std::to_string(seed));
  EXPECT_GT(by_devices, 0);
  EXPECT_LT(by_devices, all);
}

TEST(DeviceKMeans, ErrorsBetweenDevicesEndIt) {
  const AnyMatrix rows = blobs(600, 9, 32);
  for (const int fails_at : {0, 2}) {
    int failed = 0;
    EXPECT_THROW(as_four(
                     [&](Peers& peers, Stream& own, std::int64_t) {
                       SumsOfThreads sums(peers, peers.rank() == 3 ? fails_at : -1);
                       try {
                         k_means_on(emulated(), own.blocks(), peers, 12,
                                    {.iterations = 4, .threads = 1}, &sums);
                       } catch (const Error& error) {
                         EXPECT_STREQ(error.what(), "a device is gone");
                         EXPECT_EQ(peers.rank(), 3);
                         ++failed;
                         throw;
                       }
                     },
                     rows),
                 std::exception);
    EXPECT_EQ(failed, 1);
  }
}

TEST(DeviceKMeans, StopsWhenAskedTo) {
  const AnyMatrix rows = blobs(500, 8, 27);
  for (const int calls : {1, 2, 4}) {
    int left = calls;
    const KMeansOptions options{.iterations = 9,
                                .progress = [&](std::string_view, double) { return --left > 0; }};
    Stream stream{rows, {200}};
    EXPECT_THROW(k_means_on(emulated(), stream.blocks(), 7, options), Cancelled);
  }
}

TEST(DeviceKMeans, DevicesThatAreNotThere) {
  const AnyMatrix rows = blobs(50, 4, 28);
  for (const char* device : {"gpu", "cuda:", "cuda:0,1", "cuda:-1", ""}) try {
      k_means(rows, 3, {.device = device});
      ADD_FAILURE() << "nothing was thrown for " << device;
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(std::string(error.what()),
                "device must be cpu, cuda or cuda:N, but is '" + std::string(device) + "'");
    }
  EXPECT_THROW(k_means(rows, 3, {.device = "cuda:77"}), DeviceUnavailable);
  as_peers(2, [&](Peers& peers) {
    Stream own{rows.view().rows(25 * peers.rank(), 25 * peers.rank() + 25), {25}};
    EXPECT_THROW(k_means(own.blocks(), peers, 3, {.device = peers.rank() == 1 ? "cuda:77" : "cpu"}),
                 DeviceUnavailable);
  });
}

}  // namespace
}  // namespace knear
