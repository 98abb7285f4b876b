// knear/index/form/form.hpp -- what an index holds and how that is searched. The life of an index
// (ids, live rows, changes, snapshots: index/impl, index/life) knows no form by name; each is a
// source of its own beside this one, and form_of() knows which there are.
//
//   const auto form = form_of(shape);
//   ExactNeighbors near = form->nearest({state, segments, queries, vectors, options}, 10, report);
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "knear/distance/exact_neighbors.hpp"
#include "knear/index/form/faiss_rows.hpp"
#include "knear/index/life/index_state.hpp"
#include "knear/index/life/segment_store.hpp"
#include "knear/index/options.hpp"
#include "knear/index/quantizers/centroid_index.hpp"
#include "knear/index/sections/sections.hpp"
#include "knear/knn/report.hpp"
#include "knear/knn/segment_search.hpp"
#include "knear/scan/methods/range_scan.hpp"

namespace knear::detail {

class FactoryWords;
class FewRowsSearch;  // knn/search/few_rows_search.hpp

// A search of the rows of a state.
struct FormQuery {
  const State& state;
  std::span<const SearchSegment> segments;  // those of the state, in its order
  AnyMatrixView queries;                    // after the transforms of the index
  AnyMatrixView vectors;                    // the same as users have them
  const SearchOptions& options;
};

// Rows that an index learns from. Those that are held out are queries that it did not learn from.
struct TrainingRows {
  AnyMatrixView rows;                           // after the transforms
  const std::function<AnyMatrixView()>& given;  // the same as users have them; not with `rows`
  AnyMatrixView held_out, held_out_as_given;
  AnyMatrixView all;  // that the user gave
  bool has_lists;     // the state has centroids, by which the last transform was found
  const RowNumber& number;
  const TrainOptions& options;
  TrainCentroidIndex index;
};
// Makes an index over centroids of one that was read from a file, or returns nullptr if its rows
// are not those of so many lists under their numbers. probes: as CentroidIndex has it.
using MakeCentroidIndex = std::shared_ptr<const CentroidIndex> (*)(const IndexShape& shape,
                                                                   State state, std::int64_t lists,
                                                                   std::int64_t probes);
// The head of a .knear file, which a form needs to read what it has learned.
struct FileHead {
  std::string_view kind;
  bool has_rows;
  MakeCentroidIndex make_centroid_index;
};
// Fewer rows that were held out tell little.
inline constexpr std::int64_t least_held_out = 500;

// Const calls may run at once on several threads.
class Form {
 public:
  // The shape has to stay.
  explicit Form(const IndexShape& shape) : shape_(shape) {}
  virtual ~Form() = default;
  Form(const Form&) = delete;
  Form& operator=(const Form&) = delete;

  // The kind of the index in files, and its words in a factory string behind those of transforms
  // and inverted lists (IndexShape::kind(), description()).
  virtual std::string kind() const = 0;
  virtual std::string words() const = 0;
  // Calls wrong(why), which throws, unless it can be over so many centroids of inverted lists.
  virtual void check_over_centroids(std::int64_t /*lists*/, const WrongWord& /*wrong*/) const {}
  // Returns false if what it learns serves one number of columns only, as parts of codes do.
  virtual bool fits_more_columns() const { return true; }

  // Returns what adds rows to an index and merges its segments.
  virtual std::unique_ptr<SegmentStore> make_store() const;
  // Bytes of a row that is kept as a code; 0: rows are vectors.
  virtual std::int64_t code_size(const State&) const { return 0; }

  // Whether it learns from vectors, transforms apart, and from how many at least.
  virtual bool learns() const { return false; }
  virtual std::int64_t least_training_rows() const { return 0; }
  virtual void train(State& /*next*/, const TrainingRows&) const {}
  // Whether a rotation that is the last transform serves what is left of rows beside centroids, so
  // that these are found before it.
  virtual bool turns_residuals() const { return false; }

  // Gives a state, new or read from a file, what searches of this form need beside its rows.
  virtual void begin(State& state) const = 0;
  // Does the same for `next`, which a change makes of `before`. added holds the ids of rows that
  // are new or have other vectors, if follows_ids() is true.
  virtual void follow(State& next, const State& before, std::span<const Id> added) const = 0;
  virtual bool follows_ids() const { return false; }

  // Whether it has learned what it learns from vectors, transforms apart.
  virtual bool is_trained(const State&) const { return true; }
  // Throws InvalidArgument unless codes of one state mean the same in the other.
  virtual void check_same_codes(const State&, const State&) const {}

  // Whether nearest() looks up which rows a filter of bits allows while it searches, so that they
  // need not be found before.
  virtual bool looks_up_ids(const State&, std::int64_t /*queries*/, std::int64_t /*k*/,
                            const RowFilter& /*bits*/, const SearchOptions&) const {
    return false;
  }
  // Finds the k >= 1 nearest to one query at once, where that takes less time than a plan. Returns
  // false where nearest() has to be called, which checks the arguments too.
  virtual bool nearest_at_once(const State&, AnyMatrixView /*queries*/, std::int64_t /*k*/,
                               const SearchOptions&, FewRowsSearch& /*search*/) const {
    return false;
  }
  // As Index::search() and Index::range_search(), before anything is rounded.
  virtual ExactNeighbors nearest(const FormQuery& query, std::int64_t k,
                                 KnnReport* report) const = 0;
  virtual RangeLists within(const FormQuery& query, double radius, KnnReport* report) const = 0;
  // The nearest in these lists of each query, none of them twice, no_id behind the others. Throws
  // InvalidArgument where there are no lists.
  virtual ExactNeighbors nearest_in(const FormQuery& query, MatrixView<Id> lists, std::int64_t k,
                                    KnnReport* report) const;

  // Makes now what searches to come would make by themselves, and returns of how many rows;
  // nothing, where an index is made ready by compact().
  virtual std::optional<std::int64_t> make_ready(const State& state,
                                                 const ChangeOptions& options) const = 0;
  // Returns whether make_ready() may run while the index is changed.
  virtual bool is_made_beside_changes() const { return false; }
  // Returns the bytes that the form takes beside its rows.
  virtual std::int64_t bytes(const State& state) const = 0;
  // Throws InvalidArgument for queries, as users have them, that tune() has no use for.
  virtual void check_tuned_by(AnyMatrixView /*queries*/) const {}
  // As Index::tune(): vectors, if any, are queries like those to come.
  virtual std::vector<OperatingPoint> tune(const State& state, std::int64_t k,
                                           AnyMatrixView vectors,
                                           const ChangeOptions& options) const = 0;
  // The same by vectors that codes were made of, under their ids, for a state to come; of codes
  // alone, else check_tuned_with() throws InvalidArgument.
  virtual void check_tuned_with(AnyMatrixView base) const;
  virtual std::vector<OperatingPoint> tune_with(State& next, std::int64_t k, AnyMatrixView queries,
                                                AnyMatrixView base, std::span<const Id> ids,
                                                const ChangeOptions& options) const;

  // The vector of a row as the index keeps it, into row `to` of `out`; scratch: of earlier calls.
  virtual void read(const State& state, const State::Place& place, std::vector<std::byte>& scratch,
                    AnyMatrix& out, std::int64_t to) const;
  // Whether read() gives vectors before the transforms, from what refines codes.
  virtual bool reads_as_given() const { return false; }

  // Returns true if it takes metrics whose order is not that of products (by_products).
  virtual bool takes_every_metric() const { return false; }

  // Adds what a file has of a state beside its head (form_file.hpp): transforms, what the form has
  // learned, segments and what is known of recall. All that has to stay until the file is written.
  virtual void save(io::ArchiveWriter& writer, const State& state) const = 0;
  // These read it again, one after another, and throw CorruptFile, naming the section. The first
  // completes the shape of the form, which has dim, metric and transforms.
  virtual void load_learned(Sections& in, const FileHead& head, IndexShape& shape,
                            State& state) const = 0;
  virtual Segment load_segment(Sections& in, std::size_t number, const State& state) const;
  virtual void load_recall(Sections& in, State& state) const;

  // Throws InvalidArgument for a state that FAISS has no index for.
  virtual void check_faiss(const State&) const {}
  // Writes the rows of a trained state, which has to stay, to FAISS's file.
  virtual std::unique_ptr<FaissRowWriter> faiss_rows(const State& state) const;
  // Writes what refines them, or is nullptr where nothing does.
  virtual std::unique_ptr<FaissRowWriter> faiss_refinement(const State&) const { return nullptr; }
  // Returns true if inverted lists of FAISS's file have the ids of rows, rather than their numbers.
  virtual bool has_ids_in_lists() const { return false; }
  // Makes what it has learned besides centroids of the numbers of quantisers
  // (Codec::of_numbers()), of what refines codes in `finer`, for a state that has its centroids.
  // Throws InvalidArgument for numbers that are not finite or too many or too few.
  virtual void learn_numbers(State&, std::span<const float> /*numbers*/,
                             std::span<const float> /*finer*/) const {}

 protected:
  // Adds all segments of vectors.
  static void save_vectors(io::ArchiveWriter& writer, const State& state);

  const IndexShape& shape_;
};

// Queries as the rows of an index are kept: after its transforms, if it has any. Keeps a reference.
class TransformedQueries {
 public:
  TransformedQueries(const State& state, Metric metric, AnyMatrixView queries, int threads);
  AnyMatrixView view() const { return view_; }

 private:
  Matrix<float> made_;
  AnyMatrixView view_;
};

// The form of a shape, which has to stay.
std::unique_ptr<const Form> form_of(const IndexShape& shape);
// The form of a kind of index (IndexShape::kind()), whose shape is still to be read and has to
// stay; nullptr for a kind that there is not.
std::unique_ptr<const Form> form_of_kind(std::string_view kind, const IndexShape& shape);
// The kinds of all forms.
std::vector<std::string> kinds_of_forms();
// Takes the words of a form, of which there is one, from a factory string whose transforms and
// inverted lists are in the shape. Returns what a message says of words that may not follow. Throws
// InvalidArgument for a word of no form.
std::string_view take_form(FactoryWords& words, IndexShape& shape);

// Returns the points of a curve as Index::tune() returns them.
std::vector<OperatingPoint> points_of(const RecallCurve& curve);

// A form in the list of all.
struct FormEntry {
  std::vector<std::string> kinds;
  // The words that messages name, such as "PQm, PQmx4", without and with inverted lists; empty
  // where the form has no such index.
  std::string words, words_in_lists;
  // Takes its words, if the next one is of this form, as take_form() does.
  std::string_view (*take)(FactoryWords& words, IndexShape& shape);
  bool (*has)(const IndexShape& shape);  // returns true for a shape of this form
  std::unique_ptr<const Form> (*make)(const IndexShape& shape);
};
template <class F>
std::unique_ptr<const Form> make_form(const IndexShape& shape) {
  return std::make_unique<F>(shape);
}
// Each of these is defined in the source of its form.
FormEntry flat_form();
FormEntry graph_form();
FormEntry lists_form();
FormEntry codes_form();

}  // namespace knear::detail
