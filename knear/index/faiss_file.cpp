// FAISS's files: fields one after another, each index with four letters before it, no lengths and
// no checksums. Whatever is read is checked against what is left of the file before memory is
// taken.
#include "knear/index/faiss_file.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/core/public_call.hpp"
#include "knear/index/flat.hpp"
#include "knear/index/ivf_flat.hpp"
#include "knear/index/segment_store.hpp"
#include "knear/io/atomic_file.hpp"
#include "knear/io/byte_source.hpp"

namespace knear {
namespace {

constexpr std::int32_t inner_product = 0, l2 = 1;
constexpr int most_nested = 8;

// What an index of a file holds.
struct Content {
  std::int64_t dim = 0;
  Metric metric = Metric::l2;
  bool trained = true;
  std::int64_t lists = 0;        // 0: flat
  Matrix<float> centroids = {};  // [lists x dim]
  Matrix<float> rows = {};       // [n x dim]
  std::vector<Id> ids = {};      // of the rows; empty: 0, 1, ...
};

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path), file_(path) {}

  Content read() {
    Content out = index(0);
    if (at_ != file_.size()) refuse(fmt::format("{} bytes follow the index", file_.size() - at_));
    return out;
  }

 private:
  struct Header {
    std::int64_t dim, rows;
    bool trained;
    Metric metric;
  };

  [[noreturn]] void refuse(std::string_view what) const {
    throw CorruptFile("{}, at byte {}: {}", path_, at_, what);
  }
  const std::byte* take(std::uint64_t bytes, std::string_view what) {
    if (bytes > static_cast<std::uint64_t>(file_.size() - at_))
      refuse(fmt::format("the file is cut off in {}: {} of {} bytes", what, file_.size() - at_,
                         bytes));
    const std::byte* out = file_.data() + at_;
    at_ += static_cast<std::int64_t>(bytes);
    return out;
  }
  template <class T>
  T value(std::string_view what) {
    T out;
    std::memcpy(&out, take(sizeof out, what), sizeof out);
    return out;
  }
  // A number of elements of some bytes each, of which the file has to have as many.
  std::int64_t count(std::uint64_t bytes_each, std::string_view what) {
    const auto n = value<std::uint64_t>(what);
    if (n > static_cast<std::uint64_t>(file_.size() - at_) / bytes_each)
      refuse(fmt::format("the file is cut off in {}: {} elements of {} bytes, {} bytes are left",
                         what, n, bytes_each, file_.size() - at_));
    return static_cast<std::int64_t>(n);
  }
  std::string letters() {
    const auto four = value<std::array<char, 4>>("the type of an index");
    return {four.data(), four.size()};
  }
  Header header() {
    Header out{};
    out.dim = value<std::int32_t>("the header");
    out.rows = value<std::int64_t>("the header");
    take(16, "the header");
    const auto trained = value<std::uint8_t>("the header");
    const auto metric = value<std::int32_t>("the header");
    if (out.dim < 1 || out.dim > 65536)
      refuse(fmt::format("it has {} columns, where 1 to 65536 can be", out.dim));
    if (out.rows < 0 || trained > 1) refuse("its header is none");
    if (metric != inner_product && metric != l2)
      refuse(fmt::format(
          "it has FAISS's metric {}, where only L2 (1) and inner product (0) are read", metric));
    out.trained = trained == 1, out.metric = metric == l2 ? Metric::l2 : Metric::ip;
    return out;
  }

  Content index(int depth) {
    if (depth > most_nested) refuse("indexes are nested too deeply");
    const std::string type = letters();
    if (type == "IxF2" || type == "IxFI" || type == "IxFl") return flat();
    if (type == "IwFl") return inverted(depth);
    if (type == "IxMp" || type == "IxM2") return mapped(depth);
    for (const char c : type)
      if (c < ' ' || c > '~') refuse("no index of FAISS begins like this");
    refuse(
        fmt::format("an index of type '{}' is not read, only IndexFlat (IxF2, IxFI), "
                    "IndexIVFFlat (IwFl) and these in IndexIDMap (IxMp, IxM2)",
                    type));
  }

  Content flat() {
    const Header about = header();
    Content out{.dim = about.dim, .metric = about.metric};
    const std::int64_t numbers = count(sizeof(float), "vectors");
    if (numbers % about.dim != 0 || numbers / about.dim != about.rows)
      refuse(fmt::format("{} vectors of {} columns are announced, but {} numbers follow",
                         about.rows, about.dim, numbers));
    out.rows = Matrix<float>(about.rows, about.dim);
    const auto bytes = static_cast<std::size_t>(numbers) * sizeof(float);
    if (bytes > 0) std::memcpy(out.rows.data(), take(bytes, "vectors"), bytes);
    return out;
  }

  Content mapped(int depth) {
    const Header about = header();
    Content out = index(depth + 1);
    const std::int64_t n = count(sizeof(Id), "ids");
    if (about.dim != out.dim || n != out.rows.rows())
      refuse(fmt::format("{} ids are given to {} vectors", n, out.rows.rows()));
    std::vector<Id> given(static_cast<std::size_t>(n));
    if (n > 0) std::memcpy(given.data(), take(given.size() * sizeof(Id), "ids"), given.size() * 8);
    if (out.ids.empty()) {
      out.ids = std::move(given);
      return out;
    }
    for (Id& id : out.ids) {
      if (id < 0 || id >= n) refuse(fmt::format("id {} is beyond the {} that are named", id, n));
      id = given[static_cast<std::size_t>(id)];
    }
    return out;
  }

  void direct_map() {
    const auto type = value<std::uint8_t>("the map of ids");
    if (type > 2) refuse(fmt::format("a map of ids of kind {} is unknown", type));
    const std::int64_t entries = count(8, "the map of ids");
    take(static_cast<std::uint64_t>(entries) * 8, "the map of ids");
    if (type != 2) return;
    const std::int64_t pairs = count(16, "the map of ids");
    take(static_cast<std::uint64_t>(pairs) * 16, "the map of ids");
  }

  Content inverted(int depth) {
    const Header about = header();
    Content out{.dim = about.dim, .metric = about.metric, .trained = about.trained};
    const auto lists = value<std::uint64_t>("the number of lists");
    value<std::uint64_t>("nprobe");
    if (lists < 1 || lists > (1u << 24))
      refuse(fmt::format("there are {} lists, where 1 to 16777216 can be", lists));
    out.lists = static_cast<std::int64_t>(lists);
    Content quantizer = index(depth + 1);
    if (quantizer.lists > 0 || !quantizer.ids.empty())
      refuse("the lists' quantiser is no IndexFlat");
    if (out.trained && (quantizer.dim != out.dim || quantizer.rows.rows() != out.lists))
      refuse(fmt::format("{} lists of {} columns have a quantiser of {} centroids and {} columns",
                         lists, out.dim, quantizer.rows.rows(), quantizer.dim));
    out.centroids = std::move(quantizer.rows);
    direct_map();
    read_lists(out, about.rows);
    return out;
  }

  void read_lists(Content& out, std::int64_t rows) {
    const std::string type = letters();
    if (type == "il00") refuse("its lists are not in the file (il00)");
    if (type != "ilar")
      refuse(fmt::format("lists of type '{}' are not read, only those in the file itself (ilar)",
                         type));
    const auto row_bytes = static_cast<std::uint64_t>(out.dim) * sizeof(float);
    const auto lists = value<std::uint64_t>("lists"), code_size = value<std::uint64_t>("lists");
    if (lists != static_cast<std::uint64_t>(out.lists) || code_size != row_bytes)
      refuse(fmt::format("{} lists with codes of {} bytes are announced, but {} of {} bytes follow",
                         out.lists, row_bytes, lists, code_size));
    std::vector<std::uint64_t> sizes(static_cast<std::size_t>(lists));
    const std::string form = letters();
    if (form != "full" && form != "sprs") refuse("the sizes of its lists have no known form");
    const std::int64_t numbers = count(8, "sizes of lists");
    const bool full = form == "full";
    if (full ? numbers != out.lists : numbers % 2 != 0) refuse("its lists have other sizes");
    for (std::int64_t i = 0; i < numbers; ++i) {
      const auto number = value<std::uint64_t>("sizes of lists");
      if (full) {
        sizes[static_cast<std::size_t>(i)] = number;
      } else {
        if (number >= lists) refuse(fmt::format("list {} is named, of {}", number, lists));
        sizes[static_cast<std::size_t>(number)] = value<std::uint64_t>("sizes of lists"), ++i;
      }
    }
    std::uint64_t sum = 0;
    for (const std::uint64_t size : sizes)
      if (__builtin_add_overflow(sum, size, &sum)) sum = ~std::uint64_t{0};
    if (sum != static_cast<std::uint64_t>(rows) ||
        sum > static_cast<std::uint64_t>(file_.size() - at_) / (row_bytes + 8))
      refuse(fmt::format("its lists have {} rows, where {} are announced and {} bytes are left",
                         sum, rows, file_.size() - at_));
    out.rows = Matrix<float>(rows, out.dim);
    out.ids.resize(static_cast<std::size_t>(rows));
    std::uint64_t row = 0;
    for (const std::uint64_t size : sizes) {
      if (size == 0) continue;
      std::memcpy(out.rows.row(static_cast<std::int64_t>(row)), take(size * row_bytes, "vectors"),
                  size * row_bytes);
      std::memcpy(out.ids.data() + row, take(size * 8, "ids"), size * 8);
      row += size;
    }
  }

  std::string path_;
  io::MappedFile file_;
  std::int64_t at_ = 0;
};

Index made_of(Content content, const ChangeOptions& options) {
  const auto filled = [&](Index index) {
    index.reserve(content.rows.rows());
    if (content.ids.empty())
      index.add(content.rows.view(), options);
    else
      index.add(content.rows.view(), content.ids, options);
    return index;
  };
  if (content.lists == 0) return filled(FlatIndex(content.dim, content.metric));
  if (!content.trained) {
    if (content.rows.rows() > 0) throw CorruptFile("there are rows, but no centroids");
    return IvfFlatIndex(content.dim, content.lists, content.metric);
  }
  // FAISS's centroids for products have length 1, and lists by these are not those of l2.
  if (content.metric == Metric::ip && content.rows.rows() >= content.lists) {
    IvfFlatIndex index(content.dim, content.lists, content.metric);
    index.train(content.rows.view(), {.threads = options.threads, .progress = options.progress});
    return filled(std::move(index));
  }
  return filled(IvfFlatIndex(content.centroids.view(), content.metric));
}

class Writer {
 public:
  explicit Writer(const std::string& path) : file_(path) {}

  template <class T>
  void value(T x) {
    file_.write(&x, sizeof x);
  }
  void letters(std::string_view four) { file_.write(four.data(), 4); }
  void header(std::string_view type, std::int64_t dim, std::int64_t rows, bool trained,
              Metric metric) {
    letters(type);
    value(static_cast<std::int32_t>(dim)), value(rows);
    value(std::int64_t{1} << 20), value(std::int64_t{1} << 20);
    value(static_cast<std::uint8_t>(trained)), value(metric == Metric::l2 ? l2 : inner_product);
  }
  void flat_header(std::int64_t dim, std::int64_t rows, Metric metric) {
    header(metric == Metric::l2 ? "IxF2" : "IxFI", dim, rows, true, metric);
    value(static_cast<std::uint64_t>(rows * dim));
  }
  void bytes(const void* data, std::size_t size) { file_.write(data, size); }
  void commit() { file_.commit(); }

 private:
  io::AtomicFile file_;
};

// Writes rows as float32, some at a time.
void write_rows(Writer& writer, const Index& index, std::span<const Id> ids) {
  constexpr std::size_t together = 4096;
  for (std::size_t begin = 0; begin < ids.size(); begin += together) {
    const std::span<const Id> some = ids.subspan(begin, std::min(together, ids.size() - begin));
    const AnyMatrix rows = index.reconstruct(some);
    Matrix<float> floats(std::ssize(some), index.dim());
    const std::int64_t bad = detail::copy_exactly(rows.view(), ElementType::f32, floats.data());
    if (bad >= 0)
      throw InvalidArgument(
          "index holds vectors of type {}, and float32, which FAISS has, does not hold that of id "
          "{}",
          name_of(index.element_type()), some[static_cast<std::size_t>(bad)]);
    writer.bytes(floats.data(), some.size() * static_cast<std::size_t>(index.dim()) * 4);
  }
}

void write_lists(Writer& writer, const Index& index, const std::vector<Id>& ids,
                 const Progress& progress) {
  const Metric metric = index.metric();
  const std::int64_t dim = index.dim(), lists = index.lists();
  writer.header("IwFl", dim, std::ssize(ids), true, metric);
  writer.value(static_cast<std::uint64_t>(lists)), writer.value(std::uint64_t{1});
  const Matrix<float> centroids = index.centroids();
  writer.flat_header(dim, lists, metric);
  writer.bytes(centroids.data(), static_cast<std::size_t>(lists * dim) * sizeof(float));
  writer.value(std::uint8_t{0}), writer.value(std::uint64_t{0});  // no map of ids
  writer.letters("ilar");
  writer.value(static_cast<std::uint64_t>(lists));
  writer.value(static_cast<std::uint64_t>(dim) * sizeof(float));
  const std::vector<std::int64_t> of = index.lists_of(ids);
  std::vector<std::vector<Id>> rows(static_cast<std::size_t>(lists));
  for (std::size_t i = 0; i < ids.size(); ++i)
    rows[static_cast<std::size_t>(of[i])].push_back(ids[i]);
  writer.letters("full");
  writer.value(static_cast<std::uint64_t>(lists));
  for (const auto& list : rows) writer.value(static_cast<std::uint64_t>(list.size()));
  Reporter reporter(progress, "write", lists);
  for (const auto& list : rows) {
    write_rows(writer, index, list);
    writer.bytes(list.data(), list.size() * sizeof(Id));
    reporter.add(1);
  }
}

}  // namespace

bool is_faiss_file(const std::string& path) {
  char first[4] = {};
  std::ifstream file(path, std::ios::binary);
  if (!file.read(first, sizeof first)) return false;
  // Four letters, which no number of columns is made of.
  if (!std::all_of(first, first + 4, [](char c) { return c > ' ' && c <= '~'; })) return false;
  const std::string_view begin(first, 2);
  return begin == "Ix" || begin == "Iw" || begin == "Iv" || begin == "IB" || begin == "IH";
}

Index read_faiss(const std::string& path, const ChangeOptions& options) {
  return detail::public_call([&] {
    Content content = Reader(path).read();
    try {
      return made_of(std::move(content), options);
    } catch (const CorruptFile& error) {
      throw CorruptFile("{}: {}", path, error.what());
    } catch (const InvalidArgument& error) {  // a NaN, an id twice
      throw CorruptFile("{}: {}", path, error.what());
    }
  });
}

void write_faiss(const Index& index, const std::string& path, const Progress& progress) {
  detail::public_call([&] {
    const Metric metric = index.metric();
    if (metric == Metric::cosine)
      throw InvalidArgument(
          "index has the metric cosine, which FAISS has not: it takes vectors of length 1 and ip");
    if (!index.is_trained())
      throw InvalidArgument("index {} is not trained, which comes before writing it for FAISS",
                            index.description());
    const std::vector<Id> ids = index.ids();
    Writer writer(path);
    if (index.lists() > 0) {
      write_lists(writer, index, ids, progress);
    } else {
      const auto n = std::ssize(ids);
      const bool own = n > 0 && (ids.front() != 0 || ids.back() != n - 1);
      if (own) writer.header("IxM2", index.dim(), n, true, metric);
      writer.flat_header(index.dim(), n, metric);
      write_rows(writer, index, ids);
      if (own) {
        writer.value(static_cast<std::uint64_t>(n));
        writer.bytes(ids.data(), ids.size() * sizeof(Id));
      }
    }
    writer.commit();
  });
}

}  // namespace knear
