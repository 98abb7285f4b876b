// knear/cost/merge_tree.hpp -- how long the slowest of many machines lets a search wait: shards and
// replicas that answer as fast as chance has it, fail and come back, and the tree that merges.
//
//   const MergeTree tree{.shards = 64, .replicas = 3, .fan_in = 8, .requests_per_second = 100,
//                        .service_seconds = 0.01, .service_spread = 0.3, .hedge_quantile = 0.95};
//   simulate(tree).p99_seconds
//
// A simulation by events, the same for a seed. A request goes down the tree to all shards, a hop a
// level, and in each shard to the machine with the fewest requests of those that are up, which
// takes one after another. What shards found goes up in groups of fan_in: the first of a group
// merges what the others send, one after another, once it has its own. Merging and sending do not
// keep a machine from its next request; `service_seconds` has to include what does. Hops to and
// from whoever asks are not in it either.
//
//   stragglers  the time of a request on a machine is drawn anew each time, log-normal with the
//               given median and spread (the deviation of its logarithm), or from quantiles that
//               were measured
//   hedging     a shard that has not answered after that quantile of the time of service is asked
//               again on another machine; the first answer counts, and the other copy, if it has
//               not been begun, is not
//   failures    a machine is down for recovery_seconds, at times of chance; what it had to do goes
//               to another one of its shard at once. A shard without any is left out of the answer,
//               which is then partial; so is one that is not complete at the deadline
//
// Cost: some two microseconds for each request and shard, of few replicas; of a hundred or more the
// look at each of them, some 10 nanoseconds, is the most.
#pragma once
#include <cstdint>
#include <limits>
#include <vector>

namespace knear {

struct MergeTree {
  std::int64_t shards = 1, replicas = 1;
  std::int64_t fan_in = 2;
  double requests_per_second = 1;  // that come by chance (Poisson)
  double service_seconds = 0;      // the median, where there are no quantiles
  double service_spread = 0;       // 0: always the same
  // Seconds, ascending: the quantiles 0, 1 / (n - 1), ..., 1, between which lines are drawn.
  std::vector<double> service_quantiles = {};
  double request_hop_seconds = 0, answer_hop_seconds = 0;  // one level
  double merge_seconds = 0;                                // to merge what one other machine found
  double hedge_quantile = 1;                               // 1: nothing is asked again
  double failures_per_hour = 0;                            // of one machine, while it is up
  double recovery_seconds = 0;
  double deadline_seconds = std::numeric_limits<double>::infinity();
  std::int64_t requests = 10000;  // a tenth more are simulated before, which do not count
  std::uint64_t seed = 1;
};

struct MergeTreeTimes {
  double mean_seconds = 0, p50_seconds = 0, p99_seconds = 0, p999_seconds = 0;
  double partial_share = 0;  // of the requests
  double busy_share = 0;     // of the time of all machines, spent in service
  double hedged_share = 0;   // of the parts of requests that were asked again
};

// Throws InvalidArgument for a number that is negative, NaN or infinite (but the deadline), shards,
// replicas or requests below 1, fan_in below 2, a quantile outside (0, 1], a spread above 5,
// quantiles that do not ascend; where requests come faster than the machines answer them; and where
// requests x shards are more than 10^7, machines more than 10^6, requests x machines more than
// 10^9, or failures more than 10^7.
MergeTreeTimes simulate(const MergeTree& tree);

// The share of requests for which some shard has no machine that is up, on average over all time:
// 1 - (1 - u^replicas)^shards, u being the share of the time that a machine is down. Errors as
// above.
double expected_partial_share(const MergeTree& tree);

}  // namespace knear
