#include "polyhead/models/translator.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "models/layer_maps.h"
#include "models/model_folder.h"
#include "polyhead/nn/beam_search.h"
#include "polyhead/nn/sampling.h"
#include "polyhead/nn/stack_cache.h"

namespace polyhead::models {
namespace {


TranslatorConfig checked(TranslatorConfig config, const BytePairTokenizer& tokenizer) {
  config.vocabulary = tokenizer.vocabulary_size();
  for (const auto& [name, value] : {std::pair("longest", config.longest), {"model_width", config.model_width}, {"hidden_width", config.hidden_width}, {"layers", config.layers}, {"heads", config.heads}})
    require(value >= 1, "Translator: ", name, " is ", value, "; it must be at least 1");
  require(config.guided_head >= 0 && config.guided_head < config.heads, "Translator: guided_head is ", config.guided_head, "; there are ", config.heads, " heads");
  require(tokenizer.special_tokens() == Translator::special_tokens(), "Translator: the tokenizer's special tokens must be <start> and <end>");
  return config;
}

nn::EncoderDecoder network_of(const TranslatorConfig& c) {
  return nn::EncoderDecoder({.source_count = c.vocabulary,
                             .layers = c.layers,
                             .layer = {.width = c.model_width, .heads = c.heads, .hidden_width = c.hidden_width, .dropout = c.dropout, .dtype = c.dtype, .seed = c.seed},
                             .shared_embedding = true,
                             .tied_output = true});
}

void require_length(const Translator& model, std::int64_t tokens, const char* what) {
  require(tokens <= model.config.longest, "Translator: the ", what, " has ", tokens, " tokens; the model takes at most ", model.config.longest);
}

// The encoded sources of a batch, and a decoder that continues `beams` translations of each.
class Decoding {
 public:
  Decoding(const Translator& model, const std::vector<const std::vector<std::int64_t>*>& sources, const TranslateOptions& options) : model_(model), run_{options.executor, &workspace_} {
    const std::int64_t count = std::ssize(sources);
    lengths_ = Tensor(DType::i64, {count});
    std::int64_t longest = 0;
    for (const auto* source : sources) longest = std::max<std::int64_t>(longest, std::ssize(*source));
    require_length(model, longest, "text");
    Tensor ids(DType::i64, {count, longest + 1}), memory(model.config.dtype, {count, longest + 1, model.config.model_width});
    std::fill_n(ids.data<std::int64_t>(), ids.numel(), Translator::kEnd);
    for (std::int64_t b = 0; b < count; ++b) {
      const auto& source = *sources[static_cast<std::size_t>(b)];
      std::ranges::copy(source, ids.data<std::int64_t>() + b * (longest + 1));
      lengths_.data<std::int64_t>()[b] = std::ssize(source) + 1;
    }
    model.network.encode(ids, memory, {.source_mask{.key_lengths = lengths_}, .executor = run_.executor, .workspace = run_.workspace});
    cache_ = nn::DecoderCache(model.network.decoder, memory, {.beams = options.beams, .capacity = most(), .memory_mask{.key_lengths = lengths_}}, run_);
    logits_ = Tensor(model.config.dtype, {count * options.beams, 1, model.config.vocabulary});
  }

  ConstTensorView step(std::span<const std::int64_t> tokens) {
    model_.network.decode(ConstTensorView(tokens.data(), {std::ssize(tokens), 1}), logits_, cache_, run_);
    return std::as_const(logits_).view().select(1, 0);
  }
  void reorder(std::span<const std::int64_t> parents) { cache_.reorder(parents); }
  std::int64_t most() const { return model_.config.longest + 1; }  // maximum number of tokens of a translation, the end token included

 private:
  const Translator& model_;
  Workspace workspace_;
  nn::RunOptions run_;
  Tensor lengths_, logits_;
  nn::DecoderCache cache_;
};

std::vector<std::vector<std::int64_t>> greedy(Decoding& decoding, std::int64_t count) {
  std::vector<std::vector<std::int64_t>> texts(static_cast<std::size_t>(count));
  std::vector<bool> ended(texts.size());
  Tensor tokens(DType::i64, {count});
  std::fill_n(tokens.data<std::int64_t>(), count, Translator::kStart);
  for (std::int64_t t = 0; t < decoding.most() && !std::ranges::all_of(ended, std::identity()); ++t) {
    nn::greedy_tokens(decoding.step({tokens.data<std::int64_t>(), static_cast<std::size_t>(count)}), tokens);
    for (std::size_t b = 0; b < texts.size(); ++b) {
      if (!ended[b]) texts[b].push_back(tokens.data<std::int64_t>()[b]);
      ended[b] = texts[b].back() == Translator::kEnd;
    }
  }
  return texts;
}

std::vector<std::vector<std::int64_t>> best_of_beams(Decoding& decoding, std::int64_t count, const TranslateOptions& options) {
  const std::vector<std::int64_t> starts(static_cast<std::size_t>(count), Translator::kStart);
  const auto step = [&](std::span<const std::int64_t> tokens, std::span<const std::int64_t> parents) {
    decoding.reorder(parents);
    return decoding.step(tokens);
  };
  std::vector<std::vector<std::int64_t>> texts;
  for (auto& found : nn::beam_search(starts, step, {.beams = options.beams, .end_token = Translator::kEnd, .max_tokens = decoding.most(), .length_penalty = options.length_penalty}))
    texts.push_back(std::move(found.at(0).tokens));
  return texts;
}

// Translates as translate_all() does, but a result also has its end token or, if it was cut off, one token beyond the limit.
std::vector<std::vector<std::int64_t>> decode_all(const Translator& model, const std::vector<std::vector<std::int64_t>>& sources, const TranslateOptions& options) {
  require(options.beams >= 1, "translate: beams is ", options.beams, "; it must be at least 1");
  require(options.beams > 1 || options.length_penalty == 1, "translate: length_penalty is ", options.length_penalty, " with 1 beam, which compares no translations; give more beams, or a length_penalty of 1");
  const std::size_t batch = static_cast<std::size_t>(std::max<std::int64_t>(1, 64 / options.beams));
  std::vector<std::size_t> order(sources.size());  // sorted, so that texts of similar length share a batch
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return sources[i].size(); });
  std::vector<std::vector<std::int64_t>> texts(sources.size());
  for (std::size_t first = 0; first < order.size(); first += batch) {
    const std::span<const std::size_t> which(order.data() + first, std::min(batch, order.size() - first));
    std::vector<const std::vector<std::int64_t>*> some;
    for (const std::size_t i : which) some.push_back(&sources[i]);
    Decoding decoding(model, some, options);
    auto found = options.beams == 1 ? greedy(decoding, std::ssize(some)) : best_of_beams(decoding, std::ssize(some), options);
    for (std::size_t i = 0; i < which.size(); ++i) texts[which[i]] = std::move(found[i]);
  }
  return texts;
}

}  // namespace

Translator::Translator(TranslatorConfig given, BytePairTokenizer words) : config(checked(given, words)), tokenizer(std::move(words)), network(network_of(config)) {}

std::vector<std::vector<std::int64_t>> translate_all(const Translator& model, const std::vector<std::vector<std::int64_t>>& sources, const TranslateOptions& options) {
  auto texts = decode_all(model, sources, options);
  for (auto& text : texts) text.pop_back();
  return texts;
}

std::vector<std::int64_t> align_words(ConstTensorView map, std::span<const std::int64_t> source_words, std::span<const std::int64_t> target_words, std::int64_t count) {
  require(map.rank() == 2 && map.extent(0) == std::ssize(target_words) + 1 && map.extent(1) == std::ssize(source_words) + 1, "align_words: map is ", map.shape(), "; it must be [target tokens + 1,source tokens + 1]");
  const Tensor p = Tensor::copy_of(map, DType::f64);
  const std::size_t width = source_words.size() + 1;
  const auto sources = static_cast<std::size_t>(source_words.empty() ? 0 : std::max<std::int64_t>(0, std::ranges::max(source_words) + 1));
  std::vector<std::vector<double>> mass(static_cast<std::size_t>(count), std::vector<double>(sources + 1));  // the last column is the end token
  for (std::size_t t = 0; t < target_words.size(); ++t) {
    if (target_words[t] < 0) continue;
    const double* const row = p.data<double>() + (t + 1) * width;
    auto& to = mass.at(static_cast<std::size_t>(target_words[t]));
    for (std::size_t s = 0; s + 1 < width; ++s)
      if (source_words[s] >= 0) to[static_cast<std::size_t>(source_words[s])] += row[s];
    to.back() += row[width - 1];
  }
  std::vector<std::int64_t> links;
  for (const auto& row : mass) {
    const auto best = std::ranges::max_element(row) - row.begin();
    links.push_back(best == std::ssize(row) - 1 ? -1 : best);
  }
  return links;
}

namespace {

Translation read(const Translator& model, const BytePairText& source, const BytePairText& target) {
  std::vector<std::int64_t> sources = source.ids, written{Translator::kStart};
  sources.push_back(Translator::kEnd);
  written.insert(written.end(), target.ids.begin(), target.ids.end());
  nn::EncoderDecoder::Saved saved;
  Tensor logits(model.config.dtype, {1, std::ssize(written), model.config.vocabulary});
  model.network.forward(ConstTensorView(sources.data(), {1, std::ssize(sources)}), ConstTensorView(written.data(), {1, std::ssize(written)}), logits, {}, &saved);
  Translation result{.text = model.tokenizer.decode(target.ids), .source = source, .target = target};
  result.source_attentions = layer_maps(saved.encoder.layers, &nn::EncoderLayer::Saved::attention);
  result.target_attentions = layer_maps(saved.decoder.layers, &nn::DecoderLayer::Saved::self_attention);
  result.attentions = layer_maps(saved.decoder.layers, &nn::DecoderLayer::Saved::cross_attention);
  result.source_vectors = layer_vectors(saved.encoder.layers, &nn::EncoderLayer::Saved::attention);
  result.target_vectors = layer_vectors(saved.decoder.layers, &nn::DecoderLayer::Saved::self_attention);
  result.vectors = layer_vectors(saved.decoder.layers, &nn::DecoderLayer::Saved::cross_attention);
  result.alignment = align_words(result.attentions.view().select(0, model.config.layers - 1).select(0, model.config.guided_head), source.words, target.words, std::ssize(target.word_spans));
  return result;
}

}  // namespace

Translation read_translation(const Translator& model, const BytePairText& source, const BytePairText& target) {
  require_length(model, std::ssize(source.ids), "text"), require_length(model, std::ssize(target.ids), "translation");
  return read(model, source, target);
}

Translation translate(const Translator& model, std::string_view text, const TranslateOptions& options) {
  const BytePairText source = model.tokenizer.encode(text);
  require(!source.ids.empty(), "translate: the text is empty");
  auto tokens = decode_all(model, {source.ids}, options)[0];
  const bool complete = tokens.back() == Translator::kEnd;
  tokens.pop_back();
  // Encode the translation again to get words and spans: the model may write a word with other pieces than the tokenizer.
  Translation result = read(model, source, model.tokenizer.encode(model.tokenizer.decode(tokens)));
  result.complete = complete;
  return result;
}

void save_translator(const Translator& model, const std::filesystem::path& folder) {
  make_folder(folder);
  model.tokenizer.save(folder);
  write_model(folder, model.config, model.network);
}

Translator load_translator(const std::filesystem::path& folder) {
  auto config = read_model_config<TranslatorConfig>(folder);
  const std::int64_t vocabulary = config.vocabulary;
  Translator model(config, load_byte_pair_tokenizer(folder));
  require(model.config.vocabulary == vocabulary, folder.string(), ": the tokenizer has ", model.config.vocabulary, " tokens; config.json says ", vocabulary);
  read_model_parameters(model.network, folder);
  return model;
}

}  // namespace polyhead::models
