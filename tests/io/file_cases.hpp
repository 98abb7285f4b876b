// tests/io/file_cases.hpp -- what the tests of file formats share: a temporary folder, and bytes.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "knear/core/error.hpp"
#include "knear/core/system.hpp"

namespace knear::io {

class FileTest : public testing::Test {
 protected:
  FileTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "knear-io-XXXXXX").string();
    if (!mkdtemp(pattern.data())) throw IoError("no temporary folder '{}'", pattern);
    folder_ = pattern;
  }
  ~FileTest() override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string write(const std::string& name, const std::string& bytes) const {
    // Some file systems flush a file to disk that is truncated and written again, which is slow
    // here.
    std::filesystem::remove(path(name));
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }
  std::string read(const std::string& name) const {
    std::ifstream file(path(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // How many files there are, hidden ones included: a temporary left behind would show.
  std::int64_t file_count() const {
    return std::distance(std::filesystem::directory_iterator(folder_), {});
  }
  // The same after saves that were killed. Where the system has no files without a name, these
  // leave some under a temporary one, NAME.tmp-0123456789ab, until the next save to NAME. Each save
  // names its shards anew, and removes the temporaries of all of them.
  std::int64_t file_count_after_kills() const {
    const int nameless = detail::open_file_without_name(folder_.c_str());
    if (nameless >= 0) {
      close(nameless);
      return file_count();
    }
    std::int64_t out = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      const std::string name = entry.path().filename().string();
      out +=
          name.find(".tmp-") == std::string::npos || name.find(".shard.tmp-") != std::string::npos;
    }
    return out;
  }

  std::filesystem::path folder_;
};

template <class T>
std::string raw(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

template <class T>
std::string big_endian(T value) {
  std::string bytes = raw(value);
  return {bytes.rbegin(), bytes.rend()};
}

// A .npy file with this dictionary and these bytes.
inline std::string npy(const std::string& dictionary, const std::string& data, char version = 1) {
  std::string text = dictionary + "\n";
  std::string out = std::string("\x93NUMPY") + version + '\0';
  out += version == 1 ? raw(std::uint16_t(text.size())) : raw(std::uint32_t(text.size()));
  return out + text + data;
}

inline std::string npy_header(const std::string& descr, const std::string& shape,
                              const std::string& fortran = "False") {
  return "{'descr': '" + descr + "', 'fortran_order': " + fortran + ", 'shape': " + shape + ", }";
}

inline std::string gzip(const std::string& data) {
  z_stream stream = {};
  deflateInit2(&stream, 6, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, data.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(data.data()));
  stream.avail_in = static_cast<uInt>(data.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

// Runs f, which must throw E, and returns the message: one line that contains `part`.
template <class E, class F>
std::string expect_error(F&& f, const std::string& part) {
  try {
    f();
  } catch (const E& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find(part), std::string::npos) << message << "\nlacks: " << part;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message;
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another kind of error: " << error.what();
    return {};
  }
  ADD_FAILURE() << "no error, but expected one about: " << part;
  return {};
}

}  // namespace knear::io
