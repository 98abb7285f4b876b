// All rows within a radius: a search whose threshold is given, so it estimates none, and which has
// no k but the one that plans take. What it finds lies in lists that grow, and memory limits those.
#include "knear/knn/search/range_search.hpp"

#include <utility>

#include "knear/core/cpu.hpp"
#include "knear/distance/reference.hpp"
#include "knear/knn/search/search.hpp"

namespace knear::detail {
namespace {

class RangeSearch final : public Search {
 public:
  // limit: the largest key that is found.
  RangeSearch(const SearchRequest& request, DeviceEngine* device, double limit)
      : Search(request, device), limit_(limit) {}

  RangeLists run_range(KnnReport* report) {
    const std::int64_t queries = request_.queries.rows();
    RangeLists lists(queries);
    find(lists);
    for (const auto& list : lists) report_.note_answer(64 * std::ssize(list));
    if (report) *report = this->report();
    return lists;
  }

 private:
  // Adds what is found to `lists`, query q to that of number which[q]; empty: to list q. What the
  // lists have already counts among the pairs that memory holds.
  void find(RangeLists& lists, std::span<const std::int64_t> which = {}) {
    at_.for_each_chunk([&] {
      // 16 bytes a pair, in two growing lists at once for a while; in the end 12 more in the
      // answer.
      const std::int64_t memory = request_.limited() ? request_.options.memory : machine_memory();
      const std::int64_t packing = at_.packing_bytes(at_.rows.rows(), at_.first_pass());
      RangeSink sink(lists, at_.ids(),
                     std::max<std::int64_t>(0, (memory - at_.other_bytes() - packing) / 64), which);
      search_into(sink);
    });
  }

  void search_into(RangeSink& sink) {
    if (!at_.device) return find_on_processor(request_.queries, sink);
    const std::vector<std::int64_t> todo =
        at_.device->range(at_, report_, limit_, at_.all_queries(), sink);
    report_.note_fallback(std::ssize(todo));
    if (todo.empty()) return;
    if (at_.prepared().on_device) return find_in_copies(todo, sink);
    const AnyMatrix some = copies_of(request_.queries, todo);
    RangeSink theirs(sink, todo);
    find_on_processor(some.view(), theirs);
  }

  void find_in_copies(const std::vector<std::int64_t>& todo, RangeSink& sink) {
    each_copy(todo, [&](SearchRequest request) {
      for (SearchRequest::Segment& segment : request.segments)
        segment.given.ids = sink.ids().from(segment.given.ids.first);
      RangeSearch search(request, nullptr, limit_);
      search.find(sink.lists(), todo);
      report_.note_search(search.report_);
    });
  }

  void find_on_processor(AnyMatrixView queries, RangeSink& sink) {
    const Progress& progress = request_.options.progress;
    ScanJob job = at_.job(queries, request_.k);
    passes_.apply_tuning(job);
    const Choice choice = passes_.choose(job);
    if (tree_.within(job, choice, limit_, sink)) return;
    const FirstPass pass = choice.passes.front();
    report_.note_pass(pass, queries.rows(), at_.count);
    if (pass == FirstPass::direct) {
      at_.list_allowed();
      return scan_range_directly(job, at_.subset, limit_, sink, report_.stats, progress);
    }
    const auto packed = passes_.packed(pass, choice);
    scan_range(*packed, job, limit_, sink, report_.stats, progress);
    report_.note_packed(at_.prepared(), *packed, pass);
    report_.note_scored(*packed, queries.rows());
  }

  const double limit_;
};

}  // namespace

RangeNeighbors sorted_neighbors(RangeLists& lists, Metric metric, int threads) {
  RangeNeighbors out;
  out.begin.assign(1, 0);
  for (const auto& list : lists)
    out.begin.push_back(out.begin.back() + static_cast<std::int64_t>(list.size()));
  out.ids.resize(out.begin.back());
  out.distances.resize(out.ids.size());
  parallel_for(threads, std::ssize(lists), [&](std::int64_t i) {
    auto& list = lists[i];
    std::sort(list.begin(), list.end());
    std::size_t place = out.begin[i];
    for (const auto& [key, id] : list) {
      out.ids[place] = id;
      out.distances[place++] = static_cast<float>(distance_of_key(metric, key));
    }
    list = {};
  });
  return out;
}

RangeLists within_on(DeviceEngine* device, const SearchRequest& request, double radius,
                     KnnReport* report) {
  const double limit = order_key(request.options.metric, radius);
  return RangeSearch(request, device, limit).run_range(report);
}

RangeNeighbors range_search_on(DeviceEngine* device, const SearchRequest& request, double radius,
                               KnnReport* report) {
  const Stopwatch time;
  RangeLists lists = within_on(device, request, radius, report);
  RangeNeighbors out = sorted_neighbors(lists, request.options.metric, request.threads);
  if (report) set_call(*report, request.rows, request.queries.cols(), time);
  return out;
}

}  // namespace knear::detail
