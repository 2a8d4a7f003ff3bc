#include "models/tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <utility>

#include "models/tokenizer/byte_level.h"
#include "models/tokenizer/gpt2_pattern.h"
#include "models/tokenizer/growth_limit.h"
#include "models/tokenizer/utf8.h"

namespace polyhead::models {
namespace {

// Cuts the text at each character for which holds(code) is true.
template <class F>
std::vector<Match> split_at_characters(std::string_view text, const F& holds) {
  std::vector<Match> parts;
  std::size_t done = 0;
  for (std::size_t at = 0; at < text.size();) {
    const auto [code, last] = char_at(text, at);
    if (holds(code)) {
      if (done < at) parts.push_back({done, at, false});
      parts.push_back({at, last, true});
      done = last;
    }
    at = last;
  }
  if (done < text.size()) parts.push_back({done, text.size(), false});
  return parts;
}

bool is_ascii_symbol(char32_t code) { return code > ' ' && code < 0x7F && !(code >= '0' && code <= '9') && !((code | 0x20) >= 'a' && (code | 0x20) <= 'z'); }

std::vector<Match> cut(std::string_view word, const SplitAtClass& step) {
  const bool symbols = step.char_class == CharClass::punctuation;
  return split_at_matches(split_at_characters(word, [&](char32_t c) { return (symbols && is_ascii_symbol(c)) || is_in(step.char_class, c); }), step.delimiters);
}

std::vector<Match> cut(std::string_view word, const SplitAtPattern& step) {
  std::vector<Match> parts = step.pattern.split(word);
  if (step.invert)
    for (Match& part : parts) part.matches = !part.matches;
  return split_at_matches(parts, step.delimiters);
}

std::vector<Match> cut(std::string_view word, const SplitWordsAndSymbols&) {
  std::vector<Match> parts;
  int before = -1;  // kind of the character before: 0 white space, 1 word, 2 symbol
  for (std::size_t at = 0; at < word.size();) {
    const auto [code, last] = char_at(word, at);
    const int kind = is_in(CharClass::word, code) ? 1 : is_in(CharClass::white_space, code) ? 0 : 2;
    if (kind != 0 && kind == before)
      parts.back().last = last;
    else if (kind != 0)
      parts.push_back({at, last, true});
    before = kind;
    at = last;
  }
  return parts;
}

std::vector<Match> cut(std::string_view word, const SplitAtCharacter& step) {
  return split_at_matches(split_at_characters(word, [&](char32_t c) { return c == step.delimiter; }), Delimiters::removed);
}

std::vector<Match> cut(std::string_view word, const SplitByLength& step) {
  std::vector<Match> parts;
  std::size_t count = 0;
  for (std::size_t at = 0; at < word.size(); ++count) {
    const std::size_t last = char_at(word, at).last;
    if (count % step.characters == 0) parts.push_back({at, at, true});
    parts.back().last = at = last;
  }
  return parts;
}

// Runs a step that only splits words and does not change the text.
template <class Step>
Words run_step(Words words, const Step& step) {
  std::vector<ByteSpan> result;
  for (const ByteSpan& word : words.words)
    for (const Match& part : cut(std::string_view(words.text.bytes).substr(word.first, word.last - word.first), step))
      result.push_back({word.first + part.first, word.first + part.last});
  words.words = std::move(result);
  return words;
}

// Appends `prefix`, with the span of the first character of `word`, to the text. The caller appends `word` afterwards.
void append_prefix(AlignedText& to, char32_t prefix, AlignedView word) { to.append(prefix, word.spans.front()); }

Words run_step(const Words& words, const ByteLevelWords& step) {
  Words result{.text = {.bytes = {}, .spans = {}, .origin = words.text.origin}, .words = {}};
  const AlignedView whole = words.text.view();
  for (const ByteSpan& range : words.words) {
    AlignedText word{.bytes = {}, .spans = {}, .origin = whole.part(range.first, range.last).origin};
    if (step.add_prefix_space && whole.bytes[range.first] != ' ') append_prefix(word, U' ', whole.part(range.first, range.last));
    word.append(whole.part(range.first, range.last));
    const std::vector<Match> parts = step.pattern.empty() ? std::vector<Match>{{0, word.bytes.size(), true}} : step.pattern.front().split(word.bytes);
    for (const Match& part : parts) {
      if (part.first == part.last) continue;
      const std::size_t first = result.text.bytes.size();
      append_byte_level(word.view().part(part.first, part.last), result.text);
      result.words.push_back({first, result.text.bytes.size()});
    }
  }
  return result;
}

Words run_step(const Words& words, const Metaspace& step) {
  Words result{.text = {.bytes = {}, .spans = {}, .origin = words.text.origin}, .words = {}};
  AlignedText& text = result.text;
  const AlignedView whole = words.text.view();
  for (const ByteSpan& range : words.words) {
    const AlignedView word = whole.part(range.first, range.last);
    std::size_t start = text.bytes.size();
    const char32_t begin = char_at(word.bytes, 0).code;
    const bool wanted = step.prepend == PrependScheme::always || (step.prepend == PrependScheme::first && word.spans.front().first == 0);
    if (wanted && begin != U' ' && begin != step.replacement) append_prefix(text, step.replacement, word);
    for (Rewriter rewriter(word, text); !rewriter.done();) {
      const std::size_t before = text.bytes.size();
      const char32_t code = rewriter.peek() == U' ' ? step.replacement : rewriter.peek();
      if (step.split && code == step.replacement && before > start) {
        result.words.push_back({start, before});
        start = before;
      }
      rewriter.replace(code);
    }
    result.words.push_back({start, text.bytes.size()});
  }
  return result;
}

}  // namespace

std::vector<Match> split_at_matches(const std::vector<Match>& parts, Delimiters delimiters) {
  std::vector<Match> result;
  switch (delimiters) {
    case Delimiters::removed:
      for (const Match& part : parts)
        if (!part.matches) result.push_back(part);
      break;
    case Delimiters::isolated: result = parts; break;
    case Delimiters::contiguous: {
      bool before = false;
      for (const Match& part : parts) {
        if (part.matches == before && !result.empty())
          result.back().last = part.last;
        else
          result.push_back(part);
        before = part.matches;
      }
      break;
    }
    case Delimiters::merged_with_previous: {
      bool before = false;
      for (const Match& part : parts) {
        if (part.matches && !before && !result.empty())
          result.back().last = part.last;
        else
          result.push_back(part);
        before = part.matches;
      }
      break;
    }
    case Delimiters::merged_with_next: {
      // A delimiter merges with the part after it, unless that part is a delimiter that has merged. So the loop runs from the last part to the first.
      bool after = false;
      for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
        if (part->matches && !after && !result.empty())
          result.back().first = part->first;
        else
          result.push_back(*part);
        after = part->matches;
      }
      std::ranges::reverse(result);
      break;
    }
  }
  std::erase_if(result, [](const Match& part) { return part.first == part.last; });
  return result;
}

Regex gpt2_pattern() { return Regex(kGpt2Pattern, "GPT-2's pattern"); }

std::vector<PreTokenizerStep> bert_words() { return {SplitAtClass{CharClass::white_space, Delimiters::removed}, SplitAtClass{CharClass::punctuation, Delimiters::isolated}}; }

Words split_words(AlignedText text, const std::vector<PreTokenizerStep>& steps) {
  Words words{.text = std::move(text), .words = {}};
  if (!words.text.bytes.empty()) words.words.push_back({0, words.text.bytes.size()});
  const GrowthLimit growth("pre_tokenizer", words.text.bytes.size());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    words = std::visit([&](const auto& kind) { return run_step(std::move(words), kind); }, steps[i]);
    growth.check(words.text.bytes.size(), i + 1, std::holds_alternative<ByteLevelWords>(steps[i]) ? "ByteLevel" : "Metaspace");  // the other steps do not change the text
  }
  return words;
}

}  // namespace polyhead::models
