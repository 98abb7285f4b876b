// tests/fuzz/loaders_fuzzer.cpp -- every loader on bytes from libFuzzer (scripts/fuzz).
//
// The first byte says what the rest is: a file with one of the endings below; a .knear file, whose
// header gets its right checksum so that its content is read; or the sections of one, each u8 name,
// u16 length, bytes, which become a .knear file with right checksums throughout, of a flat index or
// of inverted lists; or a file of FAISS, which is written as one again. A .knear file may be a k-NN
// graph or a manifest of shards. Whatever opens is read to its last element and, if it is an index,
// searched: only a knear::Error may be thrown.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/factory/factory.hpp"
#include "knear/graph/knn_graph.hpp"
#include "knear/graph/neighbor_graph.hpp"
#include "knear/graph/sparse_graph.hpp"
#include "knear/graph/statistics.hpp"
#include "knear/index/faiss_file.hpp"
#include "knear/index/index.hpp"
#include "knear/io/archive.hpp"
#include "knear/io/statistics.hpp"
#include "knear/io/vectors.hpp"

namespace {

using namespace knear;

constexpr const char* endings[] = {".fvecs", ".bvecs",    ".ivecs",  ".fbin",
                                   ".u8bin", ".i8bin",    ".ibin",   ".npy",
                                   "",       ".fvecs.gz", ".npy.gz", ".bvecs.gz"};
constexpr int ending_count = std::size(endings);
constexpr const char* sections[] = {"index",
                                    "0/fields",
                                    "0/ids",
                                    "0/order",
                                    "0/live",
                                    "0/vectors",
                                    "0/int8/fields",
                                    "0/int8/codes",
                                    "0/int8/heads",
                                    "0/int8/bias",
                                    "0/int8/rows",
                                    "0/int8/mean",
                                    "0/int8/distinct",
                                    "0/int8/firsts",
                                    "0/int8/begins",
                                    "0/int8/copies",
                                    "1/fields",
                                    "1/ids",
                                    "1/order",
                                    "1/live",
                                    "1/vectors",
                                    "1/integer/fields",
                                    "1/integer/codes",
                                    "1/integer/squares",
                                    "1/integer/sums",
                                    "1/integer/rows",
                                    "lists",
                                    "centroids",
                                    "lifts",
                                    "0/radii",
                                    "0/lists",
                                    "0/list_of",
                                    "1/radii",
                                    "1/lists",
                                    "1/list_of",
                                    "recall/rows",
                                    "recall/changed",
                                    "recall/fresh",
                                    "recall/curves/0/fields",
                                    "recall/curves/0/points",
                                    "recall/curves/0/keys",
                                    "recall/curves/0/nearness",
                                    "recall/curves/0/nearness/bounds",
                                    "recall/curves/0/nearness/recalls",
                                    "recall/curves/0/nearness/shares",
                                    "codes",
                                    "quantizer",
                                    "levels/low",
                                    "levels/step",
                                    "refine",
                                    "refine/codes",
                                    "refine/levels/low",
                                    "refine/levels/step",
                                    "transforms",
                                    "transform/steps",
                                    "transform/0/offset",
                                    "transform/1/matrix",
                                    "rounded",
                                    "0/begin",
                                    "0/codes",
                                    "0/scalars",
                                    "1/begin",
                                    "1/codes",
                                    "1/scalars",
                                    "recall/curves/0/refine",
                                    "known/fields",
                                    "known/queries",
                                    "known/begin",
                                    "known/keys",
                                    "known/ids",
                                    "known/all",
                                    "coarse/kind",
                                    "coarse/probes",
                                    "coarse/index",
                                    "coarse/lists",
                                    "coarse/centroids",
                                    "coarse/codes",
                                    "coarse/quantizer",
                                    "coarse/levels/low",
                                    "coarse/levels/step",
                                    "coarse/rounded",
                                    "coarse/0/fields",
                                    "coarse/0/ids",
                                    "coarse/0/order",
                                    "coarse/0/vectors",
                                    "coarse/0/radii",
                                    "coarse/0/lists",
                                    "coarse/0/list_of",
                                    "coarse/0/begin",
                                    "coarse/0/codes",
                                    "coarse/0/scalars",
                                    "lifted/kind",
                                    "lifted/probes",
                                    "lifted/index",
                                    "lifted/lists",
                                    "lifted/centroids",
                                    "lifted/0/fields",
                                    "lifted/0/vectors",
                                    "lifted/0/radii",
                                    "lifted/0/list_of"};
// What is made of sections.
constexpr const char* kinds[] = {"Flat", "IVFFlat", "IVFPQ", "PQ", "SQ", "IVFSQ"};

std::string folder() {
  static const std::string made = [] {
    char pattern[] = "/dev/shm/knear-fuzz-XXXXXX";
    if (!mkdtemp(pattern)) std::abort();
    static std::string kept;
    kept = pattern;
    std::atexit([] { std::system(("rm -rf " + kept).c_str()); });
    return std::string(pattern);
  }();
  return made;
}

std::string written(const std::string& name, const std::uint8_t* data, std::size_t size) {
  const std::string path = folder() + "/" + name;
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (!file || std::fwrite(data, 1, size, file) != size) std::abort();
  std::fclose(file);
  return path;
}

void use_vectors(const std::string& path) {
  double total = 0;
  try {
    const io::VectorFile file = io::VectorFile::open(path);
    visit(file.view(), [&](auto typed) {
      for (std::int64_t i = 0; i < typed.rows(); ++i)
        for (std::int64_t j = 0; j < typed.cols(); ++j) total += to_double(typed.row(i)[j]);
    });
    io::VectorBlocks blocks(path);
    std::int64_t rows = 0;
    for (auto block = blocks.next(3); block.rows() > 0; block = blocks.next(3))
      rows += block.rows();
    if (rows != file.view().rows()) std::abort();
  } catch (const Error&) {
  }
  try {
    io::read_ids(path);
  } catch (const Error&) {
  }
  try {
    io::compute_statistics(path, {});
  } catch (const Error&) {
  }
  volatile double sink = total;
  (void)sink;
}

void use_index(const std::string& path) {
  try {
    Index index = Index::load(path);
    // Each of these may be refused; the others come nevertheless.
    const auto attempt = [](auto f) {
      try {
        f();
      } catch (const Error&) {
      }
    };
    Matrix<float> queries(2, index.dim());
    queries.row(1)[0] = 1.5f;
    const SearchOptions options{.threads = 1};
    SearchOptions narrow = options, one = options;
    narrow.memory = 1 << 24, one.method.probes = 1;
    // As many lists as a file of this size may have are few enough to probe them all.
    for (const double recall : {0.5, 1.0}) {
      SearchOptions asked = options;
      asked.method.recall = recall;
      attempt([&] { index.search(queries.view(), 3, asked); });
    }
    attempt([&] { index.tune(2, queries.view(), {.threads = 1}); });
    for (const SearchOptions& some : {options, one, narrow}) {
      attempt([&] { index.search(queries.view(), 3, some); });
      attempt([&] { index.search(Matrix<std::uint8_t>(2, index.dim()).view(), 300, some); });
      attempt([&] { index.range_search(queries.view(), 1, some); });
    }
    const auto ids = index.ids();
    attempt([&] { index.reconstruct(ids); });
    attempt([&] { index.compact({.threads = 1}); });
    attempt([&] { index.search(queries.view(), 3, index.lists() > 0 ? one : options); });
    if (!io::is_archive(path)) return;
    io::Archive::open(path)->verify({});
  } catch (const Error&) {
  }
}

// A k-NN graph, or a manifest of shards, of which none are there.
void use_other_archive(const std::string& path) {
  try {
    const NeighborGraph graph = NeighborGraph::load(path);
    statistics_of(graph);
    symmetric(graph.ids(), graph.distances(), graph.metric(), Closure::mutual);
  } catch (const Error&) {
  }
  try {
    Index::load(path);
  } catch (const Error&) {
  }
  try {
    Index::load(path, {.allow_partial = true});
  } catch (const Error&) {
  }
}

std::optional<Index> opened(const std::string& path) {
  try {
    return Index::load(path);
  } catch (const Error&) {
    return {};
  }
}

// What was read of a file of FAISS is written as one, unless FAISS has none like it, and read back.
void write_back(const std::string& path) {
  const std::optional<Index> index = opened(path);
  if (!index) return;
  const std::string to = folder() + "/written.faiss";
  try {
    write_faiss(*index, to);
  } catch (const InvalidArgument&) {
    return;
  }
  const std::optional<Index> again = opened(to);
  if (!again || again->dim() != index->dim() || again->metric() != index->metric() ||
      again->lists() != index->lists() || again->ids() != index->ids())
    std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const int kind = data[0] % (ending_count + 8);
  ++data, --size;
  if (kind < ending_count) {
    use_vectors(written(std::string("x") + endings[kind], data, size));
    return 0;
  }
  if (kind == ending_count) {
    std::vector<std::byte> bytes(size);
    if (size) std::memcpy(bytes.data(), data, size);
    io::seal_archive(bytes);
    const auto* sealed = reinterpret_cast<const std::uint8_t*>(bytes.data());
    const std::string path = written("x.knear", sealed, size);
    use_index(path);
    use_other_archive(path);
    return 0;
  }
  if (kind == ending_count + 3) {
    const std::string path = written("x.faiss", data, size);
    use_index(path);
    write_back(path);
    return 0;
  }
  const int of_codes = kind - (ending_count + 4);  // the kinds of files grew
  io::ArchiveWriter writer(kinds[of_codes < 0 ? kind - (ending_count + 1) : 2 + of_codes]);
  bool seen[std::size(sections)] = {};
  while (size >= 3) {
    const std::size_t name = data[0] % std::size(sections);
    const std::size_t length = std::min<std::size_t>(data[1] + 256 * data[2], size - 3);
    if (!std::exchange(seen[name], true)) writer.add(sections[name], data + 3, length);
    data += 3 + length, size -= 3 + length;
  }
  const std::string path = folder() + "/s.knear";
  writer.write(path, {});
  use_index(path);
  return 0;
}

// `loaders_fuzzer --seeds FOLDER` writes inputs to start with.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  if (*argc != 3 || std::string((*argv)[1]) != "--seeds") return 0;
  const std::string to = (*argv)[2];
  const auto put = [&](const std::string& name, int kind, const std::string& bytes) {
    std::FILE* file = std::fopen((to + "/" + name).c_str(), "wb");
    if (!file) std::abort();
    std::fputc(kind, file);
    std::fwrite(bytes.data(), 1, bytes.size(), file);
    std::fclose(file);
  };
  const auto read = [](const std::string& path) {
    std::string out;
    std::FILE* file = std::fopen(path.c_str(), "rb");
    if (!file) std::abort();
    for (int c; (c = std::fgetc(file)) != EOF;) out += static_cast<char>(c);
    std::fclose(file);
    return out;
  };
  Matrix<float> floats(6, 3);
  for (int i = 0; i < 18; ++i) floats.data()[i] = static_cast<float>(i) * 0.5f;
  Matrix<std::uint8_t> bytes(6, 3);
  Matrix<std::int8_t> chars(6, 3);
  Matrix<Id> ids(6, 3);
  const std::string base = folder() + "/seed";
  io::write_vectors(base + ".fvecs", floats.view());
  io::write_vectors(base + ".bvecs", bytes.view());
  io::write_ids(base + ".ivecs", ids.view());
  io::write_vectors(base + ".fbin", floats.view());
  io::write_vectors(base + ".u8bin", bytes.view());
  io::write_vectors(base + ".i8bin", chars.view());
  io::write_ids(base + ".ibin", ids.view());
  io::write_vectors(base + ".npy", floats.view());
  for (int kind = 0; kind < 8; ++kind)
    put(std::string("seed") + endings[kind], kind, read(base + endings[kind]));
  put("seed.idx", 8, std::string("\0\0\x08\3\0\0\0\2\0\0\0\2\0\0\0\1abcd", 20));
  for (int kind = 9; kind < 12; ++kind) {
    const std::string plain =
        base + std::string(endings[kind]).substr(0, std::strlen(endings[kind]) - 3);
    if (std::system(("gzip -k -f " + plain).c_str()) != 0) std::abort();
    put(std::string("seed") + endings[kind], kind, read(plain + ".gz"));
  }
  Index index = make_index("Flat", 5);
  Matrix<float> real(300, 5), whole(260, 5);
  for (int i = 0; i < 300 * 5; ++i) real.data()[i] = static_cast<float>(i % 97) * 0.37f + 10;
  for (int i = 0; i < 260 * 5; ++i) whole.data()[i] = static_cast<float>(i % 200);
  for (int i = 50; i < 150; ++i) std::memcpy(real.row(i), real.row(1), 20);
  std::vector<Id> own;
  for (Id i = 0; i < 300; ++i) own.push_back(9000 - 7 * i);
  index.add(real.view(), own);
  index.add(whole.view());
  index.remove(std::vector<Id>{9000, 8993});
  const auto put_index = [&](const Index& saved, const std::string& name, int as_sections) {
    saved.save(base + name + ".knear");
    put("seed" + name + ".knear", ending_count, read(base + name + ".knear"));
    std::string parts;
    const auto archive = io::Archive::open(base + name + ".knear");
    for (const io::Section& section : archive->sections()) {
      std::size_t number = 0;
      std::string of(section.name);
      while (number < std::size(sections) && sections[number] != of) ++number;
      if (number == std::size(sections)) continue;
      parts += static_cast<char>(number);
      parts += static_cast<char>(section.bytes % 256);
      parts += static_cast<char>(section.bytes / 256);
      parts.append(reinterpret_cast<const char*>(section.data), section.bytes);
    }
    put("seed" + name + ".sections", as_sections, parts);
  };
  put_index(index, "", ending_count + 1);
  const auto put_faiss = [&](const Index& written, const std::string& name) {
    write_faiss(written, base + name + ".faiss");
    put("seed" + name + ".faiss", ending_count + 3, read(base + name + ".faiss"));
  };
  put_faiss(index, "");
  for (const std::int64_t lists : {3, 90}) {  // packed, and so many that they are not
    Index ivf =
        make_index(fmt::format("IVF{},Flat", lists), 5, lists == 3 ? Metric::ip : Metric::l2);
    ivf.train(real.view());
    ivf.add(real.view(), own);
    ivf.add(whole.view());
    ivf.remove(std::vector<Id>{9000, 8993});
    ivf.tune(3);
    put_index(ivf, std::to_string(lists), ending_count + 2);
    put_faiss(ivf, std::to_string(lists));
  }
  const auto put_codes = [&](const char* string, const std::string& name, int as_sections) {
    Index coded = make_index(string, 5);
    coded.train(real.view());
    coded.add(real.view(), own);
    coded.add(whole.view().rows(0, 40));
    coded.remove(std::vector<Id>{9000, 8993});
    put_index(coded, name, as_sections);
    return coded;
  };
  put_faiss(put_codes("IVF3,PQ5x4,RFlat", "ivfpq", ending_count + 4), "ivfpq");
  put_faiss(put_codes("PCA4,PQ2x4,Refine(SQ8)", "refined", ending_count + 5), "refined");
  put_faiss(put_codes("PCA4,PQ2x4", "pca", ending_count + 5), "pca");
  put_faiss(put_codes("SQ4", "sq", ending_count + 6), "sq");
  put_faiss(put_codes("IVF3,SQ8,Refine(SQbf16)", "ivfsq", ending_count + 7), "ivfsq");
  put_faiss(put_codes("IVF3,SQfp16", "halves", ending_count + 2), "halves");
  put_faiss(put_codes("RR4,IVF3,Flat", "turned", ending_count + 2), "turned");
  put_faiss(put_codes("IVF9(IVF2,Flat),PQ5x4", "coarse", ending_count + 4), "coarse");
  put_codes("IVF9(SQ8),SQ4", "coarse_codes", ending_count + 7);
  build_graph_file(real.view(), 4, base + "graph.knear", {.threads = 1});
  put("seedgraph.knear", ending_count, read(base + "graph.knear"));
  Index shards = make_index("Flat", 5).divided({.shards = 2});
  shards.add(real.view(), own);
  shards.save(base + "shards.knear");
  put("seedshards.knear", ending_count, read(base + "shards.knear"));
  std::exit(0);
}
