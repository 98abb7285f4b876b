// tests/index/building_memory_test.cpp -- memory of a process that builds an index of each form.
// While it trains, adds and makes a graph it holds at most 1.5 times memory_bytes() of the finished
// index, afterwards at most 1.1 times, including what the allocator keeps.
//
// Each index is built in a process of its own. What does not grow with the index is counted apart:
// blocks of vectors, buffers of threads and samples.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <ostream>
#include <string>
#include <vector>

#include "knear/core/random.hpp"
#include "knear/factory/factory.hpp"
#include "knear/index/index.hpp"

namespace knear {
namespace {

constexpr std::int64_t mebibyte = 1 << 20;
// What building takes besides, whatever the size of the index, and what buffers of threads leave.
constexpr std::int64_t blocks_of_vectors = 16 * mebibyte, left_by_threads = 6 * mebibyte;
// A graph is made by inverted lists, whose recall is calibrated on 2,000 rows by 1,024 lists.
constexpr std::int64_t calibration_of_graphs = 64 * mebibyte, left_by_graphs = 14 * mebibyte;

struct Form {
  const char* name;
  Metric metric;
  ElementType type;
  std::int64_t rows, dim;
  // Rows that it is trained on. A sample of the vectors is there in addition to the index, and
  // would be most of the memory of indexes that are as small as these.
  std::int64_t trained_on = 0;
};

// A line of /proc/self/status, in bytes.
std::int64_t status(const std::string& name) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);)
    if (line.rfind(name + ":", 0) == 0) return 1024 * std::atoll(line.c_str() + name.size() + 1);
  return -1;
}

// The next VmHWM is the most from now on.
bool forget_peak() {
  const int file = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
  const bool done = file >= 0 && write(file, "5", 1) == 1;
  if (file >= 0) close(file);
  return done;
}

AnyMatrix vectors_for(const Form& form) {
  AnyMatrix out(form.type, form.rows, form.dim);
  Random random(7);
  std::vector<float> centres(static_cast<std::size_t>(64 * form.dim));
  for (float& x : centres) x = static_cast<float>(200 * random.uniform());
  for (std::int64_t i = 0; i < form.rows; ++i) {
    const std::int64_t cluster = static_cast<std::int64_t>(random.next() % 64);
    for (std::int64_t j = 0; j < form.dim; ++j) {
      const std::uint64_t bits = random.next();
      const float x = centres[static_cast<std::size_t>(cluster * form.dim + j)] +
                      static_cast<float>(bits % 4096) / 80;
      if (form.type == ElementType::f32)
        static_cast<float*>(out.row(i))[j] = x;
      else
        static_cast<std::uint8_t*>(out.row(i))[j] = static_cast<std::uint8_t>(
            traits_of(form.metric).bits ? bits % 256 : static_cast<std::uint64_t>(x));
    }
  }
  return out;
}

void build(const Form& form, Index& index, AnyMatrixView vectors) {
  if (!index.is_trained()) index.train(vectors, {.rows = form.trained_on, .threads = 2});
  index.add(vectors, {.threads = 2});
  if (index.has_graph()) index.optimize({.threads = 2});
}

struct Bytes {
  std::int64_t peak, after, counted;  // counted: memory_bytes()
  char error[200];
};

Bytes measured(const Form& form) {
  Bytes out{};
  const AnyMatrix vectors = vectors_for(form);
  {  // Code and what the library sets up once are there before.
    Form few = form;
    few.rows = std::min<std::int64_t>(form.rows, 6000), few.trained_on = 0;
    Index small = make_index(form.name, form.dim, form.metric);
    build(few, small, vectors.view().rows(0, few.rows));
  }
  Index index = make_index(form.name, form.dim, form.metric);
  malloc_trim(0);
  const std::int64_t before = status("VmRSS"), before_anonymous = status("RssAnon");
  if (!forget_peak()) throw Error("the peak cannot be reset");
  build(form, index, vectors.view());
  out.peak = status("VmHWM") - before;
  out.after = status("RssAnon") - before_anonymous;
  out.counted = index.memory_bytes();
  return out;
}

// The parameter of a test that failed.
void PrintTo(const Form& form, std::ostream* out) {
  *out << form.name << ' ' << name_of(form.metric) << ' ' << name_of(form.type) << ' ' << form.rows
       << " x " << form.dim;
}

class BuildingMemory : public testing::TestWithParam<Form> {};

TEST_P(BuildingMemory, IsWhatTheIndexKeeps) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "most of the memory of this process is that of a sanitiser";
#endif
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    Bytes bytes{};
    try {
      bytes = measured(GetParam());
    } catch (const std::exception& e) {
      std::string(e.what()).copy(bytes.error, sizeof bytes.error - 1);
    }
    const bool told = write(ends[1], &bytes, sizeof bytes) == sizeof bytes;
    _exit(told ? 0 : 1);
  }
  close(ends[1]);
  Bytes bytes{};
  EXPECT_EQ(read(ends[0], &bytes, sizeof bytes), static_cast<ssize_t>(sizeof bytes));
  close(ends[0]);
  int state = 0;
  waitpid(child, &state, 0);
  ASSERT_EQ(state, 0);
  ASSERT_STREQ(bytes.error, "");
  const Form& form = GetParam();
  const std::string name = form.name;
  const bool graph = name.rfind("Graph", 0) == 0,
             codes = name.find("PQ") != std::string::npos || name.find("SQ8") != std::string::npos;
  std::int64_t besides = graph ? calibration_of_graphs : blocks_of_vectors;
  // Neighbours by products are found among copies of the vectors, which have a column more.
  if (graph && traits_of(form.metric).lifted) besides += 4 * form.rows * (form.dim + 1);
  // Codes know their recall by neighbours of some vectors. These are searched among those that are
  // added, packed in two forms of a byte for each number.
  if (codes) besides += 2 * form.rows * form.dim + 8 * mebibyte;
  EXPECT_LE(bytes.peak, bytes.counted * 3 / 2 + besides);
  EXPECT_LE(bytes.after, bytes.counted * 11 / 10 + (graph ? left_by_graphs : left_by_threads));
}

constexpr auto f32 = ElementType::f32, u8 = ElementType::u8;
INSTANTIATE_TEST_SUITE_P(
    Forms, BuildingMemory,
    testing::Values(
        Form{"Flat", Metric::l2, f32, 400'000, 32}, Form{"Flat", Metric::l2, u8, 400'000, 64},
        Form{"Flat", Metric::cosine, f32, 400'000, 32}, Form{"Flat", Metric::l1, f32, 400'000, 32},
        Form{"Flat", Metric::hamming, u8, 400'000, 64},
        Form{"SQfp16", Metric::l2, f32, 400'000, 64},
        Form{"PCA32,Flat", Metric::l2, f32, 400'000, 64, 16384},
        Form{"IVF64,Flat", Metric::l2, f32, 400'000, 32, 16384},
        Form{"IVF64,Flat", Metric::ip, f32, 400'000, 32, 16384},
        Form{"IVF64,Flat", Metric::l2, u8, 400'000, 64, 16384},
        Form{"PCA32,IVF64,Flat", Metric::l2, f32, 300'000, 64, 16384},
        Form{"SQ8", Metric::l2, f32, 400'000, 64, 16384},
        Form{"PQ16", Metric::l2, f32, 400'000, 32, 16384},
        Form{"IVF64,SQ8", Metric::l2, f32, 400'000, 64, 16384},
        Form{"IVF64,PQ16", Metric::l2, f32, 400'000, 32, 16384},
        Form{"IVF64,PQ16,RFlat", Metric::l2, f32, 300'000, 32, 16384},
        Form{"OPQ16,IVF64,PQ16", Metric::l2, f32, 300'000, 32, 8192},
        Form{"Graph32", Metric::l2, f32, 70'000, 96}, Form{"Graph32", Metric::ip, f32, 70'000, 96},
        Form{"Graph32", Metric::l2, u8, 70'000, 128}));

}  // namespace
}  // namespace knear
