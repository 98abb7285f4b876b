// Codes of a product quantiser (quantize/product_quantizer.hpp): PQm, PQmx4.
#include <algorithm>
#include <utility>

#include "knear/core/error.hpp"
#include "knear/index/codecs/faiss_fields.hpp"
#include "knear/quantize/product_quantizer.hpp"

namespace knear::detail {
namespace {

class ProductOfRows final : public RowQuantizer {
 public:
  explicit ProductOfRows(ProductQuantizer quantizer) : quantizer_(std::move(quantizer)) {}

  const CodeBook& book() const override { return quantizer_.book(); }
  std::vector<std::span<const float>> numbers() const override {
    const MatrixView<float> all = quantizer_.all_centroids();
    return {{all.data(), static_cast<std::size_t>(all.rows() * all.cols())}};
  }
  Matrix<std::uint8_t> encode(MatrixView<float> rows) const override {
    return quantizer_.encode(rows, 1);
  }
  void decode(std::span<const std::uint8_t* const> codes, std::int64_t stride,
              float* out) const override {
    for (const std::uint8_t* code : codes) book().decode(code, stride, out), out += dim();
  }

 private:
  const ProductQuantizer quantizer_;
};

void read_product(FaissFields& in, FaissRows& out) {
  const auto dim = in.value<std::uint64_t>("the quantizer"),
             parts = in.value<std::uint64_t>("the quantizer"),
             bits = in.value<std::uint64_t>("the quantizer");
  if (dim != static_cast<std::uint64_t>(out.dim) || parts < 1 || parts > dim || dim % parts != 0)
    in.refuse(fmt::format("its quantizer has {} parts of {} columns, where {} are due", parts, dim,
                          out.dim));
  if (bits < 1 || bits > 24)
    in.refuse(fmt::format("its ProductQuantizer has {} bits, where 1 to 24 can be", bits));
  if (bits != 4 && bits != 8)
    in.not_read(fmt::format("a ProductQuantizer of {} bits", bits), FaissModuleReads::yes,
                "4 and 8 bits");
  out.codes =
      CodeShape{CodeKind::product, static_cast<std::int64_t>(parts), static_cast<int>(bits), false};
  const std::int64_t numbers = out.dim << bits;
  if (!out.trained) {
    const std::int64_t given = in.count(sizeof(float), "centroids");
    in.take(static_cast<std::uint64_t>(given) * sizeof(float), "centroids");
    return;
  }
  out.quantizer = in.floats(numbers, "centroids");
}

void read_flat_product(FaissFields& in, FaissRows& out, std::int64_t rows) {
  read_product(in, out);
  in.read_codes(out, rows);
  in.take(4, "the kind of search");
  if (in.flag("encode_signs")) in.not_read("an IndexPQ whose codes are signs (encode_signs)");
  in.take(4, "the kind of search");
}
void read_listed_product(FaissFields& in, FaissRows& out, std::int64_t rows) {
  const bool residual = in.flag("by_residual");
  const auto size = in.value<std::uint64_t>("the size of codes");
  read_product(in, out);
  out.codes->residual = residual;
  in.check_code_size(out, size);
  out.set_codes(in.read_lists(out, rows, out.code_size()));
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
Blocks blocks_of(FaissFields& in, const FaissRows& out, std::uint64_t rows_of_block,
                 std::uint64_t parts) {
  const auto own = static_cast<std::uint64_t>(out.codes->parts);
  if (out.codes->bits != 4 || rows_of_block < 32 || rows_of_block > 1024 ||
      rows_of_block % 32 != 0 || parts != own + own % 2)
    in.refuse(fmt::format("blocks of {} codes of {} parts do not hold {} parts of 4 bits",
                          rows_of_block, parts, own));
  return {out.codes->parts, static_cast<std::int64_t>(rows_of_block)};
}
std::uint64_t rows_of_block(FaissFields& in) {
  return static_cast<std::uint64_t>(std::max(0, in.value<std::int32_t>("the size of blocks")));
}

void read_flat_blocks(FaissFields& in, FaissRows& out, std::int64_t rows) {
  read_product(in, out);
  in.take(4, "the kind of search");
  const std::uint64_t of_block = rows_of_block(in);
  in.take(4, "the kind of search");
  const auto padded = in.value<std::uint64_t>("the size of blocks"),
             parts = in.value<std::uint64_t>("the size of blocks");
  const Blocks blocks = blocks_of(in, out, of_block, parts);
  const std::int64_t bytes = in.count(1, "codes");
  const std::int64_t whole = rows / blocks.rows() + (rows % blocks.rows() != 0);
  if (bytes % blocks.bytes() != 0 || bytes / blocks.bytes() != whole ||
      padded != static_cast<std::uint64_t>(whole) * of_block)
    in.refuse(fmt::format("{} codes in blocks of {} bytes are announced, but {} bytes follow", rows,
                          blocks.bytes(), bytes));
  const auto* from =
      reinterpret_cast<const std::uint8_t*>(in.take(static_cast<std::uint64_t>(bytes), "codes"));
  out.code_rows = Matrix<std::uint8_t>(rows, out.code_size());
  for (std::int64_t i = 0; i < rows; ++i) blocks.unpack(from, i, out.code_rows.row(i));
}
void read_listed_blocks(FaissFields& in, FaissRows& out, std::int64_t rows) {
  const bool residual = in.flag("by_residual");
  const auto size = in.value<std::uint64_t>("the size of codes");
  const std::uint64_t of_block = rows_of_block(in);
  const auto parts = in.value<std::uint64_t>("the size of blocks");
  in.take(12, "the kind of search");
  read_product(in, out);
  out.codes->residual = residual;
  in.check_code_size(out, size);
  const Blocks blocks = blocks_of(in, out, of_block, parts);
  const std::string type = in.letters();
  if (type != "ilbl") in.refuse_lists(type);
  const auto lists = in.value<std::uint64_t>("lists");
  in.value<std::uint64_t>("lists");  // of codes that lie one by one
  const auto rows_each = in.value<std::uint64_t>("lists"),
             bytes_each = in.value<std::uint64_t>("lists");
  if (lists != static_cast<std::uint64_t>(out.lists) || rows_each != of_block ||
      bytes_each != static_cast<std::uint64_t>(blocks.bytes()))
    in.refuse(
        fmt::format("{} lists of {} rows in {} bytes are announced, but {} of {} in {} follow",
                    out.lists, of_block, blocks.bytes(), lists, rows_each, bytes_each));
  std::vector<std::uint8_t> codes;
  const std::size_t width = out.code_size();
  for (std::int64_t list = 0; list < out.lists; ++list) {
    const std::int64_t n = in.count(sizeof(Id), "ids"),
                       whole = (n + blocks.rows() - 1) / blocks.rows();
    const std::byte* ids = in.take(static_cast<std::uint64_t>(n) * sizeof(Id), "ids");
    const std::int64_t bytes = in.count(1, "codes");
    if (bytes % blocks.bytes() != 0 || bytes / blocks.bytes() != whole)
      in.refuse(fmt::format("list {} has {} rows in {} bytes", list, n, bytes));
    const auto* from =
        reinterpret_cast<const std::uint8_t*>(in.take(static_cast<std::uint64_t>(bytes), "codes"));
    const std::size_t before = out.ids.size(), more = static_cast<std::size_t>(n);
    out.ids.resize(before + more);
    if (n > 0) std::memcpy(out.ids.data() + before, ids, more * sizeof(Id));
    out.list_of.resize(before + more, static_cast<std::uint32_t>(list));
    codes.resize((before + more) * width);
    for (std::int64_t i = 0; i < n; ++i)
      blocks.unpack(from, i, codes.data() + (before + static_cast<std::size_t>(i)) * width);
  }
  if (std::ssize(out.ids) != rows)
    in.refuse(fmt::format("its lists have {} rows, where {} are announced", out.ids.size(), rows));
  out.code_rows = Matrix<std::uint8_t>(rows, out.code_size());
  std::copy(codes.begin(), codes.end(), out.code_rows.data());
}

class ProductCodec final : public Codec {
 public:
  std::string_view kind() const override { return "PQ"; }
  std::string_view words() const override { return "PQm, PQmx4"; }
  std::optional<CodeShape> parse(std::string_view word, std::int64_t dim,
                                 const WrongWord& wrong) const override {
    if (!word.starts_with("PQ")) return {};
    CodeShape out{CodeKind::product, 0, 8, false};
    // Codes of 4 bits are always scanned fast.
    for (const std::string_view end : {"x4fs", "x4", "x8"})
      if (word.ends_with(end)) {
        out.bits = end == "x8" ? 8 : 4;
        word.remove_suffix(end.size());
        break;
      }
    const auto parts = number_after("PQ", word);
    if (!parts) wrong("which is no product quantizer: PQm, PQmx4, PQmx8 are");
    check_parts(*parts, dim, wrong);
    out.parts = *parts;
    return out;
  }
  std::string name(const CodeShape& shape) const override {
    return fmt::format("PQ{}{}", shape.parts, shape.bits == 4 ? "x4" : "");
  }
  bool is_valid(const CodeShape& shape, std::int64_t dim) const override {
    return shape.parts > 0 && dim % shape.parts == 0 && (shape.bits == 4 || shape.bits == 8);
  }
  std::int64_t code_size(const CodeShape& shape, std::int64_t) const override {
    return (shape.parts * shape.bits + 7) / 8;
  }
  bool has_parts() const override { return true; }

  std::int64_t least_rows(const CodeShape& shape) const override {
    return std::int64_t{1} << shape.bits;
  }
  Quantizer train(const CodeShape& shape, MatrixView<float> rows,
                  const TrainOptions& options) const override {
    return std::make_shared<ProductOfRows>(ProductQuantizer::train(rows, shape.parts, shape.bits,
                                                                   {.seed = options.seed,
                                                                    .most_rows = 0,
                                                                    .threads = options.threads,
                                                                    .progress = options.progress}));
  }
  std::vector<Numbers> numbers(const CodeShape& shape, std::int64_t dim) const override {
    return {{"quantizer", dim << shape.bits}};
  }
  Quantizer of_numbers(const CodeShape& shape, std::int64_t dim,
                       std::span<const float> all) const override {
    return std::make_shared<ProductOfRows>(ProductQuantizer::from_centroids(
        {all.data(), shape.parts << shape.bits, dim / shape.parts}, shape.parts, shape.bits));
  }

  std::vector<FaissType> faiss_types() const override {
    return {{"IxPq", false, read_flat_product},
            {"IPfs", false, read_flat_blocks},
            {"IwPQ", true, read_listed_product},
            {"IwPf", true, read_listed_blocks}};
  }
  std::string_view faiss_letters(bool in_lists) const override {
    return in_lists ? "IwPQ" : "IxPq";
  }
  void write_faiss(FaissWriter& writer, const RowQuantizer& quantizer) const override {
    const CodeBook& book = quantizer.book();
    writer.value(static_cast<std::uint64_t>(book.dim()));
    writer.value(static_cast<std::uint64_t>(book.parts()));
    writer.value(static_cast<std::uint64_t>(book.bits()));
    writer.array(quantizer.numbers()[0]);
  }
  void write_faiss_of_lists(FaissWriter& writer, const RowQuantizer& quantizer,
                            bool residual) const override {
    writer.value(static_cast<std::uint8_t>(residual));
    writer.value(static_cast<std::uint64_t>(quantizer.book().code_size()));
    write_faiss(writer, quantizer);
  }
  void write_faiss_end(FaissWriter& writer) const override {  // the kind of search
    writer.value(std::int32_t{0}), writer.value(std::uint8_t{0}), writer.value(std::int32_t{0});
  }
};

}  // namespace

const Codec& product_codec() {
  static const ProductCodec codec;
  return codec;
}

}  // namespace knear::detail
