#include "cli/dist/job.hpp"

#include <algorithm>
#include <array>

#include "cli/arguments.hpp"
#include "cli/files.hpp"
#include "cli/interrupt.hpp"
#include "knear/core/error.hpp"

namespace knear::cli {

Job::Job(MpiPeers& peers, int argc, char** argv)
    : peers_(peers), command_(fmt::format("mpirun -n {} knear dist", peers.size())) {
  constexpr std::string_view plain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./,:=+@%";
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i];
    if (word.empty() || word.find_first_not_of(plain) != std::string::npos) {
      std::string quoted = "'";
      for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
      word = quoted + "'";
    }
    command_ += " " + word;
  }
}

void Job::at_first(const std::function<void()>& work) const {
  together([&] {
    if (is_first()) work();
  });
}

int Job::threads(std::int64_t given) const {
  const int all = checked_threads(given);
  return given > 0 ? all : std::max(1, all / peers_.sharers());
}

Progress Job::progress(ProgressBar& bar) const {
  if (is_first()) return bar.callback();
  return [](std::string_view, double) { return !interrupted(); };
}

FileShape::FileShape(const Job& job, const std::string& file, const std::string& type_name)
    : path(file), options{.dataset = base_dataset} {
  job.together([&] {
    if (!type_name.empty()) options.type = parse_element_type(type_name);
    const io::VectorBlocks whole(path, options);
    rows = whole.rows(), dim = whole.dim(), type = whole.type();
  });
  check_same(job, path, std::array{rows, dim, static_cast<std::int64_t>(type)});
}

FilePart::FilePart(const Job& job, const std::string& path, const std::string& type)
    : all_(job, path, type), begin_(begin_of_rank(all_.rows, job.rank(), job.ranks())) {
  open(job, begin_of_rank(all_.rows, job.rank() + 1, job.ranks()));
}

FilePart::FilePart(const Job& job, const FileShape& shape, std::int64_t begin, std::int64_t end)
    : all_(shape), begin_(begin) {
  open(job, end);
}

void FilePart::open(const Job& job, std::int64_t end) {
  view_ = {all_.type, nullptr, 0, all_.dim, all_.dim};
  job.together([&] {
    if (begin_ == end) return;
    io::OpenOptions options = all_.options;
    options.rows = io::RowRange{begin_, end};
    file_.emplace(io::VectorFile::open(all_.path, options));
    view_ = file_->view();
  });
}

std::int64_t begin_of_rank(std::int64_t rows, int rank, int ranks) {
  return rows / ranks * rank + rows % ranks * rank / ranks;
}

void check_same(const Job& job, const std::string& path, std::span<const std::int64_t> numbers) {
  const auto all = job.peers().gather(std::as_bytes(numbers));
  for (std::size_t rank = 1; rank < all.size(); ++rank)
    if (all[rank] != all[0])
      throw InvalidArgument("{} is another file where rank {} runs than where rank 0 does", path,
                            rank);
}

void leave_out(CLI::App& command, std::initializer_list<const char*> options) {
  for (const char* option : options) command.get_option(option)->group("");
}

void check_left_out(const CLI::App& command, std::initializer_list<const char*> options) {
  for (const char* option : options)
    if (command.count(option) > 0)
      throw InvalidArgument("{} is not for dist {}, which does without", option,
                            command.get_name());
}

}  // namespace knear::cli
