// knear/index/given_lists.hpp -- what the caller has trained, and lists that the caller chose, for
// rows that are added and for queries. knear.faiss needs it: it keeps FAISS's quantizers, and an
// index of FAISS may find its lists in another way.
//
//   Index index = trained_index({.dim = 96, .codes = CodeShape{CodeKind::product, 16, 8}, .numbers
//   = all}); add_to_lists(index, codes, lists);                        // codes [n x code size],
//   lists [n] Neighbors near = search_lists(index, queries, lists, 10); // lists [q x p]
#pragma once
#include <cstdint>
#include <optional>
#include <span>

#include "knear/index/index.hpp"
#include "knear/index/index_shape.hpp"

namespace knear::detail {

// The result of training an index.
struct TrainedForm {
  std::int64_t dim = 0;
  Metric metric = Metric::l2;
  MatrixView<float> centroids = {};  // of inverted lists [lists x dim]; no rows: there are none
  // How rows are kept: as codes, made with these numbers (Codec::of_numbers()), or as vectors,
  // rounded to halves or as they are.
  std::optional<CodeShape> codes = {};
  std::span<const float> numbers = {};
  std::optional<ElementType> rounded = {};
};

// An index without rows. Throws InvalidArgument for numbers and centroids that are not finite, and
// for those of another size.
Index trained_index(const TrainedForm& form);

// Adds rows as the index keeps them, under ids from next_id() on. rows: codes [n x code size] of
// u8, if the index has codes without vectors; else vectors [n x dim]. lists [n]: the list of each
// row; empty if the index has no lists. Throws InvalidArgument for an index that is not trained,
// has transforms or refines codes, for one in shards, for a list that does not exist, for a NaN or
// infinity, and if too few ids are left; ShapeMismatch; Cancelled. Costs what the rows cost,
// whatever the index holds.
void add_to_lists(Index& index, AnyMatrixView rows, std::span<const Id> lists,
                  const ChangeOptions& options = {});

// As Index::search(), but in these lists of each query [q x p]: none twice in a row, no_id for
// none. options.method: as Index::search() takes it of `probes` lists; its numbers of lists do not
// count. Throws as Index::search(), and InvalidArgument for a list that does not exist or that is
// given twice.
Neighbors search_lists(const Index& index, AnyMatrixView queries, MatrixView<Id> lists,
                       std::int64_t k, const SearchOptions& options = {},
                       KnnReport* report = nullptr);

}  // namespace knear::detail
