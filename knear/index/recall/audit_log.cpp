#include "knear/index/recall/audit_log.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "knear/core/error.hpp"
#include "knear/core/mean_interval.hpp"
#include "knear/core/random.hpp"
#include "knear/core/stop_check.hpp"

namespace knear::detail {
namespace {

// Sizes of the sample that the first audits wait for, beside the largest one.
constexpr std::int64_t first_audits[] = {AuditLog::least_queries, 1000};
constexpr double quantile_of_95 = 1.96;

// Number of queries that the next audit of a growing sample waits for.
std::int64_t next_audit(std::int64_t audited, std::int64_t most) {
  for (const std::int64_t size : first_audits)
    if (audited < size && size < most) return size;
  return most;
}

// A hash of the number of a query.
std::uint64_t draw(std::int64_t number) {
  return Random(static_cast<std::uint64_t>(number) * 0x9e3779b97f4a7c15u + 5).next();
}

// Writes query q as row `to` of a sample of floats, or of doubles.
void copy_query(AnyMatrixView queries, std::int64_t q, AnyMatrix& sample, std::int64_t to) {
  visit(queries, [&](auto view) {
    const auto copy = [&](auto* out) {
      using T = std::remove_pointer_t<decltype(out)>;
      for (std::int64_t j = 0; j < view.cols(); ++j)
        out[j] = static_cast<T>(to_double(view.row(q)[j]));
    };
    if (sample.type() == ElementType::f64)
      copy(static_cast<double*>(sample.row(to)));
    else
      copy(static_cast<float*>(sample.row(to)));
  });
}

}  // namespace

std::string note_of_unaudited(const AuditLog::Audited& audited, const std::string& traffic) {
  const std::string of = traffic.empty() ? "" : fmt::format(" of traffic '{}'", traffic);
  if (audited.curve)
    return fmt::format("the queries are unlike the {} audited ones{}, so nothing is promised",
                       audited.queries, of);
  return fmt::format("{} queries{} were served and none audited yet, so nothing is promised",
                     audited.served, of);
}

void AuditLog::set_share(double share) {
  if (!(share >= 0 && share <= 1))
    throw InvalidArgument("audit must be between 0 and 1, but is {}", share);
  share_ = share;
}

std::shared_ptr<AuditLog> AuditLog::copy() const {
  auto out = std::make_shared<AuditLog>(share());
  std::lock_guard lock(mutex_);
  out->served_ = served_;
  for (const auto& from : traffics_) {
    auto to = std::make_shared<Traffic>();
    to->name = from->name, to->k = from->k;
    to->sample = AnyMatrix(from->sample.type(), from->sample.rows(), from->sample.cols());
    const std::int64_t bytes = from->sample.view().rows(0, from->kept).bytes();
    if (bytes > 0) std::memcpy(to->sample.row(0), from->sample.row(0), bytes);
    to->kept = from->kept, to->served = from->served, to->next = from->next;
    to->renewed = from->renewed, to->interval = from->interval, to->audited = from->audited;
    to->saved = from->saved, to->recall = from->recall, to->curve = from->curve;
    to->epoch = from->epoch, to->last = from->last;
    out->traffics_.push_back(std::move(to));
  }
  return out;
}

const RecallPoint* AuditLog::Audited::point(double recall, std::int64_t sample) const {
  if (const RecallPoint* const enough = curve->find(recall)) return enough;
  return queries < sample && !curve->points.empty() ? &curve->points.back() : nullptr;
}

bool AuditLog::has_type(const Traffic& traffic, ElementType type) {
  return (traffic.sample.type() == ElementType::f64) == (type == ElementType::f64);
}

AuditLog::Traffic* AuditLog::find_locked(const Search& search, ElementType type) const {
  for (const auto& one : traffics_)
    if (one->k == search.k && one->name == search.traffic && has_type(*one, type)) return one.get();
  return nullptr;
}

std::shared_ptr<AuditLog::Traffic> AuditLog::take_locked(const Search& search,
                                                         AnyMatrixView queries) {
  Traffics next = traffics_;
  std::vector<std::string> names;
  const auto is_same_name = [&](const auto& one) { return one->name == search.traffic; };
  for (const auto& one : next) {
    if (is_same_name(one) && one->k == search.k && has_type(*one, queries.type())) return one;
    if (!one->name.empty() && std::find(names.begin(), names.end(), one->name) == names.end())
      names.push_back(one->name);
  }
  const auto same_name = std::count_if(next.begin(), next.end(), is_same_name);
  if (!search.traffic.empty() && same_name == 0 && names.size() >= most_traffics)
    throw InvalidArgument("traffic is '{}', but an index tells {} of them apart at most",
                          search.traffic, most_traffics);
  if (same_name >= static_cast<std::ptrdiff_t>(most_ks)) {
    const auto idle = std::min_element(next.begin(), next.end(), [&](const auto& x, const auto& y) {
      return std::pair(!is_same_name(x), x->last) < std::pair(!is_same_name(y), y->last);
    });
    if (served_ - (*idle)->last < most_queries) return nullptr;
    next.erase(idle);
  }
  auto made = std::make_shared<Traffic>();
  made->name = search.traffic, made->k = search.k, made->epoch = search.epoch;
  made->sample = AnyMatrix(queries.type() == ElementType::f64 ? ElementType::f64 : ElementType::f32,
                           least_queries, queries.cols());
  next.push_back(made);
  traffics_.swap(next);
  return made;
}

void AuditLog::record(Traffic& traffic, AnyMatrixView queries, std::int64_t most) {
  const bool grows = traffic.audited < most;
  for (std::int64_t q = 0; q < queries.rows(); ++q) {
    const std::int64_t number = traffic.served++;
    if (traffic.kept < most) {
      if (traffic.kept == traffic.sample.rows()) {
        AnyMatrix& had = traffic.sample;
        AnyMatrix more(had.type(), std::min(2 * had.rows(), most_queries), had.cols());
        std::memcpy(more.row(0), had.row(0), had.view().bytes());
        traffic.sample = std::move(more);
      }
      copy_query(queries, q, traffic.sample, traffic.kept);
      ++traffic.kept;
    } else if (grows) {
      // Each query so far is in the sample with the same chance (Vitter 1985, algorithm R).
      const auto at =
          static_cast<std::int64_t>(draw(number) % static_cast<std::uint64_t>(number + 1));
      if (at < most) copy_query(queries, q, traffic.sample, at);
    } else if (draw(number) % static_cast<std::uint64_t>(traffic.interval) == 0) {
      copy_query(queries, q, traffic.sample, traffic.next);
      traffic.next = (traffic.next + 1) % most, ++traffic.renewed;
    }
  }
}

bool AuditLog::is_due(const Traffic& traffic, std::int64_t most) const {
  if (share_ <= 0 || traffic.kept < least_queries) return false;
  if (traffic.audited < most) return traffic.kept >= next_audit(traffic.audited, most);
  return traffic.renewed >= most && traffic.saved >= 0;
}

AuditLog::Audited AuditLog::find(const Search& search) const {
  std::lock_guard lock(mutex_);
  const Traffic* known = find_locked(search, ElementType::f32);
  if (!known) known = find_locked(search, ElementType::f64);
  return known ? state_of(*known, search) : Audited();
}

AuditLog::Audited AuditLog::serve(
    const Search& search, AnyMatrixView queries, const AuditCosts& costs,
    const std::function<RecallCurve(AnyMatrixView sample)>& calibrate) {
  const std::int64_t most = std::min(search.sample, most_queries);
  std::shared_ptr<Traffic> traffic;
  {
    std::lock_guard lock(mutex_);
    if (share_ <= 0) {  // frozen: what is known stays as it is
      const Traffic* const known = find_locked(search, queries.type());
      return known ? state_of(*known, search) : Audited();
    }
    traffic = take_locked(search, queries);
    served_ += queries.rows();
    if (!traffic || search.epoch < traffic->epoch) return {};
    if (search.epoch > traffic->epoch)
      traffic->epoch = search.epoch, traffic->curve = nullptr, traffic->audited = 0;
    record(*traffic, queries, most);
    traffic->saved += share_ * costs.query * static_cast<double>(queries.rows());
    traffic->recall = search.recall, traffic->last = served_;
    if (!is_due(*traffic, most)) return state_of(*traffic, search);
  }
  const auto now = [&] {
    std::lock_guard lock(mutex_);
    return state_of(*traffic, search);
  };
  if (!search.may_audit || !may_prepare()) return now();
  const std::unique_lock one(auditing_, std::try_to_lock);
  if (!one) return now();
  AnyMatrix sample;
  {
    std::lock_guard lock(mutex_);
    if (traffic->epoch != search.epoch || !is_due(*traffic, most))
      return state_of(*traffic, search);
    sample = AnyMatrix(traffic->sample.type(), traffic->kept, traffic->sample.cols());
    std::memcpy(sample.row(0), traffic->sample.row(0), sample.view().bytes());
  }
  auto curve = std::make_shared<const RecallCurve>(calibrate(sample.view()));
  std::lock_guard lock(mutex_);
  if (traffic->epoch != search.epoch) return state_of(*traffic, search);
  traffic->curve.swap(curve);
  traffic->audited = sample.rows(), traffic->renewed = 0;
  const double cost = costs.all_exact + costs.exact * static_cast<double>(sample.rows());
  traffic->saved = std::min(traffic->saved, 0.0) - cost;
  // All queries of the sample are new by the time that the debt is paid.
  const double queries_to_pay = -traffic->saved / std::max(share_ * costs.query, 1e-9);
  traffic->interval =
      static_cast<std::int64_t>(std::clamp(queries_to_pay / static_cast<double>(most), 1.0, 1e12));
  return state_of(*traffic, search);
}

void AuditLog::forget(std::int64_t k) {
  std::lock_guard lock(mutex_);
  Traffics next = traffics_;
  std::erase_if(next, [&](const auto& one) { return one->k == k; });
  traffics_.swap(next);
}

std::int64_t AuditLog::bytes() const {
  std::lock_guard lock(mutex_);
  std::int64_t sum = 0;
  for (const auto& one : traffics_) sum += one->sample.view().bytes();
  return sum;
}

std::vector<AuditReport> AuditLog::reports() const {
  std::lock_guard lock(mutex_);
  std::vector<AuditReport> out;
  for (const auto& one : traffics_) {
    AuditReport report{.traffic = one->name,
                       .k = one->k,
                       .served_queries = one->served,
                       .audited_queries = one->audited,
                       .recall = one->recall};
    if (one->curve && !one->curve->points.empty()) {
      const RecallPoint* point = one->curve->find(one->recall);
      if (!point) point = &one->curve->points.back();
      // As many yes-or-no answers as have the variance of the mean stand for the recalls.
      const double mean = point->expected, most = mean * (1 - mean);
      const double ratio = most > 0 ? std::clamp(point->spread.variance / most, 1e-6, 1.0) : 1;
      const Interval interval =
          wilson_interval(mean, static_cast<double>(point->spread.queries) / ratio, quantile_of_95);
      report.measured_recall = mean;
      report.low = std::clamp(interval.low, 0.0, mean);
      report.high = std::clamp(interval.high, mean, 1.0);
    }
    out.push_back(std::move(report));
  }
  return out;
}

}  // namespace knear::detail
