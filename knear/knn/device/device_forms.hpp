// knear/knn/device/device_forms.hpp -- what devices keep of something that does not change.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace knear::detail {

// By name; the type is the maker's. Any number of threads.
class DeviceForms {
 public:
  // nullptr: none is kept.
  std::shared_ptr<void> kept(const std::string& name) {
    const std::lock_guard lock(mutex_);
    const auto at = forms_.find(name);
    return at == forms_.end() ? nullptr : at->second;
  }
  // Made by the first who asks, while others wait; kept unless make() throws.
  std::shared_ptr<void> form(const std::string& name,
                             const std::function<std::shared_ptr<void>()>& make) {
    const std::lock_guard making(making_);
    if (auto there = kept(name)) return there;
    std::shared_ptr<void> made = make();
    const std::lock_guard lock(mutex_);
    return forms_[name] = std::move(made);
  }

 private:
  std::mutex making_, mutex_;
  std::map<std::string, std::shared_ptr<void>> forms_;
};

}  // namespace knear::detail
