// knear/index/sections/packed_sections.hpp -- packed rows and prefixes as sections of a .knear
// file.
//
//   add_packed(writer, "0/int8/", packed, worth_up_to);
//   packed = load_packed(sections, "0/int8/", FirstPass::int8, shape, worth_up_to);
//
// docs/knear-files.md lists the sections. A file is hostile: whatever is loaded has been checked so
// far that no number in it can lead a search beyond its arrays. Codes, which are most of the bytes,
// are compared with their checksums when they are first used, everything else at once. Loading
// copies nothing large.
#pragma once
#include <memory>
#include <string>

#include "knear/index/sections/sections.hpp"
#include "knear/io/archive.hpp"
#include "knear/knn/rows/prepared_rows.hpp"

namespace knear::detail {

// The rows that were packed.
struct PackedShape {
  std::int64_t rows, dim;
  Metric metric;
};

// Adds packed rows as sections whose names begin with `prefix`; they must live until these are
// written. worth_up_to: the k up to which the pass is known to pay.
void add_packed(io::ArchiveWriter& writer, const std::string& prefix, const PackedBase& packed,
                std::int64_t worth_up_to);
// Throws CorruptFile, naming the section.
std::shared_ptr<PackedBase> load_packed(Sections& in, const std::string& prefix, FirstPass pass,
                                        const PackedShape& shape, std::int64_t& worth_up_to);

// These do the same for the prefix of a segment. `found` is the value range of the segment.
void add_prefix(io::ArchiveWriter& writer, const std::string& prefix, const AdoptedPrefix& adopted);
bool has_prefix(const Sections& in, const std::string& prefix);
AdoptedPrefix load_prefix(Sections& in, const std::string& prefix, const PackedShape& shape,
                          const ValueRange& found);

}  // namespace knear::detail
