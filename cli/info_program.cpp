#include "cli/info_program.hpp"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "cli/output.hpp"
#include "knear/core/cpu.hpp"
#include "knear/core/json.hpp"
#include "knear/core/version.hpp"
#ifdef KNEAR_CUDA_CODE
#include "knear/cuda/device.hpp"
#endif

namespace knear::cli {
namespace {

struct Gpu {
  int index = 0;
  std::string name, compute_capability;
  std::size_t memory_bytes = 0, free_bytes = 0;
};

struct Gpus {
  bool built = false;                   // with CUDA
  std::vector<std::string> codes = {};  // "sm_80" is machine code, "compute_80" PTX
  std::vector<Gpu> found = {};
  std::string why_none;
};

#ifdef KNEAR_CUDA_CODE
Gpus look_for_gpus() {
  Gpus out;
  out.built = true;
  for (std::string_view rest = KNEAR_CUDA_CODE; !rest.empty();) {
    const std::size_t end = std::min(rest.find(','), rest.size());
    out.codes.emplace_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  for (int i = 0; i < cuda::device_count(); ++i) {
    const cuda::DeviceInfo info = cuda::device_info(i);
    out.found.push_back({i, info.name, fmt::format("{}.{}", info.major, info.minor),
                         info.memory_bytes, info.free_bytes});
  }
  if (out.found.empty()) out.why_none = cuda::why_no_device();
  return out;
}
#else
Gpus look_for_gpus() {
  return {.why_none = "this knear was built without CUDA (KNEAR_CUDA=ON builds it)"};
}
#endif

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : ", ") + word;
  return out;
}

void print_json(const std::string& used, const std::vector<std::string>& isas, const Gpus& gpus) {
  nlohmann::ordered_json devices = nlohmann::ordered_json::array();
  for (const Gpu& gpu : gpus.found)
    devices.push_back({{"device", fmt::format("cuda:{}", gpu.index)},
                       {"name", gpu.name},
                       {"compute_capability", gpu.compute_capability},
                       {"memory_bytes", gpu.memory_bytes},
                       {"free_bytes", gpu.free_bytes}});
  nlohmann::ordered_json out = {
      {"version", KNEAR_VERSION},         {"isa", used},       {"isas", isas}, {"cuda", gpus.built},
      {"cuda_architectures", gpus.codes}, {"devices", devices}};
  if (gpus.found.empty()) out["no_device"] = gpus.why_none;
  print("{}\n", out.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

}  // namespace

void describe_program(bool json) {
  std::vector<std::string> isas;
  for (const Isa isa : built_isas()) isas.emplace_back(name_of(isa));
  const std::string used(name_of(active_isa()));
  const Gpus gpus = look_for_gpus();
  if (json) return print_json(used, isas, gpus);

  print("knear {}\n", KNEAR_VERSION);
  print("  processor  {}; code for {}\n", used, joined(isas));
  print("  cuda       {}\n", gpus.built ? "code for " + joined(gpus.codes) : "not built");
  for (const Gpu& gpu : gpus.found)
    print("  cuda:{:<5} {}, {} of memory ({} free), compute capability {}\n", gpu.index, gpu.name,
          readable_bytes(double(gpu.memory_bytes)), readable_bytes(double(gpu.free_bytes)),
          gpu.compute_capability);
  if (gpus.found.empty()) print("  no GPU     {}\n", gpus.why_none);
}

}  // namespace knear::cli
