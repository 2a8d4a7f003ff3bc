#include "polyhead/distributed/mpi.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <list>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "core/text.h"

namespace polyhead::distributed {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;
using std::chrono::nanoseconds;

// A small message between processes of one machine takes 1 to 10 us if both have a core. Ranks often share cores, so a rank that waits longer sleeps.
constexpr microseconds kSpin{20};
constexpr microseconds kSleep{20};  // Linux adds about 50 us to each sleep
constexpr microseconds kInterval{100};  // period of the thread that moves messages during a computation
constexpr microseconds kLongInterval{1000};  // longer period, used while another thread waits for a message and moves messages itself

bool is_finalized() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  return finalized != 0;
}

std::string text_of(int error) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (MPI_Error_string(error, text, &length) != MPI_SUCCESS) return cat("MPI error ", error);
  return std::string(text, static_cast<std::size_t>(length));
}

// A message under way. It is cut into pieces of piece_bytes and a last piece that is shorter, perhaps empty. The size of the last piece shows the receiver
// whether the message is longer or shorter than its memory. The receiver takes a piece from MPI only after a probe has shown that the piece is here and has the
// right size. Otherwise Open MPI 4.1.4 writes past the memory of a receive that is too small, and reports the error only afterwards. This was seen with 100,000
// bytes for a receive of 8 bytes: inside a process, between processes of a machine, and over TCP.
class Pending {
 public:
  Pending(const Message& message, bool receives, int peer, int tag) : message_(message), receives_(receives), peer_(peer), tag_(tag) {}

  bool is_started() const { return first_ > message_.bytes.size(); }  // all pieces were passed to MPI
  bool is_over() const { return is_started() && open_.empty(); }
  bool same_peer_and_tag(const Pending& other) const { return receives_ && other.receives_ && peer_ == other.peer_ && tag_ == other.tag_; }
  const std::string& fault() const { return fault_; }

  // For a message to send, passes all its pieces to MPI; for a message to receive, only those that have arrived.
  void start(MPI_Comm comm, std::size_t piece_bytes) {
    while (!is_started() && fault_.empty()) {
      if (comm == MPI_COMM_NULL) return set_fault("its MpiCommunicator has ended");
      const std::size_t bytes = std::min(piece_bytes, message_.bytes.size() - first_);
      if (receives_ && !has_arrived(bytes, comm, piece_bytes)) return;
      open_.reserve(open_.size() + 1);
      MPI_Request request = MPI_REQUEST_NULL;
      std::byte* const memory = message_.bytes.data() + first_;
      const int error = receives_ ? MPI_Irecv(memory, static_cast<int>(bytes), MPI_BYTE, peer_, tag_, comm, &request)
                                  : MPI_Isend(memory, static_cast<int>(bytes), MPI_BYTE, peer_, tag_, comm, &request);
      if (error != MPI_SUCCESS) return set_fault(text_of(error));
      open_.push_back(request);
      first_ += piece_bytes;
    }
  }

  void test() {
    std::erase_if(open_, [this](MPI_Request& request) {
      int done = 0;
      const int error = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
      if (error == MPI_SUCCESS) return done != 0;
      set_fault(text_of(error));
      return request == MPI_REQUEST_NULL;
    });
  }

  // Gives up the pieces that are not started.
  void give_up() { first_ = message_.bytes.size() + 1; }

 private:
  bool has_arrived(std::size_t bytes, MPI_Comm comm, std::size_t piece_bytes) {
    int here = 0, count = 0;
    MPI_Status status;
    const int error = MPI_Iprobe(peer_, tag_, comm, &here, &status);
    if (error != MPI_SUCCESS) set_fault(text_of(error));
    if (error != MPI_SUCCESS || here == 0) return false;
    MPI_Get_count(&status, MPI_BYTE, &count);
    const auto got = static_cast<std::size_t>(std::max(count, 0));
    if (got != bytes) set_fault(cat("the message has ", first_ + got, " bytes", got == piece_bytes ? " or more" : ""));
    return got == bytes;
  }

  void set_fault(const std::string& reason) {
    if (!fault_.empty()) return;
    fault_ = cat("MPI could not ", receives_ ? "receive " : "send ", message_.bytes.size(), " bytes ", receives_ ? "from rank " : "to rank ", peer_,
                 " (tag ", tag_, "): ", reason);
  }

  const Message message_;
  const bool receives_;
  const int peer_, tag_;
  std::size_t first_ = 0;  // byte offset of the first piece that is not started
  std::vector<MPI_Request> open_{};
  std::string fault_{};
};

using Messages = std::list<std::shared_ptr<Pending>>;  // moving an element to another list allocates nothing, so destructors may do it

// Keeps messages for ever if MPI may still write to their memory and their Transfers are gone. Leak checkers find such messages reachable.
void hold_forever(Messages&& messages) {
  static auto& held = *new Messages;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  held.splice(held.end(), messages);
}

}  // namespace

namespace internal {

// Makes all MPI calls for messages, from one thread at a time.
class MpiRequests {
 public:
  MpiRequests(MPI_Comm ranks, std::size_t piece_bytes) : piece_bytes_(piece_bytes) {
    const int error = MPI_Comm_dup(ranks, &comm_);
    if (error != MPI_SUCCESS) fail(ErrorCode::communication, "MpiCommunicator: MPI cannot duplicate the communicator: ", text_of(error));
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    MPI_Query_thread(&level_);
  }
  MpiRequests(const MpiRequests&) = delete;
  MpiRequests& operator=(const MpiRequests&) = delete;
  ~MpiRequests() {
    if (!is_finalized()) release_abandoned();
    hold_forever(std::move(abandoned_));
  }

  MPI_Comm comm() const { return comm_; }

  std::shared_ptr<Pending> start(const Message& message, bool receives, int peer, int tag) {
    release_abandoned();
    auto pending = std::make_shared<Pending>(message, receives, peer, tag);
    const std::lock_guard lock(mutex_);
    pending_.push_back(pending);
    test(*pending);
    if (level_ == MPI_THREAD_MULTIPLE) wake_thread();
    return pending;
  }

  bool wait(Pending& pending, nanoseconds limit) {
    const auto begin = Clock::now();
    const Waiting waiting(waiting_);
    for (;;) {
      if (is_done(pending)) return true;
      const nanoseconds waited = Clock::now() - begin;
      if (waited >= limit) return false;
      if (waited < kSpin) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::min<nanoseconds>(kSleep, limit - waited));
      }
    }
  }

  void abandon(const std::shared_ptr<Pending>& pending) {
    const std::lock_guard lock(mutex_);
    const auto place = std::find(pending_.begin(), pending_.end(), pending);
    if (place == pending_.end()) return;
    pending->give_up();
    if (pending->is_over()) {
      pending_.erase(place);
    } else {
      abandoned_.splice(abandoned_.end(), pending_, place);
    }
  }

  void progress() {
    const std::lock_guard lock(mutex_);
    int main = 1;
    if (level_ < MPI_THREAD_SERIALIZED) MPI_Is_thread_main(&main);
    if (main == 0 || thread_.joinable()) return;
    test_all();
  }

  // All ranks must call close() together.
  void close() {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    wake_.notify_one();
    if (thread_.joinable()) thread_.join();
    const std::lock_guard lock(mutex_);
    if (!is_finalized()) MPI_Comm_free(&comm_);  // MPI keeps the communicator until its pending messages are complete
    comm_ = MPI_COMM_NULL;
  }

 private:
  struct Waiting {
    explicit Waiting(std::atomic<int>& count) : count_(count) { ++count_; }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;
    ~Waiting() { --count_; }
    std::atomic<int>& count_;
  };

  bool is_done(Pending& pending) {
    const std::lock_guard lock(mutex_);
    test(pending);
    if (!pending.fault().empty()) throw Error(ErrorCode::communication, pending.fault());
    return pending.is_over();
  }

  // Receives of one rank and tag take their messages in the order in which the receives were made.
  void test(Pending& pending) {
    if (!pending.is_started()) {
      bool before_all_started = true;
      for (const auto& other : pending_) {
        if (!before_all_started || other.get() == &pending) break;
        if (!other->same_peer_and_tag(pending)) continue;
        other->start(comm_, piece_bytes_);
        before_all_started = other->is_started();
      }
      if (before_all_started) pending.start(comm_, piece_bytes_);
    }
    pending.test();
  }

  void test_all() {
    for (const auto& pending : pending_) test(*pending);
    std::erase_if(pending_, [](const auto& pending) { return pending->is_over(); });
  }

  // Frees the memory of abandoned messages that MPI has completed.
  void release_abandoned() {
    Messages released;  // destroyed after the lock is released, because freeing may be slow
    const std::lock_guard lock(mutex_);
    for (auto place = abandoned_.begin(); place != abandoned_.end();) {
      const auto pending = place++;
      (*pending)->test();
      if ((*pending)->is_over()) released.splice(released.end(), abandoned_, pending);
    }
  }

  void wake_thread() {
    if (!thread_.joinable() && !closing_) {
      try {
        thread_ = std::thread([this] { move_messages(); });
      } catch (const std::system_error&) {
        level_ = MPI_THREAD_SERIALIZED;  // the system refuses another thread: progress() moves messages
      }
    }
    wake_.notify_one();
  }

  // Loop of the thread that moves messages with MPI_THREAD_MULTIPLE.
  void move_messages() {
    std::unique_lock lock(mutex_);
    while (!closing_) {
      if (waiting_ == 0) test_all();
      if (pending_.empty()) {
        wake_.wait(lock);
      } else {
        wake_.wait_for(lock, waiting_ == 0 ? kInterval : kLongInterval);
      }
    }
  }

  MPI_Comm comm_ = MPI_COMM_NULL;
  const std::size_t piece_bytes_;
  std::atomic<int> waiting_{0};  // threads in wait()
  std::mutex mutex_;             // guards all members below and the messages in them
  Messages pending_, abandoned_;
  bool closing_ = false;
  int level_ = MPI_THREAD_SINGLE;
  std::condition_variable wake_;
  std::thread thread_;
};

}  // namespace internal

namespace {

class MpiTransfer final : public Transfer {
 public:
  MpiTransfer(std::shared_ptr<internal::MpiRequests> requests, std::shared_ptr<Pending> pending)
      : requests_(std::move(requests)), pending_(std::move(pending)) {}
  MpiTransfer(const MpiTransfer&) = delete;
  MpiTransfer& operator=(const MpiTransfer&) = delete;
  ~MpiTransfer() override { requests_->abandon(pending_); }
  bool wait(nanoseconds limit) override { return requests_->wait(*pending_, limit); }

 private:
  const std::shared_ptr<internal::MpiRequests> requests_;
  const std::shared_ptr<Pending> pending_;
};

}  // namespace

MpiCommunicator::MpiCommunicator(MPI_Comm ranks, std::size_t piece_bytes) {
  int initialized = 0;
  MPI_Initialized(&initialized);
  require(initialized != 0 && !is_finalized(), "MpiCommunicator: MPI is not initialised; call MPI_Init_thread() before, and MPI_Finalize() after it");
  require(ranks != MPI_COMM_NULL, "MpiCommunicator: the communicator is MPI_COMM_NULL, which has no ranks");
  require(piece_bytes >= 1 && piece_bytes < (std::size_t{1} << 31), "MpiCommunicator: piece_bytes is ", piece_bytes, "; it must be in 1 .. 2^31 - 1");
  requests_ = std::make_shared<internal::MpiRequests>(ranks, piece_bytes);
  MPI_Comm_rank(requests_->comm(), &rank_);
  MPI_Comm_size(requests_->comm(), &size_);
}

MpiCommunicator::~MpiCommunicator() { requests_->close(); }

std::unique_ptr<Transfer> MpiCommunicator::send(const Message& message, int to, int tag) {
  return std::make_unique<MpiTransfer>(requests_, requests_->start(message, false, to, tag));
}

std::unique_ptr<Transfer> MpiCommunicator::receive(const Message& message, int from, int tag) {
  return std::make_unique<MpiTransfer>(requests_, requests_->start(message, true, from, tag));
}

void MpiCommunicator::progress() { requests_->progress(); }

}  // namespace polyhead::distributed
