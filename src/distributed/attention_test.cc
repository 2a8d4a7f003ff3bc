// Compares attention on several ranks with the reference in float64, over random problems, and bit for bit with one rank.
#include "support/distributed_case.h"
#include "support/seeds.h"

namespace polyhead::test {
namespace {

TEST(Distributed, AgreesWithTheReferenceOnRandomProblems) {
  for (const std::uint64_t seed : test::seeds(0, 1500)) {
    Random random(seed);
    // Every fourth case has random sizes, 0 included, and up to four leading dimensions; the other cases have sizes close to the block sizes of the kernels.
    AttentionCase c = seed % 4 == 3 ? draw_case(random, kDTypes[seed / 4 % 5]) : draw_kernel_case(random, seed);
    leave_out_what_ranks_refuse(c);
    const DistributedRun run = draw_run(random, c);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << run.plan.head_ranks << " head ranks x " << run.plan.ring_ranks << " ring ranks, "
                                    << (run.order == distributed::SliceOrder::zigzag ? "zigzag" : "contiguous") << ", q " << to_string(c.q.shape()) << ", k " << to_string(c.k.shape()) << " " << info(c.dtype).name);
    std::vector<std::string> errors;
    const AttentionOutputs actual = run_distributed(c, run, errors, seed % 2 == 0 ? &random : nullptr);
    expect_no_errors(errors);
    AttentionCase wide = in_float64(c);
    const AttentionOutputs expected = reference_run(wide);
    Tolerances tolerances(c);
    // In a ring, the backward pass computes delta = <d_out, out> of a row from out, which is rounded to 16 bits (attention.h). If all rows share an element of
    // d_bias, it adds up the errors of all rows.
    if (info(c.dtype).size == 2 && run.plan.ring_ranks > 1) tolerances.d_bias = tolerances.d_sink;
    expect_forward_near(actual, expected, tolerances);
    expect_gradients_near(actual, expected, tolerances);
    if (testing::Test::HasFailure()) break;
  }
}

TEST(Distributed, HeadsOnSeveralRanksHaveTheBitsOfOneRank) {
  for (std::uint64_t seed = 1000; seed < 1150; ++seed) {
    Random random(seed);
    AttentionCase c = draw_kernel_case(random, seed);
    leave_out_what_ranks_refuse(c);
    DistributedRun run = draw_run(random, c);
    run.plan = {run.ranks(), 1};
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << run.ranks() << " ranks, q " << to_string(c.q.shape()) << ", k " << to_string(c.k.shape()));
    std::vector<std::string> errors;
    const AttentionOutputs actual = run_distributed(c, run, errors), expected = c.make_outputs();
    expect_no_errors(errors);
    c.run(expected);
    EXPECT_TRUE(same_bits(actual.out, expected.out));
    EXPECT_TRUE(same_bits(actual.lse, expected.lse));
    const bool key_heads_are_shared = c.sizes.kv_heads < run.ranks();
    if (!key_heads_are_shared || info(c.dtype).size > 2) {
      EXPECT_TRUE(same_bits(actual.d_q, expected.d_q));
    }
    if (!key_heads_are_shared) {
      EXPECT_TRUE(same_bits(actual.d_k, expected.d_k));
      EXPECT_TRUE(same_bits(actual.d_v, expected.d_v));
    }
    if (testing::Test::HasFailure()) break;
  }
}

TEST(Distributed, ARingHasTheSameBitsFromRunToRun) {
  for (std::uint64_t seed = 2000; seed < 2040; ++seed) {
    Random random(seed);
    AttentionCase c = draw_kernel_case(random, seed);
    leave_out_what_ranks_refuse(c);
    if (c.options.empty_rows != EmptyRows::zero) continue;
    DistributedRun run = draw_run(random, c);
    run.plan = {1, run.ranks()};
    std::vector<std::string> errors;
    const AttentionOutputs first = run_distributed(c, run, errors), second = run_distributed(c, run, errors);
    expect_no_errors(errors);
    expect_same_bits(first, second);
    if (testing::Test::HasFailure()) break;
  }
}

// One document has many queries and no keys, or many keys and no queries. The document is so large that a rank computes it with several threads.
TEST(Distributed, DocumentsWithoutKeysAreEmptyRows) {
  for (const Shape& extents : {Shape{1100, 16}, Shape{16, 1100}}) {
    for (const distributed::Plan& plan : {distributed::Plan{2, 1}, distributed::Plan{1, 2}}) {
      SCOPED_TRACE(testing::Message() << to_string(extents) << ", " << plan.head_ranks << " head ranks x " << plan.ring_ranks << " ring ranks");
      Random random(12);
      AttentionCase c = case_of(random, DType::f32, {.lead = {1}, .kv_heads = 4, .group = 2, .queries = extents[0], .keys = extents[1], .qk_width = 64, .v_width = 64});
      const std::int64_t last_query = extents[0] - 8, last_key = extents[1] - 8;
      c.options.mask.query_offsets = c.keep(Tensor::of<std::int64_t>({4}, {0, last_query, last_query, extents[0]}));
      c.options.mask.key_offsets = c.keep(Tensor::of<std::int64_t>({4}, {0, 0, last_key, extents[1]}));
      DistributedRun run{.order = distributed::SliceOrder::contiguous, .plan = plan, .queries = {}, .keys = {}};
      run.queries = draw_slices(random, run.order, extents[0], 2), run.keys = draw_slices(random, run.order, extents[1], 2);
      std::vector<std::string> errors;
      const AttentionOutputs actual = run_distributed(c, run, errors, nullptr, 4);
      expect_no_errors(errors);
      AttentionCase wide = in_float64(c);
      const AttentionOutputs expected = reference_run(wide);
      const Tolerances tolerances(c);
      expect_forward_near(actual, expected, tolerances);
      expect_gradients_near(actual, expected, tolerances);
    }
  }
}

// |lse| is above 32, so the rounding of lse matters. On one machine the backward pass then computes the sums of exponentials again, from all keys. A rank of a
// ring does not have all keys and cannot do so; its gradients must still be within the tolerances.
TEST(Distributed, RowsWithALargeLseAgreeWithTheReference) {
  Random random(11);
  AttentionCase c = case_of(random, DType::f32, {.kv_heads = 2, .group = 1, .queries = 40, .keys = 90, .qk_width = 16, .v_width = 8}, 9.0);
  DistributedRun run{.order = distributed::SliceOrder::contiguous, .plan = {1, 3}, .queries = {}, .keys = {}};
  run.queries = draw_slices(random, run.order, 40, 3), run.keys = draw_slices(random, run.order, 90, 3);
  std::vector<std::string> errors;
  const AttentionOutputs actual = run_distributed(c, run, errors);
  expect_no_errors(errors);
  EXPECT_GT(largest_magnitude(actual.lse), 64);
  AttentionCase wide = in_float64(c);
  const AttentionOutputs expected = reference_run(wide);
  const Tolerances tolerances(c);
  expect_forward_near(actual, expected, tolerances);
  expect_gradients_near(actual, expected, tolerances);
}

// Keys and values have 16 bits, as in a cache, and queries are float32. Such calls have no backward pass.
TEST(Distributed, KeysOfAnotherDtypeAgreeWithTheReference) {
  int tested = 0;
  for (std::uint64_t seed = 3000; seed < 3100; ++seed) {
    Random random(seed);
    AttentionCase c = draw_case(random, DType::f32, draw_block_sizes(random));
    leave_out_what_ranks_refuse(c);
    draw_key_storage(random, c);
    if (c.k.dtype() == DType::i8) continue;
    ++tested;
    const DistributedRun run = draw_run(random, c);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << run.plan.head_ranks << " head ranks x " << run.plan.ring_ranks << " ring ranks");
    std::vector<RankPart> parts;
    for (int rank = 0; rank < run.ranks(); ++rank)
      parts.push_back(part_of_rank(c, run.queries[static_cast<std::size_t>(rank)], run.keys[static_cast<std::size_t>(rank)], &random));
    expect_no_errors(run_ranks(run.ranks(), [&](distributed::Communicator& communicator) {
      const RankPart& part = parts[static_cast<std::size_t>(communicator.rank())];
      distributed::sdpa_forward(communicator, {.q = part.c.q, .k = part.c.k, .v = part.c.v, .out = part.outputs.out, .lse = part.outputs.lse}, part.c.options,
                                {.order = run.order, .plan = run.plan});
    }));
    AttentionCase wide = in_float64(c);
    const AttentionOutputs expected = reference_forward(wide);
    for (std::size_t rank = 0; rank < parts.size(); ++rank) {
      EXPECT_TRUE(near(parts[rank].outputs.out, rows_at(expected.out, -2, run.queries[rank]), Tolerances(c).out));
      EXPECT_TRUE(near(parts[rank].outputs.lse, rows_at(expected.lse, -1, run.queries[rank]), Tolerances(c).lse));
    }
    if (testing::Test::HasFailure()) break;
  }
  EXPECT_GT(tested, 20);
}

TEST(Distributed, ExplainAndTheReportSayWhatHappens) {
  std::vector<distributed::CallReport> reports(2);
  const auto errors = run_ranks(2, [&](distributed::Communicator& communicator) {
    const Shape shape{2, 10, 4};
    Tensor q(DType::f32, shape), out(DType::f32, shape);
    distributed::CallReport& report = reports[static_cast<std::size_t>(communicator.rank())];
    const SdpaForward own{.q = q, .k = q, .v = q, .out = out};
    const distributed::DistributedOptions options{.plan = distributed::Plan{1, 2}, .report = &report};
    const SdpaOptions causal{.mask = {.causal = Causal::top_left()}};
    const std::string text = distributed::explain(communicator, own, causal, options);
    EXPECT_NE(text.find("plan: 1 head ranks x 2 ring ranks: given by the caller"), std::string::npos) << text;
    EXPECT_NE(text.find(communicator.rank() == 0 ? "rank 0 of 2: 10 queries, 10 keys; computes heads [0, 2) of 10 queries in 1 of 2 steps" : "of 10 queries in 2 of 2 steps"), std::string::npos) << text;
    distributed::sdpa_forward(communicator, own, causal, options);
  });
  expect_no_errors(errors);
  constexpr std::int64_t kStatements = 2 * 1024, kKeys = 2 * 2 * 10 * 4 * 4;  // sizes in bytes; kKeys: k and v of 2 heads, with 10 keys of width 4 in float32
  EXPECT_EQ(reports[0].sent_bytes, kStatements + kKeys);
  EXPECT_EQ(reports[1].sent_bytes, kStatements);
  for (const distributed::CallReport& report : reports) {
    EXPECT_GT(report.compute_seconds, 0);
    EXPECT_GE(report.seconds, report.compute_seconds + report.waiting_seconds);
  }
}

// The sequence is so long that a rank computes a step of the ring in several pieces (ring.h).
TEST(Distributed, ALongCausalRingAgreesWithOneRank) {
  Random random(7);
  AttentionCase c = case_of(random, DType::f32, {.kv_heads = 2, .group = 6, .queries = 3100, .keys = 3100, .qk_width = 64, .v_width = 64});
  c.options.mask.causal = Causal::top_left();
  DistributedRun run{.order = distributed::SliceOrder::zigzag, .plan = {1, 2}, .queries = {}, .keys = {}};
  run.queries = draw_slices(random, run.order, 3100, 2), run.keys = run.queries;
  std::vector<std::string> errors;
  const AttentionOutputs actual = run_distributed(c, run, errors), expected = c.make_outputs();
  expect_no_errors(errors);
  c.run(expected);
  const Tolerances tolerances(c);
  expect_forward_near(actual, expected, tolerances);
  expect_gradients_near(actual, expected, tolerances);
}

// 6 ranks hold 10 of 60 keys each. Checks how many keys each rank sends.
TEST(Distributed, KeysThatNoQueryOfARankAttendsToAreNotSent) {
  constexpr int kRanks = 6;
  constexpr std::int64_t kKeys = 60, kWidth = 8, kStatements = 2 * 5 * 1024;
  const auto length = Tensor::of<std::int64_t>({}, {25}), documents = Tensor::of<std::int64_t>({4}, {0, 10, 35, 60});
  struct Rule {
    const char* name;
    Mask mask;
    std::vector<std::int64_t> sent;
    distributed::SliceOrder order = distributed::SliceOrder::contiguous;
  };
  const Rule rules[] = {
      {"none", {}, {50, 50, 50, 50, 50, 50}},
      {"causal", {.causal = Causal::top_left()}, {50, 40, 30, 20, 10, 0}},
      {"causal, zigzag", {.causal = Causal::top_left()}, {25, 30, 35, 40, 45, 50}, distributed::SliceOrder::zigzag},
      {"a window that reaches into the neighbour's keys", {.causal = Causal::top_left(), .window = {.left = 3}}, {3, 3, 3, 3, 3, 0}},
      {"a length of 25 keys", {.key_lengths = length}, {50, 50, 25, 0, 0, 0}},
      {"a start at key 25", {.key_starts = length}, {0, 0, 25, 50, 50, 50}},
      {"documents of 10, 25 and 25", {.query_offsets = documents}, {0, 20, 20, 20, 20, 20}},
  };
  for (const Rule& rule : rules) {
    SCOPED_TRACE(rule.name);
    std::vector<std::int64_t> sent(kRanks);
    const auto errors = run_ranks(kRanks, [&](distributed::Communicator& communicator) {
      const Shape shape{1, kKeys / kRanks, kWidth};
      Tensor q(DType::f32, shape), k(DType::f32, shape), v(DType::f32, shape), out(DType::f32, shape);
      distributed::sdpa_forward(communicator, {.q = q, .k = k, .v = v, .out = out}, {.mask = rule.mask}, {.order = rule.order, .plan = distributed::Plan{1, kRanks}});
      sent[static_cast<std::size_t>(communicator.rank())] = (static_cast<ThreadCommunicator&>(communicator).sent_bytes - kStatements) / (2 * kWidth * 4);
    });
    expect_no_errors(errors);
    EXPECT_EQ(sent, rule.sent);
  }
}

}  // namespace
}  // namespace polyhead::test
