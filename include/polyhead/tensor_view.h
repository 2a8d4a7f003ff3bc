// Views of memory as tensors: a pointer, a dtype, a shape and strides in elements. A view owns nothing.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <type_traits>

#include "polyhead/dtype.h"

#pragma GCC visibility push(default)
namespace polyhead {

// With the attributes POLYHEAD_OWNER and POLYHEAD_POINTER, Clang warns about a view that outlives its tensor.
#ifdef __clang__
#define POLYHEAD_OWNER [[gsl::Owner]]
#define POLYHEAD_POINTER [[gsl::Pointer]]
#else
#define POLYHEAD_OWNER
#define POLYHEAD_POINTER
#endif

inline constexpr int kMaxRank = 16;

// Extents or strides, at most kMaxRank of them, outermost first. Axes may be counted from the end: dims[-1] is the last.
class Dims {
 public:
  Dims() { std::fill_n(values_.begin(), kFew, 0); }
  Dims(const Dims& other) { take(other.values_, other.size_); }
  Dims& operator=(const Dims& other) {
    take(other.values_, other.size_);
    return *this;
  }
  ~Dims() = default;
  Dims(std::initializer_list<std::int64_t> values) : Dims(std::span(values.begin(), values.size())) {}
  explicit Dims(std::span<const std::int64_t> values);

  int size() const { return size_; }
  bool empty() const { return size_ == 0; }
  std::int64_t& operator[](int axis) { return values_[static_cast<std::size_t>(axis < 0 ? axis + size_ : axis)]; }
  std::int64_t operator[](int axis) const { return values_[static_cast<std::size_t>(axis < 0 ? axis + size_ : axis)]; }
  const std::int64_t* begin() const { return values_.data(); }
  const std::int64_t* end() const { return values_.data() + size_; }
  std::int64_t* begin() { return values_.data(); }
  std::int64_t* end() { return values_.data() + size_; }

  void push_back(std::int64_t value) {
    if (size_ == kMaxRank) return insert(size_, value);  // throws an Error, because there is no room
    values_[static_cast<std::size_t>(size_++)] = value;
  }
  void insert(int axis, std::int64_t value);  // Inserts a value before `axis`; axis == size() appends it.
  void erase(int axis);
  Dims first(int count) const {
    if (count < 0 || count > size_) refuse_count(count);
    Dims result = *this;
    result.size_ = count;
    return result;
  }
  Dims last(int count) const {
    if (count < 0 || count > size_) refuse_count(count);
    Dims result;
    for (int axis = size_ - count; axis < size_; ++axis) result.push_back((*this)[axis]);
    return result;
  }

  friend bool operator==(const Dims& a, const Dims& b) { return std::equal(a.begin(), a.end(), b.begin(), b.end()); }

 private:
  using Values = std::array<std::int64_t, kMaxRank>;
  static constexpr int kFew = 6;

  [[noreturn]] void refuse_count(int count) const;
  // Copies kFew values if `size` is not larger: with a constant count the compiler copies by a few vector moves (1 ns). One sdpa call copies hundreds of views.
  void take(const Values& values, int size) {
    size_ = size;
    size <= kFew ? std::copy_n(values.begin(), kFew, values_.begin()) : std::copy_n(values.begin(), size, values_.begin());
  }

  Values values_;
  int size_ = 0;
};

using Shape = Dims;
using Strides = Dims;

std::int64_t numel(const Shape& shape);            // Returns the product of the extents, 1 for rank 0. Error if it exceeds 2^63 - 1.
Strides contiguous_strides(const Shape& shape);    // Returns the strides of a row-major tensor without gaps.
std::string to_string(const Dims& dims);           // Returns the numbers in the form "[2,3,5]".

// Returns the shape that a and b broadcast to by NumPy's rule: right aligned, extents equal or 1. Error if a and b do not broadcast.
Shape broadcast_shapes(const Shape& a, const Shape& b);

// Void is `void` or `const void`. A default-constructed view is absent: it converts to false, has no elements and means "not given".
template <class Void>
class POLYHEAD_POINTER BasicTensorView {
 public:
  BasicTensorView() = default;
  BasicTensorView(Void* data, DType dtype, const Shape& shape) : BasicTensorView(data, dtype, shape, contiguous_strides(shape)) {}
  // Makes a view of memory: `data` points at element (0, 0, …). Strides count elements; they may be zero or negative.
  BasicTensorView(Void* data, DType dtype, const Shape& shape, const Strides& strides);
  // Makes a contiguous view of typed memory: TensorView(floats, {2, 3}).
  template <class T>
    requires(!std::is_void_v<T> && (std::is_const_v<Void> || !std::is_const_v<T>))
  BasicTensorView(T* data, const Shape& shape) : BasicTensorView(data, DTypeOf<std::remove_const_t<T>>::value, shape) {}
  // A mutable view converts to a const one.
  template <class Other>
    requires(std::is_const_v<Void> && std::is_same_v<Other, void>)
  BasicTensorView(const BasicTensorView<Other>& other)  // NOLINT(google-explicit-constructor)
      : data_(other.data()), shape_(other.shape()), strides_(other.strides()), dtype_(other.dtype()), present_(static_cast<bool>(other)) {}

  explicit operator bool() const { return present_; }
  Void* data() const { return data_; }
  // Returns a typed pointer to element (0, 0, …). Error unless T is the view's dtype.
  template <class T>
  auto data() const {
    require_dtype(DTypeOf<std::remove_const_t<T>>::value);
    return static_cast<std::conditional_t<std::is_const_v<Void>, const T*, T*>>(data_);
  }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  const Strides& strides() const { return strides_; }
  int rank() const { return shape_.size(); }
  // Negative axes count from the end; Error when out of range.
  std::int64_t extent(int axis) const { return shape_[axis_index(axis, "extent")]; }
  std::int64_t stride(int axis) const { return strides_[axis_index(axis, "stride")]; }
  std::int64_t numel() const { return present_ ? polyhead::numel(shape_) : 0; }
  bool is_contiguous() const;

  // Each of the following functions returns another view of the same memory. Error if an argument does not fit the view.
  BasicTensorView select(int axis, std::int64_t index) const;  // Returns the view at one index of an axis, without that axis.
  // Selects every |step|-th index of [first, last), 0 <= first <= last <= extent, step != 0: first, first + step, ... A negative step begins at the
  // end of the range: last - 1, last - 1 + step, ... So slice(axis, 0, extent, -1) reverses the axis.
  BasicTensorView slice(int axis, std::int64_t first, std::int64_t last, std::int64_t step = 1) const;
  BasicTensorView transpose(int axis_a, int axis_b) const;
  BasicTensorView permute(std::span<const int> axes) const;
  BasicTensorView move_axis(int from, int to) const;
  BasicTensorView unsqueeze(int axis) const;              // Inserts an axis of extent 1 before `axis`; rank() or -1 appends it.
  BasicTensorView expand(const Shape& shape) const;       // Broadcasts the view to `shape`, by strides of 0.
  BasicTensorView unflatten(int axis, const Shape& parts) const;  // Splits one axis into several axes whose extents have the same product.
  BasicTensorView reshape(const Shape& shape) const;      // Changes the shape without a copy. Error if no strides give the elements in the new shape.

 private:
  void require_dtype(DType wanted) const;
  int axis_index(int axis, const char* operation) const {
    const int from_first = axis < 0 ? axis + rank() : axis;
    if (from_first < 0 || from_first >= rank()) refuse_axis(axis, operation);
    return from_first;
  }
  [[noreturn]] void refuse_axis(int axis, const char* operation) const;

  Void* data_ = nullptr;
  Shape shape_;
  Strides strides_;
  DType dtype_ = DType::f32;
  bool present_ = false;
};

using TensorView = BasicTensorView<void>;
using ConstTensorView = BasicTensorView<const void>;

extern template class BasicTensorView<void>;
extern template class BasicTensorView<const void>;

// Copies elements and converts their dtype: floating to floating, or integer to integer. Error if an integer does not fit. Both shapes must be equal.
void copy(ConstTensorView from, TensorView to);
void fill(TensorView to, double value);

}  // namespace polyhead
#pragma GCC visibility pop
