// knear/knn/search/joined_reports.hpp -- a search in parts, told as one: its progress, and what its
// parts report. Parts have other rows, or other queries of the same batch.
#pragma once
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "knear/core/progress.hpp"
#include "knear/knn/report.hpp"

namespace knear::detail {

// The progress of many parts as that of one, each stage by itself.
class SharedProgress {
 public:
  SharedProgress(const Progress& progress, std::int64_t parts)
      : progress_(progress), parts_(parts) {}

  // That of a part, for as long as this lives.
  Progress of(std::int64_t part);

 private:
  const Progress& progress_;
  const std::int64_t parts_;
  std::mutex mutex_;
  bool goes_on_ = true;  // all parts stop once one was told to
  std::map<std::string, std::vector<double>> done_;
};

// Whether it is known of each query whether its answer is proven.
bool tells_certified(const KnnReport& report);
// The same queries among other rows.
void add_shard(KnnReport& all, const KnnReport& more);
// Other queries of a batch of so many, which begin at `first`, among the same rows: added to what
// begin_queries() made of the part with the first ones.
void add_queries(KnnReport& all, const KnnReport& more, std::int64_t first, std::int64_t queries);
KnnReport begin_queries(const KnnReport& part, std::int64_t queries);
// The same queries among the rows of one block after another. `all` is that of the latest block.
void add_block(KnnReport& all, const KnnReport& before);

}  // namespace knear::detail
