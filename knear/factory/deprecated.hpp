// knear/factory/deprecated.hpp -- names that go with the next version, each with what to write
// instead.
#pragma once
#include <string>

#include "knear/factory/factory.hpp"

namespace knear {

class [[deprecated("write Index, and make_index(\"Flat\", dim, metric)")]] FlatIndex : public Index{
  public : explicit FlatIndex(std::int64_t dim, Metric metric = Metric::l2) :
      Index(make_index("Flat", dim, metric)){}
};

class [[deprecated("write Index, and make_index(\"IVF1024,Flat\", dim, metric)")]] IvfFlatIndex
    : public Index{
      public : IvfFlatIndex(std::int64_t dim, std::int64_t lists, Metric metric = Metric::l2) :
          Index(make_index("IVF" + std::to_string(lists) + ",Flat", dim, metric)){}
    };

class [[deprecated("write Index, and make_index(\"Graph32\", dim, metric)")]] GraphFlatIndex
    : public Index{
      public : GraphFlatIndex(std::int64_t dim, std::int64_t degree, Metric metric = Metric::l2) :
          Index(make_index("Graph" + std::to_string(degree), dim, metric)){}
    };

class [[deprecated("write Index, and index.divided({.shards = s})")]] ShardedIndex : public Index{
  public : explicit ShardedIndex(const Index& like, const ShardingOptions& options) :
      Index(like.divided(options)){}
};

class [[deprecated("write Index, and index.divided({.replicas = r})")]] ReplicatedIndex
    : public Index{
      public : ReplicatedIndex(const Index& of, int replicas) :
          Index(of.divided({.replicas = replicas})){}
    };

using ShardedLoadOptions [[deprecated("write LoadOptions")]] = LoadOptions;

}  // namespace knear
