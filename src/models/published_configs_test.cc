// Reads copies of the config.json files of published models.
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "models/test_error_matcher.h"
#include "models/test_model_folder.h"
#include "polyhead/models/image_processor.h"
#include "polyhead/models/language_model.h"
#include "polyhead/models/model_config.h"
#include "polyhead/models/sequence_to_sequence_model.h"
#include "polyhead/models/vision_encoder.h"

namespace polyhead::models {
namespace {

using nlohmann::json;
using testing::HasSubstr;

struct Published {
  const char* name;
  std::int64_t width, layers, vocabulary;
  const char* config;
};

constexpr Published kDecoders[] = {
    {"gpt2", 768, 12, 50257, R"({"activation_function":"gelu_new","architectures":["GPT2LMHeadModel"],"attn_pdrop":0.1,"bos_token_id":50256,"embd_pdrop":0.1,"eos_token_id":50256,
      "initializer_range":0.02,"layer_norm_epsilon":1e-05,"model_type":"gpt2","n_ctx":1024,"n_embd":768,"n_head":12,"n_layer":12,"n_positions":1024,"resid_pdrop":0.1,
      "summary_activation":null,"summary_first_dropout":0.1,"summary_proj_to_labels":true,"summary_type":"cls_index","summary_use_proj":true,
      "task_specific_params":{"text-generation":{"do_sample":true,"max_length":50}},"vocab_size":50257})"},
    {"Llama-2-7b", 4096, 32, 32000, R"({"_name_or_path":"meta-llama/Llama-2-7b-hf","architectures":["LlamaForCausalLM"],"bos_token_id":1,"eos_token_id":2,"hidden_act":"silu","hidden_size":4096,
      "initializer_range":0.02,"intermediate_size":11008,"max_position_embeddings":4096,"model_type":"llama","num_attention_heads":32,"num_hidden_layers":32,"num_key_value_heads":32,
      "pretraining_tp":1,"rms_norm_eps":1e-05,"rope_scaling":null,"tie_word_embeddings":false,"torch_dtype":"float16","transformers_version":"4.31.0.dev0","use_cache":true,"vocab_size":32000})"},
    {"Llama-3.1-8B", 4096, 32, 128256, R"({"architectures":["LlamaForCausalLM"],"attention_bias":false,"attention_dropout":0.0,"bos_token_id":128000,"eos_token_id":128001,"hidden_act":"silu",
      "hidden_size":4096,"initializer_range":0.02,"intermediate_size":14336,"max_position_embeddings":131072,"mlp_bias":false,"model_type":"llama","num_attention_heads":32,
      "num_hidden_layers":32,"num_key_value_heads":8,"pretraining_tp":1,"rms_norm_eps":1e-05,"rope_scaling":{"factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,
      "original_max_position_embeddings":8192,"rope_type":"llama3"},"rope_theta":500000.0,"tie_word_embeddings":false,"torch_dtype":"bfloat16","transformers_version":"4.43.0.dev0",
      "use_cache":true,"vocab_size":128256})"},
    {"Llama-3.2-1B", 2048, 16, 128256, R"({"architectures":["LlamaForCausalLM"],"attention_bias":false,"attention_dropout":0.0,"bos_token_id":128000,"eos_token_id":128001,"head_dim":64,
      "hidden_act":"silu","hidden_size":2048,"initializer_range":0.02,"intermediate_size":8192,"max_position_embeddings":131072,"mlp_bias":false,"model_type":"llama",
      "num_attention_heads":32,"num_hidden_layers":16,"num_key_value_heads":8,"pretraining_tp":1,"rms_norm_eps":1e-05,"rope_scaling":{"factor":32.0,"high_freq_factor":4.0,
      "low_freq_factor":1.0,"original_max_position_embeddings":8192,"rope_type":"llama3"},"rope_theta":500000.0,"tie_word_embeddings":true,"torch_dtype":"bfloat16",
      "transformers_version":"4.45.0.dev0","use_cache":true,"vocab_size":128256})"},
    {"Mixtral-8x7B-v0.1", 4096, 32, 32000, R"({"architectures":["MixtralForCausalLM"],"attention_dropout":0.0,"bos_token_id":1,"eos_token_id":2,"hidden_act":"silu","hidden_size":4096,
      "initializer_range":0.02,"intermediate_size":14336,"max_position_embeddings":32768,"model_type":"mixtral","num_attention_heads":32,"num_experts_per_tok":2,"num_hidden_layers":32,
      "num_key_value_heads":8,"num_local_experts":8,"output_router_logits":false,"rms_norm_eps":1e-05,"rope_theta":1000000.0,"router_aux_loss_coef":0.02,"sliding_window":null,
      "tie_word_embeddings":false,"torch_dtype":"bfloat16","transformers_version":"4.36.0.dev0","use_cache":true,"vocab_size":32000})"},
    {"Qwen1.5-MoE-A2.7B", 2048, 24, 151936, R"({"architectures":["Qwen2MoeForCausalLM"],"attention_dropout":0.0,"bos_token_id":151643,"decoder_sparse_step":1,"eos_token_id":151643,
      "hidden_act":"silu","hidden_size":2048,"initializer_range":0.02,"intermediate_size":5632,"max_position_embeddings":8192,"max_window_layers":21,"model_type":"qwen2_moe",
      "moe_intermediate_size":1408,"norm_topk_prob":false,"num_attention_heads":16,"num_experts":60,"num_experts_per_tok":4,"num_hidden_layers":24,"num_key_value_heads":16,
      "output_router_logits":false,"rms_norm_eps":1e-06,"rope_theta":1000000.0,"router_aux_loss_coef":0.001,"shared_expert_intermediate_size":5632,"sliding_window":32768,
      "tie_word_embeddings":false,"torch_dtype":"bfloat16","transformers_version":"4.39.0.dev0","use_cache":true,"use_sliding_window":false,"vocab_size":151936})"},
    {"Qwen3-30B-A3B", 2048, 48, 151936, R"({"architectures":["Qwen3MoeForCausalLM"],"attention_bias":false,"attention_dropout":0.0,"bos_token_id":151643,"decoder_sparse_step":1,
      "eos_token_id":151645,"head_dim":128,"hidden_act":"silu","hidden_size":2048,"initializer_range":0.02,"intermediate_size":6144,"max_position_embeddings":40960,"max_window_layers":48,
      "mlp_only_layers":[],"model_type":"qwen3_moe","moe_intermediate_size":768,"norm_topk_prob":true,"num_attention_heads":32,"num_experts":128,"num_experts_per_tok":8,
      "num_hidden_layers":48,"num_key_value_heads":4,"output_router_logits":false,"rms_norm_eps":1e-06,"rope_scaling":null,"rope_theta":1000000.0,"router_aux_loss_coef":0.001,
      "sliding_window":null,"tie_word_embeddings":false,"torch_dtype":"bfloat16","transformers_version":"4.51.0","use_cache":true,"use_sliding_window":false,"vocab_size":151936})"},
    {"gpt-oss-20b in bfloat16", 2880, 24, 201088, R"({"architectures":["GptOssForCausalLM"],"attention_bias":true,"attention_dropout":0.0,"eos_token_id":200002,"experts_per_token":4,"head_dim":64,
      "hidden_act":"silu","hidden_size":2880,"initial_context_length":4096,"initializer_range":0.02,"intermediate_size":2880,"max_position_embeddings":131072,"model_type":"gpt_oss",
      "num_attention_heads":64,"num_experts_per_tok":4,"num_hidden_layers":24,"num_key_value_heads":8,"num_local_experts":32,"output_router_logits":false,"pad_token_id":199999,
      "rms_norm_eps":1e-05,"rope_scaling":{"beta_fast":32.0,"beta_slow":1.0,"factor":32.0,"original_max_position_embeddings":4096,"rope_type":"yarn","truncate":false},
      "rope_theta":150000,"router_aux_loss_coef":0.9,"sliding_window":128,"swiglu_limit":7.0,"tie_word_embeddings":false,"transformers_version":"4.55.0.dev0","use_cache":true,
      "vocab_size":201088})"},
    {"Mistral-7B-v0.1", 4096, 32, 32000, R"({"architectures":["MistralForCausalLM"],"bos_token_id":1,"eos_token_id":2,"hidden_act":"silu","hidden_size":4096,"initializer_range":0.02,
      "intermediate_size":14336,"max_position_embeddings":32768,"model_type":"mistral","num_attention_heads":32,"num_hidden_layers":32,"num_key_value_heads":8,"rms_norm_eps":1e-05,
      "rope_theta":10000.0,"sliding_window":4096,"tie_word_embeddings":false,"torch_dtype":"bfloat16","transformers_version":"4.34.0.dev0","use_cache":true,"vocab_size":32000})"},
    {"Mistral-7B-v0.3", 4096, 32, 32768, R"({"architectures":["MistralForCausalLM"],"attention_dropout":0.0,"bos_token_id":1,"eos_token_id":2,"hidden_act":"silu","hidden_size":4096,
      "initializer_range":0.02,"intermediate_size":14336,"max_position_embeddings":32768,"model_type":"mistral","num_attention_heads":32,"num_hidden_layers":32,"num_key_value_heads":8,
      "rms_norm_eps":1e-05,"rope_theta":1000000.0,"sliding_window":null,"tie_word_embeddings":false,"torch_dtype":"bfloat16","transformers_version":"4.42.0.dev0","use_cache":true,
      "vocab_size":32768})"},
    {"Qwen2-0.5B", 896, 24, 151936, R"({"architectures":["Qwen2ForCausalLM"],"attention_dropout":0.0,"bos_token_id":151643,"eos_token_id":151643,"hidden_act":"silu","hidden_size":896,
      "initializer_range":0.02,"intermediate_size":4864,"max_position_embeddings":131072,"max_window_layers":24,"model_type":"qwen2","num_attention_heads":14,"num_hidden_layers":24,
      "num_key_value_heads":2,"rms_norm_eps":1e-06,"rope_theta":1000000.0,"sliding_window":131072,"tie_word_embeddings":true,"torch_dtype":"bfloat16","transformers_version":"4.40.1",
      "use_cache":true,"use_sliding_window":false,"vocab_size":151936})"},
    {"Qwen2.5-0.5B", 896, 24, 151936, R"({"architectures":["Qwen2ForCausalLM"],"attention_dropout":0.0,"bos_token_id":151643,"eos_token_id":151643,"hidden_act":"silu","hidden_size":896,
      "initializer_range":0.02,"intermediate_size":4864,"max_position_embeddings":32768,"max_window_layers":24,"model_type":"qwen2","num_attention_heads":14,"num_hidden_layers":24,
      "num_key_value_heads":2,"rms_norm_eps":1e-06,"rope_theta":1000000.0,"sliding_window":32768,"tie_word_embeddings":true,"torch_dtype":"bfloat16","transformers_version":"4.40.1",
      "use_cache":true,"use_mrope":false,"use_sliding_window":false,"vocab_size":151936})"},
    {"Qwen3-0.6B", 1024, 28, 151936, R"({"architectures":["Qwen3ForCausalLM"],"attention_bias":false,"attention_dropout":0.0,"bos_token_id":151643,"eos_token_id":151645,"head_dim":128,
      "hidden_act":"silu","hidden_size":1024,"initializer_range":0.02,"intermediate_size":3072,"max_position_embeddings":40960,"max_window_layers":28,"model_type":"qwen3",
      "num_attention_heads":16,"num_hidden_layers":28,"num_key_value_heads":8,"rms_norm_eps":1e-06,"rope_scaling":null,"rope_theta":1000000,"sliding_window":null,
      "tie_word_embeddings":true,"torch_dtype":"bfloat16","transformers_version":"4.51.0","use_cache":true,"use_sliding_window":false,"vocab_size":151936})"},
    {"gemma-2b", 2048, 18, 256000, R"({"architectures":["GemmaForCausalLM"],"attention_bias":false,"attention_dropout":0.0,"bos_token_id":2,"eos_token_id":1,"head_dim":256,"hidden_act":"gelu",
      "hidden_activation":null,"hidden_size":2048,"initializer_range":0.02,"intermediate_size":16384,"max_position_embeddings":8192,"model_type":"gemma","num_attention_heads":8,
      "num_hidden_layers":18,"num_key_value_heads":1,"pad_token_id":0,"rms_norm_eps":1e-06,"rope_scaling":null,"rope_theta":10000.0,"torch_dtype":"bfloat16",
      "transformers_version":"4.38.0.dev0","use_cache":true,"vocab_size":256000})"},
    {"gemma-1.1-2b-it", 2048, 18, 256000, R"({"architectures":["GemmaForCausalLM"],"attention_bias":false,"attention_dropout":0.0,"bos_token_id":2,"eos_token_id":1,"head_dim":256,
      "hidden_act":"gelu_pytorch_tanh","hidden_activation":"gelu_pytorch_tanh","hidden_size":2048,"initializer_range":0.02,"intermediate_size":16384,"max_position_embeddings":8192,
      "model_type":"gemma","num_attention_heads":8,"num_hidden_layers":18,"num_key_value_heads":1,"pad_token_id":0,"rms_norm_eps":1e-06,"rope_scaling":null,"rope_theta":10000.0,
      "torch_dtype":"bfloat16","transformers_version":"4.40.0.dev0","use_cache":true,"vocab_size":256000})"},
    {"gemma-2-2b", 2304, 26, 256000, R"({"architectures":["Gemma2ForCausalLM"],"attention_bias":false,"attention_dropout":0.0,"attn_logit_softcapping":50.0,"bos_token_id":2,
      "cache_implementation":"hybrid","eos_token_id":1,"final_logit_softcapping":30.0,"head_dim":256,"hidden_act":"gelu_pytorch_tanh","hidden_activation":"gelu_pytorch_tanh",
      "hidden_size":2304,"initializer_range":0.02,"intermediate_size":9216,"max_position_embeddings":8192,"model_type":"gemma2","num_attention_heads":8,"num_hidden_layers":26,
      "num_key_value_heads":4,"pad_token_id":0,"query_pre_attn_scalar":256,"rms_norm_eps":1e-06,"rope_theta":10000.0,"sliding_window":4096,"torch_dtype":"float32",
      "transformers_version":"4.42.4","use_cache":true,"vocab_size":256000})"},
    {"gemma-2-9b", 3584, 42, 256000, R"({"architectures":["Gemma2ForCausalLM"],"attention_bias":false,"attention_dropout":0.0,"attn_logit_softcapping":50.0,"bos_token_id":2,
      "cache_implementation":"hybrid","eos_token_id":1,"final_logit_softcapping":30.0,"head_dim":256,"hidden_act":"gelu_pytorch_tanh","hidden_activation":"gelu_pytorch_tanh",
      "hidden_size":3584,"initializer_range":0.02,"intermediate_size":14336,"max_position_embeddings":8192,"model_type":"gemma2","num_attention_heads":16,"num_hidden_layers":42,
      "num_key_value_heads":8,"pad_token_id":0,"query_pre_attn_scalar":256,"rms_norm_eps":1e-06,"rope_theta":10000.0,"sliding_window":4096,"sliding_window_size":4096,
      "torch_dtype":"float32","transformers_version":"4.42.0.dev0","use_cache":true,"vocab_size":256000})"},
    {"gemma-3-1b-pt", 1152, 26, 262144, R"({"architectures":["Gemma3ForCausalLM"],"attention_bias":false,"attention_dropout":0.0,"attn_logit_softcapping":null,"bos_token_id":2,
      "cache_implementation":"hybrid","eos_token_id":1,"final_logit_softcapping":null,"head_dim":256,"hidden_activation":"gelu_pytorch_tanh","hidden_size":1152,"initializer_range":0.02,
      "intermediate_size":6912,"max_position_embeddings":32768,"model_type":"gemma3_text","num_attention_heads":4,"num_hidden_layers":26,"num_key_value_heads":1,"pad_token_id":0,
      "query_pre_attn_scalar":256,"rms_norm_eps":1e-06,"rope_local_base_freq":10000,"rope_scaling":null,"rope_theta":1000000,"sliding_window":512,"sliding_window_pattern":6,
      "torch_dtype":"bfloat16","transformers_version":"4.50.0.dev0","use_cache":true,"vocab_size":262144})"},
    {"Phi-3-mini-4k", 3072, 32, 32064, R"({"_name_or_path":"Phi-3-mini-4k-instruct","architectures":["Phi3ForCausalLM"],"attention_bias":false,"attention_dropout":0.0,
      "auto_map":{"AutoConfig":"configuration_phi3.Phi3Config","AutoModelForCausalLM":"modeling_phi3.Phi3ForCausalLM"},"bos_token_id":1,"embd_pdrop":0.0,"eos_token_id":32000,
      "hidden_act":"silu","hidden_size":3072,"initializer_range":0.02,"intermediate_size":8192,"max_position_embeddings":4096,"model_type":"phi3","num_attention_heads":32,
      "num_hidden_layers":32,"num_key_value_heads":32,"original_max_position_embeddings":4096,"pad_token_id":32000,"resid_pdrop":0.0,"rms_norm_eps":1e-05,"rope_scaling":null,
      "rope_theta":10000.0,"sliding_window":2047,"tie_word_embeddings":false,"torch_dtype":"bfloat16","transformers_version":"4.40.2","use_cache":true,"vocab_size":32064})"},
    {"pythia-70m", 512, 6, 50304, R"({"architectures":["GPTNeoXForCausalLM"],"bos_token_id":0,"eos_token_id":0,"hidden_act":"gelu","hidden_size":512,"initializer_range":0.02,
      "intermediate_size":2048,"layer_norm_eps":1e-05,"max_position_embeddings":2048,"model_type":"gpt_neox","num_attention_heads":8,"num_hidden_layers":6,"rotary_emb_base":10000,
      "rotary_pct":0.25,"tie_word_embeddings":false,"torch_dtype":"float16","transformers_version":"4.24.0","use_cache":true,"use_parallel_residual":true,"vocab_size":50304})"},
};

json decoder(std::string_view name) {
  const auto* found = std::ranges::find(kDecoders, name, [](const Published& p) { return std::string_view(p.name); });
  return json::parse(found->config);
}

LanguageModelConfig read_published(const json& config) {
  ModelFolder folder;
  folder.write_json("config.json", config);
  return read_language_config(folder.path());
}

TEST(ReadLanguageConfig, PublishedFoldersAreRead) {
  for (const Published& published : kDecoders) {
    SCOPED_TRACE(published.name);
    const LanguageModelConfig config = read_published(json::parse(published.config));
    EXPECT_EQ(config.layer.width, published.width);
    EXPECT_EQ(config.layers, published.layers);
    EXPECT_EQ(config.vocabulary, published.vocabulary);
    EXPECT_EQ(config.layer.activation == nn::Activation::gelu_tanh, config.family.starts_with("gemma") || config.family == "gpt2");
  }
  // The config of Phi-3-mini-128k. As published, each of its lists of factors has 48 numbers; older versions of the file call the scaling "su".
  for (const char* type : {"longrope", "su"}) {
    json phi = decoder("Phi-3-mini-4k");
    phi["max_position_embeddings"] = 131072, phi["sliding_window"] = 262144;
    phi["rope_scaling"] = {{"type", type}, {"short_factor", std::vector<double>(48, 1.05)}, {"long_factor", std::vector<double>(48, 1.5)}};
    const LanguageModelConfig config = read_published(phi);
    EXPECT_EQ(config.rotary->limit, 4096);
    EXPECT_EQ(config.rotary->embedding.factor, 32);
  }
  EXPECT_EQ(read_published(decoder("gemma-2-9b")).windows.front(), 4096);
  EXPECT_EQ(read_published(decoder("Qwen2-0.5B")).windows.back(), 0);
}

TEST(ReadLanguageConfig, KeysOfTheActivationOfGemmaAgreeOrOneIsUnused) {
  json config = decoder("gemma-1.1-2b-it");
  config["hidden_act"] = "gelu";
  EXPECT_EQ(read_published(config).layer.activation, nn::Activation::gelu_tanh);
  config["hidden_act"] = "relu";
  EXPECT_ERROR(read_published(config), unsupported, HasSubstr("hidden_activation is 'gelu_pytorch_tanh' and hidden_act another function; versions of transformers differ"));
  config["hidden_activation"] = nullptr;
  EXPECT_EQ(read_published(config).layer.activation, nn::Activation::relu);
  config = decoder("gemma-2-2b");
  config["hidden_act"] = "relu";
  EXPECT_EQ(read_published(config).layer.activation, nn::Activation::gelu_tanh);
  config["hidden_activation"] = "gelu";
  EXPECT_EQ(read_published(config).layer.activation, nn::Activation::gelu);
  json llama = decoder("Llama-3.2-1B");
  llama["sliding_window_size"] = 4096;
  EXPECT_ERROR(read_published(llama), unsupported, HasSubstr("\"sliding_window_size\" is the number 4096"));
}

constexpr Published kEncoders[] = {
    {"bert-base-uncased", 768, 12, 30522, R"({"architectures":["BertForMaskedLM"],"attention_probs_dropout_prob":0.1,"gradient_checkpointing":false,"hidden_act":"gelu","hidden_dropout_prob":0.1,
      "hidden_size":768,"initializer_range":0.02,"intermediate_size":3072,"layer_norm_eps":1e-12,"max_position_embeddings":512,"model_type":"bert","num_attention_heads":12,
      "num_hidden_layers":12,"pad_token_id":0,"position_embedding_type":"absolute","transformers_version":"4.6.0.dev0","type_vocab_size":2,"use_cache":true,"vocab_size":30522})"},
    {"roberta-base", 768, 12, 50265, R"({"architectures":["RobertaForMaskedLM"],"attention_probs_dropout_prob":0.1,"bos_token_id":0,"eos_token_id":2,"hidden_act":"gelu","hidden_dropout_prob":0.1,
      "hidden_size":768,"initializer_range":0.02,"intermediate_size":3072,"layer_norm_eps":1e-05,"max_position_embeddings":514,"model_type":"roberta","num_attention_heads":12,
      "num_hidden_layers":12,"pad_token_id":1,"type_vocab_size":1,"vocab_size":50265})"},
    {"xlm-roberta-base", 768, 12, 250002, R"({"architectures":["XLMRobertaForMaskedLM"],"attention_probs_dropout_prob":0.1,"bos_token_id":0,"eos_token_id":2,"hidden_act":"gelu",
      "hidden_dropout_prob":0.1,"hidden_size":768,"initializer_range":0.02,"intermediate_size":3072,"layer_norm_eps":1e-05,"max_position_embeddings":514,"model_type":"xlm-roberta",
      "num_attention_heads":12,"num_hidden_layers":12,"output_past":true,"pad_token_id":1,"position_embedding_type":"absolute","transformers_version":"4.17.0.dev0","type_vocab_size":1,
      "use_cache":true,"vocab_size":250002})"},
    {"distilbert-base-uncased", 768, 6, 30522, R"({"activation":"gelu","architectures":["DistilBertForMaskedLM"],"attention_dropout":0.1,"dim":768,"dropout":0.1,"hidden_dim":3072,
      "initializer_range":0.02,"max_position_embeddings":512,"model_type":"distilbert","n_heads":12,"n_layers":6,"pad_token_id":0,"qa_dropout":0.1,"seq_classif_dropout":0.2,
      "sinusoidal_pos_embds":false,"tie_weights_":true,"transformers_version":"4.10.0.dev0","vocab_size":30522})"},
    {"electra-small-discriminator", 256, 12, 30522, R"({"architectures":["ElectraForPreTraining"],"attention_probs_dropout_prob":0.1,"embedding_size":128,"hidden_act":"gelu",
      "hidden_dropout_prob":0.1,"hidden_size":256,"initializer_range":0.02,"intermediate_size":1024,"layer_norm_eps":1e-12,"max_position_embeddings":512,"model_type":"electra",
      "num_attention_heads":4,"num_hidden_layers":12,"pad_token_id":0,"position_embedding_type":"absolute","summary_activation":"gelu","summary_last_dropout":0.1,"summary_type":"first",
      "summary_use_proj":true,"transformers_version":"4.6.0.dev0","type_vocab_size":2,"vocab_size":30522})"},
    {"albert-base-v2", 768, 12, 30000, R"({"architectures":["AlbertForMaskedLM"],"attention_probs_dropout_prob":0,"bos_token_id":2,"classifier_dropout_prob":0.1,"down_scale_factor":1,
      "embedding_size":128,"eos_token_id":3,"gap_size":0,"hidden_act":"gelu_new","hidden_dropout_prob":0,"hidden_size":768,"initializer_range":0.02,"inner_group_num":1,
      "intermediate_size":3072,"layer_norm_eps":1e-12,"max_position_embeddings":512,"model_type":"albert","net_structure_type":0,"num_attention_heads":12,"num_hidden_groups":1,
      "num_hidden_layers":12,"num_memory_blocks":0,"pad_token_id":0,"type_vocab_size":2,"vocab_size":30000})"},
    {"all-mpnet-base-v2", 768, 12, 30527, R"({"_name_or_path":"microsoft/mpnet-base","architectures":["MPNetForMaskedLM"],"attention_probs_dropout_prob":0.1,"bos_token_id":0,"eos_token_id":2,
      "hidden_act":"gelu","hidden_dropout_prob":0.1,"hidden_size":768,"initializer_range":0.02,"intermediate_size":3072,"layer_norm_eps":1e-05,"max_position_embeddings":514,
      "model_type":"mpnet","num_attention_heads":12,"num_hidden_layers":12,"pad_token_id":1,"relative_attention_num_buckets":32,"transformers_version":"4.8.2","vocab_size":30527})"},
    {"esm2_t6_8M_UR50D", 320, 6, 33, R"({"architectures":["EsmForMaskedLM"],"attention_probs_dropout_prob":0.0,"classifier_dropout":null,"emb_layer_norm_before":false,"esmfold_config":null,
      "hidden_act":"gelu","hidden_dropout_prob":0.0,"hidden_size":320,"initializer_range":0.02,"intermediate_size":1280,"is_folding_model":false,"layer_norm_eps":1e-05,"mask_token_id":32,
      "max_position_embeddings":1026,"model_type":"esm","num_attention_heads":20,"num_hidden_layers":6,"pad_token_id":1,"position_embedding_type":"rotary","token_dropout":true,
      "torch_dtype":"float32","transformers_version":"4.25.0.dev0","use_cache":true,"vocab_list":null,"vocab_size":33})"},
    {"ModernBERT-base", 768, 22, 50368, R"({"architectures":["ModernBertForMaskedLM"],"attention_bias":false,"attention_dropout":0.0,"bos_token_id":50281,"classifier_activation":"gelu",
      "classifier_bias":false,"classifier_dropout":0.0,"classifier_pooling":"mean","cls_token_id":50281,"decoder_bias":true,"deterministic_flash_attn":false,"embedding_dropout":0.0,
      "eos_token_id":50282,"global_attn_every_n_layers":3,"global_rope_theta":160000.0,"gradient_checkpointing":false,"hidden_activation":"gelu","hidden_size":768,
      "initializer_cutoff_factor":2.0,"initializer_range":0.02,"intermediate_size":1152,"layer_norm_eps":1e-05,"local_attention":128,"local_rope_theta":10000.0,
      "max_position_embeddings":8192,"mlp_bias":false,"mlp_dropout":0.0,"model_type":"modernbert","norm_bias":false,"norm_eps":1e-05,"num_attention_heads":12,"num_hidden_layers":22,
      "pad_token_id":50283,"position_embedding_type":"absolute","sep_token_id":50282,"tie_word_embeddings":true,"torch_dtype":"float32","transformers_version":"4.47.0.dev0",
      "vocab_size":50368})"},
};

TEST(ReadEncoderConfig, PublishedFoldersAreRead) {
  for (const Published& published : kEncoders) {
    SCOPED_TRACE(published.name);
    ModelFolder folder;
    folder.write("config.json", published.config);
    const BertConfig config = read_bert_config(folder.path() / "config.json");
    EXPECT_EQ(config.width, published.width);
    EXPECT_EQ(config.layers, published.layers);
    EXPECT_EQ(config.vocabulary, published.vocabulary);
    std::map<std::string, ConfigValue> shown;  // by `polyhead inspect`
    for (const ConfigEntry& entry : read_config(folder.path())) shown.emplace(entry.name, entry.value);
    const auto is = [](std::int64_t value) { return ConfigValue(static_cast<std::uint64_t>(value)); };
    EXPECT_EQ(shown["width"], is(config.width));
    EXPECT_EQ(shown["layers"], is(config.layers));
    EXPECT_EQ(shown["heads"], is(config.heads));
    EXPECT_EQ(shown["hidden_width"], is(config.hidden_width));
  }
}

constexpr Published kVision[] = {
    {"vit-base-patch16-224", 768, 12, 197, R"({"_name_or_path":"google/vit-base-patch16-224-in21k","architectures":["ViTForImageClassification"],"attention_probs_dropout_prob":0.0,"hidden_act":"gelu",
      "hidden_dropout_prob":0.0,"hidden_size":768,"id2label":{"0":"tench, Tinca tinca","1":"goldfish"},"image_size":224,"initializer_range":0.02,"intermediate_size":3072,"label2id":{"goldfish":1},
      "layer_norm_eps":1e-12,"model_type":"vit","num_attention_heads":12,"num_channels":3,"num_hidden_layers":12,"patch_size":16,"qkv_bias":true,"transformers_version":"4.13.0.dev0"})"},
    {"deit-base-distilled-patch16-224", 768, 12, 198, R"({"architectures":["DeiTForImageClassificationWithTeacher"],"attention_probs_dropout_prob":0.0,"hidden_act":"gelu","hidden_dropout_prob":0.0,
      "hidden_size":768,"image_size":224,"initializer_range":0.02,"intermediate_size":3072,"layer_norm_eps":1e-12,"model_type":"deit","num_attention_heads":12,"num_channels":3,
      "num_hidden_layers":12,"patch_size":16,"transformers_version":"4.6.0.dev0"})"},
    {"clip-vit-base-patch32", 768, 12, 50, R"({"_commit_hash":null,"architectures":["CLIPModel"],"initializer_factor":1.0,"logit_scale_init_value":2.6592,"model_type":"clip","projection_dim":512,
      "text_config":{"_name_or_path":"","add_cross_attention":false,"architectures":null,"attention_dropout":0.0,"bad_words_ids":null,"bos_token_id":0,"chunk_size_feed_forward":0,"cross_attention_hidden_size":null,"decoder_start_token_id":null,
      "diversity_penalty":0.0,"do_sample":false,"dropout":0.0,"early_stopping":false,"encoder_no_repeat_ngram_size":0,"eos_token_id":2,"finetuning_task":null,"forced_bos_token_id":null,"forced_eos_token_id":null,"hidden_act":"quick_gelu",
      "id2label":{"0":"LABEL_0","1":"LABEL_1"},"initializer_factor":1.0,"initializer_range":0.02,"is_decoder":false,"is_encoder_decoder":false,"label2id":{"LABEL_0":0,"LABEL_1":1},"layer_norm_eps":1e-05,"length_penalty":1.0,
      "max_length":20,"min_length":0,"no_repeat_ngram_size":0,"num_beam_groups":1,"num_beams":1,"num_return_sequences":1,"output_attentions":false,"output_hidden_states":false,"output_scores":false,"pad_token_id":1,"prefix":null,
      "problem_type":null,"pruned_heads":{},"remove_invalid_values":false,"repetition_penalty":1.0,"return_dict":true,"return_dict_in_generate":false,"sep_token_id":null,"task_specific_params":null,"temperature":1.0,
      "tie_encoder_decoder":false,"tie_word_embeddings":true,"tokenizer_class":null,"top_k":50,"top_p":1.0,"torch_dtype":null,"torchscript":false,"transformers_version":"4.16.0.dev0","use_bfloat16":false,"hidden_size":512,"intermediate_size":2048,"max_position_embeddings":77,"model_type":"clip_text_model","num_attention_heads":8,"num_hidden_layers":12,
      "projection_dim":512,"vocab_size":49408},"text_config_dict":null,"torch_dtype":"float32","transformers_version":null,
      "vision_config":{"_name_or_path":"","add_cross_attention":false,"architectures":null,"attention_dropout":0.0,"bad_words_ids":null,"bos_token_id":0,"chunk_size_feed_forward":0,"cross_attention_hidden_size":null,"decoder_start_token_id":null,
      "diversity_penalty":0.0,"do_sample":false,"dropout":0.0,"early_stopping":false,"encoder_no_repeat_ngram_size":0,"eos_token_id":2,"finetuning_task":null,"forced_bos_token_id":null,"forced_eos_token_id":null,"hidden_act":"quick_gelu",
      "id2label":{"0":"LABEL_0","1":"LABEL_1"},"initializer_factor":1.0,"initializer_range":0.02,"is_decoder":false,"is_encoder_decoder":false,"label2id":{"LABEL_0":0,"LABEL_1":1},"layer_norm_eps":1e-05,"length_penalty":1.0,
      "max_length":20,"min_length":0,"no_repeat_ngram_size":0,"num_beam_groups":1,"num_beams":1,"num_return_sequences":1,"output_attentions":false,"output_hidden_states":false,"output_scores":false,"pad_token_id":1,"prefix":null,
      "problem_type":null,"pruned_heads":{},"remove_invalid_values":false,"repetition_penalty":1.0,"return_dict":true,"return_dict_in_generate":false,"sep_token_id":null,"task_specific_params":null,"temperature":1.0,
      "tie_encoder_decoder":false,"tie_word_embeddings":true,"tokenizer_class":null,"top_k":50,"top_p":1.0,"torch_dtype":null,"torchscript":false,"transformers_version":"4.16.0.dev0","use_bfloat16":false,"hidden_size":768,"image_size":224,"intermediate_size":3072,"model_type":"clip_vision_model","num_attention_heads":12,"num_channels":3,
      "num_hidden_layers":12,"patch_size":32,"projection_dim":512},"vision_config_dict":null})"},
    {"siglip-base-patch16-224", 768, 12, 196, R"({"architectures":["SiglipModel"],"initializer_factor":1.0,"model_type":"siglip","text_config":{"model_type":"siglip_text_model"},
      "torch_dtype":"float32","transformers_version":"4.37.0.dev0","vision_config":{"model_type":"siglip_vision_model"}})"},
    {"timm/vit_tiny_patch16_224", 192, 12, 197, R"({"architecture":"vit_tiny_patch16_224","num_classes":1000,"num_features":192,"pretrained_cfg":{"tag":"augreg_in21k_ft_in1k","custom_load":true,
      "input_size":[3,224,224],"fixed_input_size":true,"interpolation":"bicubic","crop_pct":0.9,"crop_mode":"center","mean":[0.5,0.5,0.5],"std":[0.5,0.5,0.5],"num_classes":1000,
      "pool_size":null,"first_conv":"patch_embed.proj","classifier":"head"}})"},
};

TEST(ReadVisionConfig, PublishedFoldersAreRead) {
  for (const Published& published : kVision) {
    SCOPED_TRACE(published.name);
    ModelFolder folder;
    folder.write("config.json", published.config);
    const VisionConfig config = read_vision_config(folder.path());
    EXPECT_EQ(config.layer.width, published.width);
    EXPECT_EQ(config.layers, published.layers);
    EXPECT_EQ(config.tokens(), published.vocabulary);
    EXPECT_EQ(image_model_kind(folder.path()), std::string_view(published.config).find("text_config") != std::string_view::npos ? ImageModelKind::both : ImageModelKind::vision);
  }
}

TEST(ReadImageProcessor, ANumberOfAListMayBeANegativeInteger) {
  ModelFolder folder;
  folder.write_json("preprocessor_config.json", R"({"image_processor_type": "ViTImageProcessor", "image_mean": [-1, 0, 0.5]})"_json);
  EXPECT_EQ(read_image_processor(folder.path()).mean, (std::array{-1.0, 0.0, 0.5}));
}

constexpr Published kTwoSides[] = {
    {"t5-small", 512, 6, 32128, R"({"architectures":["T5ForConditionalGeneration"],"d_ff":2048,"d_kv":64,"d_model":512,"decoder_start_token_id":0,"dropout_rate":0.1,"eos_token_id":1,
      "initializer_factor":1.0,"is_encoder_decoder":true,"layer_norm_epsilon":1e-06,"model_type":"t5","n_positions":512,"num_heads":8,"num_layers":6,"output_past":true,"pad_token_id":0,
      "relative_attention_num_buckets":32,"task_specific_params":{"summarization":{"early_stopping":true,"length_penalty":2.0,"num_beams":4,"prefix":"summarize: "}},"vocab_size":32128})"},
    {"flan-t5-small", 512, 8, 32128, R"({"architectures":["T5ForConditionalGeneration"],"d_ff":1024,"d_kv":64,"d_model":512,"decoder_start_token_id":0,"dropout_rate":0.1,"eos_token_id":1,
      "feed_forward_proj":"gated-gelu","initializer_factor":1.0,"is_encoder_decoder":true,"layer_norm_epsilon":1e-06,"model_type":"t5","n_positions":512,"num_decoder_layers":8,"num_heads":6,
      "num_layers":8,"output_past":true,"pad_token_id":0,"relative_attention_max_distance":128,"relative_attention_num_buckets":32,"tie_word_embeddings":false,
      "transformers_version":"4.23.1","use_cache":true,"vocab_size":32128})"},
    {"mt5-small", 512, 8, 250112, R"({"_name_or_path":"google/mt5-small","architectures":["MT5ForConditionalGeneration"],"d_ff":1024,"d_kv":64,"d_model":512,"decoder_start_token_id":0,
      "dropout_rate":0.1,"eos_token_id":1,"feed_forward_proj":"gated-gelu","initializer_factor":1.0,"is_encoder_decoder":true,"layer_norm_epsilon":1e-06,"model_type":"mt5",
      "num_decoder_layers":8,"num_heads":6,"num_layers":8,"pad_token_id":0,"relative_attention_num_buckets":32,"tie_word_embeddings":false,"tokenizer_class":"T5Tokenizer",
      "transformers_version":"4.10.0.dev0","use_cache":true,"vocab_size":250112})"},
    {"bart-large-cnn", 1024, 12, 50264, R"({"_num_labels":3,"activation_dropout":0.0,"activation_function":"gelu","add_final_layer_norm":false,"architectures":["BartForConditionalGeneration"],
      "attention_dropout":0.0,"bos_token_id":0,"classif_dropout":0.0,"classifier_dropout":0.0,"d_model":1024,"decoder_attention_heads":16,"decoder_ffn_dim":4096,"decoder_layerdrop":0.0,
      "decoder_layers":12,"decoder_start_token_id":2,"dropout":0.1,"early_stopping":true,"encoder_attention_heads":16,"encoder_ffn_dim":4096,"encoder_layerdrop":0.0,"encoder_layers":12,
      "eos_token_id":2,"force_bos_token_to_be_generated":true,"forced_bos_token_id":0,"forced_eos_token_id":2,"gradient_checkpointing":false,"id2label":{"0":"LABEL_0"},"init_std":0.02,
      "is_encoder_decoder":true,"label2id":{"LABEL_0":0},"length_penalty":2.0,"max_length":142,"max_position_embeddings":1024,"min_length":56,"model_type":"bart","no_repeat_ngram_size":3,
      "normalize_before":false,"num_beams":4,"num_hidden_layers":12,"output_past":true,"pad_token_id":1,"prefix":" ","replacing_rate":0,"scale_embedding":false,
      "static_position_embeddings":false,"student_decoder_layers":null,"student_encoder_layers":null,"transformers_version":"4.7.0.dev0","use_cache":true,"vocab_size":50264})"},
    {"mbart-large-50-many-to-many-mmt", 1024, 12, 250054, R"({"_num_labels":3,"activation_dropout":0.0,"activation_function":"relu","add_bias_logits":false,"add_final_layer_norm":true,
      "architectures":["MBartForConditionalGeneration"],"attention_dropout":0.0,"bos_token_id":0,"classif_dropout":0.0,"classifier_dropout":0.0,"d_model":1024,"decoder_attention_heads":16,
      "decoder_ffn_dim":4096,"decoder_layerdrop":0.0,"decoder_layers":12,"decoder_start_token_id":2,"dropout":0.1,"early_stopping":true,"encoder_attention_heads":16,"encoder_ffn_dim":4096,
      "encoder_layerdrop":0.0,"encoder_layers":12,"eos_token_id":2,"forced_eos_token_id":2,"gradient_checkpointing":false,"init_std":0.02,"is_encoder_decoder":true,"max_length":200,
      "max_position_embeddings":1024,"model_type":"mbart","normalize_before":true,"normalize_embedding":true,"num_beams":5,"num_hidden_layers":12,"output_past":true,"pad_token_id":1,
      "scale_embedding":true,"static_position_embeddings":false,"tokenizer_class":"MBart50Tokenizer","transformers_version":"4.4.0.dev0","use_cache":true,"vocab_size":250054})"},
    {"opus-mt-en-de", 512, 6, 58101, R"({"_num_labels":3,"activation_dropout":0.0,"activation_function":"swish","add_bias_logits":false,"add_final_layer_norm":false,
      "architectures":["MarianMTModel"],"attention_dropout":0.0,"bad_words_ids":[[58100]],"bos_token_id":0,"classif_dropout":0.0,"classifier_dropout":0.0,"d_model":512,
      "decoder_attention_heads":8,"decoder_ffn_dim":2048,"decoder_layerdrop":0.0,"decoder_layers":6,"decoder_start_token_id":58100,"decoder_vocab_size":58101,"dropout":0.1,
      "encoder_attention_heads":8,"encoder_ffn_dim":2048,"encoder_layerdrop":0.0,"encoder_layers":6,"eos_token_id":0,"extra_pos_embeddings":58101,"forced_eos_token_id":0,"init_std":0.02,
      "is_encoder_decoder":true,"max_length":512,"max_position_embeddings":512,"model_type":"marian","normalize_before":false,"normalize_embedding":false,"num_beams":6,
      "num_hidden_layers":6,"pad_token_id":58100,"scale_embedding":true,"share_encoder_decoder_embeddings":true,"static_position_embeddings":true,"transformers_version":"4.22.0.dev0",
      "use_cache":true,"vocab_size":58101})"},
    {"whisper-tiny", 384, 4, 51865, R"({"_name_or_path":"openai/whisper-tiny","activation_dropout":0.0,"activation_function":"gelu","architectures":["WhisperForConditionalGeneration"],
      "attention_dropout":0.0,"begin_suppress_tokens":[220,50257],"bos_token_id":50257,"d_model":384,"decoder_attention_heads":6,"decoder_ffn_dim":1536,"decoder_layerdrop":0.0,
      "decoder_layers":4,"decoder_start_token_id":50258,"dropout":0.0,"encoder_attention_heads":6,"encoder_ffn_dim":1536,"encoder_layerdrop":0.0,"encoder_layers":4,"eos_token_id":50257,
      "forced_decoder_ids":[[1,50259],[2,50359],[3,50363]],"init_std":0.02,"is_encoder_decoder":true,"max_length":448,"max_source_positions":1500,"max_target_positions":448,
      "model_type":"whisper","num_hidden_layers":4,"num_mel_bins":80,"pad_token_id":50257,"scale_embedding":false,"suppress_tokens":[1,2,7],"torch_dtype":"float32",
      "transformers_version":"4.27.0.dev0","use_cache":true,"vocab_size":51865})"},
};

TEST(ReadSequenceToSequenceConfig, PublishedFoldersAreRead) {
  for (const Published& published : kTwoSides) {
    SCOPED_TRACE(published.name);
    ModelFolder folder;
    folder.write("config.json", published.config);
    const SequenceToSequenceConfig config = read_sequence_to_sequence_config(folder.path());
    EXPECT_EQ(config.encoder.width, published.width);
    EXPECT_EQ(config.encoder_layers, published.layers);
    EXPECT_EQ(config.decoder_layers, published.layers);
    EXPECT_EQ(config.target_vocabulary, published.vocabulary);
    EXPECT_TRUE(config.answer.start_token);
  }
}

}  // namespace
}  // namespace polyhead::models
