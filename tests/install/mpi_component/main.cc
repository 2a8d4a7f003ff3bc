// Attention over the ranks of MPI; the test runs it with one rank. Both keys are equal, so the output is the mean of the values.
#include <polyhead/distributed.h>
#include <polyhead/distributed/mpi.h>
#include <polyhead/polyhead.h>

#include <cstdio>

int main(int argc, char** argv) {
  using polyhead::Tensor;
  int level = 0;
  float mean = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  {
    polyhead::distributed::MpiCommunicator ranks(MPI_COMM_WORLD);
    const Tensor q = Tensor::of<float>({1, 1, 1}, {1.0f}), k = Tensor::of<float>({1, 2, 1}, {3.0f, 3.0f}), v = Tensor::of<float>({1, 2, 1}, {4.0f, 8.0f});
    Tensor out(polyhead::DType::f32, {1, 1, 1});
    polyhead::distributed::sdpa_forward(ranks, {.q = q, .k = k, .v = v, .out = out});
    mean = out.data<float>()[0];
    std::printf("rank %d of %d: %g\n", ranks.rank(), ranks.size(), static_cast<double>(mean));
  }
  MPI_Finalize();
  return mean == 6.0f ? 0 : 1;
}
