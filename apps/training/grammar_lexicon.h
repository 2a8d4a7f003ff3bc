// The words of the teaching grammar with their forms in both languages, made from the tables of grammar_words.h.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace polyhead::training::grammar {

using Text = std::string_view;

// Splits "a/b" into a and b. Without a slash, b is empty.
std::pair<Text, Text> halves(Text text);

bool is_english_vowel(char c);
// The French forms of an adjective or participle. french_plural() takes the singular of either gender.
std::string french_feminine(Text word);
std::string french_plural(Text word);

enum Person : std::uint8_t { je, il, nous, vous, ils };

struct FrenchVerb {
  std::string infinitive;
  std::string present[5];  // by Person
  std::string participle;

  explicit FrenchVerb(Text forms);
};

struct Noun {
  std::string english[2], french[2];  // singular, plural
  bool feminine;
  Text kind;
};
struct Adjective {
  Text english;
  std::string french[2][2];  // [feminine][plural]
  bool before;
  Text kinds;
};
struct Verb {
  std::string base, s, ed, ing;  // "sell", "sells", "sold", "selling"; ing is "" if the verb has no progressive form
  FrenchVerb french;
  // The kinds of nouns that may be the verb's subject or object, as letters of grammar_words.h. objects is "-" if the verb takes no object.
  Text subjects, objects;
  bool with_etre;
};
struct Determiner {
  Text english[2], french[3];  // English singular and plural; French masculine, feminine and plural
  bool indefinite() const { return english[1] == "some"; }
};
struct Phrase {
  std::vector<Text> english, french;
  std::vector<int> links{};  // links[i] is the index of the English word for French word i
  Text kinds{};
};
struct Pronoun {
  Text english, french;
  Person person;
  bool feminine = false;
};

struct Lexicon {
  std::vector<Noun> nouns;
  std::vector<Adjective> adjectives, participles;
  std::vector<Verb> verbs;
  std::vector<Determiner> determiners;
  std::vector<Phrase> prepositions, places, times, past_times, frequencies;
  std::vector<std::pair<Text, FrenchVerb>> modals;
  std::vector<Pronoun> pronouns{{"I", "je/j'", je}, {"he", "il", il}, {"she", "elle", il, true}, {"we", "nous", nous}, {"you", "vous", vous}, {"they", "ils", ils}};

  Lexicon();

  // Returns a copy of the lexicon with only those words that occur in a text. A list of which no word occurs in the text stays whole.
  Lexicon of_text(const std::set<Text>& text) const;
};

const Lexicon& lexicon();

}  // namespace polyhead::training::grammar
