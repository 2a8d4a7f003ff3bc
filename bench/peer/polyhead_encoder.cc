// C functions by which bench/peers.py calls polyhead's sentence encoder. A function returns null, or an error message.
#include <cstdint>
#include <exception>
#include <memory>
#include <string>

#include "polyhead/executor.h"
#include "polyhead/models/sentence_model.h"

namespace {

struct LoadedEncoder {
  polyhead::models::BertEncoder encoder;
  polyhead::Workspace workspace{polyhead::Parameters::constant};
};

template <class F>
const char* told(F&& run) {
  static std::string message;
  try {
    run();
    return nullptr;
  } catch (const std::exception& error) {
    message = error.what();
    return message.c_str();
  }
}

}  // namespace

extern "C" [[gnu::visibility("default")]] const char* encoder_load(const char* directory, int threads, LoadedEncoder** encoder) {
  return told([&] {
    polyhead::set_num_threads(threads);
    auto loaded = std::make_unique<LoadedEncoder>(LoadedEncoder{polyhead::models::load_bert_encoder(directory)});
    // The parameters are views of a mapped file. Each page is read once, so that the parameters count as resident memory, as they do for a peer that holds
    // copies of its parameters.
    loaded->encoder.visit([](const std::string&, polyhead::Tensor& weight) {
      const float* values = weight.data<float>();
      volatile float sink = 0;
      for (std::int64_t i = 0; i < weight.numel(); i += 1024) sink = values[i];
      static_cast<void>(sink);
    });
    *encoder = loaded.release();
  });
}

// ids [texts,tokens] -> out [texts,E]
extern "C" [[gnu::visibility("default")]] const char* encoder_embed(const LoadedEncoder* loaded, const std::int64_t* ids, std::int64_t texts, std::int64_t tokens,
                                     float* out) {
  return told([&] {
    const std::int64_t width = loaded->encoder.config.width;
    polyhead::Tensor hidden = loaded->workspace.tensor(loaded->encoder.config.dtype, {texts, tokens, width});
    loaded->encoder.forward({.ids = {ids, {texts, tokens}}}, {.hidden = hidden}, {.workspace = &loaded->workspace});
    polyhead::models::sentence_embedding(hidden, {}, {out, {texts, width}});
  });
}

extern "C" [[gnu::visibility("default")]] void encoder_free(LoadedEncoder* encoder) { delete encoder; }
