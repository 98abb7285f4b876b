// knear/index/options.hpp -- how an index is trained, changed, merged and searched.
#pragma once
#include <cstdint>

#include "knear/core/neighbors.hpp"
#include "knear/core/progress.hpp"
#include "knear/index/id_filter.hpp"
#include "knear/knn/options.hpp"

namespace knear {

// Searches by the metric of the index, which is not theirs to choose.
struct MetricOfIndex {};
// As KnnOptions, with a filter of ids for one of row numbers. `memory` is beside the index too.
using SearchOptions = BasicKnnOptions<MetricOfIndex, IdFilter>;

// For calls that change an index.
struct ChangeOptions {
  int threads = 0;
  Progress progress = {};
};

// For indexes that learn from vectors.
struct TrainOptions {
  // Of k-means for inverted lists: where vectors are 128 for each list or more, on a quarter of
  // these, and half as many before that on 16 for each list, and after that on all.
  int iterations = 10;
  // How many of the vectors are used, drawn at random, if there are more; 0: 256 for each list (128
  // of more than 16,384 lists), 65,536 for quantisers, 131,072 for transforms.
  std::int64_t rows = 0;
  // Whether a tenth of the vectors, 1,000 at most, is kept out of what transforms, lists and
  // quantisers learn from, to know recall by and to tell queries unlike the vectors.
  bool hold_out = true;
  std::uint64_t seed = 1;
  int threads = 0;
  Progress progress = {};
};

// What a search for a recall does, as it was seen on queries whose neighbours were known.
struct OperatingPoint {
  double promised_recall = 0, expected_recall = 0;  // with a margin for chance, and without
  double probes = 0, rows = 0;  // lists that a query probes, and rows in them, on average
};

// The largest id that a caller may give a row. Rows that are added without ids get ids above the
// largest one of the index, so some must remain.
inline constexpr Id last_given_id = Id{1} << 62;

enum class MergeIds : std::uint8_t {
  keep,    // each row keeps its id; one that both indexes hold is an error
  shifted  // next_id() is added to each
};

}  // namespace knear
