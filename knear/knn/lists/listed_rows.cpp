#include "knear/knn/lists/listed_rows.hpp"

#include <algorithm>
#include <utility>

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

void ListedRows::set_second(std::shared_ptr<ListedRows> second) {
  second_ = std::move(second);
  first_lists_ = list_of();
  if (numbers_) both_ = RowLists::twice(*numbers_, *second_->numbers_);
}

std::int64_t ListedRows::bytes(PreparedRows& rows) const {
  const auto bytes_of = [](const RowLists& lists) {
    return static_cast<std::int64_t>(lists.begin.capacity() * sizeof lists.begin[0] +
                                     lists.rows.capacity() * sizeof lists.rows[0]);
  };
  std::int64_t sum = 0;
  if (second_)
    sum += second_->bytes(rows) +
           static_cast<std::int64_t>(first_lists_.capacity() * sizeof first_lists_[0]);
  if (both_) sum += bytes_of(*both_);
  if (numbers_) return sum + bytes_of(*numbers_);
  const auto int8_now = int8();
  for (const auto& [pass, form] :
       {std::pair(FirstPass::integer, integer_), std::pair(FirstPass::int8, int8_now)})
    if (form)
      sum += form->bytes() -
             (rows.kept(pass).get() == &form->packed ? form->packed.bytes() : std::int64_t{0});
  return sum;
}

}  // namespace knear::detail
