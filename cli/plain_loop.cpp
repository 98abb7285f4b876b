#include "cli/plain_loop.hpp"

#include <algorithm>
#include <chrono>
#include <type_traits>
#include <utility>
#include <vector>

#include "cli/interrupt.hpp"
#include "knear/core/element_type.hpp"
#include "knear/core/neighbors.hpp"
#include "knear/core/seconds.hpp"
#include "knear/core/threads.hpp"

namespace knear::cli {
namespace {

template <class T>
float as_float(T value) {
  if constexpr (std::is_arithmetic_v<T>)
    return static_cast<float>(value);
  else
    return static_cast<float>(to_double(value));
}

// Returns the rows nearest to a query and their distances, as a heap with the farthest first.
std::vector<std::pair<float, Id>> nearest(const std::vector<float>& query, AnyMatrixView base,
                                          std::int64_t k) {
  std::vector<std::pair<float, Id>> heap;
  visit(base, [&](auto typed) {
    for (std::int64_t row = 0; row < typed.rows(); ++row) {
      const auto* values = typed.row(row);
      float sum = 0;
      for (std::size_t i = 0; i < query.size(); ++i) {
        const float difference = query[i] - as_float(values[i]);
        sum += difference * difference;
      }
      if (std::ssize(heap) == k && sum >= heap.front().first) continue;
      if (std::ssize(heap) == k) std::pop_heap(heap.begin(), heap.end()), heap.pop_back();
      heap.emplace_back(sum, row);
      std::push_heap(heap.begin(), heap.end());
    }
  });
  return heap;
}

}  // namespace

PlainLoop plain_loop(AnyMatrixView queries, AnyMatrixView base, std::int64_t k, int threads) {
  std::vector<std::size_t> found(queries.rows());
  const auto search_one = [&](std::int64_t q) {
    std::vector<float> query(queries.cols());
    visit(queries, [&](auto typed) {
      for (std::size_t i = 0; i < query.size(); ++i) query[i] = as_float(typed.row(q)[i]);
    });
    found[q] = nearest(query, base, k).size();
  };
  PlainLoop loop;
  const auto start = std::chrono::steady_clock::now();
  while (loop.queries < queries.rows() && loop.seconds < 1) {
    check_interrupt();
    const std::int64_t begin = loop.queries;
    loop.queries = std::min<std::int64_t>(begin + threads, queries.rows());
    parallel_for(threads, loop.queries - begin, [&](std::int64_t i) { search_one(begin + i); });
    loop.seconds = detail::seconds_since(start);
  }
  return loop;
}

}  // namespace knear::cli
