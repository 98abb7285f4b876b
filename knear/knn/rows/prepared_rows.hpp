// knear/knn/rows/prepared_rows.hpp -- rows and the ways in which they are packed so far.
//
// What a search needs again next time: packed rows, the space in which they are coded, and what
// earlier searches learned about which first pass suits. An index has one of these a segment;
// ExactSearcher has one.
#pragma once
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "knear/core/process_mutex.hpp"
#include "knear/knn/options.hpp"
#include "knear/knn/rows/device_copies.hpp"
#include "knear/knn/rows/prefix_form.hpp"
#include "knear/knn/rows/row_tree.hpp"
#include "knear/scan/packing/packed_base.hpp"

namespace knear::detail {

inline constexpr int first_pass_count = 6;  // that read packed rows of all coordinates, or none
inline constexpr int any_pass_count = 7;
inline constexpr std::int64_t max_k = (std::int64_t{1} << 31) - 1;

Format format_of(FirstPass pass);

// Seconds since it was made.
class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// What a prefix is expected to let through, for about k neighbours.
struct PrefixOutlook {
  std::int64_t k;
  PrefixForecast forecast;
};

// A prefix that belongs to its base, made ahead of the searches; nullptr: none.
struct AdoptedPrefix {
  std::shared_ptr<const PrefixBase> base;
  std::vector<PrefixOutlook> outlook;
};

// Which rows are packed, and for whom.
struct PackingJob {
  BaseRows rows;                          // the base, or a part of it
  std::span<const std::uint32_t> subset;  // of these the ones that are packed; empty: all
  bool keep;                              // for later searches; of a part of the base nothing is
  int threads;
  const Progress& progress;
  double& seconds;                    // what packing took is added
  std::int64_t tile_bytes = 0;        // 0: as many as usual
  Matrix<float>* prefixes = nullptr;  // where a prefix is made: gets those of the rows
};

class PreparedRows {
 public:
  // `what` is the value range of these rows, or of more.
  PreparedRows(const BaseRows& base_rows, Metric of, const ValueRange& what)
      : base(base_rows), metric(of), found(what) {}

  const BaseRows base;
  const Metric metric;
  const ValueRange found;

  // Rows that lie in the memory of a device, one after another: only a search there may be asked
  // for them, and nobody here reads base. Set before the first.
  struct OnDevice {
    const void* data = nullptr;
    CodingSpace space;
    std::function<AnyMatrix(std::int64_t begin, std::int64_t count)> copy;  // to the processor
  };
  std::optional<OnDevice> on_device;

  // The packed rows for a pass, made on first use and kept, if the job says so, but not beside
  // adopted ones; in tiles of another size than before they take the place of those kept.
  std::shared_ptr<const PackedBase> packed(FirstPass pass, const PackingJob& job);
  // Packed rows whose tiles are bins: of their own size, and copies of rows are interleaved like
  // other rows. One packing is kept beside those above.
  std::shared_ptr<const PackedBase> bins(FirstPass pass, const PackingJob& job);
  // Takes rows packed elsewhere, which then belong to the base: they are not let go of, and their
  // bytes are not those of a search.
  void adopt(FirstPass pass, std::shared_ptr<const PackedBase> form);
  std::shared_ptr<const PackedBase> kept(FirstPass pass);
  bool is_kept(FirstPass pass) { return kept(pass) != nullptr; }
  bool is_adopted(FirstPass pass);

  CodingSpace coding_space();

  // What earlier searches saw on a sample: whether a pass is worth its while for the k nearest. A
  // pass worth it for some k is for every smaller one, and the other way round.
  std::optional<bool> known_worth(FirstPass pass, std::int64_t k);
  void note_worth(FirstPass pass, std::int64_t k, bool worth);
  // The largest k for which a pass is known to be worth it; 0 for none.
  std::int64_t worth_up_to(FirstPass pass);

  // What a scan in two stages goes by, for codes that are whole numbers or others. The first one
  // made is kept. Where another search is making one just now, nullptr unless `wait`.
  std::shared_ptr<const PrefixBase> kept_prefix(bool integer);
  std::shared_ptr<const PrefixBase> prefix(bool integer, const PrefixPlan& plan,
                                           const PackingJob& job, bool wait);
  // Takes a prefix in the place of any that is kept. It is not let go of, its bytes are not those
  // of a search, and searches go by what it is expected to let through.
  void adopt_prefix(AdoptedPrefix prefix);
  AdoptedPrefix adopted_prefix();
  bool has_adopted_prefix();
  // The study of the rows, made on first use.
  std::shared_ptr<const PrefixStudy> prefix_study(int threads, const Progress& progress,
                                                  double& prepare_seconds);
  // Whether a prefix was found to be impossible: rows are too large for it.
  bool no_prefix();
  // What a search for k neighbours was found to cost with and without a prefix, if one for a
  // similar k was looked at.
  std::optional<PrefixForecast> prefix_forecast(bool integer, std::int64_t k);
  void note_prefix_forecast(bool integer, std::int64_t k, const PrefixForecast& cost);
  // Notes that a prefix could not serve some of so many queries. Where these come to be more than a
  // quarter, none is used any more for so many neighbours.
  void note_prefix_served(bool integer, std::int64_t k, std::size_t queries,
                          std::size_t not_served);
  // Seconds of one core that searches took which a prefix might have served.
  double searched_without_prefix(double more);

  // The tree of rows of few columns or in far clusters; nullptr: none is kept. And that, or a new
  // one, which is kept if the job says so.
  std::shared_ptr<const RowTree> kept_tree();
  std::shared_ptr<const RowTree> tree(const PackingJob& job);
  // Seconds that searches took without a tree.
  double searched_without_tree(double more);
  // Returns what a query for about k neighbours costs by a tree. find() is called unless that is
  // known.
  template <class Find>
  double cost_of_tree(std::int64_t k, Find find) {
    if (const double known = known_tree_cost(k); known > 0) return known;
    return note_tree_cost(k, find());
  }

  // Codes of rows by themselves, in their order and in the space of the packed base (one from a
  // file may have a space of its own), for what an 8-bit pass leaves. The first made are kept.
  std::shared_ptr<const PerRowCodes> kept_per_row_codes(const CodingSpace& space);
  std::shared_ptr<const PerRowCodes> per_row_codes(const CodingSpace& space, const PackingJob& job);
  // Seconds that searches would have been spared by them so far.
  double spared_by_per_row_codes(double more);

  // What devices keep of the base, by the name of device and codes: made on first use.
  DeviceCopies device_copies;

  // What searches of few or of many queries, for about k neighbours by a pass, saw last, a query.
  struct PassStats {
    double hits = 0, refined = 0, survivors = 0;
  };
  PassStats seen(FirstPass pass, std::int64_t k, bool few);
  void note_seen(FirstPass pass, std::int64_t k, bool few, const PassStats& what);

  // Lets go of what is kept but for this pass and what was adopted; searches that use it hold it
  // until they end.
  void release_all_but(FirstPass pass);
  // Bytes of packed rows that are kept, `except` and those adopted left out.
  std::int64_t kept_bytes(const PackedBase* except);
  // Bytes of all of them.
  std::int64_t bytes();

 private:
  double known_tree_cost(std::int64_t k);
  double note_tree_cost(std::int64_t k, double cost);
  const CodingSpace& space_chosen();
  std::int64_t other_bytes() const;  // of a prefix and codes of rows; mutex_ is held
  template <class Find, class Make>
  auto found_or_made(bool keep, Find find, Make make);
  std::shared_ptr<const PackedBase> make(FirstPass pass, const PackingJob& job, bool find_copies);

  struct PassViability {
    std::int64_t up_to = 0, not_from = max_k + 1;
  };
  ProcessMutex making_;  // held while rows are packed that will be kept; taken before mutex_
  ProcessMutex mutex_;   // of what follows; never held for long
  std::shared_ptr<const PackedBase> forms_[any_pass_count];
  std::shared_ptr<const PackedBase> bins_;
  bool adopted_[any_pass_count] = {};
  PassViability pass_viability_[any_pass_count];
  std::optional<CodingSpace> space_;
  std::shared_ptr<const PrefixBase> prefix_;
  AdoptedPrefix adopted_prefix_;
  std::shared_ptr<const PrefixStudy> study_;
  struct PrefixDecision {
    bool integer;
    std::int64_t k;
    PrefixForecast cost;
    std::size_t queries = 0, not_served = 0;
  };
  std::vector<PrefixDecision> prefix_decisions_;
  double without_prefix_ = 0, without_tree_ = 0, spared_ = 0;
  std::shared_ptr<const RowTree> tree_;
  std::map<int, double> cost_of_tree_;  // by the power of two of k
  std::shared_ptr<const PerRowCodes> per_row_codes_;
  std::map<std::pair<FirstPass, int>, PassStats> seen_;  // by the power of two of k
  bool no_prefix_ = false;
};

}  // namespace knear::detail
