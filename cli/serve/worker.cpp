#include "cli/serve/worker.hpp"

#include <exception>
#include <utility>

#include "cli/output.hpp"

namespace knear::cli {

Worker::Worker(int threads) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
}

Worker::~Worker() { finish(); }

void Worker::push(std::function<void()> call) {
  {
    std::lock_guard lock(mutex_);
    if (closed_) return;
    calls_.push_back(std::move(call));
  }
  changed_.notify_one();
}

void Worker::finish() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_)
    if (thread.joinable()) thread.join();
}

void Worker::run() {
  for (;;) {
    std::function<void()> call;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return closed_ || !calls_.empty(); });
      if (calls_.empty()) return;
      call = std::move(calls_.front());
      calls_.pop_front();
    }
    try {
      call();
    } catch (const std::exception& error) {  // of answering; memory is short
      warn("a request was not answered: {}", error.what());
    }
  }
}

}  // namespace knear::cli
