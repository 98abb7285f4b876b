// knear/cluster/divided_rows.hpp -- the rows that are clustered: block by block, and with a part of
// them in each of several processes.
//
//   DividedRows rows(own_blocks, peers);          // every process the same, each with its own part
//   each_block(rows.own, [&](std::int64_t begin, AnyMatrixView block) { ... });
//   const std::int64_t all = rows.sum(own_count);
//
// Numbers of rows are those among own rows, unless said otherwise.
#pragma once
#include <cstdint>
#include <functional>
#include <numeric>
#include <span>
#include <vector>

#include "knear/cluster/k_means.hpp"
#include "knear/core/error.hpp"
#include "knear/core/matrix.hpp"
#include "knear/core/peers.hpp"

namespace knear::detail {

inline constexpr std::int64_t rows_in_block = 1 << 17;

// The rows of a matrix.
RowBlocks blocks_of(AnyMatrixView rows);

// Calls take(begin, block) for each block, in parts of at most `most` rows; throws ShapeMismatch
// unless they are what was said.
template <class Take>
void each_block(const RowBlocks& rows, Take take, std::int64_t most = rows_in_block) {
  std::int64_t begin = 0;
  rows.read([&](AnyMatrixView block) {
    if (block.cols() != rows.dim)
      throw ShapeMismatch("rows have {} columns, but a block has {}", rows.dim, block.cols());
    if (block.rows() > rows.rows - begin)
      throw ShapeMismatch("rows are {}, but blocks hold more", rows.rows);
    for (std::int64_t i = 0; i < block.rows(); i += most) {
      const std::int64_t end = std::min(block.rows(), i + most);
      take(begin + i, block.rows(i, end));
    }
    begin += block.rows();
  });
  if (begin != rows.rows) throw ShapeMismatch("rows are {}, but blocks hold {}", rows.rows, begin);
}

// The rows of this process and, if there are others, where they stand among those of all.
struct DividedRows {
  const RowBlocks& own;
  Peers* peers = nullptr;
  DeviceSums* between_devices = nullptr;
  std::int64_t first = 0, total = own.rows;  // number of the first own row, and rows of all

  explicit DividedRows(const RowBlocks& rows) : own(rows) {}
  DividedRows(const RowBlocks& rows, Peers& others, DeviceSums* sums = nullptr)
      : own(rows), peers(&others), between_devices(sums) {
    const std::vector<std::int64_t> counts = numbers_of_all(rows.rows);
    const auto before = counts.begin() + others.rank();
    first = std::accumulate(counts.begin(), before, std::int64_t{0});
    total = std::accumulate(before, counts.end(), first);
  }

  // Own work: what it throws, it throws in all processes.
  template <class F>
  void work(F f) const {
    peers ? together(*peers, f) : f();
  }
  // A number of each process, in the order of ranks.
  std::vector<std::int64_t> numbers_of_all(std::int64_t own_number) const {
    if (!peers) return {own_number};
    std::vector<std::int64_t> out(peers->size());
    out[peers->rank()] = own_number;
    peers->sum(out);
    return out;
  }
  std::int64_t sum(std::int64_t number) const {
    if (peers) peers->sum({&number, 1});
    return number;
  }
};

// Copies of own rows, with these ascending numbers among own ones.
AnyMatrix own_rows_at(const RowBlocks& rows, std::span<const std::int64_t> which);

// Those of `which`, ascending, that are among the `count` from `first` on, less `first`.
std::vector<std::int64_t> part_of(std::span<const std::int64_t> which, std::int64_t first,
                                  std::int64_t count);

// What all processes have chosen of their own rows, one after the other. Throws InvalidArgument
// where they are of different types.
AnyMatrix rows_of_all(const DividedRows& rows, std::span<const std::int64_t> own_numbers);

// Weights that all processes have chosen, one after the other.
std::vector<double> weights_of_all(const DividedRows& rows, std::span<const float> own);

}  // namespace knear::detail
