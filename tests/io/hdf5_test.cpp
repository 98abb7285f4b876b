// HDF5 files: every type and layout that ann-benchmarks and h5py write, and damaged files.
#include "knear/io/hdf5.hpp"

#include <hdf5.h>

#include <chrono>
#include <cstdlib>
#include <memory>

#include "knear/core/random.hpp"
#include "knear/io/convert.hpp"
#include "knear/io/vectors.hpp"
#include "tests/io/file_cases.hpp"

namespace knear::io {
namespace {

class Hdf5Files : public FileTest {
 protected:
  struct Options {
    hid_t stored = H5T_IEEE_F32LE;
    bool chunked = false, gzip = false, shuffle = false, compact = false;
  };
  // Writes a dataset of `rows` x `cols` doubles 0, 1, 2, ... modulo 100, stored as asked.
  void write_dataset(const std::string& name, const std::string& dataset, hsize_t rows,
                     hsize_t cols, const Options& options, bool first = true) const {
    const hid_t file = first
                           ? H5Fcreate(path(name).c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT)
                           : H5Fopen(path(name).c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
    const hsize_t shape[2] = {rows, cols};
    const hid_t space = H5Screate_simple(cols ? 2 : 1, shape, nullptr);
    const hid_t plan = H5Pcreate(H5P_DATASET_CREATE);
    if (options.chunked) {
      const hsize_t chunk[2] = {7, 3};
      H5Pset_chunk(plan, cols ? 2 : 1, chunk);
      if (options.shuffle) H5Pset_shuffle(plan);
      if (options.gzip) H5Pset_deflate(plan, 4);
    }
    if (options.compact) H5Pset_layout(plan, H5D_COMPACT);
    const hid_t made =
        H5Dcreate2(file, dataset.c_str(), options.stored, space, H5P_DEFAULT, plan, H5P_DEFAULT);
    std::vector<double> values(rows * (cols ? cols : 1));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i % 100);
    ASSERT_GE(H5Dwrite(made, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0);
    H5Dclose(made), H5Pclose(plan), H5Sclose(space), H5Fclose(file);
  }
  void write_distance(const std::string& name, const std::string& value, bool variable) const {
    const hid_t file = H5Fopen(path(name).c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
    const hid_t type = H5Tcopy(H5T_C_S1), space = H5Screate(H5S_SCALAR);
    H5Tset_size(type, variable ? H5T_VARIABLE : value.size());
    const hid_t attribute = H5Acreate2(file, "distance", type, space, H5P_DEFAULT, H5P_DEFAULT);
    const char* text = value.c_str();
    H5Awrite(attribute, type, variable ? static_cast<const void*>(&text) : text);
    H5Aclose(attribute), H5Sclose(space), H5Tclose(type), H5Fclose(file);
  }
  static void expect_counted(AnyMatrixView view, std::int64_t first_row = 0) {
    visit(view, [&](auto typed) {
      for (std::int64_t i = 0; i < view.rows(); ++i)
        for (std::int64_t j = 0; j < view.cols(); ++j)
          ASSERT_EQ(to_double(typed.row(i)[j]),
                    static_cast<float>(((i + first_row) * view.cols() + j) % 100))
              << i << " " << j;
    });
  }
};

TEST_F(Hdf5Files, EveryTypeAndLayoutIsRead) {
  const hid_t half = H5Tcopy(H5T_IEEE_F32LE);
  H5Tset_fields(half, 15, 10, 5, 0, 10);
  H5Tset_size(half, 2);
  H5Tset_ebias(half, 15);
  const std::pair<hid_t, ElementType> types[] = {
      {H5T_IEEE_F32LE, ElementType::f32}, {H5T_IEEE_F32BE, ElementType::f32},
      {H5T_IEEE_F64LE, ElementType::f64}, {H5T_IEEE_F64BE, ElementType::f64},
      {H5T_STD_U8LE, ElementType::u8},    {H5T_STD_I8BE, ElementType::i8},
      {H5T_STD_I32LE, ElementType::f32},  {H5T_STD_U16BE, ElementType::f32},
      {H5T_STD_I64BE, ElementType::f32},  {half, ElementType::f16}};
  for (const auto& [stored, type] : types)
    for (const Options& options :
         {Options{stored}, Options{stored, true}, Options{stored, true, true},
          Options{stored, true, true, true}, Options{stored, false, false, false, true}}) {
      write_dataset("a.hdf5", "train", 40, 11, options);
      const VectorFile file = VectorFile::open(path("a.hdf5") + ":train");
      ASSERT_EQ(file.view().rows(), 40);
      ASSERT_EQ(file.view().cols(), 11);
      ASSERT_EQ(file.view().type(), type);
      expect_counted(file.view());
      // Some of the rows, from the middle of a chunk.
      const VectorFile part =
          VectorFile::open(path("a.hdf5"), {.rows = RowRange{9, 31}, .dataset = "train"});
      ASSERT_EQ(part.view().rows(), 22);
      expect_counted(part.view(), 9);
      EXPECT_EQ(inspect(path("a.hdf5")).rows, 40);
    }
}

TEST_F(Hdf5Files, DatasetsAreFoundByNameOrAsTheOnlyOne) {
  write_dataset("a.hdf5", "train", 5, 3, {});
  expect_counted(VectorFile::open(path("a.hdf5")).view());
  write_dataset("a.hdf5", "test", 4, 3, {}, false);
  write_dataset("a.hdf5", "neighbors", 4, 2, {.stored = H5T_STD_I32LE}, false);
  write_dataset("a.hdf5", "flat", 6, 0, {.stored = H5T_STD_I64LE}, false);
  EXPECT_EQ(VectorFile::open(path("a.hdf5"), {.dataset = "test"}).view().rows(), 4);
  EXPECT_EQ(VectorFile::open(path("a.hdf5") + ":train", {.dataset = "test"}).view().rows(), 5);
  EXPECT_EQ(read_ids(path("a.hdf5")).cols(), 2);
  EXPECT_EQ(read_ids(path("a.hdf5") + ":flat").rows(), 6);
  expect_error<InvalidArgument>([&] { VectorFile::open(path("a.hdf5")); },
                                "has the datasets neighbors, test, train: name one");
  expect_error<InvalidArgument>([&] { VectorFile::open(path("a.hdf5") + ":none"); },
                                "has no dataset 'none'");
  expect_error<InvalidArgument>([&] { VectorFile::open(path("a.hdf5") + ":flat"); },
                                "its dataset 'flat' is no matrix of plain numbers");
  expect_error<InvalidArgument>([&] { write_vectors(path("b.hdf5"), Matrix<float>(1, 1).view()); },
                                "HDF5 is read, not written");
  convert_file(path("a.hdf5") + ":train", path("b.fvecs"), {});
  expect_counted(VectorFile::open(path("b.fvecs")).view());
  // A file whose very name has a colon in it can be opened.
  write_dataset("c.h5", "x", 2, 2, {});
  std::filesystem::rename(path("c.h5"), path("c.h5:d.h5"));
  EXPECT_EQ(VectorFile::open(path("c.h5:d.h5")).view().rows(), 2);
}

TEST_F(Hdf5Files, AFileThatIsNotThereIsNoDamagedOne) {
  expect_error<IoError>([&] { inspect_hdf5(path("none.hdf5")); }, "No such file");
  expect_error<IoError>([&] { VectorFile::open(path("none.hdf5") + ":train"); }, "No such file");
}

TEST_F(Hdf5Files, TheDistanceIsRead) {
  for (bool variable : {false, true}) {
    write_dataset("a.h5", "train", 2, 2, {});
    write_distance("a.h5", "angular", variable);
    EXPECT_EQ(inspect_hdf5(path("a.h5")).distance, "angular");
  }
  write_dataset("b.h5", "train", 2, 2, {});
  EXPECT_EQ(inspect_hdf5(path("b.h5")).distance, "");
}

// The second child once kept the first one's pipe open, and closing that blocked forever.
TEST_F(Hdf5Files, OneOfTwoStreamsMayEndFirst) {
  for (const char* name : {"a.hdf5", "b.hdf5"})
    write_dataset(name, "train", 3000, 64, {.chunked = true, .gzip = true});
  auto first = std::make_unique<VectorBlocks>(path("a.hdf5"));
  EXPECT_EQ(first->next(10).rows(), 10);
  VectorBlocks second(path("b.hdf5"));
  EXPECT_EQ(second.next(10).rows(), 10);
  first.reset();
  expect_counted(second.next(20), 10);
}

TEST_F(Hdf5Files, SizesThatCannotBeAreRefusedBeforeMemoryIsTaken) {
  const hid_t file = H5Fcreate(path("a.hdf5").c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  const hsize_t shape[2] = {hsize_t{1} << 40, 4096}, chunk[2] = {1, 4096};
  const hid_t space = H5Screate_simple(2, shape, nullptr), plan = H5Pcreate(H5P_DATASET_CREATE);
  H5Pset_chunk(plan, 2, chunk);
  H5Dcreate2(file, "train", H5T_IEEE_F32LE, space, H5P_DEFAULT, plan, H5P_DEFAULT);
  H5Fclose(file);
  expect_error<CorruptFile>([&] { VectorFile::open(path("a.hdf5")); }, "cannot unpack to");
}

// A stranger's file must show no other file of the user.
TEST_F(Hdf5Files, DatasetsThatLieInOtherFilesAreRefusedByName) {
  write_dataset("other.h5", "train", 5, 3, {});
  write_dataset("other.h5", "packed", 14, 3, {.chunked = true, .gzip = true}, false);
  write("secret", std::string(5 * 3 * 4, 'x'));
  const hsize_t shape[2] = {5, 3};
  const hid_t space = H5Screate_simple(2, shape, nullptr);
  const auto fill = [&](const std::string& kind, hid_t file) {
    const hid_t plan = H5Pcreate(H5P_DATASET_CREATE);
    if (kind == "link") {
      H5Lcreate_external(path("other.h5").c_str(), "/train", file, "train", H5P_DEFAULT,
                         H5P_DEFAULT);
    } else if (kind == "packed link") {
      H5Lcreate_external(path("other.h5").c_str(), "/packed", file, "train", H5P_DEFAULT,
                         H5P_DEFAULT);
    } else if (kind == "soft link") {
      H5Lcreate_external(path("other.h5").c_str(), "/train", file, "away", H5P_DEFAULT,
                         H5P_DEFAULT);
      H5Lcreate_soft("/away", file, "train", H5P_DEFAULT, H5P_DEFAULT);
    } else if (kind == "storage") {
      H5Pset_external(plan, path("secret").c_str(), 0, 60);
      H5Dclose(H5Dcreate2(file, "train", H5T_IEEE_F32LE, space, H5P_DEFAULT, plan, H5P_DEFAULT));
    } else {
      const bool own = kind == "virtual link";
      if (own)
        H5Lcreate_external(path("other.h5").c_str(), "/train", file, "up", H5P_DEFAULT,
                           H5P_DEFAULT);
      H5Pset_virtual(plan, space, own ? "." : path("other.h5").c_str(), own ? "/up" : "/train",
                     space);
      H5Dclose(H5Dcreate2(file, "train", H5T_IEEE_F32LE, space, H5P_DEFAULT, plan, H5P_DEFAULT));
    }
    H5Pclose(plan);
  };
  const std::pair<std::string, std::string> kinds[] = {
      {"link", "other.h5', behind an external link"},
      {"packed link", "other.h5', behind an external link"},
      {"soft link", "other.h5', behind an external link"},
      {"storage", "secret', as external storage"},
      {"virtual", "is virtual, of parts of '" + path("other.h5") + "'"},
      // A part of the same file may be behind a link.
      {"virtual link", "is virtual, of parts of '.'"}};
  for (const auto& [kind, how] : kinds) {
    SCOPED_TRACE(kind);
    const hid_t file = H5Fcreate(path("a.hdf5").c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    fill(kind, file);
    H5Fclose(file);
    const std::string says = how + ", which is not read";
    // What convert, build, search and Python open files by, with the name of the dataset and
    // without.
    const std::string named = path("a.hdf5") + ":train";
    expect_error<InvalidArgument>([&] { VectorFile::open(named); }, says);
    expect_error<InvalidArgument>([&] { VectorBlocks blocks(named); }, says);
    expect_error<InvalidArgument>([&] { convert_file(named, path("b.fvecs"), {}); }, says);
    expect_error<InvalidArgument>([&] { read_ids(named); }, says);
    expect_error<InvalidArgument>([&] { VectorFile::open(path("a.hdf5")); }, "which is not read");
    expect_error<InvalidArgument>([&] { VectorBlocks blocks(path("a.hdf5")); }, "not read");
    EXPECT_FALSE(std::filesystem::exists(path("b.fvecs")));
    expect_error<InvalidArgument>([&] { inspect_hdf5(path("a.hdf5"), "train"); }, says);
    const Hdf5Contents contents = inspect_hdf5(path("a.hdf5"));
    ASSERT_FALSE(contents.datasets.empty());
    for (const Hdf5Dataset& one : contents.datasets) EXPECT_NE(one.elsewhere, "");
    // Nor is one of the file's own taken for it without a word.
    write_dataset("a.hdf5", "own", 4, 2, {}, false);
    expect_error<InvalidArgument>([&] { VectorFile::open(path("a.hdf5")); }, "which is not read");
    EXPECT_EQ(VectorFile::open(path("a.hdf5") + ":own").view().rows(), 4);
    // A stream of what took the place of a dataset that was described.
    Hdf5Dataset described;
    described.name = "train";
    Hdf5Stream stream(path("a.hdf5"), described, 0, 5);
    char byte;
    expect_error<CorruptFile>([&] { stream.read(&byte, 1); }, "cannot read its data");
  }
  // A group behind an external link.
  const hid_t file = H5Fcreate(path("a.hdf5").c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  H5Lcreate_external(path("other.h5").c_str(), "/", file, "group", H5P_DEFAULT, H5P_DEFAULT);
  H5Fclose(file);
  expect_error<InvalidArgument>([&] { VectorFile::open(path("a.hdf5") + ":group/train"); },
                                "other.h5', behind an external link");
  H5Sclose(space);
}

// The library itself crashes on some of these; knear must not.
TEST_F(Hdf5Files, DamagedFilesAreErrorsOrSound) {
  write_dataset("a.hdf5", "train", 30, 9, {.chunked = true, .gzip = true});
  write_dataset("a.hdf5", "test", 5, 9, {}, false);
  write_distance("a.hdf5", "euclidean", true);
  const std::string whole = read("a.hdf5");
  const auto use = [&](const std::string& bytes) {
    write("b.hdf5", bytes);
    for (const char* dataset : {"train", "test"}) {
      try {
        inspect_hdf5(path("b.hdf5"));
        const VectorFile file = VectorFile::open(path("b.hdf5"), {.dataset = dataset});
        EXPECT_LE(file.view().bytes(), 1 << 20);
      } catch (const Error& error) {
        EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
      }
    }
  };
  for (std::size_t size = 0; size < whole.size(); size += 1 + whole.size() / 60)
    use(whole.substr(0, size));
  const char* seconds = std::getenv("KNEAR_FUZZ_SECONDS");
  Random random(3);
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::seconds(seconds ? std::atoi(seconds) : 3);
  std::int64_t rounds = 0;
  for (; std::chrono::steady_clock::now() < end; ++rounds) {
    std::string bytes = whole;
    for (std::uint64_t i = 0; i <= random.below(4); ++i)
      bytes[random.below(bytes.size())] =
          static_cast<char>(random.below(3) ? random.below(256) : (random.below(2) ? 0xff : 0));
    use(bytes);
  }
  std::printf("%ld altered files\n", static_cast<long>(rounds));
}

}  // namespace
}  // namespace knear::io
