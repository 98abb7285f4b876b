// cli/dist/job.hpp -- one process of `knear dist`: its part of a file, and what it does with the
// others.
//
//   Job job(peers);                                      // peers: those of mpirun
//   const FilePart base(job, "base.fvecs", "");          // the rows of this process
//   job.together([&] { check_output(...); });            // an error in one is one in all
//   if (job.is_first()) write_vectors(...);              // rank 0 alone writes and prints
#pragma once
#include <CLI/CLI.hpp>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>

#include "cli/progress_bar.hpp"
#include "knear/io/vectors.hpp"
#include "knear/mpi/mpi_peers.hpp"

namespace knear::cli {

class Job {
 public:
  // argv: the words that the program was started with.
  Job(MpiPeers& peers, int argc, char** argv);

  MpiPeers& peers() const { return peers_; }
  int rank() const { return peers_.rank(); }
  int ranks() const { return peers_.size(); }
  bool is_first() const { return rank() == 0; }
  // What starts this again, as it is typed.
  const std::string& command() const { return command_; }

  // As knear::together().
  void together(const std::function<void()>& work) const { knear::together(peers_, work); }
  // together(), of the first process alone.
  void at_first(const std::function<void()>& work) const;

  // The threads that --threads asks of each process; for 0 all that it may use, or its share of
  // them where others run on the same processors.
  int threads(std::int64_t given) const;
  // The callback of the progress bar in the first process. In all processes it stops at a signal.
  Progress progress(ProgressBar& bar) const;

 private:
  MpiPeers& peers_;
  std::string command_;
};

// A file of vectors as all processes see it.
struct FileShape {
  // Throws in all processes: as open_vectors(), and InvalidArgument where they see different files.
  FileShape(const Job& job, const std::string& file, const std::string& type_name);

  std::string path;
  io::OpenOptions options;
  std::int64_t rows = 0, dim = 0;
  ElementType type = ElementType::f32;
};

// The rows of a file that are this process's, in the order of ranks. Others are not read, but of a
// gzipped file unpacked, as they come before.
class FilePart {
 public:
  // As many in each, give or take one; or those that are said. Throws in all processes, as
  // FileShape.
  FilePart(const Job& job, const std::string& path, const std::string& type);
  FilePart(const Job& job, const FileShape& shape, std::int64_t begin, std::int64_t end);

  const FileShape& all() const { return all_; }
  std::int64_t begin() const { return begin_; }  // among the rows of all
  std::int64_t end() const { return begin_ + view_.rows(); }
  AnyMatrixView view() const { return view_; }  // [end() - begin() x all().dim]

 private:
  void open(const Job& job, std::int64_t end);

  FileShape all_;
  std::int64_t begin_ = 0;
  std::optional<io::VectorFile> file_;  // none of no rows
  AnyMatrixView view_;
};

// The first of `rows` that belong to a rank, where each has as many, give or take one.
std::int64_t begin_of_rank(std::int64_t rows, int rank, int ranks);

// Throws InvalidArgument in all processes unless these numbers, of a file, are the same in all.
void check_same(const Job& job, const std::string& path, std::span<const std::int64_t> numbers);

// Options of the plain command that `knear dist` does not have: they are left out of the help, and
// InvalidArgument says so of one that is given, before the work begins.
void leave_out(CLI::App& command, std::initializer_list<const char*> options);
void check_left_out(const CLI::App& command, std::initializer_list<const char*> options);

void add_dist_build(CLI::App& app, const Job& job);
void add_dist_graph(CLI::App& app, const Job& job);
void add_dist_kmeans(CLI::App& app, const Job& job);
void add_dist_search(CLI::App& app, const Job& job);

}  // namespace knear::cli
