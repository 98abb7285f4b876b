// knear/index/recall/audit_log.hpp -- an index that audits itself: a sample of the queries that it
// has served, and the curve of recall that exact answers to this sample give.
//
//   auto curve = log.serve(search, queries, costs, [&](AnyMatrixView sample) { ... });
//
// Searches are told apart by the name of their traffic and by k. The log keeps at most
// `most_queries` vectors of each traffic and k. Queries are drawn by a hash of their number, never
// by a clock, so that the same calls in the same order have the same answers.
//
// A traffic is audited once 256, 1,000 and 2,000 of its queries are known. Exact answers cost time:
// the log counts these first audits as a debt, which a share of the predicted time of later
// searches pays back. Then it draws one query in n, for the n that this share pays for, and audits
// again when all queries of the sample are new.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "knear/core/matrix.hpp"
#include "knear/core/process_mutex.hpp"
#include "knear/index/options.hpp"
#include "knear/index/recall/recall_rule.hpp"

namespace knear::detail {

// Predicted nanoseconds of one core.
struct AuditCosts {
  double query = 1;      // one query of the search
  double exact = 1;      // the audit of one query
  double all_exact = 0;  // what an audit takes besides, whatever the number of its queries
};

// Any number of threads.
class AuditLog {
 public:
  static constexpr std::int64_t least_queries = 256, most_queries = 2000;
  static constexpr std::size_t most_traffics = 16, most_ks = 4;

  // Throws InvalidArgument for a share outside [0, 1].
  explicit AuditLog(double share) { set_share(share); }
  // A log that knows the same and goes on by itself.
  std::shared_ptr<AuditLog> copy() const;

  double share() const { return share_; }
  // 0 stops the audits and keeps the curves. Throws InvalidArgument for a share outside [0, 1].
  void set_share(double share);

  // The name of a traffic and the arguments of a search of it.
  struct Search {
    std::string traffic;
    std::int64_t k = 0;
    double recall = 1;
    // Number of queries by which the kind of index is calibrated: most_queries at most.
    std::int64_t sample = most_queries;
    // That of the state that is searched (State::audit_epoch, or the number of its graph).
    std::int64_t epoch = 0;
    bool may_audit = true;  // whether memory and place allow exact answers
  };
  // The curve of the audited queries, and how many were served.
  struct Audited {
    std::shared_ptr<const RecallCurve> curve = {};  // nullptr before the first audit
    std::int64_t served = 0, queries = 0;           // of the traffic; behind the curve
    // Whether the log follows this traffic and k. If not, the index answers as without audits.
    bool followed = false;

    // Returns the point that a search for a recall goes by: the cheapest one that promises it, or
    // while the sample still grows the best one. nullptr where all rows must be compared.
    const RecallPoint* point(double recall, std::int64_t sample) const;
  };
  // Returns what is known before a search.
  Audited find(const Search& search) const;
  // Records the queries of a search and audits the traffic if that is due and may be done now
  // (may_prepare()). calibrate(sample) returns the curve of recall of a sample [n x dim]. One
  // caller calibrates while others go on with the curve before. A search of an older epoch than the
  // newest is not followed; one of a newer epoch drops the curve, which its own audit replaces.
  // Of each name at most four k are followed: another one takes the place of one that has not been
  // asked for since 2,000 queries of the log. Throws InvalidArgument for one name too many.
  Audited serve(const Search& search, AnyMatrixView queries, const AuditCosts& costs,
                const std::function<RecallCurve(AnyMatrixView sample)>& calibrate);

  // Forgets everything about searches for k neighbours.
  void forget(std::int64_t k);

  std::vector<AuditReport> reports() const;
  // Bytes of the samples.
  std::int64_t bytes() const;

 private:
  struct Traffic {
    std::string name;
    std::int64_t k = 0;
    AnyMatrix sample;  // [most_queries x dim at most], of which `kept` rows are set
    std::int64_t kept = 0, served = 0;
    std::int64_t next = 0;      // the row of a full sample that the next query replaces
    std::int64_t renewed = 0;   // queries drawn since the last audit of a full sample
    std::int64_t interval = 1;  // one query in this many is drawn then
    std::int64_t audited = 0;   // queries behind the curve
    double saved = 0;           // predicted time for audits, negative while it is owed
    double recall = 1;          // of the latest search
    std::int64_t epoch = 0;     // of the rows that the curve is of
    std::int64_t last = 0;      // served_ at the latest search
    std::shared_ptr<const RecallCurve> curve = {};
  };
  using Traffics = std::vector<std::shared_ptr<Traffic>>;

  static bool has_type(const Traffic& traffic, ElementType type);
  Traffic* find_locked(const Search& search, ElementType type) const;
  // Returns nullptr where no other traffic gives its place.
  std::shared_ptr<Traffic> take_locked(const Search& search, AnyMatrixView queries);
  static void record(Traffic& traffic, AnyMatrixView queries, std::int64_t most);
  bool is_due(const Traffic& traffic, std::int64_t most) const;
  static Audited state_of(const Traffic& traffic, const Search& search) {
    if (traffic.epoch != search.epoch) return {nullptr, traffic.served, 0, true};
    return {traffic.curve, traffic.served, traffic.audited, true};
  }

  std::atomic<double> share_ = 0;
  mutable ProcessMutex mutex_;  // of traffics_, never held for long
  Traffics traffics_;
  std::int64_t served_ = 0;  // queries of all traffics
  ProcessMutex auditing_;
};

// Returns the note of a search that goes without a promise, since its traffic has no audited
// queries or its queries are unlike those.
std::string note_of_unaudited(const AuditLog::Audited& audited, const std::string& traffic);

}  // namespace knear::detail
