// knear/index/codecs/faiss_types.hpp -- the names of what FAISS writes: four letters stand before
// each index, each transform and the inverted lists of a file.
//
//   name_of_faiss_index("IPfs")      // "an IndexPQFastScan"
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace knear::detail {

// FAISS's numbers for metrics, as a file has them.
constexpr std::int32_t faiss_inner_product = 0, faiss_l2 = 1, faiss_l1 = 2;

// The name with its article, or nothing for letters that FAISS (1.15) does not write or read.
std::string_view name_of_faiss_index(std::string_view letters);
std::string_view name_of_faiss_transform(std::string_view letters);
std::string_view name_of_faiss_lists(std::string_view letters);
// "METRIC_L1", or nothing for a number that FAISS does not have.
std::string_view name_of_faiss_metric(std::int32_t metric);
// Whether FAISS has a type of scalar quantiser with this number.
bool is_faiss_scalar(std::int32_t type);
// Of a scalar quantiser: "QT_6bit (6)", "99" for one that FAISS has not.
std::string name_of_faiss_scalar(std::int32_t type);

}  // namespace knear::detail
