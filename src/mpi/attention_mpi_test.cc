// mpirun -n N test_mpi_attention: compares attention over N processes with the reference in float64, over random problems.
#include "polyhead/distributed/mpi.h"
#include "support/distributed_case.h"
#include "support/seeds.h"

namespace polyhead::test {
namespace {

distributed::MpiCommunicator* communicator = nullptr;

TEST(MpiAttention, AgreesWithTheReferenceOnRandomProblems) {
  const auto rank = static_cast<std::size_t>(communicator->rank());
  for (const std::uint64_t seed : test::seeds(0, 500)) {
    // With quick(), each number of ranks takes a third of the seeds; src/distributed/attention_test.cc tests the same division of the work by threads.
    if (quick() && communicator->size() > 1 && seed % 3 != static_cast<std::uint64_t>(communicator->size()) % 3) continue;
    Random random(seed);
    AttentionCase c = draw_kernel_case(random, seed);
    leave_out_what_ranks_refuse(c);
    const DistributedRun run = draw_run(random, c, communicator->size());
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", rank " << rank << " of " << run.plan.head_ranks << " head ranks x " << run.plan.ring_ranks << " ring ranks");
    RankPart part = part_of_rank(c, run.queries[rank], run.keys[rank]);
    run_part(*communicator, part, {.order = run.order, .plan = run.plan});
    AttentionCase wide = in_float64(c);
    const AttentionOutputs expected = expected_part(wide, part, reference_run(wide), run.queries[rank], run.keys[rank]);
    Tolerances tolerances(c);
    if (info(c.dtype).size == 2 && run.plan.ring_ranks > 1) tolerances.d_bias = tolerances.d_sink;  // src/distributed/attention_test.cc says why
    expect_forward_near(part.outputs, expected, tolerances);
    expect_gradients_near(part.outputs, expected, tolerances);
    if (testing::Test::HasFailure()) break;
  }
}

// Rank 1 does not take part in a call, so the other ranks time out. This must be the last test, because the ranks cannot make further calls together.
TEST(MpiAttention, ZzARankThatIsSilentIsNamed) {
  if (communicator->size() == 1 || communicator->rank() == 1) return;
  Tensor q(DType::f32, {1, 2, 4}), out(DType::f32, {1, 2, 4});
  const std::string error = error_message([&] { distributed::sdpa_forward(*communicator, {.q = q, .k = q, .v = q, .out = out}, {}, {.timeout = std::chrono::milliseconds(500)}); });
  EXPECT_NE(error.find("rank 1 has not sent the sizes of its part"), std::string::npos) << error;
}

}  // namespace
}  // namespace polyhead::test

int main(int argc, char** argv) {
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  testing::InitGoogleTest(&argc, argv);
  int failed = 0;
  {
    polyhead::distributed::MpiCommunicator ranks(MPI_COMM_WORLD);
    polyhead::test::communicator = &ranks;
    // Only rank 0 prints its failures. Those of the other ranks are only counted.
    if (ranks.rank() != 0) {
      auto& listeners = testing::UnitTest::GetInstance()->listeners();
      auto* const printer = listeners.Release(listeners.default_result_printer());
      delete printer;
    }
    const int mine = RUN_ALL_TESTS();
    MPI_Allreduce(&mine, &failed, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (ranks.rank() == 0) std::printf("%d passed, %d failed\n", ranks.size() - failed, failed);
  }
  MPI_Finalize();
  return failed;
}
