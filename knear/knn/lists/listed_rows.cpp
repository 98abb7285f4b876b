#include "knear/knn/lists/listed_rows.hpp"

#include <algorithm>

#include "knear/knn/search/search_request.hpp"

namespace knear::detail {

bool packs_lists(std::int64_t rows, std::int64_t lists) {
  return rows >= std::max(least_packed_rows, 4 * lists);
}

std::int64_t ListedRows::lists() const {
  return numbers_ ? numbers_->lists() : first_form()->lists();
}

std::shared_ptr<const PackedLists> ListedRows::packed(bool integer, PreparedRows& rows, int threads,
                                                      const Progress& progress,
                                                      double& prepare_seconds) {
  if (integer && integer_) return integer_;
  if (auto made = int8()) return made;
  std::lock_guard one(making_);
  if (auto made = int8()) return made;
  const Stopwatch time;
  auto made = std::make_shared<const PackedLists>(
      PackedLists::certified(rows.base, integer_->list_of(), lists(), format_int8,
                             rows.coding_space(), threads, progress));
  prepare_seconds += time.seconds();
  std::lock_guard lock(mutex_);
  return int8_ = std::move(made);
}

std::vector<std::uint32_t> ListedRows::list_of() const {
  if (!numbers_) return first_form()->list_of();
  std::vector<std::uint32_t> out(numbers_->rows.size());
  for (std::int64_t l = 0; l < lists(); ++l)
    for (const std::uint32_t row : numbers_->rows_of(l)) out[row] = static_cast<std::uint32_t>(l);
  return out;
}

std::int64_t ListedRows::bytes(PreparedRows& rows) const {
  if (numbers_)
    return static_cast<std::int64_t>(numbers_->begin.capacity() * sizeof numbers_->begin[0] +
                                     numbers_->rows.capacity() * sizeof numbers_->rows[0]);
  std::int64_t sum = 0;
  const auto int8_now = int8();
  for (const auto& [pass, form] :
       {std::pair(FirstPass::integer, integer_), std::pair(FirstPass::int8, int8_now)})
    if (form)
      sum += form->bytes() -
             (rows.kept(pass).get() == &form->packed ? form->packed.bytes() : std::int64_t{0});
  return sum;
}

}  // namespace knear::detail
