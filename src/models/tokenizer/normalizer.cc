#include "models/tokenizer/normalizer.h"

#include <algorithm>
#include <array>

#include "models/tokenizer/byte_level.h"
#include "models/tokenizer/char_class.h"
#include "models/tokenizer/growth_limit.h"
#include "models/tokenizer/utf8.h"

namespace polyhead::models {
namespace {

AlignedText empty_like(const AlignedText& text) { return {.bytes = {}, .spans = {}, .origin = text.origin}; }

// Keeps the characters for which f(code) is true.
template <class F>
AlignedText filtered(const AlignedText& text, const F& f) {
  AlignedText to = empty_like(text);
  for (Rewriter rewriter(text.view(), to); !rewriter.done();) {
    if (f(rewriter.peek()))
      rewriter.keep();
    else
      rewriter.drop();
  }
  return to;
}

// Replaces each character by f(code).
template <class F>
AlignedText mapped(const AlignedText& text, const F& f) {
  AlignedText to = empty_like(text);
  for (Rewriter rewriter(text.view(), to); !rewriter.done();) rewriter.replace(f(rewriter.peek()));
  return to;
}

AlignedText lowered(const AlignedText& text) {
  AlignedText to = empty_like(text);
  for (Rewriter rewriter(text.view(), to); !rewriter.done();) {
    char32_t lower[2];
    const int count = lower_case(rewriter.peek(), lower);
    rewriter.replace(lower[0]);
    if (count > 1) rewriter.insert(lower[1]);
  }
  return to;
}

// Returns whether BERT's tokenizer takes the character for a CJK ideograph. In Unicode, Extension E begins at U+2B820, but the `tokenizers` package, and so
// this table, has U+2B920.
bool is_cjk_ideograph(char32_t code) {
  static constexpr std::array<std::array<char32_t, 2>, 8> kBlocks{{{0x4E00, 0x9FFF},
                                                                   {0x3400, 0x4DBF},
                                                                   {0x20000, 0x2A6DF},
                                                                   {0x2A700, 0x2B73F},
                                                                   {0x2B740, 0x2B81F},
                                                                   {0x2B920, 0x2CEAF},
                                                                   {0xF900, 0xFAFF},
                                                                   {0x2F800, 0x2FA1F}}};
  return std::any_of(kBlocks.begin(), kBlocks.end(), [&](const auto& block) { return code >= block[0] && code <= block[1]; });
}

AlignedText run_step(AlignedText text, const BertNormalizer& step) {
  if (step.clean_text) {
    text = filtered(text, [](char32_t c) { return c != 0 && c != 0xFFFD && !is_in(CharClass::removed_control, c); });
    text = mapped(text, [](char32_t c) { return is_in(CharClass::white_space, c) ? U' ' : c; });
  }
  if (step.isolate_cjk) {
    AlignedText to = empty_like(text);
    for (Rewriter rewriter(text.view(), to); !rewriter.done();) {
      const char32_t code = rewriter.peek();
      if (!is_cjk_ideograph(code)) {
        rewriter.keep();
        continue;
      }
      rewriter.replace(U' ');
      rewriter.insert(code);
      rewriter.insert(U' ');
    }
    text = std::move(to);
  }
  if (step.strip_accents) {
    text = normal_form(text.view(), {});
    text = filtered(text, [](char32_t c) { return !is_in(CharClass::nonspacing_mark, c); });
  }
  return step.lowercase ? lowered(text) : text;
}

AlignedText run_step(const AlignedText& text, const NormalForm& form) { return normal_form(text.view(), form); }
AlignedText run_step(const AlignedText& text, const Lowercase&) { return lowered(text); }
AlignedText run_step(const AlignedText& text, const StripAccents&) {
  return filtered(text, [](char32_t c) { return !is_in(CharClass::combining_mark, c); });
}

AlignedText run_step(const AlignedText& text, const StripEnds& step) {
  std::size_t first = 0, last = text.bytes.size();
  while (step.left && first < last) {
    const auto [code, next] = char_at(text.bytes, first);
    if (!is_in(CharClass::white_space, code)) break;
    first = next;
  }
  while (step.right && first < last) {
    const auto [code, before] = char_before(text.bytes, last);
    if (!is_in(CharClass::white_space, code)) break;
    last = before;
  }
  AlignedText to = empty_like(text);
  to.append(text.view().part(first, last));
  return to;
}

AlignedText run_step(const AlignedText& text, const ReplaceMatches& step, std::size_t limit) {
  AlignedText to = empty_like(text);
  const AlignedView view = text.view();
  for (const Match& match : step.pattern.split(text.bytes)) {
    if (to.bytes.size() > limit) break;
    if (!match.matches) {
      to.append(view.part(match.first, match.last));
      continue;
    }
    // The new characters get the span of the last byte of the match.
    const ByteSpan span = match.last == 0 ? ByteSpan{text.origin, text.origin} : text.spans[match.last - 1];
    to.bytes += step.content;
    to.spans.resize(to.bytes.size(), span);
  }
  return to;
}

AlignedText run_step(AlignedText text, const Prepend& step) {
  if (text.bytes.empty()) return text;
  text.bytes.insert(0, step.text);
  text.spans.insert(text.spans.begin(), step.text.size(), ByteSpan(text.spans.front()));
  return text;
}

AlignedText run_step(const AlignedText& text, const ByteLevelText&) {
  AlignedText to = empty_like(text);
  append_byte_level(text.view(), to);
  return to;
}

AlignedText run_step(const AlignedText& text, const Nmt&) {
  const AlignedText kept = filtered(text, [](char32_t c) {
    return !((c >= 0x1 && c <= 0x8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F);
  });
  return mapped(kept, [](char32_t c) {
    const bool space = c == 0x9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 || (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
    return space ? U' ' : c;
  });
}

AlignedText run_step(const AlignedText& text, const std::shared_ptr<const CharsMap>& map, std::size_t limit) { return map->apply(text.view(), limit); }

std::string_view kind_of(const NormalizerStep& step) {
  static constexpr std::array<std::string_view, std::variant_size_v<NormalizerStep>> kKinds{"BertNormalizer", "normal form", "Lowercase", "StripAccents", "Strip",
                                                                                             "Replace",        "Prepend",     "ByteLevel", "Nmt",          "Precompiled"};
  return kKinds[step.index()];
}

}  // namespace

AlignedText normalize(AlignedText text, const std::vector<NormalizerStep>& steps) {
  const GrowthLimit growth("normalizer", text.bytes.size());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    text = std::visit(
        [&](const auto& kind) {
          if constexpr (requires { run_step(std::move(text), kind, growth.limit()); })
            return run_step(std::move(text), kind, growth.limit());
          else
            return run_step(std::move(text), kind);
        },
        steps[i]);
    growth.check(text.bytes.size(), i + 1, kind_of(steps[i]));
  }
  return text;
}

}  // namespace polyhead::models
