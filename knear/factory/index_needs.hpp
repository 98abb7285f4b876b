// knear/factory/index_needs.hpp -- what an index is chosen by, and what a choice says
// (factory/choose_index.hpp).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "knear/core/element_type.hpp"
#include "knear/core/matrix.hpp"
#include "knear/core/metric.hpp"

namespace knear {

struct IndexNeeds {
  Metric metric = Metric::l2;
  ElementType type = ElementType::f32;  // of the rows; u8 and i8 are kept as bytes
  std::int64_t memory = 0;              // bytes that the index may take; 0: as many as it likes
  double recall = 0.95;                 // of the 10 nearest; 1: all of them, for certain
  std::int64_t batch = 1000;            // queries in a call
  // Vectors like those to come [s x dim], whose type is that of the rows; without rows: none.
  AnyMatrixView sample = {};
};

// What one form is expected to take, by what was counted on a sample.
struct FormForecast {
  std::string factory = {};
  double seconds = 0;      // of a query, by one thread
  double scored_rows = 0;  // of a query, among all rows
  std::int64_t bytes = 0;  // of the index
};

struct IndexChoice {
  std::string factory = {};
  std::string reason = {};  // one sentence
  std::int64_t bytes = 0;   // what the index will take, about
  // Whether vectors could change the choice, but were not measured.
  bool guessed = false;
  // The forms that were measured, the fastest first; empty for a guess.
  std::vector<FormForecast> forecasts = {};
};

// Fewer vectors than this are not measured.
inline constexpr std::int64_t least_sample = 2000;

}  // namespace knear
