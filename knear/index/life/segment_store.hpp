// knear/index/life/segment_store.hpp -- how the segments of an index come and go: rows that are
// added become one, removed rows are given back, and segments merge so that there are few. All
// forms have this life; how rows become a segment is the form's (form/vector_segments.hpp,
// form/coded_segments.hpp). With inverted lists each segment has all of them.
//
//   store.append(next, vectors, {}, options);        // of a state to come
//   store.take_out(next, ids);
//   store.tidy(next, 0.5, options);
//   store.settle(next, options);
#pragma once
#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "knear/index/life/index_state.hpp"
#include "knear/index/options.hpp"

namespace knear::detail {

// Throws InvalidArgument for the first id that occurs twice, with its places.
void check_each_once(std::span<const Id> ids);

// Rows rounded to halves, f16 or bf16, by way of f32. Throws InvalidArgument for a value beyond
// them, naming the row, of which the first here has number `first`.
AnyMatrix rounded_to(ElementType type, AnyMatrixView vectors, int threads, std::int64_t first = 0);
// Throws InvalidArgument for vectors so small that halves keep fewer than five bits of their
// largest number. By cosine each row counts by itself. By other metrics small rows may stand among
// larger ones, so that only the first vectors of an index are looked at, together.
void check_kept_by_halves(ElementType type, AnyMatrixView vectors, Metric metric, bool first_ones,
                          int threads, std::int64_t first);
// The same of vectors whose largest number, of all rows, is `most`, by a metric other than cosine.
void check_kept_by_halves(ElementType type, double most);
// Returns the largest magnitude of any number.
double largest_number(AnyMatrixView vectors, int threads);

// Copies finite rows into `out` [rows x cols] of `type`, contiguous; returns the first row with a
// value that does not fit, or -1.
std::int64_t copy_exactly(AnyMatrixView in, ElementType type, void* out);

// A live row of one of some segments.
struct RowPlace {
  Id id;
  std::uint32_t segment, row;
};

// One caller at a time, the writer of an index.
class SegmentStore {
 public:
  explicit SegmentStore(const IndexShape& shape)
      : shape_(shape), dim_(shape.inner_dim()), metric_(shape.metric) {}
  virtual ~SegmentStore() = default;

  // Adds vectors [n x shape.dim] under ids that are not in use. Throws as Index::add() does. first:
  // the number of their first row in messages.
  void append(State& next, AnyMatrixView vectors, std::span<const Id> own_ids,
              const ChangeOptions& options, std::int64_t first = 0);
  // Adds rows as they are kept: vectors after the transforms and rounded, or codes. list_of [n]:
  // the lists that the caller chose; empty: vectors go to the nearest centroid, codes have no
  // lists. finer: what refines codes, or no rows.
  virtual void append_kept(State& next, AnyMatrixView rows, std::span<const Id> own_ids,
                           std::span<const std::uint32_t> list_of, AnyMatrixView finer,
                           const ChangeOptions& options) = 0;
  // Takes rows out. Throws InvalidArgument for an id that is not there or that is given twice.
  void take_out(State& next, std::span<const Id> ids) const;
  // Gives back the memory of segments of which at least a share of the rows is not live.
  void tidy(State& next, double share, const ChangeOptions& options);
  // Merges segments until of each kind, from the last on, every one is at least twice as long as
  // the next, so that there are few. copying: also where that takes a copy of many rows.
  virtual void settle(State& next, const ChangeOptions& options, bool copying = false) const = 0;
  // A copy of the live rows of a segment, of which there are some, in the inverted lists of
  // `coarse`. type: of the index.
  Segment in_lists_of(const CoarseQuantizer& coarse, const Segment& segment, ElementType type,
                      const ChangeOptions& options) const;
  // Goes on where another store of the same form stopped, which adds nothing from now on.
  virtual void share(const SegmentStore&) {}
  // Announces this many rows in all.
  void reserve(std::int64_t rows) { reserved_ = std::max(reserved_, rows); }

 protected:
  // A change of segments: into the lists of a quantiser, if there is one.
  struct Change {
    const ChangeOptions& options;
    const CoarseQuantizer* coarse;
    ElementType type;  // of the index
    const RowCoder* coder = nullptr;
    const RowCoder* refiner = nullptr;
    const Transform* transform = nullptr;
    std::int64_t first = 0;  // number of the first vector in messages
  };
  static Change change_of(const State& next, const ChangeOptions& options) {
    return {options,          next.coarse.get(),  next.type.value_or(ElementType::f32),
            next.coder.get(), next.refiner.get(), next.transform ? &*next.transform : nullptr};
  }

  // Vectors that are altered or coded together: about 8 MiB as f32, and enough for all threads.
  std::int64_t rows_together(int threads) const;
  virtual void append_some(State& next, AnyMatrixView vectors, std::span<const Id> own_ids,
                           const ValueRange& found, const ChangeOptions& options,
                           std::int64_t first) {
    keep(next, vectors, own_ids, {}, found, options, first);
  }
  // The element type that an index has by itself; nothing: that of its first vectors.
  virtual std::optional<ElementType> type_of_rows() const { return {}; }
  // Adds at most as many rows as a segment has.
  virtual void append_segment(State& next, AnyMatrixView vectors, std::span<const Id> own_ids,
                              std::span<const std::uint32_t> list_of, const ValueRange& found,
                              const Change& change) = 0;
  // The live rows of some segments of one kind, copied. Requires that there are some. `again`: the
  // lists of the rows are found anew.
  virtual Segment rewritten(std::span<const Segment> segments, const Change& change,
                            bool again = false) const = 0;
  // Whether this many rows are so few that segments merge whatever their lengths.
  virtual bool are_few(std::int64_t /*rows*/, const Change&) const { return false; }
  // Two segments as one; nothing where that is not done.
  virtual std::optional<Segment> united(const Segment& a, const Segment& b, const Change& change,
                                        bool /*copying*/) const {
    const Segment both[] = {a, b};
    return rewritten(both, change);
  }
  virtual void give_back_buffers(State&, const Change&) {}

  // The last part of append(), of rows as they are kept, or of vectors that become codes.
  void keep(State& next, AnyMatrixView rows, std::span<const Id> own_ids,
            std::span<const std::uint32_t> list_of, const ValueRange& found,
            const ChangeOptions& options, std::int64_t first);
  // As settle() says, whatever the order of their making, by copying.
  void merge_by_size(std::vector<Segment>& segments, const Change& change) const;
  // Makes one of the last two segments if that is due and can be done.
  bool merge_last(std::vector<Segment>& segments, const Change& change, bool copying) const;

  const IndexShape shape_;
  const std::int64_t dim_;  // of rows
  const Metric metric_;
  std::int64_t reserved_ = 0;  // rows
};

}  // namespace knear::detail
