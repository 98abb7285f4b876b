#include "knear/index/ivf_search.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/core/threads.hpp"
#include "knear/distance/exact_neighbors.hpp"
#include "knear/distance/reference.hpp"
#include "knear/index/code_search.hpp"
#include "knear/index/recall_calibration.hpp"
#include "knear/knn/list_search.hpp"

namespace knear::detail {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// Lists that a search for everything probes before it looks at bounds.
constexpr std::int64_t first_probes = 8;
// Codes that are measured by their vectors, for each neighbour.
constexpr std::int64_t usual_refine_factor = 4;
// Bytes that the distances to all centroids of some queries may take.
constexpr std::int64_t most_distance_bytes = 64 << 20;

// How many lists are probed, by what was asked for; 0: as many as recall takes.
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
  if (method.recall) return 0;
  if (method.probes < 1 || method.probes > lists)
    throw InvalidArgument("probes must be between 1 and the {} lists, but is {}", lists,
                          method.probes);
  return method.probes;
}

// What codes cannot do, and how many of them are measured by their vectors for each neighbour; 0:
// there are no vectors.
std::int64_t refine_factor_of(const SearchOptions& options, const IndexShape& shape) {
  const std::int64_t factor = options.method.refine_factor;
  if (factor < 0 || factor > (1 << 20))
    throw InvalidArgument("refine_factor must be between 1 and {}, but is {}", 1 << 20, factor);
  if (factor > 0 && !shape.refine)
    throw InvalidArgument("refine_factor is {}, but index {} keeps no vectors to refine by", factor,
                          shape.description());
  if (shape.codes && options.method.certify)
    throw InvalidArgument("certify is on, but codes, as index {} has them, prove nothing",
                          shape.description());
  if (factor > 0 && options.method.recall)
    throw InvalidArgument("refine_factor is {} and recall is {}, but only one can be asked for",
                          factor, *options.method.recall);
  return !shape.refine ? 0 : factor > 0 ? factor : usual_refine_factor;
}

// As a search of the rows themselves takes them.
KnnOptions options_of_scan(const SearchOptions& options, Metric metric) {
  KnnOptions out = options.with(metric, RowFilter{});
  out.method.probes = 0, out.method.recall = {};
  out.method.widen = out.method.certify = false, out.method.refine_factor = 0;
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
      longest_ = std::max(longest_, length_of(centroids.rows(l, l + 1)));
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
  const Metric metric_;
  std::vector<double> radii_;
  double longest_ = 0;
};

class IvfSearch {
 public:
  // search: among the rows of lists.
  IvfSearch(const State& state, const SearchRequest& request, ProbedSearch& search)
      : state_(state), request_(request), search_(search), coarse_(*state.coarse) {}

  // The first `probes` lists of each query.
  void probe(std::int64_t probes) {
    const Neighbors near = coarse_.probe(request_.queries, probes, request_.threads);
    search_.nearest(near.ids.view(), found_);
    probed_.assign(static_cast<std::size_t>(request_.queries.rows()), probes);
  }

  // As many lists of each query as a rule says (index/recall_rule.hpp). near: lists_near() of all
  // queries.
  void probe_by(const RecallRule& rule, Neighbors near) {
    const std::int64_t lists = coarse_.lists(), queries = request_.queries.rows();
    std::int64_t probed = std::min(rule.first, lists);
    probed_.assign(static_cast<std::size_t>(queries), probed);
    search_.nearest({near.ids.data(), queries, probed, near.ids.cols()}, found_);
    if (rule.reach < 0) return;
    std::vector<std::int64_t> open(static_cast<std::size_t>(queries));  // queries that go on
    std::iota(open.begin(), open.end(), 0);
    while (probed < lists && !open.empty()) {
      const std::int64_t end = RecallRule::next_end(probed, lists);
      std::vector<std::int64_t> wanted(open.size()), unclear;
      for (std::size_t i = 0; i < open.size(); ++i) {
        wanted[i] = lists_wanted(rule, open[i], near, static_cast<std::int64_t>(i));
        if (wanted[i] > near.ids.cols() && near.ids.cols() < std::min(lists, end + 1))
          unclear.push_back(static_cast<std::int64_t>(i));
      }
      // Of few queries more lists have to be put in order.
      Neighbors far;
      std::vector<std::int64_t> place(open.size(), -1);  // in far
      if (!unclear.empty()) {
        std::vector<std::int64_t> numbers;
        for (const std::int64_t i : unclear) numbers.push_back(open[static_cast<std::size_t>(i)]);
        far = coarse_.probe(copies_of(request_.queries, numbers).view(), std::min(lists, end + 1),
                            request_.threads);
        for (std::size_t u = 0; u < unclear.size(); ++u) {
          const auto i = static_cast<std::size_t>(unclear[u]);
          place[i] = static_cast<std::int64_t>(u);
          wanted[i] = lists_wanted(rule, open[i], far, place[i]);
        }
      }
      std::vector<std::int64_t> next, farther;
      Matrix<Id> probes(std::ssize(open), end - probed);
      for (std::size_t i = 0; i < open.size(); ++i) {
        if (wanted[i] <= probed) continue;
        const std::int64_t stop = std::min(wanted[i], end);
        const Id* const from =
            place[i] < 0 ? near.ids.row(static_cast<std::int64_t>(i)) : far.ids.row(place[i]);
        Id* const row = probes.row(std::ssize(next));
        std::copy_n(from + probed, stop - probed, row);
        std::fill(row + (stop - probed), row + (end - probed), no_id);
        probed_[static_cast<std::size_t>(open[i])] = stop;
        next.push_back(open[i]);
        if (wanted[i] > end) farther.push_back(open[i]);
      }
      if (!next.empty()) search_.nearest(probes.view().rows(0, std::ssize(next)), found_, next);
      probed = end;
      open = std::move(farther);
      if (open.empty() || probed >= lists) break;
      near = lists_near(copies_of(request_.queries, open).view(), rule, probed);
    }
  }

  // After `probed` lists, those that the next round is likely to want: as many again, and one that
  // says whether there are more.
  Neighbors lists_near(AnyMatrixView queries, const RecallRule& rule, std::int64_t probed) const {
    const std::int64_t likely = rule.reach < 0 ? probed : 2 * probed + 1;
    return coarse_.probe(queries, std::min(coarse_.lists(), likely), request_.threads);
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
      // Those that have probed the least come first, so that all have probed the same number.
      std::int64_t from = lists;
      for (const std::int64_t q : open) from = std::min(from, probed_[static_cast<std::size_t>(q)]);
      std::erase_if(open,
                    [&](std::int64_t q) { return probed_[static_cast<std::size_t>(q)] != from; });
      const std::int64_t to = std::min(lists, 2 * from);
      const AnyMatrix queries = copies_of(request_.queries, open);
      const Neighbors near = coarse_.probe(queries.view(), to, request_.threads);
      for (const std::int64_t q : open) probed_[static_cast<std::size_t>(q)] = to;
      search_.nearest({near.ids.data() + from, std::ssize(open), to - from, to}, found_, open);
    }
  }

  // Finds out of which queries no list that was not probed can hold a row of the answer; with
  // `go_on` the lists that can are probed too, so that it is true of all.
  void certify(bool go_on) {
    if (!certified_.empty()) return;  // that was done, and lists were probed out of order since
    const std::int64_t lists = coarse_.lists(), queries = request_.queries.rows();
    const ListBounds bounds(state_, request_.options.metric);
    const std::int64_t bytes = request_.limited()
                                   ? std::min(most_distance_bytes, request_.options.memory / 4)
                                   : most_distance_bytes;
    const std::int64_t block = std::max<std::int64_t>(1, bytes / (lists * 28));
    certified_.assign(static_cast<std::size_t>(queries), 0);
    // Lists that are left to probe, after one another.
    std::vector<std::vector<Id>> left(static_cast<std::size_t>(queries));
    for (std::int64_t begin = 0; begin < queries; begin += block) {
      const std::int64_t end = std::min(queries, begin + block);
      const AnyMatrixView some = request_.queries.rows(begin, end);
      const Neighbors all = coarse_.probe(some, lists, request_.threads);
      const Matrix<float> distances = coarse_.distances(some, request_.threads);
      parallel_for(request_.threads, end - begin, [&](std::int64_t i) {
        const std::int64_t q = begin + i;
        const auto at = static_cast<std::size_t>(q);
        const double length =
            request_.options.metric == Metric::ip ? length_of(request_.queries.rows(q, q + 1)) : 0;
        const double kth = kth_key(q);
        for (std::int64_t p = probed_[at]; p < lists; ++p) {
          const Id list = all.ids.row(i)[p];
          if (!(bounds.least_key(list, distances.row(i)[list], length) > kth))
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
    const std::int64_t probed = std::accumulate(probed_.begin(), probed_.end(), std::int64_t{0});
    out.probes =
        static_cast<double>(probed) / static_cast<double>(std::max<std::int64_t>(1, queries));
    for (std::int64_t q = 0; q < queries; ++q)
      out.short_queries += request_.k_asked > request_.k || is_short(q);
    out.certified_queries = 0;
    for (std::size_t q = 0; q < probed_.size(); ++q) {
      const bool certain =
          !state_.coder && (probed_[q] == lists || (!certified_.empty() && certified_[q]));
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
  // How many lists of a query a rule wants by now; more than near has columns: all of these, and
  // perhaps others. row: of the query in near.
  std::int64_t lists_wanted(const RecallRule& rule, std::int64_t q, const Neighbors& near,
                            std::int64_t row) const {
    const std::span<const float> keys(near.distances.row(row),
                                      static_cast<std::size_t>(near.ids.cols()));
    const double length =
        request_.options.metric == Metric::ip ? length_of(request_.queries.rows(q, q + 1)) : 0;
    return lists_within(keys, rule.reach, coarse_.reach_unit(kth_key(q), length));
  }
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
  ProbedSearch& search_;
  const CoarseQuantizer& coarse_;
  ExactNeighbors found_;
  std::vector<std::int64_t> probed_;  // lists of each query
  std::vector<char> certified_;       // empty: not asked for
};

// Whether the queries are like those of the calibration. Of few, only one that is far from
// every centroid says that they are not.
bool of_one_kind(const RecallCurve& curve, const Neighbors& near) {
  std::vector<float> keys;
  for (std::int64_t q = 0; q < near.ids.rows(); ++q) keys.push_back(near.distances.row(q)[0]);
  std::sort(keys.begin(), keys.end());
  const std::vector<float>& known = curve.nearest_keys;
  if (keys.empty() || known.empty()) return true;
  const float room = known.back() - known.front();
  return keys.back() <= known.back() + room / 2 && keys.front() >= known.front() - room / 2 &&
         alike(keys, known);
}

// Batches of at least so many queries are calibrated by some of their own.
constexpr std::int64_t least_calibrated_batch = 1000, most_batch_sample = 500;

// A search for a recall below 1.
class RecallSearch {
 public:
  RecallSearch(const State& state, const SearchRequest& request,
               std::span<const SearchSegment> segments, double recall, bool filtered)
      : state_(state),
        request_(request),
        segments_(segments),
        recall_(recall),
        filtered_(filtered) {}

  void run(IvfSearch& search) {
    const Metric metric = request_.options.metric;
    auto curve = state_.recall->get(request_.k_asked, [&] {
      return calibrate_by_rows(state_, metric, request_.k_asked, request_.threads,
                               request_.options.progress);
    });
    const RecallPoint* point = curve->find(recall_);
    Neighbors near = lists_of_first_round(search, point);
    if (filtered_ || !of_one_kind(*curve, near)) {
      if (request_.queries.rows() >= least_calibrated_batch) {
        curve = std::make_shared<const RecallCurve>(by_the_batch());
        point = curve->find(recall_);
        near = lists_of_first_round(search, point);
        note_ = fmt::format(
            "{}, so recall was calibrated on {} queries of this batch{}", reason(),
            curve->nearest_keys.size(),
            filtered_ ? "" : "; tune() with such queries keeps that for searches to come");
      } else if (point) {
        holds_ = false;
        note_ = fmt::format(
            "{}, so a recall of {} is not promised; a batch of {} queries is calibrated by itself, "
            "and recall = 1 proves each answer",
            reason(), recall_, least_calibrated_batch);
      }
    }
    if (!point) {  // as many as there are, until everything is found
      search.probe(std::min(first_probes, state_.coarse->lists()));
      search.certify(true);
      return;
    }
    expected_ = point->expected;
    search.probe_by(point->rule, std::move(near));
  }

  void note(KnnReport& report) const {
    report.note = note_;
    if (!expected_ || report.recall_argument == "exact") return;
    report.recall_argument = holds_ ? "calibrated" : "none";
    report.promised_recall = holds_ ? recall_ : 0;
    report.expected_recall = holds_ ? *expected_ : 0;
  }

 private:
  Neighbors lists_of_first_round(IvfSearch& search, const RecallPoint* point) const {
    if (!point) return state_.coarse->probe(request_.queries, 1, request_.threads);
    return search.lists_near(request_.queries, point->rule,
                             std::min(point->rule.first, state_.coarse->lists()));
  }
  RecallCurve by_the_batch() const {
    const std::int64_t queries = request_.queries.rows(),
                       count = std::min(most_batch_sample, queries);
    std::vector<std::int64_t> some;
    for (std::int64_t i = 0; i < count; ++i) some.push_back(i * queries / count);
    const AnyMatrix sample = copies_of(request_.queries, some);
    return calibrate(state_, request_.options.metric, segments_, request_.k_asked, sample.view(),
                     {}, request_.threads, request_.options.progress);
  }
  std::string_view reason() const {
    return filtered_ ? "a filter leaves other rows than recall was calibrated on"
                     : "the queries are unlike those that recall was calibrated on";
  }

  const State& state_;
  const SearchRequest& request_;
  const std::span<const SearchSegment> segments_;
  const double recall_;
  const bool filtered_;
  bool holds_ = true;  // the promise
  std::optional<double> expected_;
  std::string note_;
};

std::unique_ptr<ProbedSearch> probed_search(const State& state, const SearchRequest& request,
                                            std::span<const SearchSegment> segments,
                                            AnyMatrixView vectors, std::int64_t refine_factor,
                                            std::int64_t more_bytes) {
  if (state.coder)
    return std::make_unique<CodeSearch>(state, request, segments, vectors, refine_factor,
                                        more_bytes);
  return std::make_unique<ListSearch>(request, more_bytes);
}

// Whether every answer is exact, or nothing is known of them.
void set_recall(KnnReport& report, bool exact, std::int64_t queries) {
  report.certified_queries = exact ? queries : 0;
  report.promised_recall = report.expected_recall = exact ? 1 : 0;
  report.recall_argument = exact ? "exact" : "none";
}

void check_no_probes(const SearchOptions& options) {
  if (options.method.probes != 0)
    throw InvalidArgument("probes is {}, but there are no inverted lists", options.method.probes);
  if (options.method.widen) throw InvalidArgument("widen is on, but there are no inverted lists");
}

// What a search of codes for a recall does: the rule, and what is to be said of it.
constexpr std::string_view filter_note =
    "a filter leaves other rows than recall was calibrated on, so nothing is promised";
struct RuleForCodes {
  RecallPoint point;
  std::shared_ptr<const RecallCurve> curve;
};
RuleForCodes rule_for_codes(const State& state, const IndexShape& shape, std::int64_t k,
                            double recall, int threads, const Progress& progress) {
  RuleForCodes out;
  out.curve =
      state.recall->get(k, [&] { return calibrate_codes(state, shape, k, threads, progress); });
  const RecallPoint* point = out.curve->find(recall);
  if (!point)
    throw InvalidArgument(
        "recall is {}, but {} is the highest that is promised of the codes of index {}: longer "
        "ones, or vectors to refine them by (RFlat), reach more",
        recall,
        fmt::format(
            "{:.3f}",
            std::floor(1000 * (out.curve->points.empty() ? 0 : out.curve->points.back().promised)) /
                1000),
        shape.description());
  out.point = *point;
  return out;
}

// Says what is promised; notes: why nothing is, if that is so.
void note_recall(KnnReport& report, double recall, double expected, const std::string& note) {
  report.note = note;
  report.recall_argument = note.empty() ? "calibrated" : "none";
  report.promised_recall = note.empty() ? recall : 0;
  report.expected_recall = note.empty() ? expected : 0;
}

// Without inverted lists.
Neighbors search_all_codes(const State& state, const IndexShape& shape,
                           std::span<const SearchSegment> segments, AnyMatrixView queries,
                           AnyMatrixView vectors, std::int64_t k, const SearchOptions& options,
                           std::int64_t refine_factor, KnnReport* report) {
  check_no_probes(options);
  std::optional<RuleForCodes> rule;
  if (options.method.recall) {
    probes_of(options, 1);
    rule =
        rule_for_codes(state, shape, k, *options.method.recall, options.threads, options.progress);
    refine_factor = rule->point.rule.refine_factor;
  }
  const SearchRequest request = request_of_codes(SearchKind::nearest, state, segments, queries, k,
                                                 options_of_scan(options, shape.metric));
  CodeSearch search(state, request, segments, vectors, refine_factor, 0);
  ExactNeighbors found;
  search.nearest(Matrix<Id>(queries.rows(), 1).view(), found);
  if (report) {
    *report = search.report();
    set_recall(*report, false, queries.rows());
    report->uncertified.resize(static_cast<std::size_t>(queries.rows()));
    std::iota(report->uncertified.begin(), report->uncertified.end(), 0);
    if (request.k_asked > request.k) report->short_queries = queries.rows();
    if (rule)
      note_recall(*report, *options.method.recall, rule->point.expected,
                  options.filter.everything() ? "" : std::string(filter_note));
  }
  return rounded(found, shape.metric, queries.rows(), k, request.threads);
}

}  // namespace

Neighbors search_probed(const State& state, const IndexShape& shape,
                        std::span<const SearchSegment> segments, AnyMatrixView queries,
                        AnyMatrixView vectors, std::int64_t k, const SearchOptions& options,
                        KnnReport* report) {
  std::int64_t refine_factor = refine_factor_of(options, shape);
  if (!state.coarse)
    return search_all_codes(state, shape, segments, queries, vectors, k, options, refine_factor,
                            report);
  const std::int64_t lists = state.coarse->lists(), probes = probes_of(options, lists);
  const KnnOptions scan_options = options_of_scan(options, shape.metric);
  const SearchRequest request =
      shape.codes
          ? request_of_codes(SearchKind::nearest, state, segments, queries, k, scan_options)
          : SearchRequest(SearchKind::nearest, segments, queries, k, scan_options, Reuse::expected);
  std::optional<RuleForCodes> rule;
  if (shape.codes && options.method.recall) {
    rule =
        rule_for_codes(state, shape, k, *options.method.recall, options.threads, options.progress);
    refine_factor = rule->point.rule.refine_factor;
  }
  // Numbers and keys of the lists of all queries; by a recall, those of the first rounds.
  const std::int64_t looked_at = probes > 0 ? probes : std::min<std::int64_t>(lists, 64);
  const std::unique_ptr<ProbedSearch> probed = probed_search(
      state, request, segments, vectors, refine_factor, queries.rows() * looked_at * 12);
  IvfSearch search(state, request, *probed);
  if (rule) {
    const std::int64_t first = std::min(rule->point.rule.first, lists);
    Neighbors near = search.lists_near(queries, rule->point.rule, first);
    const bool alike = of_one_kind(*rule->curve, near);
    search.probe_by(rule->point.rule, std::move(near));
    if (options.method.widen) search.widen();
    if (report) {
      *report = search.report();
      note_recall(*report, *options.method.recall, rule->point.expected,
                  !options.filter.everything() ? std::string(filter_note)
                  : !alike ? "the queries are unlike the vectors that recall was calibrated on, so "
                             "nothing is promised"
                           : "");
    }
    return rounded(search.found(), shape.metric, queries.rows(), k, request.threads);
  }
  const bool everything = probes == 0 && *options.method.recall == 1;
  std::optional<RecallSearch> for_recall;
  if (probes == 0 && !everything)
    for_recall
        .emplace(state, request, segments, *options.method.recall, !options.filter.everything())
        .run(search);
  else
    search.probe(probes > 0 ? probes : std::min(first_probes, lists));
  if (options.method.widen) search.widen();
  if (everything || options.method.certify) search.certify(everything);
  if (report) {
    *report = search.report();
    if (for_recall) for_recall->note(*report);
  }
  return rounded(search.found(), shape.metric, queries.rows(), k, request.threads);
}

RecallCurve calibrate_codes(const State& state, const IndexShape& shape, std::int64_t k,
                            int threads, const Progress& progress) {
  constexpr std::int64_t most_lists_looked_at = 256, least_queries = 100, most_queries = 500;
  const KnownNeighbors::Truth truth = state.known ? state.known->truth(k) : KnownNeighbors::Truth{};
  const std::int64_t known = std::ssize(truth.queries), count = std::min(known, most_queries);
  if (count < least_queries)
    throw InvalidArgument(
        "recall of {} neighbours is not known of index {}: it knows those of {} vectors, where {} "
        "are needed (training keeps {} with {} neighbours; what was merged, removed or read from "
        "FAISS is not known, and tuning with the base finds out)",
        k, shape.description(), known, least_queries, KnownNeighbors::most_queries,
        KnownNeighbors::most_neighbors);
  // Evenly from all of them, which are in the order of the vectors that they were drawn from.
  std::vector<std::size_t> used;
  std::vector<std::int64_t> numbers;
  for (std::int64_t i = 0; i < count; ++i) {
    used.push_back(static_cast<std::size_t>(i * known / count));
    numbers.push_back(truth.queries[used.back()]);
  }
  const AnyMatrix vectors = copies_of(state.known->queries(), numbers);
  Matrix<float> transformed;
  AnyMatrixView queries = vectors.view();
  if (state.transform)
    transformed = state.transform->apply(queries, threads), queries = transformed.view();
  std::int64_t most_equal = 0;
  for (const std::size_t at : used) most_equal = std::max(most_equal, std::ssize(truth.equal[at]));
  const std::vector<SearchSegment> segments = live_segments(state);
  const SearchRequest request = request_of_codes(
      SearchKind::nearest, state, segments, queries, k + std::min<std::int64_t>(most_equal, k),
      {.metric = shape.metric, .threads = threads, .progress = progress});
  const std::int64_t lists = state.coarse ? state.coarse->lists() : 1,
                     looked_at = std::min(lists, most_lists_looked_at);
  std::vector<float> nearest_keys;
  Neighbors order;
  if (state.coarse) {
    order = state.coarse->probe(queries, looked_at, threads);
    for (std::int64_t q = 0; q < count; ++q) nearest_keys.push_back(order.distances.row(q)[0]);
  }
  const auto recalls = [&](const ExactNeighbors& found) {
    std::vector<double> out;
    for (std::size_t q = 0; q < static_cast<std::size_t>(count); ++q) {
      const std::vector<Id>&nearest = truth.nearest[used[q]], &equal = truth.equal[used[q]];
      const Id* ids = found.ids.row(static_cast<std::int64_t>(q));
      std::int64_t taken = 0, there = 0;
      for (std::int64_t i = 0; i < found.columns() && taken < k; ++i) {
        if (std::find(equal.begin(), equal.end(), ids[i]) != equal.end()) continue;
        there += std::find(nearest.begin(), nearest.end(), ids[i]) != nearest.end(), ++taken;
      }
      out.push_back(
          nearest.empty() ? 1 : static_cast<double>(there) / static_cast<double>(nearest.size()));
    }
    return out;
  };
  std::vector<RuleSeen> seen;
  // Tries a rule; returns its mean recall.
  const auto attempt = [&](const RecallRule& rule) {
    CodeSearch probed(state, request, segments, vectors.view(), rule.refine_factor, 0);
    probed.measure(k * rule.refine_factor + request.k - k);
    RuleSeen one{rule, {}, 1, static_cast<double>(state.size), 0};
    if (state.coarse) {
      IvfSearch search(state, request, probed);
      search.probe_by(rule, search.lists_near(queries, rule, std::min(rule.first, lists)));
      one.recalls = recalls(search.found());
      const KnnReport report = search.report();
      one.lists = report.probes, one.rows = report.probed_rows;
    } else {
      ExactNeighbors found;
      probed.nearest(Matrix<Id>(count, 1).view(), found);
      one.recalls = recalls(found);
    }
    // Nanoseconds, about: bytes of codes, lists, rounds, vectors that are measured.
    one.cost = one.rows * static_cast<double>(state.coder->code_size()) * 0.015 + one.lists * 150 +
               (rule.reach < 0 ? 0 : 5000) +
               static_cast<double>(rule.refine_factor * request.k) * 150;
    const double mean =
        std::accumulate(one.recalls.begin(), one.recalls.end(), 0.0) / static_cast<double>(count);
    seen.push_back(std::move(one));
    return mean;
  };
  double best = 0;
  std::vector<std::int64_t> factors{0};
  if (shape.refine) factors = {2, 4, 8, 32};
  for (const std::int64_t factor : factors) {
    double before = -1;
    // What is nearly everything needs no more of them.
    if (!seen.empty() && best >= 0.998) break;
    for (std::int64_t first = 1; first <= looked_at; first = std::max(first + 1, first * 8 / 5)) {
      const double mean = attempt({first, -1, factor});
      best = std::max(best, mean);
      if (mean < before + 0.0005 && first > 8) break;  // more lists bring nothing more
      before = mean;
    }
    if (looked_at < 8) continue;
    // Reaches with which about half of the queries go on to so many lists.
    CodeSearch probed(state, request, segments, vectors.view(), factor, 0);
    ExactNeighbors found;
    probed.nearest({order.ids.data(), count, 2, looked_at}, found);
    for (std::int64_t to = 4; to <= looked_at; to *= 2) {
      std::vector<double> reaches;
      for (std::int64_t q = 0; q < count; ++q) {
        const double length = shape.metric == Metric::ip ? length_of(queries.rows(q, q + 1)) : 0;
        const double unit = state.coarse->reach_unit(
            request.k > 0 ? found.keys.row(q)[request.k - 1] : infinity, length);
        const float* keys = order.distances.row(q);
        const double reach = (keys[to - 1] - keys[0]) / unit;
        reaches.push_back(unit > 0 && reach < 1e30 ? reach : 0);
      }
      std::nth_element(reaches.begin(), reaches.begin() + count / 2, reaches.end());
      const double reach = reaches[static_cast<std::size_t>(count / 2)];
      if (reach > 0) attempt({2, reach, factor});
    }
  }
  return curve_of(k, std::move(seen), std::move(nearest_keys));
}

RangeNeighbors range_search_probed(const State& state, const IndexShape& shape,
                                   std::span<const SearchSegment> segments, AnyMatrixView queries,
                                   AnyMatrixView vectors, double radius,
                                   const SearchOptions& options, KnnReport* report) {
  const std::int64_t refine_factor = refine_factor_of(options, shape);
  const std::int64_t lists = state.coarse ? state.coarse->lists() : 1,
                     probes = state.coarse ? probes_of(options, lists) : 1;
  if (!state.coarse) check_no_probes(options);
  if (options.method.widen)
    throw InvalidArgument("widen is on, but a range search has no number of rows to find");
  if (options.method.certify)
    throw InvalidArgument("certify is on, but of a range search only recall = 1 is certain");
  const KnnOptions scan_options = options_of_scan(options, shape.metric);
  const SearchRequest request = shape.codes ? request_of_codes(SearchKind::range, state, segments,
                                                               queries, usual_k, scan_options)
                                            : SearchRequest(SearchKind::range, segments, queries,
                                                            usual_k, scan_options, Reuse::expected);
  if (options.method.recall.value_or(1) != 1)
    throw InvalidArgument("recall is {}, but a range search is calibrated for none below 1",
                          *options.method.recall);
  if (shape.codes && options.method.recall)
    throw InvalidArgument("recall is {}, but a range search of codes has none to promise",
                          *options.method.recall);
  // Everything within a radius: a scan of all rows.
  if (probes == 0) return range_search_segments(request, radius, report);
  const std::unique_ptr<ProbedSearch> search =
      probed_search(state, request, segments, vectors, refine_factor, queries.rows() * probes * 12);
  RangeLists found(static_cast<std::size_t>(queries.rows()));
  search->within(state.coarse ? state.coarse->probe(queries, probes, request.threads).ids.view()
                              : Matrix<Id>(queries.rows(), 1).view(),
                 order_key(shape.metric, radius), found);
  RangeNeighbors out = sorted_neighbors(found, shape.metric, request.threads);
  if (report) {
    *report = search->report();
    report->k = 0;
    if (state.coarse) {
      report->lists = lists, report->probes = static_cast<double>(probes);
      report->method = "inverted-lists";
    }
    report->memory_bytes += 64 * out.begin.back();
    set_recall(*report, !shape.codes && probes == lists, queries.rows());
  }
  return out;
}

}  // namespace knear::detail
