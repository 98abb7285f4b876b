// knear/index/life/index_state.hpp -- what a search of an index sees, and how it is kept in a file.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "knear/index/index_shape.hpp"
#include "knear/index/life/segment.hpp"
#include "knear/index/quantizers/coarse_quantizer.hpp"
#include "knear/index/quantizers/row_coder.hpp"
#include "knear/index/recall/audit_log.hpp"
#include "knear/index/recall/known_neighbors.hpp"
#include "knear/index/recall/recall_rule.hpp"
#include "knear/io/archive.hpp"
#include "knear/transform/transform.hpp"

namespace knear::detail {

class FlatLists;
class GraphOfState;

// What a search sees. Never changed once it is published.
struct State {
  std::vector<Segment> segments;
  // Of which the segments are, where shards are searched as one index (index/shards/shards.hpp).
  std::int64_t shards = 1;
  std::optional<ElementType> type;
  Id next_id = 0;
  std::int64_t version = 0, size = 0;
  // Of inverted lists, once they are trained: the centroids, and what recall takes how many probes.
  std::shared_ptr<const CoarseQuantizer> coarse = {};
  std::shared_ptr<RecallCurves> recall = {};  // has a lock of its own
  std::int64_t changed_rows = 0;              // added or taken out since `recall` was begun
  // Of lists of vectors, keys of the nearest centroids of some that these were not learned from,
  // ascending; nullptr: not known.
  std::shared_ptr<const std::vector<float>> fresh_keys = {};
  // Where rows are codes, once it is trained.
  std::shared_ptr<const RowCoder> coder = {};
  // Where the vectors by which codes are refined are codes themselves.
  std::shared_ptr<const RowCoder> refiner = {};
  // Of codes: what recall is measured by; nullptr: nothing is known.
  std::shared_ptr<const KnownNeighbors> known = {};
  // What is done to vectors first, once it is trained.
  std::optional<Transform> transform = {};
  // Where all rows are compared: lists of them, for searches that need not find everything.
  std::shared_ptr<FlatLists> flat_lists = {};
  // Where there is a graph over the rows: it, and what has changed since it was made.
  std::shared_ptr<GraphOfState> graph = {};
  // Audits of the queries that were served; nullptr: there never were any.
  std::shared_ptr<AuditLog> audits = {};
  // How often the rows have changed so much that what audits found no longer holds.
  std::int64_t audit_epoch = 0;

  // The segment and row of an id; row -1 if it is not there.
  struct Place {
    std::size_t segment = 0;
    std::int64_t row = -1;
  };
  Place find(Id id) const {
    for (std::size_t s = 0; s < segments.size(); ++s) {
      const std::int64_t row = segments[s].rows->find(id);
      if (row >= 0 && segments[s].live.contains(row)) return {s, row};
    }
    return {};
  }
};

// Whether two transforms do the same.
bool equal(const Transform& a, const Transform& b);

}  // namespace knear::detail
