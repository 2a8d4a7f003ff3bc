#include "polyhead/tensor.h"

#include <cstring>
#include <new>

#include "core/text.h"

namespace polyhead {
namespace {

constexpr std::size_t kAlignment = 64;  // one cache line, one AVX-512 register

std::size_t bytes_of(DType dtype, const Shape& shape) {
  for (const std::int64_t extent : shape) require(extent >= 0, "a tensor's extents are not negative: shape ", shape);
  std::size_t bytes = 0;
  require(!__builtin_mul_overflow(static_cast<std::size_t>(numel(shape)), info(dtype).size, &bytes) && bytes <= SIZE_MAX / 2,
          "a tensor of shape ", shape, " does not fit in memory");
  return bytes;
}

}  // namespace

Tensor::Tensor(DType dtype, const Shape& shape) : Tensor(uninitialised(dtype, shape)) { std::memset(owner_.get(), 0, bytes_of(dtype, shape)); }

Tensor Tensor::uninitialised(DType dtype, const Shape& shape) {
  const std::size_t bytes = bytes_of(dtype, shape);
  void* memory = ::operator new(bytes == 0 ? 1 : bytes, std::align_val_t{kAlignment});
#ifndef NDEBUG
  std::memset(memory, 0xff, bytes);  // NaN in every floating type: a test sees what nobody wrote
#endif
  Tensor tensor;
  tensor.owner_ = {memory, [](void* p) { ::operator delete(p, std::align_val_t{kAlignment}); }};
  tensor.view_ = TensorView(memory, dtype, shape);
  return tensor;
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
  Tensor tensor = uninitialised(dtype, view.shape());
  copy(view, tensor);
  return tensor;
}

}  // namespace polyhead
