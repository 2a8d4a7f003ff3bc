#include "support/naive_attention.h"

#include "core/index.h"

namespace polyhead::test {

Tensor listed_pairs(const BlockLists& blocks, const Shape& pairs) {
  const std::int64_t queries = pairs[-2], keys = pairs[-1], count = blocks.lists.extent(-1), rows = blocks.lists.extent(-2);
  const std::vector<double> lists = to_doubles(blocks.lists.expand(appended(pairs.first(pairs.size() - 2), {rows, count})));
  Tensor listed(DType::boolean, pairs);
  bool* pair = listed.data<bool>();
  for (std::int64_t head = 0; head < numel(pairs.first(pairs.size() - 2)); ++head) {
    for (std::int64_t t = 0; t < queries; ++t) {
      const auto list = lists.begin() + (head * rows + t / blocks.size.queries) * count;
      for (std::int64_t s = 0; s < keys; ++s) *pair++ = std::find(list, list + count, static_cast<double>(s / blocks.size.keys)) != list + count;
    }
  }
  return listed;
}

PairRule::PairRule(const Mask& mask, const Shape& pairs) : mask_(mask), queries_(pairs[-2]), keys_(pairs[-1]) {
  const Shape lead = pairs.first(pairs.size() - 3);
  Shape per_key = lead;
  per_key.push_back(keys_);
  if (mask.attend) dense_ = to_doubles(mask.attend.expand(pairs));
  if (mask.block) dense_ = to_doubles(mask.block.expand(pairs));
  if (mask.blocks.lists) listed_ = to_doubles(listed_pairs(mask.blocks, pairs));
  if (mask.attend_keys) key_mask_ = to_doubles(mask.attend_keys.expand(per_key));
  if (mask.block_keys) key_mask_ = to_doubles(mask.block_keys.expand(per_key));
  if (mask.key_starts) starts_ = to_doubles(mask.key_starts);
  start_per_query_ = mask.key_starts && mask.key_starts.rank() > lead.size();
  if (mask.key_lengths) lengths_ = to_doubles(mask.key_lengths);
  length_per_query_ = mask.key_lengths && mask.key_lengths.rank() > lead.size();
  if (mask.query_offsets) query_offsets_ = to_doubles(mask.query_offsets), key_offsets_ = query_offsets_;
  if (mask.key_offsets) key_offsets_ = to_doubles(mask.key_offsets);
  if (mask.diagonal_offsets) diagonal_offsets_ = Tensor::copy_of(mask.diagonal_offsets, DType::i64);  // int64 and not double, which would round 2^63 - 1
}

PairRule::Wide PairRule::distance(std::int64_t b, std::int64_t t, std::int64_t s, const Diagonal& d) const {
  // The diagonal through the top left corner of the document has offset `begin`, the one through the bottom right corner has offset `end`.
  const std::int64_t begin = start_of(key_offsets_, s) - start_of(query_offsets_, t);
  const std::int64_t end = end_of(key_offsets_, s, keys_) - end_of(query_offsets_, t, queries_);
  if (diagonal_offsets_) return Wide{s} - t - diagonal_offsets_.data<std::int64_t>()[b];
  if (d.corner == Diagonal::Corner::bottom_right) return Wide{s} - t - end;
  return Wide{s} - t - begin - (d.corner == Diagonal::Corner::offset ? d.shift : 0);
}

bool PairRule::keeps(std::int64_t b, std::int64_t t, std::int64_t s, std::size_t pair) const {
  if (!same_document(t, s)) return false;
  const auto distance = [&](const Diagonal& d) { return this->distance(b, t, s, d); };
  const Diagonal window_diagonal = mask_.causal            ? *mask_.causal
                                   : mask_.window.diagonal ? *mask_.window.diagonal
                                                           : Diagonal::bottom_right();
  if (mask_.causal && distance(*mask_.causal) > 0) return false;
  if (mask_.window.left && -distance(window_diagonal) > *mask_.window.left) return false;
  if (mask_.window.right && distance(window_diagonal) > *mask_.window.right) return false;
  if (mask_.key_starts && static_cast<double>(s) < starts_[static_cast<std::size_t>(start_per_query_ ? b * queries_ + t : b)]) return false;
  if (mask_.key_lengths && static_cast<double>(s) >= lengths_[static_cast<std::size_t>(length_per_query_ ? b * queries_ + t : b)])
    return false;
  if (mask_.attend && dense_[pair] == 0) return false;
  if (mask_.block && dense_[pair] != 0) return false;
  if (mask_.blocks.lists && listed_[pair] == 0) return false;
  const auto key = static_cast<std::size_t>(b * keys_ + s);
  if (mask_.attend_keys && key_mask_[key] == 0) return false;
  if (mask_.block_keys && key_mask_[key] != 0) return false;
  return true;
}

std::size_t PairRule::number_of(const std::vector<double>& offsets, std::int64_t i) {
  std::size_t number = 0;
  while (number < offsets.size() && offsets[number] <= static_cast<double>(i)) ++number;
  return number;
}

std::int64_t PairRule::start_of(const std::vector<double>& offsets, std::int64_t i) {
  return offsets.empty() ? 0 : static_cast<std::int64_t>(offsets[number_of(offsets, i) - 1]);
}

std::int64_t PairRule::end_of(const std::vector<double>& offsets, std::int64_t i, std::int64_t all) {
  return offsets.empty() ? all : static_cast<std::int64_t>(offsets[number_of(offsets, i)]);
}

Matrix to_matrix(ConstTensorView view) {
  const std::vector<double> values = to_doubles(view);
  return Matrix(values.begin(), values.end());
}

Tensor to_tensor(const Matrix& matrix, const Shape& shape) {
  Tensor tensor(DType::f64, shape);
  for (std::size_t i = 0; i < matrix.size(); ++i) tensor.data<double>()[i] = static_cast<double>(matrix[i]);
  return tensor;
}

Shape pairs_shape(ConstTensorView q, ConstTensorView k) {
  Shape shape = q.shape();
  shape[-1] = k.extent(-2);
  return shape;
}

std::int64_t naive_bucket(Real x, const RelativeBias& bias) {
  const std::int64_t count = bias.table.extent(1) / (bias.bidirectional ? 2 : 1), exact = count / 2;
  std::int64_t bucket = bias.bidirectional && x > 0 ? count : 0;
  const Real distance = bias.bidirectional ? std::abs(x) : -x;
  for (std::int64_t i = 1; i < count; ++i) {
    const Real growth = static_cast<Real>(i - exact) / static_cast<Real>(count - exact);
    const Real begin = i <= exact ? Real(i) : Real(exact) * std::pow(Real(bias.max_distance) / Real(exact), growth);
    bucket += distance >= begin * (1 - 1e-12L);
  }
  return bucket;
}

RelativePair relative_pair(const PairRule& rule, const SdpaOptions& options, std::int64_t b, std::int64_t t, std::int64_t s) {
  const Mask& mask = options.mask;
  const RelativeBias& bias = options.relative_bias;
  const Diagonal own = bias.diagonal.value_or(Diagonal::bottom_right());
  const Real x = static_cast<Real>(rule.distance(b, t, s, mask.causal ? *mask.causal : mask.window.diagonal.value_or(own)));
  return bias.slopes ? RelativePair{-std::abs(x), 0} : RelativePair{1, naive_bucket(x, bias)};
}

FullMatrices full_matrices(ConstTensorView q, ConstTensorView k, ConstTensorView v, ConstTensorView d_out,
                                  const SdpaOptions& options) {
  FullMatrices m;
  m.batch = numel(q.shape().first(q.rank() - 3));
  m.heads = q.extent(-3), m.kv_heads = k.extent(-3);
  m.queries = q.extent(-2), m.keys = k.extent(-2);
  m.qk_width = q.extent(-1), m.v_width = v.extent(-1);
  m.q = to_matrix(q), m.k = to_matrix(k), m.v = to_matrix(v), m.d_out = to_matrix(d_out);
  m.scale = options.scale ? Real{*options.scale} : m.qk_width > 0 ? 1 / std::sqrt(Real(m.qk_width)) : 1;
  m.softcap = options.softcap;
  m.empty_rows = options.empty_rows;
  const Shape pairs = pairs_shape(q, k);
  const auto count = static_cast<std::size_t>(numel(pairs));
  m.bias = options.bias ? to_matrix(options.bias.expand(pairs)) : Matrix(count, 0);
  m.drop.assign(count, 1);
  const Shape rows = pairs.first(pairs.size() - 1);
  m.sink.assign(static_cast<std::size_t>(numel(rows)), -std::numeric_limits<Real>::infinity());
  if (options.sink) m.sink = to_matrix((options.sink.rank() == 1 ? options.sink.unsqueeze(-1) : options.sink).expand(rows));
  if (options.dropout.p > 0 || options.dropout.keep) {
    Tensor bits(DType::boolean, pairs);
    if (options.dropout.keep) {
      copy(options.dropout.keep.expand(pairs), bits);
    } else {
      dropout_keep_bits(options.dropout.p, options.dropout.seed.value(), bits);
    }
    const Real kept = options.dropout.p < 1 ? 1 / (1 - Real{options.dropout.p}) : 0;
    for (std::size_t i = 0; i < count; ++i) m.drop[i] = bits.data<bool>()[i] ? kept : 0;
  }
  const PairRule rule(options.mask, pairs);
  if (const RelativeBias& relative = options.relative_bias) {
    const std::vector<double> values = to_doubles(relative.parameter());
    const auto per_head = static_cast<std::int64_t>(values.size()) / std::max<std::int64_t>(m.heads, 1);
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(count); ++i) {
      const std::int64_t s = i % m.keys, t = i / m.keys % m.queries, n = i / m.keys / m.queries % m.heads, b = i / m.keys / m.queries / m.heads;
      if (!rule.same_document(t, s)) continue;
      const RelativePair pair = relative_pair(rule, options, b, t, s);
      // Round the value, because the library rounds the values of a relative bias to the dtype of lse.
      const Real exact = pair.factor * Real(values[static_cast<std::size_t>(n * per_head + pair.bucket)]);
      m.bias[static_cast<std::size_t>(i)] = q.dtype() == DType::f64 ? Real(static_cast<double>(exact)) : Real(static_cast<float>(exact));
    }
  }
  for (std::int64_t t = 0; t < m.queries; ++t) {
    for (std::int64_t s = 0; s < m.keys; ++s) m.together.push_back(rule.same_document(t, s));
  }
  for (std::int64_t b = 0; b < m.batch; ++b) {
    for (std::int64_t n = 0; n < m.heads; ++n) {
      for (std::int64_t t = 0; t < m.queries; ++t) {
        for (std::int64_t s = 0; s < m.keys; ++s) m.keep.push_back(rule.keeps(b, t, s, m.keep.size()));
      }
    }
  }
  return m;
}

Tensor relative_gradient(const FullMatrices& m, const Matrix& d_score, const SdpaOptions& options, const Shape& pairs) {
  const ConstTensorView& of = options.relative_bias.parameter();
  Matrix sums(static_cast<std::size_t>(of.numel()), 0);
  const std::int64_t per_head = of.rank() == 1 ? 1 : of.extent(1);
  const PairRule rule(options.mask, pairs);
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(d_score.size()); ++i) {
    const std::int64_t s = i % m.keys, t = i / m.keys % m.queries, n = i / m.keys / m.queries % m.heads, b = i / m.keys / m.queries / m.heads;
    if (!rule.same_document(t, s)) continue;
    const RelativePair pair = relative_pair(rule, options, b, t, s);
    sums[static_cast<std::size_t>(n * per_head + pair.bucket)] += pair.factor * d_score[static_cast<std::size_t>(i)];
  }
  return to_tensor(sums, of.shape());
}

FullResults naive_attention(const FullMatrices& m) {
  FullResults r;
  r.out.assign(static_cast<std::size_t>(m.batch * m.heads * m.queries * m.v_width), 0);
  r.lse = m.sink;  // a row without keys keeps this lse
  r.d_sink.assign(m.sink.size(), 0);
  for (Matrix* pairs : {&r.scaled, &r.capped, &r.score, &r.p, &r.dropped, &r.d_score}) pairs->assign(m.keep.size(), 0);
  r.d_q.assign(m.q.size(), 0), r.d_k.assign(m.k.size(), 0), r.d_v.assign(m.v.size(), 0);

  for (std::int64_t row = 0; row < m.batch * m.heads * m.queries; ++row) {
    const std::int64_t t_head = row / m.queries, b = t_head / m.heads, n = t_head % m.heads;
    const std::int64_t kv = b * m.kv_heads + n / (m.heads / m.kv_heads);
    const auto pair = [&](std::int64_t s) { return static_cast<std::size_t>(row * m.keys + s); };
    const auto q_at = [&](std::int64_t h) { return static_cast<std::size_t>(row * m.qk_width + h); };
    const auto k_at = [&](std::int64_t s, std::int64_t h) { return static_cast<std::size_t>((kv * m.keys + s) * m.qk_width + h); };
    const auto v_at = [&](std::int64_t s, std::int64_t j) { return static_cast<std::size_t>((kv * m.keys + s) * m.v_width + j); };
    const auto out_at = [&](std::int64_t j) { return static_cast<std::size_t>(row * m.v_width + j); };

    std::vector<std::int64_t> kept;
    for (std::int64_t s = 0; s < m.keys; ++s) {
      if (m.keep[pair(s)]) kept.push_back(s);
      Real dot = 0;
      for (std::int64_t h = 0; h < m.qk_width; ++h) dot += m.q[q_at(h)] * m.k[k_at(s, h)];
      r.scaled[pair(s)] = m.scale * dot;
      r.capped[pair(s)] = m.softcap > 0 ? m.softcap * std::tanh(r.scaled[pair(s)] / m.softcap) : r.scaled[pair(s)];
      r.score[pair(s)] = m.keep[pair(s)] ? r.capped[pair(s)] + m.bias[pair(s)] : -kInfinity;
    }
    const bool masked = kept.empty();
    if (masked && m.empty_rows != EmptyRows::zero) {
      for (std::int64_t s = 0; s < m.keys; ++s) {
        if (!m.together[static_cast<std::size_t>(row % m.queries * m.keys + s)]) continue;
        kept.push_back(s);
        r.score[pair(s)] = m.empty_rows == EmptyRows::uniform ? 0 : r.capped[pair(s)] + m.bias[pair(s)];
      }
    }
    Real sum = 0, largest = -kInfinity;
    for (const std::int64_t s : kept) largest = std::max(largest, r.score[pair(s)]);
    if (largest == -kInfinity) continue;  // an empty row
    // The sink is treated as one more key, whose value is a row of zeros.
    const Real sink = m.sink[static_cast<std::size_t>(row)];
    largest = std::max(largest, sink);
    sum = std::exp(sink - largest);
    for (const std::int64_t s : kept) sum += std::exp(r.score[pair(s)] - largest);
    r.lse[static_cast<std::size_t>(row)] = largest + std::log(sum);
    for (const std::int64_t s : kept) r.p[pair(s)] = std::exp(r.score[pair(s)] - largest) / sum;
    for (std::int64_t s = 0; s < m.keys; ++s) r.dropped[pair(s)] = r.p[pair(s)] * m.drop[pair(s)];

    Matrix d_p(static_cast<std::size_t>(m.keys));
    for (const std::int64_t s : kept) {
      for (std::int64_t j = 0; j < m.v_width; ++j) {
        r.out[out_at(j)] += r.dropped[pair(s)] * m.v[v_at(s, j)];
        r.d_v[v_at(s, j)] += r.dropped[pair(s)] * m.d_out[out_at(j)];
        d_p[static_cast<std::size_t>(s)] += m.drop[pair(s)] * m.d_out[out_at(j)] * m.v[v_at(s, j)];
      }
    }
    Real all = 0;  // sum_i p_i d_p_i
    for (const std::int64_t i : kept) all += r.p[pair(i)] * d_p[static_cast<std::size_t>(i)];
    r.d_sink[static_cast<std::size_t>(row)] -= all * std::exp(sink - r.lse[static_cast<std::size_t>(row)]);
    if (masked && m.empty_rows == EmptyRows::uniform) continue;  // the scores of this row are constants, so their gradients are 0
    for (const std::int64_t s : kept) {
      // sum_i d p_i / d score_s * d_p_i, where d p_i / d score_s = p_i ((i = s) - p_s). Summed for each s, it would take most of the time of tests of many keys.
      const Real slope = r.p[pair(s)] * (d_p[static_cast<std::size_t>(s)] - all);
      r.d_score[pair(s)] = slope;
      Real d_dot = slope * m.scale;
      if (m.softcap > 0) d_dot *= 1 - std::pow(std::tanh(r.scaled[pair(s)] / m.softcap), Real{2});
      for (std::int64_t h = 0; h < m.qk_width; ++h) {
        r.d_q[q_at(h)] += d_dot * m.k[k_at(s, h)];
        r.d_k[k_at(s, h)] += d_dot * m.q[q_at(h)];
      }
    }
  }
  return r;
}

}  // namespace polyhead::test
