// Small model folders for tests.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "polyhead/io/tensor_file.h"
#include "polyhead/models/bert.h"
#include "support/temporary_folder.h"

namespace polyhead::models {

struct ModelFolder : test::TemporaryFolder {
  void write_json(const std::string& name, const nlohmann::json& content) const { write(name, content.dump()); }
};

inline BertConfig small_bert() {
  return {.vocabulary = 7, .positions = 5, .segments = 2, .width = 6, .layers = 2, .heads = 2, .hidden_width = 5};
}

inline nlohmann::json config_json(const BertConfig& config) {
  nlohmann::json json = R"({"model_type": "bert", "hidden_act": "gelu"})"_json;  // text compiles faster than lists of values: they instantiate a constructor for each length of a string
  json["vocab_size"] = config.vocabulary;
  json["max_position_embeddings"] = config.positions;
  json["type_vocab_size"] = config.segments;
  json["hidden_size"] = config.width;
  json["num_hidden_layers"] = config.layers;
  json["num_attention_heads"] = config.heads;
  json["intermediate_size"] = config.hidden_width;
  json["layer_norm_eps"] = config.epsilon;
  return json;
}

// Returns the parameters under the names that `transformers` gives them.
inline std::vector<io::NamedTensor> hf_tensors(const BertEncoder& encoder, const std::string& prefix = "") {
  static const std::vector<std::pair<std::string, std::string>> kNames{{"words.", "embeddings.word_embeddings."},
                                                                       {"positions.", "embeddings.position_embeddings."},
                                                                       {"segments.", "embeddings.token_type_embeddings."},
                                                                       {"embedding_norm.", "embeddings.LayerNorm."},
                                                                       {"layers.", "encoder.layer."},
                                                                       {".attention.q.", ".attention.self.query."},
                                                                       {".attention.k.", ".attention.self.key."},
                                                                       {".attention.v.", ".attention.self.value."},
                                                                       {".attention.output.", ".attention.output.dense."},
                                                                       {".attention_norm.", ".attention.output.LayerNorm."},
                                                                       {".feed_forward.hidden.", ".intermediate.dense."},
                                                                       {".feed_forward.output.", ".output.dense."},
                                                                       {".feed_forward_norm.", ".output.LayerNorm."}};
  std::vector<io::NamedTensor> tensors;
  encoder.visit([&](std::string name, const Tensor& tensor) {
    for (const auto& [ours, theirs] : kNames)
      if (const auto at = name.find(ours); at != std::string::npos) {
        name.replace(at, ours.size(), theirs);
        if (ours.front() == '.') break;
      }
    tensors.push_back({prefix + name, Tensor(tensor)});
  });
  return tensors;
}

}  // namespace polyhead::models
