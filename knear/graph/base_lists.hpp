// knear/graph/base_lists.hpp -- the rows of a base in inverted lists, for a search for each of
// them.
//
//   BaseLists lists(base, {}, {.metric = Metric::l2, .neighbors = 10, .recall = 0.9, ...});
//   lists.search(base, rows, probes)               // [rows x neighbors]
//
// Which lists a row probes is said by one rule for the whole base, calibrated once on rows drawn
// from all of it (index/lists/recall_calibration.hpp). So an answer does not depend on which rows
// are searched for together, and the promise is for the mean over all rows.
//
// Lists are those of an index IVFn,Flat: a copy of the base and 8-bit codes of it. Where these do
// not fit into the memory that is allowed, they are made part by part, each of so many successive
// rows as fit, and kept in files: an index each, of the same centroids, its vectors in the order of
// their lists. The files are mapped, and pages of them are given back when mapped files take more
// than a third of the memory (io/mapped_pages.hpp). Answers are the same either way.
//
// Lists are numbered so that those near each other mostly follow each other: rows searched for in
// the order of their lists want much the same lists, and what is read from disk for one serves the
// next. What some of them probe is read ahead, list by list, and else page by page: what systems
// read around a page is of lists that nobody wants.
//
// A file appears whole under its name (SCRATCH.1, SCRATCH.2, ...) or not at all. One that is there
// is taken for a part of this base: the caller removes what may be of another
// (remove_lists_files()).
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "knear/core/matrix.hpp"
#include "knear/core/neighbors.hpp"
#include "knear/core/progress.hpp"
#include "knear/index/file/index_file.hpp"
#include "knear/index/index_shape.hpp"
#include "knear/index/life/index_state.hpp"
#include "knear/io/mapped_pages.hpp"

namespace knear::detail {

struct BaseListsOptions {
  Metric metric = Metric::l2;
  std::int64_t neighbors = 1;  // that are searched for, the row itself among them
  double recall = 0.9;         // below 1
  int threads = 1;
  std::int64_t memory = 0;  // bytes beside the base; 0: no limit
  std::string scratch;      // what names of files begin with; empty: there may be none
};

// Bytes that lists of a base take in memory, and in files.
struct BaseListsSize {
  std::int64_t memory_bytes = 0;
  std::int64_t file_bytes = 0;  // 0: they are in memory
};

class BaseLists {
 public:
  // Says what will be made, and throws MemoryBudgetError where the memory does not allow for it.
  // rows: of the base that will be in lists.
  static BaseListsSize size_of_lists(AnyMatrixView base, std::int64_t rows,
                                     const BaseListsOptions& options);

  // which: the rows that are in lists, ascending; empty: all. base must live as long.
  BaseLists(AnyMatrixView base, std::span<const Id> which, const BaseListsOptions& options,
            const Progress& progress);

  std::int64_t lists() const { return state_->coarse->lists(); }
  bool in_files() const { return !parts_.empty(); }
  // The list of a row that is in one.
  std::uint32_t list_of(Id row) const { return list_of_[row]; }
  // How many rows are searched for together.
  std::int64_t batch() const { return batch_; }

  // What is nearest to rows of the base that are in lists, in their order. probes: the sum of the
  // lists of each is added.
  Neighbors search(std::span<const Id> rows, double& probes, const Progress& progress) const;

 private:
  void train(const Progress& progress);
  void make_in_memory(std::span<const Id> which, const Progress& progress);
  void make_files(std::span<const Id> which, const Progress& progress);
  void take(SavedIndex part, const std::string& path);
  void calibrate(const Progress& progress);
  class ReadingAhead;
  // A file of lists.
  struct Part {
    std::string path;
    Id end;                           // behind its last row
    std::vector<std::int64_t> begin;  // [lists + 1] places of vectors, list after list
  };
  AnyMatrix vectors_of(std::span<const Id> rows) const;
  // Begins to read the codes and vectors of lists that are in files. wanted: of each list.
  void read_ahead(const std::vector<char>& wanted) const;

  const AnyMatrixView base_;
  const BaseListsOptions options_;
  const IndexShape shape_;
  State made_;                          // until it is whole
  std::shared_ptr<const State> state_;  // made_, from then on
  std::vector<Part> parts_;
  std::vector<std::uint32_t> list_of_;  // [rows of the base]
  std::int64_t batch_ = 0;
  RecallPoint point_;
  bool certify_ = false;                    // no rule promises the recall
  std::unique_ptr<io::MappedPages> pages_;  // last: it ends before what it watches
};

// Whether there are files of lists, and to remove them.
bool has_lists_files(const std::string& scratch);
void remove_lists_files(const std::string& scratch);

}  // namespace knear::detail
