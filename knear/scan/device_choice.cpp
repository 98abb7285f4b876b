#include "knear/scan/device_choice.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <charconv>

#include "knear/core/error.hpp"

#ifdef KNEAR_CUDA
#include "knear/cuda/device.hpp"
#endif

namespace knear::detail {
namespace {

constexpr std::string_view prefix = "cuda:";

// Reads numbers with commas between them; empty where there is anything else.
std::vector<int> numbers_in(std::string_view list) {
  std::vector<int> out;
  while (true) {
    const std::string_view number = list.substr(0, list.find(','));
    int value = -1;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    if (error != std::errc() || end != number.data() + number.size() || value < 0) return {};
    out.push_back(value);
    if (number.size() == list.size()) return out;
    list.remove_prefix(number.size() + 1);
  }
}

#ifdef KNEAR_CUDA
class GpusOfCuda final : public Gpus {
 public:
  int count() const override { return cuda::device_count(); }
  void check(int index) const override { cuda::check_device(index); }
  DeviceTraits traits(int index) const override { return traits_of_cuda(index); }
};
#endif

std::atomic<const Gpus*> other_gpus = nullptr;

}  // namespace

Devices parse_devices(std::string_view text) {
  if (text == "cpu") return {};
  if (text == "cuda") return {{0}};
  Devices out;
  if (text.starts_with(prefix)) out.gpus = numbers_in(text.substr(prefix.size()));
  if (text == "auto")
    throw InvalidArgument(
        "device is auto, which chooses for exact searches of rows that are given in memory alone");
  if (out.gpus.empty())
    throw InvalidArgument(
        "device must be cpu, cuda or cuda:N, or cuda:N,N,... of several GPUs, but is '{}'", text);
  for (auto gpu = out.gpus.begin(); gpu != out.gpus.end(); ++gpu)
    if (std::find(out.gpus.begin(), gpu, *gpu) != gpu)
      throw InvalidArgument("device is '{}', which names GPU {} twice", text, *gpu);
  return out;
}

std::string words_of(const Devices& devices) {
  if (!devices.cuda()) return "cpu";
  return fmt::format("{}{}", prefix, fmt::join(devices.gpus, ","));
}

Device parse_device(std::string_view text) {
  if (text == "cpu") return {};
  if (text == "cuda") return {true, 0};
  if (text.starts_with(prefix))
    if (const std::vector<int> gpus = numbers_in(text.substr(prefix.size())); gpus.size() == 1)
      return {true, gpus.front()};
  throw InvalidArgument("device must be cpu, cuda or cuda:N, but is '{}'", text);
}

Devices present_devices_of(std::string_view text) {
  Devices devices = parse_devices(text);
  if (!devices.cuda()) return devices;
  const Gpus* const gpus = present_gpus();
  if (!gpus) throw DeviceUnavailable("device is {}, but this knear was built without CUDA", text);
  for (const int gpu : devices.gpus) gpus->check(gpu);
  return devices;
}

Device present_device_of(std::string_view text) {
  const Device device = parse_device(text);
  present_devices_of(text);
  return device;
}

const Gpus* present_gpus() {
  if (const Gpus* const others = other_gpus) return others;
#ifdef KNEAR_CUDA
  static const GpusOfCuda here;
  return &here;
#else
  return nullptr;
#endif
}

void use_gpus(const Gpus* others) { other_gpus = others; }

#ifdef KNEAR_CUDA
DeviceTraits traits_of_cuda(int index) {
  const cuda::DeviceInfo info = cuda::device_info(index);
  return {.name = info.name,
          .major = info.major,
          .minor = info.minor,
          .multiprocessors = info.multiprocessors,
          .cycles_per_second = info.cycles_per_second,
          .memory_bytes_per_second = info.memory_bytes_per_second,
          .memory_bytes = double(info.memory_bytes)};
}
#endif

std::string device_of_process(std::string_view text, int process, int devices) {
  if (text != "cuda" || devices == 0) return std::string(text);
  return fmt::format("cuda:{}", process % devices);
}

std::string device_of_process(std::string_view text, int process) {
  const bool cuda = present_device_of(text).cuda;
  return device_of_process(text, process, cuda ? present_gpus()->count() : 0);
}

}  // namespace knear::detail
