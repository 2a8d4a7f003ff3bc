// A language model continues a text, always with the likeliest token. The cache of keys and values is float32, bfloat16 or int8.
//   llama FOLDER TEXT [CACHE [TOKENS]]    FOLDER: a model that transformers saved. Without arguments a small random Llama continues four token ids.
#include <chrono>
#include <cstdlib>
#include <optional>

#include "check.h"
#include "polyhead/models.h"

using namespace polyhead;

models::LanguageModelConfig small_llama() {
  return {.family = "llama",
          .vocabulary = 256,
          .positions = 512,
          .layers = 4,
          .layer = {.width = 64, .heads = 8, .kv_heads = 2, .hidden_width = 192, .activation = nn::Activation::silu, .gated = true, .bias = false, .output_bias = false,
                    .feed_forward_bias = false, .norm = nn::NormKind::rms_norm, .norm_position = nn::NormPosition::pre, .seed = 1},
          .rotary = models::RotaryRule{.embedding = {.width = 8, .base = 500'000}},
          .tied_output = true};
}

int run(int argc, char** argv) {
  if (argc == 2) return std::fprintf(stderr, "llama: a text is missing: llama FOLDER TEXT [CACHE [TOKENS]]\n"), 1;
  const models::LanguageModel model = argc > 2 ? models::load_language_model(argv[1]) : models::LanguageModel(small_llama());
  const std::optional<models::Tokenizer> tokenizer = argc > 2 ? std::optional(models::load_tokenizer(argv[1])) : std::nullopt;
  const std::vector<std::int64_t> prompt = tokenizer ? tokenizer->encode(argv[2]).ids : std::vector<std::int64_t>{1, 5, 25, 125};
  const std::string_view name = argc > 3 ? argv[3] : "float32";
  const DType cache = name == "int8" ? DType::i8 : name == "bfloat16" ? DType::bf16 : DType::f32;
  if (info(cache).name != name) return std::fprintf(stderr, "llama: CACHE may be float32, bfloat16 or int8\n"), 1;
  const std::int64_t tokens = argc > 4 ? std::atoll(argv[4]) : 24;

  using Clock = std::chrono::steady_clock;
  const Workspace workspace(Parameters::constant);  // keeps packed parameters between tokens
  const Clock::time_point start = Clock::now();
  Clock::time_point first = start;
  std::vector<std::int64_t> seen;
  const auto on_token = [&](std::int64_t id) {
    if (seen.empty()) first = Clock::now();
    seen.push_back(id);
    return true;
  };
  const std::vector<std::int64_t> answer = model.generate(prompt, {.max_tokens = tokens, .cache_dtype = cache, .on_token = on_token, .workspace = &workspace});
  const auto seconds = [](Clock::duration time) { return std::chrono::duration<double>(time).count(); };
  const double rest = seconds(Clock::now() - first);
  if (tokenizer) std::printf("%s", tokenizer->decode(answer).c_str());
  for (std::size_t i = 0; !tokenizer && i < answer.size(); ++i) std::printf("%lld ", static_cast<long long>(answer[i]));
  std::printf("\nprompt of %zu tokens: %.3f s; then %.1f tokens per second\n", prompt.size(), seconds(first - start), static_cast<double>(answer.size() - 1) / rest);
  example::Claims claims;
  claims.add("each token is given as it is chosen", seen == answer);
  return claims.status();
}

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    return std::fprintf(stderr, "llama: %s\n", error.what()), 1;
  }
}
