// knear/index/life/segment_store.hpp -- how the segments of an index come and go: rows that are
// added become one, removed rows are given back, and segments merge so that there are few. All
// kinds of index have this life; with inverted lists each segment has all of them.
//
//   store.append(next, vectors, {}, options);        // of a state to come
//   store.take_out(next, ids);
//   store.tidy(next, 0.5, options);
//   store.settle(next, options);
#pragma once
#include <memory>
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

// Copies finite rows into `out` [rows x cols] of `type`, contiguous; returns the first row with a
// value that does not fit, or -1.
std::int64_t copy_exactly(AnyMatrixView in, ElementType type, void* out);

// One caller at a time, the writer of an index.
class SegmentStore {
 public:
  explicit SegmentStore(const IndexShape& shape)
      : shape_(shape), dim_(shape.inner_dim()), metric_(shape.metric) {}

  // Adds vectors [n x shape.dim] under ids that are not in use. Throws as Index::add() does. first:
  // the number of their first row in messages.
  void append(State& next, AnyMatrixView vectors, std::span<const Id> own_ids,
              const ChangeOptions& options, std::int64_t first = 0);
  // The same of rows as they are kept, after the transforms and rounded, into lists that somebody
  // else chose: list_of [n], empty: in that of the nearest centroid. Of an index without codes.
  void append_kept(State& next, AnyMatrixView rows, std::span<const Id> own_ids,
                   std::span<const std::uint32_t> list_of, const ChangeOptions& options);
  // Takes rows out. Throws InvalidArgument for an id that is not there or that is given twice.
  void take_out(State& next, std::span<const Id> ids) const;
  // Gives back the memory of segments of which at least a share of the rows is not live.
  void tidy(State& next, double share, const ChangeOptions& options);
  // Merges segments until of each kind, from the last on, every one is at least twice as long as
  // the next, so that there are few. Matrices of more than a few rows merge only where they lie
  // next to one another, without being copied; unless `copying`, or there are too many of them
  // after a long history.
  void settle(State& next, const ChangeOptions& options, bool copying = false) const;
  // A copy of the live rows of a segment, of which there are some, in the inverted lists of
  // `coarse`. type: of the index.
  Segment in_lists_of(const CoarseQuantizer& coarse, const Segment& segment, ElementType type,
                      const ChangeOptions& options) const;
  // Codes [n x bytes] with their ids as a segment of live rows. list_of [n], empty without lists;
  // vectors [n x dim] are what refines them, or have no rows.
  Segment segment_of_codes(const State& state, MatrixView<std::uint8_t> codes,
                           std::span<const std::uint32_t> list_of, std::span<const Id> ids,
                           AnyMatrixView vectors, const ChangeOptions& options) const;
  // Goes on in the buffer of another store, which adds nothing from now on.
  void share(const SegmentStore& other) { tail_ = other.tail_, reserved_ = other.reserved_; }
  // So many rows in all will come.
  void reserve(std::int64_t rows) { reserved_ = std::max(reserved_, rows); }

 private:
  // A change of segments: into the lists of a quantiser, if there is one.
  struct Change {
    const ChangeOptions& options;
    const CoarseQuantizer* coarse;
    ElementType type;  // of the index
    const RowCoder* coder = nullptr;
    const RowCoder* refiner = nullptr;
    const Transform* transform = nullptr;
    std::int64_t first = 0;  // number of the first vector in messages

    bool packs(std::int64_t rows) const;
  };
  // A live row of one of some segments.
  struct Live {
    Id id;
    std::uint32_t segment, row;
  };

  static Change change_of(const State& next, const ChangeOptions& options) {
    return {options,          next.coarse.get(),  next.type.value_or(ElementType::f32),
            next.coder.get(), next.refiner.get(), next.transform ? &*next.transform : nullptr};
  }
  // The last part of append(), of rows as they are kept, or of vectors that become codes.
  void keep(State& next, AnyMatrixView rows, std::span<const Id> own_ids,
            std::span<const std::uint32_t> list_of, const ValueRange& found,
            const ChangeOptions& options, std::int64_t first);
  void append_segment(State& next, AnyMatrixView vectors, std::span<const Id> own_ids,
                      std::span<const std::uint32_t> list_of, const ValueRange& found,
                      const Change& change);
  // Vectors of which only the codes are kept, and what these are refined by.
  Segment coded_segment(AnyMatrixView vectors, std::span<const Id> ids, const Change& change) const;
  // The same of codes that are there, in the order of lists and ids.
  Segment sorted_codes(const RowCoder::Codes& coded, std::span<const std::uint32_t> list_of,
                       std::span<const Id> ids, AnyMatrixView vectors, const Change& change) const;
  // The live rows of some segments of codes.
  Segment rewritten_codes(std::span<const Segment> segments, const Change& change) const;
  // Rows with their ids as a segment of live rows: packed, if they are many; as_panels: whole
  // numbers of 8 bits, however few. lists: of each row; nothing without lists.
  Segment segment_of(MatrixRows rows, ListAssignment lists, const Change& change,
                     bool as_panels = false) const;
  // A buffer with room for n rows more. The first one takes what it needs; later ones leave room,
  // so that many small adds make few buffers. Rows that will soon be kept as panels need little.
  std::shared_ptr<RowBuffer> room_for(const State& next, std::int64_t n, bool soon_panels);
  // What is kept as panels goes to those.
  static void take_panels(std::vector<Segment>& from, std::vector<Segment>& bytes,
                          std::vector<Segment>& chars);
  // As settle() says, whatever the order of their making, by copying.
  void merge_by_size(std::vector<Segment>& segments, const Change& change) const;
  // Makes one of the last two segments if that is due and can be done.
  bool merge_last(std::vector<Segment>& segments, const Change& change, bool copying) const;
  // Live rows, ascending by id; their ids, none where they follow one another without a gap; and
  // their lists, as the segments have them.
  static std::vector<Live> live_rows(std::span<const Segment> segments);
  static AlignedArray<Id> ids_of(const std::vector<Live>& live);
  static ListAssignment lists_of(std::span<const Segment> segments, const std::vector<Live>& live,
                                 const Change& change);
  // Two matrices that lie next to one another as one segment, of their live rows.
  Segment joined(const Segment& a, const Segment& b, const ValueRange& found,
                 const Change& change) const;
  // The live rows of some segments of one kind, copied. Requires that there are some. `again`: the
  // lists of the rows are found anew.
  Segment rewritten(std::span<const Segment> segments, const Change& change,
                    bool again = false) const;

  const IndexShape shape_;
  const std::int64_t dim_;  // of rows
  const Metric metric_;
  std::shared_ptr<RowBuffer> tail_;  // the buffer that is being filled
  std::int64_t reserved_ = 0;        // rows
};

}  // namespace knear::detail
