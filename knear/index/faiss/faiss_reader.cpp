// FAISS's files: fields one after another, each index with four letters before it, no lengths and
// no checksums. Whatever is read is checked against what is left of the file before memory is
// taken.
#include "knear/index/faiss/faiss_reader.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <string_view>
#include <utility>

#include "knear/core/error.hpp"
#include "knear/index/faiss/faiss_types.hpp"
#include "knear/io/byte_source.hpp"

namespace knear::detail {
namespace {

constexpr int most_nested = 8;

// Letters of a file that no terminal takes for orders.
std::string shown(std::string_view letters) {
  std::string out;
  for (const char c : letters)
    out += c < ' ' || c > '~' ? fmt::format("\\x{:02x}", static_cast<unsigned char>(c))
                              : std::string(1, c);
  return out;
}

using enum FaissModuleReads;

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

  [[noreturn]] void not_read(std::string_view what, FaissModuleReads module = no,
                             std::string_view reads = {}) const {
    refuse_faiss(path_, what, module, reads);
  }
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
  // other_metrics: whether knear.faiss has this index by other metrics than L2 and inner products.
  Header header(FaissModuleReads other_metrics = no) {
    Header out{};
    out.dim = value<std::int32_t>("the header");
    out.rows = value<std::int64_t>("the header");
    take(16, "the header");
    const auto trained = value<std::uint8_t>("the header");
    const auto metric = value<std::int32_t>("the header");
    if (out.dim < 1 || out.dim > 65536)
      refuse(fmt::format("it has {} columns, where 1 to 65536 can be", out.dim));
    if (out.rows < 0 || trained > 1) refuse("its header is none");
    // An IndexFlat is read by L1, and knear.faiss reads it by all of them.
    const bool by_l1 = metric == faiss_l1 && other_metrics == yes;
    if (metric != faiss_inner_product && metric != faiss_l2 && !by_l1) {
      const std::string_view name = name_of_faiss_metric(metric);
      if (name.empty()) refuse(fmt::format("FAISS has no metric {}", metric));
      not_read(fmt::format("vectors that are compared by {} ({})", name, metric), other_metrics);
    }
    out.trained = trained == 1;
    out.metric = by_l1 ? Metric::l1 : metric == faiss_l2 ? Metric::l2 : Metric::ip;
    if (by_l1) value<float>("the header");  // an argument that this metric has not
    return out;
  }

  FaissContent index(int depth) {
    if (depth > most_nested) refuse("indexes are nested too deeply");
    const std::int64_t begin = at_;
    const std::string type = letters();
    if (type == "IxF2" || type == "IxFI" || type == "IxFl") return flat(depth);
    if (type == "IxPq") return flat_product();
    if (type == "IPfs") return flat_product_in_blocks();
    if (type == "IxSQ") return flat_scalar();
    if (type == "IwFl") return inverted(depth, &Reader::read_vectors);
    if (type == "IwPQ") return inverted(depth, &Reader::read_product_lists);
    if (type == "IwPf") return inverted(depth, &Reader::read_product_blocks);
    if (type == "IwSq") return inverted(depth, &Reader::read_scalar_lists);
    if (type == "IxMp" || type == "IxM2") return mapped(depth);
    if (type == "IxPT") return transformed(depth);
    if (type == "IxRF") return refined(depth);
    if (const std::string_view name = name_of_faiss_index(type); !name.empty())
      not_read(
          fmt::format("{} ({}){}", name, type, depth > 0 ? fmt::format(" at byte {}", begin) : ""));
    at_ = begin;
    if (shown(type) != type) refuse("no index of FAISS begins like this");
    refuse(fmt::format("'{}' is no type of an index that knear knows of FAISS", type));
  }

  FaissContent flat(int depth) {
    const Header about = header(depth == 0 ? yes : no);
    FaissContent out{.dim = about.dim, .metric = about.metric};
    const std::int64_t numbers = count(sizeof(float), "vectors");
    if (numbers % about.dim != 0 || numbers / about.dim != about.rows)
      refuse(fmt::format("{} vectors of {} columns are announced, but {} numbers follow",
                         about.rows, about.dim, numbers));
    out.rows = AnyMatrix(ElementType::f32, about.rows, about.dim);
    const auto bytes = static_cast<std::size_t>(numbers) * sizeof(float);
    if (bytes > 0) std::memcpy(out.rows.row(0), take(bytes, "vectors"), bytes);
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

  // form: reads what is behind the quantiser of so many rows in lists.
  FaissContent inverted(int depth, void (Reader::*form)(FaissContent&, std::int64_t)) {
    const Header about = header();
    FaissContent out{.dim = about.dim, .metric = about.metric, .trained = about.trained};
    const auto lists = value<std::uint64_t>("the number of lists"),
               probes = value<std::uint64_t>("nprobe");
    if (lists < 1 || lists > most_lists)
      refuse(fmt::format("there are {} lists, where 1 to {} can be", lists, most_lists));
    out.lists = static_cast<std::int64_t>(lists);
    out.probes = static_cast<std::int64_t>(std::clamp(probes, std::uint64_t{1}, lists));
    out.centroids = std::make_shared<FaissContent>(index(depth + 1));
    if (out.trained && (out.centroids->dim != out.dim || out.centroids->size() != out.lists))
      refuse(fmt::format("{} lists of {} columns have a quantiser of {} centroids and {} columns",
                         lists, out.dim, out.centroids->size(), out.centroids->dim));
    direct_map();
    (this->*form)(out, about.rows);
    return out;
  }

  void read_vectors(FaissContent& out, std::int64_t rows) {
    const Matrix<std::uint8_t> bytes = read_lists(out, rows, out.dim * std::int64_t{sizeof(float)});
    out.rows = AnyMatrix(ElementType::f32, rows, out.dim);
    const auto size = static_cast<std::size_t>(bytes.rows() * bytes.cols());
    if (size > 0) std::memcpy(out.rows.row(0), bytes.data(), size);
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
    if (bits < 1 || bits > 24)
      refuse(fmt::format("its ProductQuantizer has {} bits, where 1 to 24 can be", bits));
    if (bits != 4 && bits != 8)
      not_read(fmt::format("a ProductQuantizer of {} bits", bits), yes, "4 and 8 bits");
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
  // FAISS's numbers of the types of scalar quantisers; "uniform": one range for all columns.
  static constexpr std::int32_t bits8 = 0, bits4 = 1, uniform8 = 2, uniform4 = 3, f16 = 4,
                                direct = 5, bits6 = 6, bf16 = 7, direct_signed = 8;
  // Returns the type.
  std::int32_t scalar(FaissContent& out) {
    const auto kind = value<std::int32_t>("the quantizer");
    take(8, "the quantizer");  // how its range was found
    const auto dim = value<std::uint64_t>("the quantizer");
    const auto size = value<std::uint64_t>("the quantizer");
    if (dim != static_cast<std::uint64_t>(out.dim))
      refuse(fmt::format("its quantizer has {} columns, where {} are due", dim, out.dim));
    switch (kind) {
      case f16:
      case bf16:
        out.rounded = kind == f16 ? ElementType::f16 : ElementType::bf16;
        floats(0, "levels");
        break;
      case bits8:
      case bits4:
      case uniform8:
      case uniform4:
        out.codes = CodeShape{0, kind == bits8 || kind == uniform8 ? 8 : 4, false};
        if (!out.trained)
          take(static_cast<std::uint64_t>(count(sizeof(float), "levels")) * 4, "levels");
        else
          set_levels(out, floats(kind <= bits4 ? 2 * out.dim : 2, "levels"));
        break;
      case direct:
      case direct_signed:
        out.codes = CodeShape{0, 8, false};
        floats(0, "levels");
        out.quantizer.assign(static_cast<std::size_t>(out.dim), kind == direct ? 0.0f : -128.0f);
        out.quantizer.resize(static_cast<std::size_t>(2 * out.dim), 1.0f);
        break;
      default:
        if (!is_faiss_scalar(kind))
          refuse(fmt::format("its ScalarQuantizer is of type {}, which FAISS has not", kind));
        not_read(fmt::format("a ScalarQuantizer of type {}", name_of_faiss_scalar(kind)),
                 kind == bits6 ? yes : no,
                 "QT_8bit, QT_4bit, their uniform and direct forms, QT_fp16 and QT_bf16");
    }
    if (size != static_cast<std::uint64_t>(code_size(out)))
      refuse(fmt::format("its codes have {} bytes, where {} are due", size, code_size(out)));
    return kind;
  }
  // Of the least values and then the widths of columns, or one of each for all: a code c of FAISS
  // stands for the middle of its range, least + width (c + 1/2) / 255.
  static void set_levels(FaissContent& out, const std::vector<float>& ranges) {
    const float levels = out.codes->bits == 8 ? 255 : 15;
    const auto dim = static_cast<std::size_t>(out.dim), each = ranges.size() / 2;
    out.quantizer.resize(2 * dim);
    for (std::size_t j = 0; j < dim; ++j) {
      const float least = ranges[each == dim ? j : 0], width = ranges[each + (each == dim ? j : 0)];
      out.quantizer[j] = least + width * 0.5f / levels, out.quantizer[dim + j] = width / levels;
    }
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
    out.rows = AnyMatrix(*out.rounded, codes.rows(), out.dim);
    const auto size = static_cast<std::size_t>(codes.rows() * codes.cols());
    if (size > 0) std::memcpy(out.rows.row(0), codes.data(), size);
  }

  FaissContent flat_product() {
    const Header about = header();
    FaissContent out{.dim = about.dim, .metric = about.metric, .trained = about.trained};
    product(out);
    read_codes(out, about.rows);
    take(4, "the kind of search");
    if (flag("encode_signs")) not_read("an IndexPQ whose codes are signs (encode_signs)");
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
  void check_code_size(const FaissContent& out, std::uint64_t size) const {
    if (size != static_cast<std::uint64_t>(code_size(out)))
      refuse(fmt::format("its codes have {} bytes, where {} are due", size, code_size(out)));
  }
  void read_product_lists(FaissContent& out, std::int64_t rows) {
    const bool residual = flag("by_residual");
    const auto size = value<std::uint64_t>("the size of codes");
    product(out);
    out.codes->residual = residual;
    check_code_size(out, size);
    set_codes(out, read_lists(out, rows, code_size(out)));
  }
  void read_scalar_lists(FaissContent& out, std::int64_t rows) {
    const std::int32_t kind = scalar(out);
    const auto size = value<std::uint64_t>("the size of codes");
    const bool residual = flag("by_residual");
    if (kind == direct && residual)
      not_read("an IndexIVFScalarQuantizer of QT_8bit_direct with by_residual");
    if (out.rounded)
      out.rounded_residuals = residual;
    else
      out.codes->residual = residual;
    check_code_size(out, size);
    set_codes(out, read_lists(out, rows, code_size(out)));
  }

  // Codes of 4 bits as FAISS scans them fast: rows in blocks of a multiple of 32, and of each 32
  // rows two parts of a code together, in 16 bytes each.
  class Blocks {
   public:
    Blocks(std::int64_t parts, std::int64_t rows_of_block)
        : pairs_((parts + 1) / 2), rows_(rows_of_block) {}

    std::int64_t bytes() const { return pairs_ * rows_; }  // of a block
    std::int64_t rows() const { return rows_; }
    // The code [(parts + 1) / 2 bytes] of a row of these blocks: the earlier part in the lower half
    // of a byte.
    void unpack(const std::uint8_t* blocks, std::int64_t row, std::uint8_t* code) const {
      const std::int64_t in_block = row % rows_, in_group = in_block % 32, in_half = in_group % 16;
      // Row 0 lies in byte 0, row 8 in byte 1, row 1 in byte 2, ...; rows 16 to 31 in upper halves.
      const std::int64_t at = in_half < 8 ? 2 * in_half : 2 * (in_half - 8) + 1;
      const int shift = in_group < 16 ? 0 : 4;
      const std::uint8_t* from = blocks + (row / rows_) * bytes() + in_block / 32 * 32 + at;
      for (std::int64_t pair = 0; pair < pairs_; ++pair, from += rows_)
        code[pair] =
            static_cast<std::uint8_t>((from[0] >> shift & 15) | (from[16] >> shift & 15) << 4);
    }

   private:
    const std::int64_t pairs_, rows_;
  };
  Blocks blocks_of(const FaissContent& out, std::uint64_t rows_of_block, std::uint64_t parts) {
    const auto own = static_cast<std::uint64_t>(out.codes->sub_quantizers);
    if (out.codes->bits != 4 || rows_of_block < 32 || rows_of_block > 1024 ||
        rows_of_block % 32 != 0 || parts != own + own % 2)
      refuse(fmt::format("blocks of {} codes of {} parts are none of {} parts of 4 bits",
                         rows_of_block, parts, own));
    return {out.codes->sub_quantizers, static_cast<std::int64_t>(rows_of_block)};
  }
  std::uint64_t rows_of_block() {
    return static_cast<std::uint64_t>(std::max(0, value<std::int32_t>("the size of blocks")));
  }

  FaissContent flat_product_in_blocks() {
    const Header about = header();
    FaissContent out{.dim = about.dim, .metric = about.metric, .trained = about.trained};
    product(out);
    take(4, "the kind of search");
    const std::uint64_t of_block = rows_of_block();
    take(4, "the kind of search");
    const auto padded = value<std::uint64_t>("the size of blocks"),
               parts = value<std::uint64_t>("the size of blocks");
    const Blocks blocks = blocks_of(out, of_block, parts);
    const std::int64_t bytes = count(1, "codes");
    const std::int64_t whole = about.rows / blocks.rows() + (about.rows % blocks.rows() != 0);
    if (bytes % blocks.bytes() != 0 || bytes / blocks.bytes() != whole ||
        padded != static_cast<std::uint64_t>(whole) * of_block)
      refuse(fmt::format("{} codes in blocks of {} bytes are announced, but {} bytes follow",
                         about.rows, blocks.bytes(), bytes));
    const auto* from =
        reinterpret_cast<const std::uint8_t*>(take(static_cast<std::uint64_t>(bytes), "codes"));
    out.code_rows = Matrix<std::uint8_t>(about.rows, code_size(out));
    for (std::int64_t i = 0; i < about.rows; ++i) blocks.unpack(from, i, out.code_rows.row(i));
    return out;
  }
  void read_product_blocks(FaissContent& out, std::int64_t rows) {
    const bool residual = flag("by_residual");
    const auto size = value<std::uint64_t>("the size of codes");
    const std::uint64_t of_block = rows_of_block();
    const auto parts = value<std::uint64_t>("the size of blocks");
    take(12, "the kind of search");
    product(out);
    out.codes->residual = residual;
    check_code_size(out, size);
    const Blocks blocks = blocks_of(out, of_block, parts);
    const std::string type = letters();
    if (type != "ilbl") refuse_lists(type);
    const auto lists = value<std::uint64_t>("lists");
    value<std::uint64_t>("lists");  // of codes that lie one by one
    const auto rows_each = value<std::uint64_t>("lists"),
               bytes_each = value<std::uint64_t>("lists");
    if (lists != static_cast<std::uint64_t>(out.lists) || rows_each != of_block ||
        bytes_each != static_cast<std::uint64_t>(blocks.bytes()))
      refuse(fmt::format("{} lists of {} rows in {} bytes are announced, but {} of {} in {} follow",
                         out.lists, of_block, blocks.bytes(), lists, rows_each, bytes_each));
    std::vector<std::uint8_t> codes;
    const auto width = static_cast<std::size_t>(code_size(out));
    for (std::int64_t list = 0; list < out.lists; ++list) {
      const std::int64_t n = count(sizeof(Id), "ids"),
                         whole = (n + blocks.rows() - 1) / blocks.rows();
      const std::byte* ids = take(static_cast<std::uint64_t>(n) * sizeof(Id), "ids");
      const std::int64_t bytes = count(1, "codes");
      if (bytes % blocks.bytes() != 0 || bytes / blocks.bytes() != whole)
        refuse(fmt::format("list {} has {} rows in {} bytes", list, n, bytes));
      const auto* from =
          reinterpret_cast<const std::uint8_t*>(take(static_cast<std::uint64_t>(bytes), "codes"));
      const std::size_t before = out.ids.size(), more = static_cast<std::size_t>(n);
      out.ids.resize(before + more);
      if (n > 0) std::memcpy(out.ids.data() + before, ids, more * sizeof(Id));
      out.list_of.resize(before + more, static_cast<std::uint32_t>(list));
      codes.resize((before + more) * width);
      for (std::int64_t i = 0; i < n; ++i)
        blocks.unpack(from, i, codes.data() + (before + static_cast<std::size_t>(i)) * width);
    }
    if (std::ssize(out.ids) != rows)
      refuse(fmt::format("its lists have {} rows, where {} are announced", out.ids.size(), rows));
    out.code_rows = Matrix<std::uint8_t>(rows, code_size(out));
    std::copy(codes.begin(), codes.end(), out.code_rows.data());
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
  // The shape of a shift is a rotation's: there is no other word for it.
  std::pair<TransformShape, Transform> transform() {
    using Kind = TransformShape::Kind;
    constexpr std::string_view what = "a transform";
    const std::int64_t begin = at_;
    const std::string type = letters();
    TransformShape shape{};
    const bool pca = type == "Pcam" || type == "PcAm" || type == "PCAm", shift = type == "VCnt",
               linear = pca || type == "LTra" || type == "rrot" || type == "Viqm";
    if (!linear && !shift && type != "VNrm") {
      const std::string_view name = name_of_faiss_transform(type);
      at_ = begin;
      if (name.empty()) refuse(fmt::format("'{}' is no type of a transform", shown(type)));
      not_read(fmt::format("{} ({}) at byte {}", name, type, begin), type == "RmDT" ? yes : no);
    }
    shape.kind = pca ? Kind::pca : linear || shift ? Kind::rotation : Kind::unit_norm;
    if (pca) {
      shape.whiten = value<float>(what) != 0;
      if (type == "Pcam") take(4, what);
      shape.rotate = flag(what);
      if (type != "PCAm") take(4, what);
      for (int i = 0; i < 3; ++i) some_floats(what);  // it is in the matrix
    }
    if (type == "Viqm") take(8, what);  // how it was found
    random_rotation_ = type == "rrot";
    std::vector<float> matrix, offset;
    if (linear) {
      const bool biased = flag(what);
      matrix = some_floats("a matrix");
      offset = some_floats("an offset");
      if (!biased) offset.clear();
    } else if (shift) {
      offset = some_floats("a mean");
      for (float& x : offset) x = -x;
    } else if (const auto norm = value<float>(what); norm != 2) {
      not_read(fmt::format("a NormalizationTransform by norm {}", norm), yes, "norm 2");
    }
    const auto in = value<std::int32_t>(what), out = value<std::int32_t>(what);
    if (in < 1 || in > 65536 || out < 1 || out > 65536 || (!linear && in != out) ||
        (shift && std::ssize(offset) != in))
      refuse(fmt::format("a transform has {} columns and makes {} of them", in, out));
    if (!flag(what))
      not_read(fmt::format("{} ({}) that is not trained", name_of_faiss_transform(type), type),
               yes);
    shape.dim_out = out;
    if (pca && out > in) refuse(fmt::format("a PCA makes {} columns of {}", out, in));
    return {shape, linear  ? linear_body(out, in, std::move(matrix), std::move(offset))
                   : shift ? Transform::shift(offset)
                           : Transform::unit_norm(in)};
  }
  // Adds a transform to others. One that only shifts is a part of the linear one before or after
  // it, if there is one.
  static void add_transform(FaissContent& to, TransformShape shape, Transform one) {
    using Kind = TransformShape::Kind;
    const auto only_shifts = [](const Transform& some) {
      const auto steps = some.steps();
      return steps.size() == 1 && steps[0].kind == Transform::Kind::shift;
    };
    const bool joins = !to.transforms.empty() && to.transforms.back().kind != Kind::unit_norm &&
                       shape.kind != Kind::unit_norm;
    if (joins && only_shifts(one)) {
      to.chain.back() = Transform::chain({to.chain.back(), one});
    } else if (joins && only_shifts(to.chain.back())) {
      to.chain.back() = Transform::chain({to.chain.back(), one}), to.transforms.back() = shape;
    } else {
      to.transforms.push_back(shape), to.chain.push_back(std::move(one));
    }
  }

  FaissContent transformed(int depth) {
    const Header about = header();
    const auto count_of = value<std::int32_t>("the transforms");
    if (count_of < 0 || count_of > 16) refuse(fmt::format("it has {} transforms", count_of));
    FaissContent before;
    std::int64_t dim = about.dim;
    for (int i = 0; i < count_of; ++i) {
      auto [shape, one] = transform();
      if (one.dim_in() != dim)
        refuse(fmt::format("a transform takes {} columns, not {}", one.dim_in(), dim));
      dim = one.dim_out();
      add_transform(before, shape, std::move(one));
    }
    FaissContent out = index(depth + 1);
    if (out.dim != dim || out.metric != about.metric)
      refuse(fmt::format("transforms make {} columns, but the index has {}", dim, out.dim));
    if (out.fine) not_read("an IndexRefine behind transforms", yes, "one that is before them");
    for (std::size_t i = 0; i < out.transforms.size(); ++i)
      add_transform(before, out.transforms[i], std::move(out.chain[i]));
    out.transforms = std::move(before.transforms), out.chain = std::move(before.chain);
    // A rotation before a product quantiser is most likely OPQ's, unless it is a random one.
    if (!random_rotation_ && out.codes && out.codes->is_product() && !out.transforms.empty() &&
        out.transforms.back().kind == TransformShape::Kind::rotation &&
        out.transforms.back().dim_out <= out.chain.back().dim_in()) {
      out.transforms.back().kind = TransformShape::Kind::opq;
      out.transforms.back().sub_quantizers = out.codes->sub_quantizers;
      out.transforms.back().bits = out.codes->bits;
    }
    out.dim = about.dim;
    return out;
  }

  // Whether an index of vectors, in whatever order, has those of another in the order of its ids.
  static bool are_the_same(const FaissContent& a, const FaissContent& in_order) {
    if (a.dim != in_order.dim || a.size() != in_order.size() || a.metric != in_order.metric)
      return false;
    const AnyMatrixView ours = a.rows.view(), theirs = in_order.rows.view();
    const auto bytes = static_cast<std::size_t>(a.dim) * sizeof(float);
    for (std::int64_t i = 0; i < a.size(); ++i) {
      const Id id = a.ids.empty() ? i : a.ids[static_cast<std::size_t>(i)];
      if (id < 0 || id >= a.size() || std::memcmp(ours.row(i), theirs.row(id), bytes) != 0)
        return false;
    }
    return true;
  }

  FaissContent refined(int depth) {
    const Header about = header();
    FaissContent out = index(depth + 1), fine = index(depth + 1);
    out.k_factor = value<float>("k_factor");
    if (!fine.is_plain())
      not_read("an IndexRefine whose refine_index is of another type", yes,
               "an IndexFlat, IndexScalarQuantizer or IndexPQ there");
    // Vectors that are measured again by themselves stay where they are.
    if (out.is_of_vectors() && fine.is_of_vectors() && are_the_same(out, fine)) return out;
    if (!out.codes || out.fine)
      not_read(fmt::format("an {} of an index without codes",
                           fine.is_of_vectors() ? "IndexRefineFlat" : "IndexRefine"),
               yes, "one that refines codes");
    if (fine.dim != about.dim || out.dim != about.dim || fine.size() != out.size() ||
        fine.metric != out.metric || (fine.codes && fine.trained != out.trained))
      refuse(fmt::format("{} codes of {} columns are refined by {} rows of {}", out.size(), out.dim,
                         fine.size(), fine.dim));
    // In the order of the codes.
    const AnyMatrixView from = fine.codes ? AnyMatrixView(fine.code_rows.view()) : fine.rows.view();
    AnyMatrix rows(from.type(), from.rows(), from.cols());
    const auto bytes = static_cast<std::size_t>(from.cols() * size_of(from.type()));
    for (std::int64_t i = 0; i < out.size(); ++i) {
      const Id id = out.ids.empty() ? i : out.ids[static_cast<std::size_t>(i)];
      if (id < 0 || id >= out.size()) refuse(fmt::format("id {} has no vector", id));
      std::memcpy(rows.row(i), from.row(id), bytes);
    }
    fine.rows = std::move(rows), fine.code_rows = {};
    out.fine = std::make_shared<FaissContent>(std::move(fine));
    return out;
  }

  [[noreturn]] void refuse_lists(std::string_view type) {
    at_ -= 4;
    const std::string_view name = name_of_faiss_lists(type);
    if (name.empty()) refuse(fmt::format("'{}' is no type of inverted lists", shown(type)));
    not_read(fmt::format("{} ({}) at byte {}", name, type, at_));
  }

  // The rows of lists, of so many bytes each.
  Matrix<std::uint8_t> read_lists(FaissContent& out, std::int64_t rows,
                                  std::int64_t row_bytes_wanted) {
    const std::string type = letters();
    if (type != "ilar") refuse_lists(type);
    const auto row_bytes = static_cast<std::uint64_t>(row_bytes_wanted);
    const auto lists = value<std::uint64_t>("lists"), size_of_code = value<std::uint64_t>("lists");
    if (lists != static_cast<std::uint64_t>(out.lists) || size_of_code != row_bytes)
      refuse(fmt::format("{} lists with codes of {} bytes are announced, but {} of {} bytes follow",
                         out.lists, row_bytes, lists, size_of_code));
    // Of those lists that are named, by number: there may be far more than a file has bytes.
    std::map<std::uint64_t, std::uint64_t> sizes;
    const std::string form = letters();
    if (form != "full" && form != "sprs") refuse("the sizes of its lists have no known form");
    const std::int64_t numbers = count(8, "sizes of lists");
    const bool full = form == "full";
    if (full ? numbers != out.lists : numbers % 2 != 0) refuse("its lists have other sizes");
    for (std::int64_t i = 0; i < numbers; ++i) {
      const auto number = value<std::uint64_t>("sizes of lists");
      if (full) {
        if (number > 0) sizes[static_cast<std::uint64_t>(i)] = number;
      } else {
        if (number >= lists) refuse(fmt::format("list {} is named, of {}", number, lists));
        sizes[number] = value<std::uint64_t>("sizes of lists"), ++i;
      }
    }
    std::uint64_t sum = 0;
    for (const auto& [list, size] : sizes)
      if (__builtin_add_overflow(sum, size, &sum)) sum = ~std::uint64_t{0};
    if (sum != static_cast<std::uint64_t>(rows) ||
        sum > static_cast<std::uint64_t>(file_.size() - at_) / (row_bytes + 8))
      refuse(fmt::format("its lists have {} rows, where {} are announced and {} bytes are left",
                         sum, rows, file_.size() - at_));
    Matrix<std::uint8_t> found(rows, row_bytes_wanted);
    out.ids.resize(static_cast<std::size_t>(rows));
    out.list_of.clear();
    std::uint64_t row = 0;
    for (const auto& [list, size] : sizes) {
      if (size == 0) continue;
      std::memcpy(found.row(static_cast<std::int64_t>(row)), take(size * row_bytes, "vectors"),
                  size * row_bytes);
      std::memcpy(out.ids.data() + row, take(size * 8, "ids"), size * 8);
      out.list_of.insert(out.list_of.end(), size, static_cast<std::uint32_t>(list));
      row += size;
    }
    return found;
  }

  std::string path_;
  io::MappedFile file_;
  std::int64_t at_ = 0;
  bool random_rotation_ = false;  // whether the last linear transform that was read is one
};

}  // namespace

void refuse_faiss(const std::string& path, std::string_view what, FaissModuleReads module,
                  std::string_view reads) {
  throw FaissNotRead(
      fmt::format("{} holds {}, which {}{}{}", path, what,
                  module == FaissModuleReads::yes
                      ? "knear.Index does not read, but knear.faiss.read_index in Python does"
                      : "knear does not read",
                  reads.empty() ? "" : "; knear.Index reads ", reads));
}

FaissContent read_faiss_content(const std::string& path) {
  try {
    return Reader(path).read();
  } catch (const FaissNotRead&) {
    throw;
  } catch (const InvalidArgument& error) {  // a transform that is none
    throw CorruptFile("{}: {}", path, error.what());
  }
}

}  // namespace knear::detail
