// TopK against sorting everything.
#include "knear/select/top_k.hpp"

#include <gtest/gtest.h>

#include "knear/core/random.hpp"

namespace knear {
namespace {

TEST(TopK, EqualsSortingEverything) {
  for (std::int64_t k : {1, 2, 10, 100, 1000})
    for (std::int64_t n : {0, 1, 9, 10, 11, 500, 5000})
      for (std::uint64_t values : {3, 1000000}) {  // many ties; hardly any
        Random random(k * n + values);
        TopK best(k);
        std::vector<TopK::Item> all;
        for (std::int64_t i = 0; i < n; ++i) {
          const TopK::Item item(static_cast<double>(random.below(values)), n - i);
          all.push_back(item);
          if (i % 2 || best.admits(item.first, item.second)) best.push(item.first, item.second);
          ASSERT_LE(best.items().size(), static_cast<std::size_t>(2 * k + 24));
        }
        best.finish();
        std::sort(all.begin(), all.end());
        all.resize(std::min<std::size_t>(all.size(), k));
        EXPECT_EQ(best.items(), all) << k << ' ' << n;
      }
}

}  // namespace
}  // namespace knear
