// knear/index/codecs/faiss_fields.hpp -- the fields of FAISS's files: numbers and arrays one after
// another, no lengths and no checksums. Whatever is read is checked against what is left of the
// file before memory is taken. The codecs read and write their parts by this; index/faiss has the
// rest.
#pragma once
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/core/matrix.hpp"
#include "knear/core/neighbors.hpp"
#include "knear/index/codecs/codec.hpp"
#include "knear/io/atomic_file.hpp"
#include "knear/io/byte_source.hpp"

namespace knear::detail {

// Whether knear.faiss.read_index() of the Python package reads a file that Index::load() does not.
enum class FaissModuleReads : bool { no, yes };

// A valid file that Index::load() does not read.
class FaissNotRead : public InvalidArgument {
 public:
  explicit FaissNotRead(const std::string& message) : InvalidArgument("{}", message) {}
};

// Throws FaissNotRead. what: the contents of the file, in words with an article. reads: what
// Index::load() reads instead; may be empty.
[[noreturn]] void refuse_faiss(const std::string& path, std::string_view what,
                               FaissModuleReads module = FaissModuleReads::no,
                               std::string_view reads = {});

// Letters of a file that no terminal takes for orders.
std::string shown(std::string_view letters);

// The rows of an index of FAISS.
struct FaissRows {
  std::int64_t dim = 0;
  bool trained = true;
  std::int64_t lists = 0;    // 0: there are none
  AnyMatrix rows = {};       // [n x columns after the transforms], where rows are no codes
  std::vector<Id> ids = {};  // of the rows; empty: 0, 1, ...
  // Rows that are halves of floats; and whether they are what is left beside their centroids.
  std::optional<ElementType> rounded = {};
  bool rounded_residuals = false;
  // Rows that are codes, and the numbers of their quantiser (Codec::of_numbers()).
  std::optional<CodeShape> codes = {};
  std::vector<float> quantizer = {};
  Matrix<std::uint8_t> code_rows = {};      // [n x bytes]
  std::vector<std::uint32_t> list_of = {};  // [n], with lists

  std::int64_t size() const { return codes ? code_rows.rows() : rows.rows(); }
  // Bytes of a row that is no vector.
  std::int64_t code_size() const {
    return rounded ? 2 * dim : codec_of(*codes).code_size(*codes, dim);
  }
  // Takes codes as codes, or as the vectors that halves are.
  void set_codes(Matrix<std::uint8_t> codes);
};

class FaissFields {
 public:
  explicit FaissFields(const std::string& path) : path_(path), file_(path) {}

  [[noreturn]] void not_read(std::string_view what, FaissModuleReads module = FaissModuleReads::no,
                             std::string_view reads = {}) const {
    refuse_faiss(path_, what, module, reads);
  }
  [[noreturn]] void refuse(std::string_view what) const {
    throw CorruptFile("{}, at byte {}: {}", path_, at_, what);
  }
  std::int64_t left() const { return file_.size() - at_; }
  const std::byte* take(std::uint64_t bytes, std::string_view what);
  template <class T>
  T value(std::string_view what) {
    T out;
    std::memcpy(&out, take(sizeof out, what), sizeof out);
    return out;
  }
  bool flag(std::string_view what);
  // Reads a number of elements of `bytes_each` bytes. Refuses a number that the rest of the file is
  // too short for.
  std::int64_t count(std::uint64_t bytes_each, std::string_view what);
  std::string letters() {
    const auto four = value<std::array<char, 4>>("the type of an index");
    return {four.data(), four.size()};
  }
  // Finite floats, as many as are wanted, or as there are.
  std::vector<float> floats(std::int64_t wanted, std::string_view what);
  std::vector<float> some_floats(std::string_view what);

  // Takes the codes of rows one after another, with the number of their bytes before them.
  void read_codes(FaissRows& out, std::int64_t rows);
  void check_code_size(const FaissRows& out, std::uint64_t size) const;
  // The rows of lists, of this many bytes each.
  Matrix<std::uint8_t> read_lists(FaissRows& out, std::int64_t rows, std::int64_t row_bytes);
  // Refuses lists that begin with these letters.
  [[noreturn]] void refuse_lists(std::string_view type);

 protected:
  std::string path_;
  io::MappedFile file_;
  std::int64_t at_ = 0;
};

class FaissWriter {
 public:
  explicit FaissWriter(const std::string& path) : file_(path) {}

  template <class T>
  void value(T x) {
    file_.write(&x, sizeof x);
  }
  void letters(std::string_view four) { file_.write(four.data(), 4); }
  void header(std::string_view type, std::int64_t dim, std::int64_t rows, Metric metric);
  void bytes(const void* data, std::size_t size) { file_.write(data, size); }
  template <class T>
  void array(std::span<const T> all) {
    value(static_cast<std::uint64_t>(all.size()));
    bytes(all.data(), all.size_bytes());
  }
  void commit() { file_.commit(); }

 private:
  io::AtomicFile file_;
};

// Halves of floats are a scalar quantiser of FAISS: what stands before them.
void write_faiss_halves(FaissWriter& writer, ElementType type, std::int64_t dim);

}  // namespace knear::detail
