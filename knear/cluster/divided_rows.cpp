#include "knear/cluster/divided_rows.hpp"

#include <algorithm>
#include <cstring>

#include "knear/core/stop_check.hpp"

namespace knear::detail {

RowBlocks blocks_of(AnyMatrixView rows) {
  return {rows.rows(), rows.cols(), [rows](const std::function<void(AnyMatrixView)>& take) {
            if (rows.rows() > 0) take(rows);
          }};
}

AnyMatrix own_rows_at(const RowBlocks& rows, std::span<const std::int64_t> which) {
  AnyMatrix out;
  std::size_t done = 0;
  each_block(rows, [&](std::int64_t begin, AnyMatrixView block) {
    if (out.rows() == 0) out = AnyMatrix(block.type(), std::ssize(which), rows.dim);
    if (out.type() != block.type())
      throw InvalidArgument("rows are of type {}, but a block is of type {}", name_of(out.type()),
                            name_of(block.type()));
    for (; done < which.size() && which[done] < begin + block.rows(); ++done) {
      if (done % 256 == 0) stop_if_asked();
      std::memcpy(out.row(static_cast<std::int64_t>(done)), block.row(which[done] - begin),
                  rows.dim * size_of(block.type()));
    }
  });
  return out;
}

std::vector<std::int64_t> part_of(std::span<const std::int64_t> which, std::int64_t first,
                                  std::int64_t count) {
  const auto begin = std::lower_bound(which.begin(), which.end(), first),
             end = std::lower_bound(begin, which.end(), first + count);
  std::vector<std::int64_t> out(begin, end);
  for (std::int64_t& row : out) row -= first;
  return out;
}

AnyMatrix rows_of_all(const DividedRows& rows, std::span<const std::int64_t> own_numbers) {
  AnyMatrix own;
  rows.work([&] { own = own_rows_at(rows.own, own_numbers); });
  if (!rows.peers) return own;
  // The type goes before the rows; who has none has no type.
  std::vector<std::byte> bytes;
  if (own.rows() > 0) {
    const AnyMatrixView view = own;
    bytes.push_back(static_cast<std::byte>(own.type()));
    const auto* data = static_cast<const std::byte*>(own.row(0));
    bytes.insert(bytes.end(), data, data + view.bytes());
  }
  const auto all = rows.peers->gather(bytes);
  std::int64_t count = 0;
  std::byte type{};
  for (const auto& part : all) {
    if (part.empty()) continue;
    if (count > 0 && part[0] != type)
      throw InvalidArgument("rows are of type {}, but those of another process of type {}",
                            name_of(static_cast<ElementType>(type)),
                            name_of(static_cast<ElementType>(part[0])));
    type = part[0];
    count += (std::ssize(part) - 1) / (rows.own.dim * size_of(static_cast<ElementType>(type)));
  }
  AnyMatrix out(static_cast<ElementType>(type), count, rows.own.dim);
  std::int64_t row = 0;
  for (const auto& part : all) {
    if (part.empty()) continue;
    std::memcpy(out.row(row), part.data() + 1, part.size() - 1);
    row += (std::ssize(part) - 1) / (rows.own.dim * size_of(out.type()));
  }
  return out;
}

std::vector<double> weights_of_all(const DividedRows& rows, std::span<const float> own) {
  if (!rows.peers) return {own.begin(), own.end()};
  std::vector<double> out;
  for (const auto& part : rows.peers->gather(std::as_bytes(own))) {
    std::vector<float> some(part.size() / sizeof(float));
    if (!some.empty()) std::memcpy(some.data(), part.data(), part.size());
    out.insert(out.end(), some.begin(), some.end());
  }
  return out;
}

}  // namespace knear::detail
