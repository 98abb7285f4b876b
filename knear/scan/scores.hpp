// knear/scan/scores.hpp -- what a kernel's hit means for a query of a task, and how a query's
// threshold is published to the kernel: for whole numbers, whose scores are keys, and for certified
// codes, whose scores are intervals.
//
//   Scores scores(packed, job, queries);            // IntegerScores or CertifiedScores
//   scores.publish(q, bound);                       // rows with larger keys need not come
//   scores.publish_group(head);                     // after a group's queries were published
//   const KeyInterval keys = scores.keys(q, head, hit);
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "knear/scan/kernels/bounds.hpp"
#include "knear/scan/kernels/key_scale.hpp"
#include "knear/scan/packing/packed_base.hpp"
#include "knear/scan/scan_job.hpp"

namespace knear::detail {

inline constexpr double infinity = std::numeric_limits<double>::infinity();
inline constexpr float float_infinity = std::numeric_limits<float>::infinity();

// The interval of a hit (docs/bounds.md, 3).
inline ScoreInterval interval_of(const PackedBase& packed, const GroupHead& group, const Hit& hit,
                                 double squares) {
  const double dot =
      packed.format == format_fp32
          ? static_cast<double>(std::bit_cast<float>(hit.score))
          : static_cast<double>(static_cast<std::int64_t>(hit.score) - group.correction[hit.query]);
  const double slack =
      traits_of(packed.space.metric).squared ? 2 * packed.space.slack * squares : 0;
  const GInterval g =
      panel_interval(packed.heads[hit.slot / panel_rows], packed.row_bias[hit.slot], dot,
                     group.scale, group.norm[hit.query], group.error[hit.query], slack);
  return {g.upper, g.lower, packed.ids[hit.slot]};
}

// The key of a pair is certainly in [low, high].
struct KeyInterval {
  double low, high;
};

class IntegerScores {
 public:
  static constexpr bool exact = true;

  IntegerScores(const PackedBase& packed, const ScanJob& job, PackedQueries& queries)
      : IntegerScores(packed, packed.range, job, queries) {}
  // range: of the base, and of others that are entered.
  IntegerScores(const PackedBase& packed, const ValueRange& range, const ScanJob& job,
                PackedQueries& queries)
      : packed_(&packed), queries_(queries), l2_(traits_of(job.metric).squared) {
    const std::int64_t low = std::min(range.low, job.query_range.low);
    const std::int64_t high = std::max(range.high, job.query_range.high);
    const std::int64_t reach = std::max(std::abs(low), std::abs(high));
    worst_ = static_cast<double>(packed.dim * (l2_ ? (high - low) * (high - low) : reach * reach));
  }

  // Goes on with hits of another base, for which the queries are coded alike.
  void enter(const PackedBase& packed) { packed_ = &packed; }

  double key(std::int64_t q, const GroupHead& head, const Hit& hit) const {
    const bool shifted = queries_.sum_shift_mask != 0;
    return integer_key(l2_,
                       integer_product(hit.score, head.correction[hit.query], shifted,
                                       shifted ? packed_->row_sums[hit.slot] : 0),
                       queries_.squares[q], l2_ ? packed_->row_squares[hit.slot] : 0);
  }
  KeyInterval keys(std::int64_t q, const GroupHead& head, const Hit& hit) const {
    const double exact_key = key(q, head, hit);
    return {exact_key, exact_key};
  }

  // Rows with keys up to `bound`, any number, may come.
  void publish(std::int64_t q, double bound) {
    const double least = l2_ ? -1.0 : -worst_ - 1;  // no row has it
    publish_key(q, static_cast<std::int64_t>(std::floor(std::clamp(bound, least, worst_))));
  }
  // Rows with keys up to `key`, one that a row may have; of those with that very key, only rows
  // before `row`.
  void publish_key(std::int64_t q, std::int64_t key, std::int64_t row = PackedBase::no_row) {
    GroupHead& head = queries_.heads[q / queries_.group_size];
    const std::int64_t lane = q % queries_.group_size;
    const auto squares = static_cast<std::int64_t>(queries_.squares[q]);
    head.limit[lane] = static_cast<std::int32_t>(integer_limit_of(l2_, squares, key));
    // What half of an odd number loses.
    head.limit_bit[lane] = l2_ ? static_cast<std::uint32_t>((squares - key) & 1) : 0;
    head.bound_row[lane] = static_cast<std::uint32_t>(row);
  }
  // Lanes beyond the queries of a group do as the last one.
  void publish_group(GroupHead& head) const {
    for (int q = head.count; q < queries_.group_size; ++q) {
      head.limit[q] = head.limit[head.count - 1];
      head.limit_bit[q] = head.limit_bit[head.count - 1];
      head.bound_row[q] = head.bound_row[head.count - 1];
    }
  }
  void publish_groups() {
    for (GroupHead& head : queries_.heads) publish_group(head);
  }

 private:
  const PackedBase* packed_;
  PackedQueries& queries_;
  bool l2_;
  double worst_;  // no key is larger
};

// Intervals and thresholds are numbers g of the coding space. Where lists have centres of their
// own, a query has another g for each list, so they are less |u|^2 / 2, or more by <x, mean>,
// instead: half the negative key, or the negative key and more, whatever the list (docs/bounds.md,
// 3).
class CertifiedScores {
 public:
  static constexpr bool exact = false;

  CertifiedScores(const PackedBase& packed, const ScanJob& job, PackedQueries& queries)
      : packed_(&packed),
        queries_(queries),
        metric_(job.metric),
        squared_(traits_of(packed.space.metric).squared),
        by_list_(packed.centres.any()),
        slack_(squared_ ? 2 * packed.space.slack : 0) {}

  // Goes on with hits of another base, for which the queries are coded alike; the number of its row
  // 0 among those of all.
  void enter(const PackedBase& packed, std::uint32_t first_row) {
    packed_ = &packed, first_row_ = first_row;
  }

  KeyScale scale(std::int64_t q) const {
    return by_list_ ? KeyScale{metric_, 0, 0} : scale_in_space(q);
  }
  ScoreInterval interval(std::int64_t q, const GroupHead& head, const Hit& hit) const {
    ScoreInterval out = interval_of(*packed_, head, hit, queries_.squares[q]);
    out.row += first_row_;
    if (by_list_) {
      const KeyScale own = scale_in_space(q);
      const double more = own.moved();
      out.upper += more, out.lower += more - own.moved_margin();
    }
    return out;
  }
  KeyInterval keys(std::int64_t q, const GroupHead& head, const Hit& hit) const {
    const ScoreInterval g = interval(q, head, hit);
    const KeyScale by = scale(q);
    return {by.key_at_least(g.upper), by.key_at_most(g.lower)};
  }

  // A threshold as one on g of the coding space at hand.
  double in_space(std::int64_t q, double threshold) const {
    if (!by_list_ || std::isinf(threshold)) return threshold;
    const KeyScale own = scale_in_space(q);
    return threshold - own.moved() - own.moved_margin() - 0x1p-50 * std::fabs(threshold);
  }
  // Rows whose interval is below this threshold on g need not come.
  void publish_threshold(std::int64_t q, double threshold) {
    queries_.heads[q / queries_.group_size].threshold[q % queries_.group_size] =
        in_space(q, threshold) - slack_ * queries_.squares[q];
  }
  // Rows whose key is certainly above `bound` need not come.
  void publish(std::int64_t q, double bound) {
    publish_threshold(q, bound < infinity ? scale(q).threshold_for(bound) : -infinity);
  }
  void publish_group(GroupHead& head) const {
    for (int q = head.count; q < queries_.group_size; ++q)
      head.threshold[q] = head.threshold[head.count - 1];
  }
  void publish_groups() {
    for (GroupHead& head : queries_.heads) publish_group(head);
  }

 private:
  KeyScale scale_in_space(std::int64_t q) const {
    return {metric_, queries_.squares[q], queries_.constant[q]};
  }

  const PackedBase* packed_;
  std::uint32_t first_row_ = 0;
  PackedQueries& queries_;
  Metric metric_;
  bool squared_;
  bool by_list_;  // whether lists have centres of their own
  double slack_;
};

}  // namespace knear::detail
