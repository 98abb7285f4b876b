// knear/index/faiss/faiss_writer.hpp -- an index as FAISS writes it.
#pragma once
#include <string>

#include "knear/core/progress.hpp"
#include "knear/index/index_shape.hpp"
#include "knear/index/life/index_state.hpp"

namespace knear::detail {

// Of a trained index; errors as those of write_faiss().
void write_faiss_index(const IndexShape& shape, const State& state, const std::string& path,
                       const Progress& progress);

}  // namespace knear::detail
