// tests/select/select_cases.hpp -- rows that are hard for a k-selection, and the right answers.
//
// Shared by the tests on the emulated warp and by the checks on a GPU (bench/gpu), which have no
// GoogleTest: only the standard library here.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <utility>
#include <vector>

namespace knear::test {

enum class SelectKind {
  uniform,     // [0, 1)
  ties,        // few distinct values
  equal,       // one value
  ascending,   // best first
  descending,  // best last: every value enters the queue
  nan,         // a tenth of the values, quiet and of both signs
  all_nan,     // nothing to keep
  infinite,    // both infinities among numbers
  signed_zero  // zeros of both signs and denormals: equal only as numbers
};

inline constexpr SelectKind all_select_kinds[] = {
    SelectKind::uniform,   SelectKind::ties,       SelectKind::equal,
    SelectKind::ascending, SelectKind::descending, SelectKind::nan,
    SelectKind::all_nan,   SelectKind::infinite,   SelectKind::signed_zero};

inline const char* name_of(SelectKind kind) {
  constexpr const char* names[] = {"uniform", "ties",    "equal",    "ascending",  "descending",
                                   "nan",     "all_nan", "infinite", "signed_zero"};
  return names[static_cast<int>(kind)];
}

inline std::vector<float> select_values(SelectKind kind, std::int64_t n, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  constexpr float infinity = std::numeric_limits<float>::infinity();
  constexpr float denormal = std::numeric_limits<float>::denorm_min();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float odd[] = {0.0f, -0.0f, denormal, -denormal, 3 * denormal};
  std::vector<float> x(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint64_t bits = random();
    const float uniform = float(bits >> 40) * 0x1p-24f;
    const unsigned die = unsigned(bits % 10);
    float& value = x[static_cast<std::size_t>(i)];
    switch (kind) {
      case SelectKind::uniform:
        value = uniform;
        break;
      case SelectKind::ties:
        value = float(die) - 5.0f;
        break;
      case SelectKind::equal:
        value = 7.5f;
        break;
      case SelectKind::ascending:
        value = float(i) - 100.0f;
        break;
      case SelectKind::descending:
        value = float(n - i);
        break;
      case SelectKind::nan:
        value = die == 0 ? (bits & 1024 ? nan : -nan) : uniform - 0.5f;
        break;
      case SelectKind::all_nan:
        value = nan;
        break;
      case SelectKind::infinite:
        value = die < 2 ? infinity : die == 2 ? -infinity : uniform;
        break;
      case SelectKind::signed_zero:
        value = odd[die % 5];
        break;
    }
  }
  return x;
}

// The k smallest of row[0 .. n) by (value, place), without NaN: values and places, padded with
// +infinity and -1. A plain partial sort of pairs.
template <class Id>
void select_reference(const float* row, Id n, int k, float* values, Id* ids) {
  std::vector<std::pair<float, Id>> all;
  for (Id i = 0; i < n; ++i)
    if (row[i] == row[i]) all.emplace_back(row[i], i);
  const auto kept = std::min<std::size_t>(all.size(), std::size_t(k));
  std::partial_sort(all.begin(), all.begin() + std::ptrdiff_t(kept), all.end());
  for (std::size_t i = 0; i < std::size_t(k); ++i) {
    values[i] = i < kept ? all[i].first : std::numeric_limits<float>::infinity();
    ids[i] = i < kept ? all[i].second : Id(-1);
  }
}

// Whether both hold the same bits: -0 and +0 differ here, and a NaN would show.
inline bool same_bits(const float* a, const float* b, std::int64_t n) {
  return n == 0 || std::memcmp(a, b, std::size_t(n) * sizeof(float)) == 0;
}

}  // namespace knear::test
