#include "support/attention_case.h"

namespace polyhead::test {

SpannedElements::SpannedElements(ConstTensorView view) {
  if (view.numel() == 0) return;
  std::int64_t high = 0;
  for (int axis = 0; axis < view.rank(); ++axis) {
    const std::int64_t reach = (view.extent(axis) - 1) * view.stride(axis);
    (reach < 0 ? origin : high) += reach < 0 ? -reach : reach;
  }
  count = static_cast<std::size_t>(origin + high + 1);
}

void AttentionCase::draw_inputs(Random& random, double magnitude) {
  q = keep(random.strided(dtype, sizes.q(), -magnitude, magnitude));
  k = keep(random.strided(dtype, sizes.k(), -magnitude, magnitude));
  v = keep(random.strided(dtype, sizes.v(), -magnitude, magnitude));
  d_out = keep(random.strided(dtype, sizes.out(), -magnitude, magnitude));
}

AttentionOutputs AttentionCase::make_forward_outputs(Random* random) {
  const auto make = [&](DType type, const Shape& shape) { return random ? keep(random->empty_strided(type, shape)) : keep(Tensor(type, shape)); };
  AttentionOutputs outputs;
  outputs.out = make(dtype, sizes.out()), outputs.lse = make(accumulation_dtype(dtype), sizes.lse());
  return outputs;
}

AttentionOutputs AttentionCase::make_outputs(Random* random) {
  const auto make = [&](DType type, const Shape& shape) {
    return random ? keep(random->empty_strided(type, shape)) : keep(Tensor(type, shape));
  };
  AttentionOutputs outputs{make(dtype, sizes.out()),
                           make(accumulation_dtype(dtype), sizes.lse()),
                           make(dtype, sizes.q()),
                           make(dtype, sizes.k()),
                           make(dtype, sizes.v()),
                           {},
                           {},
                           {},
                           {},
                           {}};
  if (const ConstTensorView& of = options.relative_bias.parameter()) outputs.d_relative_bias = make(of.dtype(), of.shape());
  if (options.sink) outputs.d_sink = make(options.sink.dtype(), options.sink.shape());
  if (table) {
    outputs.d_table = keep(Tensor(dtype, table.shape()));
    outputs.d_bias = relative_view(outputs.d_table);
  } else if (options.bias) {
    outputs.d_bias = make(dtype, options.bias.shape());
  }
  return outputs;
}

void AttentionCase::forward(const AttentionOutputs& o) const {
  sdpa_forward({.q = q,
                .k = k,
                .v = v,
                .out = o.out,
                .lse = o.lse,
                .attention_weights = o.attention_weights,
                .k_scale = k_scale,
                .v_scale = v_scale},
               options);
}

void AttentionCase::run(const AttentionOutputs& o) const {
  forward(o);
  backward(o);
}

void AttentionCase::backward(const AttentionOutputs& o) const {
  sdpa_backward({.q = q,
                 .k = k,
                 .v = v,
                 .out = o.out,
                 .lse = o.lse,
                 .d_out = d_out,
                 .d_q = o.d_q,
                 .d_k = o.d_k,
                 .d_v = o.d_v,
                 .d_bias = o.d_bias,
                 .d_relative_bias = o.d_relative_bias,
                 .d_sink = o.d_sink},
                options);
}

void AttentionCase::use_bias_table(TensorView positions) {
  table = positions;
  options.bias = relative_view(positions);
}

TensorView AttentionCase::relative_view(TensorView positions) const {
  Shape shape = positions.shape().first(positions.rank() - 1);
  Strides strides = positions.strides().first(positions.rank() - 1);
  const std::int64_t step = positions.stride(-1);
  shape.push_back(sizes.queries), shape.push_back(sizes.keys);
  strides.push_back(-step), strides.push_back(step);
  const std::int64_t start = (sizes.queries - 1) * step * static_cast<std::int64_t>(info(dtype).size);
  return {static_cast<char*>(positions.data()) + start, dtype, shape, strides};
}

AttentionCase case_of(Random& random, DType dtype, const AttentionSizes& sizes, double magnitude) {
  AttentionCase c;
  c.dtype = dtype;
  c.sizes = sizes;
  c.draw_inputs(random, magnitude);
  return c;
}

AttentionCase case_of(Random& random, DType dtype, const AttentionSizes& sizes, const Backend* backend) {
  AttentionCase c = case_of(random, dtype, sizes);
  c.options.backend = backend;
  return c;
}

Shape broadcastable(Random& random, const Shape& shape) {
  Shape result = shape.last(static_cast<int>(random.integer(0, shape.size())));
  for (std::int64_t& extent : result) extent = random.integer(0, 2) == 0 ? 1 : extent;
  return result;
}

Tensor draw_offsets(Random& random, DType dtype, std::int64_t documents, std::int64_t end) {
  std::vector<std::int64_t> offsets{0};
  for (std::int64_t d = 1; d < documents; ++d) offsets.push_back(random.integer(0, end));
  if (documents > 0) offsets.push_back(end);
  std::sort(offsets.begin(), offsets.end());
  return Tensor::copy_of(Tensor::of<std::int64_t>({static_cast<std::int64_t>(offsets.size())}, std::span<const std::int64_t>(offsets)), dtype);
}

void draw_mask(Random& random, AttentionCase& c) {
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  const AttentionSizes& z = c.sizes;
  Mask& mask = c.options.mask;
  const auto diagonal = [&]() -> Diagonal {
    switch (random.integer(0, 5)) {
      case 0:
        return Diagonal::top_left();
      case 1:
        return Diagonal::bottom_right();
      case 2:
        return Diagonal::offset(random.pick<std::int64_t>({-kHuge - 1, -kHuge, kHuge - 1, kHuge}));
      default:
        return Diagonal::offset(random.integer(-z.queries - 1, z.keys + 1));
    }
  };
  const auto side = [&]() -> std::optional<std::int64_t> {
    switch (random.integer(0, 3)) {
      case 0:
        return std::nullopt;
      case 1:
        return kHuge;
      default:
        return random.integer(0, z.keys + 1);
    }
  };
  const auto rarely = [&] { return random.integer(0, 2) == 0; };
  const auto booleans = [&](const Shape& shape) -> ConstTensorView {
    const TensorView view = c.keep(random.empty_strided(DType::boolean, shape));
    const std::int64_t one_in = random.integer(1, 4);
    for_each_offset<1>(view.shape(), {view.strides()}, [&](const auto& at) { view.data<bool>()[at[0]] = random.integer(0, one_in) > 0; });
    return view;
  };
  if (rarely()) mask.causal = diagonal();
  if (rarely()) {
    mask.window = {.left = side(), .right = side()};
    if (!mask.causal && random.coin() && (mask.window.left || mask.window.right)) mask.window.diagonal = diagonal();
  }
  if (rarely()) {
    DType dtype = random.pick({DType::i8, DType::u8, DType::i16, DType::u16, DType::i32, DType::u32, DType::i64, DType::u64});
    if (z.keys > 127 && info(dtype).size == 1) dtype = DType::i16;
    const Shape shape = random.coin() ? z.lead : z.with({z.queries});
    mask.key_lengths = c.keep(random.strided(dtype, shape, 0, static_cast<double>(z.keys)));
  }
  if (rarely()) (random.coin() ? mask.attend : mask.block) = booleans(broadcastable(random, z.pairs()));
  if (rarely()) (random.coin() ? mask.attend_keys : mask.block_keys) = booleans(broadcastable(random, z.keys_of()));
}

void draw_blocks(Random& random, AttentionCase& c) {
  if (random.integer(0, 3) != 0) return;
  BlockLists& blocks = c.options.mask.blocks;
  const auto size = [&](std::int64_t extent) { return extent > 40 ? random.pick<std::int64_t>({16, 33, 64, 64, 100, 128, 128}) : random.pick<std::int64_t>({1, 2, 3, 5, 128}); };
  blocks.size = {.queries = size(c.sizes.queries), .keys = size(c.sizes.keys)};
  const auto count_of = [](std::int64_t extent, std::int64_t block) { return (extent + block - 1) / block; };
  const std::int64_t columns = count_of(c.sizes.keys, blocks.size.keys);
  Shape shape = broadcastable(random, c.sizes.with({c.sizes.heads()}));
  shape.push_back(count_of(c.sizes.queries, blocks.size.queries)), shape.push_back(random.integer(0, columns + 1));
  blocks.lists = c.keep(random.strided(random.pick({DType::i32, DType::i32, DType::i64, DType::i16}), shape, -1, static_cast<double>(columns - 1)));
}

void drop_ambiguous_ranges(Mask& mask) {
  const std::int64_t documents = mask.query_offsets.numel() - 1;
  for (ConstTensorView* view : {&mask.key_starts, &mask.key_lengths}) {
    if (documents > 1 && *view && view->shape() == Shape{documents}) *view = {};
  }
}

void draw_documents(Random& random, AttentionCase& c) {
  const AttentionSizes& z = c.sizes;
  if (random.integer(0, 2) > (z.queries == z.keys ? 1 : 0)) return;
  const std::int64_t documents = z.queries + z.keys == 0 ? random.integer(0, 3) : random.integer(1, 5);
  const DType dtype = random.pick({DType::i32, DType::i64});
  c.options.mask.query_offsets = c.keep(draw_offsets(random, dtype, documents, z.queries));
  if (z.queries != z.keys || random.coin()) c.options.mask.key_offsets = c.keep(draw_offsets(random, dtype, documents, z.keys));
  drop_ambiguous_ranges(c.options.mask);
}

void draw_diagonal_offsets(Random& random, AttentionCase& c) {
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  Mask& mask = c.options.mask;
  const AttentionSizes& z = c.sizes;
  if (mask.query_offsets || (!mask.causal && !mask.window.left && !mask.window.right) || random.integer(0, 2) > 0) return;
  Tensor offsets(DType::i64, z.lead);
  bool small = true;
  for (std::int64_t i = 0; i < offsets.numel(); ++i) {
    const bool huge = random.integer(0, 9) == 0;
    small &= !huge;
    offsets.data<std::int64_t>()[i] = huge ? random.pick<std::int64_t>({-kHuge - 1, -kHuge, kHuge - 1, kHuge}) : random.integer(-z.queries - 1, z.keys + 1);
  }
  mask.diagonal_offsets = c.keep(small && random.coin() ? Tensor::copy_of(offsets, DType::i16) : std::move(offsets));
  if (mask.causal) mask.causal = Causal::top_left();
  mask.window.diagonal = {};
}

void draw_key_starts(Random random, AttentionCase& c) {
  if (random.integer(0, 2) != 0) return;
  const AttentionSizes& z = c.sizes;
  const DType dtype = z.keys > 127 ? DType::i16 : random.pick({DType::i8, DType::u8, DType::u16, DType::i32, DType::u64});
  const std::int64_t last = random.coin() ? z.keys : z.keys / 3;
  c.options.mask.key_starts = c.keep(random.strided(dtype, random.coin() ? z.lead : z.with({z.queries}), 0, static_cast<double>(last)));
  drop_ambiguous_ranges(c.options.mask);
}

void draw_relative_bias(Random& random, AttentionCase& c) {
  if (random.integer(0, 5) != 0) return;
  const AttentionSizes& z = c.sizes;
  Mask& mask = c.options.mask;
  const auto far = [](std::int64_t offset) { return offset < -1'000'000 || offset > 1'000'000; };
  for (const std::optional<Diagonal>& d : {mask.causal, mask.window.diagonal}) {
    if (d && far(d->shift)) return;
  }
  const bool banded = mask.causal || mask.window.left || mask.window.right;
  if (!banded && !mask.query_offsets && random.coin())
    mask.diagonal_offsets = c.keep(random.strided(DType::i32, z.lead, -static_cast<double>(z.queries), static_cast<double>(z.keys)));
  for (const double offset : mask.diagonal_offsets ? to_doubles(mask.diagonal_offsets) : std::vector<double>()) {
    if (std::abs(offset) > 1e6) return;
  }
  c.options.bias = {}, c.table = {};
  RelativeBias& bias = c.options.relative_bias;
  const DType dtype = random.coin() ? c.dtype : accumulation_dtype(c.dtype);
  if (random.coin()) {
    bias.slopes = c.keep(random.strided(dtype, {z.heads()}, -0.1, 0.6));
  } else {
    bias.bidirectional = random.coin();
    bias.max_distance = random.pick<std::int64_t>({9, 20, 128});
    bias.table = c.keep(random.strided(dtype, {z.heads(), random.pick<std::int64_t>({4, 6, 8, 16})}, -2, 2));
  }
  if (!banded && !mask.window.diagonal && !mask.diagonal_offsets && random.coin())
    bias.diagonal = Diagonal::offset(random.integer(-z.queries - 3, z.keys + 3));
}

AttentionSizes draw_sizes(Random& random) {
  AttentionSizes z;
  for (std::int64_t rank = random.integer(0, 4); rank > 0; --rank) z.lead.push_back(random.pick<std::int64_t>({1, 1, 2, 2, 3}));
  if (random.integer(0, 30) == 0 && !z.lead.empty()) z.lead[0] = 0;
  z.kv_heads = random.pick<std::int64_t>({1, 1, 2, 3});
  if (random.integer(0, 30) == 0) z.kv_heads = 0;
  z.group = random.pick<std::int64_t>({1, 1, 2, 3});
  const auto length = [&] { return random.pick<std::int64_t>({0, 1, 1, 2, 3, 3, 5, 5, 8, 17}); };
  const auto width = [&] { return random.pick<std::int64_t>({0, 1, 2, 3, 5, 8, 9}); };
  z.queries = length(), z.keys = length(), z.qk_width = width(), z.v_width = random.coin() ? z.qk_width : width();
  return z;
}

void draw_sink(Random& random, AttentionCase& c) {
  if (random.integer(0, 3) != 0) return;
  Shape shape = broadcastable(random, c.sizes.lse());
  if (shape.size() == 1) shape = {c.sizes.heads()};
  const double level = random.pick({0.0, 0.0, 0.0, 12.0, -12.0});
  const TensorView sink = c.keep(random.strided(random.coin() ? c.dtype : accumulation_dtype(c.dtype), shape, level - 2, level + 2));
  if (random.integer(0, 3) == 0 && shape.size() > 0 && shape[0] > 0) fill(sink.slice(0, 0, 1), -kInfinity);
  c.options.sink = sink;
  c.options.empty_rows = EmptyRows::zero;
}

AttentionCase draw_case(Random& random, DType dtype, const AttentionSizes& sizes) {
  AttentionCase c;
  c.sizes = sizes;
  c.dtype = dtype;
  c.draw_inputs(random);
  if (random.integer(0, 4) == 0)
    c.k = c.keep(random.strided(dtype, c.sizes.k().last(2), -1, 1)).expand(c.sizes.k());              // all key heads share one head's memory
  if (random.integer(0, 4) == 0) c.d_out = c.keep(random.strided(dtype, {1})).expand(c.sizes.out());  // all elements of d_out share one number, as for a loss that sums the output
  SdpaOptions& o = c.options;
  switch (random.integer(0, 5)) {
    case 0:
      o.scale = 0.37;
      break;
    case 1:
      o.scale = -0.6;
      break;
    default:
      break;
  }
  if (random.integer(0, 2) == 0) o.softcap = random.pick({0.5, 1.5, 30.0});
  draw_mask(random, c);
  switch (random.integer(0, 3)) {
    case 0:
    case 1:
      o.bias = c.keep(random.strided(dtype, broadcastable(random, c.sizes.pairs()), -2, 2));
      break;
    case 2:
      if (c.sizes.queries > 0 && c.sizes.keys > 0) {
        Shape shape = random.coin() ? Shape{c.sizes.heads()} : Shape{};
        shape.push_back(c.sizes.queries + c.sizes.keys - 1);
        c.use_bias_table(c.keep(random.tensor(dtype, shape, -2, 2)));
      }
      break;
    default:
      break;
  }
  if (random.integer(0, 2) == 0) {
    // 0.73 is chosen because 1 / (1 - 0.73) times a 16-bit value is never halfway between two 16-bit values. Otherwise the output of a row with one key could
    // be rounded either up or down.
    o.dropout = {.p = random.pick({0.0, 0.25, 0.5, 0.73, 1.0}), .seed = static_cast<std::uint64_t>(random.integer(0, 1'000'000'000'000))};
    if (random.coin() && o.dropout.p > 0) o.dropout.keep = c.keep(random.strided(DType::boolean, broadcastable(random, c.sizes.pairs())));
  }
  o.empty_rows = random.pick({EmptyRows::zero, EmptyRows::zero, EmptyRows::uniform, EmptyRows::unmasked});
  draw_documents(random, c);
  draw_diagonal_offsets(random, c);
  draw_sink(random, c);
  draw_relative_bias(random, c);
  draw_blocks(random, c);
  if (dtype == DType::bf16) o.precision = random.pick({Precision::exact, Precision::native});
  draw_key_starts(random, c);
  return c;
}

AttentionCase draw_case(Random& random, DType dtype) {
  const AttentionSizes sizes = draw_sizes(random);
  return draw_case(random, dtype, sizes);
}

void draw_key_storage(Random& random, AttentionCase& c) {
  if (c.dtype == DType::f64) return;
  const DType storage = random.pick({DType::bf16, DType::f16, DType::i8, DType::i8});
  const bool integers = storage == DType::i8;
  const double magnitude = integers ? 127 : 1.5;
  const auto draw = [&](const Shape& shape) { return c.keep(random.strided(storage, shape, -magnitude, magnitude)); };
  c.k = draw(c.sizes.k()), c.v = draw(c.sizes.v());
  if (random.integer(0, 4) == 0) c.k = c.k.expand(c.sizes.k());
  if (!integers) return;
  const auto scales = [&]() -> TensorView {
    const TensorView scale = c.keep(random.strided(DType::f32, c.sizes.k().first(c.sizes.k().size() - 1), -0.012, 0.012));
    return scale;
  };
  c.k_scale = scales(), c.v_scale = scales();
}

Tensor values_of(ConstTensorView stored, ConstTensorView scale) {
  if (!scale) return Tensor::copy_of(stored, DType::f64);
  Tensor values(DType::f64, stored.shape());
  const std::vector<double> elements = to_doubles(stored), scales = to_doubles(scale);
  const auto width = static_cast<std::size_t>(stored.extent(-1));
  for (std::size_t i = 0; i < elements.size(); ++i)
    values.data<double>()[i] = static_cast<double>(static_cast<float>(scales[i / width] * elements[i]));
  return values;
}

FullResults naive_attention(const AttentionCase& c) {
  const Tensor k = values_of(c.k, c.k_scale), v = values_of(c.v, c.v_scale);
  return naive_attention(full_matrices(c.q, k, v, c.d_out, c.options));
}

Tensor summed_gradient(const Matrix& gradients, const Shape& all, TensorView like) {
  const SpannedElements span(like);
  std::vector<Real> sums(span.count);
  std::size_t next = 0;
  const ConstTensorView expanded = ConstTensorView(like).expand(all);
  for_each_offset<1>(all, {expanded.strides()}, [&](const auto& at) { sums[span.at(at[0])] += gradients[next++]; });
  Tensor result(DType::f64, like.shape());
  double* target = result.data<double>();
  for_each_offset<1>(like.shape(), {like.strides()}, [&](const auto& at) { *target++ = static_cast<double>(sums[span.at(at[0])]); });
  return result;
}

}  // namespace polyhead::test
