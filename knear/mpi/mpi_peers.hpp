// knear/mpi/mpi_peers.hpp -- the processes of one `mpirun`, as core/peers.hpp has them.
//
//   int main(int argc, char** argv) {
//     MpiSession session(argc, argv);               // before anything else is done with MPI
//     MpiPeers peers;
//     together(peers, [&] { ... });
//   }
//
// MPI counts in 32 bits; what is longer goes in pieces. Calls come from the thread that made the
// session, and waits for processes that are still at work leave the processor to others. An error
// of MPI itself ends the process, as MPI has it by default: what is left of the others could not be
// told of it.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "knear/core/peers.hpp"

namespace knear {

// From MPI_Init to MPI_Finalize. One for each process; started without mpirun, it is one of one.
class MpiSession {
 public:
  // Throws Error where this MPI is built for processes of one thread.
  MpiSession(int& argc, char**& argv);
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;
};

class MpiPeers : public Peers {
 public:
  MpiPeers();
  ~MpiPeers() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  // The number of this process among those of this machine, from 0 on.
  int number_on_host() const { return number_here_; }
  // How many of the processes run on the same processors of this machine as this one, with it.
  int sharers() const { return sharers_; }

  // Whether all processes call this within so many seconds; those that did not may never.
  bool all_come(double seconds);
  // Ends all processes at once, with this exit status.
  [[noreturn]] static void end_all(int status);

  void sum(std::span<std::int64_t> values) override;
  void largest(std::span<double> values) override;
  std::vector<std::vector<std::byte>> gather(std::span<const std::byte> own) override;
  void in_turn(std::span<double> values, const std::function<void()>& change) override;
  void broadcast(int from, std::span<std::byte> bytes) override;
  void send(int to, std::span<const std::byte> bytes) override;
  std::vector<std::byte> receive(int from) override;

 private:
  struct Gate;
  // Until all processes have called it.
  void wait_for_all();
  // broadcast(), of which all know that all have come.
  void pass_on(int from, std::span<std::byte> bytes);

  const std::unique_ptr<Gate> gate_;
  int rank_ = 0, size_ = 1, number_here_ = 0, sharers_ = 1;
};

}  // namespace knear
