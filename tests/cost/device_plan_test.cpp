// The model of a GPU against sums done by hand, against what is kept of the machine code, and
// against what an H100 was measured to take (docs/measurements/gpu.md).
#include "knear/cost/device_plan.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "knear/core/error.hpp"
#include "knear/cost/device_cost_model.hpp"

namespace knear {
namespace {

constexpr DeviceCostModel model;

DeviceTraits h100() { return {"H100", 9, 0, 132, 1.98e9, 3352e9, 80e9}; }
DeviceTraits rtx3090() { return {"RTX 3090", 8, 6, 82, 1.695e9, 936e9, 24e9}; }

// A processor of sixteen cores, in round numbers.
MachinePeaks sixteen_cores() {
  MachinePeaks out;
  out.isa = Isa::avx512_vnni, out.threads = 16;
  out.fp32_flops = 1.6e12, out.int16_ops = 3.2e12, out.int8_ops = 6.4e12;
  out.memory_bytes_per_second = 200e9, out.cop_per_second = 1.2e12;
  out.cycles_per_second = 40e9;
  return out;
}

constexpr DeviceShape batch = {.rows = 1000000, .dim = 128, .queries = 10000, .k = 10};

DeviceCost on_h100(const DeviceShape& shape) {
  return predict_on_device(shape, peaks_of(h100()), sixteen_cores());
}

TEST(DevicePeaks, OfAnH100) {
  const DevicePeaks gpu = peaks_of(h100());
  EXPECT_EQ(gpu.multiprocessors, 132);
  EXPECT_DOUBLE_EQ(gpu.cycles_per_second, 1.98e9 * model.sustained_clock);
  EXPECT_DOUBLE_EQ(gpu.memory_bytes_per_second, 3352e9 * model.memory_share);
  EXPECT_EQ(gpu.code, 90);
  // The data sheet has 1979 TOPS at 1.83 GHz, of which mma.sync reaches 68 %.
  EXPECT_NEAR(gpu.int8_ops() * 1.83e9 / gpu.cycles_per_second, 0.68 * 1979e12, 5e12);
}

TEST(DevicePeaks, DataSheetsOfOthers) {
  const auto tops = [](int major, int minor, int multiprocessors, double clock) {
    const DevicePeaks gpu = peaks_of({"some", major, minor, multiprocessors, clock, 1e12, 1e10});
    return gpu.int8_ops() / model.sustained_clock / 1e12;
  };
  EXPECT_NEAR(tops(8, 0, 108, 1.41e9), 624, 2);
  EXPECT_NEAR(tops(8, 6, 82, 1.695e9), 284, 2);
  EXPECT_NEAR(tops(8, 9, 128, 2.52e9), 661, 2);
  EXPECT_NEAR(tops(10, 3, 148, 1.9e9), 150, 10);
  EXPECT_NEAR(tops(12, 0, 170, 2.407e9), 838, 2);
}

TEST(DevicePeaks, UnknownOnesCountAsTheNearestOlder) {
  const auto per_cycle = [](int major, int minor) {
    return peaks_of({"some", major, minor, 10, 1e9, 1e12, 1e10}).int8_ops_per_cycle;
  };
  EXPECT_EQ(per_cycle(8, 7), per_cycle(8, 6));
  EXPECT_EQ(per_cycle(9, 9), per_cycle(9, 0));
  EXPECT_EQ(per_cycle(12, 1), per_cycle(12, 0));
  EXPECT_EQ(per_cycle(99, 0), per_cycle(12, 0));
  EXPECT_EQ(peaks_of({"some", 10, 0, 10, 1e9, 1e12, 1e10}).code, 80);  // sm_90a runs on 9.0 alone
  EXPECT_THROW(peaks_of({"V100", 7, 0, 80, 1e9, 1e12, 1e10}), InvalidArgument);
  EXPECT_THROW(peaks_of({"none", 9, 0, 0, 1e9, 1e12, 1e10}), InvalidArgument);
  // Rates that CUDA does not report.
  const DevicePeaks silent = peaks_of({"some", 8, 0, 10, 0, 0, 1e10});
  EXPECT_GT(silent.cycles_per_second, 0);
  EXPECT_GT(silent.memory_bytes_per_second, 0);
}

// 79 blocks of 128 queries, 7,813 tiles of 128 rows, 4 slices of 32 columns.
TEST(PredictOnDevice, AnH100ByHand) {
  DeviceShape shape = batch;
  shape.resident = true;
  const DeviceCost cost = on_h100(shape);
  const double tiles = 79. * 7813, cycles = 132 * 1.98e9 * model.sustained_clock;
  // Of a tile: 8 warps, 4 schedulers; so many instructions a slice but the first, and once.
  const ScanLoop& loop = scan_loop(90, 128, true, false);
  const double of_tile = 3 * loop.instructions + loop.tile_instructions;
  EXPECT_DOUBLE_EQ(cost.instruction_seconds, tiles * (8 * of_tile / 4) / cycles);
  EXPECT_DOUBLE_EQ(cost.instructions_per_score, of_tile / 64.);
  EXPECT_LE(cost.instructions_per_score, 6);
  EXPECT_NEAR(cost.multiply_add_seconds, tiles * (128 * 128 * 128 * 2 / (8192 * 0.68)) / cycles,
              1e-9);
  // 6 loads and a copy of 512 bytes a slice and warp.
  EXPECT_DOUBLE_EQ(cost.shared_seconds, tiles * (8 * (4 * 7 * 4 + model.tile_wavefronts)) / cycles);
  EXPECT_DOUBLE_EQ(cost.l2_seconds, tiles * (128 * (128 + 5) / 24.) / cycles);
  EXPECT_DOUBLE_EQ(cost.bytes, 1e6 * (128 + 5));  // read once: 79 blocks are resident together
  EXPECT_DOUBLE_EQ(cost.scan_seconds, cost.shared_seconds / model.kernel_share);
  EXPECT_EQ(cost.limit, "shared memory");
  EXPECT_EQ(cost.steps, 1 + 6);  // 512 rows, then four times as many each time: 4^5.5
  EXPECT_EQ(cost.chunks, 1);
  EXPECT_EQ(cost.batches, 1);
  EXPECT_EQ(cost.upload_seconds, 0);
  EXPECT_EQ(cost.coding_seconds, 0);
  EXPECT_DOUBLE_EQ(cost.multiply_adds, 1.28e12);
  EXPECT_NEAR(cost.seconds,
              cost.query_seconds + cost.scan_seconds + cost.selection_seconds +
                  cost.rescore_seconds + cost.launch_seconds + cost.download_seconds,
              1e-12);
}

// Whole calls of 10,000 queries in a million rows of 128 columns that are there, as
// docs/measurements/gpu.md has them, milliseconds.
TEST(PredictOnDevice, WhatAnH100Took) {
  const struct {
    bool whole;
    std::int64_t k;
    double call, scan_of_which_nothing_passes;
  } measured[] = {
      {false, 10, 7.2, 3.8}, {false, 100, 13.6, 3.8}, {true, 10, 5.4, 3.8}, {true, 100, 8.5, 3.7}};
  for (const auto& m : measured) {
    DeviceShape shape = batch;
    shape.resident = true, shape.whole = m.whole, shape.k = m.k;
    shape.bytes_per_element = m.whole ? 1 : 4;
    const DeviceCost cost = on_h100(shape);
    EXPECT_NEAR(cost.seconds * 1e3, m.call, 0.2 * m.call) << m.whole << " " << m.k;
    EXPECT_NEAR(cost.scan_seconds * 1e3, m.scan_of_which_nothing_passes, 0.3);
  }
}

// More queries than a block go there as they are: copies from pinned memory take the time.
TEST(PredictOnDevice, QueriesOfABlockAreCodedByTheProcessor) {
  DeviceShape shape = batch;
  shape.resident = true, shape.queries = 128;
  const double few = on_h100(shape).query_seconds;
  shape.queries = 129;
  const DeviceCost more = on_h100(shape);
  EXPECT_LT(more.query_seconds, few / 2);
  shape.queries = 10000;
  const DeviceCost many = on_h100(shape);
  const double copied = 1e4 * 128 * 4 / peaks_of(h100()).bus_bytes_per_second;
  EXPECT_GT(many.query_seconds, copied);
  EXPECT_LT(many.query_seconds, 1.5 * copied);
  // A processor that reads slowly fills the buffers slowly, and codes nothing.
  MachinePeaks slow = sixteen_cores();
  slow.cop_per_second /= 10;
  EXPECT_EQ(predict_on_device(shape, peaks_of(h100()), slow).query_seconds, many.query_seconds);
  slow.memory_bytes_per_second = 20e9;
  EXPECT_GT(predict_on_device(shape, peaks_of(h100()), slow).query_seconds, 3 * copied);
}

TEST(PredictOnDevice, OneSearchOfABaseWaitsForTheBus) {
  DeviceShape shape = batch;
  shape.queries = 100;
  const DeviceCost once = on_h100(shape);
  EXPECT_EQ(once.limit, "bus");
  EXPECT_DOUBLE_EQ(once.upload_seconds, 1e6 * 128 * 4 / peaks_of(h100()).bus_bytes_per_second);
  EXPECT_GT(once.coding_seconds, 0);
  shape.resident = true;
  const DeviceCost again = on_h100(shape);
  EXPECT_NE(again.limit, "bus");
  EXPECT_LT(again.seconds, once.seconds / 4);
  // A processor that reads slowly cannot fill the buffers.
  MachinePeaks slow = sixteen_cores();
  slow.memory_bytes_per_second = 20e9;
  shape.resident = false;
  const DeviceCost held_up = predict_on_device(shape, peaks_of(h100()), slow);
  EXPECT_EQ(held_up.limit, "processor's memory");
  EXPECT_GT(held_up.upload_seconds, once.upload_seconds);
}

TEST(PredictOnDevice, LimitsAreNamed) {
  DeviceShape one = {.rows = 100000000, .dim = 96, .queries = 1, .k = 10, .resident = true};
  DevicePeaks gpu = peaks_of(h100());
  const auto limit = [&](const DeviceShape& shape) {
    return predict_on_device(shape, gpu, sixteen_cores()).limit;
  };
  gpu.memory_bytes_per_second = 1e12;
  EXPECT_EQ(limit(one), "device memory");
  EXPECT_EQ(limit({.rows = 1000, .dim = 16, .queries = 1, .k = 1, .resident = true}), "launches");
  // Each unit in its turn is made a hundred times slower.
  DeviceShape many = batch;
  many.resident = true, many.queries = 100000;
  const std::pair<double DevicePeaks::*, const char*> units[] = {
      {&DevicePeaks::int8_ops_per_cycle, "int8 multiply-adds"},
      {&DevicePeaks::instructions_per_cycle, "instructions"},
      {&DevicePeaks::shared_bytes_per_cycle, "shared memory"},
      {&DevicePeaks::l2_bytes_per_cycle, "second-level cache"}};
  for (const auto& [unit, name] : units) {
    gpu = peaks_of(h100());
    gpu.*unit /= 100;
    EXPECT_EQ(limit(many), name);
  }
  gpu = peaks_of(h100());
  many.k = 20000, many.queries = 1000;
  EXPECT_EQ(limit(many), "selection");
}

TEST(PredictOnDevice, MoreTakesLonger) {
  const std::pair<std::int64_t DeviceShape::*, const char*> sizes[] = {
      {&DeviceShape::rows, "rows"},
      {&DeviceShape::queries, "queries"},
      {&DeviceShape::dim, "dim"},
      {&DeviceShape::k, "k"}};
  for (const bool resident : {false, true})
    for (const bool whole : {false, true})
      for (const auto& [size, name] : sizes) {
        DeviceShape shape = batch;
        shape.resident = resident, shape.whole = whole, shape.queries = 1000;
        double last = 0;
        for (std::int64_t n = 1; n <= 16384; n *= 4) {
          shape.*size = n;
          const double seconds = on_h100(shape).seconds;
          EXPECT_TRUE(std::isfinite(seconds));
          // Forms change between few queries and many, and few with long lists take fewer steps.
          EXPECT_GE(seconds, last * (size == &DeviceShape::queries ? 0.9 : 1)) << name << " " << n;
          last = seconds;
        }
      }
  // A better device is faster.
  EXPECT_GT(predict_on_device(batch, peaks_of(rtx3090()), sixteen_cores()).seconds,
            on_h100(batch).seconds);
}

TEST(PredictOnDevice, LongRowsPassQueriesThroughTheRing) {
  DeviceShape shape = batch;
  shape.resident = true, shape.dim = 4 * 32;
  const DeviceCost kept = on_h100(shape);
  shape.dim = 5 * 32;
  const DeviceCost passed = on_h100(shape);
  EXPECT_GT(passed.l2_seconds / kept.l2_seconds, 1.9 * 5 / 4);
  EXPECT_GT(passed.shared_seconds / kept.shared_seconds, 1.05 * 5 / 4);
}

TEST(PredictOnDevice, FewQueriesLoseLittle) {
  DeviceShape shape = batch;
  shape.resident = true, shape.queries = 32;
  const DeviceCost few = on_h100(shape);
  shape.queries = 33;  // takes the form that scores 128
  const DeviceCost more = on_h100(shape);
  EXPECT_LT(few.multiply_add_seconds, more.multiply_add_seconds / 3.9);
  EXPECT_GT(few.instructions_per_score, more.instructions_per_score);
  shape.queries = 8;  // takes the form that scores 8
  const DeviceCost fewest = on_h100(shape);
  EXPECT_DOUBLE_EQ(fewest.multiply_add_seconds, few.multiply_add_seconds / 4);
  EXPECT_LT(fewest.instruction_seconds, few.instruction_seconds);
  EXPECT_LT(few.steps, on_h100(batch).steps);
}

TEST(PredictOnDevice, ABaseLargerThanTheDeviceComesInChunks) {
  DeviceShape shape = {.rows = 200000000, .dim = 128, .queries = 10000, .k = 10};
  const DeviceCost cost = on_h100(shape);
  EXPECT_GT(cost.chunks, 1);
  EXPECT_LE(cost.device_bytes, 80e9 / 2);
  EXPECT_GT(cost.overlapped_seconds, 0);
  EXPECT_LT(cost.seconds, cost.upload_seconds + cost.scan_seconds + cost.coding_seconds);
  EXPECT_GE(cost.seconds, std::max(cost.upload_seconds, cost.scan_seconds));
  shape = batch, shape.memory = 200 << 20;  // within a budget
  EXPECT_GT(on_h100(shape).chunks, 1);
  EXPECT_LE(on_h100(shape).device_bytes, 100 << 20);
  shape.k = 100000;
  EXPECT_GT(on_h100(shape).batches, 1);
}

TEST(PredictOnDevice, FiltersAndNothing) {
  DeviceShape shape = batch;
  shape.resident = true;
  const double all = on_h100(shape).seconds;
  shape.allowed = 100000;
  const DeviceCost some = on_h100(shape);
  EXPECT_GT(some.seconds, 0.8 * all);  // every row is scored all the same
  EXPECT_DOUBLE_EQ(some.scan_seconds, on_h100({.rows = shape.rows,
                                               .dim = shape.dim,
                                               .queries = shape.queries,
                                               .k = shape.k,
                                               .resident = true})
                                          .scan_seconds);
  // Few are brought by themselves, and so are all of a search that is made once.
  const double few = on_h100({.rows = 50000, .dim = 128, .queries = 10000, .k = 10}).seconds;
  shape.allowed = 50000;
  EXPECT_EQ(on_h100(shape).seconds, few);
  shape.resident = false;
  EXPECT_EQ(on_h100(shape).seconds, few);
  shape.resident = true;
  shape.allowed = 0, shape.rows = 0;
  EXPECT_EQ(on_h100(shape).seconds, 0);
  shape.rows = 10, shape.queries = 0;
  EXPECT_EQ(on_h100(shape).seconds, 0);
  shape.queries = 1, shape.k = 1000;  // more than there are rows
  EXPECT_TRUE(std::isfinite(on_h100(shape).seconds));
}

TEST(PredictOnDevice, RefusesWhatMakesNoSense) {
  const auto refuses = [](const std::function<void(DeviceShape&, DevicePeaks&)>& change,
                          const std::string& says) {
    DeviceShape shape = batch;
    DevicePeaks gpu = peaks_of(h100());
    change(shape, gpu);
    try {
      predict_on_device(shape, gpu, sixteen_cores());
      ADD_FAILURE() << "nothing was thrown, but: " << says;
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(error.what(), says);
    }
  };
  refuses([](auto& shape, auto&) { shape.rows = -1; }, "rows must not be negative, but is -1");
  refuses([](auto& shape, auto&) { shape.queries = -1; },
          "queries must not be negative, but is -1");
  refuses([](auto& shape, auto&) { shape.memory = -1; }, "memory must not be negative, but is -1");
  refuses([](auto& shape, auto&) { shape.dim = 0; }, "dim must be at least 1, but is 0");
  refuses([](auto& shape, auto&) { shape.k = 0; }, "k must be at least 1, but is 0");
  refuses([](auto&, auto& gpu) { gpu.bus_bytes_per_second = 0; },
          "device.bus_bytes_per_second must be positive, but is 0");
}

TEST(FasterPlace, BatchesOnTheDeviceAndSmallSearchesHere) {
  const DevicePeaks gpu = peaks_of(h100());
  const auto place = [&](const DeviceShape& shape) {
    return faster_place(shape, gpu, sixteen_cores());
  };
  EXPECT_TRUE(place(batch).device_is_faster);
  // One query of a base that is not there: the processor has read it before the bus has.
  DeviceShape one = batch;
  one.queries = 1;
  const FasterPlace of_one = place(one);
  EXPECT_FALSE(of_one.device_is_faster);
  EXPECT_LT(of_one.processor.seconds, of_one.device.upload_seconds);
  one.resident = true;
  EXPECT_TRUE(place(one).device_is_faster);
  // So few rows that launches take longer than the search.
  EXPECT_FALSE(
      place({.rows = 1000, .dim = 32, .queries = 1, .k = 1, .resident = true}).device_is_faster);
}

// A self-join scores each pair once where the lists of all rows have room, on GPUs with the shared
// memory for it; the scan then takes half of the time or more, and less than all of it.
TEST(PredictOnDevice, PairsOfASelfJoinAreScoredOnce) {
  const DeviceTraits traits{"H100", 9, 0, 132, 1.98e9, 3.35e12, 80e9};
  const DevicePeaks gpu = peaks_of(traits);
  const MachinePeaks processor = estimated_peaks(Isa::avx2, 16);
  for (const std::int64_t dim : {96, 128, 768})
    for (const bool whole : {false, true}) {
      DeviceShape shape{.rows = 500'000, .dim = dim, .queries = 500'000, .k = 11, .whole = whole};
      const DeviceCost twice = predict_on_device(shape, gpu, processor);
      EXPECT_FALSE(twice.pairs_once);
      shape.self_join = true;
      const DeviceCost once = predict_on_device(shape, gpu, processor);
      EXPECT_TRUE(once.pairs_once);
      EXPECT_EQ(once.multiply_adds, twice.multiply_adds / 2);
      EXPECT_GE(once.scan_seconds, 0.5 * twice.scan_seconds);
      EXPECT_LT(once.scan_seconds, 0.9 * twice.scan_seconds);
    }
  // The figures of docs/measurements/gpu.md.
  for (const bool whole : {false, true}) {
    DeviceShape all{.rows = 1'000'000, .dim = 128, .queries = 1'000'000, .k = 11, .whole = whole};
    all.resident = true;
    const DeviceCost twice = predict_on_device(all, gpu, processor);
    all.self_join = true;
    const DeviceCost once = predict_on_device(all, gpu, processor);
    EXPECT_NEAR(once.scan_seconds / twice.scan_seconds, 0.56, 0.01);
    EXPECT_NEAR(once.seconds / twice.seconds, whole ? 0.69 : 0.74, 0.01);
    EXPECT_NEAR(once.scan_seconds, 0.21, 0.01);
    EXPECT_NEAR(once.seconds, whole ? 0.35 : 0.42, 0.01);
  }
  DeviceShape shape{.rows = 500'000, .dim = 96, .queries = 500'000, .k = 11, .self_join = true};
  const auto once_on = [&](const DevicePeaks& device) {
    return predict_on_device(shape, device, processor).pairs_once;
  };
  EXPECT_TRUE(once_on(gpu));
  EXPECT_FALSE(once_on(peaks_of({"A100", 8, 0, 108, 1.41e9, 1.6e12, 80e9})));
  shape.rows = shape.queries = 10'000'000;
  EXPECT_FALSE(once_on(gpu));
  shape.rows = shape.queries = 500'000, shape.allowed = 400'000;
  EXPECT_FALSE(once_on(gpu));
}

// What the model says of the machine code is what scripts/machine_code has read.
TEST(DeviceCostModel, LoopsAreThoseOfTheMachineCode) {
  std::ifstream file("tests/cuda/machine_code.json");
  ASSERT_TRUE(file) << "tests/cuda/machine_code.json";
  const auto kept = nlohmann::json::parse(file);
  int compared = 0;
  const auto compare = [&](const ScanLoop& loop) {
    const auto& there =
        kept.at("kernels").at(loop.code == 80 ? "sm_80" : "sm_90a").at(loop.name).at("loop");
    const std::pair<double, const char*> numbers[] = {{loop.instructions, "instructions"},
                                                      {loop.tile_instructions, "tile_instructions"},
                                                      {loop.products, "products"},
                                                      {loop.wide_loads, "wide_loads"}};
    for (const auto& [number, name] : numbers) {
      const double is = there.at(name).get<double>();
      EXPECT_NEAR(number, is, 0.05 * is) << loop.name << " " << loop.code << ": " << name;
      ++compared;
    }
  };
  for (const ScanLoop& loop : scan_loops) {
    EXPECT_EQ(&scan_loop(loop.code, loop.queries, loop.keep, loop.whole), &loop);
    compare(loop);
  }
  for (const ScanLoop& loop : pair_loops) {
    EXPECT_EQ(&pair_loop(loop.code, loop.keep, loop.whole), &loop);
    compare(loop);
  }
  EXPECT_EQ(compared, 96 + 32);
}

}  // namespace
}  // namespace knear
