#include "knear/cost/merge_tree.hpp"

#include <algorithm>
#include <cmath>
#include <deque>
#include <numbers>
#include <queue>
#include <tuple>
#include <utility>

#include "knear/core/error.hpp"
#include "knear/core/random.hpp"

namespace knear {
namespace {

void check(const MergeTree& tree) {
  for (const auto& [name, value, least] : {std::tuple("shards", tree.shards, std::int64_t{1}),
                                           std::tuple("replicas", tree.replicas, std::int64_t{1}),
                                           std::tuple("fan_in", tree.fan_in, std::int64_t{2}),
                                           std::tuple("requests", tree.requests, std::int64_t{1})})
    if (value < least)
      throw InvalidArgument("{} must be at least {}, but is {}", name, least, value);
  if (double(tree.requests) * double(tree.shards) > 1e7)
    throw InvalidArgument("{} requests to {} shards are more parts than 10,000,000", tree.requests,
                          tree.shards);
  if (double(tree.shards) * double(tree.replicas) > 1e6)
    throw InvalidArgument("{} shards x {} replicas are more machines than 1,000,000", tree.shards,
                          tree.replicas);
  // Each part looks at all replicas of its shard.
  if (double(tree.requests) * double(tree.shards) * double(tree.replicas) > 1e9)
    throw InvalidArgument("{} requests to {} shards x {} replicas are more looks than 10^9",
                          tree.requests, tree.shards, tree.replicas);
  for (const auto& [name, value] : {std::pair("service_seconds", tree.service_seconds),
                                    std::pair("service_spread", tree.service_spread),
                                    std::pair("request_hop_seconds", tree.request_hop_seconds),
                                    std::pair("answer_hop_seconds", tree.answer_hop_seconds),
                                    std::pair("merge_seconds", tree.merge_seconds),
                                    std::pair("failures_per_hour", tree.failures_per_hour),
                                    std::pair("recovery_seconds", tree.recovery_seconds)})
    if (!(value >= 0 && std::isfinite(value)))
      throw InvalidArgument("{} must be a number that is not negative, but is {}", name, value);
  if (tree.service_spread > 5)
    throw InvalidArgument("service_spread must be at most 5, but is {}", tree.service_spread);
  if (!(tree.requests_per_second > 0 && std::isfinite(tree.requests_per_second)))
    throw InvalidArgument("requests_per_second must be a positive number, but is {}",
                          tree.requests_per_second);
  if (!(tree.deadline_seconds > 0))
    throw InvalidArgument("deadline_seconds must be positive, but is {}", tree.deadline_seconds);
  if (!(tree.hedge_quantile > 0 && tree.hedge_quantile <= 1))
    throw InvalidArgument("hedge_quantile must be above 0 and at most 1, but is {}",
                          tree.hedge_quantile);
  double before = 0;
  for (const double seconds : tree.service_quantiles) {
    if (!(seconds >= before && std::isfinite(seconds)))
      throw InvalidArgument("service_quantiles must ascend from 0 or more, but {} follows {}",
                            seconds, before);
    before = seconds;
  }
}

// Throws where the simulation would not end: requests that come faster than they are answered, and
// machines that do nothing but fail.
void check_rates(const MergeTree& tree, double mean_service) {
  const double busy = tree.requests_per_second * mean_service / double(tree.replicas);
  if (!(busy < 1))
    throw InvalidArgument(
        "requests_per_second is {:.4g}, but {} replicas that take {:.4g} seconds each answer no "
        "more than {:.4g}",
        tree.requests_per_second, tree.replicas, mean_service,
        double(tree.replicas) / mean_service);
  const double failures = tree.failures_per_hour / 3600 * double(tree.shards * tree.replicas) *
                          double(tree.requests) / tree.requests_per_second;
  if (!(failures <= 1e7))
    throw InvalidArgument(
        "failures_per_hour is {}, which makes {:.3g} failures while {} requests "
        "come, and not more than 10,000,000 are simulated",
        tree.failures_per_hour, failures, tree.requests);
}

// Of the normal distribution; 0 < share < 1. By bisection: it is asked for once.
double normal_quantile(double share) {
  double low = -40, high = 40;
  for (int i = 0; i < 200; ++i) {
    const double middle = (low + high) / 2;
    (std::erfc(-middle / std::numbers::sqrt2) / 2 < share ? low : high) = middle;
  }
  return (low + high) / 2;
}

// How long a machine takes for a request.
class ServiceTime {
 public:
  explicit ServiceTime(const MergeTree& tree) : tree_(tree) {}

  double draw(Random& random) const {
    if (!tree_.service_quantiles.empty()) return between_quantiles(random.uniform());
    if (tree_.service_spread == 0) return tree_.service_seconds;
    // Box and Muller, one of the two.
    const double radius = std::sqrt(-2 * std::log(1 - random.uniform()));
    const double normal = radius * std::cos(2 * std::numbers::pi * random.uniform());
    return tree_.service_seconds * std::exp(tree_.service_spread * normal);
  }

  double mean() const {
    const std::vector<double>& all = tree_.service_quantiles;
    if (all.empty())
      return tree_.service_seconds * std::exp(tree_.service_spread * tree_.service_spread / 2);
    double sum = 0;
    for (std::size_t i = 0; i + 1 < all.size(); ++i) sum += (all[i] + all[i + 1]) / 2;
    return all.size() == 1 ? all[0] : sum / double(all.size() - 1);
  }

  double quantile(double share) const {
    if (!tree_.service_quantiles.empty()) return between_quantiles(share);
    if (tree_.service_spread == 0) return tree_.service_seconds;
    return tree_.service_seconds * std::exp(tree_.service_spread * normal_quantile(share));
  }

 private:
  double between_quantiles(double share) const {
    const std::vector<double>& all = tree_.service_quantiles;
    const double place = share * double(all.size() - 1);
    const std::size_t first = std::min(std::size_t(place), all.size() - 1);
    const std::size_t next = std::min(first + 1, all.size() - 1);
    return all[first] + (place - double(first)) * (all[next] - all[first]);
  }

  const MergeTree& tree_;
};

double down_share(const MergeTree& tree) {
  const double per_cycle = tree.failures_per_hour / 3600 * tree.recovery_seconds;
  return per_cycle / (1 + per_cycle);
}

std::int64_t levels_of(const MergeTree& tree) {
  std::int64_t levels = 0;
  for (std::int64_t left = tree.shards; left > 1; left = (left + tree.fan_in - 1) / tree.fan_in)
    ++levels;
  return levels;
}

class Simulation {
 public:
  explicit Simulation(const MergeTree& tree)
      : tree_(tree),
        service_(tree),
        random_(tree.seed),
        down_seconds_(double(levels_of(tree)) * tree.request_hop_seconds),
        uncounted_(tree.requests / 10),
        hedges_(tree.hedge_quantile < 1 && tree.replicas > 1),
        hedge_seconds_(hedges_ ? service_.quantile(tree.hedge_quantile) : 0),
        machines_(tree.shards * tree.replicas) {}

  MergeTreeTimes run() {
    start_failures();
    schedule(waiting_time(tree_.requests_per_second), arrival, 0);
    while (done_ < uncounted_ + tree_.requests) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.at;
      switch (event.kind) {
        case arrival:
          arrive();
          break;
        case finish:
          if (machines_[event.machine].epoch == event.epoch) finish_service(event.machine);
          break;
        case hedge:
          ask_again(event.part);
          break;
        case failure:
          fail(event.machine);
          break;
        case recovery:
          machines_[event.machine].up = true;
          schedule(now_ + waiting_time(tree_.failures_per_hour / 3600), failure, event.machine);
          break;
      }
    }
    return times();
  }

 private:
  enum Kind : std::uint8_t { arrival, finish, hedge, failure, recovery };

  // One shard's part of a request, which lies in a slot as long as it is not answered.
  struct Part {
    std::uint32_t slot;
    std::int64_t request, shard;
  };
  struct Event {
    double at;
    std::uint64_t order;  // that of scheduling, which decides between equal times
    Kind kind;
    std::size_t machine;
    std::uint32_t epoch;
    Part part;
    bool operator>(const Event& other) const {
      return std::pair(at, order) > std::pair(other.at, other.order);
    }
  };
  struct Machine {
    bool up = true, busy = false;
    std::uint32_t epoch = 0;  // finish events of another one are of work that was lost
    double began = 0;
    std::deque<Part> queue;  // the first is in service if the machine is busy
  };
  struct Request {
    std::int64_t number = -1;
    double came = 0;
    std::int64_t missing = 0;  // parts that are not known yet
    bool partial = false;
    std::vector<double> known;         // when each part was; negative before
    std::vector<std::uint8_t> copies;  // that are queued or in service
  };

  double waiting_time(double rate) { return -std::log(1 - random_.uniform()) / rate; }

  void schedule(double at, Kind kind, std::size_t machine, Part part = Part()) {
    events_.push({at, order_++, kind, machine, machines_[machine].epoch, part});
  }

  // Machines begin as they are on average over all time.
  void start_failures() {
    if (tree_.failures_per_hour == 0) return;
    const double down = down_share(tree_);
    for (std::size_t i = 0; i < machines_.size(); ++i) {
      machines_[i].up = random_.uniform() >= down;
      if (machines_[i].up)
        schedule(waiting_time(tree_.failures_per_hour / 3600), failure, i);
      else
        schedule(random_.uniform() * tree_.recovery_seconds, recovery, i);
    }
  }

  // The request reaches all shards at once, `down_seconds_` after it came.
  void arrive() {
    std::uint32_t slot;
    if (free_.empty()) {
      slot = std::uint32_t(requests_.size());
      requests_.emplace_back();
    } else {
      slot = free_.back();
      free_.pop_back();
    }
    Request& request = requests_[slot];
    request.number = came_++;
    request.came = now_, request.missing = tree_.shards, request.partial = false;
    request.known.assign(std::size_t(tree_.shards), -1);
    request.copies.assign(std::size_t(tree_.shards), 0);
    const std::int64_t number = request.number;
    for (std::int64_t shard = 0; shard < tree_.shards; ++shard) {
      const Part part{slot, number, shard};
      if (!send(part, none))
        know(part, true);
      else if (hedges_)
        schedule(now_ + hedge_seconds_, hedge, 0, part);
    }
    if (came_ < uncounted_ + tree_.requests)
      schedule(now_ + waiting_time(tree_.requests_per_second), arrival, 0);
  }

  bool unanswered(const Part& part) const {
    const Request& request = requests_[part.slot];
    return request.number == part.request && request.known[std::size_t(part.shard)] < 0;
  }

  // To the machine with the fewest parts, of those of the shard that are up and not `but`; false if
  // there is none.
  bool send(const Part& part, std::size_t but) {
    const auto replicas = std::size_t(tree_.replicas);
    const std::size_t first = std::size_t(part.shard) * replicas, turn = turn_++ % replicas;
    std::size_t best = none;
    for (std::size_t i = 0; i < replicas; ++i) {
      const std::size_t one = first + (turn + i) % replicas;
      if (one == but || !machines_[one].up) continue;
      if (best == none || machines_[one].queue.size() < machines_[best].queue.size()) best = one;
    }
    if (best == none) return false;
    ++requests_[part.slot].copies[std::size_t(part.shard)];
    machines_[best].queue.push_back(part);
    if (!machines_[best].busy) begin_service(best);
    return true;
  }

  // Takes the next part that is still wanted.
  void begin_service(std::size_t at) {
    Machine& machine = machines_[at];
    while (!machine.queue.empty() && !unanswered(machine.queue.front())) machine.queue.pop_front();
    machine.busy = !machine.queue.empty();
    if (!machine.busy) return;
    machine.began = now_;
    schedule(now_ + service_.draw(random_), finish, at);
  }

  void finish_service(std::size_t at) {
    Machine& machine = machines_[at];
    const Part part = machine.queue.front();
    machine.queue.pop_front();
    busy_seconds_ += now_ - machine.began;
    if (unanswered(part)) know(part, false);
    begin_service(at);
  }

  void ask_again(const Part& part) {
    if (!unanswered(part) || requests_[part.slot].copies[std::size_t(part.shard)] != 1) return;
    if (send(part, holder_of(part))) ++hedged_;
  }

  // The machine that has the one copy of a part.
  std::size_t holder_of(const Part& part) const {
    const auto first = std::size_t(part.shard * tree_.replicas);
    for (std::size_t i = first; i < first + std::size_t(tree_.replicas); ++i)
      for (const Part& other : machines_[i].queue)
        if (other.slot == part.slot && other.request == part.request) return i;
    return none;
  }

  void fail(std::size_t at) {
    Machine& machine = machines_[at];
    machine.up = false;
    if (machine.busy) busy_seconds_ += now_ - machine.began;
    machine.busy = false;
    ++machine.epoch;
    std::deque<Part> lost;
    lost.swap(machine.queue);
    for (const Part& part : lost) {
      if (!unanswered(part)) continue;
      std::uint8_t& copies = requests_[part.slot].copies[std::size_t(part.shard)];
      if (--copies == 0 && !send(part, at)) know(part, true);
    }
    schedule(now_ + tree_.recovery_seconds, recovery, at);
  }

  // The part of a shard is there, or it is known that there is none.
  void know(const Part& part, bool left_out) {
    Request& request = requests_[part.slot];
    request.known[std::size_t(part.shard)] = now_;
    request.partial |= left_out;
    if (--request.missing > 0) return;
    const double seconds = merged(request.known) - request.came + down_seconds_;
    if (request.number >= uncounted_) {
      partial_ += request.partial || seconds > tree_.deadline_seconds;
      seconds_.push_back(std::min(seconds, tree_.deadline_seconds));
    }
    ++done_;
    request.number = -1;
    free_.push_back(part.slot);
  }

  // When the machine at the top has merged all.
  double merged(std::vector<double>& ready) {
    const auto fan_in = std::size_t(tree_.fan_in);
    while (ready.size() > 1) {
      std::size_t groups = 0;
      for (std::size_t first = 0; first < ready.size(); first += fan_in) {
        const std::size_t end = std::min(first + fan_in, ready.size());
        std::sort(ready.begin() + std::ptrdiff_t(first) + 1, ready.begin() + std::ptrdiff_t(end));
        double at = ready[first];
        for (std::size_t i = first + 1; i < end; ++i)
          at = std::max(at, ready[i] + tree_.answer_hop_seconds) + tree_.merge_seconds;
        ready[groups++] = at;
      }
      ready.resize(groups);
    }
    return ready[0];
  }

  MergeTreeTimes times() {
    std::sort(seconds_.begin(), seconds_.end());
    const auto quantile = [&](double share) {
      const double place = std::ceil(share * double(seconds_.size()));
      return seconds_[std::size_t(std::max(place, 1.0)) - 1];
    };
    MergeTreeTimes out;
    for (const double seconds : seconds_) out.mean_seconds += seconds / double(seconds_.size());
    out.p50_seconds = quantile(0.5), out.p99_seconds = quantile(0.99);
    out.p999_seconds = quantile(0.999);
    out.partial_share = double(partial_) / double(seconds_.size());
    // What is still in service counts as far as it has come.
    for (const Machine& machine : machines_)
      if (machine.busy) busy_seconds_ += now_ - machine.began;
    out.busy_share = now_ > 0 ? busy_seconds_ / (now_ * double(machines_.size())) : 0;
    out.hedged_share = double(hedged_) / (double(came_) * double(tree_.shards));
    return out;
  }

  static constexpr std::size_t none = ~std::size_t{0};

  const MergeTree& tree_;
  ServiceTime service_;
  Random random_;
  double down_seconds_;
  std::int64_t uncounted_;
  bool hedges_;
  double hedge_seconds_;
  std::vector<Machine> machines_;
  std::vector<Request> requests_;
  std::vector<std::uint32_t> free_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  double now_ = 0, busy_seconds_ = 0;
  std::uint64_t order_ = 0;
  std::size_t turn_ = 0;
  std::int64_t came_ = 0, done_ = 0, partial_ = 0, hedged_ = 0;
  std::vector<double> seconds_;
};

}  // namespace

MergeTreeTimes simulate(const MergeTree& tree) {
  check(tree);
  check_rates(tree, ServiceTime(tree).mean());
  return Simulation(tree).run();
}

double expected_partial_share(const MergeTree& tree) {
  check(tree);
  const double lost = std::pow(down_share(tree), double(tree.replicas));
  return -std::expm1(double(tree.shards) * std::log1p(-lost));
}

}  // namespace knear
