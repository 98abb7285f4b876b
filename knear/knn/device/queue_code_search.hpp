// knear/knn/device/queue_code_search.hpp -- codes on a GPU: where they stay, and searches of them
// (scan/device/device_code_scan.hpp).
//
// Codes, scalars and ids of a segment go to the device when it is first searched there, and stay as
// long as the segment. So do its rows as they are decoded, once so many queries come to each list
// that multiplying takes less time (products_pay()), where half of what is free holds those of all
// segments of the search. Searches that begin with the same segment take turns.
//
// Queue: cuda::Queue, or the emulated one of the tests.
#pragma once
#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "knear/knn/device/device_code_search.hpp"
#include "knear/scan/device/device_code_products.hpp"

namespace knear::detail {

template <class Queue>
class QueueCodeSearch final : public DeviceCodeSearch {
 public:
  // name: of the device, by which it knows what it keeps. open: makes a queue. host_bytes: of the
  // processor, for queries that are searched by products and what is found for them, about.
  QueueCodeSearch(std::string name, std::function<Queue()> open,
                  std::int64_t host_bytes = 256 << 20)
      : name_(std::move(name)), open_(std::move(open)), host_bytes_(host_bytes) {}

  void scan(std::span<const Segment> segments, const CodeScanJob& job, const CodeProbes& probes,
            CodedNeighbors& out, const Progress& progress) override {
    if (segments.empty()) {
      std::fill(out.rows.begin(), out.rows.end(), CodedNeighbors::Row{});
      return;
    }
    std::vector<std::shared_ptr<CodesOnDevice>> held;
    for (const Segment& segment : segments) held.push_back(there(segment, job));
    CodesOnDevice& first = *held.front();
    std::vector<DeviceCodeSegment<Queue>> scanned;
    for (std::size_t s = 0; s < held.size(); ++s)
      scanned.push_back({&*held[s]->lists, segments[s].codes});
    const std::vector<std::int64_t> left = by_products(segments, held, job, probes, out, progress);
    if (left.empty()) return;
    const std::lock_guard lock(first.mutex);
    if (std::ssize(left) == probes.lists.rows())
      DeviceCodeScan<Queue>(*first.queue, *first.book, scanned, job).run(probes, out, progress);
    else
      run_some(*first.queue, *first.book, scanned, job, probes, left, out, progress);
    most_bytes_ = std::max(most_bytes_, first.queue->most_bytes_in_use());
  }
  std::size_t most_bytes() const override { return most_bytes_; }
  // Of all searches, the queries that were answered by products.
  std::int64_t multiplied() const { return multiplied_; }

 private:
  struct CodesOnDevice {
    std::shared_ptr<Queue> queue;
    std::optional<DeviceCodeBook<Queue>> book;
    std::optional<DeviceCodedLists<Queue>> lists;
    std::optional<DeviceDecodedLists<Queue>> decoded;
    std::mutex mutex;  // of the queue, and of what is decoded
  };

  // Answers queries by products where that takes less time, and returns the others.
  std::vector<std::int64_t> by_products(std::span<const Segment> segments,
                                        std::span<const std::shared_ptr<CodesOnDevice>> held,
                                        const CodeScanJob& job, const CodeProbes& probes,
                                        CodedNeighbors& out, const Progress& progress) {
    const std::int64_t count = probes.lists.rows(), dim = job.book->dim();
    std::vector<std::int64_t> left(count);
    std::iota(left.begin(), left.end(), std::int64_t{0});
    if (!job.vectors.known || job.comparison == CodeComparison::by_tables || count == 0)
      return left;
    if (job.comparison == CodeComparison::automatic &&
        std::none_of(held.begin(), held.end(), [&](const std::shared_ptr<CodesOnDevice>& there) {
          return products_pay(*job.book, there->lists->begins(), probes.lists);
        }))
      return left;
    if (!decode(segments, held, job)) return left;  // tables need no more than codes
    left.clear();
    DeviceStats stats;
    std::fill(out.rows.begin(), out.rows.end(), CodedNeighbors::Row{});
    // As doubles, and with the nearest in all segments and in one.
    constexpr std::int64_t place_bytes = sizeof(CodedNeighbors::Row) + sizeof(double) + sizeof(Id);
    const std::int64_t together =
        std::max<std::int64_t>(block_queries, host_bytes_ / (8 * dim + job.k * place_bytes));
    for (std::int64_t first = 0; first < count; first += together) {
      const std::int64_t some = std::min(together, count - first);
      Asked asked = asked_of(job, first, some);
      left.insert(left.end(), asked.zeros.begin(), asked.zeros.end());
      CodedNeighbors part(some, job.k);
      const CodeProbes of_these{probes.lists.rows(first, first + some),
                                probes.terms.rows(first, first + some)};
      for (std::size_t s = 0; s < held.size() && !asked.todo.empty(); ++s) {
        const std::lock_guard lock(held[s]->mutex);
        const std::vector<std::int64_t> lost =
            held[s]->decoded->run(asked.queries, asked.todo, of_these, segments[s].codes,
                                  static_cast<std::uint32_t>(s), job, part, stats, progress);
        std::vector<char> is_lost(some);
        for (const std::int64_t q : lost) left.push_back(first + q), is_lost[q] = 1;
        std::erase_if(asked.todo, [&](std::int64_t q) { return is_lost[q] != 0; });
        most_bytes_ = std::max(most_bytes_, held[s]->queue->most_bytes_in_use());
      }
      for (const std::int64_t q : asked.todo)
        std::copy_n(part.of(q).begin(), job.k, out.of(first + q).begin());
    }
    std::sort(left.begin(), left.end());
    multiplied_ += count - std::ssize(left);
    return left;
  }

  // Decodes the rows of all segments that are not yet; whether they answer queries then. Half of
  // what is free has to hold those of all, since by some of them alone nothing is found.
  static bool decode(std::span<const Segment> segments,
                     std::span<const std::shared_ptr<CodesOnDevice>> held, const CodeScanJob& job) {
    std::int64_t bytes = 0;
    for (const std::shared_ptr<CodesOnDevice>& there : held) {
      const std::lock_guard lock(there->mutex);
      if (there->decoded) continue;
      bytes += DeviceDecodedLists<Queue>::bytes_for(there->lists->begins(), job.book->dim());
      if (bytes > static_cast<std::int64_t>(there->queue->free_bytes() / 2)) return false;
    }
    for (std::size_t s = 0; s < held.size(); ++s) {
      const std::lock_guard lock(held[s]->mutex);
      try {
        if (!held[s]->decoded)
          held[s]->decoded.emplace(*held[s]->queue, *held[s]->book, *held[s]->lists,
                                   segments[s].codes, job);
      } catch (const MemoryBudgetError&) {
        return false;
      }
      if (!held[s]->decoded->answers_any()) return false;
    }
    return true;
  }

  // Queries as they are; those that can be asked for, ascending, and the zeros, numbered among all,
  // to which by ip and cosine every row is equally near.
  struct Asked {
    Matrix<double> queries;
    std::vector<std::int64_t> todo, zeros;
  };
  static Asked asked_of(const CodeScanJob& job, std::int64_t first, std::int64_t count) {
    const std::int64_t dim = job.book->dim();
    Asked out{Matrix<double>(count, dim), {}, {}};
    const double factor = table_factor(job);
    constexpr std::int64_t each = 64;
    parallel_for(job.threads, (count + each - 1) / each, [&](std::int64_t task) {
      for (std::int64_t q = task * each; q < std::min(count, (task + 1) * each); ++q) {
        double* const to = out.queries.row(q);
        job.prepare(first + q, to);
        for (std::int64_t j = 0; j < dim; ++j) to[j] /= factor;
      }
    });
    for (std::int64_t q = 0; q < count; ++q) {
      const double* const query = out.queries.row(q);
      const bool zero = !traits_of(job.metric).squared &&
                        std::all_of(query, query + dim, [](double x) { return x == 0; });
      if (zero)
        out.zeros.push_back(first + q);
      else
        out.todo.push_back(q);
    }
    return out;
  }

  // Some of the queries, by tables.
  static void run_some(Queue& queue, const DeviceCodeBook<Queue>& book,
                       std::span<const DeviceCodeSegment<Queue>> scanned, const CodeScanJob& job,
                       const CodeProbes& probes, std::span<const std::int64_t> which,
                       CodedNeighbors& out, const Progress& progress) {
    const std::int64_t columns = probes.lists.cols(), count = std::ssize(which);
    Matrix<Id> lists(count, columns);
    Matrix<float> terms(count, columns);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t q = which[i];
      std::copy_n(probes.lists.row(q), columns, lists.row(i));
      std::copy_n(probes.terms.row(q), columns, terms.row(i));
    }
    CodeScanJob some = job;
    some.prepare = [&job, which](std::int64_t i, double* to) { job.prepare(which[i], to); };
    CodedNeighbors part(count, job.k);
    DeviceCodeScan<Queue>(queue, book, scanned, some)
        .run({lists.view(), terms.view()}, part, progress);
    for (std::int64_t i = 0; i < count; ++i)
      std::copy_n(part.of(i).begin(), job.k, out.of(which[i]).begin());
  }

  std::shared_ptr<CodesOnDevice> there(const Segment& segment, const CodeScanJob& job) const {
    const auto make = [&] {
      auto out = std::make_shared<CodesOnDevice>();
      out->queue = std::make_shared<Queue>(open_());
      out->book.emplace(*out->queue, *job.book);
      out->lists.emplace(*out->queue, *segment.codes.lists, segment.codes.ids, job.threads);
      return out;
    };
    if (!segment.forms) return make();
    return std::static_pointer_cast<CodesOnDevice>(segment.forms->form(name_, make));
  }

  const std::string name_;
  const std::function<Queue()> open_;
  const std::int64_t host_bytes_;
  std::size_t most_bytes_ = 0;
  std::int64_t multiplied_ = 0;
};

}  // namespace knear::detail
