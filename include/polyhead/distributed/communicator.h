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

// Memory of a message. A communicator keeps `owner` until the message has left or arrived, even if its Transfer is destroyed earlier.
struct Message {
  std::span<std::byte> bytes;
  std::shared_ptr<void> owner;
};

// A message under way.
class Transfer {
 public:
  virtual ~Transfer() = default;  // cancels an unfinished message
  // Waits for at most `limit`. Returns true once a received message is here, or once the memory of a sent message may be reused. Error if the message
  // cannot arrive, or has another size than the receiver's memory.
  virtual bool wait(std::chrono::nanoseconds limit) = 0;
};

// Ranks 0 to size() - 1, one for each process. All ranks make the same distributed calls in the same order, each from one thread at a time.
// After an error in the middle of a call the ranks no longer agree on which messages come next, and every later call is refused.
class Communicator {
 public:
  Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual ~Communicator();
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Neither call waits. Messages from one rank to another with the same tag arrive in the order in which they were sent. Tags lie in [0, 2^15).
  virtual std::unique_ptr<Transfer> send(const Message& message, int to, int tag) = 0;
  virtual std::unique_ptr<Transfer> receive(const Message& message, int from, int tag) = 0;
  // The library calls this about every 10 ms while it computes, so that a communicator without threads can move its messages.
  virtual void progress() {}

 private:
  friend class Call;
  struct History;  // number and speed of the calls so far, and the error of a call that failed
  std::unique_ptr<History> history_;
};

}  // namespace polyhead::distributed
#pragma GCC visibility pop
