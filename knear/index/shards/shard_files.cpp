// Shards in files: one .knear file each, and the manifest that names them.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/core/process_mutex.hpp"
#include "knear/core/system.hpp"
#include "knear/index/file/index_file.hpp"
#include "knear/index/sections/sections.hpp"
#include "knear/index/shards/shards.hpp"
#include "knear/io/archive.hpp"

namespace knear::detail {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t digits = 16;  // of the number of a save

// "base.knear.0123456789abcdef.2.shard", in the folder of base.knear.
std::string name_of_shard(const std::string& manifest, std::uint64_t save, std::int64_t number) {
  return fmt::format("{}.{:016x}.{}.shard", fs::path(manifest).filename().string(), save, number);
}

std::string beside(const std::string& manifest, const std::string& name) {
  return (fs::path(manifest).parent_path() / name).string();
}

bool is_manifest(const std::string& path) {
  std::error_code none;
  return fs::is_regular_file(path, none) && io::kind_of_archive(path) == kind_of_shards;
}

bool all_in(std::string_view text, std::string_view of) {
  return !text.empty() && text.find_first_not_of(of) == std::string_view::npos;
}

// Whether a save of this manifest could have given a file this name, or one to which it is only
// renamed once it is whole (io/atomic_file.cpp).
bool is_name_of_shard(const std::string& manifest, std::string_view name) {
  const std::string begin = fs::path(manifest).filename().string() + ".";
  constexpr std::string_view end = ".shard", unfinished = ".shard.tmp-";
  if (!name.starts_with(begin)) return false;
  name.remove_prefix(begin.size());
  const std::size_t tail = name.rfind(unfinished);
  if (tail != std::string_view::npos)
    name = name.substr(0, tail);
  else if (name.ends_with(end))
    name.remove_suffix(end.size());
  else
    return false;
  return name.size() > digits + 1 && name[digits] == '.' &&
         all_in(name.substr(0, digits), "0123456789abcdef") &&
         all_in(name.substr(digits + 1), "0123456789");
}

// Whether a file is a manifest that a save of this one has written and was killed before it could
// give it its name (io/atomic_file.cpp).
bool is_unfinished_manifest(const std::string& manifest, const std::string& name) {
  const std::string begin = fs::path(manifest).filename().string() + ".tmp-";
  return name.starts_with(begin) && all_in(name.substr(begin.size()), "0123456789abcdef") &&
         is_manifest(beside(manifest, name));
}

// The manifest itself, where `path` is a symbolic link to it: shards lie beside that.
std::string resolved(const std::string& path) {
  std::error_code none;
  const fs::path target = fs::canonical(path, none);
  return none ? path : target.string();
}

Progress part_of(const Progress& progress, std::size_t part, std::size_t parts) {
  if (!progress) return {};
  return [&progress, part, parts](std::string_view stage, double fraction) {
    return progress(stage, (static_cast<double>(part) + fraction) / static_cast<double>(parts));
  };
}

// What a manifest says of a shard.
struct NamedShard {
  std::string file;  // its name
  SavedShard fields;
};
struct Manifest {
  SavedShards fields;
  std::vector<NamedShard> shards;
  std::uint64_t checksum;
};

Manifest read_manifest(const std::string& path) {
  const auto archive = io::Archive::open(path);
  if (archive->kind() != kind_of_shards)
    throw InvalidArgument("{} holds an index of kind {}, not a manifest of shards", path,
                          archive->kind());
  Sections in(archive);
  Manifest out{in.fields<SavedShards>("shards"), {}, archive->checksum()};
  const SavedShards& of = out.fields;
  if (of.shards < 1 || of.shards > most_shards) in.refuse("shards", "their number is none");
  if (of.next_id < 0 || of.rows < 0 || of.rows > of.next_id || of.version < 0)
    in.refuse("shards", "its ids, rows or version are none");
  if (of.replicas < 1 || of.replicas > most_shards)
    in.refuse("shards", "its number of replicas is none");
  std::set<std::string> names;
  std::int64_t rows = 0;
  for (std::int64_t s = 0; s < of.shards; ++s) {
    const std::string prefix = fmt::format("{}/", s);
    const std::vector<char> text = in.list<char>(prefix + "name");
    const std::string name(text.begin(), text.end());
    // A file beside the manifest: a path could lead anywhere.
    if (name.empty() || name.size() > 255 || name == "." || name == ".." ||
        std::any_of(name.begin(), name.end(), [](char c) {
          return static_cast<unsigned char>(c) < 32 || c == '/' || c == '\\';
        }))
      in.refuse(prefix + "name", "it is no name of a file");
    if (!names.insert(name).second)
      in.refuse(prefix + "name", fmt::format("two shards have the file {}", name));
    const auto fields = in.fields<SavedShard>(prefix + "fields");
    if (fields.rows < 0 || fields.rows > of.rows - rows || fields.file_bytes < 0)
      in.refuse(prefix + "fields", "its rows or bytes are none");
    rows += fields.rows;
    out.shards.push_back({name, fields});
  }
  if (rows != of.rows)
    in.refuse("shards", fmt::format("it counts {} rows, its shards {}", of.rows, rows));
  in.check_all_used();
  return out;
}

// The names of the shards of a manifest; none of what is no manifest or cannot be read.
std::set<std::string> names_in(const std::string& path) {
  std::set<std::string> out;
  try {
    if (io::kind_of_archive(path) != kind_of_shards) return out;
    for (const NamedShard& shard : read_manifest(path).shards) out.insert(shard.file);
  } catch (const Error&) {
    out.clear();
  }
  return out;
}

// Removes files that saves of this manifest made, killed ones too, and those that the manifest
// before named, but for those that this one or another manifest of the folder names: one that was
// renamed or copied. What cannot be removed stays: the next save tries again.
void remove_others(const std::string& manifest, const std::set<std::string>& before,
                   std::set<std::string> named) {
  std::error_code none;
  fs::path folder = fs::path(manifest).parent_path();
  if (folder.empty()) folder = ".";
  std::vector<std::string> files, others;
  for (fs::directory_iterator file(folder, none), end; !none && file != end; file.increment(none))
    files.push_back(file->path().filename().string());
  for (const std::string& name : files)
    if (!named.contains(name) && (is_name_of_shard(manifest, name) || before.contains(name) ||
                                  is_unfinished_manifest(manifest, name)))
      others.push_back(name);
  if (others.empty()) return;
  for (const std::string& name : files) {
    const std::string path = (folder / name).string();
    if (is_manifest(path) && !is_unfinished_manifest(manifest, name)) named.merge(names_in(path));
  }
  for (const std::string& name : others)
    if (!named.contains(name)) fs::remove(folder / name, none);
}

// One save at a time in a folder, of this process and of others: each removes what the one before
// has left. Where the file system has no locks, of this process.
class FolderLock {
 public:
  explicit FolderLock(const std::string& path) : lock_(mutex()) {
    const fs::path folder = fs::path(path).parent_path();
    folder_ = open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    while (folder_ >= 0 && flock(folder_, LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  ~FolderLock() {
    if (folder_ < 0) return;
    // A child process that was forked meanwhile has the file open too.
    flock(folder_, LOCK_UN);
    close(folder_);
  }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  static ProcessMutex& mutex() {
    static ProcessMutex one;
    return one;
  }
  std::unique_lock<ProcessMutex> lock_;
  int folder_ = -1;
};

std::shared_ptr<IndexImpl> load_shard(const std::string& path, const SavedShard& fields,
                                      const SavedShards& whole) {
  const auto archive = io::Archive::open(path);
  if (archive->file_bytes() != fields.file_bytes || archive->checksum() != fields.checksum)
    throw CorruptFile("{} is not the file that was saved with the manifest", path);
  SavedIndex saved = load_index(archive);
  if (saved.state.size != fields.rows)
    throw CorruptFile("{} has {} rows, the manifest says {}", path, saved.state.size, fields.rows);
  if (saved.state.next_id != whole.next_id)
    throw CorruptFile("{} has ids below {}, the manifest below {}", path, saved.state.next_id,
                      whole.next_id);
  return std::make_shared<IndexImpl>(saved.shape, std::move(saved.state));
}

// Whether shards can be one index, of which the second then shares what both have learned.
bool goes_with(const Shard& first, Shard& other) {
  const IndexShape &a = first.index->shape, &b = other.index->shape;
  const auto ours = first.state(), theirs = other.state();
  const auto same = [](const auto& x, const auto& y) {
    return !x == !y && (!x || x == y || x->equals(*y));
  };
  if (a != b || ours->type != theirs->type || !same(ours->coarse, theirs->coarse) ||
      !same(ours->coder, theirs->coder) || !same(ours->refiner, theirs->refiner) ||
      ours->transform.has_value() != theirs->transform.has_value() ||
      (ours->transform && !equal(*ours->transform, *theirs->transform)))
    return false;
  // Segments keep the centres around which they are coded.
  if (ours->coarse && ours->coarse != theirs->coarse) theirs->coarse->share_centres(*ours->coarse);
  State state = *theirs;
  state.coarse = ours->coarse, state.coder = ours->coder, state.refiner = ours->refiner;
  other.index = with_state(*other.index, std::move(state));
  return true;
}

}  // namespace

struct ShardSave::State {
  State(const std::string& given, std::int64_t shards)
      : path(resolved(given)), lock(path), before(names_in(path)), number(random_number()) {
    for (std::int64_t s = 0; s < shards; ++s) names.push_back(name_of_shard(path, number, s));
  }

  bool is_manifest_of_this() const {
    return names_in(path) == std::set<std::string>(names.begin(), names.end());
  }

  const std::string path;
  const FolderLock lock;
  const std::set<std::string> before;
  const std::uint64_t number;
  std::vector<std::string> names;
};

ShardSave::ShardSave(const std::string& path, std::int64_t shards)
    : state_(std::make_unique<State>(path, shards)) {}

ShardSave::~ShardSave() {
  // The manifest may be in place without commit() having come to its end.
  if (state_->names.empty() || state_->is_manifest_of_this()) return;
  std::error_code none;
  for (const std::string& name : state_->names) fs::remove(beside(state_->path, name), none);
  fs::remove(file_of_shard(state_->path, state_->number, std::ssize(state_->names)), none);
}

std::uint64_t ShardSave::number() const { return state_->number; }

void ShardSave::commit(const SavedShards& all, std::span<const SavedShard> each,
                       const SaveOptions& options) {
  io::ArchiveWriter manifest(kind_of_shards);
  manifest.add_copy("shards", &all, sizeof all);
  for (std::size_t s = 0; s < each.size(); ++s) {
    manifest.set_prefix(fmt::format("{}/", s));
    manifest.add_copy("name", state_->names[s].data(), state_->names[s].size());
    manifest.add_copy("fields", &each[s], sizeof each[s]);
  }
  std::error_code none;
  const bool anew = !fs::exists(state_->path, none);
  manifest.write(state_->path, options.progress, options.before_replacing);
  if (anew && !options.permissions_of.empty())
    fs::permissions(state_->path, fs::status(options.permissions_of, none).permissions(), none);
  remove_others(state_->path, state_->before,
                std::set<std::string>(state_->names.begin(), state_->names.end()));
}

std::string file_of_shard(const std::string& given, std::uint64_t save, std::int64_t shard) {
  const std::string path = resolved(given);
  return beside(path, name_of_shard(path, save, shard));
}

SavedShard save_shard(const IndexImpl& shard, const std::string& given, std::uint64_t save,
                      std::int64_t number, const SaveOptions& options) {
  const std::string path = resolved(given), file = file_of_shard(path, save, number);
  shard.save(file, {.progress = options.progress});
  // Who may read the manifest may read them.
  std::error_code none;
  const std::string& like = fs::exists(path, none) ? path : options.permissions_of;
  if (!like.empty()) fs::permissions(file, fs::status(like, none).permissions(), none);
  const auto archive = io::Archive::open(file);
  return {shard.state()->size, archive->file_bytes(), archive->checksum()};
}

void save_shards(const Shards& shards, const std::string& path, const SaveOptions& options) {
  for (const Shard& shard : shards.all)
    if (!shard.index)
      throw InvalidArgument("shard {} is missing, and what is left cannot be saved: {}", shard.name,
                            shard.why_missing);
  const std::size_t count = shards.all.size();
  ShardSave save(path, std::ssize(shards.all));
  std::vector<SavedShard> saved;
  SaveOptions of_part = options;
  const auto part = [&](std::size_t s) -> const SaveOptions& {
    of_part.progress = part_of(options.progress, s, count + 1);
    return of_part;
  };
  for (std::size_t s = 0; s < count; ++s)
    saved.push_back(save_shard(*shards.all[s].index, path, save.number(),
                               static_cast<std::int64_t>(s), part(s)));
  save.commit(
      {std::ssize(shards.all), shards.next_id, shards.size, shards.version, shards.replicas}, saved,
      part(count));
}

void remove_saved(const std::string& path) {
  const FolderLock lock(path);
  const std::set<std::string> names = names_in(path);
  std::error_code none;
  if (fs::remove(path, none)) remove_others(path, names, {});
}

void remove_left_by_kills(const std::string& given) {
  const std::string path = resolved(given);
  if (!is_manifest(path)) return;
  const FolderLock lock(path);
  const std::set<std::string> names = names_in(path);
  if (!names.empty()) remove_others(path, {}, names);
}

Shards load_shards(const std::string& given, bool allow_partial, const Progress& progress,
                   const std::function<bool(std::size_t)>& wanted, std::int64_t* all) {
  const std::string path = resolved(given);
  // Somebody may save to the same path meanwhile, and remove what the manifest named: then there is
  // another one.
  const auto is_another = [&](std::uint64_t checksum) {
    try {
      return io::Archive::open(path)->checksum() != checksum;
    } catch (const Error&) {
      return false;
    }
  };
  for (int attempt = 0;; ++attempt) {
    const Manifest manifest = read_manifest(path);
    Reporter reporter(progress, "load shards", manifest.fields.shards);
    Shards out{.allow_partial = allow_partial,
               .replicas = manifest.fields.replicas,
               .next_id = manifest.fields.next_id,
               .version = manifest.fields.version};
    std::exception_ptr failure;
    Shard like;  // of one that is not wanted
    Shard* first = nullptr;
    out.all.reserve(manifest.shards.size());
    for (std::size_t s = 0; s < manifest.shards.size(); ++s) {
      const bool is_wanted = !wanted || wanted(s);
      if (!is_wanted && first) continue;
      Shard& shard = is_wanted ? out.all.emplace_back() : like;
      shard.name = manifest.shards[s].file, shard.rows = manifest.shards[s].fields.rows;
      const auto miss = [&](auto error) {
        shard.index = nullptr, shard.why_missing = error.what();
        if (!failure) failure = std::make_exception_ptr(error);
      };
      try {
        shard.index =
            load_shard(beside(path, shard.name), manifest.shards[s].fields, manifest.fields);
        if (first && !goes_with(*first, shard))
          throw CorruptFile("{} is an index {} that does not go together with shard {}",
                            beside(path, shard.name), shard.index->shape.description(),
                            first->name);
        if (!first) first = &shard;
        if (is_wanted) out.size += shard.rows;
      } catch (const CorruptFile& error) {
        miss(CorruptFile("shard {}: {}", shard.name, error.what()));
      } catch (const InvalidArgument& error) {  // a manifest in the place of an index
        miss(CorruptFile("shard {}: {}", shard.name, error.what()));
      } catch (const IoError& error) {
        miss(IoError("shard {}: {}", shard.name, error.what()));
      }
      reporter.add(1);
    }
    if (failure && attempt < 10 && is_another(manifest.checksum)) continue;
    if (failure && !(allow_partial && first)) std::rethrow_exception(failure);
    if (all) *all = manifest.fields.shards;
    return out;
  }
}

}  // namespace knear::detail
