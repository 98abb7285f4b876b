// knear/index/codecs/codec.hpp -- kinds of codes. A codec says how it is named, what it learns, how
// a row becomes a few bytes and how these are scanned; each is a source of its own beside this
// header and a line of all_codecs(). What an index adds (inverted lists, residuals, metrics, a
// scalar for each row) is the same for all (quantizers/row_coder.hpp).
//
//   const Codec& codec = codec_of(CodeKind::product);
//   const auto quantizer = codec.train({CodeKind::product, 16, 8}, rows, options);
//   const Matrix<std::uint8_t> codes = quantizer->encode(rows);
//
// The bytes of a code begin with those that CodeBook describes, which a scan sums up. A codec that
// needs more numbers of a row, such as a factor of its length or a bound of its error, appends them
// to the code. They lie in groups of 64 rows as all bytes do, so a kernel loads four runs of 64
// bytes for 64 floats; and merging, files, FAISS's files, refinement and devices move a code
// without knowing what is in it.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "knear/core/matrix.hpp"
#include "knear/index/options.hpp"
#include "knear/quantize/scalar_quantizer.hpp"
#include "knear/scan/packing/code_book.hpp"

namespace knear::detail {

class FaissFields;
class FaissWriter;
struct FaissRows;

// Each codec, in the order of all_codecs().
enum class CodeKind : std::uint8_t { product, scalar };

// The codes of an index.
struct CodeShape {
  CodeKind kind = CodeKind::scalar;
  std::int64_t parts = 0;  // of a product quantiser; 0 of other codecs
  int bits = 8;            // of each part, or of each column
  bool residual = true;    // with inverted lists: codes of what is left beside the centroid

  // As the factory writes it: "PQ32", "PQ32x4", "SQ8".
  std::string name() const;
  bool operator==(const CodeShape&) const = default;
};

// A codec that has learned. Any number of threads may use one.
class RowQuantizer {
 public:
  virtual ~RowQuantizer() = default;

  // Says what the first bytes of a code stand for, as a scan takes them.
  virtual const CodeBook& book() const = 0;
  virtual std::int64_t dim() const { return book().dim(); }  // of rows
  // The numbers that make it again, in the order of Codec::numbers().
  virtual std::vector<std::span<const float>> numbers() const = 0;
  virtual bool equals(const RowQuantizer& other) const {
    return same_bits(book().centroids(), other.book().centroids());
  }

  // The codes [n x code_size] of finite rows [n x dim], in one thread.
  virtual Matrix<std::uint8_t> encode(MatrixView<float> rows) const = 0;
  // Writes what codes, whose bytes lie `stride` apart, stand for: out [codes x dim].
  virtual void decode(std::span<const std::uint8_t* const> codes, std::int64_t stride,
                      float* out) const = 0;
  // Turns a vector [dim] in place into the space of the book [book().dim()].
  virtual void turn(double* /*vector*/) const {}
  virtual bool turns() const { return false; }
  // The levels of columns, if codes are nothing else.
  virtual const ScalarQuantizer* levels() const { return nullptr; }
};

// Refuses a word of a factory string: throws.
using WrongWord = std::function<void(std::string_view why)>;
// The number after a name that a word begins with; of one that is too large the largest, which is
// refused as such.
std::optional<std::int64_t> number_after(std::string_view name, std::string_view word);
// Refuses a number of parts that does not divide the columns; 0 columns: they are not known.
void check_parts(std::int64_t parts, std::int64_t columns, const WrongWord& wrong);

class Codec {
 public:
  using Quantizer = std::shared_ptr<const RowQuantizer>;

  virtual ~Codec() = default;

  // "PQ": an index is of the kind "PQ" or "IVFPQ".
  virtual std::string_view kind() const = 0;
  // The words that name its shapes, for messages: "PQm, PQmx4".
  virtual std::string_view words() const = 0;
  // The shape that a word of a factory string names, of vectors of `dim` columns, 0: not known;
  // nothing for a word of another codec. Calls wrong(why), which throws, for one that is almost
  // its own.
  virtual std::optional<CodeShape> parse(std::string_view word, std::int64_t dim,
                                         const WrongWord& wrong) const = 0;
  virtual std::string name(const CodeShape& shape) const = 0;
  virtual bool is_valid(const CodeShape& shape, std::int64_t dim) const = 0;
  // Bytes of a code.
  virtual std::int64_t code_size(const CodeShape& shape, std::int64_t dim) const = 0;
  // Whether it divides the columns into parts, which fit no other number of columns, and for which
  // OPQ finds a rotation.
  virtual bool has_parts() const { return false; }

  // Rows that training takes at least.
  virtual std::int64_t least_rows(const CodeShape&) const { return 1; }
  // Learns from what will be coded: finite rows.
  virtual Quantizer train(const CodeShape& shape, MatrixView<float> rows,
                          const TrainOptions& options) const = 0;
  // The sections of a file that keep what it has learned, and how many floats are in each.
  struct Numbers {
    std::string_view section;
    std::int64_t count;
  };
  virtual std::vector<Numbers> numbers(const CodeShape& shape, std::int64_t dim) const = 0;
  // Makes it again of finite numbers, as many as numbers() says. Throws InvalidArgument for
  // numbers that are none of this codec.
  virtual Quantizer of_numbers(const CodeShape& shape, std::int64_t dim,
                               std::span<const float> all) const = 0;
  std::int64_t count_of_numbers(const CodeShape& shape, std::int64_t dim) const;

  // FAISS's indexes of such codes: the letters that each begins with, and what reads it after the
  // header and, in lists, after the centroids. `rows`: how many rows are announced.
  struct FaissType {
    std::string_view letters;
    bool in_lists;
    void (*read)(FaissFields& in, FaissRows& out, std::int64_t rows);
  };
  virtual std::vector<FaissType> faiss_types() const { return {}; }
  // The letters that are written; none: FAISS has no such codes.
  virtual std::string_view faiss_letters(bool /*in_lists*/) const { return {}; }
  // Writes what stands before the codes, and behind those that are not in lists.
  virtual void write_faiss(FaissWriter&, const RowQuantizer&) const {}
  virtual void write_faiss_of_lists(FaissWriter&, const RowQuantizer&, bool /*residual*/) const {}
  virtual void write_faiss_end(FaissWriter&) const {}
};

// All codecs, in the order of CodeKind.
std::span<const Codec* const> all_codecs();
const Codec& codec_of(CodeKind kind);
inline const Codec& codec_of(const CodeShape& shape) { return codec_of(shape.kind); }
// Their words: "PQm, PQmx4, SQ8, SQ4".
std::string words_of_codecs();

// Each of these is defined in its own source.
const Codec& product_codec();
const Codec& scalar_codec();

}  // namespace knear::detail
