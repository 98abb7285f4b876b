// knear/index/index.hpp -- vectors that are added, changed, kept and searched: what every index
// does.
//
//   FlatIndex index(128, Metric::l2);              // or IvfFlatIndex, ...: index/ivf_flat.hpp
//   index.add(base);                               // [n x 128], ids 0 ... n - 1
//   Neighbors near = index.search(queries, 10);    // [q x 10], nearest first
//   index.remove(std::vector<Id>{17, 4});          // no other id changes
//   index.save("base.knear");
//   Index same = Index::load("base.knear");        // of whatever kind it is
//
// Ids are the caller's or count up, and stay with their rows through all changes. Answers depend on
// the rows that are there, on what the index was trained to and on the arguments of the search,
// never on the history of the index; ties go to the smaller id.
//
// Memory (of codes: index/ivf_pq.hpp). f32, f64, f16 and bf16 vectors: as they came and packed
// codes of about d bytes a row and 16 more; whole numbers of 8 bits of any element type (l2 and
// ip): packed codes alone, one byte a coordinate (5 % are padding) and 16 bytes a row. Own ids take
// 8 bytes a row more. Removed rows are given back when they are half of their segment, or by
// compact(). Adding copies nothing that is there.
//
// Threads: any call at any time. Every search sees one state of the index, the one at its begin;
// calls that change it follow one another and make one new state each, whole or not at all. Neither
// waits for the other. A progress callback may search; it must not change the index that it is
// called by (InvalidArgument where it is called in the thread of the change).
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "knear/core/matrix.hpp"
#include "knear/core/neighbors.hpp"
#include "knear/index/options.hpp"
#include "knear/knn/report.hpp"

namespace knear {

namespace detail {
class IndexImpl;
}

class Index {
 public:
  Index(Index&&) noexcept;
  Index& operator=(Index&&) noexcept;
  ~Index();

  // As the factory writes it: "Flat", "IVF1024,Flat", "OPQ16_64,IVF1024,PQ16,RFlat".
  std::string description() const;
  std::int64_t dim() const;
  Metric metric() const;
  // Rows that are there.
  std::int64_t size() const;
  // The type of the first rows added; f32 before that.
  ElementType element_type() const;
  // Above every id that was ever given: what the next row gets that comes without one.
  Id next_id() const;
  // The number of the present state: of changes made so far.
  std::int64_t version() const;
  bool contains(Id id) const;
  // Whether it has the vectors as they were added, not only codes, halves or transforms of them:
  // then reconstruct() gives them back, and distances to them can be told.
  bool keeps_vectors() const;
  // Whether rows are found by codes, which may be far from the vectors: where these refine them,
  // the k nearest of a search are not all that lie within a radius.
  bool has_codes() const;
  // Whether rows are found along a graph over them (index/graph_flat.hpp).
  bool has_graph() const;
  // All ids, ascending.
  std::vector<Id> ids() const;
  // Bytes of rows, ids, packed rows and centroids (without the codes of these).
  std::int64_t memory_bytes() const;

  // Whether rows may be added; an index of the vectors alone learns nothing and always is.
  bool is_trained() const;
  // Learns from vectors [n x dim] of any element type, like those to come; an index that has rows
  // has to be emptied first. The same result for the same vectors and seed on every machine. Throws
  // ShapeMismatch for another number of columns; InvalidArgument for a NaN or infinity and, of
  // codes by l2 and ip, a row whose squared length is beyond float32, naming the row, or rows whose
  // squared lengths all vanish in it, for fewer rows than centroids or principal components, for
  // options.rows below 0, without inverted lists for options.iterations, and of an index that
  // learns nothing for options that say how; Cancelled. Then nothing has changed.
  void train(AnyMatrixView vectors, const TrainOptions& options = {});

  // Of inverted lists: how many there are (0: this is a flat index), and their centroids
  // [lists x dim], none before training.
  std::int64_t lists() const;
  Matrix<float> centroids() const;
  // How many rows each list has [lists].
  std::vector<std::int64_t> list_sizes() const;
  // The list of each of these ids. Throws InvalidArgument for an id that the index does not hold,
  // and for a flat index.
  std::vector<std::int64_t> lists_of(std::span<const Id> ids) const;

  // Appends copies of the rows [n x dim]; they get the ids next_id(), next_id() + 1, ... The first
  // rows decide the element type; later ones of another type are converted. Throws ShapeMismatch
  // for another number of columns; InvalidArgument before training, for a NaN or infinity, for a
  // value that the element type of the index cannot hold exactly, of codes by l2 and ip, for a row
  // whose squared length is beyond float32, naming the row, and of halves for rows so small that
  // these keep next to nothing; MemoryBudgetError; Cancelled. Then
  // nothing is added.
  void add(AnyMatrixView vectors, const ChangeOptions& options = {});
  // Appends rows with ids of the caller's, one a row, from 0 to 2^62, none of them twice or held by
  // the index: InvalidArgument, with its place. The id of a row that was removed may be given
  // again.
  void add(AnyMatrixView vectors, std::span<const Id> ids, const ChangeOptions& options = {});
  // Makes the next allocation large enough for as many rows in all. Never shrinks. Throws
  // MemoryBudgetError for more than the machine has.
  void reserve(std::int64_t rows);

  // Takes rows out. Throws InvalidArgument for an id that the index does not hold or that is given
  // twice, with its place; then nothing is removed.
  void remove(std::span<const Id> ids, const ChangeOptions& options = {});
  // Row i of the vectors takes the place of the row with ids[i]. Errors as for remove and add.
  void replace(std::span<const Id> ids, AnyMatrixView vectors, const ChangeOptions& options = {});
  // Takes over the rows of another index of the same kind, of which it shares the memory as long as
  // neither has removed half of it; vectors that the other one has in other inverted lists are
  // copied into those of this one. Codes and transforms have to be of the same training, as of two
  // copies of an empty index that was trained: what others stand for, these cannot say. Throws
  // ShapeMismatch or InvalidArgument if kind, dim, metric, element type or what codes and
  // transforms were trained to differ, for an id held by both, or if the other index is this one;
  // then nothing is taken.
  void merge(const Index& other, MergeIds ids = MergeIds::keep);
  // Gives back the memory of removed rows, and puts together what many changes left apart.
  void compact(const ChangeOptions& options = {});

  // Makes now, and has save() keep, what many searches would come to make; no answer changes.
  //   Flat: the prefix (knn/knn.hpp). The first search goes by it then, those with a memory limit
  //     too. Segments of fewer than 8,192 rows, indexes of fewer than 32 or more than 4,096
  //     columns, rows too large for a prefix and data for which none is forecast to be faster, be
  //     it for one query or for many at a time, go without, as before; searches for which the plain
  //     scan is faster still take that. Rows added later are searched beside it until the next
  //     call; what compact(), remove() and replace() write anew loses it. Returns the number of
  //     rows that are reached by a prefix.
  //   A graph: the graph over the rows that are there, if it has to be made anew. Returns the
  //   number
  //     of rows, 0 of fewer than have one.
  //   Inverted lists: few runs of each list, where many changes left many, as compact() does.
  //     Returns the number of rows.
  // Throws MemoryBudgetError, Cancelled.
  std::int64_t optimize(const ChangeOptions& options = {});

  // Calibrates searches of inverted lists and of codes for a recall of the k nearest, which
  // save() keeps: by queries [n x dim] like those to come, or with none by 2,000 rows, each left
  // out of its own answer, as the first search for a recall does by itself. Done again once rows
  // added and taken out are more than a quarter, or a fifth is gone. Codes cannot tell what is
  // nearest to queries: their index keeps 1,000 of the vectors that it was trained on with their
  // 128 nearest, with what was added and removed since, and takes no queries, unless it keeps all
  // vectors to refine codes by (RFlat). Of vectors that are kept transformed or rounded, recall is
  // with respect to these. Returns what recall costs, from the cheapest on. A flat index makes
  // lists for such searches (index/flat.hpp), which save() does not keep; of a graph `probes` is
  // how many nodes a search keeps and `rows` how many it scores; 1,000 rows or all queries are
  // taken. Throws InvalidArgument for a flat index of fewer than 16,384 rows, where too few
  // neighbours are known (after a merge, of a FAISS file, for a large k), and as search() does.
  std::vector<OperatingPoint> tune(std::int64_t k, AnyMatrixView queries = {},
                                   const ChangeOptions& options = {});
  // The same for codes, by the vectors that they were made of and that someone else has kept: base
  // [n x dim] and the ids of its rows (empty: 0, 1, ...), all of the index among them; rows that it
  // does not hold do not count. By 1,000 of the queries, or with none of the rows, drawn at
  // random; their neighbours are kept instead of those that the index knew. After a merge, for
  // files of FAISS, and where much was removed. Throws InvalidArgument for an index of vectors,
  // which needs no others, for fewer than 100 queries or rows, for an id twice or that base has
  // not; ShapeMismatch.
  std::vector<OperatingPoint> tune(std::int64_t k, AnyMatrixView queries, AnyMatrixView base,
                                   std::span<const Id> ids, const ChangeOptions& options = {});

  // Writes the index as it is now to a .knear file, whole or not at all: a process killed meanwhile
  // leaves the old file. Throws IoError, Cancelled.
  void save(const std::string& path, const Progress& progress = {}) const;
  // Reads a file of FAISS (index/faiss_file.hpp), or opens a .knear file without reading vectors
  // and codes: they stay in the file, which must not be written to (save() replaces it, which is
  // fine), and are compared with their checksums when they are first used. Throws IoError;
  // CorruptFile for a file that is neither, and naming the section that is cut off or altered, as
  // searches may later; Cancelled. Progress is that of what is made for the rows of a file of FAISS
  // once they are in memory; a .knear file is open at once.
  static Index load(const std::string& path, const Progress& progress = {});

  // The rows with these ids [ids x dim], in the element type of the index, as they were added
  // (-0.0 may come back as 0.0); what codes stand for, and the inverse of transforms, as f32.
  // Throws InvalidArgument for an id that the index does not hold.
  AnyMatrix reconstruct(std::span<const Id> ids) const;

  // The k nearest rows of each query [q x dim] of any element type, padded with no_id beyond
  // size(). A flat index finds all of them, unless a recall below 1 is asked for; inverted lists
  // need options.method.probes or .recall, a graph .ef or .recall; neither has a method but exact:
  // all lists, and of codes what is nearest by what these stand for, which is said. A device
  // searches all rows, lists of vectors, and codes without a limit of memory, but no graph.
  // Errors as for knn(), and InvalidArgument for an id of a filter's list that the index does not
  // hold. report->version is that of the state searched.
  Neighbors search(AnyMatrixView queries, std::int64_t k, const SearchOptions& options = {},
                   KnnReport* report = nullptr) const;

  // All rows within a radius of each query, as knear::range_search; of inverted lists those in the
  // lists that it probes. Where codes are refined, every vector there is measured.
  RangeNeighbors range_search(AnyMatrixView queries, double radius,
                              const SearchOptions& options = {}, KnnReport* report = nullptr) const;

  using Impl = detail::IndexImpl;

 protected:
  explicit Index(std::unique_ptr<Impl> impl);
  Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace knear
