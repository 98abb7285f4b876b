// knear/cost/scale_plan.hpp -- how many machines a search of 10^9 to 10^12 vectors takes, and what
// it would cost, by the models of cost/plan.hpp, list_plan.hpp and shard_plan.hpp.
//
//   const std::vector<ScalePlan> plans =
//       plan_at_scale({.rows = 10'000'000'000, .dim = 96, .queries_per_second = 10000}, machine);
//   plans[0].factory, plans[0].shards, plans[0].replicas     // the one with the fewest machines
//
// Rows are divided evenly between shards, one on a machine, as an index in shards divides them:
// lists have common centroids, and every shard holds a part of each list. A call's queries go to
// all shards of one replica down a tree, each shard searches them with all of its threads, and what
// the shards found, k keys and ids of 16 bytes, is merged on the way up, in groups of `fan_in`
// machines of which one merges. So
//
//   shards     so many that the bytes of a shard fit in `memory_share` of a machine's memory
//   service    seconds of a call on a shard: predict_scan or predict_lists of its rows
//   merging    predict_merge of fan_in shards, level by level, by the machine at the top of them
//   capacity   of a replica: queries a second of the machine at the top, which searches and merges,
//              or what its link takes, whichever is less
//   replicas   so many that none is busy more than `busy_share` of the time
//   latency    the tree's hops and transfers, service, merging, and the mean wait of a queue with
//              Poisson arrivals and constant service, M/D/1: busy / (2 (1 - busy)) of a service
//   opening    once after a machine has opened its index from a file that is in memory: all pages
//              are checked at the description's rate by the first calls that come to them
//   building   centroids and quantiser learned on one machine and sent to all; each shard's rows
//              received and added, to memory that the system has to give first, then copied to the
//              other replicas, of which each passes on what it receives
//
// What a recall takes in probes, and which codes reach it, is assumed (cost/recall_assumptions.hpp)
// unless `probes` and `refine_factor` say it. Each plan lists what it rests on.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "knear/cost/machine_description.hpp"

namespace knear {

struct ScaleNeeds {
  std::int64_t rows = 0, dim = 0;  // vectors of float32
  std::int64_t k = 10;
  double recall = 0.95;  // of the k nearest, on average; 1: all of them, for certain
  double queries_per_second = 1000;
  std::int64_t batch = 100;  // queries in a call
  std::int64_t fan_in = 0;   // of the tree, 2 or more; 0: the one with the least latency
  std::int64_t least_shards = 1, least_replicas = 1;
  // Measured on your data, instead of the assumption: lists of a query that find the recall in the
  // number of lists that the plan has, and codes measured for each neighbour. 0: as assumed.
  double probes = 0;
  double refine_factor = 0;
  std::int64_t lists = 0;     // 0: the fastest
  double memory_share = 0.8;  // of a machine's memory that an index may take
  double busy_share = 0.7;    // of its time that a machine may be busy
};

struct ScalePlan {
  std::string factory;  // as make_index() takes it: "IVF65536,PQ48x4,Refine(SQ8)"
  std::string what;     // "all vectors compared", "lists of codes of 24 bytes", ...
  double expected_recall = 1;
  std::int64_t lists = 0;              // 0: none
  double probes = 0, probed_rows = 0;  // of a query, probed_rows on each shard
  std::int64_t code_bytes = 0;         // of a row; 0: vectors
  double refine_factor = 0;            // 0: codes are not refined

  std::int64_t shards = 0, replicas = 0, machines = 0;
  double rows_of_shard = 0, row_bytes = 0;
  double memory_bytes = 0;  // of the index on each machine

  double service_seconds = 0;  // a call's queries on a shard
  double merge_seconds = 0;    // all levels
  double network_seconds = 0;  // hops and transfers, down and up
  double wait_seconds = 0;     // mean
  double latency_seconds = 0;  // mean of a call: the sum of these
  double capacity = 0;         // queries a second of all replicas
  double busy = 0;             // share of its time that the busiest machine is busy, or its link
  std::string limit;           // "multiply-adds", "look-ups", "memory", "network", ...

  std::int64_t fan_in = 0, levels = 0;
  double network_bytes_of_query = 0;    // sent between machines, both ways
  double busiest_bytes_per_second = 0;  // into the machine at the top, or out of it, the larger

  std::optional<double> opening_seconds;  // nothing where the description has no rate

  double train_seconds = 0, add_seconds = 0, receive_seconds = 0, copy_seconds = 0;
  double build_seconds = 0;  // the sum of these

  // In the currency of the description; nothing where it has no price.
  std::optional<double> price_per_hour, price_per_million_queries, build_price;

  std::vector<std::string> assumptions;  // one sentence each
};

// Every form of index that is expected to reach the recall, the one with the fewest machines first,
// then by latency; not empty. Exact search of vectors always reaches it. Throws InvalidArgument for
// what no plan can have: rows outside [1, 10^15], dim outside [1, 65536], k outside [1, 10^6] or
// beyond rows, recall outside (0, 1], queries_per_second outside (0, 10^12], batch outside [1,
// 10^6], fan_in 1 or outside [0, 4096], lists outside [0, 2^24], shares outside (0, 1], busy_share
// above 0.99; probes without lists; lists, or a refine_factor, that no form has that reaches the
// recall; and where every form would need more than 10^9 machines.
std::vector<ScalePlan> plan_at_scale(const ScaleNeeds& needs, const MachineDescription& machine);

}  // namespace knear
