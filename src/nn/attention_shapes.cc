#include "nn/attention_shapes.h"

#include <algorithm>

#include "core/text.h"
#include "nn/check.h"
#include "polyhead/attention_arguments.h"
#include "sdpa/dense_mask.h"
#include "sdpa/normal_form.h"

namespace polyhead::nn {
namespace {

Shape without_axis(const Shape& shape, int axis) {
  Shape result = shape.first(shape.size() - 1);
  result.erase(axis);
  return result;
}

}  // namespace

bool restricts(const Mask& mask) {
  bool any = mask.causal || mask.window.left || mask.window.right;
  visit_given(mask, [&](std::string_view, ConstTensorView) { any = true; });
  return any;
}

AttentionShapes attention_shapes(const char* operation, const MultiHeadAttentionConfig& config, const AttentionInput& input) {
  const ConstTensorView query = input.query, key = input.key ? input.key : query, value = input.value ? input.value : key;
  require(static_cast<bool>(query), operation, ": query is missing");
  require(input.key || !input.value, operation, ": value is given without key");
  const bool projected = static_cast<bool>(input.projected_key);
  require(projected == static_cast<bool>(input.projected_value), operation, ": projected_key and projected_value must be given together");
  require(!projected || !input.key, operation, ": both key and projected_key are given; only one of them may be");
  const int rank = query.rank();
  require(rank >= 2, operation, ": query is ", query.shape(), "; it must be [.., T, .., Eq], two dimensions or more");
  const int axis = config.axis < 0 ? config.axis + rank : config.axis;
  require(0 <= axis && axis < rank - 1, operation, ": axis is ", config.axis, " and query ", query.shape(),
          "; attention runs along one of the first ", rank - 1, " dimensions");
  const auto check = [&](const char* name, ConstTensorView x, std::int64_t width, const char* letters) {
    require(x.dtype() == config.dtype, operation, ": ", name, " is ", x.dtype(), "; it must be ", config.dtype, " as the parameters are");
    require(x.rank() == rank && without_axis(x.shape(), axis) == without_axis(query.shape(), axis), operation, ": ", name, " is ",
            x.shape(), "; except at axis ", axis, " and the width its extents must be those of query ", query.shape());
    require(x.extent(-1) == width, operation, ": ", name, " is ", x.shape(), "; its last extent must be ", letters, " = ", width);
  };
  check("query", query, config.query_width, "query_width");
  const Shape lead = without_axis(query.shape(), axis);
  const auto check_projected = [&](const char* name, ConstTensorView x, std::int64_t width) {
    require_shape(operation, {name, x}, appended(lead, {config.kv_heads, input.projected_key.extent(-2), width}));
    require(may_store_keys(config.dtype, x.dtype()) && x.dtype() == input.projected_key.dtype(), operation, ": ", name, " is ", x.dtype(),
            " and the parameters are ", config.dtype, "; projected keys and values share one dtype: ", kKeyStorage);
    require(x.dtype() != DType::i8 || !(config.add_bias_kv || config.add_zero_attn), operation, ": ", name,
            " is int8 and cannot be combined with add_bias_kv or add_zero_attn, whose keys have no scale");
  };
  const auto check_scale = [&](const char* name, ConstTensorView scale) {
    const bool wanted = projected && input.projected_key.dtype() == DType::i8;
    require(static_cast<bool>(scale) == wanted, operation, ": ", name,
            wanted ? " is missing; int8 keys and values have scales" : " is given without int8 keys and values");
    if (wanted) require_exactly(operation, {name, scale}, input.projected_key.shape().first(lead.size() + 2), DType::f32);
  };
  if (projected) {
    require(input.projected_key.rank() >= 2, operation, ": projected_key is ", input.projected_key.shape(), "; it must be [*,K,S,H]");
    check_projected("projected_key", input.projected_key, config.head_width);
    check_projected("projected_value", input.projected_value, config.value_head_width);
  } else {
    check("key", key, config.key_width, "key_width");
    check("value", value, config.value_width, "value_width");
  }
  check_scale("projected_key_scale", input.projected_key_scale);
  check_scale("projected_value_scale", input.projected_value_scale);
  require(value.extent(axis) == key.extent(axis), operation, ": value is ", value.shape(), " and key ", key.shape(),
          "; both must have the same number of positions");

  AttentionShapes shapes;
  shapes.axis = axis;
  shapes.lead = lead;
  shapes.heads = config.heads;
  shapes.positions = query.extent(axis);
  shapes.queries = config.global_query == GlobalQuery::off ? shapes.positions : 1;
  shapes.keys = projected ? input.projected_key.extent(-2) : key.extent(axis);
  shapes.added_keys = (config.add_bias_kv ? 1 : 0) + (config.add_zero_attn ? 1 : 0);
  shapes.query = query.shape().first(rank - 1);
  shapes.key = shapes.query;
  shapes.key[axis] = shapes.keys;
  require(config.global_query == GlobalQuery::off || shapes.positions == shapes.keys, operation,
          ": a global query needs as many queries as keys, not ", shapes.positions, " and ", shapes.keys);
  return shapes;
}

const AttentionOptions& with_keys_last(const char* operation, const AttentionShapes& shapes, const AttentionOptions& given,
                                       std::optional<AttentionOptions>& own) {
  const int rank = shapes.key.size();
  const bool any = given.mask.attend_keys || given.mask.block_keys, like_input = given.mask_like_input.value_or(false);
  require(!like_input || !given.cache, operation, ": mask_like_input cannot be true with a cache, whose keys are not those of the input; with a cache, masks of keys are [*,S]");
  if (!any || given.cache || shapes.axis == rank - 1 || given.mask_like_input == false) return given;
  const Shape keys_last = appended(shapes.lead, {shapes.keys});
  if (like_input) own = given;
  const auto read = [&](const char* name, ConstTensorView mask, ConstTensorView Mask::*member) {
    if (!mask) return;
    const bool fits = broadcasts(mask.shape(), keys_last), fits_input = broadcasts(mask.shape(), shapes.key);
    if (like_input) {
      require(fits_input, operation, ": ", name, " is ", mask.shape(), "; with mask_like_input it must broadcast to ", shapes.key, ", which has the keys along axis ", shapes.axis);
      (*own).mask.*member = mask.expand(shapes.key).move_axis(shapes.axis, -1);
      return;
    }
    bool differ = false;  // true: attend_keys or block_keys means something else in the two shapes; an extent of 1 broadcasts in both
    for (int from_end = 1; from_end <= std::min(rank - shapes.axis, mask.rank()); ++from_end) differ = differ || mask.shape()[-from_end] > 1;
    require(!differ || !fits || !fits_input, operation, ": ", name, " is ", mask.shape(), ", which may be [*,S] = ", keys_last, ", with axis ", shapes.axis,
            " of the input moved last, or have the layout of the input, ", shapes.key, "; set mask_like_input (--mask-like-input): true means the layout of the input");
    require(fits || !fits_input, operation, ": ", name, " is ", mask.shape(), "; it must broadcast to [*,S] = ", keys_last, ", with axis ", shapes.axis,
            " of the input moved last. It fits the layout of the input; set mask_like_input (--mask-like-input on)");
  };
  read("attend_keys", given.mask.attend_keys, &Mask::attend_keys);
  read("block_keys", given.mask.block_keys, &Mask::block_keys);
  if (!own) return given;
  own->mask_like_input = false;
  return *own;
}

Shape with_extents(const Shape& outer, int axis, std::int64_t extent, std::int64_t width) {
  Shape shape = appended(outer, {width});
  shape[axis] = extent;
  return shape;
}

Shape output_shape_of(const MultiHeadAttentionConfig& c, const AttentionShapes& shapes) {
  return with_extents(shapes.query, shapes.axis, c.gate == Gate::sigmoid ? shapes.positions : shapes.queries, c.output_width);
}

void require_pairs(const char* operation, std::string_view name, ConstTensorView pairs, const AttentionShapes& shapes,
                   std::int64_t added_keys) {
  if (!pairs) return;
  const Shape all = appended(shapes.lead, {shapes.heads, shapes.queries, shapes.keys + added_keys});
  const int rank = pairs.rank(), full = all.size();
  const char* const forms = full == 4 ? "[B,1,T,S] to differ by sequence, [1,N,T,S] by head, [B,N,T,S] by both"
                                      : "[*,N,T,S] with extents of 1 where it is shared";
  require((rank == 2 || rank == full) && broadcasts(pairs.shape(), all), operation, ": ", name, " is ", pairs.shape(),
          "; it must be [T,S], or ", forms, ", where [*,N,T,S] is ", all);
}

Tensor padded_mask(const char* operation, const Mask& mask, const AttentionShapes& shapes) {
  const Tensor dense = dense_mask(operation, mask, shapes.lead, shapes.heads, shapes.queries, shapes.keys);
  Shape shape = dense.shape();
  shape[-1] += shapes.added_keys;
  Tensor padded(DType::boolean, shape);
  fill(padded, 1);
  copy(dense, padded.view().slice(-1, 0, shapes.keys));
  return padded;
}

Tensor padded_bias(ConstTensorView bias, const AttentionShapes& shapes) {
  Shape shape = bias.shape();
  shape[-1] = shapes.keys;
  const ConstTensorView expanded = bias.expand(shape);
  shape[-1] += shapes.added_keys;
  Tensor padded(bias.dtype(), shape);
  copy(expanded, padded.view().slice(-1, 0, shapes.keys));
  return padded;
}

}  // namespace polyhead::nn
