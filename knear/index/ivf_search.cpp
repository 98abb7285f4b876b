#include "knear/index/ivf_search.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/core/threads.hpp"
#include "knear/distance/exact_neighbors.hpp"
#include "knear/distance/reference.hpp"
#include "knear/knn/list_search.hpp"

namespace knear::detail {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// Lists that a search for everything probes before it looks at bounds.
constexpr std::int64_t first_probes = 8;
// Bytes that the distances to all centroids of some queries may take.
constexpr std::int64_t most_distance_bytes = 64 << 20;

// How many lists are probed, by what was asked for; 0: as many as it takes to find everything.
std::int64_t probes_of(const SearchOptions& options, std::int64_t lists) {
  const MethodOptions& method = options.method;
  if (const double recall = method.recall.value_or(1); !(recall > 0 && recall <= 1))
    throw InvalidArgument("recall must be in (0, 1], but is {}", recall);
  if (method.probes != 0 && method.recall)
    throw InvalidArgument("probes is {} and recall is {}, but only one of them can be asked for",
                          method.probes, *method.recall);
  if (method.probes == 0 && !method.recall)
    throw InvalidArgument(
        "neither probes nor recall is given, and a search of {} inverted lists needs one of them",
        lists);
  if (method.recall) {
    if (*method.recall != 1)
      throw InvalidArgument(
          "recall is {}, but inverted lists know no recall below 1; ask for probes, or recall = 1",
          *method.recall);
    return 0;
  }
  if (method.probes < 1 || method.probes > lists)
    throw InvalidArgument("probes must be between 1 and the {} lists, but is {}", lists,
                          method.probes);
  return method.probes;
}

// As a search of the rows themselves takes them.
KnnOptions options_of_scan(const SearchOptions& options, Metric metric) {
  KnnOptions out = options.with(metric, RowFilter{});
  out.method.probes = 0, out.method.recall = {};
  out.method.widen = out.method.certify = false;
  return out;
}

// What is certain of the keys of rows in lists that were not probed.
class ListBounds {
 public:
  // The largest distance of a live or removed row from its centroid, of each list.
  ListBounds(const State& state, Metric metric) : metric_(metric) {
    radii_.assign(static_cast<std::size_t>(state.coarse->lists()), 0);
    for (const Segment& segment : state.segments)
      for (std::size_t l = 0; l < radii_.size(); ++l)
        radii_[l] = std::max<double>(radii_[l], segment.rows->radii()[l]);
    const MatrixView<float> centroids = state.coarse->centroids();
    for (std::int64_t l = 0; l < centroids.rows(); ++l)
      longest_ = std::max(longest_, std::sqrt(squares(centroids.rows(l, l + 1))));
  }

  // |q| of a query [1 x dim].
  static double length(AnyMatrixView query) {
    return visit(query, [](auto view) { return std::sqrt(squares(view)); });
  }
  // No row of a list has a smaller key, where the distance of its centroid from a query of a given
  // length was rounded to float32.
  double least_key(std::int64_t list, float distance, double query_length) const {
    const double radius = radii_[static_cast<std::size_t>(list)];
    // Rounding to float32, and that of products and sums of up to 2^16 terms in float64.
    constexpr double to_float = 0x1p-23, sum = 1e-11;
    double d = distance;
    if (metric_ == Metric::ip)
      return -(d + std::abs(d) * to_float + query_length * longest_ * sum +
               query_length * radius * (1 + 1e-9) + std::numeric_limits<float>::min());
    d = std::min<double>(d, std::numeric_limits<float>::max()) * (1 - to_float);
    if (metric_ == Metric::cosine) d = 2 * (d - sum);
    const bool cosine = metric_ == Metric::cosine;
    const double least = cosine ? -sum : 0;  // 1 - cosine may be a little below 0
    if (!(d >= std::numeric_limits<float>::min())) return least;
    const double gap = std::sqrt(d) - radius;
    if (gap <= 0) return least;
    const double key = gap * gap * (1 - 1e-9);
    return cosine ? key / 2 - sum : key;
  }

 private:
  template <class T>
  static double squares(MatrixView<T> row) {
    double sum = 0;
    for (std::int64_t j = 0; j < row.cols(); ++j)
      sum += to_double(row.row(0)[j]) * to_double(row.row(0)[j]);
    return sum;
  }

  const Metric metric_;
  std::vector<double> radii_;
  double longest_ = 0;
};

class IvfSearch {
 public:
  IvfSearch(const State& state, const SearchRequest& request)
      : state_(state), request_(request), search_(request), coarse_(*state.coarse) {}

  // The first `probes` lists of each query.
  void probe(std::int64_t probes) {
    const Neighbors near = coarse_.probe(request_.queries, probes, request_.threads);
    search_.nearest(near.ids.view(), found_);
    probed_.assign(static_cast<std::size_t>(request_.queries.rows()), probes);
  }

  // Twice as many lists for queries that have found fewer than k rows, until they have or all lists
  // are probed.
  void widen() {
    const std::int64_t lists = coarse_.lists();
    for (;;) {
      std::vector<std::int64_t> open;
      for (std::int64_t q = 0; q < request_.queries.rows(); ++q)
        if (is_short(q) && probed_[static_cast<std::size_t>(q)] < lists) open.push_back(q);
      if (open.empty()) return;
      // All of them have probed the same number.
      const std::int64_t from = probed_[static_cast<std::size_t>(open.front())];
      const std::int64_t to = std::min(lists, 2 * from);
      const AnyMatrix queries = copies_of(request_.queries, open);
      const Neighbors near = coarse_.probe(queries.view(), to, request_.threads);
      Matrix<Id> probes(request_.queries.rows(), to - from);
      std::fill_n(probes.data(), probes.rows() * probes.cols(), no_id);
      for (std::size_t i = 0; i < open.size(); ++i) {
        std::copy_n(near.ids.row(static_cast<std::int64_t>(i)) + from, to - from,
                    probes.row(open[i]));
        probed_[static_cast<std::size_t>(open[i])] = to;
      }
      search_.nearest(probes.view(), found_);
    }
  }

  // Finds out of which queries no list that was not probed can hold a row of the answer; with
  // `go_on` the lists that can are probed too, so that it is true of all.
  void certify(bool go_on) {
    const std::int64_t lists = coarse_.lists(), queries = request_.queries.rows();
    const ListBounds bounds(state_, request_.options.metric);
    const std::int64_t block = std::max<std::int64_t>(1, most_distance_bytes / (lists * 12));
    certified_.assign(static_cast<std::size_t>(queries), 0);
    // Lists that are left to probe, after one another.
    std::vector<std::vector<Id>> left(static_cast<std::size_t>(queries));
    for (std::int64_t begin = 0; begin < queries; begin += block) {
      const std::int64_t end = std::min(queries, begin + block);
      const Neighbors all =
          coarse_.probe(request_.queries.rows(begin, end), lists, request_.threads);
      parallel_for(request_.threads, end - begin, [&](std::int64_t i) {
        const std::int64_t q = begin + i;
        const auto at = static_cast<std::size_t>(q);
        const double length = request_.options.metric == Metric::ip
                                  ? ListBounds::length(request_.queries.rows(q, q + 1))
                                  : 0;
        const double kth = kth_key(q);
        for (std::int64_t p = probed_[at]; p < lists; ++p) {
          const Id list = all.ids.row(i)[p];
          if (!(bounds.least_key(list, all.distances.row(i)[p], length) > kth))
            left[at].push_back(list);
        }
        certified_[at] = left[at].empty();
      });
    }
    if (go_on) probe_all(left);
  }

  // Of the answer, [queries x request.k].
  const ExactNeighbors& found() const { return found_; }
  KnnReport report() {
    KnnReport out = search_.report();
    const std::int64_t queries = request_.queries.rows(), lists = coarse_.lists();
    out.lists = lists;
    std::int64_t probed = 0;
    bool all = true;
    for (const std::int64_t count : probed_) probed += count, all &= count == lists;
    out.probes =
        static_cast<double>(probed) / static_cast<double>(std::max<std::int64_t>(1, queries));
    for (std::int64_t q = 0; q < queries; ++q)
      out.short_queries += request_.k_asked > request_.k || is_short(q);
    out.certified_queries = 0;
    for (std::size_t q = 0; q < probed_.size(); ++q) {
      const bool certain = probed_[q] == lists || (!certified_.empty() && certified_[q]);
      out.certified_queries += certain;
      if (!certain) out.uncertified.push_back(static_cast<std::int64_t>(q));
    }
    const bool exact = out.certified_queries == queries;
    out.promised_recall = exact ? 1 : 0, out.expected_recall = exact ? 1 : 0;
    out.recall_argument = exact ? "exact" : "none";
    out.method = "inverted-lists";
    return out;
  }

 private:
  bool is_short(std::int64_t q) const {
    return request_.k > 0 && found_.ids.row(q)[request_.k - 1] == no_id;
  }
  double kth_key(std::int64_t q) const {
    return request_.k == 0 ? -infinity : found_.keys.row(q)[request_.k - 1];
  }
  // Some columns at a time: few queries have many.
  void probe_all(const std::vector<std::vector<Id>>& left) {
    std::size_t most = 0;
    for (std::size_t q = 0; q < left.size(); ++q) {
      most = std::max(most, left[q].size());
      probed_[q] += std::ssize(left[q]);
      certified_[q] = 1;
    }
    constexpr std::size_t columns = 64;
    for (std::size_t from = 0; from < most; from += columns) {
      Matrix<Id> probes(std::ssize(left),
                        static_cast<std::int64_t>(std::min(columns, most - from)));
      std::fill_n(probes.data(), probes.rows() * probes.cols(), no_id);
      for (std::size_t q = 0; q < left.size(); ++q)
        if (left[q].size() > from)
          std::copy_n(left[q].data() + from, std::min(columns, left[q].size() - from),
                      probes.row(static_cast<std::int64_t>(q)));
      search_.nearest(probes.view(), found_);
    }
  }

  const State& state_;
  const SearchRequest& request_;
  ListSearch search_;
  const CoarseQuantizer& coarse_;
  ExactNeighbors found_;
  std::vector<std::int64_t> probed_;  // lists of each query
  std::vector<char> certified_;       // empty: not asked for
};

}  // namespace

Neighbors search_inverted_lists(const State& state, Metric metric,
                                std::span<const SearchSegment> segments, AnyMatrixView queries,
                                std::int64_t k, const SearchOptions& options, KnnReport* report) {
  const std::int64_t lists = state.coarse->lists(), probes = probes_of(options, lists);
  const SearchRequest request(SearchKind::nearest, segments, queries, k,
                              options_of_scan(options, metric), Reuse::expected);
  IvfSearch search(state, request);
  search.probe(probes > 0 ? probes : std::min(first_probes, lists));
  if (options.method.widen) search.widen();
  if (probes == 0 || options.method.certify) search.certify(probes == 0);
  if (report) *report = search.report();
  return rounded(search.found(), metric, queries.rows(), k, request.threads);
}

RangeNeighbors range_search_inverted_lists(const State& state, Metric metric,
                                           std::span<const SearchSegment> segments,
                                           AnyMatrixView queries, double radius,
                                           const SearchOptions& options, KnnReport* report) {
  const std::int64_t lists = state.coarse->lists(), probes = probes_of(options, lists);
  if (options.method.widen)
    throw InvalidArgument("widen is on, but a range search has no number of rows to find");
  if (options.method.certify)
    throw InvalidArgument("certify is on, but of a range search only recall = 1 is certain");
  const SearchRequest request(SearchKind::range, segments, queries, usual_k,
                              options_of_scan(options, metric), Reuse::expected);
  // Everything within a radius: a scan of all rows.
  if (probes == 0) return range_search_segments(request, radius, report);
  ListSearch search(request);
  const Neighbors near = state.coarse->probe(queries, probes, request.threads);
  RangeLists found(static_cast<std::size_t>(queries.rows()));
  search.within(near.ids.view(), order_key(metric, radius), found);
  RangeNeighbors out = sorted_neighbors(found, metric, request.threads);
  if (report) {
    *report = search.report();
    report->k = 0, report->lists = lists, report->probes = static_cast<double>(probes);
    report->method = "inverted-lists";
    report->memory_bytes += 64 * out.begin.back();
    const bool exact = probes == lists;
    report->certified_queries = exact ? queries.rows() : 0;
    report->promised_recall = report->expected_recall = exact ? 1 : 0;
    report->recall_argument = exact ? "exact" : "none";
  }
  return out;
}

}  // namespace knear::detail
