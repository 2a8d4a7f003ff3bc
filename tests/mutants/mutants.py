"""The mutants: one wrong line each. `claim` is what the line stands for; `tests` names the programs of run.py that must notice."""
from dataclasses import dataclass

CORE = ("golden", "sdpa", "reference")
LAYER = ("golden", "nn_attention")
MODULES = ("nn_layers",)
GEMM = ("cpu", "golden")
KERNEL = ("golden", "cpu_sdpa")
FILES = ("golden", "io")


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    old: str
    new: str
    claim: str
    tests: tuple


ROW, FORWARD, BACKWARD, MAPS = (f"src/reference/{name}.cc" for name in ("row", "forward", "backward", "maps"))
PROBLEM, NORMAL, STREAM, DENSE = "src/problem/problem.h", "src/sdpa/normal_form.cc", "src/sdpa/maps.cc", "src/sdpa/dense_mask.cc"
LAYER_CC, SHAPES, ELEMENTWISE = "src/nn/multi_head_attention.cc", "src/nn/attention_shapes.cc", "src/nn/elementwise.cc"

MUTANTS = [
    # Scores
    Mutant("no scale", ROW, "for (double& x : row.scaled) x *= problem_.scale;", "", "scores are scaled", CORE),
    Mutant("scale from H + 1", NORMAL, "1 / std::sqrt(static_cast<double>(p.qk_width))", "1 / std::sqrt(static_cast<double>(p.qk_width + 1))",
           "the scale defaults to 1/sqrt(H)", CORE),
    Mutant("softcap dropped", ROW, "if (const double c = problem_.softcap; c > 0) {", "if (const double c = problem_.softcap; c > 1e9) {",
           "scores are capped by c tanh(x/c)", CORE),
    Mutant("bias dropped", ROW, "row.score[index(s)] += bias[index(s)];", "row.score[index(s)] += 0 * bias[index(s)];", "the bias is added", CORE),
    Mutant("bias before the cap", ROW, "  row.capped = row.scaled;\n",
           "  if (problem_.bias && problem_.softcap > 0) {\n    const std::vector<double> early = load_row(problem_.bias, b_, n_, t);\n"
           "    for (std::int64_t s = 0; s < keys; ++s) row.scaled[index(s)] += early[index(s)];\n  }\n  row.capped = row.scaled;\n",
           "the cap does not see the bias", CORE),
    Mutant("bias transposed", ROW, "load_row(problem_.bias, b_, n_, t);",
           "load_row(problem_.bias.extent(-1) == problem_.bias.extent(-2) ? problem_.bias.transpose(-1, -2) : problem_.bias, b_, n_, t);",
           "bias[t,s], not bias[s,t]", CORE),
    Mutant("one key past the range", PROBLEM, "KeyRange range{0, keys};", "KeyRange range{0, keys > 1 ? keys - 1 : keys};",
           "the last key takes part", CORE),
    Mutant("head group tiled, not repeated", ROW, "load_head_transposed(k, b, problem.kv_head(n))", "load_head_transposed(k, b, n % problem.kv_heads)",
           "query head n reads key/value head n / (N/K)", CORE),
    # Which keys
    Mutant("mask off by one", NORMAL, "std::min(ranges.upper, cut(offset + 1))", "std::min(ranges.upper, cut(offset))",
           "causal keeps s <= t + offset", CORE),
    Mutant("causal corner swapped", NORMAL, "const Wide offset = diagonal.resolve(p.queries, p.keys);",
           "const Wide offset = diagonal.corner == Diagonal::Corner::offset ? diagonal.shift\n"
           "                        : diagonal.corner == Diagonal::Corner::top_left ? p.keys - p.queries : 0;",
           "the corner is the one that was named", CORE),
    Mutant("bottom right mirrored", NORMAL, "diagonal.resolve(p.queries, p.keys)", "diagonal.resolve(p.keys, p.queries)", "bottom right is S - T", CORE),
    Mutant("explicit offset dropped", NORMAL, "const Wide offset = diagonal.resolve(p.queries, p.keys);",
           "const Wide offset = diagonal.corner == Diagonal::Corner::offset ? 0 : diagonal.resolve(p.queries, p.keys);",
           "a causal offset moves the diagonal", CORE),
    Mutant("huge offset wraps", NORMAL, "const Wide offset = diagonal", "const std::int64_t offset = diagonal",
           "offsets and window sides may be any 64-bit number", ("sdpa", "reference")),
    Mutant("window sides swapped", NORMAL, "cut(offset - *window.left)", "cut(offset - window.right.value_or(*window.left))",
           "left counts backwards, right forwards", CORE),
    Mutant("window's right side off by one", NORMAL, "cut(offset + *window.right + 1)", "cut(offset + *window.right)", "the right side is inclusive", CORE),
    Mutant("window from the top left", NORMAL, "window.diagonal.value_or(Diagonal::bottom_right())", "window.diagonal.value_or(Diagonal::top_left())",
           "a window alone is counted from the bottom right diagonal", CORE),
    Mutant("key lengths ignored", PROBLEM, "if (!lengths.empty()) range.last", "if (false) range.last", "keys beyond a length do not exist", CORE),
    Mutant("lengths per query read per sequence", PROBLEM, "length_per_query ? b * queries + t : b", "length_per_query ? b * queries : b",
           "each query has a length of its own", CORE),
    Mutant("polarity swapped", NORMAL, "p.masks.push_back({pairs(p, view, name, DType::boolean), static_cast<bool>(attend)});",
           "p.masks.push_back({pairs(p, view, name, DType::boolean), !attend});", "attend: true = may; block: true = may not", CORE),
    Mutant("key mask's polarity swapped", NORMAL, "p.masks.push_back({over_pairs, static_cast<bool>(attend)});",
           "p.masks.push_back({over_pairs, !attend});", "attend_keys, block_keys: as their names say", CORE),
    Mutant("masks replace each other", PROBLEM, "kept[static_cast<std::size_t>(s)] &= (slice(t, s) != 0) == mask.attend;",
           "kept[static_cast<std::size_t>(s)] = (slice(t, s) != 0) == mask.attend;", "a mask is the conjunction of its parts", CORE),
    Mutant("masked key read", ROW, "if (!row.kept[index(s)]) score = -kInfinity;", "if (!row.kept[index(s)]) score += -kInfinity;",
           "a masked key does not exist, NaN or not", CORE),
    Mutant("masked value read", FORWARD, "if (!row.empty && row.kept[at]) add_scaled", "if (!row.empty) add_scaled",
           "values of masked keys are not used", CORE),
    Mutant("masked value read backwards", BACKWARD, "if (!row.kept[at]) continue;\n          d_p", "d_p", "values of masked keys are not used in the gradient", CORE),
    # Softmax
    Mutant("largest not subtracted", ROW, "std::exp(row.score[s] - largest)", "std::exp(row.score[s] - 0 * largest)", "no exponential overflows", CORE),
    Mutant("sum not divided", ROW, "row.p[s] /= sum;", "row.p[s] /= 1;", "probabilities sum to 1", CORE),
    Mutant("lse without the largest", ROW, "row.lse = largest + std::log(sum);", "row.lse = std::log(sum);", "lse belongs to the scores as they are", CORE),
    Mutant("lse without log", ROW, "row.lse = largest + std::log(sum);", "row.lse = largest + sum;", "lse is a logarithm", CORE),
    Mutant("empty row is NaN", ROW, "if (row.empty) return;", "", "a row without keys is zero", CORE),
    Mutant("row of -inf is not empty", ROW, "row.empty &= score == -kInfinity;", "row.empty &= !row.kept[index(s)];",
           "a row whose scores are all -inf is empty", CORE),
    Mutant("very low row counts as empty", ROW, "row.empty &= score == -kInfinity;", "row.empty &= score < -1e37;", "finite scores never make a row empty", CORE),
    Mutant("uniform forgotten", ROW, "if (row.uniform) row.score.assign(index(keys), 0.0);", "", "EmptyRows::Uniform gives every key 1/S", CORE),
    Mutant("uniform row has a gradient", BACKWARD, "row.kept[at] && !row.uniform ? row.p[at]", "row.kept[at] ? row.p[at]",
           "the constant scores of a uniform row carry no gradient", CORE),
    Mutant("unmasked stays masked", ROW, "if (!any && problem_.empty_rows != EmptyRows::Zero)", "if (!any && problem_.empty_rows == EmptyRows::Uniform)",
           "EmptyRows::Unmasked sees every key", CORE),
    # Dropout
    Mutant("dropout scale dropped", ROW, "return row.keep_bits[index(s)] ? dropout_scale(problem_.dropout.p) : 0;",
           "return row.keep_bits[index(s)] ? 1 : 0;", "what is kept is scaled by 1/(1-p)", CORE),
    Mutant("dropout bits of one head for all", ROW, ".row(b_, n_, t, 0", ".row(b_, 0, t, 0", "bits are keyed by (seed, b, n, t, s)", ("sdpa", "reference")),
    Mutant("dropout's bits of one query for all", ROW, ".row(b_, n_, t, 0", ".row(b_, n_, 0, 0", "bits are keyed by (seed, b, n, t, s)", ("sdpa", "reference")),
    Mutant("dropout not in the gradient", BACKWARD, "d_p[at] *= maker.dropout_factor(row, s);", "", "the gradient passes through dropout", CORE),
    # Backward
    Mutant("delta dropped", BACKWARD, "delta += row.p[at] * d_p[at];", "", "d_score = p (d_p - sum p d_p)", CORE),
    Mutant("softcap derivative dropped", BACKWARD, "(1 - tanh * tanh)", "(1 - 0 * tanh)", "the gradient passes through the cap", CORE),
    Mutant("scale missing in d_q and d_k", BACKWARD, "problem.scale * d_score[at]", "d_score[at]", "the gradient passes through the scale", CORE),
    Mutant("kv gradient overwritten, not summed", BACKWARD, "maker.dropout(t, row);\n", "maker.dropout(t, row);\n      if (t == 0) d_v.assign(d_v.size(), 0.0);\n",
           "heads of a group add into one key/value gradient", CORE),
    Mutant("d_v from the undropped p", BACKWARD, "add_scaled(v_width, row.dropped[at], d_out.data()", "add_scaled(v_width, row.p[at], d_out.data()",
           "d_v uses what multiplied v", CORE),
    Mutant("d_bias not reduced", BACKWARD, "slice(t, static_cast<std::int64_t>(s)) += d_score", "slice(t, static_cast<std::int64_t>(s)) = d_score", "positions that share a bias element are summed", CORE),
    Mutant("d_bias over no pairs", BACKWARD, "sums_(problem.d_bias_given)", "sums_(problem.d_bias)",
           "a bias that reaches no pair has a gradient of zero", ("sdpa", "reference")),
    # Maps
    Mutant("map from a rounded lse", MAPS, "        maker.softmax(row);\n",
           "        for (std::size_t s = 0; s < row.score.size(); ++s) {\n          row.p.resize(row.score.size());\n"
           "          row.p[s] = row.empty || !row.kept[s] ? 0 : __builtin_exp(row.score[s] - load_row(problem.lse, b, n, t)[0]);\n        }\n",
           "maps are as exact as the output, at scores of -1e38 too", CORE),
    Mutant("last rows of a map skipped", STREAM, "begin < queries.size(); begin += kBlock", "begin + kBlock <= queries.size() || begin == 0; begin += kBlock",
           "a map is whole beyond one block of rows", CORE),
    Mutant("rows by position, not by query", STREAM, "backend_.map_rows(problem, b, n, queries.subspan(begin, count), values.data());",
           "std::vector<std::int64_t> wrong(count);\n          std::iota(wrong.begin(), wrong.end(), static_cast<std::int64_t>(begin));\n"
           "          backend_.map_rows(problem, b, n, wrong, values.data());", "the rows that were asked for", CORE),
    Mutant("ties to the larger key", STREAM, "? p(x) > p(y) : x < y;", "? p(x) > p(y) : x > y;", "ties go to the smaller key", CORE),
    Mutant("entropy in bits", STREAM, "x * std::log(x) : 0;", "x * std::log2(x) : 0;", "entropy is in nats", CORE),
    Mutant("empty rows counted", STREAM, "if (std::all_of(row.begin(), row.end(), [](double p) { return p == 0; })) return;", "if (row.empty()) return;",
           "statistics are means over the rows that are not empty", CORE),
    Mutant("previous key is the next", STREAM, "return at(p, t - 1); }}", "return at(p, t + 1); }}", "previous_key is p of key t - 1", CORE),
    Mutant("picture not divided", STREAM, "sum / static_cast<double>((last - first) * (end - begin))", "sum", "a pixel is the mean of its block", CORE),
    Mutant("dropped map is the plain one", MAPS, "problem.value == MapValue::dropped ? &row.dropped : &row.p", "&row.p", "MapValue::dropped is what multiplies v", CORE),
    # The door
    Mutant("forced backend runs though it declines", "src/sdpa/backends.cc", "if (!reason.empty()) {", "if (false) {",
           "a forced backend that declines is an error", ("sdpa",)),
    Mutant("overlap accepted", "src/core/overlap.cc", "require(!overlaps(other.view, out.view), operation", "require(!overlaps(other.view, out.view) || true, operation",
           "outputs may not overlap inputs", ("sdpa",)),
    Mutant("lengths unchecked", NORMAL, "std::cmp_less_equal(length, p.keys)", "true", "a length lies in [0,S]", ("sdpa",)),
    Mutant("dense mask of one head for all", DENSE, "pairs.extent(-3) != 1;", "pairs.extent(-3) == 1;", "a mask per head stays per head", ("sdpa", "nn_attention")),
    # Layers
    Mutant("layer axis wrong", "src/nn/attention_shapes.h", "move_axis(axis, -2)", "move_axis(0, -2)", "attention runs along the axis", LAYER),
    Mutant("heads split inside out", "src/nn/attention_shapes.h", "merged.unflatten(-1, {heads, merged.extent(-1) / heads})",
           "merged.unflatten(-1, {merged.extent(-1) / heads, heads}).transpose(-1, -2)", "the width is heads, then features", LAYER),
    Mutant("value projected from the key", LAYER_CC, "s.v = project_keys(v, value, bias_v", "s.v = project_keys(v, key.shape() == value.shape() ? key : value, bias_v",
           "values come from the value input", LAYER),
    Mutant("bias_kv gradient dropped", LAYER_CC, "learned_gradient(d_k, grads->bias_k);", "", "bias_k learns", LAYER),
    Mutant("added key masked", SHAPES, "  fill(padded, 1);\n", "", "every query may attend to bias_kv and the zero key", LAYER),
    Mutant("gate derivative wrong", ELEMENTWISE, "* value * (1 - value)", "* value", "sigmoid' = y (1 - y)", LAYER),
    Mutant("gate gradient of d_attended dropped", LAYER_CC, "    multiply(d_merged, s.gate, d_merged, executor);\n", "", "the gate scales what flows back", LAYER),
    Mutant("gate misses in d_query", LAYER_CC, "d_query, part(&MultiHeadAttention::gate), Write::add", "{}, part(&MultiHeadAttention::gate), Write::add",
           "the query input gets the gate's gradient too", LAYER),
    Mutant("self attention's gradients overwrite", LAYER_CC, "input.key ? Write::replace : Write::add", "Write::replace",
           "an input that serves as key too gets the sum", LAYER),
    Mutant("global mean is a sum", ELEMENTWISE, "reduce == Reduce::mean && !kept.empty() ?", "reduce == Reduce::mean && kept.empty() ?",
           "the global query is a mean", LAYER),
    Mutant("global mean's gradient not divided", ELEMENTWISE, "load(from(0, j)) / static_cast<double>(kept.size())", "load(from(0, j))",
           "each position gets 1/L of the mean's gradient", LAYER),
    Mutant("masked mean counts all", LAYER_CC, "if (c.global_query != GlobalQuery::masked_mean) return {};", "return {};",
           "the masked mean leaves out masked positions", LAYER),
    Mutant("pair bias matched from the right", SHAPES, "aligned = aligned.unsqueeze(given);", "aligned = aligned.unsqueeze(0);",
           "leading dimensions of a pair bias match from the left", LAYER),
    Mutant("dropout in evaluation", LAYER_CC, "if (options.mode == Mode::training)", "if (config.dropout > 0)", "evaluation drops nothing", LAYER),
    # Linear maps and the other modules
    Mutant("linear weight transposed", "src/nn/linear.cc", ".b = weight.view().transpose(0, 1), .c = y",
           ".b = weight.extent(0) == weight.extent(1) ? weight.view() : weight.view().transpose(0, 1), .c = y", "weights are [out, in]", ("nn_layers", "golden")),
    Mutant("linear bias gradient misses rows", ELEMENTWISE, "total[at[1] + e * totals.stride(-1)] += load(", "total[at[1] + e * totals.stride(-1)] = load(", "the bias gradient sums over the rows", ("nn_layers", "golden")),
    Mutant("added gradient replaces", "src/nn/linear.cc", ".add = d_x_write == Write::add", ".add = false", "Write::add adds", ("nn_layers", "golden")),
    Mutant("layer norm's mean stays in the gradient", "src/nn/layer_norm.cc", "(g[e] - mean - v[e] * along)", "(g[e] - v[e] * along)",
           "d_x of LayerNorm has mean 0", MODULES),
    Mutant("layer norm's epsilon dropped", "src/nn/layer_norm.cc", "std::sqrt(variance + static_cast<A>(epsilon))", "std::sqrt(variance)",
           "a constant row is finite", MODULES),
    # Products of matrices
    Mutant("last tile skipped", "src/cpu/gemm/tile.h", "for (std::int64_t j = 0; j < columns.size(); j += kColumns)",
           "for (std::int64_t j = 0; j + kColumns <= columns.size() || j == 0; j += kColumns)", "columns beyond the last whole panel count", GEMM),
    Mutant("tail lane leaked", "src/cpu/gemm/pack.h", "for (int i = count; i < Width; ++i) panel[i] = 0;\n  }\n}\n\n// Lays",
           "for (int i = count; i < Width; ++i) panel[i] = 0;\n    if (count < Width && count > 1) panel[count - 1] += panel[0];\n  }\n}\n\n// Lays",
           "lines of a panel do not mix", GEMM),
    Mutant("last terms of a sum skipped", "src/cpu/gemm/tile.h", "done < k.size(); done += kSumDepth", "done + kSumDepth <= k.size() || done == 0; done += kSumDepth",
           "a sum runs over its whole depth", GEMM),
    Mutant("second block of a sum replaces the first", "src/cpu/gemm/tile.h", "std::fill_n(sums, scratch.round_up(rows.size(), kPanelRows) * stride, A{0});\n  for (std::int64_t first = 0; first < depth; first += kBlockDepth) {",
           "for (std::int64_t first = 0; first < depth || first == 0; first += kBlockDepth) {\n    std::fill_n(sums, scratch.round_up(rows.size(), kPanelRows) * stride, A{0});",
           "long sums add up over their blocks", GEMM),
    # Kernels of attention
    Mutant("kernel: rescale dropped", "src/cpu/sdpa/forward_kernel.cc", ".factor = started != 0 ? factor : nullptr}", ".add = started != 0}",
           "sums of earlier key blocks shrink when the largest score grows", KERNEL),
    Mutant("kernel: sum not rescaled", "src/cpu/sdpa/forward_kernel.cc", "s_.sum[index] = s_.sum[index] * factor[i] + sum;", "s_.sum[index] += sum;",
           "the sum of probabilities shrinks with them", KERNEL),
    Mutant("kernel: last vector of a panel skipped", "src/cpu/sdpa/forward_kernel.cc", "rows, static_cast<int>((end - begin) / kWidth));",
           "rows, static_cast<int>((end - begin) / kWidth) - (end - begin > kWidth));", "every key of a panel has a score", KERNEL),
    Mutant("kernel: keys before the range leak", "src/cpu/sdpa/rows.h", "for (std::int64_t i = low_vector; i < low; ++i) x[i] = -kInfinity<T>;", "",
           "the vector that a range begins in holds other keys", KERNEL),
    Mutant("kernel: keys beyond the range leak", "src/cpu/sdpa/rows.h", "for (std::int64_t i = high; i < high_vector; ++i) x[i] = -kInfinity<T>;", "",
           "the vector that a range ends in holds other keys", KERNEL),
    Mutant("kernel: diagonal block narrowed too far", "src/cpu/sdpa/forward_kernel.cc", "{smaller(keys.first, own.first), larger(keys.last, own.last)}",
           "{smaller(keys.first, own.first), own.last}", "a strip covers the keys of each of its rows", KERNEL),
    Mutant("kernel: NaN of a masked value leaks", "src/cpu/sdpa/forward_kernel.cc", "if (!finite_) drop_spoilt(", "if (false) drop_spoilt(",
           "0 NaN is not added to rows without the key", KERNEL),
    Mutant("kernel: NaN of a kept value lost", "src/cpu/sdpa/forward_kernel.cc", "if (!finite_) add_spoilt_values(first, strip, rows);", "",
           "a kept NaN reaches its rows", KERNEL),
    Mutant("kernel: scale's fraction applied twice", "src/cpu/sdpa/rows.h", "if (group.bias.data != nullptr) factor = 1;  // for every row alike", "",
           "scores with a bias are in natural units", KERNEL),
    Mutant("kernel: bias read forwards", "src/cpu/sdpa/rows.h", "x[i] * factor + widen(from[-i])", "x[i] * factor + widen(from[i - low])",
           "a stride of -1 runs backwards", KERNEL),
    Mutant("kernel: dropout draws the first keys' bits", "src/cpu/sdpa/dropout.h", "philox_bytes(static_cast<std::uint32_t>((first + i) / 4)",
           "philox_bytes(static_cast<std::uint32_t>(i / 4)", "bits belong to the key, whatever its block", KERNEL),
    Mutant("kernel: dropout not scaled", "src/cpu/sdpa/forward_kernel.cc", "s_.sum[i] / static_cast<T>(task_.dropout_scale)", "s_.sum[i]",
           "kept probabilities grow by 1/(1 - p)", KERNEL),
    Mutant("kernel: heads of a group read the first's queries", "src/cpu/sdpa/rows.h", "return data + row.head * plane.head + row.query * plane.row;",
           "return data + row.query * plane.row;", "each head of a group has rows of its own", KERNEL),
    Mutant("kernel: large lse trusted", "src/cpu/sdpa/backward_kernel.cc", "if (inexact) find_sums();", "", "exp(score - lse) is exact for large scores", KERNEL),
    Mutant("kernel: delta dropped", "src/cpu/sdpa/backward_kernel.cc", "s_.delta[i] = sum_of_lanes<T>(sums) + sum;", "s_.delta[i] = 0;",
           "d_score of a row over several blocks sums to 0", KERNEL),
    Mutant("kernel: slope of the cap dropped", "src/cpu/sdpa/backward_kernel.cc", "y[i] * s_.slope[i]", "y[i]", "the cap's derivative is 1 - tanh^2", KERNEL),
    Mutant("kernel: d_q of the last part only", "src/cpu/sdpa/backward.cc", "sum += from[part * part_size + d];", "sum = from[part * part_size + d];",
           "parts of d_q are added", KERNEL),
    Mutant("kernel: shared bias gradient overwritten", "src/cpu/sdpa/backward_kernel.cc", "for (std::int64_t i = low; i < high; ++i) to[i] += from[i];",
           "for (std::int64_t i = low; i < high; ++i) to[i] = from[i];", "pairs that share an element are summed", KERNEL),
    # Files
    Mutant("packed columns not transposed", "src/io/layout_storage.cc", "parts.emplace_back(part, rows ? slice : slice.transpose(0, 1));",
           "parts.emplace_back(part, slice);", "GPT-2 stores (in, out)", FILES),
    Mutant("packed parts out of order", "src/io/layout_storage.cc", 'return {"q" + rest, "k" + rest, "v" + rest};', 'return {"k" + rest, "q" + rest, "v" + rest};',
           "packed weights are q, k, v in this order", FILES),
    Mutant("heads_out not transposed", "src/io/layout_storage.cc", "stored.reshape({joint(0, 1), shape[2]}).transpose(0, 1)",
           "stored.reshape({joint(0, 1), shape[2]})", "Keras and Flax store the output map as (heads, width, out)", FILES),
]
