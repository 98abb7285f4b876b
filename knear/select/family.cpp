#include "knear/select/family.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "knear/select/sort/bitonic_partial_sort.hpp"
#include "knear/select/sort/compressed_batch.hpp"
#include "knear/select/sort/radix_sort.hpp"
#include "knear/select/top_k.hpp"
#include "knear/select/warp/warp_select.hpp"
#include "knear/simt/host_warp.hpp"

namespace knear::detail {
namespace {

class ByRadix final : public FamilyMember {
 public:
  std::int64_t select(const float* row, std::int64_t count, std::int64_t k, float* values,
                      std::int32_t* places) override {
    return radix_(row, count, k, values, places);
  }

 private:
  RadixSelect radix_;
};

class ByBitonicSort final : public FamilyMember {
 public:
  std::int64_t select(const float* row, std::int64_t count, std::int64_t k, float* values,
                      std::int32_t* places) override {
    return sort_(row, count, k, values, places);
  }

 private:
  BitonicPartialSort<float, std::int32_t> sort_;
};

// TH-heap in full: an evenly spaced sample of 8 k values, compression, min-max heap.
class ByThresholdHeap final : public FamilyMember {
 public:
  std::int64_t select(const float* row, std::int64_t count, std::int64_t k, float* values,
                      std::int32_t* places) override {
    sample_.clear();
    const std::int64_t samples = std::min(count, 8 * k);
    for (std::int64_t i = 0; i < samples; ++i)
      sample_.push_back(row[static_cast<std::int64_t>(
          static_cast<double>(i) * static_cast<double>(count) / static_cast<double>(samples))]);
    const float bound = threshold_of_sample(sample_.data(), samples, k, heap_of_values_);
    kept_.resize(count), kept_places_.resize(kept_.size());
    const auto kept = static_cast<std::int64_t>(append_not_above(
        row, kept_.size(), bound, std::int32_t{0}, kept_.data(), kept_places_.data()));
    return partial_heap_sort(kept_.data(), kept_places_.data(), kept, k, heap_, values, places);
  }

 private:
  std::vector<float> sample_, heap_of_values_, kept_;
  std::vector<std::int32_t> kept_places_;
  std::vector<std::pair<float, std::int32_t>> heap_;
};

// The selection of the scan: a sorted list, or for large k a buffer that is cut.
class ByList final : public FamilyMember {
 public:
  std::int64_t select(const float* row, std::int64_t count, std::int64_t k, float* values,
                      std::int32_t* places) override {
    TopK best(k);
    for (std::int64_t i = 0; i < count; ++i)
      if (best.admits(row[i], i) && row[i] == row[i]) best.push(row[i], i);
    best.finish();
    const auto found = std::ssize(best.items());
    for (std::int64_t i = 0; i < found; ++i) {
      const KeyedId& item = best.items()[i];
      places[i] = static_cast<std::int32_t>(item.second), values[i] = row[item.second];
    }
    return found;
  }
};

// WarpSelect on the emulated warp: what a GPU would do, step by step, hundreds of times slower.
// Radix selection where k is too large for its registers.
class ByWarpSelect final : public FamilyMember {
 public:
  std::int64_t select(const float* row, std::int64_t count, std::int64_t k, float* values,
                      std::int32_t* places) override {
    if (k > warp_select_max_k) return radix_.select(row, count, k, values, places);
    with_warp_select_shape(static_cast<int>(k), [&](auto shape) {
      WarpSelect<HostWarp, int, shape.R, shape.T> select(HostWarp(), static_cast<int>(k));
      select.add_row(row, static_cast<int>(count));
      select.store(values, places);
    });
    return std::find(places, places + k, -1) - places;
  }

 private:
  ByRadix radix_;
};

}  // namespace

std::unique_ptr<FamilyMember> family_member(SelectMethod method) {
  switch (method) {
    case SelectMethod::radix:
      return std::make_unique<ByRadix>();
    case SelectMethod::bitonic:
      return std::make_unique<ByBitonicSort>();
    case SelectMethod::threshold_heap:
      return std::make_unique<ByThresholdHeap>();
    case SelectMethod::list:
      return std::make_unique<ByList>();
    case SelectMethod::warp_select:
      return std::make_unique<ByWarpSelect>();
    case SelectMethod::automatic:
    case SelectMethod::threshold:
    case SelectMethod::partition:
      break;
  }
  return nullptr;
}

}  // namespace knear::detail
