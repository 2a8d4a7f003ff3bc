#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "core/dispatch.h"
#include "core/index.h"
#include "core/overlap.h"
#include "polyhead/tensor.h"

namespace polyhead {
namespace {

template <class To, class From>
To convert(From from) {
  if constexpr (std::is_same_v<To, From>) {
    return from;
  } else if constexpr (std::is_integral_v<To>) {
    return static_cast<To>(from);
  } else {
    return store<To>(load(from));
  }
}

template <class T>
constexpr DTypeKind kind_of = info(DTypeOf<T>::value).kind;

}  // namespace

void copy(ConstTensorView from, TensorView to) {
  require(from && to, "copy: a tensor is missing");
  require(from.shape() == to.shape(), "copy: shapes ", from.shape(), " and ", to.shape(), " differ");
  require(info(from.dtype()).kind == info(to.dtype()).kind, "copy: ", from.dtype(), " does not convert to ", to.dtype());
  if (from.dtype() == to.dtype() && from.is_contiguous() && to.is_contiguous()) {
    if (to.numel() > 0) std::memmove(to.data(), from.data(), static_cast<std::size_t>(to.numel()) * info(to.dtype()).size);
    return;
  }
  if (overlaps(from, to)) {  // if source and target overlap, copy through new memory, so that no element is overwritten before it is read
    const Tensor source = Tensor::copy_of(from);
    return copy(source, to);
  }
  dispatch_any(from.dtype(), [&](auto from_type) {
    dispatch_any(to.dtype(), [&](auto to_type) {
      using From = typename decltype(from_type)::type;
      using To = typename decltype(to_type)::type;
      if constexpr (kind_of<From> == kind_of<To>) {
        const From* source = from.data<From>();
        To* target = to.data<To>();
        if constexpr (kind_of<From> == DTypeKind::integer && !std::is_same_v<From, To>) {  // check that all values fit before any is written
          for_each_offset<1>(from.shape(), {from.strides()}, [&](const auto& at) {
            const From x = source[at[0]];
            require(std::in_range<To>(x), "copy: ", x, " of ", from.dtype(), " does not fit in ", to.dtype());
          });
        }
        for_each_offset<2>(to.shape(), {from.strides(), to.strides()}, [&](const auto& at) { target[at[1]] = convert<To>(source[at[0]]); });
      }
    });
  });
}

void fill(TensorView to, double value) {
  require(static_cast<bool>(to), "fill: the tensor is missing");
  dispatch_any(to.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    T* target = to.data<T>();
    T converted;
    if constexpr (std::is_same_v<T, bool>) {
      converted = value != 0;
    } else if constexpr (std::is_integral_v<T>) {
      // An integer type with `digits` bits holds values below 2^digits. The bound is not written as its largest value, such as 2^63 - 1 for int64, because a
      // double cannot hold that exactly.
      require(value == std::floor(value) && value >= static_cast<double>(std::numeric_limits<T>::min()) &&
                  value < std::ldexp(1.0, std::numeric_limits<T>::digits),
              "fill: ", value, " is no ", to.dtype());
      converted = static_cast<T>(value);
    } else {
      converted = store<T>(value);
    }
    for_each_offset<1>(to.shape(), {to.strides()}, [&](const auto& at) { target[at[0]] = converted; });
  });
}

}  // namespace polyhead
