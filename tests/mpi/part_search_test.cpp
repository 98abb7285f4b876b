// Searches of a base in parts: the answer of one process, whoever has which rows. Processes are
// threads.
#include "knear/mpi/part_search.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "knear/core/error.hpp"
#include "tests/core/peer_threads.hpp"
#include "tests/knn/knn_cases.hpp"

namespace knear {
namespace {

using test::as_peers;
using test::make;

// Few values, so that there are ties between rows of different processes.
AnyMatrix small_numbers(std::int64_t rows, std::int64_t dim, std::uint64_t seed) {
  Random random(seed);
  return make(ElementType::f32, rows, dim,
              [&](std::int64_t, std::int64_t) { return double(random.below(4)); });
}

// Uneven parts, of which one is empty.
std::int64_t begin_of(std::int64_t rows, int rank, int size) {
  return rank == 1 ? 0 : rows * rank * rank / (size * size);
}

TEST(PartSearch, HasTheAnswerOfOneProcess) {
  const AnyMatrix base = small_numbers(700, 5, 1), queries = small_numbers(33, 5, 2);
  std::vector<Id> allowed;
  for (Id id = 0; id < 700; id += 9) allowed.push_back(id);
  for (const Metric metric : test::metrics)
    for (const bool filtered : {false, true})
      for (const std::int64_t k : {1, 10, 800}) {
        KnnOptions options{.metric = metric, .threads = 1};
        if (filtered) options.filter = RowFilter::of_ids(allowed, 700);
        const Neighbors wanted = knn(queries, base, k, options);
        for (const int size : {1, 2, 3, 5, 8})
          as_peers(size, [&](Peers& peers) {
            const std::int64_t begin = begin_of(700, peers.rank(), size),
                               end = peers.rank() + 1 == size
                                         ? 700
                                         : begin_of(700, peers.rank() + 1, size);
            PartSearch part(base.view().rows(begin, end), begin, 700, options);
            ExactNeighbors found = part.search(queries, k, options);
            Merged merged;
            merge_at_first(peers, found, 33, k, 1, merged);
            EXPECT_EQ(merged.sent_bytes > 0, peers.rank() > 0);
            if (peers.rank() > 0) return;
            const Neighbors got = rounded(found, metric, 33, k, 1);
            ASSERT_TRUE(test::same(got, wanted)) << size << " processes";
          });
      }
}

TEST(PartSearch, BytesAreThosePredicted) {
  const AnyMatrix base = small_numbers(400, 5, 1), queries = small_numbers(20, 5, 2);
  for (const int size : {1, 4, 7, 30})
    as_peers(size, [&](Peers& peers) {
      // Of 30 the first ones have no rows, and others fewer than there are neighbours.
      const auto begin_of = [&](int rank) {
        return size < 30 ? std::int64_t{400} * rank / size : std::max(0, rank * rank - 30) / 3;
      };
      std::vector<std::int64_t> rows;
      for (int rank = 0; rank < size; ++rank) rows.push_back(begin_of(rank + 1) - begin_of(rank));
      const std::int64_t begin = begin_of(peers.rank()), end = begin_of(peers.rank() + 1);
      PartSearch part(base.view().rows(begin, end), begin, 400, {});
      Merged merged;
      for (int call = 0; call < 2; ++call) {
        ExactNeighbors found = part.search(queries.view().rows(10 * call, 10 * call + 10), 6, {});
        merge_at_first(peers, found, 10, 6, 1, merged);
      }
      std::int64_t sum[] = {merged.sent_bytes};
      peers.sum(sum);
      EXPECT_EQ(sum[0], merge_bytes(rows, 20, 6, 2));
      if (size < 10) {
        EXPECT_EQ(sum[0], (size - 1) * (20 * 6 * 16 + 2 * 8));
      }
    });
}

TEST(PartSearch, NamesRowsByTheirNumbersAmongAll) {
  AnyMatrix base = small_numbers(100, 5, 1);
  static_cast<float*>(base.row(70))[2] = std::numeric_limits<float>::quiet_NaN();
  const auto error_of = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const InvalidArgument& error) {
      return error.what();
    } catch (const ShapeMismatch& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  EXPECT_EQ(error_of([&] { PartSearch(base.view().rows(50, 100), 50, 100, {}); }),
            error_of([&] { knn(base.view().rows(0, 1), base, 1); }));
  const AnyMatrix wide = small_numbers(3, 6, 1), queries = small_numbers(3, 5, 1);
  PartSearch part(base.view().rows(0, 50), 0, 100, {});
  EXPECT_NE(error_of([&] { part.search(wide, 1, {}); }).find("6 columns"), std::string::npos);
  EXPECT_NE(error_of([&] { part.search(queries, 0, {}); }).find("k must be"), std::string::npos);
  EXPECT_NE(error_of([&] {
              PartSearch(base.view().rows(0, 50), 0, 100,
                         {.filter = RowFilter::of_ids(std::vector<Id>{1}, 99)});
            }).find("99"),
            std::string::npos);
}

}  // namespace
}  // namespace knear
