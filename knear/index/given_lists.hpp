// knear/index/given_lists.hpp -- lists that the caller chose, for rows that are added and for
// queries. knear.faiss needs it, since an index of FAISS may find its lists in another way.
//
//   add_to_lists(index, codes, lists);                        // codes [n x code size], lists [n]
//   Neighbors near = search_lists(index, queries, lists, 10); // lists [q x p]
#pragma once
#include <span>

#include "knear/index/index.hpp"

namespace knear::detail {

// Adds rows as the index keeps them, under ids from next_id() on. rows: codes [n x code size] of
// u8, if the index has codes without vectors; else vectors [n x dim]. lists [n]: the list of each
// row; empty if the index has no lists. Throws InvalidArgument for an index that is not trained,
// has transforms or refines codes, for a list that does not exist, for a NaN or infinity, and if
// too few ids are left; ShapeMismatch; Cancelled. Costs what the rows cost, whatever the index
// holds.
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
