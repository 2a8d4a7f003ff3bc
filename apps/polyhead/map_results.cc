#include "map_results.h"

#include <memory>

#include "arguments.h"
#include "format.h"
#include "terminal.h"

namespace polyhead::app {
namespace {

std::array<std::int64_t, 2> read_pooled(const std::string& word) {
  const std::size_t comma = word.find(',');
  if (comma == std::string::npos) throw UsageError(cat("'", word, "' is not a size; give HEIGHT,WIDTH, such as 64,64"));
  return {read_positive(word.substr(0, comma)), read_positive(word.substr(comma + 1))};
}

}  // namespace

void add_map_results(CLI::App& parser, MapResults* wanted) {
  parser.add_flag("--attention-weights", wanted->attention_weights, "also write attention_weights [*,N,T,S], before dropout, and lse [*,N,T]");
  add_value(parser, "--top-keys", &wanted->top_keys, read_count, "K",
            "also write top_keys and top_attention_weights [*,N,T,K]: the K keys with the largest attention weights, largest first");
  add_value(parser, "--pooled-map", &wanted->pooled, read_pooled, "H,W", "also write pooled_map [*,N,H,W]: the mean attention weights of H x W blocks");
  parser.add_flag("--key-sums", wanted->key_sums, "also write key_sums [*,N,S]: how much each key is attended to, summed over the queries");
  parser.add_flag("--statistics", wanted->statistics,
                  "also write statistics.entropy (nats), .largest, .distance, .first_key, .previous_key, .same_key and .next_key [*,N]: means over the queries");
  parser.add_flag("--divergence", wanted->divergence, "also write head_divergence [*,N,N]: the Jensen-Shannon divergence of each two heads, in nats");
}

void append_map_results(const MapResults& wanted, MapsInput input, const SdpaOptions& options, const Shape& shape, ConstTensorView lse,
                        std::vector<io::NamedTensor>* results) {
  const DType dtype = lse.dtype();
  std::unique_ptr<Progress> bar;
  input.progress = [&](std::int64_t done, std::int64_t total) {
    if (!bar) bar = std::make_unique<Progress>("rows of attention maps", static_cast<std::size_t>(total));
    bar->show(static_cast<std::size_t>(done));
    if (done == total) bar.reset();
  };
  const Shape heads = shape.first(shape.size() - 2);
  const auto add = [&](std::string name, std::initializer_list<std::int64_t> rest) -> TensorView {
    Shape of_result = heads;
    for (const std::int64_t extent : rest) of_result.push_back(extent);
    return results->emplace_back(io::NamedTensor{std::move(name), Tensor(dtype, of_result)}).tensor;
  };
  if (wanted.attention_weights) {
    attention_map(input, add("attention_weights", {shape[-2], shape[-1]}), options);
    results->push_back({"lse", Tensor::copy_of(lse)});
  }
  if (const auto& count = wanted.top_keys) {
    if (*count > shape[-1]) throw UsageError(cat("--top-keys: ", *count, " is too large; there are ", counted(shape[-1], "key")));
    Shape top = shape;
    top[-1] = *count;
    Tensor probability(dtype, top), key(DType::i64, top);
    attention_top_keys(input, probability, key, options);
    results->push_back({"top_keys", std::move(key)});
    results->push_back({"top_attention_weights", std::move(probability)});
  }
  if (const auto& pooled = wanted.pooled) {
    const auto [height, width] = *pooled;
    if (height > shape[-2] || width > shape[-1])
      throw UsageError(cat("--pooled-map: ", height, ",", width, " is too large; there are ", shape[-2], " queries and ", counted(shape[-1], "key")));
    attention_pooled_map(input, add("pooled_map", {height, width}), options);
  }
  if (wanted.key_sums) attention_key_sums(input, add("key_sums", {shape[-1]}), options);
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
