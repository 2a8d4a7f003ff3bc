// C functions for encoder_step.py, which run a training step of a pre-norm encoder: forward, backward and AdamW.
#include <cstdint>

#include "polyhead/polyhead.h"

using namespace polyhead;

namespace {

struct Step {
  nn::Encoder encoder, gradients;
  nn::AdamW optimizer;
  Tensor y, d_x;  // [B,T,E]
  Workspace workspace;  // must be declared before `saved`, whose destructor returns tensors to this workspace
  nn::Encoder::Saved saved;

  Step(const Shape& shape, std::int64_t heads, std::int64_t layers)
      : encoder({.width = shape[2], .heads = heads, .norm_position = nn::NormPosition::pre, .seed = 1}, layers),
        gradients(nn::zeros_like(encoder)), optimizer(encoder, {}), y(DType::f32, shape), d_x(y) {}

  void run(ConstTensorView x, ConstTensorView d_y) {
    encoder.forward(x, y, {.workspace = &workspace}, &saved);
    encoder.backward(saved, d_y, {.x = d_x, .parameters = &gradients}, {.workspace = &workspace});
    optimizer.step(encoder, gradients);
  }
};

}  // namespace

extern "C" {
[[gnu::visibility("default")]] Step* step_new(std::int64_t batch, std::int64_t length, std::int64_t width, std::int64_t heads, std::int64_t layers, int threads) {
  set_num_threads(threads);
  return new Step({batch, length, width}, heads, layers);
}
[[gnu::visibility("default")]] void step_run(Step* step, const float* x, const float* d_y) {
  step->run(ConstTensorView(x, step->y.shape()), ConstTensorView(d_y, step->y.shape()));
}
}
