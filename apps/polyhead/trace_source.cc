#include "trace_source.h"

#include <array>

#include "core/join.h"
#include "core/text.h"

namespace polyhead::app {
namespace {

using nn::TraceKind;

std::string call(std::string_view name, const Shape& arguments) {
  return cat(name, "(", join(arguments, [](std::int64_t extent) { return cat(extent); }, ","), ")");
}

// A sequence of steps, each of which reshapes or permutes the value of the step before.
class Steps {
 public:
  explicit Steps(ConstTensorView first) : last_(Tensor::copy_of(first)) {}

  void add(std::string code, ConstTensorView value) {
    Tensor next = Tensor::copy_of(value);  // copy first: `value` is a view of last_, which is replaced
    steps_.push_back({std::move(code), Tensor::copy_of(next)});
    last_ = std::move(next);
  }
  void reshape(const Shape& shape, std::string_view name = "reshape") { add(call(name, shape), last_.view().reshape(shape)); }
  ConstTensorView last() const { return last_; }
  std::vector<SourceStep> take() { return std::move(steps_); }

 private:
  Tensor last_;
  std::vector<SourceStep> steps_;
};

constexpr std::array<int, 4> kSwapHeads{0, 2, 1, 3};

// The steps of transpose_qkv and transpose_output in Dive into Deep Learning.
std::vector<SourceStep> of_d2l(const nn::TraceStep& step, ConstTensorView before, std::int64_t heads) {
  Steps steps(before);
  if (step.kind == TraceKind::merge) {  // before: [B,N,T,V]
    const Shape& s = before.shape();
    steps.reshape(s);  // the book's transpose_output begins with [B*N,T,V]
    steps.add("permute(0,2,1,3)", steps.last().permute(kSwapHeads));
    steps.reshape({s[0], s[2], s[1] * s[3]});
  } else {
    const Shape& s = before.shape();  // [B,T,N*H]
    steps.reshape({s[0], s[1], heads, s[2] / heads});
    steps.add("permute(0,2,1,3)", steps.last().permute(kSwapHeads));
    steps.reshape({s[0] * heads, s[1], s[2] / heads});
  }
  return steps.take();
}

// The steps of prepare_qkv, prepare_qkv_global and the end of forward in AlphaFold's layer. Its inputs have any number of dimensions.
std::vector<SourceStep> of_alphafold(const nn::TraceStep& step, ConstTensorView before, std::int64_t heads, int axis) {
  Steps steps(before);
  const int rank = before.rank();
  if (step.kind == TraceKind::merge) {  // before: [*,N,T,V]
    steps.add("transpose(-2,-3)", before.transpose(-2, -3));
    Shape flat = steps.last().shape().first(rank - 2);
    flat.push_back(before.extent(-3) * before.extent(-1));
    steps.add("flatten(-2)", steps.last().reshape(flat));
    steps.add(cat("movedim(-2,", axis, ")"), steps.last().move_axis(rank - 3, rank - 1 + axis));
    return steps.take();
  }
  steps.add(cat("movedim(", axis, ",-2)"), before.move_axis(rank + axis, rank - 2));
  if (heads == 1) {
    steps.add("unsqueeze(-3)", steps.last().unsqueeze(rank - 2));
    return steps.take();
  }
  Shape split = steps.last().shape();
  split[-1] = heads;
  split.push_back(before.extent(-1) / heads);
  steps.reshape(split, "view");
  steps.add("transpose(-2,-3)", steps.last().transpose(-2, -3));
  return steps.take();
}

}  // namespace

bool has_source_steps(std::string_view layout) { return layout == "d2l" || layout == "alphafold"; }

std::vector<SourceStep> source_steps(std::string_view layout, const nn::MultiHeadAttentionConfig& config, int input_rank, const nn::TraceStep& step, const Tensor& before) {
  std::int64_t heads = config.heads;
  switch (step.kind) {
    case TraceKind::split_q: case TraceKind::merge: break;
    case TraceKind::split_k: case TraceKind::split_v: heads = config.kv_heads; break;
    default: return {};
  }
  const int axis = config.axis < 0 ? config.axis : config.axis - input_rank;
  if (layout == "d2l" && input_rank == 3 && axis == -2) return of_d2l(step, before, heads);
  if (layout == "alphafold") return of_alphafold(step, before, heads, axis);
  return {};
}

}  // namespace polyhead::app
