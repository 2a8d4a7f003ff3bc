// All steps of a tokenizer, as data.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "models/tokenizer/added_tokens.h"
#include "models/tokenizer/decoder.h"
#include "models/tokenizer/normalizer.h"
#include "models/tokenizer/post_processor.h"
#include "models/tokenizer/pre_tokenizer.h"
#include "models/tokenizer/vocabulary.h"
#include "models/tokenizer/word_model.h"

namespace polyhead::models {

// The steps as read from files.
struct PipelineParts {
  std::vector<NormalizerStep> normalizer;
  std::vector<PreTokenizerStep> pre_tokenizer;
  WordModel model;
  Vocabulary vocabulary;
  std::vector<PostProcessorStep> post_processor;
  std::vector<DecoderStep> decoder;
  std::vector<AddedToken> added_tokens;
  std::vector<std::string> missing_tokens{};  // special tokens that a file names and no vocabulary has; a text with one is refused
};

class Pipeline {
 public:
  // Throws an Error if an added token contradicts the vocabulary: the vocabulary has this token with another id, or another token with this id.
  explicit Pipeline(PipelineParts parts);
  Pipeline(const Pipeline&) = delete;  // not copied, because the finders refer to the added tokens

  const PipelineParts& parts() const { return parts_; }
  // Returns the tokens of a text, without special tokens around it.
  std::vector<TextToken> tokenize(AlignedText text, int number) const;
  std::vector<TextToken> post_process(std::vector<std::vector<TextToken>> texts, const std::vector<std::string_view>& sources) const;
  std::int64_t special_count(bool pair) const;
  std::optional<std::int64_t> unknown() const { return unknown_; }

  std::optional<std::int64_t> find(std::string_view piece) const;
  std::optional<std::string> piece(std::int64_t id) const;  // nullopt if there is no token with this id
  std::string decode(std::span<const std::int64_t> ids, bool skip_special) const;
  std::int64_t id_limit() const { return id_limit_; }

 private:
  void check_added_tokens();
  void append_words(std::vector<TextToken>& tokens, AlignedText text, int number) const;

  PipelineParts parts_;
  std::optional<std::int64_t> unknown_;
  std::unordered_map<std::int64_t, const AddedToken*> added_by_id_;
  std::unordered_map<std::string_view, const AddedToken*> added_by_content_;
  std::unordered_set<std::string_view> special_;
  AddedTokenFinder raw_tokens_, normalized_tokens_;
  std::int64_t id_limit_ = 0;
};

struct Tokenizer::Parts {
  explicit Parts(PipelineParts parts) : pipeline(std::move(parts)) {}
  Pipeline pipeline;
};

}  // namespace polyhead::models
