// Distributed calls over MPI: a program that mpirun starts computes attention over several processes or machines. This is the component `mpi`, CMake target
// polyhead::mpi.
//
//   int level = 0;
//   MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
//   {
//     polyhead::distributed::MpiCommunicator ranks(MPI_COMM_WORLD);
//     polyhead::distributed::sdpa_forward(ranks, {.q = q, .k = k, .v = v, .out = out});  // this rank's part of each
//   }
//   MPI_Finalize();
//
// Many MPIs move a large message only while the program is inside MPI. What moves messages during a computation depends on the thread level:
//   MPI_THREAD_MULTIPLE       a thread of the communicator, which sleeps while no message is under way
//   MPI_THREAD_SERIALIZED     the distributed calls, which call progress() now and then; no other thread may be inside MPI during a call
//   MPI_THREAD_FUNNELED, _SINGLE   the same; besides, the thread that initialised MPI must make the distributed calls
#pragma once

// These macros keep MPI's own C++ interface out. polyhead does not use it, and old versions of it do not compile as C++20.
#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif
#include <mpi.h>

#include <cstddef>
#include <memory>

#include "polyhead/distributed/communicator.h"

#pragma GCC visibility push(default)
namespace polyhead::distributed {

namespace internal {
class MpiRequests;
}

// Connects ranks over MPI. A function throws an Error (ErrorCode::communication) if MPI cannot move a message, or if the size of a message is not that of the
// receiver's memory. The Error names the other rank and quotes MPI's message. Many MPIs do not report that a rank has ended; wait() then returns false at its
// limit.
class MpiCommunicator final : public Communicator {
 public:
  // All ranks of `ranks` must call the constructor together, because it duplicates `ranks`. The duplicate keeps the messages of this object apart from those of
  // the program and of other MpiCommunicators. A message of at least `piece_bytes` bytes is sent as several MPI messages; piece_bytes must be the same on all
  // ranks, and below 2^31. Error if MPI is not initialised, or has ended.
  explicit MpiCommunicator(MPI_Comm ranks, std::size_t piece_bytes = std::size_t{1} << 30);
  // All ranks must call the destructor together, before MPI_Finalize(). It cancels unfinished transfers. The memory of a message that is still being moved is
  // never freed, because MPI may still use it.
  ~MpiCommunicator() override;
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::unique_ptr<Transfer> send(const Message& message, int to, int tag) override;
  std::unique_ptr<Transfer> receive(const Message& message, int from, int tag) override;
  void progress() override;

 private:
  int rank_ = 0, size_ = 0;
  std::shared_ptr<internal::MpiRequests> requests_;  // the communicator and its transfers share this object
};

}  // namespace polyhead::distributed
#pragma GCC visibility pop
