// knear/index/life/segment.hpp -- the pieces of which an index is made.
//
// A segment is a stretch of rows with their ids, prepared for searching once and never changed;
// what may change from one state of the index to the next is which of its rows are live. States
// share segments, so a search goes on with those it began with while the index moves on.
//
// Rows are kept in one of three ways:
//   a matrix   part of a buffer, as they came, in the element type of the index;
//              beside it packed codes (from 256 rows on), a quarter of f32 vectors
//   panels     whole numbers of 8 bits (l2 and ip): packed codes alone, one byte a coordinate,
//              from which a row can be read back
//   codes      of an index that has a quantiser: list by list, with their ids in the same order,
//              and the vectors themselves where these refine the answers
// With inverted lists, packed codes lie list by list, and the lists of fewer rows than are worth
// that are their numbers.
#pragma once
#include <atomic>
#include <memory>
#include <span>

#include "knear/core/process_mutex.hpp"
#include "knear/core/row_set.hpp"
#include "knear/knn/lists/listed_rows.hpp"
#include "knear/knn/rows/device_copies.hpp"
#include "knear/knn/segment_search.hpp"
#include "knear/scan/packing/coded_lists.hpp"

namespace knear::detail {

// Storage for rows of a matrix. Rows are written once, beyond those in use; what has not been
// written takes no memory yet.
class RowBuffer {
 public:
  // Throws MemoryBudgetError where the system has no such memory.
  RowBuffer(ElementType type, std::int64_t capacity, std::int64_t dim);
  ~RowBuffer();
  RowBuffer(const RowBuffer&) = delete;
  RowBuffer& operator=(const RowBuffer&) = delete;

  AnyMatrixView rows;                  // [capacity x dim]
  std::atomic<std::int64_t> used = 0;  // changed by the writer of the index that owns it
  std::byte* row(std::int64_t i);
  std::int64_t used_bytes() const { return used * rows.cols() * size_of(rows.type()); }

 private:
  std::size_t bytes_;
};

// Rows of a matrix and their ids.
struct MatrixRows {
  AnyMatrixView matrix;
  std::shared_ptr<const void> keeper;  // of the memory of the matrix
  ValueRange found;
  Id first;
  AlignedArray<Id> ids =
      {};  // one for each row that counts, ascending; empty: first, first + 1, ...
  AlignedArray<std::uint32_t> order = {};  // the rows that count, by ascending id; empty: all
  std::shared_ptr<const CheckedBlocks> guard = {};  // of a mapped matrix

  BaseRows base() const {
    return order.size() ? BaseRows(matrix, {order.data(), order.size()}, guard.get())
                        : BaseRows(matrix, guard.get());
  }
};

// Rows that are codes, in the order of their lists and within a list of their ids.
struct CodedRows {
  std::shared_ptr<const CodedLists> lists;
  AlignedArray<Id> ids;  // [rows]
  // [rows x dim], the vectors that refine answers, or no columns.
  AnyMatrixView vectors = {};
  std::shared_ptr<const void> keeper = {};          // of their memory
  std::shared_ptr<const CheckedBlocks> guard = {};  // of mapped ones
  // Codes and ids, as devices keep them.
  std::shared_ptr<DeviceCopies> device_copies = std::make_shared<DeviceCopies>();
};

// The rows of a segment: codes in the order of CodedRows, all others in the order of their ids.
class SegmentRows {
 public:
  static std::shared_ptr<SegmentRows> of_matrix(MatrixRows rows, Metric metric);
  // Rows that are integer panels, whose row numbers are those of `ids`. slots: the slot of each
  // row; empty: found out.
  static std::shared_ptr<SegmentRows> of_panels(std::shared_ptr<const PackedBase> panels,
                                                AlignedArray<std::uint32_t> slots,
                                                AlignedArray<Id> ids, Id first, Metric metric);

  // The same, of lists. radii: as ListAssignment has them.
  static std::shared_ptr<SegmentRows> of_listed_panels(std::shared_ptr<const PackedLists> panels,
                                                       std::vector<float> radii,
                                                       AlignedArray<std::uint32_t> slots,
                                                       AlignedArray<Id> ids, Id first,
                                                       Metric metric);
  static std::shared_ptr<SegmentRows> of_codes(CodedRows rows);

  // Says in which lists the rows of a matrix are; before anyone else sees this.
  void set_lists(std::shared_ptr<ListedRows> lists, std::vector<float> radii);

  // The rows of `from`, in lists too, of which nothing else is packed in the order.
  static std::shared_ptr<SegmentRows> with_lists(const std::shared_ptr<const SegmentRows>& from,
                                                 std::shared_ptr<ListedRows> lists,
                                                 std::vector<float> radii);
  // The rows of `from`, each id raised.
  static std::shared_ptr<SegmentRows> shifted(const std::shared_ptr<const SegmentRows>& from,
                                              Id by);

  std::int64_t rows() const { return coded_.lists ? coded_.lists->rows() : prepared_->base.rows(); }
  // Not of codes:
  const BaseRows& base() const { return prepared_->base; }
  const ValueRange& found() const { return prepared_->found; }
  PreparedRows& prepared() const { return *prepared_; }  // has its own lock
  RowIds ids() const {
    if (is_codes()) return {0, coded_.ids.data()};
    return {first_, ids_.size() ? ids_.data() : nullptr};
  }
  bool has_own_ids() const { return ids_.size() > 0 || is_codes(); }
  std::span<const Id> own_ids() const {
    return is_codes() ? std::span(coded_.ids.data(), coded_.ids.size())
                      : std::span(ids_.data(), ids_.size());
  }
  // The least and the largest.
  Id first_id() const { return is_codes() ? first_ : ids()(0); }
  Id last_id() const { return is_codes() ? last_ : ids()(rows() - 1); }
  // The number of the row with an id, or -1.
  std::int64_t find(Id id) const;

  bool is_codes() const { return coded_.lists != nullptr; }
  const CodedRows& coded() const { return coded_; }
  // The list of each row [rows], where there are lists.
  std::vector<std::uint32_t> list_of() const {
    return is_codes() ? coded_.lists->list_of() : lists_->list_of();
  }

  bool is_panels() const { return panels_ != nullptr; }
  // Where rows are a matrix: all that it takes up, those that do not count too.
  const AnyMatrixView& matrix() const { return matrix_; }
  std::span<const std::uint32_t> order() const { return {order_.data(), order_.size()}; }
  const std::shared_ptr<const void>& keeper() const { return keeper_; }
  // The buffer that the matrix lies in; nullptr for panels and mapped files.
  const RowBuffer* buffer() const {
    return is_panels() || is_codes() || guard_ ? nullptr
                                               : static_cast<const RowBuffer*>(keeper_.get());
  }
  // Checks the matrix of a mapped file; else nullptr.
  const CheckedBlocks* guard() const { return guard_.get(); }
  const std::shared_ptr<const PackedBase>& panels() const { return panels_; }
  // nullptr: there are none. They have a lock of their own.
  ListedRows* lists() const { return lists_.get(); }
  std::span<const float> radii() const { return radii_; }
  // Rows for which memory is taken.
  std::int64_t rows_kept() const { return is_panels() || is_codes() ? rows() : matrix_.rows(); }

  // Bytes of ids, order and all packed rows, and of rows in no buffer.
  std::int64_t bytes() const;
  // Bytes of lists alone, and of what goes with these.
  std::int64_t bytes_of_lists() const;

 private:
  SegmentRows() = default;

  std::shared_ptr<const void> keeper_;
  AnyMatrixView matrix_;
  std::shared_ptr<const CheckedBlocks> guard_;
  std::shared_ptr<const PackedBase> panels_;
  AlignedArray<std::uint32_t> order_;  // matrix: of the rows, by id; panels: their slots
  AlignedArray<Id> ids_;               // [rows]; empty: first_, first_ + 1, ...
  Id first_ = 0;
  CodedRows coded_;
  Id last_ = 0;                                // of codes
  mutable ProcessMutex looking_up_;            // of what follows
  mutable AlignedArray<std::uint32_t> by_id_;  // codes: rows by id, from the first look-up on
  std::unique_ptr<PreparedRows> prepared_;
  std::shared_ptr<ListedRows> lists_;
  std::vector<float> radii_;
};

struct Segment {
  std::shared_ptr<const SegmentRows> rows;
  RowSet live;
  std::int64_t shard = 0;  // of State::shards

  std::int64_t size() const { return live.count(); }
};

// Whether rows may be kept as panels alone.
bool keeps_as_panels(Metric metric, const ValueRange& found);

}  // namespace knear::detail
