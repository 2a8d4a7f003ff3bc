// Readers of the stages of tokenizer.json. Each is a table of the kinds that the stage may have.
#pragma once

#include <vector>

#include "models/tokenizer/json_node.h"
#include "models/tokenizer/pipeline.h"

namespace polyhead::models {

// Kinds named "Sequence" append the steps of their members, so that the result has no nesting.
void read_normalizer(const JsonNode& node, std::vector<NormalizerStep>& steps);
void read_pre_tokenizer(const JsonNode& node, std::vector<PreTokenizerStep>& steps);
void read_post_processor(const JsonNode& node, std::vector<PostProcessorStep>& steps);
void read_decoder(const JsonNode& node, std::vector<DecoderStep>& steps);

struct ModelParts {
  WordModel model;
  Vocabulary vocabulary;
};
ModelParts read_model(const JsonNode& node);

// Reads {"String": "a"} or {"Regex": "a+"} of the steps Replace and Split.
Regex read_pattern(const JsonNode& node, std::string_view key);
// Reads the members that the pre-tokeniser and the decoder Metaspace share.
Metaspace read_metaspace(const JsonNode& node);

// Reads an object that maps pieces to ids.
Vocabulary read_vocabulary(const JsonNode& node, std::string_view key);
Vocabulary read_vocabulary(const JsonFile& file, const io::Json& object, std::string_view where);
// Adds a merge of BPE for two pieces; a later merge of the same pieces replaces it. `where` names the merge in messages.
void add_merge(BytePairs& model, std::string_view first, std::string_view second, std::int64_t rank, const Vocabulary& vocabulary, std::string_view where);
// Adds a merge written as "a b", or as a line of merges.txt.
void add_merge(BytePairs& model, std::string_view line, std::int64_t rank, const Vocabulary& vocabulary, std::string_view where);

// Reads the whole file.
PipelineParts read_tokenizer_json(const JsonFile& file);

}  // namespace polyhead::models
