// knear/index/index.hpp -- vectors that are added, changed, kept and searched, in whatever form, in
// any number of shards.
//
//   Index index = make_index("Flat", 128);         // or "IVF1024,Flat", ...: factory/factory.hpp
//   index.add(base);                               // [n x 128], ids 0 ... n - 1
//   Neighbors near = index.search(queries, 10);    // [q x 10], nearest first
//   index.remove(std::vector<Id>{17, 4});          // no other id changes
//   index.save("base.knear");
//   Index same = Index::load("base.knear");        // whatever it is
//   Index parts = make_index("Flat", 128).divided({.shards = 4});
//
// Ids are the caller's or count up, and stay with their rows through all changes. Answers depend on
// the rows that are there, on what the index was trained to and on the arguments of the search,
// never on the history of the index; ties go to the smaller id.
//
// Shards and replicas (Johnson, Douze and Jégou 2017, section 5.4): replicas for speed, shards for
// size, both together. Shards hold different rows under ids of the whole and share what was
// learned: centroids, codes, transforms. What they find is merged on float64 keys, ties to the
// smaller id, so that the answer of a flat index in any number of shards is that of one index to
// the bit, and with the same `probes` that of inverted lists and of codes that are not refined. A
// graph is one for each shard: together they find at least other rows, often more.
//   Recall below 1 of inverted lists and codes is calibrated and promised for all shards as one
// index, and the answer is that of one. Of other indexes the least of what shards promise is:
// PartialReduce keeps of each shard what it would if all k nearest were there, so that its promise
// holds for the merged answer; with partial_reduce.logical_rows the base is the random shard of so
// many rows.
//   Queries are divided between replicas by the speed that these had in the searches before
// (knn/device/replica_speeds.hpp). Answers are the same bits for any number of replicas: no query's
// answer depends on the others, and searches that look at a batch as a whole (recall,
// partial-reduce) are not divided. Replicas share the memory of the one index.
//   Where there are several groups of processors (core/cpu_groups.hpp), the threads of a search are
// shared out to the parts that are at work at the same time, which stay on a group each: `widen`
// then goes on in each shard until that has k rows, and every shard refines as many codes as one
// index would. In one group replicas share all queries, and shards, but for those that have graphs,
// are searched as the segments of one index.
//
// Memory (of codes: factory/factory.hpp). f32, f64, f16 and bf16 vectors: as they came and packed
// codes of about d bytes a row and 16 more; whole numbers of 8 bits of any element type (l2 and
// ip): packed codes alone, one byte a coordinate (5 % are padding) and 16 bytes a row. Own ids take
// 8 bytes a row more. Removed rows are given back when they are half of their segment, or by
// compact(). Adding copies nothing that is there. Of shards, a search takes q * k * 16 bytes each
// while their answers are merged.
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
class IndexBody;  // index/impl/index_body.hpp
}

// make_index() makes one (factory/factory.hpp). Of an index in shards all is said and done about
// all shards together; rows, ids and bytes are those of shards that are there.
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
  // Whether rows are found along a graph over them.
  bool has_graph() const;
  // All ids, ascending.
  std::vector<Id> ids() const;
  // Bytes of rows, ids, packed rows and centroids (without the codes of these).
  std::int64_t memory_bytes() const;

  // An index like this one, in shards, of which each shares what it was trained to; one shard also
  // shares its rows. It is saved as a manifest and a file for each shard. Throws InvalidArgument
  // for numbers out of range, and for rows where there are more shards than one: these are added.
  Index divided(const ShardingOptions& options) const;
  // All rows in one index without shards, which shares their memory. Of several shards what codes
  // know of their recall is not kept, as after merge(). Throws InvalidArgument where a shard is
  // missing.
  Index as_one() const;
  // 1 unless it was divided.
  std::int64_t shards() const;
  std::int64_t replicas() const;
  // Rows of each shard [shards]; of one that is missing, those that it had.
  std::vector<std::int64_t> shard_sizes() const;
  // Of each shard, that of its file, or its number where it was not opened from one [shards].
  std::vector<std::string> shard_names() const;
  // Those of shards that are missing, with allow_partial.
  std::vector<std::string> missing_shards() const;

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
  // these keep next to nothing; MemoryBudgetError; Cancelled. Then nothing is added. New rows go to
  // the shards that have fewest, so that all have as many, give or take one, once there were
  // enough: the first of them to the first shard that has room.
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
  // Row i of the vectors takes the place of the row with ids[i], in its shard. Errors as for remove
  // and add.
  void replace(std::span<const Id> ids, AnyMatrixView vectors, const ChangeOptions& options = {});
  // Takes over the rows of another index of the same kind, of which it shares the memory as long as
  // neither has removed half of it; vectors that the other one has in other inverted lists are
  // copied into those of this one. Codes and transforms have to be of the same training, as of two
  // copies of an empty index that was trained: what others stand for, these cannot say. Throws
  // ShapeMismatch or InvalidArgument if kind, dim, metric, element type or what codes and
  // transforms were trained to differ, for an id held by both, or if the other index is this one;
  // then nothing is taken. What one shard of the other has goes to the shard that has fewest rows
  // then.
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
  // lists for such searches (factory/factory.hpp), which save() does not keep; of a graph `probes`
  // is how many nodes a search keeps and `rows` how many it scores; 1,000 rows or all queries are
  // taken. Of shards that are calibrated each by itself, returned for each recall that all of them
  // can promise are the lists that a query probes on average in a shard, and the rows in all of
  // them. Throws InvalidArgument for a flat index of fewer than 16,384 rows, where too few
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

  // Has the index audit itself: it answers a sample of the queries exactly that it serves by
  // inverted lists, a graph, or codes with their vectors (RFlat), and searches for a recall go by
  // what these find (docs/recall.md). share: the part of the time of searches that later audits may
  // take, in [0, 1], by the model of costs. 0, as in a new or loaded index, audits nothing and
  // leaves the curves as they are; tune(k) forgets those for k. Neither curves nor share are saved.
  // Throws InvalidArgument for another share, and above 0 for an index whose searches are exact, or
  // which lacks the vectors or a shard.
  void set_audit(double share);
  double audit() const;
  // What audits have found, in the order in which traffics came; of shards with a graph each, that
  // of each shard.
  std::vector<AuditReport> audits() const;

  // Writes the index as it is now to a .knear file, whole or not at all: a process killed meanwhile
  // leaves the old file. Each shard goes to a file of its own beside `path`, under a name that no
  // file had, then their manifest (docs/knear-files.md) to `path`, then the shards of the manifest
  // before are removed. Files that a killed process left are removed by the next call; those that
  // another manifest of the folder names, one that was renamed or copied, stay. Saves of shards to
  // one folder follow one another. Throws IoError, Cancelled; InvalidArgument where a shard is
  // missing.
  void save(const std::string& path, const Progress& progress = {}) const;
  // Reads a file of FAISS (index/faiss_file.hpp), or opens a .knear file or a manifest of shards
  // without reading vectors and codes: they stay in the file, which must not be written to (save()
  // replaces it, which is fine), and are compared with their checksums when they are first used.
  // Throws IoError; CorruptFile for a file that is none of these, and naming the section that is
  // cut off or altered, as searches may later, and the shard that is missing, is not the one that
  // was saved with the manifest, or does not go together with the others (with allow_partial only
  // if that is true of all); Cancelled; InvalidArgument for allow_partial of an index without
  // shards. Progress is that of what is made for the rows of a file of FAISS once they are in
  // memory; a .knear file is open at once.
  static Index load(const std::string& path, const LoadOptions& options = {});

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
  // hold. report->version is that of the state searched. Of shards, counts and sums in the report
  // are those of all, promises the least, seconds the time that went by; errors of a file name the
  // shard; partial_reduce.aggregate = false is for one shard; and where a recall below 1 or
  // partial-reduce is asked for, which look at a batch as a whole, one replica answers all of it.
  Neighbors search(AnyMatrixView queries, std::int64_t k, const SearchOptions& options = {},
                   KnnReport* report = nullptr) const;

  // All rows within a radius of each query, as knear::range_search; of inverted lists those in the
  // lists that it probes. Where codes are refined, every vector there is measured.
  RangeNeighbors range_search(AnyMatrixView queries, double radius,
                              const SearchOptions& options = {}, KnnReport* report = nullptr) const;

  // What it is made of, for other parts of the library.
  explicit Index(std::unique_ptr<detail::IndexBody> body);
  const detail::IndexBody& body() const { return *body_; }
  detail::IndexBody& body() { return *body_; }

 private:
  std::unique_ptr<detail::IndexBody> body_;
};

// Whether a file is the manifest of an index in shards; false for one that cannot be read.
bool is_sharded_file(const std::string& path);

}  // namespace knear
