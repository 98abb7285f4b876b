// Codes of a scalar quantiser (quantize/scalar_quantizer.hpp), a level for each column: SQ8, SQ4.
// A scan takes them for those of a product quantiser that has each level as a centroid.
#include <algorithm>
#include <utility>

#include "knear/core/error.hpp"
#include "knear/index/codecs/faiss_fields.hpp"
#include "knear/index/codecs/faiss_types.hpp"
#include "knear/quantize/product_quantizer.hpp"

namespace knear::detail {
namespace {

ScalarCode code_of(const CodeShape& shape) {
  return shape.bits == 8 ? ScalarCode::bits8 : ScalarCode::bits4;
}

ProductQuantizer product_of(const ScalarQuantizer& scalar) {
  const int bits = scalar.code() == ScalarCode::bits8 ? 8 : 4;
  const std::int64_t count = std::int64_t{1} << bits, dim = scalar.dim();
  const std::span<const float> low = scalar.low(), step = scalar.step();
  Matrix<float> centroids = Matrix<float>::unset(dim * count, 1);
  for (std::int64_t j = 0; j < dim; ++j)
    for (std::int64_t c = 0; c < count; ++c)  // rounded as ScalarQuantizer::decode() rounds
      centroids.row(j * count + c)[0] =
          static_cast<float>(low[j] + static_cast<double>(c) * double{step[j]});
  return ProductQuantizer::from_centroids(std::move(centroids), dim, bits);
}

class LevelsOfRows final : public RowQuantizer {
 public:
  explicit LevelsOfRows(ScalarQuantizer scalar)
      : scalar_(std::move(scalar)), product_(product_of(scalar_)) {}

  const CodeBook& book() const override { return product_.book(); }
  std::vector<std::span<const float>> numbers() const override {
    return {scalar_.low(), scalar_.step()};
  }
  Matrix<std::uint8_t> encode(MatrixView<float> rows) const override {
    return scalar_.encode(rows, 1);
  }
  void decode(std::span<const std::uint8_t* const> codes, std::int64_t stride,
              float* out) const override {
    for (const std::uint8_t* code : codes) {
      if (stride == 1)
        scalar_.decode_one(code, out);  // levels are quicker computed than looked up
      else
        book().decode(code, stride, out);
      out += dim();
    }
  }
  const ScalarQuantizer* levels() const override { return &scalar_; }

 private:
  const ScalarQuantizer scalar_;
  const ProductQuantizer product_;
};

// FAISS's numbers of the types of scalar quantisers; "uniform": one range for all columns.
struct FaissScalar {
  static constexpr std::int32_t bits8 = 0, bits4 = 1, uniform8 = 2, uniform4 = 3, f16 = 4,
                                direct = 5, bits6 = 6, bf16 = 7, direct_signed = 8;
};
// Sets the levels by the least values and then the widths of columns, or by one of each for all. A
// code c of FAISS stands for the middle of its range, least + width (c + 1/2) / 255.
void set_levels(FaissRows& out, const std::vector<float>& ranges) {
  const float levels = out.codes->bits == 8 ? 255 : 15;
  const auto dim = static_cast<std::size_t>(out.dim), each = ranges.size() / 2;
  out.quantizer.resize(2 * dim);
  for (std::size_t j = 0; j < dim; ++j) {
    const float least = ranges[each == dim ? j : 0], width = ranges[each + (each == dim ? j : 0)];
    out.quantizer[j] = least + width * 0.5f / levels, out.quantizer[dim + j] = width / levels;
  }
}
// Returns the type.
std::int32_t read_scalar(FaissFields& in, FaissRows& out) {
  const auto kind = in.value<std::int32_t>("the quantizer");
  in.take(8, "the quantizer");  // how its range was found
  const auto dim = in.value<std::uint64_t>("the quantizer");
  const auto size = in.value<std::uint64_t>("the quantizer");
  if (dim != static_cast<std::uint64_t>(out.dim))
    in.refuse(fmt::format("its quantizer has {} columns, where {} are due", dim, out.dim));
  switch (kind) {
    case FaissScalar::f16:
    case FaissScalar::bf16:
      out.rounded = kind == FaissScalar::f16 ? ElementType::f16 : ElementType::bf16;
      in.floats(0, "levels");
      break;
    case FaissScalar::bits8:
    case FaissScalar::bits4:
    case FaissScalar::uniform8:
    case FaissScalar::uniform4:
      out.codes =
          CodeShape{CodeKind::scalar, 0,
                    kind == FaissScalar::bits8 || kind == FaissScalar::uniform8 ? 8 : 4, false};
      if (!out.trained)
        in.take(static_cast<std::uint64_t>(in.count(sizeof(float), "levels")) * 4, "levels");
      else
        set_levels(out, in.floats(kind <= FaissScalar::bits4 ? 2 * out.dim : 2, "levels"));
      break;
    case FaissScalar::direct:
    case FaissScalar::direct_signed:
      out.codes = CodeShape{CodeKind::scalar, 0, 8, false};
      in.floats(0, "levels");
      out.quantizer.assign(out.dim, kind == FaissScalar::direct ? 0.0f : -128.0f);
      out.quantizer.resize(2 * out.dim, 1.0f);
      break;
    default:
      if (!is_faiss_scalar(kind))
        in.refuse(fmt::format("its ScalarQuantizer is of type {}, which FAISS has not", kind));
      in.not_read(fmt::format("a ScalarQuantizer of type {}", name_of_faiss_scalar(kind)),
                  kind == FaissScalar::bits6 ? FaissModuleReads::yes : FaissModuleReads::no,
                  "QT_8bit, QT_4bit, their uniform and direct forms, QT_fp16 and QT_bf16");
  }
  if (size != static_cast<std::uint64_t>(out.code_size()))
    in.refuse(fmt::format("its codes have {} bytes, where {} are due", size, out.code_size()));
  return kind;
}
void read_flat_scalar(FaissFields& in, FaissRows& out, std::int64_t rows) {
  read_scalar(in, out);
  in.read_codes(out, rows);
}
void read_listed_scalar(FaissFields& in, FaissRows& out, std::int64_t rows) {
  const std::int32_t kind = read_scalar(in, out);
  const auto size = in.value<std::uint64_t>("the size of codes");
  const bool residual = in.flag("by_residual");
  if (kind == FaissScalar::direct && residual)
    in.not_read("an IndexIVFScalarQuantizer of QT_8bit_direct with by_residual");
  if (out.rounded)
    out.rounded_residuals = residual;
  else
    out.codes->residual = residual;
  in.check_code_size(out, size);
  out.set_codes(in.read_lists(out, rows, out.code_size()));
}

// Writes a quantiser. kind: FAISS's number of the type. ranges: the least values of columns, then
// their widths.
void write_scalar(FaissWriter& writer, std::int32_t kind, std::int64_t dim, std::int64_t code_size,
                  std::span<const float> ranges) {
  writer.value(kind), writer.value(std::int32_t{0}), writer.value(0.0f);
  writer.value(static_cast<std::uint64_t>(dim));
  writer.value(static_cast<std::uint64_t>(code_size));
  writer.array(ranges);
}

class ScalarCodec final : public Codec {
 public:
  std::string_view kind() const override { return "SQ"; }
  std::string_view words() const override { return "SQ8, SQ4"; }
  std::optional<CodeShape> parse(std::string_view word, std::int64_t,
                                 const WrongWord&) const override {
    if (word == "SQ8") return CodeShape{CodeKind::scalar, 0, 8, false};
    if (word == "SQ4") return CodeShape{CodeKind::scalar, 0, 4, false};
    return {};
  }
  std::string name(const CodeShape& shape) const override {
    return fmt::format("SQ{}", shape.bits);
  }
  bool is_valid(const CodeShape& shape, std::int64_t) const override {
    return shape.parts == 0 && (shape.bits == 4 || shape.bits == 8);
  }
  std::int64_t code_size(const CodeShape& shape, std::int64_t dim) const override {
    return (dim * shape.bits + 7) / 8;
  }

  Quantizer train(const CodeShape& shape, MatrixView<float> rows,
                  const TrainOptions& options) const override {
    return std::make_shared<LevelsOfRows>(
        ScalarQuantizer::train(rows, code_of(shape), options.threads));
  }
  std::vector<Numbers> numbers(const CodeShape&, std::int64_t dim) const override {
    return {{"levels/low", dim}, {"levels/step", dim}};
  }
  Quantizer of_numbers(const CodeShape& shape, std::int64_t dim,
                       std::span<const float> all) const override {
    const std::size_t columns = dim;
    return std::make_shared<LevelsOfRows>(
        ScalarQuantizer::from_levels(code_of(shape), all.first(columns), all.subspan(columns)));
  }

  std::vector<FaissType> faiss_types() const override {
    return {{"IxSQ", false, read_flat_scalar}, {"IwSq", true, read_listed_scalar}};
  }
  std::string_view faiss_letters(bool in_lists) const override {
    return in_lists ? "IwSq" : "IxSQ";
  }
  void write_faiss(FaissWriter& writer, const RowQuantizer& quantizer) const override {
    const ScalarQuantizer& scalar = *quantizer.levels();
    const bool all_bits = scalar.code() == ScalarCode::bits8;
    std::vector<float> ranges;
    for (std::size_t j = 0; j < static_cast<std::size_t>(scalar.dim()); ++j)
      ranges.push_back(scalar.low()[j] - scalar.step()[j] / 2);
    for (const float step : scalar.step()) ranges.push_back(step * (all_bits ? 255.0f : 15.0f));
    write_scalar(writer, all_bits ? FaissScalar::bits8 : FaissScalar::bits4, scalar.dim(),
                 scalar.code_size(), ranges);
  }
  void write_faiss_of_lists(FaissWriter& writer, const RowQuantizer& quantizer,
                            bool residual) const override {
    write_faiss(writer, quantizer);
    writer.value(static_cast<std::uint64_t>(quantizer.book().code_size()));
    writer.value(static_cast<std::uint8_t>(residual));
  }
};

}  // namespace

void write_faiss_halves(FaissWriter& writer, ElementType type, std::int64_t dim) {
  write_scalar(writer, type == ElementType::f16 ? FaissScalar::f16 : FaissScalar::bf16, dim,
               2 * dim, {});
}

const Codec& scalar_codec() {
  static const ScalarCodec codec;
  return codec;
}

}  // namespace knear::detail
