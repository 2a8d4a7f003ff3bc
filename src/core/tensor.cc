#include "polyhead/tensor.h"

#include <cstring>
#include <new>

#include "core/text.h"

namespace polyhead {
namespace {

constexpr std::size_t kAlignment = 64;  // one cache line, one AVX-512 register

std::shared_ptr<void> allocate_zeroed(DType dtype, const Shape& shape) {
  std::size_t bytes = 0;
  require(!__builtin_mul_overflow(static_cast<std::size_t>(numel(shape)), info(dtype).size, &bytes) && bytes <= SIZE_MAX / 2,
          "a tensor of shape ", shape, " does not fit in memory");
  void* memory = ::operator new(bytes == 0 ? 1 : bytes, std::align_val_t{kAlignment});
  std::memset(memory, 0, bytes);
  return {memory, [](void* p) { ::operator delete(p, std::align_val_t{kAlignment}); }};
}

}  // namespace

Tensor::Tensor(DType dtype, const Shape& shape) {
  for (const std::int64_t extent : shape) require(extent >= 0, "a tensor's extents are not negative: shape ", shape);
  owner_ = allocate_zeroed(dtype, shape);
  view_ = TensorView(owner_.get(), dtype, shape);
}

Tensor::Tensor(const Tensor& other) {
  if (other) *this = copy_of(other);
}

Tensor& Tensor::operator=(const Tensor& other) {
  if (this != &other) *this = Tensor(other);
  return *this;
}

Tensor Tensor::share(TensorView view, std::shared_ptr<void> owner) {
  Tensor tensor;
  tensor.owner_ = std::move(owner);
  tensor.view_ = view;
  return tensor;
}

Tensor Tensor::copy_of(ConstTensorView view, DType dtype) {
  Tensor tensor(dtype, view.shape());
  copy(view, tensor);
  return tensor;
}

}  // namespace polyhead
