// C functions with which bench/peers.py calls polyhead's sentence encoder. Each returns null, or an error message.
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
    // The parameters are views of a file that is mapped into memory. Read each page of the file once, so that the parameters count as resident memory. They do
    // for a peer that copies its parameters.
    loaded->encoder.visit([](const std::string&, polyhead::Tensor& weight) {
      const float* values = weight.data<float>();
      volatile float sink = 0;
      for (std::int64_t i = 0; i < weight.numel(); i += 1024) sink = values[i];
      static_cast<void>(sink);
    });
    *encoder = loaded.release();
  });
}

// Computes the embeddings out [texts,E] of the texts with the token ids [texts,tokens].
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
