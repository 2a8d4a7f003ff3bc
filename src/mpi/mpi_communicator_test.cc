// mpirun -n N test_mpi LEVEL: all ranks run these checks together. The last line is 'N passed, N failed', summed over all ranks.
#include <chrono>
#include <cstdio>
#include <exception>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "polyhead/distributed/mpi.h"
#include "polyhead/error.h"

using namespace polyhead;
using distributed::Communicator;
using distributed::Message;
using distributed::MpiCommunicator;
using distributed::Transfer;
using namespace std::chrono_literals;

namespace {

using Clock = std::chrono::steady_clock;
using Bytes = std::vector<std::byte>;
using Sizes = std::initializer_list<std::size_t>;
constexpr auto kLimit = 30s;

int passed = 0, failed = 0;

void check(bool holds, const char* claim, int rank) {
  ++(holds ? passed : failed);
  if (!holds) std::fprintf(stderr, "rank %d: not so: %s\n", rank, claim);
}

// Memory that is owned by a shared pointer.
struct Block {
  explicit Block(std::size_t size) : bytes(std::make_shared<Bytes>(size)) {}
  Block(std::size_t size, int seed) : Block(size) {
    for (std::size_t i = 0; i < size; ++i) (*bytes)[i] = static_cast<std::byte>(i * 7 + i / 251 + static_cast<std::size_t>(seed) * 31);
  }
  Message message() const { return {*bytes, bytes}; }
  friend bool operator==(const Block& a, const Block& b) { return *a.bytes == *b.bytes; }
  std::shared_ptr<Bytes> bytes;
};

// Returns the text of the Error that wait() throws; empty if it throws none.
std::string error_of(Transfer& transfer) {
  try {
    transfer.wait(kLimit);
  } catch (const Error& error) {
    return error.code() == ErrorCode::communication ? error.what() : "another code";
  }
  return "";
}

// Ranks form a circle: each rank sends to the next one and receives from the previous one. A single rank sends to itself.
struct Ranks {
  MpiCommunicator& communicator;
  const int rank = communicator.rank(), size = communicator.size(), next = (rank + 1) % size, before = (rank + size - 1) % size;

  void check(bool holds, const char* claim) const { ::check(holds, claim, rank); }
  bool pass(std::size_t size_of_message, int tag) const {
    const Block sent(size_of_message, rank), received(size_of_message);
    const auto receiving = communicator.receive(received.message(), before, tag), sending = communicator.send(sent.message(), next, tag);
    return receiving->wait(kLimit) && sending->wait(kLimit) && received == Block(size_of_message, before);
  }
};

void messages_of_all_sizes(const Ranks& ranks) {
  for (const std::size_t size : Sizes{0, 1, 4096, 100'000, 16 << 20}) ranks.check(ranks.pass(size, 5), "a message arrives with its bytes");
  ranks.check(ranks.pass(10, 0) && ranks.pass(10, (1 << 15) - 1), "the lowest and the highest tag");
}

// Posts receives before the messages are sent, or after they arrived. Waits for the messages of a tag in reverse order.
void order_and_tags(const Ranks& ranks, bool receives_first) {
  constexpr int kTags = 20, kMessages = 10;
  const auto size_of = [](int tag, int i) { return static_cast<std::size_t>(tag * 1000 + i * 50 + 1); };
  std::vector<std::unique_ptr<Transfer>> sending, receiving;
  std::vector<Block> sent, received;
  const auto send = [&] {
    for (int i = 0; i < kMessages; ++i) {
      for (int tag = 0; tag < kTags; ++tag) {
        for (int to = 0; to < ranks.size; ++to) {
          sent.emplace_back(size_of(tag, i), ranks.rank + i);
          sending.push_back(ranks.communicator.send(sent.back().message(), to, tag));
        }
      }
    }
  };
  if (!receives_first) send();
  MPI_Barrier(MPI_COMM_WORLD);
  for (int tag = kTags - 1; tag >= 0; --tag) {
    for (int from = 0; from < ranks.size; ++from) {
      for (int i = 0; i < kMessages; ++i) {
        received.emplace_back(size_of(tag, i));
        receiving.push_back(ranks.communicator.receive(received.back().message(), from, tag));
      }
    }
  }
  MPI_Barrier(MPI_COMM_WORLD);
  if (receives_first) send();
  bool right = true;
  for (auto at = receiving.size(); at-- > 0;) {
    const int i = static_cast<int>(at) % kMessages, from = static_cast<int>(at) / kMessages % ranks.size, tag = kTags - 1 - static_cast<int>(at) / kMessages / ranks.size;
    right = receiving[at]->wait(kLimit) && received[at] == Block(size_of(tag, i), from + i) && right;
  }
  for (const auto& transfer : sending) right = transfer->wait(kLimit) && right;
  ranks.check(right, receives_first ? "messages of one tag keep their order if the receives are posted first" : "messages of one tag keep their order if the messages are sent first");
}

void waiting_ends_at_the_limit(const Ranks& ranks) {
  const Block sent(1000, ranks.rank), received(1000);
  const auto receiving = ranks.communicator.receive(received.message(), ranks.before, 1);
  for (const auto limit : {0ms, 40ms}) {
    const auto begin = Clock::now();
    const bool done = receiving->wait(limit);
    const auto waited = Clock::now() - begin;
    ranks.check(!done && waited >= limit, "waiting for a message that nobody sent returns false after the limit");
    ranks.check(waited < limit + 5s, "waiting ends soon after the limit");
  }
  MPI_Barrier(MPI_COMM_WORLD);
  const auto sending = ranks.communicator.send(sent.message(), ranks.next, 1);
  ranks.check(receiving->wait(kLimit) && received == Block(1000, ranks.before), "a message arrives after its receiver has waited in vain");
  ranks.check(receiving->wait(0s) && sending->wait(kLimit), "a finished transfer stays finished");
}

void wrong_sizes(const Ranks& ranks, std::size_t sent_bytes, std::size_t received_bytes, const char* claim) {
  const std::string peer = "from rank " + std::to_string(ranks.before) + " ";
  const Block sent(sent_bytes, 1), received(received_bytes);
  {
    const auto receiving = ranks.communicator.receive(received.message(), ranks.before, 2);
    const auto sending = ranks.communicator.send(sent.message(), ranks.next, 2);
    const std::string error = error_of(*receiving);
    if (error.find(peer) == std::string::npos) std::fprintf(stderr, "the error is '%s'\n", error.c_str());
    ranks.check(error.find(peer) != std::string::npos && error == error_of(*receiving), claim);
    try {
      sending->wait(1s);
    } catch (const Error&) {  // an error at the sender is allowed, too
    }
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

void pieces(const Ranks& world) {
  for (const std::size_t size : Sizes{0, 999, 1000, 1001, 2000, 123'456}) {
    MpiCommunicator communicator(MPI_COMM_WORLD, 1000);
    const Ranks ranks{communicator};
    world.check(ranks.pass(size, 3) && ranks.pass(size, 3), "a message in pieces arrives, and so does the next");
  }
  for (const auto& [sent, received] : std::vector<std::pair<std::size_t, std::size_t>>{{1000, 1500}, {1500, 1000}, {1000, 2000}, {3000, 2000}, {2400, 2300}}) {
    MpiCommunicator communicator(MPI_COMM_WORLD, 1000);
    wrong_sizes({communicator}, sent, received, "a message with another number of pieces, or of bytes in the last piece, is an error that names the sender");
  }
}

void communicators_do_not_mix(const Ranks& ranks) {
  MpiCommunicator other(MPI_COMM_WORLD);
  const Block first(100, 1), second(100, 2), received(100), received_by_other(100);
  const auto sending = ranks.communicator.send(first.message(), ranks.next, 4), sending_by_other = other.send(second.message(), ranks.next, 4);
  const auto receiving_by_other = other.receive(received_by_other.message(), ranks.before, 4);
  ranks.check(receiving_by_other->wait(kLimit) && received_by_other == second, "messages of two MpiCommunicators do not mix");
  const auto receiving = ranks.communicator.receive(received.message(), ranks.before, 4);
  ranks.check(receiving->wait(kLimit) && received == first && sending->wait(kLimit) && sending_by_other->wait(kLimit), "the other communicator receives its message too");

  MPI_Comm backwards = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, 0, -ranks.rank, &backwards);
  {
    MpiCommunicator communicator(backwards);
    MPI_Comm_free(&backwards);
    ranks.check(communicator.rank() == ranks.size - 1 - ranks.rank && communicator.size() == ranks.size, "ranks are those of the MPI communicator given");
    ranks.check(Ranks{communicator}.pass(5000, 4), "the MPI communicator given may be freed");
  }
}

void abandoned_messages(const Ranks& ranks) {
  constexpr std::size_t kLarge = 8 << 20;  // MPI sends a message of this size only after the receiver has posted its receive
  std::weak_ptr<Bytes> memory;
  {
    const Block received(kLarge);
    memory = received.bytes;
    ranks.communicator.receive(received.message(), ranks.before, 6);
  }
  ranks.check(ranks.pass(1000, 7), "messages of other tags arrive after a receiver has given up");
  ranks.check(memory.expired(), "memory of an abandoned receive is released");

  {
    const Block sent(kLarge, ranks.rank);
    memory = sent.bytes;
    ranks.communicator.send(sent.message(), ranks.next, 8);
  }
  ranks.check(ranks.pass(1000, 9) && !memory.expired(), "memory of a message that has not left is kept");
  MPI_Barrier(MPI_COMM_WORLD);
  const Block received(kLarge);
  const auto receiving = ranks.communicator.receive(received.message(), ranks.before, 8);
  ranks.check(receiving->wait(kLimit) && received == Block(kLarge, ranks.before), "a message arrives although its sender has given up");
  MPI_Barrier(MPI_COMM_WORLD);
  for (const auto end = Clock::now() + kLimit; !memory.expired() && Clock::now() < end;) ranks.communicator.receive(received.message(), ranks.before, 13);
  ranks.check(memory.expired(), "memory of a message that arrived late is released");
  MPI_Barrier(MPI_COMM_WORLD);
}

void messages_at_the_end_of_a_communicator(const Ranks& ranks) {
  constexpr std::size_t kLarge = 8 << 20;
  const Block received(kLarge);
  std::unique_ptr<Transfer> receiving;
  std::weak_ptr<Bytes> memory;
  const auto begin = Clock::now();
  {
    MpiCommunicator communicator(MPI_COMM_WORLD);
    receiving = communicator.receive(received.message(), (ranks.rank + 2) % ranks.size, 10);
    const Block sent(kLarge, ranks.rank);
    memory = sent.bytes;
    communicator.send(sent.message(), ranks.next, 12);
  }
  ranks.check(Clock::now() - begin < 10s, "a communicator ends although messages are under way");
  ranks.check(error_of(*receiving).find("MpiCommunicator has ended") != std::string::npos, "waiting after the communicator has ended is an error");
  receiving.reset();
  ranks.check(!memory.expired(), "memory that MPI may still read is never freed");
}

// Tests that a large message moves while the rank computes. Without a progress thread, the rank calls progress() now and then.
void messages_move_during_a_computation(const Ranks& ranks, bool has_thread) {
  constexpr std::size_t kLarge = 4 << 20;
  const Block sent(kLarge, ranks.rank), received(kLarge);
  MPI_Barrier(MPI_COMM_WORLD);
  const auto receiving = ranks.communicator.receive(received.message(), ranks.before, 11);
  const auto sending = ranks.communicator.send(sent.message(), ranks.next, 11);
  for (int i = 0; i < 200; ++i) {
    std::this_thread::sleep_for(10ms);
    if (!has_thread) ranks.communicator.progress();
  }
  ranks.check(receiving->wait(0s) && sending->wait(0s), "a message moves while its rank computes");
  ranks.check(received == Block(kLarge, ranks.before), "a message that moves during a computation has its bytes");
}

void refusals(const Ranks& ranks) {
  const Block block(8);
  const auto sending = ranks.communicator.send(block.message(), 99, 0);
  const std::string error = error_of(*sending);
  ranks.check(error.find("to rank 99 ") != std::string::npos && error.find("MPI_ERR_RANK") != std::string::npos, "a rank that does not exist is an error with the text of MPI");
  try {
    const MpiCommunicator none(MPI_COMM_NULL);
    ranks.check(false, "MPI_COMM_NULL is refused");
  } catch (const Error& refusal) {
    ranks.check(refusal.code() == ErrorCode::invalid_argument, "MPI_COMM_NULL is an invalid argument");
  }
}

bool refused_without_mpi() {
  try {
    const MpiCommunicator early(MPI_COMM_WORLD);
  } catch (const Error& error) {
    return error.code() == ErrorCode::invalid_argument;
  }
  return false;
}

void run_all(const Ranks& ranks, bool has_thread) try {
  messages_of_all_sizes(ranks);
  order_and_tags(ranks, true);
  order_and_tags(ranks, false);
  waiting_ends_at_the_limit(ranks);
  pieces(ranks);
  communicators_do_not_mix(ranks);
  abandoned_messages(ranks);
  messages_at_the_end_of_a_communicator(ranks);
  messages_move_during_a_computation(ranks, has_thread);
  refusals(ranks);
  for (const std::size_t sent : Sizes{4, 12, 100'000}) {
    MpiCommunicator single(MPI_COMM_WORLD);
    wrong_sizes({single}, sent, 8, "a message of another size is an error that names the sender");
  }
} catch (const std::exception& error) {  // the other ranks wait for this one, so all are aborted
  std::fprintf(stderr, "rank %d: %s\n", ranks.rank, error.what());
  MPI_Abort(MPI_COMM_WORLD, 1);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view name = argc > 1 ? argv[1] : "multiple";
  const int wanted = name == "single" ? MPI_THREAD_SINGLE : name == "funneled" ? MPI_THREAD_FUNNELED : MPI_THREAD_MULTIPLE;
  const bool early = refused_without_mpi();
  int level = 0;
  MPI_Init_thread(&argc, &argv, wanted, &level);
  {
    MpiCommunicator communicator(MPI_COMM_WORLD);
    const Ranks ranks{communicator};
    ranks.check(early, "before MPI_Init_thread() there is no communicator");
    ranks.check(level == wanted, "MPI has the thread level");
    run_all(ranks, level == MPI_THREAD_MULTIPLE);
    int counts[] = {passed, failed}, sums[2] = {};
    MPI_Allreduce(counts, sums, 2, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    passed = sums[0], failed = sums[1];
    if (ranks.rank == 0) std::printf("%d passed, %d failed\n", passed, failed);
  }
  MPI_Finalize();
  return failed == 0 ? 0 : 1;
}
