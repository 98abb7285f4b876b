// knear/cost/device_cost_model.hpp -- the constants of the model of cost/device_plan.hpp.
//
//   constexpr DeviceCostModel model;
//   const ScanLoop& loop = scan_loop(gpu.code, /*few=*/false, /*keep=*/true, whole);
//
// Four kinds: counted in the machine code, from data sheets, measured on one H100 (docs/gpu.md) and
// taken to hold for others, guessed.
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
  bool whole;                // the form for whole numbers
  const char* name;          // of the kernel
  double instructions;       // of a slice
  double tile_instructions;  // of a tile
  double products;           // of a slice, each of 16 rows, 8 queries and 32 columns
  double wide_loads;         // from shared memory, 16 bytes for each lane; of a slice
};
inline constexpr ScanLoop scan_loops[] = {
    {80, false, false, false, "ScanPanels<false, false, false, false>", 55, 392, 16, 6},
    {80, false, false, true, "ScanPanels<false, false, true, false>", 55, 310, 16, 6},
    {80, false, true, false, "ScanPanels<false, true, false, false>", 24, 249, 16, 6},
    {80, false, true, true, "ScanPanels<false, true, true, false>", 22, 206, 16, 6},
    {80, true, false, false, "ScanPanels<true, false, false, false>", 45, 258, 4, 3},
    {80, true, false, true, "ScanPanels<true, false, true, false>", 47, 223, 4, 3},
    {80, true, true, false, "ScanPanels<true, true, false, false>", 39, 238, 4, 3},
    {80, true, true, true, "ScanPanels<true, true, true, false>", 42, 201, 4, 3},
    {90, false, false, false, "ScanPanels<false, false, false, false>", 60.5, 291, 16, 6},
    {90, false, false, true, "ScanPanels<false, false, true, false>", 60, 178, 16, 6},
    {90, false, true, false, "ScanPanels<false, true, false, false>", 23.67, 244, 16, 6},
    {90, false, true, true, "ScanPanels<false, true, true, false>", 22, 183, 16, 6},
    {90, true, false, false, "ScanPanels<true, false, false, false>", 45, 265, 4, 3},
    {90, true, false, true, "ScanPanels<true, false, true, false>", 44, 229, 4, 3},
    {90, true, true, false, "ScanPanels<true, true, false, false>", 41, 251, 4, 3},
    {90, true, true, true, "ScanPanels<true, true, true, false>", 41, 209, 4, 3}};
constexpr const ScanLoop& scan_loop(int code, bool few, bool keep, bool whole) {
  return scan_loops[(code == 90 ? 8 : 0) + (few ? 4 : 0) + (keep ? 2 : 0) + (whole ? 1 : 0)];
}

// The shapes of the kernels; tests/scan/device/device_scan_test.cpp holds them against these.
struct ScanForm {
  static constexpr double tile_rows = 128, block_queries = 128, few_queries = 32, warps = 8;
  static constexpr double slice_columns = 32;
  // Queries are kept where they have so many slices at most; of few queries, where they, the stages
  // of the ring and what the test needs (of vectors that are no whole numbers) take so many bytes.
  static constexpr double kept_slices = 4;
  static constexpr double few_stages = 4, few_test_bytes = 15904, most_kept_bytes = 81 << 10;
  static constexpr double resident_blocks = 2, resident_few_blocks = 3;
};

struct DeviceCostModel {
  // Accesses of a warp to shared memory, of 128 bytes, for each tile: where sums start, limits, and
  // writing the next ones. By the text of the kernel.
  double tile_wavefronts = 23;

  // Measured on an H100.
  double kernel_share = 0.75;  // of the scan's narrowest resource that it reaches: it waits between
  double sustained_clock = 0.9;  // of the highest one, under load
  double memory_share = 0.9;     // of the memory's nominal rate
  double hit_cycles = 22;        // of a multiprocessor, to append a row that passes to its list
  double float_entry_bytes =
      140;  // as if an entry of a list had so many, in each step that reads it
  double whole_entry_bytes = 95;
  double kept_roots = 32;          // times the root of k: rows that are measured beyond the k best
  double rank_instructions = 0.6;  // of a warp, for two entries that are compared
  double call_seconds = 400e-6;    // of a search: queue, arrays, waiting for queries and answers

  // Guesses.
  double pageable_share = 0.4;   // of the bus's rate, for copies that are not of pinned memory
  double launch_seconds = 5e-6;  // of a kernel or small copy
  double host_bytes = 3;         // moved by the processor for each that it puts into pinned memory
  double query_sort_seconds = 60e-9;  // of a query, by one thread
  double interval_hits = 1.85;        // as on the processor, where rows have intervals
  double entry_instructions = 6;      // of a warp, for an entry of a list and step, of 32 lanes
  double entry_float64 = 40;
  double coding_float64 = 12, coding_instructions = 1.3;  // for each number; instructions of a warp
  double integer_coding_instructions = 0.4;
  double coding_readings = 3;  // of the rows
  // Queries that are put in order together (OrderQueries::group), and for two that are compared.
  double ordered_queries = 8192, order_instructions = 0.1;  // of a warp
  double sort_instructions = 0.5;  // of a warp, for an entry and step of sorting
};

}  // namespace knear
