// Sound files with random damage: each opens or is refused by a knear::Error, and what opens can be
// read to its last element. The sanitisers find most.
#include "knear/core/random.hpp"
#include "knear/io/statistics.hpp"
#include "knear/io/vectors.hpp"
#include "tests/io/file_cases.hpp"

namespace knear::io {
namespace {

class Mutation : public FileTest {};

std::string random_bytes(Random& random, std::size_t size) {
  std::string bytes;
  for (std::size_t i = 0; i < size; ++i) bytes += static_cast<char>(random.next());
  return bytes;
}

std::string damaged(std::string bytes, Random& random) {
  for (std::uint64_t edits = 1 + random.below(3); edits > 0 && !bytes.empty(); --edits) {
    // Damage matters most in headers.
    const std::size_t reach =
        random.below(2) ? std::min<std::size_t>(bytes.size(), 140) : bytes.size();
    const std::size_t at = random.below(reach);
    switch (random.below(6)) {
      case 0:
        bytes[at] ^= static_cast<char>(1u << random.below(8));
        break;
      case 1:
        bytes[at] = static_cast<char>(random.next());
        break;
      case 2:
        bytes[at] = "0123456789(),'{}: <>|fuiL\xff\x00\x7f"[random.below(28)];
        break;
      case 3:
        bytes.resize(at);
        break;
      case 4:
        bytes.insert(at, random_bytes(random, 1 + random.below(9)));
        break;
      case 5:
        bytes.erase(at, 1 + random.below(9));
        break;
    }
  }
  return bytes;
}

// Reads every element, so that a view beyond its memory does not go unnoticed.
double sum(AnyMatrixView view) {
  return visit(view, [](auto typed) {
    double total = 0;
    for (std::int64_t i = 0; i < typed.rows(); ++i)
      for (std::int64_t j = 0; j < typed.cols(); ++j) total += to_double(typed.row(i)[j]);
    return total;
  });
}

TEST_F(Mutation, DamagedFilesOpenOrAreRefused) {
  Random random(20240607);
  std::vector<std::pair<std::string, std::string>> sound;
  const auto vecs = [&](int size) {
    std::string bytes;
    for (int i = 0; i < 9; ++i) bytes += raw(5) + random_bytes(random, size_t(5 * size));
    return bytes;
  };
  sound.emplace_back("a.fvecs", vecs(4));
  sound.emplace_back("a.bvecs", vecs(1));
  sound.emplace_back("a.ivecs", vecs(4));
  const auto bin = [&](int bytes) { return raw(7) + raw(11) + random_bytes(random, bytes); };
  sound.emplace_back("a.fbin", bin(7 * 11 * 4));
  sound.emplace_back("a.u8bin", bin(7 * 11));
  sound.emplace_back("a.i8bin", bin(7 * 11));
  sound.emplace_back("a.ibin", bin(7 * 11 * 4));
  sound.emplace_back("a.ibin", bin(7 * 11 * 8));
  sound.emplace_back("a.npy", npy(npy_header("<f4", "(7, 11)", "True"), random_bytes(random, 308)));
  for (const auto& [descr, size] : {std::pair{"<f4", 4},
                                    {"<f2", 2},
                                    {">f8", 8},
                                    {"|u1", 1},
                                    {"<i8", 8},
                                    {">i2", 2},
                                    {"<u4", 4}})
    sound.emplace_back("a.npy",
                       npy(npy_header(descr, "(7, 11)"), random_bytes(random, size_t(77 * size))));
  sound.emplace_back("a", std::string{'\0', '\0', '\x08', '\x03'} + big_endian(5) + big_endian(3) +
                              big_endian(4) + random_bytes(random, 60));

  int opened = 0, refused = 0;
  for (int round = 0; round < 500; ++round) {
    for (const auto& [name, bytes] : sound) {
      const bool zipped = random.below(3) == 0;
      // Damage before packing reaches the parsers, damage after it zlib.
      const std::string content = !zipped                ? damaged(bytes, random)
                                  : random.below(2) == 0 ? gzip(damaged(bytes, random))
                                                         : damaged(gzip(bytes), random);
      const std::string file_path = write(zipped ? name + ".gz" : name, content);
      OpenOptions options;
      if (random.below(2)) options.type = all_element_types[random.below(element_type_count)];
      if (random.below(4) == 0) options.rows = {{0, std::int64_t(random.below(9))}};
      const auto attempt = [&](auto&& action) {
        try {
          action();
          ++opened;
        } catch (const Error& error) {
          ++refused;
          ASSERT_EQ(std::string(error.what()).find('\n'), std::string::npos);
        } catch (const std::exception& error) {
          FAIL() << "round " << round << ", " << name << ": " << error.what();
        }
      };
      volatile double kept = 0;
      attempt([&] { kept = sum(VectorFile::open(file_path, options).view()); });
      attempt([&] { kept = compute_statistics(file_path).greatest; });
      attempt([&] { kept = double(read_ids(file_path).rows()); });
      attempt([&] { kept = double(inspect(file_path).rows); });
    }
  }
  // Both happen often, or there is too little or too much damage to test anything.
  EXPECT_GT(opened, 1000);
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace knear::io
