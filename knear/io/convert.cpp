// Chooses the type to store, then copies block after block from RowReader to RowWriter.
#include "knear/io/convert.hpp"

#include <vector>

#include "knear/core/error.hpp"
#include "knear/core/public_call.hpp"
#include "knear/io/layout.hpp"
#include "knear/io/number_conversion.hpp"
#include "knear/io/row_reader.hpp"
#include "knear/io/row_writer.hpp"

namespace knear::io {
namespace {

void convert_to_ids(RowReader& reader, const std::string& in, RowWriter& writer,
                    const Progress& progress) {
  std::vector<std::int64_t> ids;
  read_rows(reader, [&](std::int64_t first, std::int64_t count, const std::byte* block) {
    ids.resize(count * reader.dim());
    convert_rows_to_ids(reader.scalar(), block, count, reader.dim(), ids.data(),
                        {in, reader.first_row() + first});
    writer.append_ids({ids.data(), count, reader.dim()});
    report_progress(progress, "convert", first + count, reader.rows());
  });
}

void convert_to_type(RowReader& reader, const std::string& in, ElementType type, Rounding rounding,
                     RowWriter& writer, const Progress& progress) {
  std::vector<std::byte> rows;
  read_rows(reader, [&](std::int64_t first, std::int64_t count, const std::byte* block) {
    rows.resize(count * reader.dim() * size_of(type));
    convert_rows(reader.scalar(), block, count, reader.dim(), type, rows.data(), rounding,
                 {in, reader.first_row() + first});
    writer.append({type, rows.data(), count, reader.dim(), reader.dim()});
    report_progress(progress, "convert", first + count, reader.rows());
  });
}

// nullopt: stored as ids.
std::optional<ElementType> stored_type(const std::string& out, Scalar from,
                                       std::optional<ElementType> asked) {
  if (asked) return asked;
  if (const auto stored = scalar_of(format_of_name(out).value_or(Format::npy)))
    return element_type(*stored);
  if (is_integer(from) && size_of(from) > 1) return {};
  return natural_type(from);
}

}  // namespace

Converted convert_file(const std::string& in, const std::string& out,
                       const ConvertOptions& options) {
  return detail::public_call([&]() -> Converted {
    RowReader reader(in, {.rows = options.rows});
    const auto type = stored_type(out, reader.scalar(), options.type);
    if (type && !scalar_of(*type))
      throw InvalidArgument("type {} cannot be written: no format here stores it", name_of(*type));
    const Scalar scalar = type ? *scalar_of(*type) : id_scalar(out);
    RowWriter writer(out, scalar, reader.rows(), reader.dim());
    if (type)
      convert_to_type(reader, in, *type, options.type ? Rounding::allowed : Rounding::refused,
                      writer, options.progress);
    else
      convert_to_ids(reader, in, writer, options.progress);
    writer.commit();
    return {std::string(name_of(scalar)), reader.rows(), reader.dim()};
  });
}

}  // namespace knear::io
