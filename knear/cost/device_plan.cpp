#include "knear/cost/device_plan.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "knear/core/error.hpp"
#include "knear/cost/device_cost_model.hpp"
#include "knear/cost/scan_cost_model.hpp"

namespace knear {
namespace {

constexpr DeviceCostModel device_model;

// What CUDA does not report, by compute capability, ascending.
//
// int8: operations a cycle and multiprocessor without sparsity, of the data sheet: A100 624 TOPS by
// 108 multiprocessors at 1.41 GHz; RTX 3090 284 by 82 at 1.695; RTX 4090 661 by 128 at 2.52; H100
// SXM 1979 by 132 at 1.83; B200 4500 by 148 at 1.85; B300, which gives int8 up, 150 by 148 at 1.9;
// RTX 5090 838 by 170 at 2.41.
//
// mma_share: the part of it that mma.sync reaches. From compute capability 9.0 on, the data sheet
// means other instructions; of an H100 mma.sync reached 68 % (docs/measurements/gpu.md; 62 % in Luo
// et al., "Dissecting the NVIDIA Hopper Architecture", 2025). For 10.0 it is a guess: the rate
// of 9.0.
//
// float64: results a cycle and multiprocessor, CUDA C++ Programming Guide, "Throughput of Native
// Arithmetic Instructions"; of 10.3 by its 1.2 TFLOPS.
//
// memory, bus: bytes a second where CUDA reports none, of the smallest of these data sheets; the
// bus is PCI Express with 16 lanes, 4.0 or 5.0; that of 9.0 was measured on an H100, of the others
// what copies reach of the rate is a guess.
//
// shared: KiB of shared memory of a multiprocessor, Programming Guide, "Technical Specifications
// per Compute Capability".
struct DataSheet {
  int major, minor;
  double int8, mma_share, float64, memory, bus, shared;
};
constexpr DataSheet data_sheets[] = {
    {8, 0, 4096, 1, 32, 1555e9, 25e9, 164},      {8, 6, 2048, 1, 2, 360e9, 25e9, 100},
    {8, 9, 2048, 1, 2, 300e9, 25e9, 100},        {9, 0, 8192, 0.68, 64, 2000e9, 52e9, 228},
    {10, 0, 16384, 0.34, 64, 7700e9, 50e9, 228}, {10, 3, 512, 1, 2, 7700e9, 50e9, 228},
    {12, 0, 2048, 1, 2, 448e9, 50e9, 100}};
// Of every multiprocessor since 8.0: four schedulers, one instruction each; 32 banks of 4 bytes
// (Programming Guide, "Compute Capability 8.x", "9.0"). What it gets of the second-level cache is a
// guess by what others measured on an H100, 5.5 TB/s.
constexpr double schedulers = 4, shared_bytes = 128, l2_bytes = 24;

double ceiling(double x, double unit) { return std::ceil(x / unit); }

void check(const DeviceShape& shape, const DevicePeaks& device, const MachinePeaks& processor) {
  const std::pair<const char*, double> not_negative[] = {
      {"rows", double(shape.rows)},
      {"queries", double(shape.queries)},
      {"allowed", double(shape.allowed)},
      {"bytes_per_element", shape.bytes_per_element},
      {"memory", shape.memory}};
  for (const auto& [name, value] : not_negative)
    if (!(value >= 0)) throw InvalidArgument("{} must not be negative, but is {}", name, value);
  if (shape.dim < 1) throw InvalidArgument("dim must be at least 1, but is {}", shape.dim);
  if (shape.k < 1) throw InvalidArgument("k must be at least 1, but is {}", shape.k);
  const std::pair<const char*, double> positive[] = {
      {"device.multiprocessors", device.multiprocessors},
      {"device.cycles_per_second", device.cycles_per_second},
      {"device.int8_ops_per_cycle", device.int8_ops_per_cycle},
      {"device.float64_per_cycle", device.float64_per_cycle},
      {"device.instructions_per_cycle", device.instructions_per_cycle},
      {"device.shared_bytes_per_cycle", device.shared_bytes_per_cycle},
      {"device.l2_bytes_per_cycle", device.l2_bytes_per_cycle},
      {"device.memory_bytes_per_second", device.memory_bytes_per_second},
      {"device.memory_bytes", device.memory_bytes},
      {"device.bus_bytes_per_second", device.bus_bytes_per_second},
      {"processor.cop_per_second", processor.cop_per_second},
      {"processor.memory_bytes_per_second", processor.memory_bytes_per_second}};
  for (const auto& [name, value] : positive)
    if (!(value > 0)) throw InvalidArgument("{} must be positive, but is {}", name, value);
}

// Rates of all multiprocessors together.
struct Rates {
  double cycles, instructions, float64, memory;

  explicit Rates(const DevicePeaks& device)
      : cycles(device.multiprocessors * device.cycles_per_second),
        instructions(cycles * device.instructions_per_cycle),
        float64(cycles * device.float64_per_cycle),
        memory(device.memory_bytes_per_second) {}
};

// How DeviceScan goes about a search (scan/device/device_scan.hpp).
struct Course {
  double slices, blocks;  // of columns; of queries that are scored together
  int together;           // the most queries of the form that scores them
  bool few, keeps_queries;
  double batch, batches;  // queries
  double first;           // rows of the first step
  double steps, hits;     // hits: pairs of a query that pass, those of the first step included

  Course(const DeviceShape& shape, double allowed, double free_bytes) {
    const double rows = double(shape.rows), queries = double(shape.queries);
    const double k = std::min(double(shape.k), allowed);
    slices = ceiling(double(shape.dim), ScanForm::slice_columns);
    double room = std::min(2048 + 8 * k, rows);
    const bool one_block = queries <= ScanForm::block_queries;
    const bool none_known = queries <= ScanForm::few_queries;
    if (one_block)
      room = std::max(room,
                      std::min(none_known ? ScanForm::room_of_few : ScanForm::room_of_block, rows));
    const double each = (k > 256 ? 2 : 1) * room * 16 + 16 * k + 16 * double(shape.dim) +
                        slices * ScanForm::slice_columns + 320;
    const double held = std::max(1., std::floor(free_bytes / 2 / each / ScanForm::block_queries)) *
                        ScanForm::block_queries;
    batches = ceiling(queries, held);
    batch = std::min(queries, held);
    few = batch <= ScanForm::few_queries;
    together = int(batch <= ScanForm::fewest_queries ? ScanForm::fewest_queries
                   : few                             ? ScanForm::few_queries
                                                     : ScanForm::block_queries);
    keeps_queries = few ? ScanForm::few_ring_bytes + slices * together * ScanForm::slice_columns <=
                              ScanForm::most_kept_bytes
                        : slices <= ScanForm::kept_slices;
    blocks = few ? 1 : ceiling(batch, ScanForm::block_queries);
    const double growth = one_block ? std::clamp(room / (32 * k), 4., 64.) : 4;
    first = std::floor((2 * k + 511) / 32) * 32 * rows / allowed;
    if (none_known && allowed == rows)
      first =
          std::max(first, std::floor(std::min(room / 4, ScanForm::first_rows_of_few) / 32) * 32);
    first = std::min(rows, first);
    const double more = std::log(rows / first) / std::log(growth);
    steps = 1 + std::ceil(std::max(0., more - 1e-9));
    // Of the rows of each further step as many pass as there are better ones by chance.
    hits = first * allowed / rows +
           more * k * (growth - 1) * (shape.whole ? 1 : device_model.interval_hits);
    hits = std::min(hits, allowed);
  }
};

// Whether each pair of a self-join is scored once, as DeviceScan and SelfJoinSteps::fits() have it.
bool scores_pairs_once(const DeviceShape& shape, const DevicePeaks& device, const Course& course,
                       double allowed, double chunks) {
  const double kept =
      course.keeps_queries ? course.slices * ScanForm::slice_columns * ScanForm::block_queries : 0;
  const double block = shape.whole ? ScanForm::whole_pair_bytes : ScanForm::pair_bytes;
  // Blocks on either side of one that it meets in the first step.
  const double beside =
      std::max(1., std::floor((std::floor(course.first / ScanForm::block_queries) + 1) / 2));
  return shape.self_join && allowed == double(shape.rows) && chunks == 1 && course.batches == 1 &&
         shape.rows >= ScanForm::least_paired_rows && shape.dim <= ScanForm::most_paired_columns &&
         2 * (block + kept + ScanForm::system_bytes) <= device.shared_bytes &&
         beside < std::floor((course.blocks - 1) / 2);
}

void predict_scan_on(const DeviceShape& shape, const DevicePeaks& device, const Course& course,
                     DeviceCost& cost) {
  const Rates rates(device);
  const double rows = double(shape.rows), slices = course.slices;
  const ScanLoop& loop =
      cost.pairs_once ? pair_loop(device.code, course.keeps_queries, shape.whole)
                      : scan_loop(device.code, course.together, course.keeps_queries, shape.whole);
  const double tiles = ceiling(rows, ScanForm::tile_rows);
  // Tiles of a block of queries.
  const double work = course.batches * course.blocks * tiles / (cost.pairs_once ? 2 : 1);
  // Where there are fewer blocks than multiprocessors some of these have nothing to do.
  const double busy =
      std::min(1., course.blocks * std::max(1., std::floor(tiles / 2)) / device.multiprocessors);
  const double warps = course.few ? ScanForm::few_warps : ScanForm::warps;

  const double products = warps * loop.products * slices;
  cost.multiply_add_seconds =
      work * products * (2 * 16 * 8 * 32) / (rates.cycles * device.int8_ops_per_cycle * busy);
  const double instructions = warps * (loop.instructions * (slices - 1) + loop.tile_instructions);
  cost.instruction_seconds = work * instructions / (rates.instructions * busy);
  cost.instructions_per_score = 32 * instructions / (ScanForm::tile_rows * course.together);

  // A wide load takes 512 bytes of a warp; so do the copies of each slice, which of few queries are
  // of a whole panel. Codes of 16 queries are such a load, from the cache where they are not kept.
  const double copies = course.few || course.keeps_queries ? 1 : 2;
  const double loads = course.few ? 2 + course.together / 16. : loop.wide_loads;
  const double shared =
      warps *
      (512 * (loads + (course.few ? 2 : copies)) * slices +
       128 * ((course.few ? device_model.few_tile_wavefronts : device_model.tile_wavefronts) +
              (cost.pairs_once ? device_model.pair_wavefronts : 0)));
  cost.shared_seconds = work * shared / (rates.cycles * device.shared_bytes_per_cycle * busy);
  const double slice_bytes = ScanForm::tile_rows * ScanForm::slice_columns;
  cost.l2_seconds = work * (slice_bytes * copies * slices + 5 * ScanForm::tile_rows) /
                    (rates.cycles * device.l2_bytes_per_cycle * busy);
  // Blocks that are resident at once scan the same rows.
  const double together = device.multiprocessors *
                          (course.few ? ScanForm::resident_few_blocks : ScanForm::resident_blocks);
  const double readings =
      course.batches * ceiling(course.blocks / (cost.pairs_once ? 2 : 1), together);
  cost.bytes = readings * rows * (slices * ScanForm::slice_columns + 5);
  cost.memory_seconds = cost.bytes / rates.memory;
  cost.scan_seconds = std::max({cost.multiply_add_seconds, cost.instruction_seconds,
                                cost.shared_seconds, cost.l2_seconds, cost.memory_seconds}) /
                      device_model.kernel_share;
}

void predict_lists_on(const DeviceShape& shape, const DevicePeaks& device, const Course& course,
                      double allowed, DeviceCost& cost) {
  const Rates rates(device);
  const double queries = double(shape.queries), k = std::min(double(shape.k), allowed);
  // An entry is looked at in the step in which it came, and the nearest again in all later ones.
  const double entries = course.hits + course.steps * 1.5 * k;
  const double entry_bytes =
      shape.whole ? device_model.whole_entry_bytes : device_model.float_entry_bytes;
  // Of pairs that are scored once half of the hits after the first step are multiplied again.
  const double later = cost.pairs_once ? std::max(0., course.hits - course.first) : 0;
  const double again = later / 2 * 2 * course.slices * ScanForm::slice_columns;
  cost.selection_seconds =
      queries * course.hits * device_model.hit_cycles / rates.cycles +
      queries * again / rates.memory +
      queries * std::max({entries * device_model.entry_instructions / rates.instructions,
                          entries * entry_bytes / rates.memory,
                          shape.whole ? 0 : entries * device_model.entry_float64 / rates.float64});

  const double left =
      shape.whole ? k : std::min(allowed, k + device_model.kept_roots * std::sqrt(k));
  const double ranking =
      shape.k > 256 ? left * std::pow(std::log2(left + 2), 2) * device_model.sort_instructions
                    : left * left * device_model.rank_instructions;
  double measuring = 0;
  if (!shape.whole)
    measuring = left * double(shape.dim) *
                std::max(3 / rates.float64, shape.bytes_per_element / rates.memory);
  cost.rescore_seconds = queries * (measuring + ranking / rates.instructions);
}

}  // namespace

DevicePeaks peaks_of(const DeviceTraits& traits) {
  const auto older = [](const DataSheet& sheet, const DeviceTraits& device) {
    return std::pair(sheet.major, sheet.minor) <= std::pair(device.major, device.minor);
  };
  if (!older(data_sheets[0], traits))
    throw InvalidArgument("compute capability must be at least 8.0, but of {} it is {}.{}",
                          traits.name, traits.major, traits.minor);
  if (traits.multiprocessors < 1)
    throw InvalidArgument("{} must have at least 1 multiprocessor, but has {}", traits.name,
                          traits.multiprocessors);
  const DataSheet* sheet = &data_sheets[0];
  for (const DataSheet& one : data_sheets)
    if (older(one, traits)) sheet = &one;
  DevicePeaks out;
  out.name = traits.name, out.multiprocessors = traits.multiprocessors;
  // Where CUDA reports no clock, one that none of these devices is below. A guess.
  out.cycles_per_second = device_model.sustained_clock *
                          (traits.cycles_per_second > 0 ? traits.cycles_per_second : 1.4e9);
  out.int8_ops_per_cycle = sheet->int8 * sheet->mma_share;
  out.float64_per_cycle = sheet->float64;
  out.instructions_per_cycle = schedulers;
  out.shared_bytes_per_cycle = shared_bytes, out.l2_bytes_per_cycle = l2_bytes;
  out.shared_bytes = 1024 * sheet->shared;
  out.memory_bytes_per_second =
      device_model.memory_share *
      (traits.memory_bytes_per_second > 0 ? traits.memory_bytes_per_second : sheet->memory);
  out.memory_bytes = traits.memory_bytes;
  out.bus_bytes_per_second = sheet->bus;
  out.code = traits.major == 9 ? 90 : 80;
  return out;
}

DeviceCost predict_on_device(const DeviceShape& shape, const DevicePeaks& device,
                             const MachinePeaks& processor) {
  check(shape, device, processor);
  DeviceCost cost;
  cost.limit = "launches";
  if (shape.rows == 0 || shape.queries == 0) return cost;
  if (shape.allowed > 0 && shape.allowed < shape.rows &&
      (!shape.resident || shape.allowed * 16 < shape.rows)) {
    DeviceShape some = shape;
    some.rows = shape.allowed, some.allowed = 0, some.resident = some.self_join = false;
    return predict_on_device(some, device, processor);
  }
  const Rates rates(device);
  const double rows = double(shape.rows), dim = double(shape.dim), queries = double(shape.queries);
  const double allowed =
      double(shape.allowed > 0 ? std::min(shape.allowed, shape.rows) : shape.rows);
  const double room =
      shape.memory > 0 ? std::min(shape.memory, device.memory_bytes) : device.memory_bytes;

  // Chunks, as DeviceSearch::most_chunk_rows() has them: two of them are there at a time.
  const double row_bytes = dim * shape.bytes_per_element;
  const double code_bytes = ceiling(dim, ScanForm::slice_columns) * ScanForm::slice_columns + 25;
  cost.chunks = 1;
  if (!shape.resident && rows * (row_bytes + code_bytes) > room / 2)
    cost.chunks = std::int64_t(
        ceiling(rows, std::max(1024., std::floor(room / 2 / (code_bytes + 2 * row_bytes)))));
  const double chunks = double(cost.chunks);
  cost.device_bytes =
      chunks > 1 ? rows / chunks * (code_bytes + 2 * row_bytes) : rows * (code_bytes + row_bytes);

  const Course course(shape, allowed, std::max(0., room - cost.device_bytes));
  cost.batches = std::int64_t(course.batches), cost.steps = std::int64_t(course.steps);
  cost.pairs_once = scores_pairs_once(shape, device, course, allowed, chunks);
  cost.multiply_adds = rows * queries * dim / (cost.pairs_once ? 2 : 1);
  predict_scan_on(shape, device, course, cost);
  predict_lists_on(shape, device, course, allowed, cost);

  // Vectors of so many bytes that the device codes; `written` beside their codes.
  const auto coding = [&](double vectors, double written) {
    const double numbers = vectors * dim;
    return std::max({shape.whole ? 0 : numbers * device_model.coding_float64 / rates.float64,
                     numbers *
                         (shape.whole ? device_model.integer_coding_instructions
                                      : device_model.coding_instructions) /
                         rates.instructions,
                     vectors * (device_model.coding_readings * row_bytes + code_bytes + written) /
                         rates.memory});
  };
  double copying = 0;  // by the processor, into pinned memory
  if (!shape.resident) {
    const double bytes = rows * row_bytes;
    copying = device_model.host_bytes * bytes / processor.memory_bytes_per_second;
    cost.upload_seconds = std::max(bytes / device.bus_bytes_per_second, copying);
    cost.bus_bytes += bytes;
    cost.coding_seconds = coding(rows, 0);
  }
  constexpr ScanCostModel on_processor;
  const double pageable = device.bus_bytes_per_second * device_model.pageable_share;
  const bool there = course.batch > ScanForm::block_queries;
  const double widened = shape.whole ? 0 : 8 * dim;
  const double query_bytes = there ? row_bytes : code_bytes + 40 + widened;
  if (there) {
    const double compared =
        shape.whole ? 0 : queries * std::min(course.batch, device_model.ordered_queries);
    cost.query_seconds = queries * query_bytes *
                             std::max(1 / device.bus_bytes_per_second,
                                      device_model.host_bytes / processor.memory_bytes_per_second) +
                         coding(queries, widened) +
                         compared * device_model.order_instructions / rates.instructions;
  } else {
    cost.query_seconds =
        queries * ((on_processor.query_operations + on_processor.query_column_operations * dim) /
                       processor.cop_per_second +
                   (shape.whole ? 0 : device_model.query_sort_seconds) + query_bytes / pageable);
  }
  const double answer_bytes = 16 * double(shape.k) + 8;
  cost.download_seconds = queries * answer_bytes / pageable;
  cost.bus_bytes += queries * (query_bytes + answer_bytes);
  // A scan and an update for each step; and what comes before and after.
  const double launches = (cost.pairs_once ? 4 : 2) * course.steps + (there ? 10 : 8);
  cost.launch_seconds =
      device_model.call_seconds + chunks * course.batches * device_model.launch_seconds * launches;

  const double searching = cost.query_seconds + cost.scan_seconds + cost.selection_seconds +
                           cost.rescore_seconds + cost.launch_seconds + cost.download_seconds +
                           cost.coding_seconds;
  cost.overlapped_seconds = (chunks - 1) / chunks * std::min(cost.upload_seconds, searching);
  cost.seconds = cost.upload_seconds + searching - cost.overlapped_seconds;

  const std::pair<double, const char*> of_scan[] = {
      {cost.multiply_add_seconds, "int8 multiply-adds"},
      {cost.instruction_seconds, "instructions"},
      {cost.shared_seconds, "shared memory"},
      {cost.l2_seconds, "second-level cache"},
      {cost.memory_seconds, "device memory"}};
  const auto longest = [](const auto& times) {
    return std::max_element(std::begin(times), std::end(times),
                            [](const auto& a, const auto& b) { return a.first < b.first; })
        ->second;
  };
  const bool by_processor = copying > 0 && copying >= cost.upload_seconds;
  const std::pair<double, const char*> stages[] = {
      {cost.upload_seconds, by_processor ? "processor's memory" : "bus"},
      {cost.coding_seconds, "coding"},
      {cost.query_seconds, "queries"},
      {cost.scan_seconds, longest(of_scan)},
      {cost.selection_seconds, "selection"},
      {cost.rescore_seconds, "rescoring"},
      {cost.launch_seconds, "launches"},
      {cost.download_seconds, "bus"}};
  cost.limit = longest(stages);
  return cost;
}

FasterPlace faster_place(const DeviceShape& shape, const DevicePeaks& device,
                         const MachinePeaks& processor) {
  FasterPlace out;
  out.device = predict_on_device(shape, device, processor);
  ScanShape there{.rows = shape.rows,
                  .dim = shape.dim,
                  .queries = shape.queries,
                  .k = shape.k,
                  .bytes_per_element = 1,
                  .op = ScanOp::int8,
                  .whole = shape.whole,
                  .packing = !shape.resident,
                  .allowed = shape.allowed};
  out.processor = predict_scan(there, processor);
  there.bytes_per_element = shape.bytes_per_element;
  const ScanCost direct = predict_direct(there, processor);
  if (direct.seconds < out.processor.seconds) out.processor = direct;
  out.device_is_faster = out.device.seconds < out.processor.seconds;
  return out;
}

}  // namespace knear
