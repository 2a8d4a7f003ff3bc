// Tests a promise of docs/promises.md: a row has the same bits however a problem is divided into calls. Each random problem is computed as a whole by one
// thread, and then divided in several ways, in which each row must have the same bits.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <functional>

#include "support/kernel_case.h"
#include "support/thread_count.h"

namespace polyhead::test {
namespace {

// Compares bit for bit, except that any NaN equals any other NaN: the sum of two NaN may have the sign and payload of either.
testing::AssertionResult same_rows(ConstTensorView actual, ConstTensorView expected) {
  if (actual.shape() != expected.shape())
    return testing::AssertionFailure() << to_string(actual.shape()) << " against " << to_string(expected.shape());
  const std::vector<double> a = to_doubles(actual), e = to_doubles(expected);
  for (std::size_t i = 0; i < a.size(); ++i) {
    if ((std::isnan(a[i]) && std::isnan(e[i])) || std::memcmp(&a[i], &e[i], sizeof(double)) == 0) continue;
    return testing::AssertionFailure() << "bits differ at " << position(actual.shape(), static_cast<std::int64_t>(i)) << ": "
                                       << testing::PrintToString(a[i]) << ", expected " << testing::PrintToString(e[i]);
  }
  return testing::AssertionSuccess();
}

// A part of a problem: the queries [t, t_end) of the heads [n, n_end) of the sequences [b, b_end), with only the first `keys` keys.
struct Part {
  std::int64_t b, b_end, n, n_end, t, t_end, keys;
};

struct Sizes {
  std::int64_t batch, kv_heads, group, queries, keys, qk_width, v_width;
  std::int64_t heads() const { return kv_heads * group; }
};

// Returns the view restricted to [first, end) of an axis. An axis of extent 1 is broadcast, so it is returned unchanged.
ConstTensorView cut(const ConstTensorView& view, int axis, std::int64_t first, std::int64_t end) {
  return view.extent(axis) == 1 ? view : view.slice(axis, first, end);
}

struct Result {
  Tensor out, lse, weights;
};

// A random problem. Its tensors are q [B,N,T,H], k [B,K,S,H], v [B,K,S,V]; bias and attend [B|1,N|1,T|1,S|1]; starts and lengths [B,T|1];
// relative (slopes [N] or table [N,buckets]); sink [B|1,N,T|1], where | means "or".
class Problem {
 public:
  Sizes z;
  DType dtype;
  ConstTensorView q, k, v, k_scale, v_scale, bias, attend, starts, lengths, sink;
  RelativeBias relative;
  BlockLists blocks;  // [B|1,N|1,blocks of queries,count]
  std::optional<std::int64_t> causal, left, right;  // causal: offset of the diagonal; left, right: the window
  SdpaOptions plain;                                // the options scale, softcap and empty_rows; the members above hold all other options
  std::list<Tensor> tensors;

  Problem(Random& random, DType type, const Sizes& sizes) : z(sizes), dtype(type) {
    const double magnitude = random.pick({0.1, 1.5, 1.5, 6.0});
    q = keep(random.tensor(dtype, {z.batch, z.heads(), z.queries, z.qk_width}, -magnitude, magnitude));
    k = keep(random.tensor(dtype, {z.batch, z.kv_heads, z.keys, z.qk_width}, -magnitude, magnitude));
    // Some values are tiny, so that products with p are subnormal or 0. If a result is 0, its sign must not depend on how many zeros are added.
    const double of_v = dtype != DType::f16 && random.integer(0, 5) == 0 ? 1e-37 : magnitude;
    const TensorView values = keep(random.tensor(dtype, {z.batch, z.kv_heads, z.keys, z.v_width}, -of_v, of_v));
    if (random.coin()) fill(values.slice(-1, 0, random.integer(0, z.v_width)), 0);
    for (std::int64_t count = random.integer(0, 5) == 0 ? random.integer(1, 3) : 0; count > 0; --count) {
      const std::int64_t b = random.integer(0, z.batch - 1), s = random.integer(0, z.keys - 1), d = random.integer(0, z.v_width - 1);
      fill(values.slice(0, b, b + 1).slice(-2, s, s + 1).slice(-1, d, z.v_width), random.pick({kNaN, kInfinity, -kInfinity}));
    }
    v = values;
    if (dtype != DType::f64 && random.integer(0, 3) == 0) store_keys(random, random.pick({DType::bf16, DType::f16, DType::i8}));
    const auto rarely = [&] { return random.integer(0, 2) == 0; };
    if (random.coin()) causal = random.pick({z.keys - z.queries, z.keys - z.queries, std::int64_t{0}, random.integer(-z.queries, z.keys)});
    if (rarely()) left = random.integer(0, z.keys);
    if (rarely() && random.coin()) right = random.integer(0, z.keys);
    const auto broadcast = [&] {
      const auto one = [&](std::int64_t extent) { return random.coin() ? extent : 1; };
      return Shape{one(z.batch), one(z.heads()), one(z.queries), random.integer(0, 4) == 0 ? 1 : z.keys};
    };
    if (rarely()) {
      const TensorView all = keep(random.tensor(dtype, broadcast(), -2, 2));
      if (random.integer(0, 3) == 0) fill(all.slice(-1, 0, random.integer(0, all.extent(-1))), -kInfinity);
      bias = all;
    }
    if (rarely()) {
      const TensorView all = keep(random.tensor(DType::boolean, broadcast()));
      if (random.coin()) fill(all.slice(-1, all.extent(-1) / 3, all.extent(-1) * 2 / 3), random.integer(0, 1) == 0 ? 0 : 1);
      attend = all;
    }
    if (rarely()) {
      const TensorView all = keep(Tensor(DType::i64, {z.batch, random.coin() ? z.queries : 1}));
      random.fill(all, 0, static_cast<double>(z.keys));
      lengths = all;
    }
    if (rarely()) plain.softcap = random.pick({1.5, 30.0});
    if (rarely()) plain.scale = random.pick({0.37, -0.6});
    plain.empty_rows =
        random.pick({EmptyRows::zero, EmptyRows::zero, EmptyRows::zero, EmptyRows::zero, EmptyRows::uniform, EmptyRows::unmasked});
    plain.backend = &find_backend("cpu");
    if (!bias && random.integer(0, 2) == 0) {
      const DType sums = accumulation_dtype(dtype);
      if (random.coin()) {
        relative.slopes = keep(random.tensor(sums, {z.heads()}, -0.02, 0.3));
      } else {
        relative = {.table = keep(random.tensor(sums, {z.heads(), 16}, -2, 2)), .bidirectional = random.coin(), .max_distance = random.pick<std::int64_t>({20, 128})};
      }
    }
    if (plain.empty_rows == EmptyRows::zero && random.integer(0, 2) == 0)
      sink = keep(random.tensor(accumulation_dtype(dtype), {random.coin() ? z.batch : 1, z.heads(), random.coin() ? z.queries : 1}, -2, 2));
    if (random.integer(0, 3) == 0) {
      const auto size = [&](std::int64_t extent) { return extent > 100 ? random.pick<std::int64_t>({48, 64, 100, 128}) : random.integer(1, 40); };
      blocks.size = {.queries = size(z.queries), .keys = size(z.keys)};
      const std::int64_t columns = blocks_of(z.keys, blocks.size.keys);
      const Shape shape{random.coin() ? z.batch : 1, random.coin() ? z.heads() : 1, blocks_of(z.queries, blocks.size.queries), random.integer(1, columns)};
      blocks.lists = keep(random.tensor(DType::i32, shape, -1, static_cast<double>(columns - 1)));
    }
    if (dtype == DType::bf16) plain.precision = random.pick({Precision::exact, Precision::native, Precision::native});
    if (Random own = random; own.integer(0, 2) == 0) {  // draw from a copy of the generator, so that the numbers drawn later stay the same
      const TensorView all = keep(Tensor(DType::i64, {z.batch, own.coin() ? z.queries : 1}));
      own.fill(all, 0, static_cast<double>(own.coin() ? z.keys : z.keys / 3));
      starts = all;
    }
  }

  // Converts keys and values to the type in which a cache stores them.
  void store_keys(Random& random, DType storage) {
    if (storage != DType::i8) {
      k = keep(Tensor::copy_of(k, storage)), v = keep(Tensor::copy_of(v, storage));
      return;
    }
    const Shape rows{z.batch, z.kv_heads, z.keys};
    k = keep(random.tensor(storage, k.shape(), -127, 127)), v = keep(random.tensor(storage, v.shape(), -127, 127));
    k_scale = keep(random.tensor(DType::f32, rows, 0.001, 0.02));
    const TensorView scales = keep(random.tensor(DType::f32, rows, 0.001, 0.02));
    if (random.integer(0, 3) == 0) fill(scales.slice(2, 0, 1), kNaN);
    v_scale = scales;
  }

  // Returns the arguments of a call, without q and outputs. f is applied to the keys, the values and their scales.
  template <class F>
  SdpaForward call(const F& f) const {
    return {.k = f(k), .v = f(v), .k_scale = k_scale ? f(k_scale) : k_scale, .v_scale = v_scale ? f(v_scale) : v_scale};
  }
  template <class F>
  SdpaForward call(const ConstTensorView& queries, TensorView out, TensorView lse, const F& f) const {
    SdpaForward forward = call(f);
    forward.q = queries, forward.out = out, forward.lse = lse;
    return forward;
  }

  TensorView keep(Tensor tensor) { return tensors.emplace_back(std::move(tensor)).view(); }

  Part all() const { return {0, z.batch, 0, z.heads(), 0, z.queries, z.keys}; }

  // Returns a number `end` such that query t of sequence b attends to no key from `end` on.
  std::int64_t visible(std::int64_t b, std::int64_t t) const {
    std::int64_t end = z.keys;
    if (causal) end = std::min(end, t + *causal + 1);
    if (right) end = std::min(end, t + diagonal() + *right + 1);
    if (lengths) end = std::min(end, lengths.data<std::int64_t>()[b * lengths.stride(0) + (lengths.extent(1) == 1 ? 0 : t)]);
    return std::max<std::int64_t>(0, end);
  }
  std::int64_t diagonal() const { return causal.value_or(z.keys - z.queries); }

  SdpaOptions options(const Part& p) {
    SdpaOptions o = plain;
    if (causal) o.mask.causal = Causal::offset(*causal + p.t);
    if (left || right) o.mask.window = {.left = left, .right = right};
    if ((left || right) && !causal) o.mask.window.diagonal = Diagonal::offset(diagonal() + p.t);
    const auto of_part = [&](const ConstTensorView& bounds) -> ConstTensorView {
      if (!bounds) return {};
      const TensorView own = keep(Tensor::copy_of(cut(cut(bounds, 0, p.b, p.b_end), 1, p.t, p.t_end).expand({p.b_end - p.b, p.t_end - p.t})));
      for (std::int64_t i = 0; i < own.numel(); ++i) own.data<std::int64_t>()[i] = std::min(own.data<std::int64_t>()[i], p.keys);
      return own;
    };
    o.mask.key_starts = of_part(starts), o.mask.key_lengths = of_part(lengths);
    if (attend) o.mask.attend = of_pairs(attend, p);
    if (blocks.lists) list_blocks(p, o.mask);
    if (bias) o.bias = of_pairs(bias, p);
    o.relative_bias = relative;
    for (ConstTensorView* parameter : {&o.relative_bias.slopes, &o.relative_bias.table}) {
      if (*parameter) *parameter = parameter->slice(0, p.n, p.n_end);
    }
    if (relative && !causal && !left && !right) o.relative_bias.diagonal = Diagonal::offset(diagonal() + p.t);
    if (sink) o.sink = cut(cut(cut(sink, 0, p.b, p.b_end), 1, p.n, p.n_end), 2, p.t, p.t_end);
    return o;
  }

  static std::int64_t blocks_of(std::int64_t extent, std::int64_t block) { return (extent + block - 1) / block; }

  // Sets Mask::blocks for the blocks of the part. If the part begins inside a block of queries, sets a boolean mask of the same pairs instead.
  void list_blocks(const Part& p, Mask& mask) {
    if (p.t % blocks.size.queries == 0) {
      const ConstTensorView own = cut(cut(blocks.lists, 0, p.b, p.b_end), 1, p.n, p.n_end);
      const TensorView lists = keep(Tensor::copy_of(own.slice(2, p.t / blocks.size.queries, blocks_of(p.t_end, blocks.size.queries))));
      auto* const indices = lists.data<std::int32_t>();
      for (std::int64_t i = 0; i < lists.numel(); ++i) indices[i] = indices[i] < blocks_of(p.keys, blocks.size.keys) ? indices[i] : -1;
      mask.blocks = {.lists = lists, .size = blocks.size};
      return;
    }
    mask.attend = of_pairs(attended_pairs(), p);
  }

  // Returns a boolean mask of the pairs that both `attend` and the listed blocks allow; absent if the problem has neither.
  ConstTensorView attended_pairs() {
    if (!blocks.lists) return attend;
    const TensorView both = keep(listed_pairs(blocks, {z.batch, z.heads(), z.queries, z.keys}));
    const std::vector<double> given = attend ? to_doubles(attend.expand(both.shape())) : std::vector<double>();
    for (std::size_t i = 0; i < given.size(); ++i) both.data<bool>()[i] = both.data<bool>()[i] && given[i] != 0;
    return both;
  }

  static ConstTensorView of_pairs(const ConstTensorView& view, const Part& p) {
    return cut(cut(cut(cut(view, 0, p.b, p.b_end), 1, p.n, p.n_end), 2, p.t, p.t_end), 3, 0, p.keys);
  }

  Result make(const Part& p, bool weights) const {
    const Shape rows{p.b_end - p.b, p.n_end - p.n, p.t_end - p.t};
    const auto with = [&](std::int64_t width) { return Shape{rows[0], rows[1], rows[2], width}; };
    return {Tensor(dtype, with(z.v_width)), Tensor(accumulation_dtype(dtype), rows), weights ? Tensor(dtype, with(p.keys)) : Tensor()};
  }

  Result run(const Part& p, bool weights = false) { return run(p, options(p), weights); }
  Result run(const Part& p, const SdpaOptions& o, bool weights = false) {
    Result r = make(p, weights);
    // A part with a single query head reads the key/value head of the query head's group.
    const bool whole = p.n == 0 && p.n_end == z.heads();
    const auto of_keys = [&](const ConstTensorView& x) -> ConstTensorView {
      const ConstTensorView heads = whole ? x : x.slice(1, p.n / z.group, p.n / z.group + 1);
      return heads.slice(0, p.b, p.b_end).slice(2, 0, p.keys);
    };
    SdpaForward forward = call(q.slice(0, p.b, p.b_end).slice(1, p.n, p.n_end).slice(2, p.t, p.t_end), r.out, r.lse, of_keys);
    if (weights) forward.attention_weights = r.weights;
    sdpa_forward(forward, o);
    return r;
  }
};

ConstTensorView rows_of(const Tensor& tensor, const Part& p) {
  return ConstTensorView(tensor).slice(0, p.b, p.b_end).slice(1, p.n, p.n_end).slice(2, p.t, p.t_end);
}

// Checks that the rows of `part` have the same bits as in the whole problem. Attention weights of the whole problem, if given, must be 0 for keys after those of the
// part.
void expect_same(const char* way, const Result& whole, const Part& p, const Result& part) {
  EXPECT_TRUE(same_rows(part.out, rows_of(whole.out, p))) << "out, " << way;
  EXPECT_TRUE(same_rows(part.lse, rows_of(whole.lse, p))) << "lse, " << way;
  if (part.weights.shape().size() == 0 || testing::Test::HasFailure()) return;
  const ConstTensorView expected = rows_of(whole.weights, p);
  EXPECT_TRUE(same_rows(part.weights, expected.slice(-1, 0, p.keys))) << "attention weights, " << way;
  EXPECT_TRUE(std::ranges::all_of(to_doubles(expected.slice(-1, p.keys, expected.extent(-1))), [](double x) { return x == 0; })) << "attention weights, " << way;
}

void with_other_threads(Problem& p, Random& random, const Result& whole) {
  for (const int threads : {1, 2, 3, 8}) {
    set_num_threads(threads);
    expect_same("threads", whole, p.all(), p.run(p.all(), random.coin()));
  }
}

void in_chunks(Problem& p, Random& random, const Result& whole) {
  for (std::int64_t t = 0; t < p.z.queries;) {
    Part part = p.all();
    part.t = t, part.t_end = t = random.integer(t + 1, p.z.queries);
    expect_same("a chunk of queries", whole, part, p.run(part, random.coin()));
  }
}

// Computes each query with only the keys that it attends to, as with a cache. If a member of the mask allows all of these keys, it is sometimes left out.
void one_query_at_a_time(Problem& p, Random& random, const Result& whole) {
  // In the other modes of empty_rows, an empty row attends to all keys, so keys cannot be left out.
  if (p.plain.empty_rows != EmptyRows::zero) return;
  const std::int64_t step = 1 + p.z.queries / 20;
  for (std::int64_t t = random.integer(0, step - 1); t < p.z.queries; t += step) {
    for (std::int64_t b = 0; b < p.z.batch; ++b) {
      const Part part{b, b + 1, 0, p.z.heads(), t, t + 1, p.visible(b, t)};
      SdpaOptions o = p.options(part);
      if (random.coin()) o.mask.key_lengths = {};
      if (random.coin() && o.mask.causal) {
        if (p.left || p.right) {
          o.mask.window.diagonal = o.mask.causal;
        } else if (p.relative) {
          o.relative_bias.diagonal = o.mask.causal;
        }
        o.mask.causal.reset();
      }
      expect_same("one query", whole, part, p.run(part, o, random.coin()));
    }
  }
}

void one_head_at_a_time(Problem& p, Random& random, const Result& whole) {
  for (std::int64_t b = 0; b < p.z.batch; ++b) {
    const std::int64_t n = random.integer(0, p.z.heads() - 1);
    const Part part{b, b + 1, n, n + 1, 0, p.z.queries, p.z.keys};
    expect_same("one head", whole, part, p.run(part, random.coin()));
  }
}

// Repeats the key/value heads, so that every query head has a separate key/value head.
void without_groups(Problem& p, const Result& whole) {
  const auto repeated = [&](const ConstTensorView& x) -> ConstTensorView {
    Shape shape = x.shape();
    shape[1] = p.z.heads();
    const TensorView all = p.keep(Tensor(x.dtype(), shape));
    for (std::int64_t n = 0; n < p.z.heads(); ++n) copy(x.slice(1, n / p.z.group, n / p.z.group + 1), all.slice(1, n, n + 1));
    return all;
  };
  Result r = p.make(p.all(), false);
  sdpa_forward(p.call(p.q, r.out, r.lse, repeated), p.options(p.all()));
  expect_same("heads not grouped", whole, p.all(), r);
}

// Masks keys before the starts by a boolean mask instead of key_starts.
void with_starts_in_a_mask(Problem& p, const Result& whole) {
  if (!p.starts) return;
  SdpaOptions o = p.options(p.all());
  const std::vector<double> starts = to_doubles(o.mask.key_starts);
  const TensorView attend = p.keep(Tensor(DType::boolean, {p.z.batch, p.z.heads(), p.z.queries, p.z.keys}));
  o.mask.attend ? copy(o.mask.attend.expand(attend.shape()), attend) : fill(attend, 1);
  for (std::int64_t i = 0; i < attend.numel(); ++i) {
    const std::int64_t s = i % p.z.keys, t = i / p.z.keys % p.z.queries, b = i / p.z.keys / p.z.queries / p.z.heads();
    if (static_cast<double>(s) < starts[static_cast<std::size_t>(b * p.z.queries + t)]) attend.data<bool>()[i] = false;
  }
  o.mask.key_starts = {}, o.mask.attend = attend;
  expect_same("starts in a mask", whole, p.all(), p.run(p.all(), o));
}

// Appends keys whose elements are NaN. key_lengths excludes these keys.
void padded(Problem& p, Random& random, const Result& whole) {
  if (p.plain.empty_rows != EmptyRows::zero) return;
  const std::int64_t keys = p.z.keys + random.integer(1, 700);
  const auto longer = [&](const ConstTensorView& x, int axis, double rest) -> ConstTensorView {
    if (!x || x.extent(axis) == 1) return x;
    Shape shape = x.shape();
    shape[axis] = keys;
    const TensorView all = p.keep(Tensor(x.dtype(), shape));
    fill(all, is_floating(x.dtype()) ? rest : 1);
    copy(x, all.slice(axis, 0, p.z.keys));
    return all;
  };
  SdpaOptions o = p.options(p.all());
  if (!o.mask.key_lengths) {
    const TensorView lengths = p.keep(Tensor(DType::i64, {p.z.batch}));
    fill(lengths, static_cast<double>(p.z.keys));
    o.mask.key_lengths = lengths;
  }
  if (p.z.keys > 1) o.bias = longer(p.bias, 3, kNaN), o.mask.attend = longer(p.attend, 3, 1);
  Result r = p.make(p.all(), false);
  sdpa_forward(p.call(p.q, r.out, r.lse, [&](const ConstTensorView& x) { return longer(x, 2, kNaN); }), o);
  if (p.z.keys > 1) expect_same("padded", whole, p.all(), r);
}

// Computes the sequences as documents of one packed sequence.
void packed(Problem& p, Random& random, const Result& whole) {
  if (p.plain.empty_rows != EmptyRows::zero || (p.lengths && p.lengths.extent(1) != 1)) return;
  const Sizes& z = p.z;
  std::vector<std::int64_t> query_offsets{0}, key_offsets{0};
  for (std::int64_t b = 0; b < z.batch; ++b) {
    query_offsets.push_back((b + 1) * z.queries);
    key_offsets.push_back(key_offsets.back() + (p.lengths ? p.lengths.data<std::int64_t>()[b * p.lengths.stride(0)] : z.keys));
  }
  const std::int64_t queries = query_offsets.back(), keys = key_offsets.back();
  const auto offset = [](const std::vector<std::int64_t>& offsets, std::int64_t b) { return offsets[static_cast<std::size_t>(b)]; };
  const auto copy_rows = [&](const ConstTensorView& x, const std::vector<std::int64_t>& offsets) -> ConstTensorView {
    Shape shape = x.shape();
    shape[0] = 1, shape[2] = offsets.back();
    const TensorView all = p.keep(Tensor(x.dtype(), shape));
    for (std::int64_t b = 0; b < z.batch; ++b) {
      const std::int64_t first = offset(offsets, b), end = offset(offsets, b + 1);
      copy(x.slice(0, b, b + 1).slice(2, 0, end - first), all.slice(2, first, end));
    }
    return all;
  };
  const auto pairs = [&](const ConstTensorView& x) {
    const TensorView all = p.keep(random.tensor(x.dtype(), {1, z.heads(), queries, keys}));
    for (std::int64_t b = 0; b < z.batch; ++b) {
      const std::int64_t first = offset(key_offsets, b), end = offset(key_offsets, b + 1);
      copy(x.expand({z.batch, z.heads(), z.queries, z.keys}).slice(0, b, b + 1).slice(3, 0, end - first),
           all.slice(2, b * z.queries, (b + 1) * z.queries).slice(3, first, end));
    }
    return all;
  };
  const auto kept = [&](const std::vector<std::int64_t>& offsets) {
    return p.keep(Tensor::of<std::int64_t>({static_cast<std::int64_t>(offsets.size())}, std::span<const std::int64_t>(offsets)));
  };
  SdpaOptions o = p.options(p.all());
  if (p.starts) {  // convert the starts to positions in the packed sequence
    const TensorView starts = p.keep(Tensor::copy_of(o.mask.key_starts));
    for (std::int64_t i = 0; i < starts.numel(); ++i) {
      std::int64_t& start = starts.data<std::int64_t>()[i];
      start = std::min(start + offset(key_offsets, i / z.queries), keys);
    }
    o.mask.key_starts = starts.reshape({1, queries});
  }
  o.mask.key_lengths = {}, o.mask.query_offsets = kept(query_offsets), o.mask.key_offsets = kept(key_offsets);
  if (p.bias) o.bias = pairs(p.bias);
  o.mask.blocks = {};
  if (const ConstTensorView attend = p.attended_pairs()) o.mask.attend = pairs(attend);
  if (p.sink) o.sink = copy_rows(p.sink.expand({z.batch, z.heads(), z.queries}).unsqueeze(-1), query_offsets).select(-1, 0);
  Tensor out(p.dtype, {1, z.heads(), queries, z.v_width}), lse(accumulation_dtype(p.dtype), {1, z.heads(), queries});
  const auto keys_of = [&](const ConstTensorView& x) { return copy_rows(x, key_offsets); };
  sdpa_forward(p.call(copy_rows(p.q, query_offsets), out, lse, keys_of), o);
  for (std::int64_t b = 0; b < z.batch; ++b) {
    Part part = p.all();
    part.b = b, part.b_end = b + 1;
    const std::int64_t first = b * z.queries, end = first + z.queries;
    EXPECT_TRUE(same_rows(out.view().slice(2, first, end), rows_of(whole.out, part))) << "out, packed";
    EXPECT_TRUE(same_rows(lse.view().slice(2, first, end), rows_of(whole.lse, part))) << "lse, packed";
  }
}

void strided(Problem& p, Random& random, const Result& whole) {
  std::list<StridedTensor> memory;
  const auto apart = [&](const ConstTensorView& x) -> ConstTensorView {
    return x && random.coin() ? ConstTensorView(memory.emplace_back(random.strided_copy(x))) : x;
  };
  SdpaOptions o = p.options(p.all());
  o.bias = apart(o.bias), o.mask.attend = apart(o.mask.attend), o.mask.key_starts = apart(o.mask.key_starts), o.mask.key_lengths = apart(o.mask.key_lengths);
  o.mask.blocks.lists = apart(o.mask.blocks.lists);
  o.sink = apart(o.sink), o.relative_bias.slopes = apart(o.relative_bias.slopes), o.relative_bias.table = apart(o.relative_bias.table);
  const StridedTensor out = random.empty_strided(p.dtype, whole.out.shape()),
                      lse = random.empty_strided(whole.lse.dtype(), whole.lse.shape()),
                      weights = random.empty_strided(p.dtype, whole.weights.shape());
  SdpaForward forward = p.call(apart(p.q), out, lse, apart);
  if (random.coin()) forward.attention_weights = weights;
  sdpa_forward(forward, o);
  EXPECT_TRUE(same_rows(out, whole.out)) << "out, strided";
  EXPECT_TRUE(same_rows(lse, whole.lse)) << "lse, strided";
}

// Computes some consecutive queries of each sequence in one call. They begin at a different position in each sequence, so each sequence needs a different
// diagonal offset.
void in_one_chunk_of_other_queries(Problem& p, Random& random, const Result& whole) {
  if (!p.causal) return;
  const std::int64_t count = random.integer(1, p.z.queries);
  const TensorView offsets = p.keep(Tensor(DType::i64, {p.z.batch})),
                   q = p.keep(Tensor(p.dtype, {p.z.batch, p.z.heads(), count, p.z.qk_width}));
  std::vector<Part> parts;
  for (std::int64_t b = 0; b < p.z.batch; ++b) {
    const std::int64_t t = random.integer(0, p.z.queries - count);
    parts.push_back({b, b + 1, 0, p.z.heads(), t, t + count, p.z.keys});
    offsets.data<std::int64_t>()[b] = *p.causal + t;
    copy(p.q.slice(0, b, b + 1).slice(2, t, t + count), q.slice(0, b, b + 1));
  }
  SdpaOptions o = p.plain;
  o.mask.causal = Causal::top_left(), o.mask.diagonal_offsets = offsets, o.mask.window = {.left = p.left, .right = p.right};
  const auto rows = [&](const ConstTensorView& x, const Shape& shape) {
    const TensorView all = p.keep(Tensor(x.dtype(), shape));
    for (const Part& part : parts) {
      const ConstTensorView own =
          shape.size() == 2 ? cut(cut(x, 0, part.b, part.b_end), 1, part.t, part.t_end) : Problem::of_pairs(x, part);
      Shape one = shape;
      one[0] = 1;
      copy(own.expand(one), all.slice(0, part.b, part.b_end));
    }
    return all;
  };
  const Shape pairs{p.z.batch, p.z.heads(), count, p.z.keys};
  if (p.starts) o.mask.key_starts = rows(p.starts, {p.z.batch, count});
  if (p.lengths) o.mask.key_lengths = rows(p.lengths, {p.z.batch, count});
  if (const ConstTensorView attend = p.attended_pairs()) o.mask.attend = rows(attend, pairs);
  if (p.bias) o.bias = rows(p.bias, pairs);
  if (p.sink) o.sink = rows(p.sink.unsqueeze(-1), {p.z.batch, p.z.heads(), count, 1}).select(-1, 0);
  o.relative_bias = p.relative;
  Tensor out(p.dtype, {p.z.batch, p.z.heads(), count, p.z.v_width}), lse(accumulation_dtype(p.dtype), {p.z.batch, p.z.heads(), count});
  sdpa_forward(p.call(q, out, lse, [](const ConstTensorView& x) { return x; }), o);
  for (const Part& part : parts) {
    EXPECT_TRUE(same_rows(out.view().slice(0, part.b, part.b_end), rows_of(whole.out, part))) << "out, other queries of each sequence";
    EXPECT_TRUE(same_rows(lse.view().slice(0, part.b, part.b_end), rows_of(whole.lse, part))) << "lse, other queries of each sequence";
  }
}

// Computes rows of a map in several ways: all rows, chosen rows in any order, rows of one sequence, and rows of the problem without its last keys.
void maps(Problem& p, Random& random) {
  const auto value = random.pick({MapValue::scaled_score, MapValue::score, MapValue::probability});
  Tensor whole(p.dtype, {p.z.batch, p.z.heads(), p.z.queries, p.z.keys});
  attention_map({.q = p.q, .k = p.k, .k_scale = p.k_scale}, whole, p.options(p.all()), value);
  std::vector<std::int64_t> queries;
  for (std::int64_t count = random.integer(1, 15); count > 0; --count) queries.push_back(random.integer(0, p.z.queries - 1));
  Tensor rows(p.dtype, {p.z.batch, p.z.heads(), static_cast<std::int64_t>(queries.size()), p.z.keys});
  attention_map_rows({.q = p.q, .k = p.k, .k_scale = p.k_scale}, queries, rows, p.options(p.all()), value);
  for (std::size_t i = 0; i < queries.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    EXPECT_TRUE(same_rows(rows.view().slice(2, at, at + 1), whole.view().slice(2, queries[i], queries[i] + 1))) << "chosen rows of a map";
  }
  const std::int64_t b = random.integer(0, p.z.batch - 1), t = random.integer(0, p.z.queries - 1);
  const bool cut_keys = p.plain.empty_rows == EmptyRows::zero;
  const Part part{b, b + 1, 0, p.z.heads(), t, t + 1, cut_keys ? p.visible(b, t) : p.z.keys};
  Tensor row(p.dtype, {1, p.z.heads(), 1, part.keys});
  const auto of_keys = [&](const ConstTensorView& x) { return x ? x.slice(0, b, b + 1).slice(2, 0, part.keys) : x; };
  attention_map({.q = p.q.slice(0, b, b + 1).slice(2, t, t + 1), .k = of_keys(p.k), .k_scale = of_keys(p.k_scale)}, row, p.options(part),
                value);
  EXPECT_TRUE(same_rows(row, rows_of(whole, part).slice(3, 0, part.keys))) << "one row of a map";
}

Sizes draw_small(Random& random) {
  const auto width = [&] { return random.pick<std::int64_t>({1, 3, 8, 16, 17, 33}); };
  return {.batch = random.integer(1, 3),
          .kv_heads = random.integer(1, 2),
          .group = random.integer(1, 3),
          .queries = random.pick<std::int64_t>({1, 2, 3, 5, 7, 13, 20}),
          .keys = random.pick<std::int64_t>({1, 2, 5, 17, 40, 64, 65, 100, 130}),
          .qk_width = width(),
          .v_width = width()};
}

// Draws sizes with several key blocks. Problems with few queries are computed in key splits.
Sizes draw_large(Random& random) {
  return {.batch = random.integer(1, 2),
          .kv_heads = random.integer(1, 2),
          .group = random.integer(1, 2),
          .queries = random.pick<std::int64_t>({1, 3, 9, 14, 110}),
          .keys = random.pick<std::int64_t>({300, 600, 1024, 1100, 2100, 3000}),
          .qk_width = random.pick<std::int64_t>({16, 64, 70, 136}),
          .v_width = random.pick<std::int64_t>({8, 33, 64, 144})};
}

void run_problems(std::uint64_t first_seed, std::uint64_t count, const std::function<Sizes(Random&)>& draw) {
  const ThreadCount restored;
  for (const std::uint64_t seed : seeds(first_seed, count)) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random of_problem(seed);
    const Sizes sizes = draw(of_problem);
    Problem p(of_problem, kDTypes[seed % 5], sizes);
    for_each_instruction_set(seed, [&] {
      Random random(seed);
      set_num_threads(1);
      const Result whole = p.run(p.all(), true);
      with_other_threads(p, random, whole);
      const auto draw_threads = [&] { set_num_threads(random.pick({1, 2, 3, 8})); };
      draw_threads(), in_chunks(p, random, whole);
      draw_threads(), one_query_at_a_time(p, random, whole);
      draw_threads(), one_head_at_a_time(p, random, whole);
      draw_threads(), without_groups(p, whole);
      draw_threads(), padded(p, random, whole);
      with_starts_in_a_mask(p, whole);
      draw_threads(), packed(p, random, whole);
      draw_threads(), strided(p, random, whole);
      draw_threads(), in_one_chunk_of_other_queries(p, random, whole);
      draw_threads(), maps(p, random);
    });
    if (testing::Test::HasFailure()) return;
  }
}

TEST(Promises, ARowHasTheSameBitsHoweverItIsAskedFor) { run_problems(10'000, 2'000, draw_small); }

TEST(Promises, ARowOfManyKeysHasTheSameBitsHoweverItIsAskedFor) { run_problems(20'000, 120, draw_large); }

}  // namespace
}  // namespace polyhead::test
