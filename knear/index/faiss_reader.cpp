// FAISS's files: fields one after another, each index with four letters before it, no lengths and
// no checksums. Whatever is read is checked against what is left of the file before memory is
// taken.
#include "knear/index/faiss_reader.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string_view>
#include <utility>

#include "knear/core/error.hpp"
#include "knear/io/byte_source.hpp"

namespace knear::detail {
namespace {

constexpr std::int32_t inner_product = 0, l2 = 1;
constexpr int most_nested = 8;

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path), file_(path) {}

  FaissContent read() {
    FaissContent out = index(0);
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

  FaissContent index(int depth) {
    if (depth > most_nested) refuse("indexes are nested too deeply");
    const std::string type = letters();
    if (type == "IxF2" || type == "IxFI" || type == "IxFl") return flat();
    if (type == "IxPq") return flat_product();
    if (type == "IxSQ") return flat_scalar();
    if (type == "IwFl") return inverted(depth, [&](FaissContent& out) { read_vectors(out); });
    if (type == "IwPQ") return inverted(depth, [&](FaissContent& out) { read_product_lists(out); });
    if (type == "IwSq") return inverted(depth, [&](FaissContent& out) { read_scalar_lists(out); });
    if (type == "IxMp" || type == "IxM2") return mapped(depth);
    if (type == "IxPT") return transformed(depth);
    if (type == "IxRF") return refined(depth);
    for (const char c : type)
      if (c < ' ' || c > '~') refuse("no index of FAISS begins like this");
    refuse(
        fmt::format("an index of type '{}' is not read, only IndexFlat (IxF2, IxFI), IndexPQ "
                    "(IxPq), IndexScalarQuantizer (IxSQ), the same in inverted lists (IwFl, IwPQ, "
                    "IwSq), and these behind transforms (IxPT), with IndexRefineFlat (IxRF) and in "
                    "IndexIDMap (IxMp, IxM2)",
                    type));
  }

  FaissContent flat() {
    const Header about = header();
    FaissContent out{.dim = about.dim, .metric = about.metric};
    const std::int64_t numbers = count(sizeof(float), "vectors");
    if (numbers % about.dim != 0 || numbers / about.dim != about.rows)
      refuse(fmt::format("{} vectors of {} columns are announced, but {} numbers follow",
                         about.rows, about.dim, numbers));
    out.rows = Matrix<float>(about.rows, about.dim);
    const auto bytes = static_cast<std::size_t>(numbers) * sizeof(float);
    if (bytes > 0) std::memcpy(out.rows.data(), take(bytes, "vectors"), bytes);
    return out;
  }

  FaissContent mapped(int depth) {
    const Header about = header();
    FaissContent out = index(depth + 1);
    const std::int64_t n = count(sizeof(Id), "ids");
    if (about.dim != out.dim || n != out.size())
      refuse(fmt::format("{} ids are given to {} vectors", n, out.size()));
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

  template <class Form>
  FaissContent inverted(int depth, Form form) {
    const Header about = header();
    FaissContent out{.dim = about.dim, .metric = about.metric, .trained = about.trained};
    rows_announced_ = about.rows;
    const auto lists = value<std::uint64_t>("the number of lists");
    value<std::uint64_t>("nprobe");
    if (lists < 1 || lists > (1u << 24))
      refuse(fmt::format("there are {} lists, where 1 to 16777216 can be", lists));
    out.lists = static_cast<std::int64_t>(lists);
    FaissContent quantizer = index(depth + 1);
    rows_announced_ = about.rows;
    if (quantizer.lists > 0 || !quantizer.ids.empty() || quantizer.codes ||
        !quantizer.transforms.empty() || quantizer.rounded)
      refuse("the lists' quantiser is no IndexFlat");
    if (out.trained && (quantizer.dim != out.dim || quantizer.rows.rows() != out.lists))
      refuse(fmt::format("{} lists of {} columns have a quantiser of {} centroids and {} columns",
                         lists, out.dim, quantizer.rows.rows(), quantizer.dim));
    out.centroids = std::move(quantizer.rows);
    direct_map();
    form(out);
    return out;
  }

  void read_vectors(FaissContent& out) {
    const Matrix<std::uint8_t> bytes = read_lists(out, out.dim * std::int64_t{sizeof(float)});
    out.rows = Matrix<float>(bytes.rows(), out.dim);
    const auto size = static_cast<std::size_t>(bytes.rows() * bytes.cols());
    if (size > 0) std::memcpy(out.rows.data(), bytes.data(), size);
  }

  // Floats of which there have to be so many, finite.
  std::vector<float> floats(std::int64_t wanted, std::string_view what) {
    const std::int64_t n = count(sizeof(float), what);
    if (n != wanted) refuse(fmt::format("{} are {} numbers, where {} are due", what, n, wanted));
    std::vector<float> out(static_cast<std::size_t>(n));
    if (n > 0) std::memcpy(out.data(), take(out.size() * sizeof(float), what), out.size() * 4);
    for (const float x : out)
      if (!std::isfinite(x)) refuse(fmt::format("{} hold a NaN or infinity", what));
    return out;
  }
  bool flag(std::string_view what) {
    const auto byte = value<std::uint8_t>(what);
    if (byte > 1) refuse(fmt::format("{} is neither yes nor no", what));
    return byte == 1;
  }

  void product(FaissContent& out) {
    const auto dim = value<std::uint64_t>("the quantizer"),
               parts = value<std::uint64_t>("the quantizer"),
               bits = value<std::uint64_t>("the quantizer");
    if (dim != static_cast<std::uint64_t>(out.dim) || parts < 1 || parts > dim || dim % parts != 0)
      refuse(fmt::format("its quantizer has {} parts of {} columns, where {} are due", parts, dim,
                         out.dim));
    if (bits != 4 && bits != 8)
      refuse(fmt::format("its quantizer has {} bits, where only 4 and 8 are read", bits));
    out.codes = CodeShape{static_cast<std::int64_t>(parts), static_cast<int>(bits), false};
    const std::int64_t numbers = out.dim << bits;
    if (!out.trained) {
      const std::int64_t given = count(sizeof(float), "centroids");
      take(static_cast<std::uint64_t>(given) * sizeof(float), "centroids");
      return;
    }
    out.quantizer = floats(numbers, "centroids");
  }
  std::int64_t code_size(const FaissContent& out) const {
    if (out.rounded) return 2 * out.dim;
    const std::int64_t parts = out.codes->is_product() ? out.codes->sub_quantizers : out.dim;
    return (parts * out.codes->bits + 7) / 8;
  }
  void scalar(FaissContent& out) {
    constexpr std::int32_t bits8 = 0, bits4 = 1, f16 = 4, bf16 = 7;
    const auto kind = value<std::int32_t>("the quantizer");
    take(8, "the quantizer");  // how its range was found
    const auto dim = value<std::uint64_t>("the quantizer");
    const auto size = value<std::uint64_t>("the quantizer");
    if (dim != static_cast<std::uint64_t>(out.dim))
      refuse(fmt::format("its quantizer has {} columns, where {} are due", dim, out.dim));
    if (kind == f16 || kind == bf16) {
      out.rounded = kind == f16 ? ElementType::f16 : ElementType::bf16;
      floats(0, "levels");
    } else if (kind == bits8 || kind == bits4) {
      out.codes = CodeShape{0, kind == bits8 ? 8 : 4, false};
      if (out.trained)
        out.quantizer = floats(2 * out.dim, "levels");
      else
        take(static_cast<std::uint64_t>(count(sizeof(float), "levels")) * 4, "levels");
    } else {
      refuse(
          fmt::format("its scalar quantizer is of FAISS's type {}, where only 8 bits (0), 4 bits "
                      "(1), fp16 (4) and bf16 (7) are read",
                      kind));
    }
    if (size != static_cast<std::uint64_t>(code_size(out)))
      refuse(fmt::format("its codes have {} bytes, where {} are due", size, code_size(out)));
  }
  // Codes of rows one after another.
  void read_codes(FaissContent& out, std::int64_t rows) {
    const std::int64_t n = count(1, "codes"), width = code_size(out);
    if (n % width != 0 || n / width != rows)
      refuse(
          fmt::format("{} codes of {} bytes are announced, but {} bytes follow", rows, width, n));
    take_codes(out, rows);
  }
  void take_codes(FaissContent& out, std::int64_t rows) {
    Matrix<std::uint8_t> codes(rows, code_size(out));
    const auto size = static_cast<std::uint64_t>(rows * codes.cols());
    if (size > 0) std::memcpy(codes.data(), take(size, "codes"), size);
    set_codes(out, std::move(codes));
  }
  // As codes, or as the vectors that halves are.
  void set_codes(FaissContent& out, Matrix<std::uint8_t> codes) {
    if (!out.rounded) {
      out.code_rows = std::move(codes);
      return;
    }
    out.rows = Matrix<float>(codes.rows(), out.dim);
    for (std::int64_t i = 0; i < codes.rows(); ++i)
      for (std::int64_t j = 0; j < out.dim; ++j) {
        const auto bits =
            static_cast<std::uint16_t>(codes.row(i)[2 * j] | codes.row(i)[2 * j + 1] << 8);
        out.rows.row(i)[j] = static_cast<float>(
            *out.rounded == ElementType::f16 ? to_double(f16{bits}) : to_double(bf16{bits}));
      }
    out.list_of.clear();
  }

  FaissContent flat_product() {
    const Header about = header();
    FaissContent out{.dim = about.dim, .metric = about.metric, .trained = about.trained};
    product(out);
    read_codes(out, about.rows);
    take(4, "the kind of search");
    if (flag("encode_signs")) refuse("its codes are signs");
    take(4, "the kind of search");
    return out;
  }
  FaissContent flat_scalar() {
    const Header about = header();
    FaissContent out{.dim = about.dim, .metric = about.metric, .trained = about.trained};
    scalar(out);
    read_codes(out, about.rows);
    return out;
  }
  void read_product_lists(FaissContent& out) {
    const bool residual = flag("by_residual");
    const auto size = value<std::uint64_t>("the size of codes");
    product(out);
    out.codes->residual = residual;
    if (size != static_cast<std::uint64_t>(code_size(out)))
      refuse(fmt::format("its codes have {} bytes, where {} are due", size, code_size(out)));
    set_codes(out, read_lists(out, code_size(out)));
  }
  void read_scalar_lists(FaissContent& out) {
    scalar(out);
    const auto size = value<std::uint64_t>("the size of codes");
    const bool residual = flag("by_residual");
    if (residual && out.rounded) refuse("its halves are of residuals, which are not read");
    if (out.codes) out.codes->residual = residual;
    if (size != static_cast<std::uint64_t>(code_size(out)))
      refuse(fmt::format("its codes have {} bytes, where {} are due", size, code_size(out)));
    set_codes(out, read_lists(out, code_size(out)));
  }

  // A matrix with what is added.
  Transform linear_body(std::int64_t rows, std::int64_t columns, std::vector<float> matrix,
                        std::vector<float> offset) {
    if (std::ssize(matrix) != rows * columns || (!offset.empty() && std::ssize(offset) != rows))
      refuse(fmt::format("a transform of {} to {} columns has {} numbers", columns, rows,
                         matrix.size()));
    return Transform::linear({matrix.data(), rows, columns}, offset);
  }
  std::vector<float> some_floats(std::string_view what) {
    const std::int64_t n = count(sizeof(float), what);
    at_ -= 8;
    return floats(n, what);
  }
  std::pair<TransformShape, Transform> transform() {
    using Kind = TransformShape::Kind;
    constexpr std::string_view what = "a transform";
    const std::string type = letters();
    TransformShape shape{};
    const bool pca = type == "Pcam" || type == "PcAm" || type == "PCAm";
    const bool linear = pca || type == "LTra" || type == "rrot";
    if (!linear && type != "VNrm")
      refuse(
          fmt::format("a transform of type '{}' is not read, only linear ones (LTra, rrot), PCA "
                      "(Pcam, PcAm, PCAm) and normalisation (VNrm)",
                      type));
    shape.kind = pca ? Kind::pca : linear ? Kind::rotation : Kind::unit_norm;
    if (pca) {
      shape.whiten = value<float>(what) != 0;
      if (type == "Pcam") take(4, what);
      shape.rotate = flag(what);
      if (type != "PCAm") take(4, what);
      for (int i = 0; i < 3; ++i) some_floats("a transform");  // it is in the matrix
    }
    std::vector<float> matrix, offset;
    if (linear) {
      const bool biased = flag(what);
      matrix = some_floats("a matrix");
      offset = some_floats("an offset");
      if (!biased) offset.clear();
    } else if (value<float>(what) != 2) {
      refuse("a normalisation by another norm than 2 is not read");
    }
    const auto in = value<std::int32_t>(what), out = value<std::int32_t>(what);
    if (in < 1 || in > 65536 || out < 1 || out > 65536 || (!linear && in != out))
      refuse(fmt::format("a transform has {} columns and makes {} of them", in, out));
    if (!flag(what)) refuse("a transform is not trained");
    shape.dim_out = out;
    if (pca && out > in) refuse(fmt::format("a PCA makes {} columns of {}", out, in));
    return {shape, linear ? linear_body(out, in, std::move(matrix), std::move(offset))
                          : Transform::unit_norm(in)};
  }
  FaissContent transformed(int depth) {
    const Header about = header();
    const auto count_of = value<std::int32_t>("the transforms");
    if (count_of < 0 || count_of > 16) refuse(fmt::format("it has {} transforms", count_of));
    std::vector<TransformShape> shapes;
    std::vector<Transform> chain;
    std::int64_t dim = about.dim;
    for (int i = 0; i < count_of; ++i) {
      auto [shape, one] = transform();
      if (one.dim_in() != dim)
        refuse(fmt::format("a transform takes {} columns, not {}", one.dim_in(), dim));
      dim = one.dim_out();
      shapes.push_back(shape), chain.push_back(std::move(one));
    }
    FaissContent out = index(depth + 1);
    if (out.dim != dim || out.metric != about.metric)
      refuse(fmt::format("transforms make {} columns, but the index has {}", dim, out.dim));
    if (out.refining) refuse("IndexRefineFlat behind transforms is not read, only before them");
    shapes.insert(shapes.end(), out.transforms.begin(), out.transforms.end());
    chain.insert(chain.end(), out.chain.begin(), out.chain.end());
    out.transforms = std::move(shapes), out.chain = std::move(chain);
    // A rotation before a product quantiser is most likely OPQ's.
    if (out.codes && out.codes->is_product() && !out.transforms.empty() &&
        out.transforms.back().kind == TransformShape::Kind::rotation &&
        out.transforms.back().dim_out <= out.chain.back().dim_in()) {
      out.transforms.back().kind = TransformShape::Kind::opq;
      out.transforms.back().sub_quantizers = out.codes->sub_quantizers;
      out.transforms.back().bits = out.codes->bits;
    }
    out.dim = about.dim;
    return out;
  }

  FaissContent refined(int depth) {
    const Header about = header();
    FaissContent out = index(depth + 1), fine = index(depth + 1);
    value<float>("k_factor");
    if (fine.codes || fine.lists > 0 || !fine.transforms.empty() || !fine.ids.empty() ||
        fine.rounded)
      refuse("what refines an index is no IndexFlat");
    if (!out.codes || out.refining) refuse("an index of vectors is refined, which is not read");
    if (fine.dim != about.dim || out.dim != about.dim || fine.rows.rows() != out.size() ||
        fine.metric != out.metric)
      refuse(fmt::format("{} codes are refined by {} vectors", out.size(), fine.rows.rows()));
    // In the order of the codes.
    Matrix<float> rows(out.size(), out.dim);
    for (std::int64_t i = 0; i < out.size(); ++i) {
      const Id id = out.ids.empty() ? i : out.ids[static_cast<std::size_t>(i)];
      if (id < 0 || id >= out.size()) refuse(fmt::format("id {} has no vector", id));
      std::copy_n(fine.rows.row(id), out.dim, rows.row(i));
    }
    out.rows = std::move(rows), out.refining = true;
    return out;
  }

  // The rows of lists, of `row_bytes` bytes each.
  Matrix<std::uint8_t> read_lists(FaissContent& out, std::int64_t row_bytes_wanted) {
    const std::int64_t rows = rows_announced_;
    const std::string type = letters();
    if (type == "il00") refuse("its lists are not in the file (il00)");
    if (type != "ilar")
      refuse(fmt::format("lists of type '{}' are not read, only those in the file itself (ilar)",
                         type));
    const auto row_bytes = static_cast<std::uint64_t>(row_bytes_wanted);
    const auto lists = value<std::uint64_t>("lists"), size_of_code = value<std::uint64_t>("lists");
    if (lists != static_cast<std::uint64_t>(out.lists) || size_of_code != row_bytes)
      refuse(fmt::format("{} lists with codes of {} bytes are announced, but {} of {} bytes follow",
                         out.lists, row_bytes, lists, size_of_code));
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
    Matrix<std::uint8_t> found(rows, row_bytes_wanted);
    out.ids.resize(static_cast<std::size_t>(rows));
    out.list_of.clear();
    std::uint64_t row = 0;
    for (std::size_t list = 0; list < sizes.size(); ++list) {
      const std::uint64_t size = sizes[list];
      if (size == 0) continue;
      std::memcpy(found.row(static_cast<std::int64_t>(row)), take(size * row_bytes, "vectors"),
                  size * row_bytes);
      std::memcpy(out.ids.data() + row, take(size * 8, "ids"), size * 8);
      out.list_of.insert(out.list_of.end(), size, static_cast<std::uint32_t>(list));
      row += size;
    }
    return found;
  }

  std::int64_t rows_announced_ = 0;  // of the lists to come
  std::string path_;
  io::MappedFile file_;
  std::int64_t at_ = 0;
};

}  // namespace

FaissContent read_faiss_content(const std::string& path) {
  try {
    return Reader(path).read();
  } catch (const InvalidArgument& error) {  // a transform that is none
    throw CorruptFile("{}: {}", path, error.what());
  }
}

}  // namespace knear::detail
