// Causal attention of a sequence that several processes share: mpirun -n 4 ring_attention [FILE.safetensors]. The file has q, k and v [1,8,S,64] in
// float32. The file is mapped into memory: a rank reads only the pages of its own positions. Without a file, the values are a formula of the position.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "check.h"
#include "polyhead/distributed.h"
#include "polyhead/distributed/mpi.h"
#include "polyhead/io.h"

using namespace polyhead;
using distributed::Positions, distributed::SliceOrder;

int main(int argc, char** argv) {
  int level = 0, status = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  {
    distributed::MpiCommunicator ranks(MPI_COMM_WORLD);
    io::TensorFile file = argc > 1 ? io::open_tensors(argv[1]) : io::TensorFile{};
    for (const char* name : {"q", "k", "v"}) {
      if (argc == 1) file.tensors.push_back({name, example::waves({1, 8, 2048, 64}, *name)});
    }
    const std::int64_t length = file.at("q").extent(2);
    const auto part = [&](const char* name, const std::vector<Positions>& ranges, std::int64_t count) {
      Tensor values(DType::f32, {1, 8, count, 64});
      std::int64_t at = 0;
      for (const Positions& range : ranges) {
        copy(file.at(name).view().slice(2, range.first, range.last), values.view().slice(2, at, at + range.count()));
        at += range.count();
      }
      return values;
    };
    // Zigzag: every rank has one range of queries with few keys and one with many keys, so all ranks have the same work.
    const std::vector<Positions> own = slice_of(SliceOrder::zigzag, length, ranks.rank(), ranks.size());
    const std::int64_t count = slice_length(SliceOrder::zigzag, length, ranks.rank(), ranks.size());
    const Tensor q = part("q", own, count), k = part("k", own, count), v = part("v", own, count);
    Tensor out(DType::f32, q.shape());
    double seconds = -MPI_Wtime();
    sdpa_forward(ranks, {.q = q, .k = k, .v = v, .out = out}, {.mask = {.causal = Causal::top_left()}}, {.order = SliceOrder::zigzag});
    seconds += MPI_Wtime();
    if (ranks.rank() == 0) {  // rank 0 holds the first positions and the last
      std::printf("%d ranks, %td positions, %td of them on rank 0: %.3f s\n", ranks.size(), length, count, seconds);
      float difference = 0;
      std::int64_t row = -1;
      for (const Positions& range : own) {  // compare the last row of each range
        row += range.count();
        Tensor one(DType::f32, {1, 8, 1, 64});
        sdpa_forward({.q = q.view().slice(2, row, row + 1), .k = file.at("k").view().slice(2, 0, range.last), .v = file.at("v").view().slice(2, 0, range.last), .out = one});
        const Tensor several = Tensor::copy_of(out.view().slice(2, row, row + 1));
        for (int i = 0; i < 8 * 64; ++i) difference = std::max(difference, std::abs(one.data<float>()[i] - several.data<float>()[i]));
      }
      std::printf("largest difference from attention on one rank, in %zu rows: %.2g\n", own.size(), static_cast<double>(difference));
      status = difference <= 1e-5f ? 0 : 1;
    }
  }
  MPI_Finalize();
  return status;
}
