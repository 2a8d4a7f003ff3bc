#include "trace_cell.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "arguments.h"
#include "core/join.h"
#include "format.h"
#include "json.h"
#include "terminal.h"
#include "text_layout.h"
#include "view_input.h"

namespace polyhead::app {
namespace {

using Numbers = std::vector<double>;

struct Cell {
  std::int64_t layer = 0, head = 0, query = 0, key = 0;
};

std::string token(const std::vector<std::string>& words, std::int64_t place) { return cat(place, " ", printable(words[static_cast<std::size_t>(place)])); }

Cell read_cell(const std::string& given, const models::AnyTextModel::Sizes& sizes, const std::vector<std::string>& words, const std::vector<std::string>& spelled) {
  std::vector<std::string> parts{""};
  for (const char c : given) {
    if (c == ',') parts.emplace_back();
    else parts.back() += c;
  }
  if (parts.size() != 4) throw UsageError(cat("--cell: '", given, "' is not LAYER,HEAD,QUERY,KEY, such as 2,8,3,4 or 2,8,brown,fox"));
  const auto number = [](const std::string& word, std::string_view what, std::int64_t count) {
    const auto value = parse<std::int64_t>(word);
    if (!value || *value < 0 || *value >= count) throw UsageError(cat("--cell: there is no ", what, " '", word, "'; the model has the ", what, "s 0 to ", count - 1));
    return *value;
  };
  return {.layer = number(parts[0], "layer", sizes.layers), .head = number(parts[1], "head", sizes.heads),
          .query = find_token("--cell", "query", parts[2], words, spelled), .key = find_token("--cell", "key", parts[3], words, spelled)};
}

struct Key {
  Numbers k, v;
  double dot = 0, bias = 0, score = 0, exp = 0, weight = 0;
  bool attended = true;  // false if the query may not attend to this key: in a decoder a later key, or a key outside the layer's window
};

// The intermediate results from which one row of attention weights is computed, in float64.
struct Worked {
  Numbers q, output;
  std::vector<Key> keys;
  double scale = 0, largest = 0, sum = 0, of_map = 0;
  bool usual_scale = true;  // true if the scale is 1/sqrt(H)
  bool has_bias = false;
};

// The row of q, k or v at `position` for the cell's head. Several query heads may share a head of k and v.
Numbers row_of(const Tensor& vectors, const Cell& cell, std::int64_t heads, std::int64_t position) {
  const std::int64_t head = cell.head / (heads / vectors.shape()[1]);
  const Tensor row = Tensor::copy_of(vectors.view().select(0, cell.layer).select(0, head).select(0, position), DType::f64);
  return {row.data<double>(), row.data<double>() + row.numel()};
}

Worked work_out(const models::TextRun& result, const Cell& cell) {
  const std::int64_t heads = result.q.shape()[1];
  Worked worked{.q = row_of(result.q, cell, heads, cell.query)};
  worked.usual_scale = !result.scale;
  worked.scale = result.scale.value_or(1 / std::sqrt(static_cast<double>(worked.q.size())));
  worked.has_bias = static_cast<bool>(result.bias);
  const auto bias = [&](std::int64_t s) { return Tensor::copy_of(result.bias.view().select(0, 0).select(0, cell.head).select(0, cell.query).select(0, s), DType::f64).data<double>()[0]; };
  const auto attends = [&](std::int64_t s) { return !result.attend || result.attend.view().select(0, cell.layer).select(0, 0).select(0, cell.query).select(0, s).data<bool>()[0]; };
  worked.largest = -std::numeric_limits<double>::infinity();
  worked.output.resize(static_cast<std::size_t>(result.v.shape()[-1]));
  for (std::int64_t s = 0; s < std::ssize(result.tokens.pieces); ++s) {
    Key key{.k = row_of(result.k, cell, heads, s), .v = row_of(result.v, cell, heads, s)};
    key.dot = std::inner_product(key.k.begin(), key.k.end(), worked.q.begin(), 0.0);
    if (worked.has_bias) key.bias = bias(s);
    key.score = key.dot * worked.scale + key.bias;
    key.attended = attends(s);
    if (key.attended) worked.largest = std::max(worked.largest, key.score);
    worked.keys.push_back(std::move(key));
  }
  for (Key& key : worked.keys) worked.sum += key.exp = key.attended ? std::exp(key.score - worked.largest) : 0;
  for (Key& key : worked.keys) {
    key.weight = key.exp / worked.sum;
    for (std::size_t i = 0; i < key.v.size(); ++i) worked.output[i] += key.weight * key.v[i];
  }
  worked.of_map = Tensor::copy_of(result.attentions.view().select(0, cell.layer).select(0, cell.head).select(0, cell.query).select(0, cell.key), DType::f64).data<double>()[0];
  return worked;
}

std::string digits(double x) { return fixed(x, std::abs(x) < 1e-3 && x != 0 ? 8 : 6); }

// Formats a table whose first row has the column names; all columns but the first are right aligned. If the terminal is too narrow, each row becomes a paragraph.
std::string table(std::vector<std::vector<std::string>> rows, std::size_t width) {
  std::vector<std::size_t> widest(rows[0].size());
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) widest[i] = std::max(widest[i], columns(row[i]));
  std::string text;
  if (std::accumulate(widest.begin(), widest.end(), 2 * (widest.size() - 1)) <= width) {
    for (const auto& row : rows) {
      std::string line = pad_right(row[0], widest[0]);
      for (std::size_t i = 1; i < row.size(); ++i) append(line, cat("  ", pad_left(row[i], widest[i])));
      append(text, trimmed(line) + "\n");
    }
    return text;
  }
  for (std::size_t at = 1; at < rows.size(); ++at) {
    std::vector<std::string> parts;
    for (std::size_t i = 1; i < rows[at].size(); ++i)
      if (!rows[at][i].empty()) parts.push_back(rows[0].size() > 2 ? cat(rows[0][i], " ", rows[at][i]) : rows[at][i]);
    append(text, wrap(cat(rows[at][0], ": ", join(parts)), width, 0));
  }
  return text;
}

std::string text_of(const Worked& worked, const Cell& cell, const std::vector<std::string>& words, bool is_decoder, std::size_t width) {
  const Key& key = worked.keys[static_cast<std::size_t>(cell.key)];
  std::vector<std::vector<std::string>> features{{"feature", "q", "k", "q * k"}}, steps{{"step", "number"}}, row{{"key", "score", "exp(score - largest)", "weight"}};
  std::vector<std::vector<std::string>> output{{"feature", "v", "weight * v", "output"}};
  for (std::size_t i = 0; i < worked.q.size(); ++i) {
    features.push_back({cat(i), digits(worked.q[i]), digits(key.k[i]), digits(worked.q[i] * key.k[i])});
    output.push_back({cat(i), digits(key.v[i]), digits(key.weight * key.v[i]), digits(worked.output[i])});
  }
  steps.push_back({"q . k, the sum of the products", digits(key.dot)});
  steps.push_back({worked.usual_scale ? cat("/ sqrt(", worked.q.size(), ")") : cat("* ", digits(worked.scale), ", the model's scale"), digits(key.dot * worked.scale)});
  if (worked.has_bias) steps.push_back({cat("+ ", digits(key.bias), ", the relative bias"), digits(key.score)});
  steps.push_back({cat("- ", digits(worked.largest), ", the row's largest score"), digits(key.score - worked.largest)});
  steps.push_back({key.attended ? "exp" : cell.key > cell.query && is_decoder ? "0, because the key is later than the query" : "0, because the key is outside the layer's window", digits(key.exp)});
  steps.push_back({cat("/ ", digits(worked.sum), ", the row's sum: weight"), fixed(key.weight, 6)});
  for (std::size_t s = 0; s < worked.keys.size(); ++s) {
    const Key& one = worked.keys[s];
    row.push_back({token(words, static_cast<std::int64_t>(s)), digits(one.score), fixed(one.exp, 6), fixed(one.weight, 6)});
  }
  row.push_back({"sum", "", digits(worked.sum), "1.000000"});
  const std::string query = token(words, cell.query), looked = token(words, cell.key);
  std::string text = wrap(cat("layer ", cell.layer, ", head ", cell.head, ": ", query, " looks at ", looked, " with the weight ", fixed(key.weight, 6)), width);
  if (std::abs(key.weight - worked.of_map) > 1e-4) append(text, wrap(cat("the model's map has ", fixed(worked.of_map, 6), ", because the model computes in a lower precision"), width));
  append(text, cat("\n", wrap(cat("1. Products of q of ", query, " and k of ", looked), width), table(std::move(features), width)));
  append(text, cat("\n", wrap("2. From q . k to the weight", width), table(std::move(steps), width)));
  append(text, cat("\n", wrap(cat("3. All keys of ", query, ": softmax"), width), table(std::move(row), width)));
  append(text, cat("\n", wrap(cat("4. Output of the head for ", query, ": the sum of weight * v over all keys; v is that of ", looked), width), table(std::move(output), width)));
  return text;
}

Json json_of(const Worked& worked, const Cell& cell, const std::vector<std::string>& words, const CellOptions& o) {
  const Key& key = worked.keys[static_cast<std::size_t>(cell.key)];
  const auto number = [](double x) { return number_json(ConstTensorView(&x, Shape{})); };
  const auto list = [](const Numbers& x) { return number_json(ConstTensorView(x.data(), {std::ssize(x)})); };
  Numbers products(worked.q.size());
  std::ranges::transform(worked.q, key.k, products.begin(), std::multiplies<>());
  Json keys = Json::array();
  for (std::size_t s = 0; s < worked.keys.size(); ++s) {
    const Key& one = worked.keys[s];
    keys.push_back({{"token", words[s]}, {"score", number(one.score)}, {"exp", number(one.exp)}, {"weight", number(one.weight)}, {"v", list(one.v)}});
  }
  return {{"text", o.text}, {"layer", cell.layer}, {"head", cell.head}, {"query", cell.query}, {"key", cell.key},
          {"q", list(worked.q)}, {"k", list(key.k)}, {"products", list(products)}, {"dot", number(key.dot)}, {"scale", number(worked.scale)},
          {"bias", worked.has_bias ? number(key.bias) : Json()}, {"score", number(key.score)}, {"largest", number(worked.largest)}, {"exp", number(key.exp)}, {"sum", number(worked.sum)},
          {"weight", number(key.weight)}, {"keys", keys}, {"output", list(worked.output)}};
}

}  // namespace

void trace_cell(const CellOptions& o) {
  const std::unique_ptr<models::AnyTextModel> model = open_any_model(o.model);
  const models::TextModelKind kind = model->sizes().kind;
  if (kind == models::TextModelKind::two_sides) fail(ErrorCode::unsupported, "--cell: '", o.model, "' is an encoder-decoder model, and polyhead keeps no q and k of such models; `view` shows its maps");
  const auto tokenizer = [&](const InputText& text) { return model->tokenize(text.text, text.pair, models::WhenTooLong::longest_first); };
  models::TokenizedText tokens = std::move(tokenize(tokenizer, model->sizes().longest, {{o.text, {}}}, false, "give a shorter text")[0]);
  const Cell cell = read_cell(o.cell, model->sizes(), tokens.pieces, words_of(o.text, tokens));
  const models::TextRun result = model->run(std::move(tokens), {.head_vectors = true});
  if (!result.q)
    fail(ErrorCode::unsupported, "--cell: this model's attention weights do not follow from q and k alone: it has sinks, caps its scores, or scales those of each layer differently. `view` shows its maps");
  const Worked worked = work_out(result, cell);
  const std::vector<std::string>& words = result.tokens.pieces;
  if (o.json) return print_json(json_of(worked, cell, words, o));
  print(text_of(worked, cell, words, kind == models::TextModelKind::decoder, table_width()));
}

}  // namespace polyhead::app
