#include "sdpa/normal_form.h"

#include <array>
#include <cmath>
#include <utility>

#include "core/dispatch.h"
#include "core/index.h"
#include "core/option_words.h"
#include "core/parallel.h"
#include "polyhead/attention_arguments.h"
#include "sdpa/gradient_names.h"
#include "sdpa/relative_bias.h"

namespace polyhead {
namespace {

static_assert(word_of(Precision::exact, kPrecisionWords) == "exact" && word_of(Precision::native, kPrecisionWords) == "native");
static_assert(word_of(Pooling::mean, kPoolingWords) == "mean" && word_of(Pooling::sum, kPoolingWords) == "sum" && word_of(Pooling::largest, kPoolingWords) == "largest");

// An argument that has a gradient, and the tensor given for it (or absent). Its gradient and its tangent have the shape and dtype of this tensor.
struct Differentiable {
  const char* argument;  // name of the argument; "slopes" or "table" for a relative bias
  ConstTensorView given;
};
using AllDifferentiable = std::array<Differentiable, kGradientNames.size()>;

template <class Tensors>
AllDifferentiable all_differentiable(const Tensors& tensors, const SdpaOptions& options) {
  AllDifferentiable all{};
  auto next = all.begin();
  visit_differentiable({.q = tensors.q, .k = tensors.k, .v = tensors.v, .out = {}}, options,
                       [&](std::string_view, const char* argument, const ConstTensorView& view) { *next++ = {argument, view}; });
  return all;
}

class ArgumentReader {
 public:
  ArgumentReader(const char* operation, const SdpaOptions& options, ProblemMemory& memory)
      : op_(operation), options_(options), rules_(memory.rules), memory_(memory) {}

  // Checks q, k, v, out and the options of a forward or backward pass, and stores them in the problem.
  template <class P, class Tensors>
  void read_attention(P& p, const Tensors& tensors) const {
    require(static_cast<bool>(tensors.v), op_, ": v is missing");
    read_sizes(p, tensors.q, tensors.k, tensors.v);
    read_options(p);
    read_relative_bias(p);
    expect(tensors.out, appended(p.lead, {p.heads, p.queries, p.v_width}), p.dtype, "out", "[*,N,T,V]");
    p.q = tensors.q, p.k = tensors.k, p.v = tensors.v, p.out = tensors.out;
    p.lse = tensors.lse ? tensors.lse.unsqueeze(-1) : tensors.lse;
  }

  // Does the work of read_attention() for passes that compute derivatives. These passes need k and v in the dtype of q, and lse.
  template <class P, class Tensors>
  void read_differentiable(P& p, const Tensors& tensors) const {
    read_attention(p, tensors);
    require(p.key_dtype == p.dtype, op_, ": k and v are ", p.key_dtype, " and q is ", p.dtype, "; derivatives need one dtype");
    expect_lse(p, tensors.lse);
  }

  // Checks gradients or tangents against the arguments that they belong to. Messages call them `prefix` + the name of the argument.
  template <class Tensors, class Gradients>
  void expect_gradients(std::string_view prefix, const Tensors& tensors, const Gradients& gradients) const {
    const AllDifferentiable all = all_differentiable(tensors, options_);
    auto of = all.begin();
    visit_gradients(gradients, [&](const char* name, const ConstTensorView& view) {
      const auto& [argument, given] = *of++;
      if (!view) return;
      require(static_cast<bool>(given), op_, ": ", OperandName(prefix, name), " is given without a ", name);
      expect(view, given.shape(), given.dtype(), {prefix, name}, {"the shape of ", argument});
    });
  }

  // Checks tangents, and adds them to the inputs that no output may overlap. Messages call them `prefix` + the name of the argument.
  template <class Tensors>
  Tangents read_tangents(const Problem& p, const Tensors& tensors, const SdpaTangents& tangents, std::string_view prefix, std::vector<Operand>& inputs) const {
    expect_gradients(prefix, tensors, tangents);
    visit_gradients(tangents, [&](const char* name, const ConstTensorView& view) {
      if (view) inputs.push_back({{prefix, name}, view});
    });
    const auto& [named, q, k, v, bias, relative_bias, sink] = tangents;
    Tangents result{.q = q, .k = k, .v = v, .bias = {}, .relative_bias = {}, .sink = {}};
    if (bias) result.bias = bias.expand(appended(p.lead, {p.heads, p.queries, p.keys}));
    // The bias is linear in slopes and table, so the tangent of the bias follows from the tangent of slopes or table by the same formula.
    if (relative_bias) {
      RelativeBias moved = options_.relative_bias;
      (moved.slopes ? moved.slopes : moved.table) = relative_bias;
      memory_.relative_bias_tangent = relative_bias_values(moved, memory_.distances, accumulation_dtype(p.dtype));
      result.relative_bias = memory_.relative_bias_tangent;
    }
    if (sink) result.sink = read_rows_of_logits(p, sink, memory_.sink_tangent, "the tangent of sink");
    return result;
  }

  // Sets the sizes from q, k and, if given, v.
  void read_sizes(Problem& p, const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v) const {
    require(static_cast<bool>(q), op_, ": q is missing");
    require(static_cast<bool>(k), op_, ": k is missing");
    require(q.rank() >= 3, op_, ": q is ", q.shape(), "; it must be [*,N,T,H], three dimensions or more");
    require(q.rank() + 1 <= kMaxRank, op_, ": q has ", q.rank(), " dimensions; at most ", kMaxRank - 1, " are allowed");
    require(is_floating(q.dtype()), op_, ": q is ", q.dtype(), "; it must be float32, float64, bfloat16 or float16");
    p.dtype = q.dtype();
    p.lead = q.shape().first(q.rank() - 3);
    p.batch = numel(p.lead);
    p.heads = q.extent(-3);
    p.queries = q.extent(-2);
    p.qk_width = q.extent(-1);
    read_key_value(p, q, k, "k");
    require(may_store_keys(q.dtype(), k.dtype()), op_, ": k is ", k.dtype(), " and q is ", q.dtype(), "; k and v have ", kKeyStorage);
    p.key_dtype = k.dtype();
    p.kv_heads = k.extent(-3);
    p.keys = k.extent(-2);
    numel(appended(p.lead, {p.heads})), numel(appended(p.lead, {p.kv_heads}));  // numel() throws an Error if the number of heads of all sequences overflows
    require(k.extent(-1) == p.qk_width, op_, ": k is ", k.shape(), "; its last extent must be H = ", p.qk_width, ", as in q ", q.shape());
    require(p.kv_heads > 0 ? p.heads % p.kv_heads == 0 : p.heads == 0, op_, ": q has ", p.heads, " heads and k has ", p.kv_heads,
            "; the number of query heads must be a multiple of the number of key/value heads");
    if (!v) return;
    read_key_value(p, q, v, "v");
    require(v.dtype() == k.dtype(), op_, ": v is ", v.dtype(), " and k is ", k.dtype(), "; they must agree");
    require(v.extent(-3) == p.kv_heads && v.extent(-2) == p.keys, op_, ": v is ", v.shape(), "; it must have K = ", p.kv_heads,
            " heads and S = ", p.keys, " keys, as k ", k.shape());
    p.v_width = v.extent(-1);
  }

  // Checks and sets all options except the values of a relative bias.
  void read_options(Problem& p) const {
    // This call refuses an executor without threads before anything is written.
    (void)threads_of(options_.executor, op_);
    p.executor = options_.executor;
    p.workspace = options_.workspace;
    p.empty_rows = options_.empty_rows;
    p.scale = options_.scale.value_or(p.qk_width > 0 ? 1 / std::sqrt(static_cast<double>(p.qk_width)) : 1.0);
    require(std::isfinite(p.scale), op_, ": scale is ", p.scale, "; it must be finite");
    p.softcap = options_.softcap;
    p.score_rule = options_.score_rule;
    p.native = options_.precision == Precision::native && p.dtype == DType::bf16 && p.key_dtype == DType::bf16 && !p.score_rule;
    require(p.score_rule || p.score_rule.backward == nullptr, op_, ": score_rule has a backward function and no forward function");
    require(p.score_rule || p.score_rule.data == nullptr, op_, ": score_rule has data and no forward function, which would read it");
    require(p.score_rule || p.score_rule.gradient_count <= 0, op_, ": score_rule.gradient_count is ", p.score_rule.gradient_count, " and score_rule has no forward function");
    require(p.score_rule.gradient_count >= 0, op_, ": score_rule.gradient_count is ", p.score_rule.gradient_count, "; it must not be negative");
    require(std::isfinite(p.softcap) && p.softcap >= 0, op_, ": softcap is ", p.softcap, "; it must be finite and not negative (0 is off)");
    p.bias = read_pairs(p, options_.bias, "bias", p.dtype);
    p.sink = read_sink(p);
    read_key_rules(p);
    check_relative_bias(p);
    p.rules = &rules_;
    p.documents = rules_.all_documents();
    const Dropout& dropout = options_.dropout;
    require(dropout.p >= 0 && dropout.p <= 1, op_, ": the dropout probability is ", dropout.p, "; it must lie in [0,1]");
    require(dropout.p == 0 || dropout.seed || dropout.keep, op_, ": dropout ", dropout.p,
            " needs a seed, the same in the forward pass, the backward pass and maps, or the bits to keep");
    require(dropout.p > 0 || !dropout.keep, op_, ": dropout.keep is given and the dropout probability is 0: nothing is dropped");
    p.dropout = {dropout.p, dropout.seed.value_or(0), read_pairs(p, dropout.keep, "dropout.keep", DType::boolean)};
  }

  void read_relative_bias(Problem& p) const {
    if (!options_.relative_bias) return;
    if (p.batch > 0 && p.heads > 0 && p.queries > 0 && p.keys > 0) memory_.distances = find_distances(rules_, p.queries, p.keys);
    memory_.relative_bias = relative_bias_values(options_.relative_bias, memory_.distances, accumulation_dtype(p.dtype));
    p.relative_bias = memory_.relative_bias;
  }

  void expect(const ConstTensorView& view, const Shape& wanted, DType dtype, const OperandName& name, const OperandName& letters) const {
    require(static_cast<bool>(view), op_, ": ", name, " is missing");
    require(view.shape() == wanted, op_, ": ", name, " is ", view.shape(), "; it must be ", letters, " = ", wanted);
    require(view.dtype() == dtype, op_, ": ", name, " is ", view.dtype(), "; it must be ", dtype);
  }

  // Checks the scales of k or v, and returns them as [*,K,S,1].
  ConstTensorView read_scales(const Problem& p, const ConstTensorView& scale, const char* of, const char* name) const {
    if (p.key_dtype == DType::i8) {
      require(static_cast<bool>(scale), op_, ": ", of, " is int8 and ", name,
              " is missing; int8 needs a scale for each token and key/value head, [*,K,S]");
      expect(scale, appended(p.lead, {p.kv_heads, p.keys}), DType::f32, name, "[*,K,S]");
      return scale.unsqueeze(-1);
    }
    require(!scale, op_, ": ", name, " is given and ", of, " is ", p.key_dtype, "; only int8 has scales");
    return {};
  }

  void expect_lse(const Problem& p, const ConstTensorView& lse) const {
    expect(lse, appended(p.lead, {p.heads, p.queries}), accumulation_dtype(p.dtype), "lse", "[*,N,T]");
  }

 private:
  void read_key_value(const Problem& p, const ConstTensorView& q, const ConstTensorView& x, const char* name) const {
    require(x.rank() == q.rank() && x.shape().first(p.lead.size()) == p.lead, op_, ": ", name, " is ", x.shape(),
            "; its leading dimensions must be ", p.lead, ", as in q ", q.shape());
  }

  ConstTensorView broadcast(const ConstTensorView& view, const Shape& to, const char* name, const char* letters) const {
    bool fits = view.rank() <= to.size();
    for (int from_end = 1; fits && from_end <= view.rank(); ++from_end) {
      const std::int64_t extent = view.extent(-from_end);
      fits = extent == 1 || extent == to[-from_end];
    }
    require(fits, op_, ": ", name, " is ", view.shape(), "; it must broadcast to ", letters, " = ", to);
    return view.expand(to);
  }

  // Checks a tensor with an element for each pair of query and key, and returns it broadcast to [*,N,T,S].
  ConstTensorView read_pairs(const Problem& p, const ConstTensorView& view, const char* name, DType dtype) const {
    if (!view) return {};
    require(view.dtype() == dtype, op_, ": ", name, " is ", view.dtype(), "; it must be ", dtype);
    return broadcast(view, appended(p.lead, {p.heads, p.queries, p.keys}), name, "[*,N,T,S]");
  }

  // Returns the sink logits as [*,N,T,1] in the dtype of lse.
  ConstTensorView read_sink(const Problem& p) const {
    const ConstTensorView& given = options_.sink;
    if (!given) return {};
    const DType dtype = accumulation_dtype(p.dtype);
    require(given.dtype() == p.dtype || given.dtype() == dtype, op_, ": sink is ", given.dtype(), "; it must be ", p.dtype, " as q",
            p.dtype == dtype ? std::string() : cat(", or ", dtype));
    require(p.empty_rows == EmptyRows::zero, op_, ": sink cannot be combined with empty_rows ", word_of(p.empty_rows),
            ": that mode lets a row whose keys are all masked attend to its keys, but with a sink the sink has the whole weight of such a row; use zero");
    require(given.rank() != 1 || given.extent(0) == p.heads, op_, ": sink is ", given.shape(), "; with one dimension it must be [N] = [", p.heads, "]");
    return read_rows_of_logits(p, given, memory_.sink, "sink");
  }

  // Returns sink logits or their tangents as [*,N,T,1] in the dtype of lse. If `given` has another dtype, it is converted and stored in `copy`.
  ConstTensorView read_rows_of_logits(const Problem& p, const ConstTensorView& given, Tensor& copy, const char* name) const {
    const DType dtype = accumulation_dtype(p.dtype);
    if (given.dtype() != dtype) copy = Tensor::copy_of(given, dtype);
    const ConstTensorView logits = given.dtype() == dtype ? given : ConstTensorView(copy);
    return broadcast(rows_of_sink(logits), appended(p.lead, {p.heads, p.queries}), name, "[*,N,T]").unsqueeze(-1);
  }

  void read_key_rules(const Problem& p) const {
    const Mask& mask = options_.mask;
    rules_.queries = p.queries;
    rules_.all_pairs = {.queries = {0, p.queries}, .keys = {0, p.keys}};
    if (mask.query_offsets || mask.key_offsets) rules_.documents = read_documents(p);
    rules_.banded = mask.causal || mask.window.left || mask.window.right;
    read_bands();
    if (mask.diagonal_offsets) read_bands_of_sequences(p);
    read_ranges(p);
    read_booleans(p, mask.attend, mask.block, "attend", "block", false);
    read_booleans(p, mask.attend_keys, mask.block_keys, "attend_keys", "block_keys", true);
    if (mask.blocks.lists) {
      read_listed_blocks(p);
    } else {
      const BlockSize& size = mask.blocks.size;
      require(size.queries == BlockSize().queries && size.keys == BlockSize().keys, op_, ": blocks.size is ", size.queries, " x ", size.keys,
              " without blocks.lists, which say the blocks that may be attended to");
    }
  }

  // Writes one byte for each block of queries and block of keys: whether the block is listed. Sequences and heads that share their lists share the bytes.
  void read_listed_blocks(const Problem& p) const {
    ConstTensorView lists = options_.mask.blocks.lists;
    const BlockSize& size = options_.mask.blocks.size;
    require(is_integer(lists.dtype()), op_, ": blocks is ", lists.dtype(), "; indices of blocks are integers");
    require(size.queries > 0 && size.keys > 0, op_, ": the block size is ", size.queries, " queries and ", size.keys, " keys; both must be at least 1");
    const auto blocks_of = [](std::int64_t extent, std::int64_t block) { return extent / block + (extent % block != 0); };
    const std::int64_t rows = blocks_of(p.queries, size.queries), columns = blocks_of(p.keys, size.keys);
    require(lists.rank() >= 2 && lists.extent(-2) == rows, op_, ": blocks is ", lists.shape(), "; it must broadcast to [*,N,Tb,count], with Tb = ", rows,
            " blocks of ", size.queries, " queries");
    const std::int64_t count = lists.extent(-1);
    broadcast(lists, appended(p.lead, {p.heads, rows, count}), "blocks", "[*,N,Tb,count]");
    for (int axis = 0; axis < lists.rank() - 2; ++axis) {
      if (lists.stride(axis) == 0 && lists.extent(axis) > 1) lists = lists.slice(axis, 0, 1);
    }
    Shape listed = lists.shape();
    listed[-1] = columns;
    memory_.listed_blocks = Tensor(DType::boolean, listed);
    std::uint8_t* row = static_cast<std::uint8_t*>(memory_.listed_blocks.view().data());
    std::int64_t left = count;  // number of entries left in the list of `row`
    for_each_integer(lists, [&](auto block) {
      if (left == 0) row += columns, left = count;
      --left;
      if (std::cmp_equal(block, -1)) return;
      require(std::cmp_greater_equal(block, 0) && std::cmp_less(block, columns), op_, ": blocks lists block ", block, "; there are ", columns, " blocks of ",
              size.keys, " keys, and -1 is none");
      row[static_cast<std::int64_t>(block)] = 1;
    });
    rules_.add({ConstTensorView(memory_.listed_blocks).expand(appended(p.lead, {p.heads, rows, columns})), true, size});
  }

  void read_booleans(const Problem& p, const ConstTensorView& attend, const ConstTensorView& block, const char* attend_name,
                const char* block_name, bool keys) const {
    require(!attend || !block, op_, ": ", attend_name, " and ", block_name, " are both given; only one of them may be");
    if (!attend && !block) return;
    const ConstTensorView& view = attend ? attend : block;
    const char* name = attend ? attend_name : block_name;
    require(view.dtype() == DType::boolean, op_, ": ", name, " is ", view.dtype(), "; it must be bool");
    if (!keys) return rules_.add({read_pairs(p, view, name, DType::boolean), static_cast<bool>(attend)});
    const ConstTensorView per_key = broadcast(view, appended(p.lead, {p.keys}), name, "[*,S]");
    rules_.add({per_key.unsqueeze(-2).unsqueeze(-2).expand(appended(p.lead, {p.heads, p.queries, p.keys})), static_cast<bool>(attend)});
  }

  __extension__ using Wide = __int128;  // adding an offset of the caller may need more than 64 bits

  // Combines the causal diagonal and the window to one band of keys for each document.
  void read_bands() const {
    const Mask& mask = options_.mask;
    const Window& window = mask.window;
    require(!window.left || *window.left >= 0, op_, ": window.left is ", window.left.value_or(0), "; it must not be negative");
    require(!window.right || *window.right >= 0, op_, ": window.right is ", window.right.value_or(0), "; it must not be negative");
    require_no_shift("causal", mask.causal), require_no_shift("window.diagonal", window.diagonal), require_no_shift("relative_bias.diagonal", options_.relative_bias.diagonal);
    require(window.left || window.right || !window.diagonal || mask.causal || options_.relative_bias, op_,
            ": window has a diagonal and neither left nor right, which are measured from the diagonal");
    require(!mask.causal || !window.diagonal || *mask.causal == *window.diagonal, op_,
            ": the causal and the window's diagonal differ; a window is measured from the causal diagonal");
    const std::optional<Diagonal>& of_bias = options_.relative_bias.diagonal;
    const bool of_mask = mask.causal || window.left || window.right || window.diagonal;
    const Diagonal diagonal = mask.causal ? *mask.causal
                              : of_mask   ? window.diagonal.value_or(Diagonal::bottom_right())
                                          : of_bias.value_or(Diagonal::bottom_right());
    require(!of_bias || *of_bias == diagonal, op_,
            ": the diagonal of relative_bias and that of the mask differ; distances are measured from the diagonal of the mask");
    const auto set_band = [&](Document& d) {
      const std::int64_t queries = d.queries.last - d.queries.first, keys = d.keys.last - d.keys.first;
      const Wide offset = diagonal.resolve(queries, keys);
      d.band = band(offset, queries, keys);
    };
    set_band(rules_.all_pairs);
    for (Document& document : rules_.documents) set_band(document);
  }

  // Error if a shift is given with another diagonal than Diagonal::offset(), because only this diagonal reads the shift.
  void require_no_shift(const char* name, const std::optional<Diagonal>& given) const {
    require(!given || given->shift == 0 || given->corner == Diagonal::Corner::offset, op_, ": ", name, " is ",
            given && given->corner == Diagonal::Corner::top_left ? "top_left" : "bottom_right", " with a shift of ", given ? given->shift : 0,
            "; a corner has a shift of 0, and Diagonal::offset gives any other diagonal");
  }

  Band band(Wide offset, std::int64_t queries, std::int64_t keys) const {
    const Mask& mask = options_.mask;
    const Window& window = mask.window;
    const auto cut = [&](Wide x) { return static_cast<std::int64_t>(std::min<Wide>(std::max<Wide>(x, -Wide{queries}), keys)); };
    // The limit of 2^62 changes no result: only a relative bias reads Band::diagonal, and check_relative_bias() refuses offsets beyond 2^53.
    const Wide limit = Wide{1} << 62;
    Band band{.lower = -queries, .upper = keys, .diagonal = static_cast<std::int64_t>(std::clamp<Wide>(offset, -limit, limit))};
    if (window.left) band.lower = cut(offset - *window.left);
    if (window.right) band.upper = cut(offset + *window.right + 1);
    if (mask.causal) band.upper = std::min(band.upper, cut(offset + 1));
    return band;
  }

  // Finds the band of each sequence from its diagonal_offsets.
  void read_bands_of_sequences(const Problem& p) const {
    const Mask& mask = options_.mask;
    const ConstTensorView& view = mask.diagonal_offsets;
    require(is_integer(view.dtype()), op_, ": diagonal_offsets is ", view.dtype(), "; offsets are integers");
    require(view.shape() == p.lead, op_, ": diagonal_offsets is ", view.shape(), "; it must be [*] = ", p.lead, ", one for each sequence");
    require(rules_.banded || options_.relative_bias, op_,
            ": diagonal_offsets is given without causal, a window or a relative bias, whose diagonal it moves");
    require(!mask.query_offsets && !mask.key_offsets, op_,
            ": diagonal_offsets cannot be combined with documents (query_offsets); each document has a diagonal of its own already");
    require(!mask.causal || *mask.causal == Causal::top_left(), op_,
            ": diagonal_offsets cannot be combined with a causal diagonal that is not top_left; give only one of the two, because each sets the diagonal");
    require(!mask.window.diagonal, op_, ": diagonal_offsets cannot be combined with a diagonal of the window; give only one of the two, because each sets the diagonal");
    require(!options_.relative_bias.diagonal, op_,
            ": diagonal_offsets cannot be combined with a diagonal of relative_bias; give only one of the two, because each sets the diagonal");
    Band& all = rules_.all_pairs.band;
    all.lower = p.keys, all.upper = -p.queries;  // begin with an empty band, which the loop extends to enclose the band of every sequence
    for_each_integer(view, [&](auto offset) {
      const Band& own = rules_.bands.emplace_back(band(offset, p.queries, p.keys));
      all.lower = std::min(all.lower, own.lower), all.upper = std::max(all.upper, own.upper);
    });
  }

  void check_relative_bias(const Problem& p) const {
    const RelativeBias& given = options_.relative_bias;
    require(given || !given.diagonal, op_, ": relative_bias has a diagonal and neither slopes nor a table");
    const RelativeBias usual;
    require(given.table || given.bidirectional == usual.bidirectional, op_, ": relative_bias.bidirectional is false without a table, whose buckets it describes");
    require(given.table || given.max_distance == usual.max_distance, op_, ": relative_bias.max_distance is ", given.max_distance,
            " without a table, whose buckets it describes");
    if (!given) return;
    require(!given.slopes || !given.table, op_, ": relative_bias has slopes and a table; only one of them may be given");
    require(!options_.bias, op_, ": bias and relative_bias are both given; only one of them may be. To use both, add them in a bias [*,N,T,S]");
    const ConstTensorView& view = given.parameter();
    const char* const name = given.slopes ? "relative_bias.slopes" : "relative_bias.table";
    const DType dtype = accumulation_dtype(p.dtype);
    require(view.dtype() == p.dtype || view.dtype() == dtype, op_, ": ", name, " is ", view.dtype(), "; it must be ", p.dtype, " as q",
            p.dtype == dtype ? std::string() : cat(", or ", dtype));
    require(view.rank() == (given.slopes ? 1 : 2) && view.extent(0) == p.heads, op_, ": ", name, " is ", view.shape(), "; it must be ",
            given.slopes ? "[N] = [" : "[N,buckets] = [", p.heads, given.slopes ? "]" : ",buckets]");
    const std::string fault = given.table ? bucket_fault(given.table.extent(1), given.bidirectional, given.max_distance) : std::string();
    require(fault.empty(), op_, ": relative_bias.table has ", fault);
    constexpr std::int64_t kFarthest = std::int64_t{1} << 53;
    const auto near = [&](const Band& band) {
      require(-kFarthest <= band.diagonal && band.diagonal <= kFarthest, op_,
              ": a diagonal offset is beyond 2^53, where a relative bias cannot tell distances apart");
    };
    for (const Band& band : rules_.bands) near(band);
    if (rules_.bands.empty()) near(rules_.all_pairs.band);
  }

  std::vector<Document> read_documents(const Problem& p) const {
    const ConstTensorView &of_queries = options_.mask.query_offsets, &of_keys = options_.mask.key_offsets;
    require(static_cast<bool>(of_queries), op_, ": key_offsets is given without query_offsets, which cut the queries into documents");
    require(of_keys || p.queries == p.keys, op_, ": query_offsets is given without key_offsets; that needs T = S, and T is ", p.queries,
            " and S is ", p.keys);
    const std::vector<std::int64_t> queries = offsets(of_queries, "query_offsets", p.queries, 'T');
    const std::vector<std::int64_t> keys = of_keys ? offsets(of_keys, "key_offsets", p.keys, 'S') : queries;
    require(queries.size() == keys.size(), op_, ": query_offsets is ", of_queries.shape(), " and key_offsets is ", of_keys.shape(),
            "; both must be [D+1] for the same number D of documents");
    std::vector<Document> documents;
    for (std::size_t d = 0; d + 1 < queries.size(); ++d) {
      documents.push_back({.queries = {queries[d], queries[d + 1]}, .keys = {keys[d], keys[d + 1]}});
    }
    return documents;
  }

  std::vector<std::int64_t> offsets(const ConstTensorView& view, const char* name, std::int64_t end, char letter) const {
    require(is_integer(view.dtype()), op_, ": ", name, " is ", view.dtype(), "; offsets are integers");
    require(view.rank() == 1 && view.numel() > 0, op_, ": ", name, " is ", view.shape(), "; it must be [D+1] for D documents");
    std::vector<std::int64_t> result;
    for_each_integer(view, [&](auto offset) {
      const std::int64_t least = result.empty() ? 0 : result.back();
      require(!result.empty() || offset == 0, op_, ": ", name, " begins with ", offset, "; it must begin with 0");
      require(std::cmp_greater_equal(offset, least), op_, ": ", name, " falls from ", least, " to ", offset, "; offsets never fall");
      require(std::cmp_less_equal(offset, end), op_, ": ", name, " reaches ", offset, "; it must end at ", letter, " = ", end);
      result.push_back(static_cast<std::int64_t>(offset));
    });
    require(result.back() == end, op_, ": ", name, " ends at ", result.back(), "; it must end at ", letter, " = ", end);
    return result;
  }

  // Combines key_starts and key_lengths to one range of keys for each sequence, or for each query of each sequence.
  void read_ranges(const Problem& p) const {
    const Mask& mask = options_.mask;
    if (!mask.key_starts && !mask.key_lengths) return;
    for (const ConstTensorView& view : {mask.key_starts, mask.key_lengths}) rules_.range_per_query |= view && view.rank() == p.lead.size() + 1;
    rules_.ranges.assign(static_cast<std::size_t>(rules_.range_per_query ? numel(appended(p.lead, {p.queries})) : p.batch), {0, p.keys});
    read_bound(p, mask.key_starts, "key_starts", "start", &KeyRange::first);
    read_bound(p, mask.key_lengths, "key_lengths", "length", &KeyRange::last);
  }

  // Checks key_starts or key_lengths, and writes its numbers to the member `end` of the ranges. `word` is what messages call a number.
  void read_bound(const Problem& p, const ConstTensorView& view, const char* name, const char* word, std::int64_t KeyRange::* end) const {
    if (!view) return;
    require(is_integer(view.dtype()), op_, ": ", name, " is ", view.dtype(), "; ", word, "s are integers");
    const bool per_query = view.rank() == p.lead.size() + 1;
    const Shape of_queries = appended(p.lead, {p.queries});
    require(view.shape() == (per_query ? of_queries : p.lead), op_, ": ", name, " is ", view.shape(), "; it must be [*] = ", p.lead, " or [*,T] = ", of_queries);
    const auto documents = static_cast<std::int64_t>(rules_.documents.size());
    require(documents < 2 || view.shape() != Shape{documents}, op_, ": ", name, " is ", view.shape(), " for ", documents,
            " documents and as many sequences, and could belong to either; give a ", word, " for each query, [*,T]");
    const std::int64_t ranges_of_number = rules_.range_per_query && !per_query ? p.queries : 1;
    const bool is_start = end == &KeyRange::first;  // a start may be larger than the number of keys that a cache holds so far
    auto range = rules_.ranges.begin();
    for_each_integer(view, [&](auto number) {
      require(!is_start || std::cmp_greater_equal(number, 0), op_, ": a key ", word, " is ", number, "; it must be 0 or more");
      require(is_start || (std::cmp_greater_equal(number, 0) && std::cmp_less_equal(number, p.keys)), op_, ": a key ", word, " is ", number, "; it must lie in [0,S] = [0,", p.keys, "]");
      for (std::int64_t i = 0; i < ranges_of_number; ++i) (*range++).*end = std::cmp_less(number, p.keys) ? static_cast<std::int64_t>(number) : p.keys;
    });
  }

  template <class F>
  static void for_each_integer(const ConstTensorView& view, const F& f) {
    dispatch_any(view.dtype(), [&](auto type) {
      using T = typename decltype(type)::type;
      if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
        const T* data = view.data<T>();
        for_each_offset<1>(view.shape(), {view.strides()}, [&](const auto& at) { f(data[at[0]]); });
      }
    });
  }

  const char* op_;
  const SdpaOptions& options_;
  KeyRules& rules_;
  ProblemMemory& memory_;
};

}  // namespace

bool may_store_keys(DType q, DType k) { return k == q || (q != DType::f64 && (k == DType::bf16 || k == DType::f16 || k == DType::i8)); }

void add_option_tensors(const SdpaOptions& options, std::vector<Operand>& inputs) {
  visit_arguments(options, TensorArguments{[&](const Argument& argument, const ConstTensorView& view) {
    if (view) inputs.push_back({argument.path(), view});
  }});
}

ForwardProblem normal_form(const SdpaForward& tensors, const SdpaOptions& options, const char* operation, ProblemMemory& memory) {
  const ArgumentReader reader(operation, options, memory);
  ForwardProblem p;
  reader.read_attention(p, tensors);
  p.k_scale = reader.read_scales(p, tensors.k_scale, "k", "k_scale"), p.v_scale = reader.read_scales(p, tensors.v_scale, "v", "v_scale");
  if (tensors.lse) reader.expect_lse(p, tensors.lse);
  if (tensors.attention_weights) reader.expect(tensors.attention_weights, appended(p.lead, {p.heads, p.queries, p.keys}), p.dtype, "attention_weights", "[*,N,T,S]");
  std::vector<Operand> inputs{
      {"q", tensors.q}, {"k", tensors.k}, {"v", tensors.v}, {"k_scale", tensors.k_scale}, {"v_scale", tensors.v_scale}};
  add_option_tensors(options, inputs);
  const Operand outputs[] = {{"out", tensors.out}, {"lse", tensors.lse}, {"attention_weights", tensors.attention_weights}};
  require_no_overlap(operation, outputs, inputs);
  p.attention_weights = tensors.attention_weights;
  return p;
}

namespace {

// Checks the arguments of sdpa_backward() or sdpa_backward_backward(). Both read out, lse and d_out, and write gradients.
template <class P, class Tensors>
void backward_form(const ArgumentReader& reader, const Tensors& tensors, P& p) {
  reader.read_differentiable(p, tensors);
  reader.expect(tensors.d_out, tensors.out.shape(), p.dtype, "d_out", "[*,N,T,V]");
  reader.expect_gradients("d_", tensors, tensors);
  if (tensors.d_bias) {
    p.d_bias_given = tensors.d_bias;
    p.d_bias = tensors.d_bias.expand(appended(p.lead, {p.heads, p.queries, p.keys}));
  }
  p.d_out = tensors.d_out, p.d_q = tensors.d_q, p.d_k = tensors.d_k, p.d_v = tensors.d_v;
}

template <class Tensors>
std::vector<Operand> inputs_of(const Tensors& tensors, const SdpaOptions& options) {
  std::vector<Operand> inputs{{"q", tensors.q}, {"k", tensors.k}, {"v", tensors.v}, {"out", tensors.out}, {"lse", tensors.lse}};
  add_option_tensors(options, inputs);
  return inputs;
}

template <class Tensors>
std::vector<Operand> gradients_of(const Tensors& tensors) {
  std::vector<Operand> gradients;
  gradients.reserve(kGradientNames.size() + 1);
  visit_gradients(tensors, [&](const char* name, const TensorView& view) {
    const bool of_option = gradients.size() >= kInputGradients;
    // true for options: elements of their gradients may share memory, because options may be broadcast
    gradients.push_back({{"d_", name}, view, of_option});
  });
  return gradients;
}

// Refuses a score rule in sdpa_jvp() and sdpa_backward_backward(), because these would need further derivatives of the caller's functions.
void refuse_score_rule(const char* operation, const SdpaOptions& options) {
  if (options.score_rule) fail(ErrorCode::unsupported, operation, ": score_rule is given; its backward function computes only first derivatives, in reverse mode");
}

}  // namespace

BackwardProblem normal_form(const SdpaBackward& tensors, const SdpaOptions& options, ProblemMemory& memory) {
  const char* operation = "sdpa_backward";
  BackwardProblem p;
  const ArgumentReader reader(operation, options, memory);
  backward_form(reader, tensors, p);
  require(!p.score_rule || p.score_rule.backward != nullptr, operation, ": score_rule has no backward function");
  if (tensors.d_score_rule) {
    require(static_cast<bool>(p.score_rule), operation, ": d_score_rule is given without a score_rule");
    reader.expect(tensors.d_score_rule, {p.heads, p.score_rule.gradient_count}, DType::f64, "d_score_rule", "[N,score_rule.gradient_count]");
  }
  std::vector<Operand> inputs = inputs_of(tensors, options);
  inputs.push_back({"d_out", tensors.d_out});
  std::vector<Operand> outputs = gradients_of(tensors);
  outputs.push_back({"d_score_rule", tensors.d_score_rule});
  require_no_overlap(operation, outputs, inputs);
  return p;
}

JvpProblem normal_form(const SdpaJvp& tensors, const SdpaOptions& options, ProblemMemory& memory) {
  const char* operation = "sdpa_jvp";
  refuse_score_rule(operation, options);
  const ArgumentReader reader(operation, options, memory);
  JvpProblem p;
  reader.read_differentiable(p, tensors);
  p.native = false;
  std::vector<Operand> inputs = inputs_of(tensors, options);
  p.tangents = reader.read_tangents(p, tensors, tensors.tangents, "tangents.", inputs);
  reader.expect(tensors.out_tangent, tensors.out.shape(), p.dtype, "out_tangent", "[*,N,T,V]");
  if (tensors.lse_tangent) reader.expect(tensors.lse_tangent, tensors.lse.shape(), tensors.lse.dtype(), "lse_tangent", "[*,N,T]");
  p.out_tangent = tensors.out_tangent;
  p.lse_tangent = tensors.lse_tangent ? tensors.lse_tangent.unsqueeze(-1) : tensors.lse_tangent;
  const Operand outputs[] = {{"out_tangent", tensors.out_tangent}, {"lse_tangent", tensors.lse_tangent}};
  require_no_overlap(operation, outputs, inputs);
  return p;
}

BackwardBackwardProblem normal_form(const SdpaBackwardBackward& tensors, const SdpaOptions& options, ProblemMemory& memory) {
  const char* operation = "sdpa_backward_backward";
  refuse_score_rule(operation, options);
  const ArgumentReader reader(operation, options, memory);
  BackwardBackwardProblem p;
  backward_form(reader, tensors, p);
  p.native = false;
  std::vector<Operand> inputs = inputs_of(tensors, options), outputs = gradients_of(tensors);
  inputs.push_back({"d_out", tensors.d_out});
  p.tangents = reader.read_tangents(p, tensors, tensors.d_gradients, "d_gradients.", inputs);
  if (tensors.d_d_out) reader.expect(tensors.d_d_out, tensors.out.shape(), p.dtype, "d_d_out", "[*,N,T,V]");
  p.d_d_out = tensors.d_d_out;
  outputs.push_back({"d_d_out", tensors.d_d_out});
  require_no_overlap(operation, outputs, inputs);
  return p;
}

MapsProblem normal_form(const MapsInput& input, const SdpaOptions& options, MapValue value, const char* operation, ProblemMemory& memory) {
  const ArgumentReader reader(operation, options, memory);
  MapsProblem p;
  reader.read_sizes(p, input.q, input.k, {});
  reader.read_options(p);
  reader.read_relative_bias(p);
  p.q = input.q;
  p.k = input.k;
  p.k_scale = reader.read_scales(p, input.k_scale, "k", "k_scale");
  p.value = value;
  p.native = false;  // maps are computed with exact products, whatever options.precision is
  return p;
}

void require_options(const MapsInput& input, const SdpaOptions& options, const char* operation) {
  ProblemMemory memory;
  const ArgumentReader reader(operation, options, memory);
  MapsProblem p;
  reader.read_sizes(p, input.q, input.k, {});
  reader.read_options(p);
}

}  // namespace polyhead
