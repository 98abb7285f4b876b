// knear/core/peers.hpp -- processes that work on parts of the same thing, and what they tell each
// other.
//
//   void work(Peers& peers) {
//     together(peers, [&] { ... });               // own part; an error in one is one in all
//     peers.sum(counts);                          // of all parts, in each process
//   }
//
// What runs over machines is written once, for any way of talking: mpi/ has that of MPI, and the
// tests have threads that play processes (tests/core/peer_threads.hpp). All functions but send()
// and receive() are collective: every process calls the same ones in the same order, with as many
// values. What they return is the same in all and does not depend on how the work is divided.
//
// Where each process has a GPU of its own, DeviceSums adds up what is in their memories without a
// way through the processors'.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace knear {

class Peers {
 public:
  virtual ~Peers() = default;

  // This process among all: rank from 0 to size - 1.
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // values = their sum over all processes, modulo 2^64.
  virtual void sum(std::span<std::int64_t> values) = 0;
  // values = the largest of all processes.
  virtual void largest(std::span<double> values) = 0;
  // What each process has, in the order of ranks [size]; each may have another number of bytes.
  virtual std::vector<std::vector<std::byte>> gather(std::span<const std::byte> own) = 0;
  // Lets the processes change the values one after another, in the order of ranks: change() finds
  // in them what the one before has left. All have those of the last one then. So sums of doubles
  // are those of one process that goes through all parts in order.
  virtual void in_turn(std::span<double> values, const std::function<void()>& change) = 0;
  // bytes = those of the process `from`.
  virtual void broadcast(int from, std::span<std::byte> bytes) = 0;
  // Between two processes: what one sends to another that one receives, in the order in which it
  // was sent. send() may wait until it is received.
  virtual void send(int to, std::span<const std::byte> bytes) = 0;
  virtual std::vector<std::byte> receive(int from) = 0;
};

// How the devices of all processes add up what each has in its memory, one device a process
// (mpi/device_sums.hpp). What one process throws the others are not told: it must end them, as the
// program knear-dist does.
class DeviceSums {
 public:
  virtual ~DeviceSums() = default;

  // to [count] = the sum of all processes' from [count], modulo 2^64: in the order of the work on
  // `stream` (a cudaStream_t), both in memory of this process's device. Collective.
  virtual void sum(const unsigned long long* from, unsigned long long* to, std::size_t count,
                   void* stream) = 0;
  // Until done(), which asks whether the work on the stream is done. Throws what goes wrong between
  // the devices meanwhile, and what done() throws; a sum that is still under way is given up then,
  // so that nobody waits for its stream for ever.
  virtual void wait(const std::function<bool()>& done) = 0;
};

// Calls work(). If it throws in some of the processes, throws in each what it threw in that of the
// lowest rank: an Error of the same class and message; other exceptions as an Error with their
// message.
void together(Peers& peers, const std::function<void()>& work);

}  // namespace knear
