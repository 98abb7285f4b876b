// knear/cost/recall_assumptions.hpp -- which recall inverted lists and codes are taken to reach,
// where nobody has measured it on the data at hand.
//
//   probes_for_recall(0.95, 65536)                      // lists of a query
//   recall_of_codes(coded_forms[0].recall, 1e9)         // of all lists, among a billion rows
//
// How much a probe finds depends on the data; what a machine can do does not say it. These are
// figures of one synthetic set (`unit96` of bench/data: 96 columns, unit norm, clusters of unequal
// size, a falling spectrum), recall@10 of 1,000 queries, measured by `bench/plan recall`, and
// carried on to any number of lists and rows by the straight lines that are said below: far beyond
// what was measured, and the least certain part of every plan.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <string_view>

namespace knear {

// The share of the nearest that is not in so many of 4,096 lists, among 4,000,000 rows.
struct MissedByProbes {
  double probes, missed;
};
inline constexpr MissedByProbes missed_by_probes[] = {
    {1, 0.398}, {2, 0.215}, {4, 0.0868}, {8, 0.0238}, {16, 0.0072}, {32, 0.0036}, {64, 0.0014}};
inline constexpr double assumed_lists = 4096;
// For the same recall in other numbers of lists, probes grow with this power of that number. From
// 1,024 to 4,096 lists of 1,000,000 rows it was 0.42 for a recall of 0.8, 0.30 for 0.9 and 0.06 for
// 0.95; beyond that probes became fewer, since the set has 1,000 clusters.
inline constexpr double probes_growth = 0.3;
// Lists that are probed are longer than the mean: of 4,096, four of them.
inline constexpr double probed_list_length = 1.3;

// Logarithms of `missed` are joined by straight lines over those of probes, and go on like the last
// of them. Between 1 and all lists; 0 < recall < 1.
inline double probes_for_recall(double recall, double lists) {
  const double missed = 1 - recall;
  std::size_t i = 1;
  while (i + 1 < std::size(missed_by_probes) && missed_by_probes[i].missed > missed) ++i;
  const MissedByProbes &from = missed_by_probes[i - 1], &to = missed_by_probes[i];
  const double along = std::log(missed / from.missed) / std::log(to.missed / from.missed);
  const double probes = from.probes * std::pow(to.probes / from.probes, along);
  return std::clamp(probes * std::pow(lists / assumed_lists, probes_growth), 1.0, lists);
}

// Of codes, all lists searched: among 1,000,000 rows, and by how much the logarithm of found over
// missed falls with each factor of ten in rows, among which the nearest lie closer.
struct CodeRecall {
  double found = 1, fall = 0;
};
inline double recall_of_codes(const CodeRecall& recall, double rows) {
  const double odds = std::log(recall.found / (1 - recall.found)) -
                      recall.fall * std::max(0.0, std::log10(rows / 1e6));
  return 1 / (1 + std::exp(-odds));
}

// Codes in lists. `columns` of a row are coded together by one sub-quantiser of `bits`.
struct CodedForm {
  std::string_view refined_by;  // "", "SQ8" or "SQfp16"
  std::int64_t columns = 2;
  int bits = 8;
  double refine_factor = 0;
  double refining_bytes = 0;  // for each column
  CodeRecall recall;
};
// Found among 1,000,000 rows; the fall is that from 250,000 rows on, of halves, where none was to
// be seen, that of bytes.
inline constexpr CodedForm coded_forms[] = {
    {"SQfp16", 2, 4, 16, 2, {0.9988, 0.163}}, {"SQ8", 2, 4, 16, 1, {0.9826, 0.163}},
    {"", 2, 8, 0, 0, {0.9093, 0.356}},        {"", 3, 8, 0, 0, {0.8037, 0.346}},
    {"", 4, 8, 0, 0, {0.7042, 0.546}},        {"", 6, 8, 0, 0, {0.5593, 0.643}}};

}  // namespace knear
