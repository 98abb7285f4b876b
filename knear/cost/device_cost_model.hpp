// knear/cost/device_cost_model.hpp -- the constants of the model of cost/device_plan.hpp.
//
//   constexpr DeviceCostModel model;
//   const ScanLoop& loop = scan_loop(gpu.code, /*queries=*/128, /*keep=*/true, whole);
//
// Four kinds: counted in the machine code, from data sheets, measured on one H100
// (docs/measurements/gpu.md) and taken to hold for others, guessed.
#pragma once

namespace knear {

// What a warp of the scan (scan/device/scan_kernels.hpp, few_scan.hpp) does for a slice of 32
// columns, each but the first of a tile, and for all else of the tile, its first slice and the
// limits of the next tile included, where no row passes: in the machine code of nvcc 13.0, as
// scripts/machine_code reads it. tests/cost/device_plan_test.cpp fails where a number is more than
// 5 % away from tests/cuda/machine_code.json.
struct ScanLoop {
  int code;                  // 80: sm_80; 90: sm_90a
  int queries;               // the form for so many of a block at most: 8, 32, 128
  bool keep;                 // the form whose queries stay in shared memory
  bool whole;                // the form for whole numbers
  const char* name;          // of the kernel
  double instructions;       // of a slice
  double tile_instructions;  // of a tile
  double products;           // of a slice, each of 16 rows, 8 queries and 32 columns
  double wide_loads;         // from shared memory, 16 bytes for each lane; of a slice
};
inline constexpr ScanLoop scan_loops[] = {
    {80, 128, false, false, "ScanPanels<false, false, false, false, false>", 55, 392, 16, 6},
    {80, 128, false, true, "ScanPanels<false, true, false, false, false>", 55, 310, 16, 6},
    {80, 128, true, false, "ScanPanels<true, false, false, false, false>", 24, 249, 16, 6},
    {80, 128, true, true, "ScanPanels<true, true, false, false, false>", 22, 203, 16, 6},
    {80, 32, false, false, "ScanFew<32, false, false, false, 4, 6>", 57, 194, 8, 2},
    {80, 32, false, true, "ScanFew<32, false, true, false, 4, 6>", 58, 191, 8, 2},
    {80, 32, true, false, "ScanFew<32, true, false, false, 4, 6>", 56, 195, 8, 4},
    {80, 32, true, true, "ScanFew<32, true, true, false, 4, 6>", 56, 195, 8, 4},
    {80, 8, false, false, "ScanFew<8, false, false, false, 4, 6>", 50, 144, 2, 2},
    {80, 8, false, true, "ScanFew<8, false, true, false, 4, 6>", 50, 144, 2, 2},
    {80, 8, true, false, "ScanFew<8, true, false, false, 4, 6>", 50, 145, 2, 2},
    {80, 8, true, true, "ScanFew<8, true, true, false, 4, 6>", 49, 146, 2, 2},
    {90, 128, false, false, "ScanPanels<false, false, false, false, false>", 60.5, 291, 16, 6},
    {90, 128, false, true, "ScanPanels<false, true, false, false, false>", 60, 177, 16, 6},
    {90, 128, true, false, "ScanPanels<true, false, false, false, false>", 24, 242, 16, 6},
    {90, 128, true, true, "ScanPanels<true, true, false, false, false>", 22, 179, 16, 6},
    {90, 32, false, false, "ScanFew<32, false, false, false, 4, 6>", 58, 207, 8, 2},
    {90, 32, false, true, "ScanFew<32, false, true, false, 4, 6>", 59, 198, 8, 2},
    {90, 32, true, false, "ScanFew<32, true, false, false, 4, 6>", 57, 207, 8, 4},
    {90, 32, true, true, "ScanFew<32, true, true, false, 4, 6>", 57, 204, 8, 4},
    {90, 8, false, false, "ScanFew<8, false, false, false, 4, 6>", 51, 149, 2, 2},
    {90, 8, false, true, "ScanFew<8, false, true, false, 4, 6>", 51, 144, 2, 2},
    {90, 8, true, false, "ScanFew<8, true, false, false, 4, 6>", 51, 149, 2, 2},
    {90, 8, true, true, "ScanFew<8, true, true, false, 4, 6>", 50, 145, 2, 2}};
constexpr const ScanLoop& scan_loop(int code, int queries, bool keep, bool whole) {
  return scan_loops[(code == 90 ? 12 : 0) +
                    (queries <= 8    ? 8
                     : queries <= 32 ? 4
                                     : 0) +
                    (keep ? 2 : 0) + (whole ? 1 : 0)];
}

// The form for pairs of a self-join, each of which is scored once.
inline constexpr ScanLoop pair_loops[] = {
    {80, 128, false, false, "ScanPanels<false, false, false, false, true>", 54, 519, 16, 6},
    {80, 128, false, true, "ScanPanels<false, true, false, false, true>", 56, 381, 16, 6},
    {80, 128, true, false, "ScanPanels<true, false, false, false, true>", 22.3, 479, 16, 6},
    {80, 128, true, true, "ScanPanels<true, true, false, false, true>", 22.3, 376, 16, 6},
    {90, 128, false, false, "ScanPanels<false, false, false, false, true>", 60, 489, 16, 6},
    {90, 128, false, true, "ScanPanels<false, true, false, false, true>", 60.5, 329.5, 16, 6},
    {90, 128, true, false, "ScanPanels<true, false, false, false, true>", 21.3, 431, 16, 6},
    {90, 128, true, true, "ScanPanels<true, true, false, false, true>", 22, 319, 16, 6}};
constexpr const ScanLoop& pair_loop(int code, bool keep, bool whole) {
  return pair_loops[(code == 90 ? 4 : 0) + (keep ? 2 : 0) + (whole ? 1 : 0)];
}

// The shapes of the kernels; tests/scan/device/device_scan_test.cpp holds them against these.
struct ScanForm {
  static constexpr double tile_rows = 128, block_queries = 128, warps = 8;
  static constexpr double slice_columns = 32;
  // Few queries: up to 8 and up to 32 are scored together, a panel of 32 rows by a warp. So four
  // warps make a tile.
  static constexpr double fewest_queries = 8, few_queries = 32, few_warps = 4;
  // Queries are kept where they have so many slices at most; few of them, where they and the rings
  // take so many bytes.
  static constexpr double kept_slices = 4;
  static constexpr double few_ring_bytes = 24 << 10, most_kept_bytes = 81 << 10;
  static constexpr double resident_blocks = 2, resident_few_blocks = 5;
  // Of pairs of a self-join: rows from which on, most columns, bytes of shared memory of a block
  // (of whole numbers) but for queries that are kept, and those that the system takes.
  static constexpr double least_paired_rows = 1024, most_paired_columns = 8192;
  static constexpr double pair_bytes = 75312, whole_pair_bytes = 65072, system_bytes = 1024;
  // Rows of the first step of few queries, and entries of a list of theirs, and of a block of them.
  static constexpr double first_rows_of_few = 4096, room_of_few = 65536, room_of_block = 16384;
};

struct DeviceCostModel {
  // Accesses of a warp to shared memory, of 128 bytes, for each tile: where sums start, limits, and
  // writing the next ones. By the text of the kernel.
  double tile_wavefronts = 23;
  double pair_wavefronts = 15;  // more, of pairs of a self-join, as the emulator counts them
  // Of few queries: what lanes exchange.
  double few_tile_wavefronts = 12;

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
