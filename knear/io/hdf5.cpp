#include "knear/io/hdf5.hpp"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <utility>

#include "knear/core/error.hpp"
#include "knear/core/system.hpp"
#include "knear/io/byte_source.hpp"
#ifdef KNEAR_HDF5
#include <hdf5.h>
#endif

namespace knear::io {

namespace {

void wait_for(pid_t child) {
  while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace

std::optional<Hdf5Path> hdf5_path(const std::string& path) {
  const auto is_hdf5 = [](std::string_view name) {
    return name.ends_with(".hdf5") || name.ends_with(".h5");
  };
  if (is_hdf5(path)) return Hdf5Path{path, ""};
  const auto colon = path.rfind(':');
  std::error_code ignored;
  if (colon == std::string::npos || !is_hdf5(std::string_view(path).substr(0, colon)) ||
      std::filesystem::exists(path, ignored))
    return {};
  return Hdf5Path{path.substr(0, colon), path.substr(colon + 1)};
}

#ifndef KNEAR_HDF5

Hdf5Contents inspect_hdf5(const std::string& file, const std::string&) {
  throw InvalidArgument("'{}': this build of knear reads no HDF5", file);
}
Hdf5Stream::Hdf5Stream(const std::string& file, const Hdf5Dataset&, std::int64_t, std::int64_t) {
  throw InvalidArgument("'{}': this build of knear reads no HDF5", file);
}

#else

namespace {

// What the child process runs. It ends with the process, so nothing is closed.
namespace child {

// The text of a message without control characters, some of which would end it; what is left is for
// people.
std::string plain(std::string text) {
  std::erase_if(text, [](unsigned char c) { return c < ' ' || c == 127; });
  return text;
}

void put(int out, const void* data, std::size_t bytes) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t done = write(out, from, bytes);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) _exit(1);
    from += done, bytes -= done;
  }
}

// Some files make the library loop forever: the system ends the process once it has computed this
// much longer. Waiting for a slow disk does not count.
void allow_seconds(int more) {
  rusage used;
  getrusage(RUSAGE_SELF, &used);
  const auto limit = static_cast<rlim_t>(used.ru_utime.tv_sec + used.ru_stime.tv_sec + 1 + more);
  const rlimit seconds{limit, RLIM_INFINITY};
  setrlimit(RLIMIT_CPU, &seconds);
}

[[noreturn]] void fail(int out, const std::string& text) {
  const std::string message = "error\t" + plain(text) + "\n";
  put(out, message.data(), message.size());
  _exit(1);
}

std::optional<Scalar> scalar_of_type(hid_t type) {
  const std::size_t size = H5Tget_size(type);
  if (H5Tget_class(type) == H5T_INTEGER && H5Tget_precision(type) == 8 * size) {
    const bool with_sign = H5Tget_sign(type) == H5T_SGN_2;
    if (size == 1) return with_sign ? Scalar::i8 : Scalar::u8;
    if (size == 2) return with_sign ? Scalar::i16 : Scalar::u16;
    if (size == 4) return with_sign ? Scalar::i32 : Scalar::u32;
    if (size == 8) return with_sign ? Scalar::i64 : Scalar::u64;
  }
  if (H5Tget_class(type) == H5T_FLOAT) {
    std::size_t sign = 0, exponent = 0, exponent_bits = 0, mantissa = 0, mantissa_bits = 0;
    H5Tget_fields(type, &sign, &exponent, &exponent_bits, &mantissa, &mantissa_bits);
    const auto is = [&](std::size_t bytes, std::size_t bits) {
      return size == bytes && mantissa == 0 && mantissa_bits == bits && exponent == bits &&
             sign == 8 * bytes - 1 && exponent_bits == 8 * bytes - 1 - bits &&
             H5Tget_ebias(type) == (std::size_t{1} << (exponent_bits - 1)) - 1;
    };
    if (is(2, 10)) return Scalar::f16;
    if (is(4, 23)) return Scalar::f32;
    if (is(8, 52)) return Scalar::f64;
  }
  return {};
}

// Notes the file that an external link names, and keeps the library from following it.
herr_t refuse_link(const char*, const char*, const char* file, const char*, unsigned*, hid_t,
                   void* context) {
  *static_cast<std::string*>(context) = file;
  return -1;
}

// Returns a property list by which the library follows no external link. `file` gets the file that
// one names.
hid_t access_of(hid_t kind, std::string& file) {
  const hid_t out = H5Pcreate(kind);
  H5Pset_elink_cb(out, refuse_link, &file);
  return out;
}

std::string behind_link(const std::string& file) {
  return "lies in another file, '" + plain(file.substr(0, 200)) + "', behind an external link";
}

// Says where an open dataset has its rows, as Hdf5Dataset::elsewhere does; "" if in itself.
std::string elsewhere(hid_t dataset) {
  const hid_t plan = H5Dget_create_plist(dataset);
  char name[201] = {};
  if (H5Pget_external_count(plan) > 0) {
    off_t offset = 0;
    hsize_t bytes = 0;
    if (H5Pget_external(plan, 0, sizeof name - 1, name, &offset, &bytes) < 0) name[0] = '\0';
    return "lies in another file, '" + plain(name) + "', as external storage";
  }
  // A part in the same file may be behind a link, which the library would follow.
  if (H5Pget_layout(plan) != H5D_VIRTUAL) return "";
  if (H5Pget_virtual_filename(plan, 0, name, sizeof name) < 0) name[0] = '\0';
  return "is virtual, of parts of '" + plain(name) + "'";
}

void put_elsewhere(int out, const std::string& name, const std::string& why) {
  const std::string line = "elsewhere\t" + name + '\t' + why + '\n';
  put(out, line.data(), line.size());
}

// Writes one line with what there is to know of an open dataset.
void describe(int out, hid_t dataset, const std::string& name) {
  if (const std::string why = elsewhere(dataset); !why.empty())
    return put_elsewhere(out, name, why);
  const hid_t space = H5Dget_space(dataset), type = H5Dget_type(dataset),
              plan = H5Dget_create_plist(dataset);
  hsize_t shape[H5S_MAX_RANK] = {};
  const int rank = H5Sget_simple_extent_ndims(space);
  if (rank < 0 || H5Sget_simple_extent_dims(space, shape, nullptr) < 0) return;
  const auto scalar = scalar_of_type(type);
  std::int64_t offset = -1;
  if (H5Pget_layout(plan) == H5D_CONTIGUOUS && H5Pget_nfilters(plan) == 0 &&
      H5Pget_external_count(plan) == 0) {
    const haddr_t address = H5Dget_offset(dataset);
    if (address != HADDR_UNDEF && address < (haddr_t{1} << 62))
      offset = static_cast<std::int64_t>(address);
  }
  std::ostringstream line;
  line << "dataset\t" << name << '\t' << (scalar ? static_cast<int>(*scalar) : -1) << '\t'
       << (H5Tget_order(type) == H5T_ORDER_BE) << '\t' << offset << '\t'
       << H5Dget_storage_size(dataset) << '\t' << rank;
  for (int i = 0; i < rank; ++i) line << '\t' << shape[i];
  line << '\n';
  put(out, line.str().data(), line.str().size());
}

struct Listing {
  int out, count = 0;
};
herr_t list_one(hid_t group, const char* name, const H5L_info_t*, void* context) {
  Listing& listing = *static_cast<Listing*>(context);
  const std::string text(name);
  if (++listing.count > 1000 || plain(text) != text) return 0;
  std::string other;
  const hid_t object = H5Oopen(group, name, access_of(H5P_LINK_ACCESS, other));
  if (!other.empty()) put_elsewhere(listing.out, text, behind_link(other));
  if (object < 0) return 0;
  if (H5Iget_type(object) == H5I_DATASET) describe(listing.out, object, text);
  return 0;
}

void put_distance(int out, hid_t file) {
  if (H5Aexists(file, "distance") <= 0) return;
  const hid_t attribute = H5Aopen(file, "distance", H5P_DEFAULT);
  const hid_t type = H5Aget_type(attribute);
  if (H5Tget_class(type) != H5T_STRING) return;
  std::string value;
  if (H5Tis_variable_str(type) > 0) {
    char* text = nullptr;
    const hid_t memory = H5Tcopy(type);
    if (H5Aread(attribute, memory, &text) < 0 || !text) return;
    value = text;
  } else {
    const std::size_t size = H5Tget_size(type);
    if (size > 1000 || H5Sget_simple_extent_npoints(H5Aget_space(attribute)) != 1) return;
    value.resize(size);
    if (H5Aread(attribute, type, value.data()) < 0) return;
    value.resize(strnlen(value.data(), size));
  }
  const std::string line = "distance\t" + plain(value.substr(0, 100)) + "\n";
  put(out, line.data(), line.size());
}

hid_t open_file(int out, const std::string& file) {
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);  // it prints otherwise
  const hid_t opened = H5Fopen(file.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  if (opened < 0) fail(out, "corrupt");
  return opened;
}

void inspect(int out, const std::string& file, const std::string& dataset) {
  allow_seconds(2);
  const hid_t opened = open_file(out, file);
  put_distance(out, opened);
  if (dataset.empty()) {
    Listing listing{out};
    H5Literate(opened, H5_INDEX_NAME, H5_ITER_NATIVE, nullptr, list_one, &listing);
  } else {
    std::string other;
    const hid_t found = H5Dopen2(opened, dataset.c_str(), access_of(H5P_DATASET_ACCESS, other));
    if (!other.empty())
      put_elsewhere(out, plain(dataset), behind_link(other));
    else if (found < 0)
      fail(out, "missing");
    else
      describe(out, found, plain(dataset));
  }
  put(out, "end\n", 4);
}

void stream(int out, const std::string& file, const std::string& name, std::int64_t row,
            std::int64_t end) {
  allow_seconds(10);
  const hid_t opened = open_file(out, file);
  // The file may be another one than the one that was described.
  std::string other;
  const hid_t dataset = H5Dopen2(opened, name.c_str(), access_of(H5P_DATASET_ACCESS, other));
  if (dataset < 0 || !elsewhere(dataset).empty()) _exit(1);
  const hid_t space = H5Dget_space(dataset), type = H5Dget_type(dataset);
  const hid_t memory_type = H5Tcopy(type);
  H5Tset_order(memory_type, H5T_ORDER_LE);
  hsize_t shape[2] = {0, 1};
  if (H5Sget_simple_extent_ndims(space) > 2 || H5Sget_simple_extent_dims(space, shape, nullptr) < 0)
    _exit(1);
  const int rank = H5Sget_simple_extent_ndims(space);
  const std::size_t row_bytes = shape[1] * H5Tget_size(memory_type);
  // Blocks of whole chunks, or each chunk would be unpacked again and again.
  std::int64_t block = std::max<std::int64_t>(1, (4 << 20) / static_cast<std::int64_t>(row_bytes));
  const hid_t plan = H5Dget_create_plist(dataset);
  hsize_t chunk[2] = {1, 1};
  if (H5Pget_layout(plan) == H5D_CHUNKED && H5Pget_chunk(plan, 2, chunk) > 0) {
    const auto rows = static_cast<std::int64_t>(std::min<hsize_t>(chunk[0], 1 << 20));
    block = (block + rows - 1) / rows * rows;
  }
  std::vector<char> rows;
  while (row < end) {
    allow_seconds(10);
    const std::int64_t stop = std::min(end, row / block * block + block);
    const hsize_t start[2] = {static_cast<hsize_t>(row), 0};
    const hsize_t count[2] = {static_cast<hsize_t>(stop - row), shape[1]};
    rows.resize(static_cast<std::size_t>(stop - row) * row_bytes);
    const hid_t memory = H5Screate_simple(rank, count, nullptr);
    if (H5Sselect_hyperslab(space, H5S_SELECT_SET, start, nullptr, count, nullptr) < 0 ||
        H5Dread(dataset, memory_type, memory, space, H5P_DEFAULT, rows.data()) < 0)
      _exit(1);
    H5Sclose(memory);
    put(out, rows.data(), rows.size());
    row = stop;
  }
}

}  // namespace child

// Starts a child process that runs work(pipe); returns the other end of the pipe.
template <class Work>
std::pair<pid_t, int> start(const std::string& file, Work work) {
  int ends[2];
  if (knear::detail::open_pipe(ends) != 0)
    throw IoError(SystemError{errno, file}, "cannot read '{}': {}", file, std::strerror(errno));
  const pid_t pid = fork();
  if (pid < 0) {
    const int error = errno;
    close(ends[0]), close(ends[1]);
    throw IoError(SystemError{error, file}, "cannot read '{}': {}", file, std::strerror(error));
  }
  if (pid == 0) {
    const rlimit none{0, 0};
    setrlimit(RLIMIT_CORE, &none);
    for (const int number : {SIGPIPE, SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGTERM, SIGXCPU})
      signal(number, SIG_DFL);
    signal(SIGINT, SIG_IGN);  // the parent gets it and closes the pipe
    // This process must not keep open anything else that the parent has open.
    if (ends[1] != 3) dup2(ends[1], 3);
    knear::detail::close_files_from(4);
    work(3);
    _exit(0);
  }
  close(ends[1]);
  return {pid, ends[0]};
}

[[noreturn]] void refuse_elsewhere(const std::string& file, const Hdf5Dataset& dataset) {
  throw InvalidArgument("'{}': its dataset '{}' {}, which is not read", file, dataset.name,
                        dataset.elsewhere);
}

std::string read_all(int pipe, std::size_t most) {
  std::string out;
  char buffer[65536];
  while (out.size() < most) {
    const ssize_t got = read(pipe, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    out.append(buffer, got);
  }
  return out;
}

}  // namespace

Hdf5Contents inspect_hdf5(const std::string& file, const std::string& dataset) {
  MappedFile readable(file);  // reports refusals in the system's own words
  const auto [pid, pipe] = start(file, [&](int out) { child::inspect(out, file, dataset); });
  const std::string text = read_all(pipe, 1 << 22);
  close(pipe);
  wait_for(pid);
  Hdf5Contents out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string kind;
    std::getline(fields, kind, '\t');
    if (kind == "end") return out;
    if (kind == "distance") std::getline(fields, out.distance);
    if (kind == "error") {
      std::string what;
      std::getline(fields, what);
      if (what == "missing") throw InvalidArgument("'{}' has no dataset '{}'", file, dataset);
      break;
    }
    Hdf5Dataset found;
    if (kind == "elsewhere") {
      std::getline(fields, found.name, '\t');
      std::getline(fields, found.elsewhere);
      if (!dataset.empty()) refuse_elsewhere(file, found);
      out.datasets.push_back(std::move(found));
    }
    if (kind != "dataset") continue;
    int scalar = -1, rank = 0;
    std::getline(fields, found.name, '\t');
    fields >> scalar >> found.big_endian >> found.offset >> found.stored_bytes >> rank;
    if (scalar >= 0) found.scalar = static_cast<Scalar>(scalar);
    found.shape.resize(rank);
    for (std::int64_t& size : found.shape) fields >> size;
    if (!fields) break;  // a size beyond 63 bits
    out.datasets.push_back(std::move(found));
  }
  throw CorruptFile("'{}' is no sound HDF5 file", file);
}

Hdf5Stream::Hdf5Stream(const std::string& file, const Hdf5Dataset& dataset, std::int64_t first_row,
                       std::int64_t end_row)
    : file_(file) {
  std::tie(child_, pipe_) =
      start(file, [&](int out) { child::stream(out, file, dataset.name, first_row, end_row); });
}

#endif

Hdf5Stream::~Hdf5Stream() { close(); }
Hdf5Stream::Hdf5Stream(Hdf5Stream&& other) noexcept
    : file_(std::move(other.file_)),
      child_(std::exchange(other.child_, -1)),
      pipe_(std::exchange(other.pipe_, -1)) {}
Hdf5Stream& Hdf5Stream::operator=(Hdf5Stream&& other) noexcept {
  if (this != &other) {
    close();
    file_ = std::move(other.file_);
    child_ = std::exchange(other.child_, -1), pipe_ = std::exchange(other.pipe_, -1);
  }
  return *this;
}

void Hdf5Stream::close() {
  if (pipe_ >= 0) ::close(pipe_);  // this ends a child that still writes
  if (child_ > 0) {
    kill(child_, SIGKILL);  // it has nothing to clean up
    wait_for(child_);
  }
  pipe_ = -1, child_ = -1;
}

void Hdf5Stream::read(void* out, std::int64_t bytes) {
  char* to = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t got = ::read(pipe_, to, bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) throw CorruptFile("'{}': the HDF5 library cannot read its data", file_);
    to += got, bytes -= got;
  }
}

}  // namespace knear::io
