#include "knear/index/codecs/faiss_fields.hpp"

#include <cmath>
#include <map>
#include <utility>

#include "knear/index/codecs/faiss_types.hpp"

namespace knear::detail {

void refuse_faiss(const std::string& path, std::string_view what, FaissModuleReads module,
                  std::string_view reads) {
  throw FaissNotRead(
      fmt::format("{} holds {}, which {}{}{}", path, what,
                  module == FaissModuleReads::yes
                      ? "knear.Index does not read, but knear.faiss.read_index in Python does"
                      : "knear does not read",
                  reads.empty() ? "" : "; knear.Index reads ", reads));
}

void FaissRows::set_codes(Matrix<std::uint8_t> of) {
  if (!rounded) {
    code_rows = std::move(of);
    return;
  }
  rows = AnyMatrix(*rounded, of.rows(), dim);
  const std::size_t bytes = of.rows() * of.cols();
  if (bytes > 0) std::memcpy(rows.row(0), of.data(), bytes);
}

const std::byte* FaissFields::take(std::uint64_t bytes, std::string_view what) {
  if (bytes > static_cast<std::uint64_t>(left()))
    refuse(fmt::format("the file is cut off in {}: {} of {} bytes", what, left(), bytes));
  const std::byte* out = file_.data() + at_;
  at_ += static_cast<std::int64_t>(bytes);
  return out;
}

std::int64_t FaissFields::count(std::uint64_t bytes_each, std::string_view what) {
  const auto n = value<std::uint64_t>(what);
  if (n > static_cast<std::uint64_t>(left()) / bytes_each)
    refuse(fmt::format("the file is cut off in {}: {} elements of {} bytes, {} bytes are left",
                       what, n, bytes_each, left()));
  return static_cast<std::int64_t>(n);
}

bool FaissFields::flag(std::string_view what) {
  const auto byte = value<std::uint8_t>(what);
  if (byte > 1) refuse(fmt::format("{} is neither yes nor no", what));
  return byte == 1;
}

std::vector<float> FaissFields::floats(std::int64_t wanted, std::string_view what) {
  const std::int64_t n = count(sizeof(float), what);
  if (n != wanted) refuse(fmt::format("{} are {} numbers, where {} are due", what, n, wanted));
  std::vector<float> out(n);
  if (n > 0) std::memcpy(out.data(), take(out.size() * sizeof(float), what), out.size() * 4);
  for (const float x : out)
    if (!std::isfinite(x)) refuse(fmt::format("{} hold a NaN or infinity", what));
  return out;
}

std::vector<float> FaissFields::some_floats(std::string_view what) {
  const std::int64_t n = count(sizeof(float), what);
  at_ -= 8;
  return floats(n, what);
}

void FaissFields::read_codes(FaissRows& out, std::int64_t rows) {
  const std::int64_t n = count(1, "codes"), width = out.code_size();
  if (n % width != 0 || n / width != rows)
    refuse(fmt::format("{} codes of {} bytes are announced, but {} bytes follow", rows, width, n));
  Matrix<std::uint8_t> codes(rows, width);
  const auto size = static_cast<std::uint64_t>(n);
  if (size > 0) std::memcpy(codes.data(), take(size, "codes"), size);
  out.set_codes(std::move(codes));
}

void FaissFields::check_code_size(const FaissRows& out, std::uint64_t size) const {
  if (size != static_cast<std::uint64_t>(out.code_size()))
    refuse(fmt::format("its codes have {} bytes, where {} are due", size, out.code_size()));
}

std::string shown(std::string_view letters) {
  std::string out;
  for (const char c : letters)
    out += c < ' ' || c > '~' ? fmt::format("\\x{:02x}", static_cast<unsigned char>(c))
                              : std::string(1, c);
  return out;
}

void FaissFields::refuse_lists(std::string_view type) {
  at_ -= 4;
  const std::string_view name = name_of_faiss_lists(type);
  if (name.empty()) refuse(fmt::format("'{}' is no type of inverted lists", shown(type)));
  not_read(fmt::format("{} ({}) at byte {}", name, type, at_));
}

Matrix<std::uint8_t> FaissFields::read_lists(FaissRows& out, std::int64_t rows,
                                             std::int64_t row_bytes_due) {
  const std::string type = letters();
  if (type != "ilar") refuse_lists(type);
  const auto row_bytes = static_cast<std::uint64_t>(row_bytes_due);
  const auto lists = value<std::uint64_t>("lists"), size_of_code = value<std::uint64_t>("lists");
  if (lists != static_cast<std::uint64_t>(out.lists) || size_of_code != row_bytes)
    refuse(fmt::format("{} lists with codes of {} bytes are announced, but {} of {} bytes follow",
                       out.lists, row_bytes, lists, size_of_code));
  // Sizes of the lists that are named, by number. There may be far more lists than bytes.
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
      sum > static_cast<std::uint64_t>(left()) / (row_bytes + 8))
    refuse(fmt::format("its lists have {} rows, where {} are announced and {} bytes are left", sum,
                       rows, left()));
  Matrix<std::uint8_t> found(rows, row_bytes_due);
  out.ids.resize(rows);
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

void FaissWriter::header(std::string_view type, std::int64_t dim, std::int64_t rows,
                         Metric metric) {
  letters(type);
  value(static_cast<std::int32_t>(dim)), value(rows);
  value(std::int64_t{1} << 20), value(std::int64_t{1} << 20);
  value(std::uint8_t{1});  // it is trained
  switch (metric) {
    case Metric::l2:
      return value(faiss_l2);
    case Metric::l1:
      return value(faiss_l1), value(float{});  // an argument that it has not
    case Metric::ip:
    case Metric::cosine:  // of vectors of length 1
    case Metric::hamming:
      return value(faiss_inner_product);
  }
}

}  // namespace knear::detail
