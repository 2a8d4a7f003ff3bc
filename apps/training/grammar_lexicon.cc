#include "training/grammar_lexicon.h"

#include <algorithm>
#include <iterator>
#include <span>

#include "core/text.h"
#include "training/grammar_words.h"
#include "training/lines.h"

namespace polyhead::training::grammar {
namespace {

bool ends_with_one_of(Text word, std::initializer_list<Text> endings) {
  return std::ranges::any_of(endings, [&](Text e) { return word.ends_with(e); });
}
std::string without(Text word, std::size_t bytes) { return std::string(word.substr(0, word.size() - bytes)); }
bool consonant_y(Text word) { return word.size() > 1 && word.back() == 'y' && !is_english_vowel(word[word.size() - 2]); }

// Appends the s of a plural noun, or of a verb after "he".
std::string english_s(Text word) {
  if (word == "have") return "has";
  if (ends_with_one_of(word, {"s", "x", "ch", "sh"})) return cat(word, "es");
  return consonant_y(word) ? without(word, 1) + "ies" : cat(word, "s");
}
// The stem before -ing and -ed. The last letter is doubled after one vowel and one consonant, as in "run", "swim".
std::string english_stem(Text word) {
  const auto vowels = std::ranges::count_if(word, is_english_vowel);
  const bool doubles = vowels == 1 && word.size() > 2 && is_english_vowel(word[word.size() - 2]) && Text("wxy").find(word.back()) == Text::npos && !is_english_vowel(word.back());
  return doubles ? cat(word, word.substr(word.size() - 1)) : std::string(word);
}
std::string english_ed(Text word) {
  if (consonant_y(word)) return without(word, 1) + "ied";
  return word.ends_with('e') ? cat(word, "d") : english_stem(word) + "ed";
}
std::string english_ing(Text word) { return (word.ends_with('e') ? without(word, 1) : english_stem(word)) + "ing"; }

std::string french_plural_noun(Text word) {
  if (ends_with_one_of(word, {"s", "x", "z"})) return std::string(word);
  if (word.ends_with("al")) return without(word, 1) + "ux";
  return cat(word, ends_with_one_of(word, {"au", "eu"}) ? "x" : "s");
}

std::string given_or(Text given, std::string regular) { return given == "-" || given.empty() ? std::move(regular) : std::string(given); }

Phrase phrase_of(Text row) {
  const std::vector<Text> parts = split(row, '|');
  Phrase phrase{.english = split(parts[0], ' '), .french = split(parts[1], ' ')};
  const bool listed = parts.size() > 2 && !parts[2].empty();
  const std::vector<Text> links = listed ? split(parts[2], ' ') : std::vector<Text>();
  for (int j = 0; j < static_cast<int>(phrase.french.size()); ++j) phrase.links.push_back(listed ? links[static_cast<std::size_t>(j)][0] - '0' : j);
  if (parts.size() > 3) phrase.kinds = parts[3];
  return phrase;
}

}  // namespace

bool is_english_vowel(char c) { return Text("aeiou").find(c) != Text::npos; }
std::string french_feminine(Text word) { return word.ends_with('e') ? std::string(word) : cat(word, "e"); }
std::string french_plural(Text word) { return ends_with_one_of(word, {"s", "x"}) ? std::string(word) : cat(word, "s"); }

std::pair<Text, Text> halves(Text text) {
  const std::size_t at = text.find('/');
  return at == Text::npos ? std::pair(text, Text()) : std::pair(text.substr(0, at), text.substr(at + 1));
}

FrenchVerb::FrenchVerb(Text forms) {
  const std::vector<Text> given = split(forms, ',');
  infinitive = given[0];
  const auto set = [&](const std::string& stem, std::initializer_list<Text> endings) {
    std::ranges::transform(endings, present, [&](Text e) { return stem + std::string(e); });
  };
  const std::string stem = without(infinitive, 2);
  if (given.size() > 1) {
    std::copy(given.begin() + 1, given.begin() + 6, present);
    participle = given[6];
  } else if (infinitive.ends_with("er")) {
    set(stem, {"e", "e", stem.ends_with('g') ? "eons" : "ons", "ez", "ent"});
    participle = stem + "é";
  } else if (infinitive.ends_with("ir")) {
    set(stem, {"is", "it", "issons", "issez", "issent"});
    participle = stem + "i";
  } else {  // -dre
    set(stem, {"s", "", "ons", "ez", "ent"});
    participle = stem + "u";
  }
}

Lexicon::Lexicon() {
  for (const Text row : kNouns) {
    const auto p = split(row, ' ');
    const auto [one, many] = halves(p[0]);
    const auto [un, des] = halves(p[1]);
    nouns.push_back({{std::string(one), given_or(many, english_s(one))}, {std::string(un), given_or(des, french_plural_noun(un))}, p[2] == "f", p[3]});
  }
  for (const Text row : kAdjectives) {
    const auto p = split(row, ' ');
    const std::string m(p[1]), f = given_or(p[2], french_feminine(m)), singular = p[4] == "-" ? m : cat(m, "/", p[4]);
    adjectives.push_back({p[0], {{singular, given_or(p[3], french_plural(m))}, {f, french_plural(f)}}, p[5] == "<", p[6]});
  }
  for (const Text row : kParticiples) {
    const auto p = split(row, ' ');
    const std::string m(p[1]), f = given_or(p[2], french_feminine(m));
    participles.push_back({p[0], {{m, french_plural(m)}, {f, french_plural(f)}}, false, p[3]});
  }
  for (const Text row : kVerbs) {
    const auto p = split(row, ' ');
    const Text flags = p.size() > 5 ? p[5] : Text();
    verbs.push_back({std::string(p[0]), english_s(p[0]), given_or(p[1], english_ed(p[0])), flags == "s" ? "" : english_ing(p[0]), FrenchVerb(p[2]), p[3], p[4], flags == "e"});
  }
  for (const Text row : kDeterminers) {
    const auto p = split(row, ' ');
    determiners.push_back({{p[0], p[1]}, {p[2], p[3], p[4]}});
  }
  for (const Text row : kModals) modals.emplace_back(split(row, ' ')[0], FrenchVerb(split(row, ' ')[1]));
  const std::pair<std::vector<Phrase>*, std::span<const Text>> phrases[] = {
      {&prepositions, kPrepositions}, {&places, kPlaces}, {&times, kTimes}, {&past_times, kPastTimes}, {&frequencies, kFrequencies}};
  for (const auto& [list, rows] : phrases) std::ranges::transform(rows, std::back_inserter(*list), phrase_of);
}

Lexicon Lexicon::of_text(const std::set<Text>& text) const {
  const auto has = [&](Text word) { return text.contains(word); };
  const auto has_all = [&](const Phrase& p) { return std::ranges::all_of(p.english, has); };
  const auto keep = [](auto& list, const auto& in_text) {
    if (std::ranges::any_of(list, in_text)) std::erase_if(list, [&](const auto& one) { return !in_text(one); });
  };
  Lexicon part = *this;
  keep(part.nouns, [&](const Noun& n) { return has(n.english[0]) || has(n.english[1]); });
  for (auto* list : {&part.adjectives, &part.participles}) keep(*list, [&](const Adjective& a) { return has(a.english) || (a.english == "other" && has("another")); });
  keep(part.verbs, [&](const Verb& v) { return has(v.base) || has(v.s) || has(v.ed) || has(v.ing); });
  keep(part.determiners, [&](const Determiner& d) { return has(halves(d.english[0]).first) || has(d.english[1]) || (d.indefinite() && (has("an") || has("another"))); });
  keep(part.modals, [&](const auto& m) { return has(m.first) || has(cat(m.first, "s")) || has(cat(m.first, "not")); });
  keep(part.pronouns, [&](const Pronoun& p) { return has(p.english); });
  for (auto* list : {&part.prepositions, &part.places, &part.times, &part.past_times, &part.frequencies}) keep(*list, has_all);
  return part;
}

const Lexicon& lexicon() {
  static const Lexicon words;
  return words;
}

}  // namespace polyhead::training::grammar
