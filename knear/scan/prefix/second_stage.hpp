// knear/scan/prefix/second_stage.hpp -- all coordinates of the rows that a prefix did not rule out.
//
//   SecondStage stage(base, job);
//   QueryState s = stage.begin(query, codes);          // what is known of one query: nothing yet
//   stage.score(codes, slots, count);               // their products, in 8 bits
//   stage.rate(s.coded, slots, count);                 // what each is at best, by these
//   stage.take(s, query, codes, slots, count, stats);  // those that may be among its k are kept
//   stage.finish(s, query, keys, ids, stats);          // measured in float64 where need be
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "knear/scan/candidate_refiner.hpp"
#include "knear/scan/prefix/prefix_base.hpp"
#include "knear/scan/tile_loop.hpp"

namespace knear::detail {

inline constexpr std::size_t longest_list = list_limit + panel_rows;

// What is known of one query.
struct QueryState {
  bool begun = false;
  CodedQuery coded;
  KeyScale scale;
  QueryCandidates candidates;  // certified
  TopK best;                   // whole numbers
  double bound = infinity;     // a key known from elsewhere
  PrefixKeyScale prefix_scale;

  // Forgets the rows, but not how near they are.
  void keep_bound_alone(double key, std::int64_t k) {
    bound = key;
    best = TopK(k), candidates.exact = TopK(k);
    candidates.pending.clear();
  }
  // Takes over what another task found for the same query.
  void merge(QueryState&& more) {
    if (!begun) {
      *this = std::move(more);
      return;
    }
    for (const TopK::Item& item : more.best.items()) best.push(item.first, item.second);
    candidates.merge(std::move(more.candidates));
  }
};

// One thread's.
class SecondStage {
 public:
  SecondStage(const PrefixBase& base, const ScanJob& job)
      : base_(base),
        rows_(base.codes),
        job_(job),
        refiner_(base.panels.duplicates, job),
        scratch_(rows_.dim),
        products_(longest_list),
        fine_(longest_list),
        best_(longest_list) {}

  CandidateRefiner& refiner() { return refiner_; }
  // The bytes of a query's codes: two planes.
  static std::int64_t code_bytes(std::int64_t dim) { return 2 * plane_bytes(dim); }

  QueryState begin(std::int64_t query, std::int8_t* codes) {
    return begin(query,
                 code_query(rows_, job_.queries, query, job_.query_range, scratch_.data(), codes));
  }
  // Of a query that is the row of a slot.
  QueryState begin_row(std::int64_t row, std::uint32_t slot, std::int8_t* codes) {
    return begin(row, code_row(row, slot, codes));
  }
  CodedQuery code_row(std::int64_t row, std::uint32_t slot, std::int8_t* codes) {
    rows_.check(&slot, 1);
    return rows_.is_integer
               ? code_query(rows_, slot, job_.query_range, codes)
               : code_query(rows_, job_.queries, row, job_.query_range, scratch_.data(), codes);
  }
  QueryState begin(std::int64_t query, const CodedQuery& coded) {
    QueryState s;
    s.begun = true;
    s.coded = coded;
    s.scale = {job_.metric, s.coded.squares, s.coded.constant};
    if (job_.upper_bounds) s.bound = job_.upper_bounds[query];
    if (rows_.is_integer) {
      s.best = TopK(job_.k);
      return s;
    }
    QueryCandidates& c = s.candidates;
    c.lowers = LargestK(job_.k, s.coded.norm * s.coded.norm);
    c.exact = TopK(job_.k), c.room = refiner_.first_room();
    if (job_.upper_bounds) c.threshold = s.scale.threshold_for(s.bound);
    return s;
  }

  // Up to longest_list products, by place in `slots`.
  const std::int32_t* score(const std::int8_t* codes, const std::uint32_t* slots,
                            std::size_t count) {
    rows_.check(slots, count);
    rows_.space.kernels->row_products(rows_.codes.data(), rows_.stride, slots,
                                      static_cast<std::int64_t>(count), codes, rows_.dim,
                                      products_.data());
    return products_.data();
  }

  // After score(), of the same slots: for each the key if rows are whole numbers, else the upper
  // end of the interval of its g.
  const double* rate(const CodedQuery& coded, const std::uint32_t* slots, std::size_t count) {
    if (rows_.is_integer)
      for (std::size_t i = 0; i < count; ++i)
        best_[i] = integer_key(rows_, slots[i], products_[i], coded);
    else
      for (std::size_t i = 0; i < count; ++i)
        best_[i] = interval_of(rows_, slots[i], 0, products_[i], coded).upper;
    return best_.data();
  }

  // After score() and rate(), of the same slots and codes. Rows that the first plane of the query
  // does not rule out are scored with the second, while their codes are in cache. Uses up the
  // slots.
  void take(QueryState& s, std::int64_t query, const std::int8_t* codes, std::uint32_t* slots,
            std::size_t count, ScanStats& stats) {
    if (rows_.is_integer) {
      double bound = s.best.bound();
      for (std::size_t i = 0; i < count; ++i) {
        if (best_[i] > bound) continue;
        take_key(s.best, best_[i], base_.panels.ids[slots[i]]);
        bound = s.best.bound();
      }
      return;
    }
    std::size_t left = 0;
    for (std::size_t i = 0; i < count; ++i) {
      slots[left] = slots[i], products_[left] = products_[i];
      left += !(best_[i] < s.candidates.threshold);
    }
    if (!job_.may_refine) {
      for (std::size_t i = 0; i < left; ++i)
        take_interval(
            s.candidates, query, s.scale,
            interval_of(rows_, slots[i], base_.panels.ids[slots[i]], products_[i], s.coded), stats);
      return;
    }
    rows_.space.kernels->row_products(rows_.codes.data(), rows_.stride, slots,
                                      static_cast<std::int64_t>(left),
                                      codes + plane_bytes(rows_.dim), rows_.dim, fine_.data());
    stats.refined += static_cast<std::int64_t>(left);
    for (std::size_t i = 0; i < left; ++i)
      take_interval(
          s.candidates, query, s.scale,
          interval_of(rows_, slots[i], base_.panels.ids[slots[i]], products_[i], fine_[i], s.coded),
          stats);
  }

  void take_key(TopK& best, double key, std::uint32_t row) {
    each_copy(base_.panels.duplicates, job_.allowed, row, [&](std::uint32_t each) {
      const bool admitted = best.admits(key, each);
      if (admitted) best.push(key, each);
      return admitted;
    });
  }

  void take_interval(QueryCandidates& c, std::int64_t query, const KeyScale& scale,
                     const ScoreInterval& x, ScanStats& stats) {
    if (x.upper < c.threshold) return;
    c.add(x);
    if (c.full()) refiner_.prune(c, query, scale, stats);
  }

  // Makes the most of what was taken first, `times` as many rows being still to come.
  void tighten(QueryState& s, std::int64_t query, double times, ScanStats& stats) {
    if (rows_.is_integer) {
      s.best.cut();
      return;
    }
    refiner_.prune(s.candidates, query, s.scale, stats);
    refiner_.tighten(s.candidates, query, s.scale, std::max(2.0, times), stats);
  }

  // A key that the k-th best row certainly does not exceed; infinity: none known.
  double bound(const QueryState& s) const {
    if (rows_.is_integer) return std::min(s.bound, s.best.bound());
    return s.candidates.threshold > -infinity ? s.scale.key_at_most(s.candidates.threshold)
                                              : infinity;
  }

  void finish(QueryState& s, std::int64_t query, double* keys, Id* ids, ScanStats& stats) {
    if (rows_.is_integer) {
      s.best.finish();
      write_list(s.best, job_.k, keys, ids);
    } else {
      refiner_.finish(s.candidates, query, s.scale, keys, ids, stats);
    }
  }

 private:
  const PrefixBase& base_;
  const PerRowCodes& rows_;
  const ScanJob& job_;
  CandidateRefiner refiner_;
  std::vector<double> scratch_;
  std::vector<std::int32_t> products_, fine_;
  std::vector<double> best_;  // as rate() has it
};

}  // namespace knear::detail
