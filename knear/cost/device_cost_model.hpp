// knear/cost/device_cost_model.hpp -- the constants of the model of cost/device_plan.hpp.
//
//   constexpr DeviceCostModel model;
//   const ScanLoop& loop = scan_loop(gpu.code, /*few=*/false, /*keep=*/true);
//
// Three kinds: counted in the machine code, from data sheets, guessed. None was measured: no GPU
// has run this code yet.
#pragma once

namespace knear {

// What a warp of the scan (scan/device/scan_kernels.hpp) does for a slice of 32 columns, each but
// the first of a tile, and for all else of the tile, its first slice and the limits of the next
// tile included, where no row passes: in the machine code of nvcc 13.0, as scripts/machine_code
// reads it. tests/cost/device_plan_test.cpp fails where a number is more than 5 % away from
// tests/cuda/machine_code.json.
struct ScanLoop {
  int code;                  // 80: sm_80; 90: sm_90a
  bool few;                  // the form for at most 32 queries
  bool keep;                 // the form whose queries stay in shared memory
  const char* name;          // of the kernel
  double instructions;       // of a slice
  double tile_instructions;  // of a tile
  double products;           // of a slice, each of 16 rows, 8 queries and 32 columns
  double wide_loads;         // from shared memory, 16 bytes for each lane; of a slice
};
inline constexpr ScanLoop scan_loops[] = {
    {80, false, false, "ScanPanels<false, false, false>", 48, 240, 16, 6},
    {80, false, true, "ScanPanels<false, true, false>", 48, 236, 16, 6},
    {80, true, false, "ScanPanels<true, false, false>", 32, 183, 4, 3},
    {80, true, true, "ScanPanels<true, true, false>", 30, 177, 4, 3},
    {90, false, false, "ScanPanels<false, false, false>", 54, 261, 16, 6},
    {90, false, true, "ScanPanels<false, true, false>", 48, 230, 16, 6},
    {90, true, false, "ScanPanels<true, false, false>", 36, 202, 4, 3},
    {90, true, true, "ScanPanels<true, true, false>", 33, 199, 4, 3}};
constexpr const ScanLoop& scan_loop(int code, bool few, bool keep) {
  return scan_loops[(code == 90 ? 4 : 0) + (few ? 2 : 0) + (keep ? 1 : 0)];
}

// The shapes of the kernels; tests/scan/device/device_scan_test.cpp holds them against these.
struct ScanForm {
  static constexpr double tile_rows = 128, block_queries = 128, few_queries = 32, warps = 8;
  static constexpr double slice_columns = 32, stages = 4, most_kept_bytes = 80 << 10;
  static constexpr double test_bytes = 12288;  // of shared memory, beside codes
  static constexpr double resident_blocks = 2, resident_few_blocks = 3;
};

struct DeviceCostModel {
  // Accesses of a warp to shared memory, of 128 bytes, for each tile: where sums start, limits, and
  // writing the next ones. By the text of the kernel.
  double tile_wavefronts = 23;

  // All of these are guesses.
  double kernel_share = 0.8;  // of the scan's narrowest resource that it reaches: barriers, tails
  double sustained_clock = 0.9;  // of the highest one, under load
  double memory_share = 0.9;     // of the memory's nominal rate
  double pageable_share = 0.4;   // of the bus's rate, for copies that are not of pinned memory
  double launch_seconds = 5e-6;  // of a kernel or small copy
  double call_seconds = 150e-6;  // of a search: queue, arrays, waiting
  double host_bytes = 3;         // moved by the processor for each that it puts into pinned memory
  double query_sort_seconds = 60e-9;  // of a query, by one thread
  double interval_hits = 1.85;        // as on the processor, where rows have intervals
  // Of a warp: to find what passes in a tile from which something does (many queries; a quarter for
  // few), for a row that passes, and for one of those that pass in every lane.
  double finding_instructions = 200, hit_instructions = 55, shared_hit_instructions = 2;
  double entry_instructions = 6;  // of a warp, for an entry of a list and step, of 32 lanes
  double entry_bytes = 200, entry_float64 = 40;
  double coding_float64 = 12, coding_instructions = 1.3;  // for each number; instructions of a warp
  double integer_coding_instructions = 0.4;
  double coding_readings = 3;  // of the rows
  // Queries that are put in order together (OrderQueries::group), and for two that are compared.
  double ordered_queries = 8192, order_instructions = 0.1;  // of a warp
  double rank_instructions = 0.3;  // of a warp, for two entries that are compared
  double sort_instructions = 0.5;  // of a warp, for an entry and step of sorting
};

}  // namespace knear
