// Small model folders for tests.
#pragma once

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "polyhead/io/tensor_file.h"
#include "polyhead/models/bert.h"

namespace polyhead::models {

// A temporary folder that the destructor removes.
class ModelFolder {
 public:
  ModelFolder() {
    static std::atomic<int> count = 0;
    path_ = std::filesystem::temp_directory_path() / ("polyhead-models-" + std::to_string(getpid()) + "-" + std::to_string(count++));
    std::filesystem::create_directories(path_);
  }
  ~ModelFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ModelFolder(const ModelFolder&) = delete;
  ModelFolder& operator=(const ModelFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  void write(const std::string& name, std::string_view content) const { std::ofstream(path_ / name, std::ios::binary) << content; }
  void write_json(const std::string& name, const nlohmann::json& content) const { write(name, content.dump()); }

 private:
  std::filesystem::path path_;
};

inline BertConfig small_bert() {
  return {.vocabulary = 7, .positions = 5, .segments = 2, .width = 6, .layers = 2, .heads = 2, .hidden_width = 5};
}

inline nlohmann::json config_json(const BertConfig& config) {
  return {{"model_type", "bert"},
          {"vocab_size", config.vocabulary},
          {"max_position_embeddings", config.positions},
          {"type_vocab_size", config.segments},
          {"hidden_size", config.width},
          {"num_hidden_layers", config.layers},
          {"num_attention_heads", config.heads},
          {"intermediate_size", config.hidden_width},
          {"hidden_act", "gelu"},
          {"layer_norm_eps", config.epsilon}};
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
