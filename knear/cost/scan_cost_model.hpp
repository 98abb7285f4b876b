// knear/cost/scan_cost_model.hpp -- the tuned constants of the model of cost/plan.hpp.
//
//   constexpr ScanCostModel model;
//   model.hit_operations                                                    // 820
//   for (const auto& [name, value, meaning] : scan_cost_constants) ...      // model.*value
//
// Operations are coefficient-wise ones of the machine on which they were measured, so that another
// one's rate makes seconds of them. What inverted lists and codes need beside work on vectors
// (places in lists, branches, waiting for memory) is in cycles of a core: a machine that does twice
// as many operations a cycle was no faster at it.
#pragma once
#include <iterator>
#include <string_view>

namespace knear {

// The table below says what each means.
struct ScanCostModel {
  double scan_efficiency = 0.90, single_efficiency = 0.28;
  double score_operations = 2.6;
  double found_operations = 2800, few_found = 0.55;
  double hit_operations = 820, interval_operations = 1700;
  double interval_hits = 1.85;
  double many_hits_operations = 3500;
  double looked_at_operations = 110, chosen_operations = 3000;
  double looks_operations = 2.27e6, looks_neighbour_operations = 7100;
  double merge_seconds = 65e-9;
  double merged_operations = 1900;
  double rescore_operations = 9700, rescore_column_operations = 49;
  double far_operations = 19600;
  double refine_operations = 12000, refine_column_operations = 13;
  double few_lists = 0.8, single_lists = 0.68;
  double query_operations = 6000, query_column_operations = 115;
  double second_operations = 3300, second_column_operations = 0.6;
  double seed_operations = 1650, seed_column_operations = 2.9;
  double prefix_operations = 4, prefix_query_operations = 210e3;
  double prefix_neighbour_operations = 12400;
  double packing_operations = 13000, packing_column_operations = 160;
  double whole_packing = 0.35;
  double making_operations = 45e3, making_column_operations = 190;
  double nearest_operations = 50e3, nearest_cluster_operations = 80;
  double direct_operations = 1880, direct_column_operations = 10.4;
  double call_seconds = 4e-6;
  double near_list_cycles = 50, list_cycles = 500, group_of_list_cycles = 8000;
  double listed_hit_cycles = 160, listed_far = 0.65;
  double least_queries_of_a_list = 4;
  double single_list_search_seconds = 5e-6;
  double table_column_operations = 16, table_operations = 50;
  double look_up_operations = 4.75, short_look_up_operations = 2.05;
  double multiplied_code_operations = 53;
  double decoded_code_operations = 1100, decoded_code_column_operations = 2.5;
  double queries_of_decoded_lists = 4600;
  double coded_list_cycles = 480, coded_query_cycles = 8800, coded_hit_cycles = 84;
  double refined_far = 0.2, decoded_column_cycles = 1.9;
  double listing_cycles = 4330, relisting_cycles = 2000;
  double coding_cycles = 4200, coding_column_operations = 7;
  double refining_column_cycles = 28, code_training_cycles = 40000;
};

struct ScanCostConstant {
  std::string_view name;
  double ScanCostModel::*value;
  std::string_view meaning;
};
#define KNEAR_COST(name, meaning) \
  { #name, &ScanCostModel::name, meaning }
inline constexpr ScanCostConstant scan_cost_constants[] = {
    KNEAR_COST(scan_efficiency, "share of the arithmetic peak that many queries reach"),
    KNEAR_COST(single_efficiency, "the part of it that one query reaches at 128 columns"),
    KNEAR_COST(score_operations, "operations per score: thresholds in code units, the test"),
    KNEAR_COST(found_operations, "per panel and query from which rows pass, to find them"),
    KNEAR_COST(few_found, "factor of that where there are few queries"),
    KNEAR_COST(hit_operations, "per row that passes, times log2(1 + k): a place in the list"),
    KNEAR_COST(interval_operations, "per row that passes: its interval"),
    KNEAR_COST(interval_hits, "times as many rows pass where they have intervals"),
    KNEAR_COST(many_hits_operations, "per row that passes where k > 32"),
    KNEAR_COST(looked_at_operations, "per score, where those of all rows are looked at together"),
    KNEAR_COST(chosen_operations, "and per neighbour"),
    KNEAR_COST(looks_operations, "per query, to estimate thresholds where k > 32"),
    KNEAR_COST(looks_neighbour_operations, "and per neighbour of it"),
    KNEAR_COST(merge_seconds, "seconds per neighbour, to merge the lists of splits, k > 32"),
    KNEAR_COST(merged_operations, "per neighbour and shard but one, to merge what shards found"),
    KNEAR_COST(rescore_operations, "per row measured in float64, wherever it is"),
    KNEAR_COST(rescore_column_operations, "and per column of it"),
    KNEAR_COST(far_operations, "more where the base is larger than the last cache"),
    KNEAR_COST(refine_operations, "per row scored again by per-row codes"),
    KNEAR_COST(refine_column_operations, "and per column of it"),
    KNEAR_COST(few_lists, "factor of selection and rescoring where there are few queries"),
    KNEAR_COST(single_lists, "the same for one query: lists stay in cache"),
    KNEAR_COST(query_operations, "per query that is packed"),
    KNEAR_COST(query_column_operations, "and per column of it"),
    KNEAR_COST(second_operations, "per row in the second stage"),
    KNEAR_COST(second_column_operations, "and per column of it"),
    KNEAR_COST(seed_operations, "per row of the nearest clusters"),
    KNEAR_COST(seed_column_operations, "and per column of it"),
    KNEAR_COST(prefix_operations, "per query, coordinate of a prefix and column"),
    KNEAR_COST(prefix_query_operations, "per query that uses a prefix"),
    KNEAR_COST(prefix_neighbour_operations, "and per neighbour of it"),
    KNEAR_COST(packing_operations, "per row that is packed"),
    KNEAR_COST(packing_column_operations, "and per column of it"),
    KNEAR_COST(whole_packing, "factor of both for whole numbers, which are codes as they are"),
    KNEAR_COST(making_operations, "per row of which a prefix is made"),
    KNEAR_COST(making_column_operations, "and per column of it"),
    KNEAR_COST(nearest_operations, "per look-up of a row's nearest cluster"),
    KNEAR_COST(nearest_cluster_operations, "and per cluster"),
    KNEAR_COST(direct_operations, "per row measured in float64 in storage order"),
    KNEAR_COST(direct_column_operations, "and per column of it"),
    KNEAR_COST(call_seconds, "seconds per call"),
    KNEAR_COST(near_list_cycles, "per inverted list that is put in order, but the first"),
    KNEAR_COST(list_cycles, "per inverted list that a query probes by itself"),
    KNEAR_COST(group_of_list_cycles, "per list and twelve queries that probe it together"),
    KNEAR_COST(listed_hit_cycles, "per row of lists that passes"),
    KNEAR_COST(listed_far, "share that measuring a row of these takes"),
    KNEAR_COST(least_queries_of_a_list, "queries of a list from which its rows are scored for all"),
    KNEAR_COST(single_list_search_seconds, "seconds per call with one query, by lists"),
    KNEAR_COST(table_column_operations, "per column and entry of a table of codes"),
    KNEAR_COST(table_operations, "per sub-quantiser and entry of it"),
    KNEAR_COST(look_up_operations, "per sub-quantiser of 8 bits of a row's code"),
    KNEAR_COST(short_look_up_operations, "per sub-quantiser of 4 bits"),
    KNEAR_COST(multiplied_code_operations, "per code that is decoded and multiplied, beside that"),
    KNEAR_COST(decoded_code_operations, "per code that is decoded for many queries"),
    KNEAR_COST(decoded_code_column_operations, "and per column of it"),
    KNEAR_COST(queries_of_decoded_lists, "queries for which codes are decoded once"),
    KNEAR_COST(coded_list_cycles, "per inverted list of codes that a query probes"),
    KNEAR_COST(coded_query_cycles, "per query of codes"),
    KNEAR_COST(coded_hit_cycles, "per code that passes"),
    KNEAR_COST(refined_far, "share that measuring a row takes whose code was kept"),
    KNEAR_COST(decoded_column_cycles, "per column of a row that is decoded to be measured"),
    KNEAR_COST(listing_cycles, "per row whose inverted list is found"),
    KNEAR_COST(relisting_cycles, "per row and time while lists are learned"),
    KNEAR_COST(coding_cycles, "per row that becomes a code"),
    KNEAR_COST(coding_column_operations, "per column of it and centroid of a sub-quantiser"),
    KNEAR_COST(refining_column_cycles, "per column of a second code"),
    KNEAR_COST(code_training_cycles, "per row that codes are learned from"),
};
#undef KNEAR_COST
static_assert(std::size(scan_cost_constants) * sizeof(double) == sizeof(ScanCostModel));

}  // namespace knear
