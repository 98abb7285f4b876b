// cli/serve/worker.hpp -- calls that threads of their own make, so that the event loop does not.
//
//   Worker worker;                 // one thread: calls are made in their order
//   worker.push([] { ... });
//   worker.finish();               // once all calls have been made
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace knear::cli {

class Worker {
 public:
  explicit Worker(int threads = 1);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  void push(std::function<void()> call);
  // Returns once all calls have been made; later ones are dropped.
  void finish();

 private:
  void run();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> calls_;
  bool closed_ = false;
  std::vector<std::thread> threads_;  // last: they use the others
};

}  // namespace knear::cli
