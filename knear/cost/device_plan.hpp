// knear/cost/device_plan.hpp -- how long an exact search on a GPU will take, what it will wait for,
// and whether the processor would be faster.
//
//   const DevicePeaks gpu = peaks_of_device("cuda");  // knn/device_peaks.hpp
//   const DeviceShape shape = {.rows = 1000000, .dim = 128, .queries = 10000, .k = 10};
//   const DeviceCost cost = predict_on_device(shape, gpu, processor);
//   cost.seconds, cost.limit;  // "instructions", say
//   if (faster_place(shape, gpu, processor).device_is_faster) ...
//
// What the model knows:
//
//   the machine code   instructions and loads of the scan's loop of products, as
//                      tests/cuda/machine_code.json keeps them; a test holds the two together
//   the data sheet     operations a cycle of each kind, by compute capability
//   the device         multiprocessors, clocks and memory, as CUDA reports them
//   one H100           which share of its peaks a search reached (docs/measurements/gpu.md); other
//                      GPUs are taken to reach the same
//
// All other constants are guesses, and stand as such in device_cost_model.hpp. The times are
//
//   upload        the rows over the bus, unless they are on the device; in chunks, each while the
//                 one before is searched, where they do not fit half of its memory
//   coding        their codes, made on the device
//   queries       copied and coded there; those of one block at most coded by the processor
//   scan          the largest of: tensor cores, instructions issued, shared memory, second-level
//                 cache, device memory; over the share of it that a kernel reaches
//   selection     finding the pairs that passed, and the thresholds after each step
//   rescoring     what is left measured in float64, and ranked
//   launches      of kernels, a few microseconds each
//   download      of the answers
//
// A self-join on a GPU finds one neighbour more for every row: queries = rows. With `self_join`
// each pair is scored once where the lists of all rows have room; without, it is a search for every
// row.
#pragma once
#include <cstdint>
#include <string>

#include "knear/cost/peaks.hpp"
#include "knear/cost/plan.hpp"

namespace knear {

// What CUDA reports of a device. 0 for a rate that it does not report.
struct DeviceTraits {
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  double cycles_per_second = 0;        // the highest clock
  double memory_bytes_per_second = 0;  // by its clock and width
  double memory_bytes = 0;
};

// Of one multiprocessor where "per cycle" is said.
struct DevicePeaks {
  std::string name;
  int multiprocessors = 0;
  double cycles_per_second = 0;       // under load
  double int8_ops_per_cycle = 0;      // by mma.sync, which this code uses; multiply-add = 2
  double float64_per_cycle = 0;       // additions, products or comparisons
  double instructions_per_cycle = 0;  // of a warp each
  double shared_bytes_per_cycle = 0, l2_bytes_per_cycle = 0;
  double shared_bytes = 0;  // of all blocks that are resident
  double memory_bytes_per_second = 0, memory_bytes = 0;
  double bus_bytes_per_second = 0;  // between pinned memory and the device, one direction
  int code = 80;  // whose machine code the plan reckons with: that of sm_80, or 90: of sm_90a

  double int8_ops() const { return int8_ops_per_cycle * multiprocessors * cycles_per_second; }
};

// The table of data sheets applied to a device; one that the table lacks counts as the nearest
// older one. Throws InvalidArgument unless the compute capability is 8.0 or later and there are
// multiprocessors.
DevicePeaks peaks_of(const DeviceTraits& traits);

struct DeviceShape {
  std::int64_t rows = 0, dim = 0, queries = 0, k = 0;
  double bytes_per_element = 4;  // of the vectors as they come
  bool whole = false;            // whole numbers of 8 bits: scores are exact, no rescoring
  bool resident = false;         // rows and codes are on the device already
  // Rows that may be found; 0: all. Others are not brought to the device for a search that is made
  // once. Of resident rows every one is scored, unless fewer than one in 16 may be found: those are
  // brought by themselves.
  std::int64_t allowed = 0;
  double memory = 0;       // bytes of the device that the search may take; 0: all
  bool self_join = false;  // the queries are the rows
};

struct DeviceCost {
  double seconds = 0;
  // The largest of "int8 multiply-adds", "instructions", "shared memory", "second-level cache",
  // "device memory", "bus", "processor's memory", "coding", "queries",
  // "selection", "rescoring", "launches".
  std::string limit;
  double upload_seconds = 0, coding_seconds = 0, query_seconds = 0;
  // The scan, and the time of each resource if it were the only one.
  double scan_seconds = 0;
  double multiply_add_seconds = 0, instruction_seconds = 0;
  double shared_seconds = 0, l2_seconds = 0, memory_seconds = 0;
  double selection_seconds = 0, rescore_seconds = 0, launch_seconds = 0, download_seconds = 0;
  // Of the seconds above, those in which chunks were on their way while others were searched.
  double overlapped_seconds = 0;
  double multiply_adds = 0;  // of the pairs asked for
  bool pairs_once = false;   // of a self-join, whose multiply_adds are half of those then
  double instructions_per_score = 0;
  double bus_bytes = 0, bytes = 0;       // over the bus; read from device memory by the scan
  double device_bytes = 0;               // of rows and codes at a time
  std::int64_t chunks = 0, batches = 0;  // of the base; of queries
  std::int64_t steps = 0;                // of the scan of a batch
};

// `processor` fills the buffers of copies and codes a few queries. Throws InvalidArgument for a
// negative number, k < 1, dim < 1, or peaks that are not positive.
DeviceCost predict_on_device(const DeviceShape& shape, const DevicePeaks& device,
                             const MachinePeaks& processor);

// Both places for a search that is made once, or, of rows that are `resident`, one of many.
struct FasterPlace {
  DeviceCost device;
  ScanCost processor;
  bool device_is_faster = false;
};
// The processor scans in 8 bits, which takes packing unless rows are resident, or measures every
// pair, whichever is faster. Throws as predict_on_device() and predict_scan().
FasterPlace faster_place(const DeviceShape& shape, const DevicePeaks& device,
                         const MachinePeaks& processor);

}  // namespace knear
