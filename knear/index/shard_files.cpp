// Shards in files: one .knear file each, and the manifest that names them.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/index/packed_sections.hpp"
#include "knear/index/shards.hpp"
#include "knear/io/archive.hpp"

namespace knear::detail {
namespace {

namespace fs = std::filesystem;

// The sections of docs/knear-files.md.
struct ManifestFields {
  std::int64_t shards, next_id, rows, version, replicas;
};
struct ShardFields {
  std::int64_t rows, file_bytes;
  std::uint64_t checksum;
};

constexpr std::size_t digits = 16;  // of the number of a save

// "base.knear.0123456789abcdef.2.shard", in the folder of base.knear.
std::string name_of_shard(const std::string& manifest, std::uint64_t save, std::size_t number) {
  return fmt::format("{}.{:016x}.{}.shard", fs::path(manifest).filename().string(), save, number);
}

// Whether a save of this manifest could have given a file this name.
bool is_name_of_shard(const std::string& manifest, std::string_view name) {
  const std::string begin = fs::path(manifest).filename().string() + ".";
  constexpr std::string_view end = ".shard";
  if (!name.starts_with(begin) || !name.ends_with(end)) return false;
  name.remove_prefix(begin.size()), name.remove_suffix(end.size());
  const auto all_in = [](std::string_view text, std::string_view of) {
    return !text.empty() && text.find_first_not_of(of) == std::string_view::npos;
  };
  return name.size() > digits + 1 && name[digits] == '.' &&
         all_in(name.substr(0, digits), "0123456789abcdef") &&
         all_in(name.substr(digits + 1), "0123456789");
}

std::string beside(const std::string& manifest, const std::string& name) {
  return (fs::path(manifest).parent_path() / name).string();
}

// The manifest itself, where `path` is a symbolic link to it: shards lie beside that.
std::string resolved(const std::string& path) {
  std::error_code none;
  const fs::path target = fs::canonical(path, none);
  return none ? path : target.string();
}

// Removes files that saves of this manifest made, but for those that it names now. What cannot be
// removed stays: the next save tries again.
void remove_others(const std::string& manifest, const std::set<std::string>& named) {
  std::error_code none;
  const fs::path folder = fs::path(manifest).parent_path();
  std::vector<fs::path> others;
  for (fs::directory_iterator file(folder.empty() ? "." : folder, none), end; !none && file != end;
       file.increment(none)) {
    const std::string name = file->path().filename().string();
    if (is_name_of_shard(manifest, name) && !named.contains(name)) others.push_back(file->path());
  }
  for (const fs::path& file : others) fs::remove(file, none);
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
  ShardFields fields;
};
struct Manifest {
  ManifestFields fields;
  std::vector<NamedShard> shards;
};

Manifest read_manifest(const std::string& path) {
  const auto archive = io::Archive::open(path);
  if (archive->kind() != kind_of_shards)
    throw InvalidArgument("{} holds an index of kind {}, not a manifest of shards", path,
                          archive->kind());
  Sections in(archive);
  Manifest out{in.fields<ManifestFields>("shards"), {}};
  const ManifestFields& of = out.fields;
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
    const auto fields = in.fields<ShardFields>(prefix + "fields");
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

std::shared_ptr<Index> load_shard(const std::string& path, const ShardFields& fields,
                                  const ManifestFields& whole) {
  const auto archive = io::Archive::open(path);
  if (archive->file_bytes() != fields.file_bytes || archive->checksum() != fields.checksum)
    throw CorruptFile("{} is not the file that was saved with the manifest", path);
  SavedIndex saved = load_index(archive);
  if (saved.state.size != fields.rows)
    throw CorruptFile("{} has {} rows, the manifest says {}", path, saved.state.size, fields.rows);
  if (saved.state.next_id != whole.next_id)
    throw CorruptFile("{} has ids below {}, the manifest below {}", path, saved.state.next_id,
                      whole.next_id);
  return std::make_shared<Index>(IndexOfShape(saved.shape, std::move(saved.state)));
}

// Whether shards can be one index, of which the second then shares what both have learned.
bool goes_with(const Shard& first, Shard& other) {
  const IndexShape &a = first.impl().shape, &b = other.impl().shape;
  const auto ours = first.state(), theirs = other.state();
  const auto same = [](const auto& x, const auto& y) {
    return !x == !y && (!x || x == y || x->equals(*y));
  };
  if (a != b || ours->type != theirs->type || !same(ours->coarse, theirs->coarse) ||
      !same(ours->coder, theirs->coder) || !same(ours->refiner, theirs->refiner) ||
      ours->transform.has_value() != theirs->transform.has_value() ||
      (ours->transform && !equal(*ours->transform, *theirs->transform)))
    return false;
  State state = *theirs;
  state.coarse = ours->coarse, state.coder = ours->coder, state.refiner = ours->refiner;
  other.index = with_state(*other.index, std::move(state));
  return true;
}

}  // namespace

void save_shards(const Shards& shards, const std::string& given, const Progress& progress) {
  for (const Shard& shard : shards.all)
    if (!shard.index)
      throw InvalidArgument("shard {} is missing, and what is left cannot be saved: {}", shard.name,
                            shard.why_missing);
  const std::string path = resolved(given);
  std::random_device random;
  const std::uint64_t save = std::uint64_t{random()} << 32 | random();
  const std::size_t count = shards.all.size();
  std::vector<std::string> names;
  try {
    io::ArchiveWriter manifest(kind_of_shards);
    const ManifestFields fields{std::ssize(shards.all), shards.next_id, shards.size, shards.version,
                                shards.replicas};
    manifest.add_copy("shards", &fields, sizeof fields);
    for (std::size_t s = 0; s < count; ++s) {
      names.push_back(name_of_shard(path, save, s));
      const std::string file = beside(path, names.back());
      shards.all[s].index->save(file, part_of(progress, s, count + 1));
      const auto archive = io::Archive::open(file);
      const ShardFields of{shards.all[s].rows, archive->file_bytes(), archive->checksum()};
      manifest.set_prefix(fmt::format("{}/", s));
      manifest.add_copy("name", names.back().data(), names.back().size());
      manifest.add_copy("fields", &of, sizeof of);
    }
    manifest.write(path, part_of(progress, count, count + 1));
  } catch (...) {
    std::error_code none;
    for (const std::string& name : names) fs::remove(beside(path, name), none);
    throw;
  }
  remove_others(path, {names.begin(), names.end()});
}

Shards load_shards(const std::string& given, bool allow_partial, const Progress& progress) {
  const std::string path = resolved(given);
  // Somebody may save to the same path meanwhile, and remove what the manifest named: then there is
  // another one.
  const auto bytes_of = [](const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  for (int attempt = 0;; ++attempt) {
    const std::string before = bytes_of(path);
    const Manifest manifest = read_manifest(path);
    Reporter reporter(progress, "load shards", manifest.fields.shards);
    Shards out{.allow_partial = allow_partial,
               .replicas = manifest.fields.replicas,
               .next_id = manifest.fields.next_id,
               .version = manifest.fields.version};
    std::exception_ptr failure;
    Shard* first = nullptr;
    out.all.resize(manifest.shards.size());
    for (std::size_t s = 0; s < out.all.size(); ++s) {
      Shard& shard = out.all[s];
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
                            beside(path, shard.name), shard.index->description(), first->name);
        if (!first) first = &shard;
        out.size += shard.rows;
      } catch (const CorruptFile& error) {
        miss(CorruptFile("shard {}: {}", shard.name, error.what()));
      } catch (const InvalidArgument& error) {  // a manifest in the place of an index
        miss(CorruptFile("shard {}: {}", shard.name, error.what()));
      } catch (const IoError& error) {
        miss(IoError("shard {}: {}", shard.name, error.what()));
      }
      reporter.add(1);
    }
    if (failure && attempt < 10 && bytes_of(path) != before) continue;
    if (failure && !(allow_partial && first)) std::rethrow_exception(failure);
    return out;
  }
}

}  // namespace knear::detail
