// The input is a tokenizer.json, a NUL byte, and a text, which the tokenizer encodes and decodes.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "models/tokenizer/pipeline.h"
#include "models/tokenizer/read_stages.h"
#include "polyhead/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace polyhead::models;
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const std::string_view file = all.substr(0, all.find('\0'));
  const std::string_view text = file.size() < all.size() ? all.substr(file.size() + 1) : "A text: na\xC3\xAFve, 12 \xE6\x88\x91.";
  try {
    const Pipeline pipeline(read_tokenizer_json(JsonFile(file, "fuzz")));
    std::vector<std::vector<TextToken>> texts;
    texts.push_back(pipeline.tokenize(align_utf8(text).text, 0));
    std::vector<std::int64_t> ids;
    for (const TextToken& token : pipeline.post_process(std::move(texts), {text})) {
      if (token.span.last > text.size() || token.span.first > text.size()) __builtin_trap();
      if (pipeline.find(token.piece)) ids.push_back(token.id);
    }
    (void)pipeline.decode(ids, false);
  } catch (const polyhead::Error&) {
  }
  return 0;
}
