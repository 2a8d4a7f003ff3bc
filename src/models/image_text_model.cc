#include "polyhead/models/image_text_model.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "core/text.h"
#include "models/model_parts.h"
#include "models/values.h"
#include "nn/check.h"

namespace polyhead::models {
namespace {

constexpr const char* kTextSideForward = "TextSide.forward";

// Returns for each text the position of the token whose hidden state represents the text.
std::vector<std::int64_t> pooled_rows(const TextSideConfig& c, ConstTensorView ids) {
  const std::int64_t tokens = ids.extent(-1);
  const Tensor all = Tensor::copy_of(ids, DType::i64);
  std::vector<std::int64_t> rows;
  for (std::int64_t b = 0; tokens > 0 && b < all.numel() / tokens; ++b) {
    const std::int64_t *const first = all.data<std::int64_t>() + b * tokens, *const end = first + tokens;
    const std::int64_t* found = end - 1;
    if (c.pooling == TextPooling::largest_id) found = std::max_element(first, end);
    if (c.pooling == TextPooling::end_token) found = std::find(first, end, c.end_token);
    require(found != end, kTextSideForward, ": text ", b, " has no end token (eos_token_id = ", c.end_token, "), whose hidden state stands for the text");
    rows.push_back(found - first);
  }
  return rows;
}

// Returns the rows scaled to length 1, in float64.
std::vector<double> unit_rows(ConstTensorView rows) {
  const Tensor wide = Tensor::copy_of(rows, DType::f64);
  std::vector<double> unit(wide.data<double>(), wide.data<double>() + wide.numel());
  const std::int64_t width = rows.extent(-1);
  for (std::int64_t r = 0; r < rows.extent(0); ++r) {
    double* const row = unit.data() + r * width;
    double sum = 0;
    for (std::int64_t i = 0; i < width; ++i) sum += row[i] * row[i];
    for (std::int64_t i = 0; i < width; ++i) row[i] /= std::sqrt(sum);
  }
  return unit;
}

}  // namespace

std::int64_t TextSide::embedding_width() const {
  if (projection.weight) return projection.out_width();
  return head.weight ? head.out_width() : 0;
}

void TextSide::forward(const TextSideInput& input, const TextSideOutput& output, const VisionOptions& options) const {
  const TextSideConfig& c = config;
  require(static_cast<bool>(input.ids), kTextSideForward, ": ids are missing");
  require(input.ids.rank() >= 1, kTextSideForward, ": ids is ", input.ids.shape(), "; it must be [*,T]");
  const Shape ids = input.ids.shape(), lead = ids.first(ids.size() - 1), shape = appended(ids, {c.layer.width});
  const std::int64_t tokens = ids[-1];
  require(tokens >= 1 && tokens <= c.positions, kTextSideForward, ": the text has ", tokens, " tokens; the model has positions for 1 to ", c.positions);
  require(std::ssize(stack.layers) == c.layers && c.layers > 0, kTextSideForward, ": the model has ", stack.layers.size(), " layers; config.layers is ", c.layers);
  if (input.attend_keys) nn::require_exactly(kTextSideForward, {"attend_keys", input.attend_keys}, ids, DType::boolean);
  require(!output.embedding || embedding_width() > 0, kTextSideForward, ": embedding is asked for; this ", c.family, " has no embedding");
  const LayerOutputs of_layers{.all_hidden = output.all_hidden, .attentions = output.attentions, .q = output.q, .k = output.k, .v = output.v};
  std::vector<WantedOutput> all = wanted(of_layers, c.layer, c.layers, shape);
  all.push_back({{"hidden", output.hidden}, shape});
  all.push_back({{"pooled", output.pooled}, appended(lead, {pooled_width()})});
  all.push_back({{"embedding", output.embedding}, appended(lead, {embedding_width()})});
  const Operand read[] = {{"ids", input.ids}, {"attend_keys", input.attend_keys}};
  require_wanted(kTextSideForward, all, read, *this);
  const std::vector<std::int64_t> rows = output.pooled || output.embedding ? pooled_rows(c, input.ids) : std::vector<std::int64_t>();

  const Workspace own;  // lets layers reuse memory if the caller gives no workspace
  const nn::RunOptions run{options.executor, options.workspace != nullptr ? options.workspace : &own};
  Tensor x = uninitialised(c.layer.dtype, shape, run.workspace), y = uninitialised(c.layer.dtype, shape, run.workspace);
  words.forward(input.ids, x, {.executor = run.executor});
  const std::vector<std::int64_t> places = positions_of(tokens);
  positions.forward(ConstTensorView(places.data(), {tokens}).expand(ids), x, {.write = nn::Write::add, .executor = run.executor});
  nn::AttentionOptions attention{.mask = {.attend_keys = input.attend_keys}, .backend = options.backend, .executor = run.executor, .workspace = run.workspace};
  if (c.causal) attention.mask.causal = Causal::top_left();
  x = through_encoder(stack, {}, std::move(x), of_layers, run, [&](std::int64_t) { return attention; });
  stack.final_norm.forward(x, y, run);
  if (output.hidden) copy(y, output.hidden);
  if (rows.empty()) return;
  Tensor vectors = uninitialised(c.layer.dtype, {std::ssize(rows), c.layer.width}, run.workspace);
  const ConstTensorView flat = y.view().reshape({std::ssize(rows), tokens, c.layer.width});
  for (std::size_t b = 0; b < rows.size(); ++b) copy(flat.select(0, static_cast<std::int64_t>(b)).select(0, rows[b]), vectors.view().select(0, static_cast<std::int64_t>(b)));
  const auto through = [&](const nn::Linear& linear) {
    if (!linear.weight) return;
    Tensor next = uninitialised(c.layer.dtype, {vectors.extent(0), linear.out_width()}, run.workspace);
    linear.forward(vectors, next, run);
    vectors = std::move(next);
  };
  through(head);
  if (output.pooled) copy(vectors.view().reshape(output.pooled.shape()), output.pooled);
  if (!output.embedding) return;
  through(projection);
  copy(vectors.view().reshape(output.embedding.shape()), output.embedding);
}

void similarity(ConstTensorView images, ConstTensorView texts, const SimilarityScale& scale, TensorView similarity) {
  constexpr const char* kName = "similarity";
  const std::int64_t width = images && images.rank() == 2 ? images.extent(1) : 0;
  for (const Operand& one : {Operand{"images", images}, Operand{"texts", texts}})
    require(one.view && one.view.rank() == 2 && one.view.extent(1) == width && is_floating(one.view.dtype()), kName, ": ", one.name, " is ", one.view.dtype(), " ", one.view.shape(), "; both must be floating [.,P] with one P");
  const std::int64_t count = images.extent(0), other = texts.extent(0);
  nn::require_shape(kName, {"similarity", similarity}, {count, other});
  require(is_floating(similarity.dtype()), kName, ": similarity is ", similarity.dtype(), "; it must be floating");
  const std::vector<double> a = unit_rows(images), b = unit_rows(texts);
  Tensor values(DType::f64, {count, other});
  const double factor = std::exp(scale.logit_scale);
  for (std::int64_t i = 0; i < count; ++i) {
    for (std::int64_t j = 0; j < other; ++j) {
      double sum = 0;
      for (std::int64_t e = 0; e < width; ++e) sum += a[static_cast<std::size_t>(i * width + e)] * b[static_cast<std::size_t>(j * width + e)];
      values.data<double>()[i * other + j] = factor * sum + scale.logit_bias;
    }
  }
  copy(values, similarity);
}

}  // namespace polyhead::models
