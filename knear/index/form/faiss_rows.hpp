// knear/index/form/faiss_rows.hpp -- the rows of an index as FAISS's file has them: floats, halves
// or codes. index/faiss/faiss_writer.cpp writes what stands around them.
#pragma once
#include <memory>
#include <optional>
#include <string_view>

#include "knear/index/codecs/faiss_fields.hpp"
#include "knear/index/life/segment.hpp"
#include "knear/index/quantizers/row_coder.hpp"

namespace knear::detail {

class FaissRowWriter {
 public:
  virtual ~FaissRowWriter() = default;

  // The letters of an index of such rows.
  virtual std::string_view letters(bool in_lists) const = 0;
  virtual std::int64_t row_bytes() const = 0;
  // Writes what stands between the header and this many rows that are in no lists.
  virtual void write_begin(FaissWriter& writer, std::int64_t rows) const = 0;
  // Writes what stands between the map of ids and inverted lists.
  virtual void write_begin_of_lists(FaissWriter& writer) const = 0;
  // Throws InvalidArgument for a vector that FAISS's type does not hold.
  virtual void write_row(FaissWriter& writer, const SegmentRows& rows, std::int64_t row, Id id) = 0;
  // Writes what stands behind rows that are in no lists.
  virtual void write_end(FaissWriter&) const {}
};

// Vectors of an index, or those that refine its codes. rounded: to halves, which stay halves. type:
// of the index, for messages.
std::unique_ptr<FaissRowWriter> faiss_vectors(Metric metric, std::int64_t dim,
                                              std::optional<ElementType> rounded, ElementType type);
// Codes of an index, or those that refine its codes. The coder has to stay.
std::unique_ptr<FaissRowWriter> faiss_codes(const CodeShape& shape, const RowCoder& coder,
                                            bool refining);

}  // namespace knear::detail
