// The interface through which the ranks of a distributed call exchange bytes. polyhead/distributed/mpi.h has a communicator over MPI; a program may write its
// own communicator.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace polyhead::distributed {
class Call;  // internal
}  // namespace polyhead::distributed

#pragma GCC visibility push(default)
namespace polyhead::distributed {

// The bytes of a message. A communicator keeps `owner` until the message has left or arrived, even if the Transfer is destroyed earlier.
struct Message {
  std::span<std::byte> bytes;
  std::shared_ptr<void> owner;
};

// A message that is being sent or received.
class Transfer {
 public:
  virtual ~Transfer() = default;  // The destructor cancels an unfinished message.
  // Waits for at most `limit`, and returns whether the transfer is finished: a received message has arrived, or the memory of a sent message may be reused.
  // Error if the message cannot arrive, or if its size is not that of the receiver's memory.
  virtual bool wait(std::chrono::nanoseconds limit) = 0;
};

// Connects ranks 0 to size() - 1; each rank is one process. All ranks make the same distributed calls in the same order, and a rank makes one call at a time.
// After an error in the middle of a call the ranks no longer agree on which messages come next, so every later call is refused.
class Communicator {
 public:
  Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual ~Communicator();
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // send() and receive() return at once. Messages from one rank to another with the same tag arrive in the order in which they were sent. Tags lie in [0,
  // 2^15).
  virtual std::unique_ptr<Transfer> send(const Message& message, int to, int tag) = 0;
  virtual std::unique_ptr<Transfer> receive(const Message& message, int from, int tag) = 0;
  // The library calls this about every 10 ms while it computes, so that a communicator without threads can move its messages.
  virtual void progress() {}

 private:
  friend class Call;
  struct History;  // the number and the speed of the calls so far, and the error of a call that failed
  std::unique_ptr<History> history_;
};

}  // namespace polyhead::distributed
#pragma GCC visibility pop
