// knear/core/json.hpp -- nlohmann's JSON, whose value type with ordered keys is compiled once, in
// json.cpp, and not in each source that reads or writes JSON.
#pragma once
#include <nlohmann/json.hpp>

extern template class nlohmann::basic_json<nlohmann::ordered_map>;
