// cli/demo_data.hpp -- where the demo finds real vectors: Fashion-MNIST, SIFT descriptors, or files
// that were given, which may be of texts.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "knear/io/vectors.hpp"

namespace knear::cli {

enum class Picture : std::uint8_t {
  image,  // dim = side * side grey values
  sift,   // 4 x 4 cells of 8 gradient directions
  text    // no picture: base_texts and query_texts say what the rows are
};

struct DemoData {
  std::string name;    // "Fashion-MNIST"
  std::string source;  // the directory or file that it came from
  Picture picture = Picture::image;
  io::VectorFile base, queries;
  // One label per row, or none where there are no label files.
  std::vector<std::uint8_t> base_labels, query_labels;
  std::vector<std::string> class_names;  // by label; empty if unknown
  std::string base_labels_path = {};     // where base_labels or base_texts came from
  // One line per row for Picture::text, else none.
  std::vector<std::string> base_texts = {}, query_texts = {};
};

// The directories that the demo looks in, in this order: `given` alone if it is not empty, else
// $KNEAR_DATA, ../shared/data and the cache directory.
std::vector<std::string> demo_directories(const std::string& given);

// The vectors of the first directory that has any: the images of Fashion-MNIST, or where it has
// none sift/base.bvecs and sift/queries.bvecs. Throws IoError naming the directories if all lack
// both.
DemoData find_demo_data(const std::vector<std::string>& directories);

// The files that were given: rows of 128 columns are drawn as SIFT, those of a square number as
// images. Throws InvalidArgument for another number.
DemoData open_demo_files(const std::string& base, const std::string& queries);

// Vectors of any number of columns, and files with one line of text for each. Throws as
// read_text_labels().
DemoData open_demo_texts(const std::string& base, const std::string& queries,
                         const std::string& labels, const std::string& query_labels);

}  // namespace knear::cli
