#include "io/layout_storage.h"

#include "core/text.h"

namespace polyhead::io {
namespace {

std::int64_t& count_of(HeadCounts& counts, std::string_view canonical) {
  return canonical.starts_with("k.") || canonical.starts_with("v.") ? counts.kv_heads : counts.heads;
}

bool note(std::int64_t& known, std::int64_t seen, std::string& why) {
  if (known != 0 && known != seen) {
    why = cat("has ", seen, " heads where another parameter of the layer has ", known);
    return false;
  }
  known = seen;
  return true;
}

}  // namespace

std::vector<std::string> canonical_names(const Parameter& parameter) {
  const std::string name(parameter.canonical);
  if (!name.starts_with("qkv")) return {name};
  const std::string rest = name.substr(3);
  return {"q" + rest, "k" + rest, "v" + rest};
}

template <class View>
CanonicalViews<View> to_canonical(const Parameter& parameter, View stored, HeadCounts& counts, std::string& why) {
  const Shape& shape = stored.shape();
  const std::string name(parameter.canonical);
  const auto wrong = [&](std::string_view rule) {
    why = cat("is ", shape, "; it must be ", rule);
    return CanonicalViews<View>{};
  };
  // Returns the product of two extents; -1 on overflow, which can happen if the tensor has no elements.
  const auto joint = [&](int a, int b) {
    std::int64_t product = 0;
    return __builtin_mul_overflow(shape[a], shape[b], &product) ? std::int64_t{-1} : product;
  };
  switch (parameter.storage) {
    case Storage::canonical:
      if (name == "relative_attention_bias") {
        if (shape.size() != 2 || shape[1] == 0) return wrong("(buckets,heads)");
        if (!note(counts.heads, shape[1], why)) return {};
      }
      if (name == "sink") {
        if (shape.size() != 1 || shape[0] == 0) return wrong("(heads)");
        if (!note(counts.heads, shape[0], why)) return {};
      }
      return {{name, stored}};
    case Storage::transposed:
      if (shape.size() != 2) return wrong("(in,out)");
      return {{name, stored.transpose(0, 1)}};
    case Storage::packed_rows:
    case Storage::packed_columns: {
      const bool rows = parameter.storage == Storage::packed_rows, matrix = name.ends_with("weight");
      const int packed_axis = rows ? 0 : 1;
      if (shape.size() != (matrix ? 2 : 1) ||
          (matrix ? shape[packed_axis] % 3 != 0 || shape[packed_axis] / 3 != shape[1 - packed_axis] : shape[0] % 3 != 0)) {
        return wrong(!matrix ? "[3*E]" : rows ? "[3*E,E]" : "[E,3*E]");
      }
      const std::int64_t width = shape[packed_axis] / 3;
      CanonicalViews<View> parts;
      for (const std::string& part : canonical_names(parameter)) {
        const auto index = static_cast<std::int64_t>(parts.size());
        const View slice = stored.slice(packed_axis, index * width, (index + 1) * width);
        parts.emplace_back(part, rows ? slice : slice.transpose(0, 1));
      }
      return parts;
    }
    case Storage::heads_in:
      if (shape.size() != 3 || shape[1] == 0 || joint(1, 2) < 0) return wrong("(in,heads,width)");
      if (!note(count_of(counts, name), shape[1], why)) return {};
      return {{name, stored.reshape({shape[0], joint(1, 2)}).transpose(0, 1)}};
    case Storage::heads_out:
      if (shape.size() != 3 || shape[0] == 0 || joint(0, 1) < 0) return wrong("(heads,width,out)");
      if (!note(count_of(counts, name), shape[0], why)) return {};
      return {{name, stored.reshape({joint(0, 1), shape[2]}).transpose(0, 1)}};
    case Storage::heads_bias:
      if (shape.size() != 2 || shape[0] == 0) return wrong("(heads,width)");
      if (!note(count_of(counts, name), shape[0], why)) return {};
      return {{name, stored.reshape({joint(0, 1)})}};
  }
  return {};
}

template CanonicalViews<TensorView> to_canonical(const Parameter&, TensorView, HeadCounts&, std::string&);
template CanonicalViews<ConstTensorView> to_canonical(const Parameter&, ConstTensorView, HeadCounts&, std::string&);

Tensor from_canonical(const Parameter& parameter, const std::map<std::string, Tensor>& tensors, HeadCounts counts) {
  const std::vector<std::string> names = canonical_names(parameter);
  const ConstTensorView first = tensors.at(names[0]);
  const std::int64_t heads = count_of(counts, names[0]);
  // Splits an axis of extent heads * width into two axes.
  const auto split = [&](ConstTensorView view, int axis) {
    require(heads > 0 && view.extent(axis) % heads == 0, "store_attention: ", parameter.name, " is stored head by head, and ", names[0],
            " ", first.shape(), " does not divide into ", heads, " heads; the number of heads must be given");
    return view.unflatten(axis, {heads, view.extent(axis) / heads});
  };
  switch (parameter.storage) {
    case Storage::canonical:
      return Tensor::copy_of(first);
    case Storage::transposed:
      return Tensor::copy_of(first.transpose(0, 1));
    case Storage::packed_rows:
    case Storage::packed_columns: {
      const int axis = parameter.storage == Storage::packed_rows ? 0 : 1;
      const auto oriented = [&](ConstTensorView view) { return axis == 0 ? view : view.transpose(0, 1); };
      for (const std::string& name : names) {
        const Tensor& part = tensors.at(name);
        require(part.shape() == first.shape() && part.dtype() == first.dtype(), "store_attention: ", parameter.name, " packs ", names[0],
                " ", first.shape(), " of ", first.dtype(), " with ", name, " ", part.shape(), " of ", part.dtype(), "; both must have the same shape and dtype");
      }
      Shape shape = oriented(first).shape();
      const std::int64_t width = shape[axis];
      shape[axis] = 3 * width;
      Tensor packed(first.dtype(), shape);
      for (std::size_t i = 0; i < names.size(); ++i) {
        const auto index = static_cast<std::int64_t>(i);
        copy(oriented(tensors.at(names[i])), packed.view().slice(axis, index * width, (index + 1) * width));
      }
      return packed;
    }
    case Storage::heads_in:
      return Tensor::copy_of(split(first.transpose(0, 1), 1));
    case Storage::heads_out:
      return Tensor::copy_of(split(first.transpose(0, 1), 0));
    case Storage::heads_bias:
      return Tensor::copy_of(split(first, 0));
  }
  return {};
}

}  // namespace polyhead::io
