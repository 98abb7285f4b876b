#include "knear/index/sections/sections.hpp"

namespace knear::detail {

RowSet load_live(Sections& in, const std::string& name, std::int64_t rows) {
  RowSet out(rows);
  if (!in.has(name)) return out;
  const auto words = in.array<std::uint64_t>(name, (rows + 63) / 64);
  for (std::int64_t row = 0; row < rows; ++row)
    if (!(words[row / 64] >> (row % 64) & 1)) out.remove(row);
  return out;
}

void add_live(io::ArchiveWriter& writer, const std::string& name, const RowSet& live) {
  if (live.all()) return;
  std::vector<std::uint64_t> words((live.rows() + 63) / 64, 0);
  for (std::int64_t row = 0; row < live.rows(); ++row)
    words[row / 64] |= std::uint64_t{live.contains(row)} << (row % 64);
  writer.add_copy(name, words.data(), words.size() * 8);
}

}  // namespace knear::detail
