// Tests that all ranks throw an error if one rank is silent, has left, or passes different arguments: the error names that rank, and no rank returns wrong
// numbers.
#include <gmock/gmock.h>

#include "support/distributed_case.h"

namespace polyhead::test {
namespace {

using distributed::Communicator;
using distributed::DistributedOptions;
using testing::AllOf;
using testing::HasSubstr;

constexpr std::int64_t kRows = 5;

// The forward pass of one rank: 2 heads, with kRows queries and keys on each rank.
struct Call {
  Tensor q = filled({2, kRows, 4}), k = filled({2, kRows, 4}), v = filled({2, kRows, 3}), out{DType::f32, {2, kRows, 3}};
  SdpaOptions options;
  DistributedOptions distributed{.timeout = std::chrono::milliseconds(300)};

  static Tensor filled(const Shape& shape) {
    Tensor tensor(DType::f32, shape);
    fill(tensor, 0.5);
    return tensor;
  }
  void run(Communicator& communicator) { distributed::sdpa_forward(communicator, {.q = q, .k = k, .v = v, .out = out}, options, distributed); }
};

template <class Change>
std::vector<std::string> errors_of(int ranks, const Change& change) {
  return run_ranks(ranks, [&](Communicator& communicator) {
    Call call;
    change(call, communicator);
    call.run(communicator);
  });
}

TEST(DistributedErrors, ARankThatDoesNotCallIsNamedByAllOthers) {
  const auto errors = errors_of(4, [](Call&, Communicator& communicator) {
    if (communicator.rank() == 2) throw Error(ErrorCode::io, "gone");
  });
  EXPECT_EQ(errors[2], "gone");
  for (const int rank : {0, 1, 3}) {
    EXPECT_THAT(errors[static_cast<std::size_t>(rank)], AllOf(HasSubstr("sdpa_forward: rank 2 has not sent the sizes of its part for 0.3 s"), HasSubstr("the timeout is 0.3 s")));
  }
}

// A communicator that breaks: it passes a given number of messages on to another communicator, then its send() throws. Its abort messages are still sent unless
// `silent`.
class FallsSilent final : public Communicator {
 public:
  FallsSilent(Communicator& whole, int messages, bool silent = false) : whole_(whole), left_(messages), silent_(silent) {}
  int rank() const override { return whole_.rank(); }
  int size() const override { return whole_.size(); }
  std::unique_ptr<distributed::Transfer> send(const distributed::Message& message, int to, int tag) override {
    if (left_-- <= 0 && (tag < 2047 * 16 || silent_)) throw Error(ErrorCode::io, "killed");
    return whole_.send(message, to, tag);
  }
  std::unique_ptr<distributed::Transfer> receive(const distributed::Message& message, int from, int tag) override { return whole_.receive(message, from, tag); }

 private:
  Communicator& whole_;
  int left_;
  bool silent_;  // true: abort messages are not sent either
};

TEST(DistributedErrors, ARankThatDiesInTheMiddleIsNamedByAllOthers) {
  for (const int messages : {0, 1, 2, 4, 6, 7, 9}) {  // number of messages that rank 1 sends before it dies: 3 + 3 for the two agreements, then keys and values for 3 ranks
    const auto errors = run_ranks(4, [&](Communicator& communicator) {
      Call call;
      call.distributed = {.plan = distributed::Plan{1, 4}, .timeout = std::chrono::milliseconds(1000)};  // long, because a busy machine may pause a thread
      FallsSilent dies(communicator, messages, true);
      call.run(communicator.rank() == 1 ? static_cast<Communicator&>(dies) : communicator);
    });
    EXPECT_EQ(errors[1], "killed") << messages;
    for (const int rank : {0, 2, 3}) {
      const std::string& error = errors[static_cast<std::size_t>(rank)];
      if (error.empty()) continue;  // this rank had received all it needs before rank 1 died
      EXPECT_THAT(error, HasSubstr("rank 1 has not")) << messages << ' ' << rank;
    }
    EXPECT_THAT(errors, testing::Contains(HasSubstr("rank 1 has not"))) << messages;
  }
}

TEST(DistributedErrors, WhyARankLeftTheCallIsToldToTheOthers) {
  const auto errors = run_ranks(3, [&](Communicator& communicator) {
    Call call;
    call.distributed = {.plan = distributed::Plan{1, 3}, .timeout = std::chrono::seconds(20)};
    FallsSilent breaks(communicator, 5);  // rank 1 breaks, but still sends abort messages
    call.run(communicator.rank() == 1 ? static_cast<Communicator&>(breaks) : communicator);
  });
  EXPECT_EQ(errors[1], "killed");
  EXPECT_THAT(errors, testing::Contains(HasSubstr("sdpa_forward: rank 1 left the call: killed")));
}

TEST(DistributedErrors, AfterAnErrorTheCommunicatorIsRefused) {
  const auto errors = run_ranks(2, [](Communicator& communicator) {
    if (communicator.rank() == 1) return;
    Call call;
    EXPECT_THAT(error_message([&] { call.run(communicator); }), HasSubstr("rank 1 has not sent"));
    call.run(communicator);
  });
  EXPECT_THAT(errors[0], AllOf(HasSubstr("this communicator had an error"), HasSubstr("rank 1 has not sent")));
}

struct Difference {
  const char* fact;
  void (*change)(Call& call);
};

TEST(DistributedErrors, WhatDiffersBetweenRanksIsNamedOnAllOfThemAndTheNextCallWorks) {
  const Difference differences[] = {
      {"the width of a value head differs: 3 on rank 0 and 7 on rank 1", [](Call& c) { c.v = Call::filled({2, kRows, 7}), c.out = Tensor(DType::f32, {2, kRows, 7}); }},
      {"the number of query heads differs: 2 on rank 0 and 4 on rank 1", [](Call& c) { c.q = Call::filled({4, kRows, 4}), c.out = Tensor(DType::f32, {4, kRows, 3}); }},
      {"whether scale is given differs: 0 on rank 0 and 1 on rank 1", [](Call& c) { c.options.scale = -1; }},
      {"the dtype of q differs: float32 on rank 0 and float64 on rank 1", [](Call& c) { c.q = Tensor::copy_of(c.q, DType::f64), c.k = Tensor::copy_of(c.k, DType::f64), c.v = Tensor::copy_of(c.v, DType::f64), c.out = Tensor(DType::f64, c.out.shape()); }},
      {"one_row differs: -1 on rank 0 and 1 on rank 1", [](Call& c) { c.distributed.one_row = distributed::OneRow::shared; }},
      {"the seed of dropout differs", [](Call& c) { c.options.dropout.seed = 4; }},
      {"whether the mask is causal differs: 0 on rank 0 and 1 on rank 1", [](Call& c) { c.options.mask.causal = Causal::top_left(); }},
      {"the order of slices differs", [](Call& c) { c.distributed.order = distributed::SliceOrder::zigzag; }},
      {"the plan's head_ranks differs: -1 on rank 0 and 3 on rank 1", [](Call& c) { c.distributed.plan = distributed::Plan{3, 1}; }},
  };
  for (const Difference& difference : differences) {
    const auto errors = run_ranks(3, [&](Communicator& communicator) {
      Call call, again;
      if (communicator.rank() == 1) difference.change(call);
      const std::string error = error_message([&] { call.run(communicator); });
      again.run(communicator);
      throw Error(ErrorCode::io, error);
    });
    for (const std::string& error : errors) EXPECT_THAT(error, HasSubstr(difference.fact));
  }
}

TEST(DistributedErrors, AWrongArgumentOfOneRankIsRefusedByAll) {
  const auto errors = errors_of(3, [](Call& call, Communicator& communicator) {
    if (communicator.rank() == 1) call.k = Call::filled({2, kRows, 9});
  });
  EXPECT_THAT(errors[1], HasSubstr("sdpa_forward: k is [2,5,9]; its last extent must be H = 4"));
  for (const std::size_t rank : {0u, 2u}) EXPECT_THAT(errors[rank], HasSubstr("rank 1 refuses: sdpa_forward: k is [2,5,9]"));
}

TEST(DistributedErrors, ABiasHasARowForEachQueryOfTheRankAndAllKeys) {
  const Tensor bias = Call::filled({2, kRows, kRows});
  const auto errors = errors_of(2, [&](Call& call, Communicator&) { call.options.bias = bias; });
  EXPECT_THAT(errors[0], HasSubstr("bias is [2,5,5]; it must broadcast to [*,N,T,S] = [2,5,10]"));
}

TEST(DistributedErrors, RanksThatCallDifferentOperationsAreRefused) {
  const auto errors = run_ranks(2, [](Communicator& communicator) {
    Call call;
    if (communicator.rank() == 0) return call.run(communicator);
    distributed::explain(communicator, {.q = call.q, .k = call.k, .v = call.v, .out = call.out}, call.options, call.distributed);
  });
  for (const std::string& error : errors) EXPECT_THAT(error, HasSubstr("the operation differs"));
}

TEST(DistributedErrors, ATimeoutOfZeroIsRefusedByAll) {
  const auto errors = errors_of(2, [](Call& call, Communicator& communicator) { call.distributed.timeout = std::chrono::milliseconds(communicator.rank() == 0 ? 0 : 5000); });
  EXPECT_THAT(errors[0], HasSubstr("the timeout is 0 ms; it must be positive"));
  EXPECT_THAT(errors[1], HasSubstr("rank 0 refuses: sdpa_forward: the timeout is 0 ms"));
}

TEST(DistributedErrors, TheLongestTimeoutDoesNotOverflow) {
  const auto errors = errors_of(2, [](Call& call, Communicator&) { call.distributed.timeout = std::chrono::milliseconds::max(); });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

// One rank has all the work, which takes longer than the timeout. The other rank must wait until that rank has finished.
TEST(DistributedErrors, ARankThatComputesForLongIsWaitedFor) {
  constexpr std::int64_t kLength = 8192, kWidth = 64;
  for (const distributed::Plan plan : {distributed::Plan{1, 2}, distributed::Plan{2, 1}}) {
    const auto errors = run_ranks(2, [&](Communicator& communicator) {
      const bool busy = communicator.rank() == 1;
      const Shape rows{1, plan.ring_ranks == 2 ? (busy ? kLength : 0) : kLength / 2, kWidth}, of_keys{1, kLength / 2, kWidth};
      Tensor q(DType::f64, rows), k(DType::f64, of_keys), out(DType::f64, rows), lse(DType::f64, rows.first(2)), d_k(DType::f64, of_keys);
      LimitedThreads one(1);
      const DistributedOptions options{.plan = plan, .timeout = std::chrono::milliseconds(200)};  // long, because a busy machine may pause a thread
      distributed::sdpa_forward(communicator, {.q = q, .k = k, .v = k, .out = out, .lse = lse}, {.executor = &one}, options);
      distributed::sdpa_backward(communicator, {.q = q, .k = k, .v = k, .out = out, .lse = lse, .d_out = q, .d_q = {}, .d_k = d_k, .d_v = {}}, {.executor = &one}, options);
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
  }
}

TEST(DistributedErrors, ASharedTensorIsTheSameOnAllRanks) {
  const auto errors = run_ranks(2, [](Communicator& communicator) {
    Call call;
    Tensor bias(DType::f32, {2, 1, 2 * kRows});
    fill(bias, communicator.rank());
    call.options.bias = bias;
    call.run(communicator);
  });
  for (const std::string& error : errors) EXPECT_THAT(error, HasSubstr("bias differs: rank 1 gives another value than rank 0"));
  const auto sinks = run_ranks(2, [](Communicator& communicator) {  // a sink of shape [N] is shared by the ranks, also where every rank has one query
    Tensor q(DType::f32, {2, 1, 4}), out(DType::f32, {2, 1, 4}), sink(DType::f32, {2});
    fill(sink, communicator.rank());
    distributed::sdpa_forward(communicator, {.q = q, .k = q, .v = q, .out = out}, {.sink = sink});
  });
  for (const std::string& error : sinks) EXPECT_THAT(error, HasSubstr("sink differs: rank 1 gives another value than rank 0"));
}

TEST(DistributedErrors, ZigzagOrderSaysWhichLengthsItNeeds) {
  const auto errors = errors_of(2, [](Call& call, Communicator& communicator) {
    call.distributed.order = distributed::SliceOrder::zigzag;
    if (communicator.rank() == 1) call.q = Call::filled({2, kRows + 4, 4}), call.out = Tensor(DType::f32, {2, kRows + 4, 3});
  });
  for (const std::string& error : errors) EXPECT_THAT(error, HasSubstr("rank 0 has 5 queries; of T = 14 in zigzag order over 2 ranks it must have 7"));
}

TEST(DistributedErrors, OptionsThatARingDoesNotSupportAreRefusedByName) {
  const auto errors = errors_of(2, [](Call& call, Communicator&) {
    call.options.empty_rows = EmptyRows::uniform;
    call.distributed.plan = distributed::Plan{1, 2};
  });
  EXPECT_THAT(errors[0], HasSubstr("empty_rows is not zero, and the plan has a ring of 2"));
  const auto weights = run_ranks(1, [](Communicator& communicator) {
    Call call;
    Tensor p(DType::f32, {2, kRows, kRows});
    distributed::sdpa_forward(communicator, {.q = call.q, .k = call.k, .v = call.v, .out = call.out, .attention_weights = p});
  });
  EXPECT_THAT(weights[0], HasSubstr("attention_weights over several ranks are not supported"));
}

TEST(DistributedErrors, AGradientOfABiasOfOneRowIsRefusedWithoutOneRow) {
  for (const bool told : {false, true}) {
    std::vector<double> sums(2);
    const auto errors = run_ranks(2, [&](Communicator& communicator) {
      Tensor q(DType::f64, {1, 1, 2}), k(DType::f64, {1, 1, 2}), v(DType::f64, {1, 1, 1}), out(DType::f64, {1, 1, 1}), lse(DType::f64, {1, 1}), bias(DType::f64, {1, 1, 2}), d_bias(DType::f64, {1, 1, 2});
      fill(v, communicator.rank()), fill(q, 1), fill(lse, 0);
      Tensor d_out(DType::f64, {1, 1, 1});
      fill(d_out, 1 + communicator.rank());
      DistributedOptions options{.timeout = std::chrono::seconds(10)};
      distributed::sdpa_forward(communicator, {.q = q, .k = k, .v = v, .out = out, .lse = lse}, {.bias = bias}, options);
      if (told) options.one_row = distributed::OneRow::shared;
      distributed::sdpa_backward(communicator, {.q = q, .k = k, .v = v, .out = out, .lse = lse, .d_out = d_out, .d_q = {}, .d_k = {}, .d_v = {}, .d_bias = d_bias}, {.bias = bias}, options);
      sums[static_cast<std::size_t>(communicator.rank())] = d_bias.data<double>()[1];
    });
    if (told) {
      EXPECT_EQ(errors[0], "");
      EXPECT_DOUBLE_EQ(sums[0], 0.25 + 0.5);  // the sum of p (1 - p) d_out over the two queries
      EXPECT_EQ(sums[0], sums[1]);
    } else {
      EXPECT_THAT(errors[0], HasSubstr("every rank has one query, and bias has one row"));
    }
  }
}

TEST(DistributedErrors, AForwardPassWhoseGradientNeedsOneRowIsRefusedWithoutIt) {
  // follows = 0: no rank sets d_bias_follows (or d_sink_follows). 1: rank 1 sets it. 2 and 3: all ranks set it. With 3, rank 0 has two queries, so a bias (or
  // sink) of one row can only be shared by all queries.
  for (const bool sink : {false, true}) {
    for (const int follows : {0, 1, 2, 3}) {
      std::vector<std::string> refusals(2);
      const auto errors = run_ranks(2, [&](Communicator& communicator) {
        const std::int64_t rows = follows == 3 && communicator.rank() == 0 ? 2 : 1;
        Tensor q(DType::f64, {1, rows, 2}), k(DType::f64, {1, 1, 2}), v(DType::f64, {1, 1, 1}), out(DType::f64, {1, rows, 1}), bias(DType::f64, {1, 1, 2}), sinks(DType::f64, {1, 1});
        SdpaOptions options;
        (sink ? options.sink : options.bias) = sink ? sinks : bias;
        const bool own = follows >= 2 || (follows == 1 && communicator.rank() == 1);
        const DistributedOptions distributed{.d_bias_follows = own && !sink, .d_sink_follows = own && sink, .timeout = std::chrono::seconds(10)};
        try {
          distributed::sdpa_forward(communicator, {.q = q, .k = k, .v = v, .out = out}, options, distributed);
        } catch (const Error& error) {
          refusals[static_cast<std::size_t>(communicator.rank())] = error.what();
        }
        distributed::sdpa_forward(communicator, {.q = q, .k = k, .v = v, .out = out}, options);  // calls after a refused one work
      });
      const std::string wanted = cat("every rank has one query, and ", sink ? "sink" : "bias", " has one row");
      for (const std::size_t rank : {0U, 1U}) {
        EXPECT_EQ(errors[rank], "");
        if (follows == 1 || follows == 2) {
          EXPECT_THAT(refusals[rank], HasSubstr(wanted));
        } else {
          EXPECT_EQ(refusals[rank], "");
        }
      }
    }
  }
}

}  // namespace
}  // namespace polyhead::test
