// knear/knn/rows/device_copies.hpp -- what devices keep of something that does not change.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace knear::detail {

// By name, which says the device too; the type is the maker's. Any number of threads.
class DeviceCopies {
 public:
  // nullptr: none is kept.
  std::shared_ptr<void> kept(const std::string& name) const {
    const std::lock_guard lock(mutex_);
    const auto at = forms_.find(name);
    return at == forms_.end() ? nullptr : at->second.made;
  }
  // Made by the first who asks, while others wait who want the same: several devices get theirs at
  // the same time. Kept unless make() throws.
  std::shared_ptr<void> form(const std::string& name,
                             const std::function<std::shared_ptr<void>()>& make) {
    std::unique_lock lock(mutex_);
    Form& form = forms_[name];  // which stays where it is
    lock.unlock();
    const std::lock_guard making(form.making);
    if (auto there = kept(name)) return there;
    std::shared_ptr<void> made = make();
    lock.lock();
    return form.made = std::move(made);
  }

 private:
  struct Form {
    std::mutex making;
    std::shared_ptr<void> made;  // mutex_ guards it
  };
  mutable std::mutex mutex_;
  std::map<std::string, Form> forms_;
};

}  // namespace knear::detail
