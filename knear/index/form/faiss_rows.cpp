#include "knear/index/form/faiss_rows.hpp"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/index/life/segment_store.hpp"

namespace knear::detail {
namespace {

BaseRows finer_rows(const SegmentRows& rows) {
  return {rows.coded().vectors, rows.coded().guard.get()};
}

class Vectors final : public FaissRowWriter {
 public:
  Vectors(Metric metric, std::int64_t dim, std::optional<ElementType> rounded, ElementType type)
      : metric_(metric), dim_(dim), rounded_(rounded), type_(type) {}

  std::string_view letters(bool in_lists) const override {
    if (in_lists) return rounded_ ? "IwSq" : "IwFl";
    if (rounded_) return "IxSQ";
    const MetricTraits traits = traits_of(metric_);
    return traits.squared ? "IxF2" : traits.product ? "IxFI" : "IxFl";
  }
  std::int64_t row_bytes() const override { return dim_ * size_of(written()); }
  void write_begin(FaissWriter& writer, std::int64_t rows) const override {
    if (rounded_) write_faiss_halves(writer, *rounded_, dim_);
    writer.value(static_cast<std::uint64_t>(rows * (rounded_ ? row_bytes() : dim_)));
  }
  void write_begin_of_lists(FaissWriter& writer) const override {
    if (!rounded_) return;
    write_faiss_halves(writer, *rounded_, dim_);
    writer.value(static_cast<std::uint64_t>(row_bytes())), writer.value(std::uint8_t{0});
  }
  void write_row(FaissWriter& writer, const SegmentRows& rows, std::int64_t row, Id id) override {
    const BaseRows from = rows.is_codes() ? finer_rows(rows) : rows.base();
    vector_.resize(row_bytes());
    scratch_.resize(std::max(scratch_.size(), static_cast<std::size_t>(from.scratch_bytes())));
    if (copy_exactly(from.row_view(row, scratch_.data()), written(), vector_.data()) >= 0)
      throw InvalidArgument(
          "index holds vectors of type {}, and float32, which FAISS has, does not hold that of id "
          "{}",
          name_of(type_), id);
    writer.bytes(vector_.data(), vector_.size());
  }

 private:
  ElementType written() const { return rounded_.value_or(ElementType::f32); }

  const Metric metric_;
  const std::int64_t dim_;
  const std::optional<ElementType> rounded_;
  const ElementType type_;
  std::vector<std::byte> vector_, scratch_;
};

class Codes final : public FaissRowWriter {
 public:
  Codes(const CodeShape& shape, const RowCoder& coder, bool refining)
      : shape_(shape), codec_(codec_of(shape)), coder_(coder), refining_(refining) {}

  std::string_view letters(bool in_lists) const override { return codec_.faiss_letters(in_lists); }
  std::int64_t row_bytes() const override { return coder_.code_size(); }
  void write_begin(FaissWriter& writer, std::int64_t rows) const override {
    codec_.write_faiss(writer, coder_.quantizer());
    writer.value(static_cast<std::uint64_t>(rows * row_bytes()));
  }
  void write_begin_of_lists(FaissWriter& writer) const override {
    codec_.write_faiss_of_lists(writer, coder_.quantizer(), shape_.residual);
  }
  void write_row(FaissWriter& writer, const SegmentRows& rows, std::int64_t row, Id) override {
    if (refining_) return writer.bytes(finer_rows(rows).row(row, nullptr), code_.size());
    const auto from = rows.coded().lists->place(row);
    for (std::size_t b = 0; b < code_.size(); ++b)
      code_[b] = from.code[static_cast<std::int64_t>(b) * from.stride];
    writer.bytes(code_.data(), code_.size());
  }
  void write_end(FaissWriter& writer) const override { codec_.write_faiss_end(writer); }

 private:
  const CodeShape shape_;
  const Codec& codec_;
  const RowCoder& coder_;
  const bool refining_;
  std::vector<std::uint8_t> code_ = std::vector<std::uint8_t>(coder_.code_size());
};

}  // namespace

std::unique_ptr<FaissRowWriter> faiss_vectors(Metric metric, std::int64_t dim,
                                              std::optional<ElementType> rounded,
                                              ElementType type) {
  return std::make_unique<Vectors>(metric, dim, rounded, type);
}

std::unique_ptr<FaissRowWriter> faiss_codes(const CodeShape& shape, const RowCoder& coder,
                                            bool refining) {
  return std::make_unique<Codes>(shape, coder, refining);
}

}  // namespace knear::detail
