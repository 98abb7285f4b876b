// knear/index/form/coded_segments.hpp -- segments of codes, list by list, with what refines them.
// They always merge by copying.
#pragma once
#include <optional>
#include <span>
#include <vector>

#include "knear/index/life/segment_store.hpp"

namespace knear::detail {

class CodedSegments final : public SegmentStore {
 public:
  using SegmentStore::SegmentStore;

  void append_kept(State& next, AnyMatrixView rows, std::span<const Id> own_ids,
                   std::span<const std::uint32_t> list_of, AnyMatrixView finer,
                   const ChangeOptions& options) override;
  void settle(State& next, const ChangeOptions& options, bool copying = false) const override;

 private:
  void append_some(State& next, AnyMatrixView vectors, std::span<const Id> own_ids,
                   const ValueRange& found, const ChangeOptions& options,
                   std::int64_t first) override;
  std::optional<ElementType> type_of_rows() const override;
  void append_segment(State& next, AnyMatrixView vectors, std::span<const Id> own_ids,
                      std::span<const std::uint32_t> list_of, const ValueRange& found,
                      const Change& change) override;
  Segment rewritten(std::span<const Segment> segments, const Change& change,
                    bool again = false) const override;

  // Returns the ids of n rows, their own or those that follow, which are in use from then on.
  static RowIds take_ids(State& next, std::span<const Id> own_ids, std::int64_t n);
  // Returns a segment of vectors that keeps only their codes and what refines these. Besides it
  // takes 16 bytes a row, and what a block of vectors takes.
  Segment coded_segment(AnyMatrixView vectors, const RowIds& ids, const Change& change) const;
};

}  // namespace knear::detail
