// knear/knn/device/device_maker.hpp -- what searches by GPUs of one kind.
//
// Searches open devices by this interface, so that they depend on no kind: CUDA's where knear has
// code for it, or emulated ones of a test (tests/knn/device/emulated_gpus.hpp).
#pragma once
#include <cstdint>
#include <memory>

#include "knear/knn/device/device_code_search.hpp"
#include "knear/knn/lists/probed_search.hpp"
#include "knear/knn/search/device_engine.hpp"
#include "knear/scan/device_choice.hpp"

namespace knear::detail {

class DeviceMaker : public Gpus {
 public:
  // Of one GPU that is there. memory: bytes of it that a search may take; 0: nothing bounds them.
  virtual std::unique_ptr<DeviceEngine> engine(int gpu, std::int64_t memory) const = 0;
  // The request stays as long as the search. more_bytes: as ListSearch.
  virtual std::unique_ptr<ProbedSearch> list_search(int gpu, const SearchRequest& request,
                                                    std::int64_t more_bytes) const = 0;
  virtual std::unique_ptr<DeviceCodeSearch> device_code_search(int gpu) const = 0;
};

}  // namespace knear::detail
