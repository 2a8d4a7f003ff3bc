// Tests that no kernel reads beyond the end of a tensor, although kernels read whole vectors. The page after each tensor of a test may not be accessed.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "polyhead/device.h"
#include "polyhead/sdpa_derivatives.h"
#include "support/any_tensor.h"
#include "support/random.h"

namespace polyhead::test {
namespace {

// Memory that is followed by a page which may not be accessed.
class Fenced {
 public:
  Fenced(DType dtype, const Shape& shape) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE)), bytes = static_cast<std::size_t>(numel(shape)) * info(dtype).size;
    size_ = (bytes + page - 1) / page * page + page;
    start_ = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start_ == MAP_FAILED) throw std::bad_alloc();
    char* fence = static_cast<char*>(start_) + size_ - page;
    mprotect(fence, page, PROT_NONE);
    view_ = TensorView(fence - bytes, dtype, shape);
  }
  ~Fenced() { munmap(start_, size_); }
  Fenced(const Fenced&) = delete;
  TensorView view() const { return view_; }

 private:
  void* start_;
  std::size_t size_;
  TensorView view_;
};

class Fences : public testing::TestWithParam<DType> {
 protected:
  // Returns a tensor of random values; a boolean tensor has bytes 0 and 1.
  TensorView tensor(DType dtype, const Shape& shape) {
    memory_.push_back(std::make_unique<Fenced>(dtype, shape));
    const TensorView view = memory_.back()->view();
    copy(during_call(random_.tensor(dtype, shape)), view);
    return view;
  }
  // Returns a view [1,N,L,W] of memory [1,L,N,W]. This is the layout that a layer's heads have.
  TensorView heads(DType dtype, std::int64_t count, std::int64_t length, std::int64_t width) {
    return tensor(dtype, {1, length, count, width}).move_axis(2, 1);
  }
  Random random_{1};
  std::vector<std::unique_ptr<Fenced>> memory_;
};

TEST_P(Fences, NothingIsReadBeyondATensor) {
  const DType dtype = GetParam(), sums = dtype == DType::f64 ? DType::f64 : DType::f32;
  for (const KernelInstructionSet& set : kernel_instruction_sets()) {
    if (!set.available) continue;
    SCOPED_TRACE(std::string(set.name));
    set_kernel_instruction_set(set.name);
    for (int round = 0; round < 60; ++round) {
      memory_.clear();
      const std::int64_t n = random_.integer(1, 3), t = random_.coin() ? random_.integer(1, 6) : random_.integer(7, 70), s = random_.integer(1, 150);
      const auto width = [&] { return random_.pick<std::int64_t>({1, 3, 4, 8, 16, 20, 32, 64, 64, 128}); };
      const std::int64_t h = width(), w = width();
      const bool layer = random_.coin();
      const auto operand = [&](std::int64_t length, std::int64_t columns) {
        return layer ? heads(dtype, n, length, columns) : tensor(dtype, {1, n, length, columns});
      };
      const TensorView q = operand(t, h), k = operand(s, h), v = operand(s, w), out = operand(t, w), d_out = operand(t, w);
      const TensorView d_q = operand(t, h), d_k = operand(s, h), d_v = operand(s, w), lse = tensor(sums, {1, n, t});
      SdpaOptions options;
      TensorView d_bias, d_sink, d_relative_bias;
      if (random_.coin()) {
        const Shape shape{1, random_.coin() ? n : 1, random_.coin() ? t : 1, s};
        options.bias = tensor(dtype, shape);
        d_bias = tensor(dtype, shape);
      } else if (random_.coin()) {
        const bool slopes = random_.coin();
        const Shape shape = slopes ? Shape{n} : Shape{n, random_.pick<std::int64_t>({4, 16, 32})};
        const DType type = random_.coin() ? dtype : sums;
        (slopes ? options.relative_bias.slopes : options.relative_bias.table) = tensor(type, shape);
        d_relative_bias = tensor(type, shape);
      }
      if (random_.coin()) {
        const Shape shape = random_.coin() ? Shape{n} : Shape{1, n, t};
        options.sink = tensor(dtype, shape), d_sink = tensor(dtype, shape);
      }
      if (random_.coin()) options.mask.attend = tensor(DType::boolean, {random_.coin() ? t : 1, s});
      if (random_.coin()) options.mask.causal = Causal::bottom_right();
      sdpa_forward({.q = q, .k = k, .v = v, .out = out, .lse = lse}, options);
      if (dtype != DType::f64) {
        const DType storage = random_.pick({DType::bf16, DType::f16, DType::i8});
        const auto stored = [&](std::int64_t columns) {
          return layer ? heads(storage, n, s, columns) : tensor(storage, {1, n, s, columns});
        };
        const auto scale = [&] { return storage == DType::i8 ? tensor(DType::f32, {1, n, s}) : TensorView(); };
        sdpa_forward({.q = q, .k = stored(h), .v = stored(w), .out = d_out, .k_scale = scale(), .v_scale = scale()}, options);
      }
      sdpa_backward({.q = q, .k = k, .v = v, .out = out, .lse = lse, .d_out = d_out, .d_q = d_q, .d_k = d_k, .d_v = d_v, .d_bias = d_bias,
                     .d_relative_bias = d_relative_bias, .d_sink = d_sink},
                    options);
      const auto like = [&](const ConstTensorView& view) { return view ? tensor(view.dtype(), view.shape()) : TensorView(); };
      const SdpaTangents tangents{.q = operand(t, h), .k = operand(s, h), .v = operand(s, w), .bias = like(options.bias),
                                  .relative_bias = like(options.relative_bias.parameter()), .sink = like(options.sink)};
      const TensorView out_tangent = operand(t, w);
      sdpa_jvp({.q = q, .k = k, .v = v, .out = out, .lse = lse, .tangents = tangents, .out_tangent = out_tangent, .lse_tangent = tensor(sums, {1, n, t})}, options);
      sdpa_backward_backward({.q = q, .k = k, .v = v, .out = out, .lse = lse, .d_out = d_out, .d_gradients = tangents, .d_q = d_q, .d_k = d_k, .d_v = d_v,
                              .d_d_out = out_tangent, .d_bias = d_bias, .d_relative_bias = d_relative_bias, .d_sink = d_sink},
                             options);
    }
  }
  set_kernel_instruction_set("");
}

INSTANTIATE_TEST_SUITE_P(, Fences, testing::Values(DType::f32, DType::f64, DType::bf16),
                         [](const auto& test) { return std::string(polyhead::info(test.param).name); });

}  // namespace
}  // namespace polyhead::test
