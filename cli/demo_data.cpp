#include "cli/demo_data.hpp"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "cli/explore/items.hpp"
#include "cli/gz_file.hpp"
#include "cli/machine.hpp"

namespace knear::cli {
namespace {

bool exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

// The labels of an idx file of one dimension, gzipped or not. knear/io reads matrices only.
std::vector<std::uint8_t> read_labels(const std::string& path, std::int64_t expected) {
  const GzFile file = open_gz(path);
  std::uint8_t header[8];
  if (gzread(file.get(), header, 8) != 8 || header[0] || header[1] || header[2] != 8 ||
      header[3] != 1)
    throw CorruptFile("'{}' is no idx file of one-byte labels", path);
  const std::int64_t count =
      std::int64_t{header[4]} << 24 | header[5] << 16 | header[6] << 8 | header[7];
  if (count != expected)
    throw CorruptFile("'{}' has {} labels for {} images", path, count, expected);
  std::vector<std::uint8_t> labels(count + 1);  // one more, to check that the file ends there
  if (gzread(file.get(), labels.data(), static_cast<unsigned>(count + 1)) != count)
    throw CorruptFile("'{}' does not hold the {} labels that it announces", path, count);
  labels.pop_back();
  return labels;
}

// "name.gz", or "name" where someone has unpacked it.
std::string packed_or_not(const std::string& path) {
  return exists(path + ".gz") ? path + ".gz" : exists(path) ? path : "";
}

DemoData open_fashion(const std::string& directory, const std::string& base,
                      const std::string& queries) {
  DemoData data{"Fashion-MNIST",
                directory,
                Picture::image,
                io::VectorFile::open(base),
                io::VectorFile::open(queries),
                {},
                {},
                {"T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker",
                 "Bag", "Ankle boot"}};
  const std::string base_labels = packed_or_not(directory + "/train-labels-idx1-ubyte");
  const std::string query_labels = packed_or_not(directory + "/t10k-labels-idx1-ubyte");
  if (base_labels.empty() || query_labels.empty()) return data;
  data.base_labels_path = base_labels;
  data.base_labels = read_labels(base_labels, data.base.view().rows());
  data.query_labels = read_labels(query_labels, data.queries.view().rows());
  for (const auto& labels : {data.base_labels, data.query_labels})
    for (std::uint8_t label : labels)
      if (label >= data.class_names.size())
        throw CorruptFile("'{}' has the label {}, beyond 9", directory, label);
  return data;
}

}  // namespace

std::vector<std::string> demo_directories(const std::string& given) {
  if (!given.empty()) return {given};
  std::vector<std::string> out;
  if (const char* named = std::getenv("KNEAR_DATA"); named && *named) out.push_back(named);
  out.push_back("../shared/data");
  if (const std::string cache = cache_directory(); !cache.empty()) out.push_back(cache);
  return out;
}

DemoData find_demo_data(const std::vector<std::string>& directories) {
  std::string looked;
  for (const std::string& root : directories) {
    const std::string fashion = root + "/fashion-mnist";
    const std::string train = packed_or_not(fashion + "/train-images-idx3-ubyte");
    const std::string test = packed_or_not(fashion + "/t10k-images-idx3-ubyte");
    if (!train.empty() && !test.empty()) return open_fashion(fashion, train, test);
    const std::string base = root + "/sift/base.bvecs", queries = root + "/sift/queries.bvecs";
    if (exists(base) && exists(queries)) {
      DemoData data = open_demo_files(base, queries);
      data.source = root + "/sift";
      return data;
    }
    looked += (looked.empty() ? "" : ", ") + root;
  }
  throw IoError(
      "no vectors for the demo: neither fashion-mnist/train-images-idx3-ubyte.gz nor "
      "sift/base.bvecs in {}; give --base and --queries, or run scripts/demo, which makes some",
      looked);
}

DemoData open_demo_files(const std::string& base, const std::string& queries) {
  DemoData data{
      "", base, Picture::image, io::VectorFile::open(base), io::VectorFile::open(queries), {},
      {}, {}};
  const std::int64_t dim = data.base.view().cols();
  const auto side = static_cast<std::int64_t>(std::lround(std::sqrt(double(dim))));
  if (dim == 128) {
    data.name = "SIFT descriptors", data.picture = Picture::sift;
  } else if (side * side == dim) {
    data.name = "Images";
  } else {
    throw InvalidArgument(
        "the demo draws SIFT (128 columns) and square images, but '{}' has {} columns; --labels "
        "and --query-labels show rows in words",
        base, dim);
  }
  return data;
}

DemoData open_demo_texts(const std::string& base, const std::string& queries,
                         const std::string& labels, const std::string& query_labels) {
  DemoData data{
      "Texts", base, Picture::text, io::VectorFile::open(base), io::VectorFile::open(queries), {},
      {},      {},   labels};
  data.base_texts = read_text_labels("--labels", labels, "the base", data.base.view().rows());
  data.query_texts = read_text_labels("--query-labels", query_labels, "the file of queries",
                                      data.queries.view().rows());
  return data;
}

}  // namespace knear::cli
