#include "polyhead/tensor.h"

#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <new>

#include "core/overlap.h"
#include "core/sanitizers.h"
#include "core/text.h"

namespace polyhead {
namespace {

constexpr std::size_t kAlignment = 64;  // bytes of a cache line, and of an AVX-512 register

// Memory blocks below this size come from the ordinary operator new and are aligned here: the aligned operator new takes three times as long. The size is 0
// with AddressSanitizer: bytes added for the alignment would hide accesses past the end.
constexpr std::size_t kSmall = kAddressSanitizer ? 0 : 16 << 10;

// Tensors of kHuge bytes or more use huge pages. With pages of 4 KiB, page faults on a large new result would take a quarter of a layer's time.
constexpr std::size_t kHugePage = std::size_t{1} << 21, kHuge = 2 * kHugePage;

std::shared_ptr<void> allocate(std::size_t bytes) {
  if (bytes < kSmall) {
    void* memory = ::operator new(bytes + kAlignment - 1);
    return {reinterpret_cast<char*>((reinterpret_cast<std::uintptr_t>(memory) + kAlignment - 1) / kAlignment * kAlignment),
            [memory](void*) { ::operator delete(memory); }};
  }
  if (bytes < kHuge) {
    return {::operator new(bytes == 0 ? 1 : bytes, std::align_val_t{kAlignment}), [](void* p) { ::operator delete (p, std::align_val_t{kAlignment}); }};
  }
  // Start tensors at different offsets in a huge page: at the same offset, their rows would compete for a few sets of the L2 cache.
  static std::atomic<std::size_t> count{0};
  constexpr std::size_t kStagger = 4096 + 256, kPlaces = 16;
  const std::size_t offset = count.fetch_add(1, std::memory_order_relaxed) % kPlaces * kStagger, all = bytes + kPlaces * kStagger;
  void* memory = ::operator new(all, std::align_val_t{kHugePage});
#if defined(MADV_HUGEPAGE) && defined(__linux__)  // other systems may declare MADV_HUGEPAGE without supporting huge pages
  madvise(memory, all / kHugePage * kHugePage, MADV_HUGEPAGE);  // this is only a hint: if it fails, pages have 4 KiB
#endif
  return {static_cast<char*>(memory) + offset, [memory](void*) { ::operator delete (memory, std::align_val_t{kHugePage}); }};
}

std::size_t bytes_of(DType dtype, const Shape& shape) {
  for (const std::int64_t extent : shape) require(extent >= 0, "a tensor's extents must not be negative: shape ", shape);
  std::size_t bytes = 0;
  require(!__builtin_mul_overflow(static_cast<std::size_t>(numel(shape)), info(dtype).size, &bytes) && bytes <= SIZE_MAX / 2,
          "a tensor of shape ", shape, " does not fit in memory");
  return bytes;
}

}  // namespace

Tensor::Tensor(DType dtype, const Shape& shape) : Tensor(uninitialised(dtype, shape)) {
  std::memset(owner_.get(), 0, bytes_of(dtype, shape));
}

Tensor Tensor::uninitialised(DType dtype, const Shape& shape) {
  const std::size_t bytes = bytes_of(dtype, shape);
  Tensor tensor;
  tensor.owner_ = allocate(bytes);
#ifndef NDEBUG
  std::memset(tensor.owner_.get(), 0xff, bytes);  // NaN in every floating type, so that tests notice elements that were never written
#endif
  tensor.view_ = TensorView(tensor.owner_.get(), dtype, shape);
  return tensor;
}

Tensor::Tensor(const Tensor& other) {
  if (other) *this = copy_of(other);
}

Tensor& Tensor::operator=(const Tensor& other) {
  if (this == &other) return *this;
  if (view_ && other.view_ && dtype() == other.dtype() && shape() == other.shape() && !overlaps_itself(view_)) {
    copy(other.view_, view_);
  } else {
    *this = Tensor(other);
  }
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
