#include "knear/index/lists/list_probing.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "knear/core/threads.hpp"
#include "knear/index/recall/recall_rule.hpp"

namespace knear::detail {

// What is certain of the keys of rows in lists that were not probed.
class ListBounds {
 public:
  // The largest distance of a live or removed row from its centroid, of each list.
  ListBounds(const State& state, Metric metric) : metric_(metric) {
    radii_.assign(state.coarse->lists(), 0);
    for (const Segment& segment : state.segments)
      for (std::size_t l = 0; l < radii_.size(); ++l)
        radii_[l] = std::max<double>(radii_[l], segment.rows->radii()[l]);
    const MatrixView<float> centroids = state.coarse->centroids();
    for (std::int64_t l = 0; l < centroids.rows(); ++l)
      longest_ = std::max(longest_, length_of(centroids.rows(l, l + 1)));
    for (const double radius : radii_) widest_ = std::max(widest_, radius);
  }

  // No row of a list has a smaller key, where the distance of its centroid from a query of a given
  // length was rounded to float32.
  double least_key(std::int64_t list, float distance, double query_length) const {
    return key_within(radii_[list], distance, query_length);
  }
  // No row of any list whose centroid is at least so far has a smaller key; not for products.
  double least_key_beyond(float distance) const { return key_within(widest_, distance, 0); }

 private:
  double key_within(double radius, float distance, double query_length) const {
    // Rounding to float32, and that of products and sums of up to 2^16 terms in float64.
    constexpr double to_float = 0x1p-23, sum = 1e-11;
    double d = distance;
    if (traits_of(metric_).lifted)
      return -(d + std::abs(d) * to_float + query_length * longest_ * sum +
               query_length * radius * (1 + 1e-9) + std::numeric_limits<float>::min());
    d = std::min<double>(d, std::numeric_limits<float>::max()) * (1 - to_float);
    if (traits_of(metric_).unit_rows) d = 2 * (d - sum);
    const bool cosine = traits_of(metric_).unit_rows;
    const double least = cosine ? -sum : 0;  // 1 - cosine may be a little below 0
    if (!(d >= std::numeric_limits<float>::min())) return least;
    const double gap = std::sqrt(d) - radius;
    if (gap <= 0) return least;
    const double key = gap * gap * (1 - 1e-9);
    return cosine ? key / 2 - sum : key;
  }

  const Metric metric_;
  std::vector<double> radii_;
  double longest_ = 0, widest_ = 0;
};

namespace {

// Lists that are put in order at first to find those that may hold nearer rows, and how many may be
// kept for all queries.
constexpr std::int64_t least_ordered = 32, most_kept_lists = 1 << 24;
// Bytes that the distances to all centroids of some queries may take.
constexpr std::int64_t most_distance_bytes = 64 << 20;
// What a list of a query takes at most while it is found and scanned, as measured.
constexpr std::int64_t bytes_of_probe = 72;

// Of fewer queries than that, one that is far from every centroid is one too many.
constexpr std::int64_t few_queries = 11;
// How often queries of the same kind may be taken for others because of those that are far.
constexpr double seldom = 1e-3;

// Of n numbers and m more of the same kind, all orders are as likely: so that the last `count` of
// them are all of the n.
double chance_at_the_end(std::int64_t count, double n, double m) {
  double out = 1;
  for (std::int64_t i = 0; i < count; ++i)
    out *= (n - static_cast<double>(i)) / (n + m - static_cast<double>(i));
  return out;
}

// Whether more numbers lie beyond the known ones, by half of their range, than may be expected of
// the same kind; both ascending, not empty. Of thousands some lie there whatever the kind.
bool too_many_beyond(std::span<const float> keys, std::span<const float> known) {
  const auto n = static_cast<double>(keys.size()), m = static_cast<double>(known.size());
  const double low = known.front(), high = known.back();
  const auto within = [&](double ranges) {
    const double room = ranges * (high - low);
    const auto above = [&](float key) { return key > high + room; };
    const auto below = [&](float key) { return key < low - room; };
    return std::pair(std::find_if_not(keys.rbegin(), keys.rend(), above) - keys.rbegin(),
                     std::find_if_not(keys.begin(), keys.end(), below) - keys.begin());
  };
  if (std::ssize(keys) < few_queries) {
    // Of one, and of the fewer the more of them there are beside those that are known.
    const auto [above, below] = within(std::max(0.5, 50 * n / m));
    if (above + below > 0) return true;
  }
  const auto [above, below] = within(0.5);
  return chance_at_the_end(std::max(above, below), n, m) < seldom / 2;
}

// Whether so many of n queries or more are unlikely to lie where a share of m known ones does: the
// bound of Chernoff, of once in 100,000 times, for a share as large as those may have come from.
bool unlikely(double count, double n, double share, double m) {
  const double part = count / n, most = share + (4.3 * std::sqrt(share * m) + 9) / m;
  if (part <= most) return false;
  const double others = part < 1 ? (1 - part) * std::log((1 - part) / (1 - most)) : 0;
  return n * (part * std::log(part / most) + others) > 11.512925464970229;  // ln(1e5)
}

// The same of nearness, by what is far alone: what is nearer is found as well. Of the farthest
// twentieth of the queries that are known the recall is hardly known.
bool too_many_farther(std::span<const float> nearness, const RecallByNearness& known) {
  const auto n = static_cast<double>(nearness.size()), m = static_cast<double>(known.queries);
  const auto beyond = [&](double ranges) {
    const double room = ranges * (known.most - known.least);
    return std::count_if(nearness.begin(), nearness.end(),
                         [&](float x) { return x > known.most + room; });
  };
  if (std::ssize(nearness) < few_queries && beyond(std::max(0.5, 50 * n / m)) > 0) return true;
  std::vector<double> counts(known.shares.size());
  for (const float x : nearness) ++counts[known.group_of(x)];
  double share = 0, count = 0;
  for (std::size_t g = counts.size(); g-- > 1;) {
    share += known.shares[g], count += counts[g];
    if (share > 0.051) break;
    if (unlikely(count, n, share, m)) return true;
  }
  return chance_at_the_end(beyond(0.5), n, m) < seldom / 2;
}

// How often queries of the same kind may be taken for others because of what they find: that is a
// bound, and is reached by few queries alone. Other lists are probed for large batches.
constexpr double seldom_lower = 0.01, seldom_lower_of_learned = 1e-3, seldom_lower_of_many = 1e-5;

// Whether the mean recall of n queries, drawn from those that are known, is less likely than that
// to be so low, by the bound of Chernoff. Of few queries it has a longer tail than its variance
// says.
bool is_unlikely_mean(double mean, double n, const RecallByNearness& known, double chance) {
  // What is known is the mean of no more than so many queries itself.
  const double m = static_cast<double>(known.queries), counted = n * m / (n + m);
  // The bound is not below the share of those whose recall is as low, which is enough for most.
  double as_low = 0;
  for (std::size_t g = 0; g < known.shares.size(); ++g)
    if (known.recalls[g] <= mean) as_low += known.shares[g];
  if (std::log(as_low) * counted > std::log(chance)) return false;
  const auto log_of_bound = [&](double t) {
    double sum = 0;
    for (std::size_t g = 0; g < known.shares.size(); ++g)
      sum += known.shares[g] * std::exp(t * (mean - known.recalls[g]));
    return std::log(sum);
  };
  double low = 0, high = 1e4;  // of a convex function
  for (int i = 0; i < 100; ++i) {
    const double a = low + (high - low) / 3, b = high - (high - low) / 3;
    if (log_of_bound(a) > log_of_bound(b))
      low = a;
    else
      high = b;
  }
  return std::min(0.0, log_of_bound(low)) * counted < std::log(chance);
}

}  // namespace

std::int64_t queries_together(const SearchRequest& request, std::int64_t lists) {
  const std::int64_t queries = std::max<std::int64_t>(1, request.queries.rows());
  if (!request.limited()) return queries;
  const std::int64_t room = request.options.memory / 4 / bytes_of_probe;
  return std::clamp<std::int64_t>(room / std::max<std::int64_t>(1, lists), 1, queries);
}

std::int64_t bytes_of_probing(const SearchRequest& request, std::int64_t lists) {
  return queries_together(request, lists) * lists * bytes_of_probe;
}

void ListProbing::probe_to_certify(std::int64_t probes) {
  const std::int64_t queries = request_.queries.rows(),
                     ordered = std::min(coarse_.lists(), std::max(least_ordered, 2 * probes));
  if (!coarse_.finds_nearest_lists() || request_.limited() || queries == 0 ||
      queries * ordered > most_kept_lists)
    return probe(probes);
  ordered_ = order_lists(request_.queries, ordered);
  search_.nearest({ordered_.ids.data(), queries, probes, ordered}, found_);
  probed_.assign(queries, probes);
}

void ListProbing::probe(std::int64_t probes) {
  const std::int64_t queries = request_.queries.rows(), block = queries_together(request_, probes);
  for (std::int64_t begin = 0; begin < queries; begin += block) {
    const std::int64_t end = std::min(queries, begin + block);
    search_lists(order_lists(request_.queries.rows(begin, end), probes), begin);
  }
  if (queries == 0) search_.nearest(Matrix<Id>(0, probes).view(), found_);
  probed_.assign(queries, probes);
}

void ListProbing::search_lists(const Neighbors& near, std::int64_t begin) {
  if (near.ids.rows() == request_.queries.rows()) return search_.nearest(near.ids.view(), found_);
  std::vector<std::int64_t> which(near.ids.rows());
  std::iota(which.begin(), which.end(), begin);
  search_.nearest(near.ids.view(), found_, which);
}

NearLists ListProbing::lists_near(std::int64_t most) {
  const std::int64_t lists = std::min(coarse_.lists(), most);
  const std::int64_t queries = request_.queries.rows(), block = queries_together(request_, lists);
  NearLists out;
  for (std::int64_t begin = 0; begin < queries; begin += block) {
    const std::int64_t end = std::min(queries, begin + block);
    Neighbors near = order_lists(request_.queries.rows(begin, end), lists);
    for (std::int64_t q = 0; q < end - begin; ++q) {
      out.nearest.push_back(near.distances.row(q)[0]);
      out.farthest.push_back(near.distances.row(q)[lists - 1]);
    }
    if (end - begin == queries) out.lists = std::move(near);
  }
  return out;
}

NearLists first_of(const NearLists& near, std::int64_t most) {
  NearLists out{near.nearest, {}, {}};
  const Neighbors& all = near.lists;
  const std::int64_t queries = all.ids.rows();
  if (queries == 0) return out;
  out.lists.ids = Matrix<Id>(queries, most), out.lists.distances = Matrix<float>(queries, most);
  out.farthest.resize(queries);
  for (std::int64_t q = 0; q < queries; ++q) {
    std::copy_n(all.ids.row(q), most, out.lists.ids.row(q));
    std::copy_n(all.distances.row(q), most, out.lists.distances.row(q));
    out.farthest[q] = all.distances.row(q)[most - 1];
  }
  return out;
}

void ListProbing::probe_by(const RecallRule& rule, NearLists near) {
  const std::int64_t queries = request_.queries.rows(),
                     ordered = std::min(coarse_.lists(), rule.lists),
                     together = queries_together(request_, ordered);
  probed_.resize(queries);
  const auto probe_some = [&](Neighbors some, std::int64_t first) {
    constexpr std::int64_t block = 256;
    const std::int64_t count = some.ids.rows();
    parallel_for(request_.threads, (count + block - 1) / block, [&](std::int64_t b) {
      for (std::int64_t i = b * block; i < std::min(count, (b + 1) * block); ++i) {
        std::int64_t& probed = probed_[first + i];
        probed = lists_within({some.distances.row(i), static_cast<std::size_t>(ordered)}, rule);
        std::fill(some.ids.row(i) + probed, some.ids.row(i) + ordered, no_id);
      }
    });
    search_lists(some, first);
  };
  if (near.lists.ids.rows() == queries) {
    probe_some(std::move(near.lists), 0);
  } else {
    for (std::int64_t begin = 0; begin < queries; begin += together) {
      const std::int64_t end = std::min(queries, begin + together);
      probe_some(order_lists(request_.queries.rows(begin, end), ordered), begin);
    }
  }
  widen();
}

void ListProbing::widen() {
  const std::int64_t lists = coarse_.lists();
  for (;;) {
    std::vector<std::int64_t> open;
    for (std::int64_t q = 0; q < request_.queries.rows(); ++q)
      if (is_short(q) && probed_[q] < lists) open.push_back(q);
    if (open.empty()) return;
    // Those that have probed the least come first, so that all have probed the same number.
    std::int64_t from = lists;
    for (const std::int64_t q : open) from = std::min(from, probed_[q]);
    std::erase_if(open, [&](std::int64_t q) { return probed_[q] != from; });
    const std::int64_t to = std::min(lists, 2 * from);
    const std::size_t block = queries_together(request_, to);
    for (std::size_t begin = 0; begin < open.size(); begin += block) {
      const auto some = std::span(open).subspan(begin, std::min(block, open.size() - begin));
      const AnyMatrix queries = copies_of(request_.queries, some);
      const Neighbors near = order_lists(queries.view(), to);
      for (const std::int64_t q : some) probed_[q] = to;
      search_.nearest({near.ids.data() + from, std::ssize(some), to - from, to}, found_, some);
    }
  }
}

void ListProbing::find_left(const ListBounds& bounds, std::int64_t begin, std::int64_t end,
                            std::span<std::vector<Id>> left) {
  const std::int64_t lists = coarse_.lists();
  std::vector<std::int64_t> open(end - begin);
  std::iota(open.begin(), open.end(), begin);
  std::int64_t ordered = 0;
  for (const std::int64_t q : open) ordered = std::max(ordered, probed_[q]);
  bool is_ordered = ordered_.ids.rows() > 0;
  for (ordered = std::max(least_ordered, 2 * ordered); !open.empty(); ordered *= 4) {
    ordered = std::min(ordered, lists);
    const bool all = std::ssize(open) == end - begin;
    Neighbors again;
    if (is_ordered) {
      ordered = ordered_.ids.cols();
    } else {
      const AnyMatrix some = all ? AnyMatrix{} : copies_of(request_.queries, open);
      again = order_lists(all ? request_.queries.rows(begin, end) : some.view(), ordered);
    }
    const std::int64_t first = is_ordered ? begin : 0;
    const Neighbors& near = is_ordered ? ordered_ : again;
    is_ordered = false;
    std::vector<char> is_open(open.size());
    parallel_for(request_.threads, std::ssize(open), [&](std::int64_t i) {
      const std::size_t at = i;
      const std::int64_t q = open[at];
      const double kth = kth_key(q);
      const float* const distances = near.distances.row(first + i);
      if (ordered < lists && !(bounds.least_key_beyond(distances[ordered - 1]) > kth)) {
        is_open[at] = true;
        return;
      }
      std::vector<Id>& theirs = left[q - begin];
      for (std::int64_t p = probed_[q]; p < ordered; ++p)
        if (const Id list = near.ids.row(first + i)[p];
            !(bounds.least_key(list, distances[p], 0) > kth))
          theirs.push_back(list);
      certified_[q] = theirs.empty();
    });
    std::size_t still = 0;
    for (std::size_t i = 0; i < open.size(); ++i)
      if (is_open[i]) open[still++] = open[i];
    open.resize(still);
  }
}

void ListProbing::certify(bool go_on) {
  if (!certified_.empty()) return;  // that was done, and lists were probed out of order since
  const std::int64_t lists = coarse_.lists(), queries = request_.queries.rows();
  const ListBounds bounds(state_, request_.options.metric);
  const std::int64_t bytes = request_.limited()
                                 ? std::min(most_distance_bytes, request_.options.memory / 4)
                                 : most_distance_bytes;
  const std::int64_t block = std::max<std::int64_t>(1, bytes / (lists * 28));
  certified_.assign(queries, 0);
  // Lists that are left to probe, after one another: of all queries, which fills the lists best, or
  // where memory is limited of those that are looked at together.
  const std::int64_t together = request_.limited() ? block : queries;
  for (std::int64_t first = 0; first < queries; first += together) {
    const std::int64_t last = std::min(queries, first + together);
    std::vector<std::vector<Id>> left(last - first);
    if (coarse_.finds_nearest_lists()) {
      for (std::int64_t q = first; q < last; q += block)
        find_left(bounds, q, std::min(last, q + block), std::span(left).subspan(q - first));
      if (go_on) probe_all(left, first);
      continue;
    }
    for (std::int64_t begin = first; begin < last; begin += block) {
      const std::int64_t end = std::min(last, begin + block);
      const AnyMatrixView some = request_.queries.rows(begin, end);
      const Neighbors all = order_lists(some, lists);
      const Matrix<float> distances = coarse_.distances(some, request_.threads);
      parallel_for(request_.threads, end - begin, [&](std::int64_t i) {
        const std::int64_t q = begin + i;
        std::vector<Id>& theirs = left[q - first];
        const double length = traits_of(request_.options.metric).lifted
                                  ? length_of(request_.queries.rows(q, q + 1))
                                  : 0;
        const double kth = kth_key(q);
        for (std::int64_t p = probed_[q]; p < lists; ++p) {
          const Id list = all.ids.row(i)[p];
          if (!(bounds.least_key(list, distances.row(i)[list], length) > kth))
            theirs.push_back(list);
        }
        certified_[q] = theirs.empty();
      });
    }
    if (go_on) probe_all(left, first);
  }
  if (go_on) certified_.assign(certified_.size(), 1);
}

KnnReport ListProbing::report() {
  KnnReport out = search_.report();
  const std::int64_t queries = request_.queries.rows();
  const std::int64_t probed = std::accumulate(probed_.begin(), probed_.end(), std::int64_t{0});
  out.lists = {
      coarse_.lists(),
      static_cast<double>(probed) / static_cast<double>(std::max<std::int64_t>(1, queries)),
      coarse_seconds_};
  for (std::int64_t q = 0; q < queries; ++q)
    out.short_queries += request_.k_asked > request_.k || is_short(q);
  return out;
}

PromiseReport ListProbing::promise() const {
  std::int64_t exact = 0;
  std::vector<std::int64_t> open;
  for (std::size_t q = 0; q < probed_.size(); ++q) {
    const bool certain =
        !state_.coder && (probed_[q] == coarse_.lists() || (!certified_.empty() && certified_[q]));
    exact += certain;
    if (!certain && !certified_.empty()) open.push_back(static_cast<std::int64_t>(q));
  }
  PromiseReport out = exact == request_.queries.rows() ? PromiseReport() : no_promise();
  out.certified_queries = exact, out.uncertified = std::move(open);
  return out;
}

Neighbors ListProbing::order_lists(AnyMatrixView queries, std::int64_t probes) {
  const Stopwatch time;
  Neighbors out = coarse_.probe(queries, probes, request_.threads);
  coarse_seconds_ += time.seconds();
  return out;
}

double ListProbing::kth_key(std::int64_t q) const {
  return request_.k == 0 ? -std::numeric_limits<double>::infinity()
                         : found_.keys.row(q)[request_.k - 1];
}

void ListProbing::probe_all(const std::vector<std::vector<Id>>& left, std::int64_t first) {
  std::size_t most = 0;
  for (std::size_t q = 0; q < left.size(); ++q) {
    most = std::max(most, left[q].size());
    probed_[static_cast<std::size_t>(first) + q] += std::ssize(left[q]);
  }
  std::vector<std::int64_t> which;  // none: all
  if (std::ssize(left) < request_.queries.rows()) {
    which.resize(left.size());
    std::iota(which.begin(), which.end(), first);
  }
  constexpr std::size_t columns = 64;
  for (std::size_t from = 0; from < most; from += columns) {
    Matrix<Id> probes(std::ssize(left), static_cast<std::int64_t>(std::min(columns, most - from)));
    std::fill_n(probes.data(), probes.rows() * probes.cols(), no_id);
    for (std::size_t q = 0; q < left.size(); ++q)
      if (left[q].size() > from)
        std::copy_n(left[q].data() + from, std::min(columns, left[q].size() - from),
                    probes.row(static_cast<std::int64_t>(q)));
    search_.nearest(probes.view(), found_, which);
  }
}

bool of_one_kind(const RecallCurve& curve, const NearLists& near) {
  std::vector<float> keys = near.nearest;
  std::sort(keys.begin(), keys.end());
  return of_one_kind(curve, keys);
}

bool of_one_kind(const RecallCurve& curve, std::span<const float> keys) {
  const std::vector<float>& known = curve.nearest_keys;
  if (keys.empty() || known.empty()) return true;
  return !too_many_beyond(keys, known) && alike(keys, known);
}

std::vector<Nearness> nearness_scales(AnyMatrixView queries, Metric metric, const NearLists& near) {
  if (traits_of(metric).lifted) return scales_without_lists(queries, metric);
  std::vector<Nearness> out;
  for (const float farthest : near.farthest) out.push_back({1, farthest});
  return out;
}

std::vector<Nearness> scales_without_lists(AnyMatrixView queries, Metric metric) {
  std::vector<Nearness> out;
  for (std::int64_t q = 0; q < queries.rows(); ++q) {
    const auto scale =
        traits_of(metric).lifted ? static_cast<float>(length_of(queries.rows(q, q + 1))) : 1;
    out.push_back({scale, scale});
  }
  return out;
}

bool finds_as_calibrated(const RecallPoint& point, double recall, std::int64_t k,
                         const ExactNeighbors& found, std::span<const Nearness> scales) {
  const std::int64_t queries = found.ids.rows();
  if (queries == 0 || found.columns() < k) return true;  // all rows are found
  const std::int64_t places[nearness_measures] = {0, last_of_a_third(k) - 1};
  for (std::size_t m = 0; m < nearness_measures; ++m) {
    const RecallByNearness& known = point.by_nearness[m];
    if (known.recalls.empty()) continue;
    std::vector<float> nearness;
    double sum = 0;
    for (std::int64_t q = 0; q < queries; ++q) {
      nearness.push_back(nearness_of(found.keys.row(q)[places[m]], scales[q][m]));
      sum += known.recalls[known.group_of(nearness.back())];
    }
    if (too_many_farther(nearness, known)) return false;
    const double mean = sum / static_cast<double>(queries);
    if (mean >= recall) continue;
    const double chance = queries >= least_calibrated_batch ? seldom_lower_of_many
                          : queries >= least_learned_batch  ? seldom_lower_of_learned
                                                            : seldom_lower;
    if (is_unlikely_mean(mean, static_cast<double>(queries), known, chance)) return false;
  }
  return true;
}

}  // namespace knear::detail
