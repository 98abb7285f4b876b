// What processes tell each other, played by threads; and that an error in one is one in all.
#include "knear/core/peers.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "knear/core/error.hpp"
#include "tests/core/peer_threads.hpp"

namespace knear {
namespace {

using test::as_peers;

TEST(Peers, HaveWhatAllHave) {
  for (const int size : {1, 2, 3, 8})
    as_peers(size, [&](Peers& peers) {
      ASSERT_EQ(peers.size(), size);
      std::vector<std::int64_t> sums{peers.rank(), -1, std::numeric_limits<std::int64_t>::max()};
      peers.sum(sums);
      EXPECT_EQ(sums[0], size * (size - 1) / 2);
      EXPECT_EQ(sums[1], -size);
      EXPECT_EQ(static_cast<std::uint64_t>(sums[2]),
                static_cast<std::uint64_t>(size) * 0x7fffffffffffffffu);
      std::vector<double> most{-1.0 * peers.rank(), 0.5 * peers.rank()};
      peers.largest(most);
      EXPECT_EQ(most, (std::vector<double>{0, 0.5 * (size - 1)}));
      const std::string own(static_cast<std::size_t>(peers.rank()), 'x');
      const auto all = peers.gather(std::as_bytes(std::span(own.data(), own.size())));
      ASSERT_EQ(std::ssize(all), size);
      for (int rank = 0; rank < size; ++rank)
        EXPECT_EQ(std::ssize(all[static_cast<std::size_t>(rank)]), rank);
    });
}

TEST(Peers, TakeTurnsInTheOrderOfRanks) {
  double wanted = 0;  // no other order of these has this sum
  const auto term = [](int rank) { return std::ldexp(1.0 + 1e-9 * rank, 60 - 13 * rank); };
  for (int rank = 0; rank < 5; ++rank) wanted += term(rank);
  as_peers(5, [&](Peers& peers) {
    std::vector<double> values{0, 1};
    peers.in_turn(values, [&] { values[0] += term(peers.rank()), values[1] *= 2; });
    EXPECT_EQ(values, (std::vector<double>{wanted, 32}));
  });
}

TEST(Peers, HearWhatOneSays) {
  as_peers(3, [&](Peers& peers) {
    for (int from = 0; from < 3; ++from) {
      std::vector<int> numbers{peers.rank(), 7};
      peers.broadcast(from, std::as_writable_bytes(std::span(numbers)));
      EXPECT_EQ(numbers, (std::vector<int>{from, 7}));
    }
    // Each to the next, two of different lengths, in their order.
    const int next = (peers.rank() + 1) % 3, before = (peers.rank() + 2) % 3;
    const std::vector<std::byte> one(1, std::byte(peers.rank())), none;
    peers.send(next, one), peers.send(next, none);
    EXPECT_EQ(peers.receive(before), std::vector<std::byte>(1, std::byte(before)));
    EXPECT_EQ(peers.receive(before), none);
  });
}

TEST(Peers, AnErrorInOneIsOneInAll) {
  as_peers(4, [&](Peers& peers) {
    together(peers, [] {});
    const auto expect = [&](auto wanted, auto error) {
      try {
        together(peers, [&] {
          if (peers.rank() >= 2) throw error;
        });
        ADD_FAILURE() << "nothing was thrown";
      } catch (const decltype(wanted)& thrown) {
        EXPECT_STREQ(thrown.what(), error.what());
      }
    };

    expect(InvalidArgument(""), InvalidArgument("k is {}", 0));
    expect(ShapeMismatch(""), ShapeMismatch("columns"));
    expect(CorruptFile(""), CorruptFile("cut off"));
    expect(IoError(""), IoError("gone"));
    expect(MemoryBudgetError(""), MemoryBudgetError("too much"));
    expect(DeviceUnavailable(""), DeviceUnavailable("none"));
    expect(Cancelled(""), Cancelled("stopped"));
    expect(Error(""), std::runtime_error("something else"));
    // Of several that of the lowest rank.
    try {
      together(peers, [&] {
        if (peers.rank() > 0) throw IoError("in {}", peers.rank());
      });
      ADD_FAILURE() << "nothing was thrown";
    } catch (const IoError& thrown) {
      EXPECT_STREQ(thrown.what(), "in 1");
    }
    together(peers, [] {});
  });
}

}  // namespace
}  // namespace knear
