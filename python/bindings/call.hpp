// python/bindings/call.hpp -- calls of the library with the interpreter lock released, that Ctrl-C
// and a callback of Python's stop, and what a search says of itself.
#pragma once
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>

#include <nanobind/stl/shared_ptr.h>

#include "knear/core/stop_check.hpp"
#include "knear/index/options.hpp"
#include "python/bindings/arrays.hpp"

namespace knear::python {

// Checks now and then whether Python got a signal (Ctrl-C), in every stage of the work, and tells
// `callback(stage, share)`, if it is not None, how far those are that know: one that raises stops
// it. Only the calling thread may do so, and the other threads read its flag; it does its share of
// the work and so comes often enough.
class Interruptible {
 public:
  // Lives in the thread that does the work, around it.
  explicit Interruptible(nb::handle callback)
      : callback_(callback), signals_([this] { check_signals(); }) {}
  Progress progress() {
    return [this](std::string_view stage, double share) {
      const auto now = std::chrono::steady_clock::now();
      if (std::this_thread::get_id() != caller_ || stopped_) return !stopped_;
      stop_if_asked();
      if (!callback_.is_none() && now >= next_) {
        call([&] { callback_(nb::str(stage.data(), stage.size()), share); });
        next_ = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
      }
      return !stopped_;
    };
  }
  // Calls tell(), which holds the interpreter lock, in the calling thread; one that raises stops
  // the work.
  template <class Tell>
  void call(Tell tell) {
    if (stopped_) return;
    const nb::gil_scoped_acquire python;
    try {
      tell();
    } catch (nb::python_error& error) {
      error.restore();
      stopped_ = true;
    }
  }
  bool stopped() const { return stopped_; }

 private:
  // What a signal's handler raises stays pending in this thread, as what the callback does.
  void check_signals() {
    const nb::gil_scoped_acquire python;
    if (!stopped_ && PyErr_CheckSignals() != 0) stopped_ = true;
    if (stopped_) throw Cancelled("stopped by Python");
  }

  const nb::handle callback_;  // held by the caller of the binding
  const std::thread::id caller_ = std::this_thread::get_id();
  std::chrono::steady_clock::time_point next_ = std::chrono::steady_clock::now();
  std::atomic<bool> stopped_ = false;
  const StopCheck signals_;  // last: it uses the others
};

// Runs work(progress), or work(interruptible), with the interpreter lock released.
template <class Work>
void without_interpreter(nb::handle callback, Work work) {
  Interruptible interruptible(callback);
  try {
    const nb::gil_scoped_release released;
    if constexpr (std::is_invocable_v<Work, Interruptible&>)
      work(interruptible);
    else
      work(interruptible.progress());
  } catch (const Cancelled&) {
    if (interruptible.stopped()) throw nb::python_error();  // takes the pending exception
    throw;
  }
  if (interruptible.stopped()) throw nb::python_error();  // stopped too late to matter
}
template <class Work>
void without_interpreter(Work work) {
  without_interpreter(nb::none(), std::move(work));
}

// How a search is done, whatever is searched. Python makes one of a call's arguments and keeps it
// for the next call with the same.
struct SearchSettings {
  int threads;
  std::int64_t memory;
  FirstPass first_pass;
  TuningOverrides tuning;
  SearchMethod method;
  std::string device;

  // KnnOptions or knear::SearchOptions of these, for the rows that `filter` allows.
  template <class Options, class Filter>
  Options options(Filter filter) const {
    const auto own_method = [&] {
      if constexpr (std::is_same_v<Options, SearchOptions>)
        return method;
      else
        return detail::method_of_scan(method);
    };
    return {.threads = threads,
            .memory = memory,
            .first_pass = first_pass,
            .filter = std::move(filter),
            .tuning = tuning,
            .method = own_method(),
            .device = device};
  }
};

// What a search says of itself; Python makes a dict of it when someone asks.
using SearchReport = std::shared_ptr<const KnnReport>;

// `out` is None, or a tuple (distances, ids) of contiguous arrays that take the answer: to make new
// ones of the library's memory takes longer than to copy a few numbers.
inline nb::object result_of(Neighbors near, SearchReport report, const nb::object& out) {
  if (out.is_none())
    return nb::make_tuple(array_of(std::move(near.distances)), array_of(std::move(near.ids)),
                          std::move(report));
  // By the buffer protocol, which is what takes least time for a few numbers.
  const auto copy = []<class T>(const Matrix<T>& from, nb::handle to) {
    Py_buffer memory;
    if (PyObject_GetBuffer(to.ptr(), &memory, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS) != 0)
      throw nb::python_error();
    const auto size = static_cast<Py_ssize_t>(from.rows() * from.cols() * sizeof(T));
    const Py_ssize_t length = memory.len;
    if (length == size && size > 0) std::memcpy(memory.buf, from.data(), std::size_t(size));
    PyBuffer_Release(&memory);
    if (length != size)
      throw ShapeMismatch("out has {} bytes, but the answer has {}", length, size);
  };
  const nb::object distances = out[0], ids = out[1];
  copy(near.distances, distances);
  copy(near.ids, ids);
  return nb::make_tuple(distances, ids, std::move(report));
}

inline nb::object result_of(RangeNeighbors near, SearchReport report) {
  return nb::make_tuple(array_of(std::move(near.begin)), array_of(std::move(near.distances)),
                        array_of(std::move(near.ids)), std::move(report));
}

// Runs search(progress, report) with the interpreter lock released; returns its result and report.
template <class Search>
auto found_by(nb::handle callback, Search search) {
  auto report = std::make_shared<KnnReport>();
  std::optional<decltype(search(Progress(), report.get()))> near;
  without_interpreter(callback,
                      [&](Progress progress) { near = search(std::move(progress), report.get()); });
  return std::pair(std::move(*near), SearchReport(std::move(report)));
}

// The same, but the result's arrays and its report: (distances, ids, report), or (begin, distances,
// ids, report) of a range search. `out`: as of result_of().
template <class Search, class... Out>
nb::object run(nb::handle callback, Search search, const Out&... out) {
  auto [near, report] = found_by(callback, std::move(search));
  return result_of(std::move(near), std::move(report), out...);
}

}  // namespace knear::python
