#include "map_results.h"

#include <functional>
#include <memory>

#include "arguments.h"
#include "core/index.h"
#include "core/option_words.h"
#include "format.h"
#include "parser.h"
#include "polyhead/nn/value_norms.h"
#include "terminal.h"

namespace polyhead::app {
namespace {

constexpr const char* kKeySets = "key_sets";

std::array<std::int64_t, 2> read_pooled(const std::string& word) {
  const std::size_t comma = word.find(',');
  if (comma == std::string::npos) throw UsageError(cat("'", word, "' is not a size; give HEIGHT,WIDTH, such as 64,64"));
  return {read_positive(word.substr(0, comma)), read_positive(word.substr(comma + 1))};
}

std::array<std::int64_t, 2> read_map_window(const std::string& word) {
  const std::size_t comma = std::min(word.find(','), word.size());
  const auto first = parse<std::int64_t>(word.substr(0, comma)), last = parse<std::int64_t>(std::string_view(word).substr(std::min(comma + 1, word.size())));
  if (!first || !last || *first > *last) throw UsageError(cat("'", word, "' is not a band; give FIRST,LAST, the distances from a query to its first and its last key, such as -2,0"));
  return {*first, *last};
}

Pooling read_pooling(const std::string& word) { return read_enum<Pooling>(word, "kind of pooling", kPoolingWords); }

std::vector<IndexList> read_key_sets(const std::string& word) {
  return word.empty() || word == "true" ? std::vector<IndexList>() : read_index_lists(word);  // --key-mass was given without a value
}

// The key sets as booleans [M,S]. They are made from the lists; if there are no lists, they are the tensor key_sets of the input file.
Tensor key_sets_of(const std::vector<IndexList>& lists, std::int64_t keys, InputTensors* in) {
  if (lists.empty()) return in->required(kKeySets, "the sets of keys of --key-mass without a value");
  if (in->has(kKeySets)) throw UsageError("--key-mass: the input tensors have key_sets too; give the sets of keys once");
  Tensor sets(DType::boolean, {std::ssize(lists), keys});
  bool* set = sets.data<bool>();
  for (const IndexList& list : lists) {
    for (const std::int64_t s : indices(list, keys, "--key-mass", "key")) set[s] = true;
    set += keys;
  }
  return sets;
}

}  // namespace

void check_map_results(const MapResults& wanted) {
  if ((wanted.rows || wanted.keys) && !wanted.attention_weights) throw UsageError(cat(wanted.rows ? "--rows" : "--keys", " chooses a part of the attention weights; it needs --attention-weights"));
  if (wanted.by_norms && !wanted.attention_weights) throw UsageError("--weighting norm is for the attention weights; it needs --attention-weights");
}

void add_map_results(Parser& parser, MapResults* wanted, bool beside_output) {
  const std::string write = beside_output ? "also write " : "write ";
  parser.add_flag("--attention-weights", wanted->attention_weights, write + "attention_weights [*,N,T,S], before dropout" + (beside_output ? ", and lse [*,N,T]" : ""));
  add_value(parser, "--weighting", &wanted->by_norms, read_weighting, "attention|norm",
            std::string("norm: in place of attention_weights write norm_weighted_map, each attention weight times the norm of the value vector that it multiplies, transformed by the head's slice of the output "
            "projection (Kobayashi et al. 2020), and value_norms [*,N,S]") + (beside_output ? "; without --parameters" : ";") + " input tensors v [*,K,S,V] and output_weight [E,N*V]");
  add_value(parser, "--rows", &wanted->rows, read_index_list, "LIST", "write only the rows of attention_weights of these queries, such as 0,5,10:20 (10 to 19)");
  add_value(parser, "--keys", &wanted->keys, read_index_list, "LIST", "write only the columns of attention_weights of these keys; with --rows a rectangle or chosen rows and columns");
  add_value(parser, "--map-window", &wanted->window, read_map_window, "FIRST,LAST",
            write + "map_window [*,N,T,LAST-FIRST+1]: the attention weights of the keys t+FIRST to t+LAST of query t, 0 where there is no such key");
  add_value(parser, "--top-keys", &wanted->top_keys, read_count, "K",
            write + "top_keys and top_attention_weights [*,N,T,K]: the K keys with the largest attention weights, largest first");
  Option* pooled = add_value(parser, "--pooled-map", &wanted->pooled, read_pooled, "H,W", write + "pooled_map [*,N,H,W]: the mean attention weights of H x W blocks");
  add_value(parser, "--pooling", &wanted->pooling, read_pooling, "KIND", "which value of a block pooled_map has: mean, sum or largest (default: mean)")->needs(pooled);
  add_value(parser, "--key-mass", &wanted->key_mass, read_key_sets, "[SETS]",
            write + "key_mass [*,N,T,M]: how much each query attends to each of M sets of keys, such as 0;5:8,11 (two sets); without a value the sets "
            "are the boolean tensor key_sets, [S] or broadcasting to [*,M,S]")
      ->value_is_optional();
  parser.add_flag("--key-sums", wanted->key_sums, write + "key_sums [*,N,S]: how much each key is attended to, summed over the queries");
  parser.add_flag("--statistics", wanted->statistics,
                  write + "statistics.entropy (nats), .largest, .distance, .first_key, .previous_key, .same_key and .next_key [*,N]: means over the queries");
  parser.add_flag("--divergence", wanted->divergence, write + "head_divergence [*,N,N]: the Jensen-Shannon divergence of each two heads, in nats");
}

std::function<void(std::int64_t, std::int64_t)> progress_bar(std::string_view what) {
  return [what, bar = std::shared_ptr<Progress>()](std::int64_t done, std::int64_t total) mutable {
    if (!bar) bar = std::make_shared<Progress>(what, static_cast<std::size_t>(total));
    bar->show(static_cast<std::size_t>(done));
    if (done == total) bar.reset();
  };
}

Tensor norms_of_values(const Tensor& v, const Tensor& output_weight, const Shape& q) {
  require(v.view().rank() >= 3, "--weighting norm: v is ", v.shape(), "; it must be [*,K,S,V]");
  Shape shape = q.first(q.size() - 1);
  shape[-1] = v.extent(-2);
  Tensor norms(v.dtype(), shape);
  nn::value_norms(v, nn::Linear(Tensor::copy_of(output_weight), Tensor()), norms);
  return norms;
}

void append_map_results(const MapResults& wanted, MapsInput input, const SdpaOptions& options, const Shape& shape, ConstTensorView lse, ConstTensorView norms, InputTensors* in,
                        std::vector<io::NamedTensor>* results) {
  const std::int64_t queries = shape[-2], keys = shape[-1];
  const DType dtype = accumulation_dtype(input.q.dtype());
  input.progress = progress_bar("rows of attention maps");
  const Shape heads = shape.first(shape.size() - 2);
  const auto add = [&](std::string name, std::initializer_list<std::int64_t> rest) -> TensorView {
    return results->emplace_back(io::NamedTensor{std::move(name), Tensor(dtype, appended(heads, rest))}).tensor;
  };
  // Check all options before the first operation, because each operation may take minutes.
  if (wanted.top_keys && *wanted.top_keys > keys) throw UsageError(cat("--top-keys: ", *wanted.top_keys, " is too large; there are ", counted(keys, "key")));
  if (const auto& pooled = wanted.pooled; pooled && ((*pooled)[0] > queries || (*pooled)[1] > keys))
    throw UsageError(cat("--pooled-map: ", (*pooled)[0], ",", (*pooled)[1], " is too large; there are ", queries, " queries and ", counted(keys, "key")));
  if (const auto& window = wanted.window; window && ((*window)[0] < -queries - keys || (*window)[1] > queries + keys))
    throw UsageError(cat("--map-window: ", (*window)[0], ",", (*window)[1], " is too far from the diagonal; there are ", queries, " queries and ", counted(keys, "key")));
  if (norms) require(norms.extent(-1) == keys, "--weighting norm: v has ", norms.extent(-1), " keys and k has ", keys, "; these numbers must be equal");
  const IndexList all{{}};
  const std::vector<std::int64_t> rows = indices(wanted.rows.value_or(all), queries, "--rows", "row"), columns = indices(wanted.keys.value_or(all), keys, "--keys", "key");
  const Tensor key_sets = wanted.key_mass ? key_sets_of(*wanted.key_mass, keys, in) : Tensor();

  if (wanted.attention_weights) {
    const TensorView out = add(wanted.by_norms ? "norm_weighted_map" : "attention_weights", {std::ssize(rows), std::ssize(columns)});
    if (wanted.keys) {
      attention_map_part(input, rows, columns, out, options);
    } else {
      attention_map_rows(input, rows, out, options);
    }
    if (norms) {
      Shape of_columns = heads;
      of_columns.push_back(std::ssize(columns));
      Tensor chosen(norms.dtype(), of_columns);
      for (std::int64_t i = 0; i < std::ssize(columns); ++i) copy(norms.select(-1, columns[static_cast<std::size_t>(i)]), chosen.view().select(-1, i));
      nn::weight_by_norms(chosen, out);
      results->push_back({"value_norms", Tensor::copy_of(norms)});
    }
    if (lse) results->push_back({"lse", Tensor::copy_of(lse)});
  }
  if (const auto& window = wanted.window) attention_windows(input, (*window)[0], add("map_window", {queries, (*window)[1] - (*window)[0] + 1}), options);
  if (const auto& count = wanted.top_keys) {
    Shape top = shape;
    top[-1] = *count;
    Tensor probability(dtype, top), key(DType::i64, top);
    attention_top_keys(input, probability, key, options);
    results->push_back({"top_keys", std::move(key)});
    results->push_back({"top_attention_weights", std::move(probability)});
  }
  if (const auto& pooled = wanted.pooled) attention_pooled_map(input, add("pooled_map", {(*pooled)[0], (*pooled)[1]}), options, wanted.pooling);
  if (wanted.key_mass) attention_key_mass(input, key_sets, add("key_mass", {queries, key_sets.view().rank() < 2 ? 1 : key_sets.extent(-2)}), options);
  if (wanted.key_sums) attention_key_sums(input, add("key_sums", {keys}), options);
  if (wanted.divergence) attention_divergence(input, add("head_divergence", {heads[-1]}), options);
  if (wanted.statistics) {
    HeadStatistics views;
    const std::pair<const char*, TensorView*> names[] = {
        {"entropy", &views.entropy}, {"largest", &views.largest}, {"distance", &views.distance}, {"first_key", &views.first_key},
        {"previous_key", &views.previous_key}, {"same_key", &views.same_key}, {"next_key", &views.next_key}};
    for (const auto& [name, view] : names) *view = add(cat("statistics.", name), {});
    attention_statistics(input, views, options);
  }
}

}  // namespace polyhead::app
