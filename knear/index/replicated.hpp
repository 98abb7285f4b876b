// knear/index/replicated.hpp -- an index whose replicas answer parts of each batch of queries, each
// on its own group of processors.
//
//   ReplicatedIndex index(make_index("IVF1024,PQ16", 96), 2);
//   index.train(vectors), index.add(vectors);
//   Neighbors near = index.search(queries, 10, {.method = {.probes = 16}});
//
// Johnson, Douze and Jégou (2017), section 5.4. It is a ShardedIndex of one shard: the same
// members, and a file that both can open. Queries are divided by the speed that replicas had in the
// searches before (knn/device/replica_speeds.hpp). The answers are the same bits for any number of
// replicas: no query's answer depends on the others, and searches that look at a batch as a whole
// (recall, partial-reduce) are not divided. Replicas share the memory of the one index.
#pragma once
#include "knear/index/sharded.hpp"

namespace knear {

class ReplicatedIndex : public ShardedIndex {
 public:
  // Takes over the rows of `of`, sharing their memory. Throws InvalidArgument unless
  // 1 <= replicas <= 4096.
  explicit ReplicatedIndex(const Index& of, int replicas)
      : ShardedIndex(of, {.shards = 1, .replicas = replicas}) {}
};

}  // namespace knear
