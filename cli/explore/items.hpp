// cli/explore/items.hpp -- what the rows of a base are to a reader: pictures, texts or numbers.
//
//   Items items = open_items({.base = "train-images-idx3-ubyte.gz"}, threads, progress);
//   items.kind                                 // pixels: 28 x 28, as the file says
//   items.picture(17)                          // a PNG
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/explore/picture_files.hpp"
#include "knear/index/index.hpp"
#include "knear/io/vectors.hpp"

namespace knear::cli {

struct ItemArguments {
  std::string base, index;  // either
  std::string type;         // of the base, as for search
  std::string shape;        // "28x28": rows are pictures of greys from 0 to 255
  std::string images;       // a folder with one picture a row
  std::string labels;       // a text file with one line a row, or an idx file of numbers
  std::string names;        // of these numbers, with commas between them
};

struct Items {
  enum class Kind { pixels, images, texts, vectors };
  Kind kind = Kind::vectors;
  std::string name;  // the file's, without its folder
  std::optional<io::VectorFile> file = {};
  std::optional<Index> index = {};
  AnyMatrix copies = {};  // of the rows of an index
  AnyMatrixView rows = {};
  int width = 0,
      height = 0;  // of rows that are pixels, or those of images in grey; 0: they are not
  PictureFolder images = {};
  std::vector<std::string> labels;       // [rows], or none
  std::vector<std::uint16_t> classes;    // [rows], or none: for colours
  std::vector<std::string> class_names;  // by class

  std::string label(std::int64_t row) const;  // empty without labels
  std::vector<float> numbers(std::int64_t row) const;
  // The picture of a row, for pixels and images. Throws IoError, CorruptFile.
  std::string picture(std::int64_t row) const;
};
std::string_view name_of(Items::Kind kind);

// Opens and checks all of it. Throws as open_vectors(), Index::load() and open_pictures();
// InvalidArgument for an index without vectors or with ids other than 0, 1, ..., a shape that does
// not fit; ShapeMismatch for labels of another length; CorruptFile for labels that are no UTF-8.
Items open_items(const ItemArguments& arguments, int threads, const Progress& progress);

// The lines of a text file that may be gzipped, one for each of `rows` rows of `owner` ("the
// base"). Errors name `option`. Throws IoError, ShapeMismatch for another number of lines,
// CorruptFile for lines that are no UTF-8.
std::vector<std::string> read_text_labels(std::string_view option, const std::string& path,
                                          std::string_view owner, std::int64_t rows);

}  // namespace knear::cli
