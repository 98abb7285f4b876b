// tests/select/misled_rows.hpp -- rows whose sample says what is not so, for the selection through
// a threshold (knear/select/warp/threshold_select_rows.hpp).
//
// Shared by the tests on the emulated device and by the checks on a GPU, as select_cases.hpp is.
#pragma once
#include <cstdint>
#include <limits>
#include <vector>

#include "knear/select/warp/threshold_select_rows.hpp"
#include "tests/select/select_cases.hpp"

namespace knear::test {

// Calls f(place) for each value of the sample of a row of n values for k, if the row begins at a
// boundary of 16 bytes.
template <class F>
void for_sample(int k, int n, F&& f) {
  const int size = detail::threshold_sample(k, n).size;
  for (int i = 0; i < size; ++i)
    f(detail::sample_vector(unsigned(i / 4), unsigned(n + 3) / 4, size) * 4 + unsigned(i % 4));
}

enum class Misled {
  too_few_pass,         // the sample holds the smallest values
  all_pass,             // the sample holds the largest values
  all_pass_ascending,   // and those beside it ascend, so that room is made once
  all_pass_descending,  // or descend: room is made again and again
  too_few_descending,   // the same when the row is read a second time
  sample_is_nan,
  sample_is_least  // no value but those of the sample passes
};
inline constexpr Misled all_misled[] = {Misled::too_few_pass,       Misled::all_pass,
                                        Misled::all_pass_ascending, Misled::all_pass_descending,
                                        Misled::too_few_descending, Misled::sample_is_nan,
                                        Misled::sample_is_least};

inline std::vector<float> misled_row(Misled kind, int k, int n, std::uint64_t seed) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const bool ascends = kind == Misled::all_pass_ascending;
  const bool descends = kind == Misled::all_pass_descending || kind == Misled::too_few_descending;
  std::vector<float> row = select_values(ascends    ? SelectKind::ascending
                                         : descends ? SelectKind::descending
                                                    : SelectKind::uniform,
                                         n, seed);
  for_sample(k, n, [&](unsigned place) {
    float& value = row[place];
    switch (kind) {
      case Misled::too_few_pass:
      case Misled::too_few_descending:
        value -= 1e6f;
        break;
      case Misled::all_pass:
      case Misled::all_pass_ascending:
      case Misled::all_pass_descending:
        value += 1e6f;
        break;
      case Misled::sample_is_nan:
        value = std::numeric_limits<float>::quiet_NaN();
        break;
      case Misled::sample_is_least:
        value = -infinity;
        break;
    }
  });
  return row;
}

}  // namespace knear::test
