// Measures attention over several ranks: the time of each part of a call, and the bytes and memory of each rank. Or measures only the transport of messages.
// Prints one line of JSON.
//
//   mpirun -n 4 bench_distributed --length 16384 --heads 4 --causal --order zigzag --backward
//   mpirun -n 2 bench_distributed --transport
//
// scripts/scaling.py runs it for docs/scaling.md.
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "distributed/partial_results.h"
#include "distributed/redistribution.h"
#include "polyhead/distributed.h"
#include "polyhead/distributed/mpi.h"
#include "simulated_link.h"

namespace {

using namespace polyhead;
using distributed::CallReport, distributed::Communicator, distributed::Message, distributed::Plan, distributed::SliceOrder;
using Json = nlohmann::json;

struct Case {
  std::int64_t length = 8192, heads = 4, kv_heads = 0, width = 64;
  bool causal = false, backward = false;
  SliceOrder order = SliceOrder::contiguous;
  int head_ranks = 1, ring_ranks = 0, threads = 1, repetitions = 3;
};

double seconds_since(std::chrono::steady_clock::time_point begin) { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); }

// The processor time, in seconds, that all threads of this process have used.
double processor_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) { return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// The value of the line `name` in /proc/self/status, in MB.
double megabytes(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name + ":")) return std::stod(line.substr(name.size() + 1)) * 1024 / 1e6;
  }
  return 0;
}

// Resets the peak of memory (VmHWM). If this process may not write the file, the peak is that of the whole run.
void restart_peak() { std::ofstream("/proc/self/clear_refs") << 5; }

std::vector<double> of_ranks(double value, int ranks) {
  std::vector<double> all(static_cast<std::size_t>(ranks));
  MPI_Gather(&value, 1, MPI_DOUBLE, all.data(), 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
  return all;
}

Tensor random(const Shape& shape, unsigned seed) {
  Tensor tensor = Tensor::uninitialised(DType::f32, shape);
  std::minstd_rand bits(seed);
  for (std::int64_t i = 0; i < tensor.numel(); ++i) tensor.data<float>()[i] = static_cast<float>(static_cast<double>(bits()) / 2147483647.0 * 2 - 1);
  return tensor;
}

struct Run {
  CallReport forward, backward;
  double forward_processor = 0, backward_processor = 0;  // processor time in seconds
  double seconds() const { return forward.seconds + backward.seconds; }
};

class Attention {
 public:
  Attention(Communicator& ranks, const Case& c) : ranks_(ranks), case_(c), threads_(c.threads) {
    const std::int64_t rows = distributed::slice_length(c.order, c.length, ranks.rank(), ranks.size());
    const Shape of_q = {1, c.heads, rows, c.width}, of_k = {1, c.kv_heads, rows, c.width};
    const auto seed = static_cast<unsigned>(ranks.rank() * 4 + 1);
    q_ = random(of_q, seed), k_ = random(of_k, seed + 1), v_ = random(of_k, seed + 2);
    out_ = Tensor(DType::f32, of_q), lse_ = Tensor(DType::f32, {1, c.heads, rows});
    if (!c.backward) return;
    d_out_ = random(of_q, seed + 3);
    d_q_ = Tensor(DType::f32, of_q), d_k_ = Tensor(DType::f32, of_k), d_v_ = Tensor(DType::f32, of_k);
  }

  Run run() {
    Run result;
    SdpaOptions options;
    options.executor = &threads_;
    if (case_.causal) options.mask.causal = Causal::top_left();
    distributed::DistributedOptions of_ranks;
    of_ranks.order = case_.order, of_ranks.plan = Plan{case_.head_ranks, case_.ring_ranks};
    MPI_Barrier(MPI_COMM_WORLD);
    of_ranks.report = &result.forward;
    result.forward_processor = -processor_seconds();
    distributed::sdpa_forward(ranks_, {.q = q_, .k = k_, .v = v_, .out = out_, .lse = lse_}, options, of_ranks);
    result.forward_processor += processor_seconds();
    if (!case_.backward) return result;
    of_ranks.report = &result.backward;
    result.backward_processor = -processor_seconds();
    distributed::sdpa_backward(ranks_, {.q = q_, .k = k_, .v = v_, .out = out_, .lse = lse_, .d_out = d_out_, .d_q = d_q_, .d_k = d_k_, .d_v = d_v_}, options, of_ranks);
    result.backward_processor += processor_seconds();
    return result;
  }

  double megabytes() const {
    std::int64_t count = 0;
    for (const Tensor* tensor : {&q_, &k_, &v_, &out_, &lse_, &d_out_, &d_q_, &d_k_, &d_v_}) count += *tensor ? tensor->numel() : 0;
    return static_cast<double>(count) * 4e-6;
  }

 private:
  Communicator& ranks_;
  const Case& case_;
  LimitedThreads threads_;
  Tensor q_, k_, v_, out_, lse_, d_out_, d_q_, d_k_, d_v_;
};

Json described(const CallReport& report, double processor, int ranks) {
  return {{"processor", of_ranks(processor, ranks)},
          {"seconds", of_ranks(report.seconds, ranks)},
          {"compute", of_ranks(report.compute_seconds, ranks)},
          {"waiting", of_ranks(report.waiting_seconds, ranks)},
          {"agreement", of_ranks(report.agreement_seconds, ranks)},
          {"sent_bytes", of_ranks(static_cast<double>(report.sent_bytes), ranks)}};
}

double slowest(double value) {
  double largest = 0;
  MPI_Allreduce(&value, &largest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return largest;
}

// Measures several repetitions of a call. Returns the repetition in which the slowest rank took the least time.
Json measure(Communicator& ranks, const Case& c) {
  Case small = c;  // a small first call, in which threads start and MPI allocates its buffers
  small.length = 256 * ranks.size();
  Attention(ranks, small).run();
  restart_peak();
  const double base = megabytes("VmRSS");
  std::optional<Attention> attention(std::in_place, ranks, c);
  Run best;
  for (int i = 0; i < c.repetitions; ++i) {
    const Run run = attention->run();
    if (i == 0 || slowest(run.seconds()) < slowest(best.seconds())) best = run;
  }
  const double peak = megabytes("VmHWM");
  const auto real = [](std::int64_t x) { return static_cast<double>(x); };
  const double pairs = c.causal ? real(c.length) * real(c.length + 1) / 2 : real(c.length) * real(c.length);
  const double multiply_adds = pairs * real(c.heads) * 2 * real(c.width) * (c.backward ? 3.5 : 1);
  const double seconds = slowest(best.seconds());
  const int size = ranks.size();
  return {{"ranks", size},
          {"plan", {c.head_ranks, c.ring_ranks}},
          {"length", c.length},
          {"heads", c.heads},
          {"kv_heads", c.kv_heads},
          {"width", c.width},
          {"causal", c.causal},
          {"order", c.order == SliceOrder::zigzag ? "zigzag" : "contiguous"},
          {"backward", c.backward},
          {"threads", c.threads},
          {"repetitions", c.repetitions},
          {"seconds", seconds},
          {"gflops", 2e-9 * multiply_adds / seconds},
          {"forward_report", described(best.forward, best.forward_processor, size)},
          {"backward_report", described(best.backward, best.backward_processor, size)},
          {"tensor_megabytes", of_ranks(attention->megabytes(), size)},
          {"base_megabytes", of_ranks(base, size)},
          {"peak_megabytes", of_ranks(peak, size)}};
}

Message message_of(std::size_t bytes) {
  auto memory = std::make_shared<std::vector<std::byte>>(bytes);
  return {*memory, memory};
}

// Measures how long the Communicator takes to send messages between ranks 0 and 1.
class Transport {
 public:
  explicit Transport(Communicator& ranks) : ranks_(ranks) {}

  Json measure() {
    Json large = Json::array();
    const double latency = median(201, [&] { there_and_back(8, 8); }) / 2;
    for (const std::size_t mebibytes : {1, 4, 16, 64}) {
      const std::size_t bytes = mebibytes << 20;
      const double one_way = median(5, [&] { there_and_back(bytes, 8); }), both_ways = median(5, [&] { both(bytes); });
      large.push_back({{"bytes", bytes}, {"one_way_bytes_per_second", static_cast<double>(bytes) / one_way}, {"both_ways_bytes_per_second", static_cast<double>(bytes) / both_ways}});
    }
    return {{"ranks", ranks_.size()}, {"latency", latency}, {"large", large}};
  }

 private:
  static constexpr int kTag = 32760;  // a message tag that polyhead's distributed calls do not use

  template <class F>
  double median(int count, const F& f) {
    std::vector<double> times;
    f();
    for (int i = 0; i < count; ++i) {
      MPI_Barrier(MPI_COMM_WORLD);
      const auto begin = std::chrono::steady_clock::now();
      if (ranks_.rank() < 2) f();
      times.push_back(seconds_since(begin));
    }
    std::nth_element(times.begin(), times.begin() + count / 2, times.end());
    return times[static_cast<std::size_t>(count / 2)];
  }
  static void finish(const std::unique_ptr<distributed::Transfer>& transfer) {
    while (!transfer->wait(std::chrono::seconds(1))) {}
  }
  Message memory(std::size_t bytes, int which) {
    Message& kept = kept_[which];
    if (kept.bytes.size() != bytes) kept = message_of(bytes);
    return kept;
  }
  void there_and_back(std::size_t bytes, std::size_t answer) {
    if (ranks_.rank() == 0) {
      const auto received = ranks_.receive(memory(answer, 0), 1, kTag);
      const auto sent = ranks_.send(memory(bytes, 1), 1, kTag);
      finish(received), finish(sent);
    } else if (ranks_.rank() == 1) {
      finish(ranks_.receive(memory(bytes, 1), 0, kTag));
      finish(ranks_.send(memory(answer, 0), 0, kTag));
    }
  }
  void both(std::size_t bytes) {
    if (ranks_.rank() > 1) return;
    const auto received = ranks_.receive(memory(bytes, 0), 1 - ranks_.rank(), kTag);
    const auto sent = ranks_.send(memory(bytes, 1), 1 - ranks_.rank(), kTag);
    finish(received), finish(sent);
  }

  Communicator& ranks_;
  Message kept_[2];
};

// Measures how long one thread takes to add up partial results, in seconds per element. As in a real call, partial results are in newly allocated memory
// each time.
Json measure_adding() {
  const Shape shape = {1, 8, 16384, 64}, of_lse = {1, 8, 16384, 1};  // the tensor has 34 MB, more than the caches hold
  const Tensor values = random(shape, 1);
  Tensor sums = Tensor::copy_of(values), lse(DType::f32, of_lse), all_lse(DType::f64, of_lse);
  LimitedThreads one(1);
  const auto best = [&](const auto& f) {
    double least = 1e9;
    for (int i = 0; i < 30; ++i) {
      const double begin = processor_seconds();
      Tensor part = Tensor::uninitialised(DType::f32, shape);
      copy(values, part);
      const double filled = processor_seconds();
      copy(values, part);
      const double copied = processor_seconds();
      f(part);
      const double done = processor_seconds();
      least = std::min(least, done - copied + (filled - begin) - (copied - filled));  // f, and how much longer the first copy took because `part` was new memory
    }
    return least / static_cast<double>(values.numel());
  };
  const double joined = best([&](const Tensor& part) { distributed::join(part, lse, sums, all_lse, &one); });
  const double added = best([&](const Tensor& part) { distributed::add(part, sums); });
  return {{"join", joined}, {"add", added}};
}

}  // namespace

int main(int argc, char** argv) {
  Case c;
  bool transport = false, adding = false;
  std::string order = "contiguous", note;
  double gigabits = 0, milliseconds = 0;
  CLI::App app("Attention over several ranks, or the transport between two of them");
  app.add_option("--length", c.length, "positions of the whole sequence");
  app.add_option("--heads", c.heads);
  app.add_option("--kv-heads", c.kv_heads, "number of key/value heads; 0: as many as heads");
  app.add_option("--width", c.width, "of a head");
  app.add_flag("--causal", c.causal);
  app.add_option("--order", order)->check(CLI::IsMember({"contiguous", "zigzag"}));
  app.add_option("--head-ranks", c.head_ranks);
  app.add_option("--ring-ranks", c.ring_ranks, "number of ranks in a ring; 0: number of ranks divided by head ranks");
  app.add_flag("--backward", c.backward, "measure the forward and the backward pass");
  app.add_option("--threads", c.threads, "number of threads of each rank");
  app.add_option("--repeat", c.repetitions)->check(CLI::PositiveNumber);
  app.add_flag("--transport", transport, "measure messages between ranks 0 and 1");
  app.add_flag("--adding", adding, "measure how long adding up partial results takes, on each rank alone");
  app.add_option("--rate", gigabits, "simulate links with this rate in Gbit/s");
  app.add_option("--delay", milliseconds, "simulate links with this delay in ms");
  app.add_option("--note", note, "a text that is printed with the figures");
  CLI11_PARSE(app, argc, argv);

  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  {
    distributed::MpiCommunicator processes(MPI_COMM_WORLD);
    const std::chrono::nanoseconds delay(static_cast<std::int64_t>(milliseconds * 1e6));
    bench::SimulatedLink links(processes, gigabits > 0 ? gigabits * 1e9 / 8 : 1e18, delay);
    const bool simulated = gigabits > 0 || milliseconds > 0;
    Communicator& ranks = simulated ? static_cast<Communicator&>(links) : processes;
    if (c.kv_heads == 0) c.kv_heads = c.heads;
    if (c.ring_ranks == 0) c.ring_ranks = ranks.size() / c.head_ranks;
    if (order == "zigzag") c.order = SliceOrder::zigzag;
    Json line = adding ? measure_adding() : transport ? Transport(ranks).measure() : measure(ranks, c);
    if (simulated) line["simulated"] = {{"gigabits", gigabits}, {"delay_milliseconds", milliseconds}};
    line["note"] = note;
    if (ranks.rank() == 0) std::printf("%s\n", line.dump().c_str());
    MPI_Barrier(MPI_COMM_WORLD);
  }
  MPI_Finalize();
  return 0;
}
