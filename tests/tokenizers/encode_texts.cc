// encode_texts FOLDER: encodes texts with the tokenizer of a folder. Each line of standard input is a JSON list of one text or a pair of texts. The program writes one line
// of JSON for each: {"ids", "spans", "segments", "special", "texts", "decoded", "decoded_all"} or {"error"}.
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "polyhead/models/tokenizer.h"

int main(int count, char** arguments) try {
  if (count != 2) {
    std::cerr << "usage: encode_texts FOLDER <texts\n";
    return 2;
  }
  const auto tokenizer = polyhead::models::load_tokenizer(arguments[1]);
  std::ios::sync_with_stdio(false);
  for (std::string line; std::getline(std::cin, line);) {
    const auto texts = nlohmann::json::parse(line).get<std::vector<std::string>>();
    nlohmann::json result;
    try {
      const auto tokens = texts.size() > 1 ? tokenizer.encode(texts[0], texts[1]) : tokenizer.encode(texts.at(0));
      nlohmann::json spans = nlohmann::json::array();
      for (const auto& span : tokens.spans) spans.push_back({span.first, span.last});
      result = {{"ids", tokens.ids},         {"spans", spans},           {"segments", tokens.segments},
                {"special", tokens.special}, {"texts", tokens.texts},    {"decoded", tokenizer.decode(tokens.ids)},
                {"decoded_all", tokenizer.decode(tokens.ids, false)}};
    } catch (const std::exception& error) {
      result = {{"error", error.what()}};
    }
    std::cout << result.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
  }
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
