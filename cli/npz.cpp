#include "cli/npz.hpp"

#include "knear/core/error.hpp"

#ifndef KNEAR_ZIP

namespace knear::cli {

void write_npz(const std::string& path, const SparseGraph&) {
  throw InvalidArgument("{} cannot be written: knear was built without libzip (KNEAR_ZIP)", path);
}

}  // namespace knear::cli

#else

#include <fmt/format.h>
#include <zip.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace knear::cli {
namespace {

// The header of a .npy file, version 1: 64 bytes and more, in whole units of 64.
std::string npy_header(const std::string& type, const std::string& shape) {
  std::string words =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}", type, shape);
  words.resize((10 + words.size() + 1 + 63) / 64 * 64 - 11, ' ');
  words += '\n';
  std::string out("\x93NUMPY\x01\x00", 8);
  out += static_cast<char>(words.size() % 256);
  out += static_cast<char>(words.size() / 256);
  return out + words;
}

// An array as a member of a zip file. libzip reads a member from one place, so the header and the
// numbers, which may be many, come by a callback that knows both.
struct Member {
  Member(std::string npy, const void* data, std::size_t bytes)
      : header(std::move(npy)), numbers(static_cast<const char*>(data)), size(bytes) {}

  std::string header;
  const char* numbers;
  std::size_t size, at = 0;

  std::size_t all() const { return header.size() + size; }
  std::size_t read(char* to, std::size_t room) {
    std::size_t done = 0;
    while (done < room && at < all()) {
      const bool in_header = at < header.size();
      const char* from = in_header ? header.data() + at : numbers + (at - header.size());
      const std::size_t some = std::min(room - done, (in_header ? header.size() : all()) - at);
      std::copy_n(from, some, to + done);
      done += some, at += some;
    }
    return done;
  }
};

zip_int64_t serve(void* member, void* data, zip_uint64_t length, zip_source_cmd_t command) {
  auto& from = *static_cast<Member*>(member);
  switch (command) {
    case ZIP_SOURCE_OPEN:
      from.at = 0;
      return 0;
    case ZIP_SOURCE_READ:
      return static_cast<zip_int64_t>(
          from.read(static_cast<char*>(data), static_cast<std::size_t>(length)));
    case ZIP_SOURCE_STAT: {
      auto* stat = static_cast<zip_stat_t*>(data);
      zip_stat_init(stat);
      stat->size = from.all();
      stat->comp_method = ZIP_CM_STORE;
      // The same bytes whenever it is written.
      stat->mtime = 315532800;
      stat->valid = ZIP_STAT_SIZE | ZIP_STAT_MTIME;
      return sizeof *stat;
    }
    case ZIP_SOURCE_CLOSE:
    case ZIP_SOURCE_FREE:
      return 0;
    case ZIP_SOURCE_ERROR:
      return zip_error_to_data(nullptr, data, length);
    case ZIP_SOURCE_SUPPORTS:
      return zip_source_make_command_bitmap(ZIP_SOURCE_OPEN, ZIP_SOURCE_READ, ZIP_SOURCE_CLOSE,
                                            ZIP_SOURCE_STAT, ZIP_SOURCE_ERROR, ZIP_SOURCE_FREE, -1);
    default:
      return -1;
  }
}

struct Discard {
  void operator()(zip_t* file) const { zip_discard(file); }
};

[[noreturn]] void fail(const std::string& path, const char* why) {
  throw IoError("{}: cannot write it: {}", path, why);
}

}  // namespace

void write_npz(const std::string& path, const SparseGraph& graph) {
  const std::array<std::int64_t, 2> shape{graph.rows(), graph.rows()};
  const auto list = [](const char* type, const auto& values) {
    return Member(npy_header(type, fmt::format("({},)", values.size())), values.data(),
                  values.size() * sizeof values[0]);
  };
  std::array<std::pair<const char*, Member>, 5> members{
      {{"indices.npy", list("<i8", graph.ids)},
       {"indptr.npy", list("<i8", graph.begin)},
       {"format.npy", Member(npy_header("|S3", "()"), "csr", 3)},
       {"shape.npy", list("<i8", shape)},
       {"data.npy", list("<f4", graph.distances)}}};
  int error = 0;
  std::unique_ptr<zip_t, Discard> file(zip_open(path.c_str(), ZIP_CREATE | ZIP_TRUNCATE, &error));
  if (!file) {
    zip_error_t reason;
    zip_error_init_with_code(&reason, error);
    const std::string why = zip_error_strerror(&reason);
    zip_error_fini(&reason);
    fail(path, why.c_str());
  }
  for (auto& [name, member] : members) {
    zip_source_t* source = zip_source_function(file.get(), serve, &member);
    if (source == nullptr) fail(path, zip_strerror(file.get()));
    const zip_int64_t place = zip_file_add(file.get(), name, source, ZIP_FL_ENC_UTF_8);
    if (place < 0) {
      zip_source_free(source);
      fail(path, zip_strerror(file.get()));
    }
    if (zip_set_file_compression(file.get(), static_cast<zip_uint64_t>(place), ZIP_CM_STORE, 0) !=
        0)
      fail(path, zip_strerror(file.get()));
  }
  if (zip_close(file.get()) != 0) fail(path, zip_strerror(file.get()));
  file.release();  // closing freed it
}

}  // namespace knear::cli

#endif
