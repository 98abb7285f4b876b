// knear/index/form/vector_segments.hpp -- segments of vectors, as they are or rounded, in inverted
// lists or without: matrices with packed rows beside them, or panels of whole numbers.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "knear/index/life/segment_store.hpp"

namespace knear::detail {

class VectorSegments final : public SegmentStore {
 public:
  using SegmentStore::SegmentStore;

  void append_kept(State& next, AnyMatrixView rows, std::span<const Id> own_ids,
                   std::span<const std::uint32_t> list_of, AnyMatrixView finer,
                   const ChangeOptions& options) override;
  // Matrices of more than a few rows merge only where they lie next to one another, without being
  // copied; unless `copying`, or there are too many of them after a long history.
  void settle(State& next, const ChangeOptions& options, bool copying = false) const override;
  // Goes on in the buffer of the other store.
  void share(const SegmentStore& other) override {
    const auto& from = static_cast<const VectorSegments&>(other);
    tail_ = from.tail_, reserved_ = from.reserved_;
  }

 private:
  void append_some(State& next, AnyMatrixView vectors, std::span<const Id> own_ids,
                   const ValueRange& found, const ChangeOptions& options,
                   std::int64_t first) override;
  void append_segment(State& next, AnyMatrixView vectors, std::span<const Id> own_ids,
                      std::span<const std::uint32_t> list_of, const ValueRange& found,
                      const Change& change) override;
  Segment rewritten(std::span<const Segment> segments, const Change& change,
                    bool again = false) const override;
  bool are_few(std::int64_t rows, const Change& change) const override;
  std::optional<Segment> united(const Segment& a, const Segment& b, const Change& change,
                                bool copying) const override;
  // A buffer stays as long as one segment lies in it: those that have most of it for nothing move.
  void give_back_buffers(State& next, const Change& change) override;

  // The lists of rows of the index: those of the caller, list_of [rows], or if it is empty the
  // nearest.
  ListAssignment assigned(AnyMatrixView rows, std::span<const std::uint32_t> list_of,
                          const Change& change) const;
  // Rows as they are kept, transformed and rounded, behind those in use of a buffer, which becomes
  // the one that is being filled. first: the number of the first vector in messages.
  AnyMatrixView altered_rows(const State& next, AnyMatrixView vectors, const ChangeOptions& options,
                             std::int64_t first);
  // Rows with their ids as a segment of live rows: packed, if they are many; as_panels: whole
  // numbers of 8 bits, however few. lists: of each row; nothing without lists.
  Segment segment_of(MatrixRows rows, ListAssignment lists, const Change& change,
                     bool as_panels = false) const;
  // A buffer with room for n rows more. The first one takes what it needs; later ones leave room,
  // so that many small adds make few buffers. Rows that will soon be kept as panels need little.
  std::shared_ptr<RowBuffer> room_for(const State& next, std::int64_t n, bool soon_panels);
  // Moves segments that are panels to those of u8 and of i8.
  static void take_panels(std::vector<Segment>& from, std::vector<Segment>& bytes,
                          std::vector<Segment>& chars);
  // Live rows, ascending by id; their ids, none where they follow one another without a gap; and
  // their lists, as the segments have them.
  static std::vector<RowPlace> live_rows(std::span<const Segment> segments);
  static AlignedArray<Id> ids_of(const std::vector<RowPlace>& live);
  static ListAssignment lists_of(std::span<const Segment> segments,
                                 const std::vector<RowPlace>& live, const Change& change);
  // Two matrices that lie next to one another as one segment, of their live rows.
  Segment joined(const Segment& a, const Segment& b, const ValueRange& found,
                 const Change& change) const;

  std::shared_ptr<RowBuffer> tail_;  // the buffer that is being filled
};

}  // namespace knear::detail
