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
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "knear/io/atomic_file.hpp"

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
      return static_cast<zip_int64_t>(from.read(static_cast<char*>(data), length));
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

// The zip file itself: libzip writes it here rather than to a name, so that it is on disk before it
// takes the place of another one.
struct Target {
  explicit Target(const std::string& path) : file(path) {}

  void write(const void* data, std::uint64_t bytes) {
    const std::uint64_t again = std::min(bytes, size - at);
    if (again > 0) file.overwrite(at, data, again);
    if (again < bytes) file.write(static_cast<const char*>(data) + again, bytes - again);
    at += bytes, size = std::max(size, at);
  }

  io::AtomicFile file;
  std::uint64_t at = 0, size = 0;
  std::exception_ptr error;
};

zip_int64_t place(void* to, void* data, zip_uint64_t length, zip_source_cmd_t command) {
  auto& target = *static_cast<Target*>(to);
  // libzip is C: what is thrown waits until it has returned.
  const auto attempt = [&](auto&& work) -> zip_int64_t {
    try {
      work();
      return 0;
    } catch (...) {
      target.error = std::current_exception();
      return -1;
    }
  };
  switch (command) {
    case ZIP_SOURCE_STAT:
      zip_stat_init(static_cast<zip_stat_t*>(data));
      return sizeof(zip_stat_t);
    case ZIP_SOURCE_BEGIN_WRITE:
    case ZIP_SOURCE_ROLLBACK_WRITE:
    case ZIP_SOURCE_FREE:
    case ZIP_SOURCE_OPEN:
    case ZIP_SOURCE_CLOSE:
    case ZIP_SOURCE_READ:  // there is nothing yet
      return 0;
    case ZIP_SOURCE_WRITE:
      return attempt([&] { target.write(data, length); }) < 0 ? -1
                                                              : static_cast<zip_int64_t>(length);
    case ZIP_SOURCE_TELL_WRITE:
      return static_cast<zip_int64_t>(target.at);
    case ZIP_SOURCE_SEEK_WRITE: {
      zip_error_t error;
      zip_error_init(&error);
      const zip_int64_t to_place =
          zip_source_seek_compute_offset(target.at, target.size, data, length, &error);
      zip_error_fini(&error);
      if (to_place < 0) return -1;
      target.at = static_cast<std::uint64_t>(to_place);
      return 0;
    }
    case ZIP_SOURCE_COMMIT_WRITE:
      return attempt([&] { target.file.commit(); });
    case ZIP_SOURCE_ERROR: {
      int* const codes = static_cast<int*>(data);
      codes[0] = ZIP_ER_WRITE, codes[1] = 0;
      return 2 * sizeof(int);
    }
    case ZIP_SOURCE_SUPPORTS:
      return zip_source_make_command_bitmap(
          ZIP_SOURCE_OPEN, ZIP_SOURCE_READ, ZIP_SOURCE_CLOSE, ZIP_SOURCE_STAT, ZIP_SOURCE_ERROR,
          ZIP_SOURCE_FREE, ZIP_SOURCE_SEEK, ZIP_SOURCE_TELL, ZIP_SOURCE_BEGIN_WRITE,
          ZIP_SOURCE_COMMIT_WRITE, ZIP_SOURCE_ROLLBACK_WRITE, ZIP_SOURCE_WRITE,
          ZIP_SOURCE_SEEK_WRITE, ZIP_SOURCE_TELL_WRITE, ZIP_SOURCE_REMOVE, -1);
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
  Target target(path);
  zip_error_t reason;
  zip_error_init(&reason);
  zip_source_t* const to = zip_source_function_create(place, &target, &reason);
  std::unique_ptr<zip_t, Discard> file(
      to == nullptr ? nullptr : zip_open_from_source(to, ZIP_CREATE | ZIP_TRUNCATE, &reason));
  if (!file) {
    const std::string why = zip_error_strerror(&reason);
    zip_error_fini(&reason);
    if (to != nullptr) zip_source_free(to);
    fail(path, why.c_str());
  }
  zip_error_fini(&reason);
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
  if (zip_close(file.get()) != 0) {
    if (target.error) std::rethrow_exception(target.error);
    fail(path, zip_strerror(file.get()));
  }
  file.release();  // closing freed it
}

}  // namespace knear::cli

#endif
