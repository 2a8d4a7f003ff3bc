#include "training/grammar.h"

#include <algorithm>
#include <set>
#include <utility>

#include "core/text.h"
#include "polyhead/nn/seed.h"
#include "training/draw.h"
#include "training/grammar_lexicon.h"
#include "training/grammar_words.h"
#include "training/lines.h"

namespace polyhead::training {
namespace {

using namespace grammar;

constexpr int kNone = -1;

// Makes random choices. If a text is given, it makes only choices that can produce this text.
class Draw {
 public:
  explicit Draw(std::uint64_t seed, const Lexicon& of = lexicon(), const std::vector<Text>* wanted = nullptr) : words(of), text(wanted), seed_(seed) {}
  const Lexicon& words;
  const std::vector<Text>* text;  // the words of a given text, or nullptr; the "." or "?" at its end is a word too
  bool asks(std::size_t percent) { return text != nullptr ? text->back() == "?" : chance(percent); }
  bool ends(std::size_t percent) { return text != nullptr ? text->back() == "." : chance(percent); }
  std::size_t below(std::size_t count) { return nn::derive_seed(seed_, number_++) % count; }
  bool chance(std::size_t percent) { return below(100) < percent; }
  template <class T>
  const T& of(const std::vector<T>& list) {
    return list[below(list.size())];
  }
  // Returns a random element of a list for which fits(element) is true. If the lexicon is restricted to the words of a text and has no such element, the
  // element is drawn from the whole lexicon.
  template <class T, class F>
  const T& of(const std::vector<T> Lexicon::*list, F&& fits) {
    for (int i = 0;; ++i)
      if (const T& one = of((i < 50 || text == nullptr ? words : lexicon()).*list); fits(one)) return one;
  }

 private:
  std::uint64_t seed_, number_ = 0;
};

bool shares_kind(Text a, Text b) { return a.find_first_of(b) != Text::npos; }

// --- sentences

// A sentence under construction: first the English words, then the French words with links to them. A word "a/b" becomes b before a vowel, else a.
class Sentence {
 public:
  struct OtherText {};
  explicit Sentence(const std::vector<Text>* text) : text_(text) {}
  // Throws OtherText if the wanted text has another word here.
  int english(Text word) {
    const std::size_t at = english_.size();
    if (text_ != nullptr && (at >= text_->size() || ((*text_)[at] != word && (*text_)[at] != halves(word).first && (*text_)[at] != halves(word).second))) throw OtherText();
    english_.emplace_back(word);
    return static_cast<int>(at);
  }
  void french(Text word, int sure, int possible = kNone) { french_.push_back({std::string(word), sure, possible}); }
  void key(std::string words) { keys_.push_back(std::move(words)); }
  const std::vector<std::string>& keys() const { return keys_; }

  AlignedPair finish(Text end) {
    if (!end.empty()) french(end, english(end));
    choose(english_, [](const std::string& w) -> const std::string& { return w; }, [](Text next) { return is_english_vowel(next[0]); });
    choose(french_, [](const French& f) -> const std::string& { return f.word; }, [](Text next) {
      const auto c = static_cast<unsigned char>(next[0]);  // accented first letters are vowels: é, ê, œ, î
      return (is_english_vowel(next[0]) || next[0] == 'h' || c > 127) && std::ranges::find(kAspirated, next) == std::end(kAspirated);
    });
    for (std::size_t j = 0; j + 1 < french_.size(); ++j) {
      if (french_[j].word != "de" || (french_[j + 1].word != "le" && french_[j + 1].word != "les")) continue;
      french_[j + 1].word = french_[j + 1].word == "le" ? "du" : "des";
      french_[j + 1].possible = french_[j].sure;
      french_.erase(french_.begin() + static_cast<std::ptrdiff_t>(j));
    }
    AlignedPair pair;
    pair.source = english_;
    for (const French& f : french_) {
      const auto j = static_cast<std::int64_t>(pair.target.size());
      pair.target.push_back(f.word);
      pair.links.push_back({f.sure, j, true});
      if (f.possible != kNone && f.possible != f.sure) pair.links.push_back({f.possible, j, false});
    }
    for (auto* words : {&pair.source, &pair.target})
      if (char& first = words->front()[0]; first >= 'a' && first <= 'z') first = static_cast<char>(first - 'a' + 'A');
    return pair;
  }

 private:
  struct French {
    std::string word;
    int sure, possible;
  };
  template <class T, class Word, class Vowel>
  static void choose(std::vector<T>& words, const Word& word, const Vowel& vowel) {
    for (std::size_t i = words.size(); i-- > 0;) {
      const auto [plain, before_vowel] = halves(word(words[i]));
      if (before_vowel.empty()) continue;
      const_cast<std::string&>(word(words[i])) = std::string(i + 1 < words.size() && vowel(word(words[i + 1])) ? before_vowel : plain);
    }
  }
  const std::vector<Text>* text_;
  std::vector<std::string> english_;
  std::vector<French> french_;
  std::vector<std::string> keys_;
};

struct NounPhrase {
  const Noun* noun = nullptr;
  const Determiner* determiner = nullptr;
  const Adjective *before = nullptr, *after = nullptr;
  bool plural = false;
  int determiner_at = kNone, before_at = kNone, after_at = kNone, noun_at = kNone;

  void english(Sentence& s) {
    const bool another = determiner->indefinite() && !plural && before != nullptr && before->english == "other";
    determiner_at = s.english(another ? "another" : determiner->english[plural]);
    if (before != nullptr) before_at = another ? determiner_at : s.english(before->english);
    if (after != nullptr) after_at = s.english(after->english);
    noun_at = s.english(noun->english[plural]);
    if (before == nullptr && after == nullptr) return;
    std::vector<Text> adjectives;
    for (const Adjective* a : {before, after})
      if (a != nullptr) adjectives.push_back(a->english);
    std::ranges::sort(adjectives);
    std::string key = noun->english[0];
    for (const Text a : adjectives) key += cat(" ", a);
    s.key(std::move(key));
  }
  // Adds the French noun phrase to the sentence. negated: the phrase is the object of a verb with "pas" or "jamais", which changes its article.
  void french(Sentence& s, bool negated = false) const {
    const bool f = noun->feminine;
    if (determiner->indefinite() && (negated || (plural && before != nullptr))) {
      s.french("de/d'", determiner_at);
    } else {
      s.french(determiner->french[plural ? 2 : f ? 1 : 0], determiner_at);
      if (determiner->english[1] == "many") s.french("de/d'", determiner_at);
    }
    if (before != nullptr) s.french(before->french[f][plural], before_at);
    s.french(noun->french[plural], noun_at);
    if (after != nullptr) s.french(plain(after->french[f][plural]), after_at);
  }
  static Text plain(Text form) { return halves(form).first; }
};

enum class Role : std::uint8_t { any, definite, indefinite };

NounPhrase noun_phrase(Draw& draw, Text kinds, Role role, bool simple = false) {
  NounPhrase phrase;
  phrase.noun = &draw.of(&Lexicon::nouns, [&](const Noun& n) { return shares_kind(n.kind, kinds); });
  phrase.determiner = &draw.of(&Lexicon::determiners, [&](const Determiner& d) {
    const bool of_few = d.english[0] == "-" || d.indefinite();  // true for determiners of an indefinite plural, such as "two" and "some"
    return role == Role::any || (role == Role::definite) != of_few;
  });
  phrase.plural = phrase.determiner->english[0] == "-" || (phrase.determiner->english[1] != "-" && draw.chance(35));
  const auto adjective = [&](bool before) {
    return &draw.of(&Lexicon::adjectives, [&](const Adjective& a) {
      return a.before == before && shares_kind(a.kinds, phrase.noun->kind) && (a.english != "other" || phrase.determiner->english[0] != "every");
    });
  };
  const std::size_t how = draw.below(100);
  if (!simple && how < 45) phrase.before = adjective(true);
  if (!simple && how >= 30 && how < 65) phrase.after = adjective(false);
  return phrase;
}

// The subject of a clause: a noun phrase, two noun phrases, a pronoun or "who".
struct Subject {
  std::vector<NounPhrase> phrases{};
  const Pronoun* pronoun = nullptr;
  int at = kNone;  // index in the sentence of the subject's word: the pronoun, "and" or "who"
  Person person = il;
  bool feminine = false, plural = false, who = false;

  std::string name() const { return who ? "who" : pronoun != nullptr ? std::string(pronoun->english) : phrases[0].noun->english[0]; }
  void english(Sentence& s) {
    if (who) at = s.english("who");
    if (pronoun != nullptr) at = s.english(pronoun->english);
    for (std::size_t i = 0; i < phrases.size(); ++i) {
      if (i > 0) at = s.english("and");
      phrases[i].english(s);
    }
  }
  void french(Sentence& s) const {
    if (who) s.french("qui", at);
    if (pronoun != nullptr) s.french(pronoun->french, at);
    for (std::size_t i = 0; i < phrases.size(); ++i) {
      if (i > 0) s.french("et", at);
      phrases[i].french(s);
    }
  }
};

Subject subject(Draw& draw, Text kinds, bool he_she_they, Role role = Role::any) {
  Subject subject;
  const bool people = kinds.find('p') != Text::npos;
  if (people && role == Role::any && draw.chance(30)) {
    subject.pronoun = &draw.of(&Lexicon::pronouns, [&](const Pronoun& p) { return !he_she_they || p.person == il || p.person == ils; });
    subject.person = subject.pronoun->person;
    subject.feminine = subject.pronoun->feminine;
    subject.plural = subject.person >= nous;
    return subject;
  }
  const bool two = role == Role::any && draw.chance(8);  // the subject has two noun phrases: "the girl and the boy"
  subject.phrases.push_back(noun_phrase(draw, kinds, two ? Role::definite : role, two));
  if (two) subject.phrases.push_back(noun_phrase(draw, kinds, Role::definite, true));
  subject.plural = two || subject.phrases[0].plural;
  subject.feminine = std::ranges::all_of(subject.phrases, [](const NounPhrase& p) { return p.noun->feminine; });
  subject.person = subject.plural ? ils : il;
  return subject;
}

// An adverbial such as "in the kitchen", "near the big house" or "every morning".
struct Adjunct {
  const Phrase* phrase = nullptr;
  std::optional<NounPhrase> after{};
  int at = kNone;

  void english(Sentence& s) {
    if (phrase == nullptr) return;
    for (const Text word : phrase->english) {
      const int place = s.english(word);
      if (at == kNone) at = place;
    }
    if (after) after->english(s);
  }
  void french(Sentence& s) const {
    if (phrase == nullptr) return;
    for (std::size_t j = 0; j < phrase->french.size(); ++j) s.french(phrase->french[j], at + phrase->links[j]);
    if (after) after->french(s);
  }
  std::string name() const { return phrase == nullptr ? std::string() : std::string(phrase->english.back()); }
};

Adjunct place(Draw& draw) {
  if (draw.chance(60)) return {.phrase = &draw.of(draw.words.places)};
  const Phrase& preposition = draw.of(draw.words.prepositions);
  return {.phrase = &preposition, .after = noun_phrase(draw, preposition.kinds, Role::definite)};
}

Text english_be(const Subject& subject, bool past) {
  if (past) return subject.person == vous || subject.plural ? "were" : "was";
  return subject.person == je ? "am" : subject.person == il ? "is" : "are";
}
constexpr Text kEtre[] = {"suis", "est", "sommes", "êtes", "sont"}, kEtait[] = {"étais", "était", "étions", "étiez", "étaient"},
               kAvoir[] = {"ai", "a", "avons", "avez", "ont"};

enum class Polarity : std::uint8_t { positive, negative, never };
Text french_negation(Polarity polarity) { return polarity == Polarity::never ? "jamais" : "pas"; }

struct Question {
  bool asks = false;
  Text english{}, french{};  // the question word, such as "why" and "pourquoi"; empty for a yes-or-no question
  int at = kNone;

  void ask(Sentence& s, int auxiliary_at) const {
    if (!french.empty()) s.french(french, at);
    s.french("est-ce", auxiliary_at);
    s.french("que/qu'", auxiliary_at);
  }
};

Question question(Draw& draw) {
  Question q{.asks = draw.asks(28)};
  if (q.asks && draw.chance(40)) std::tie(q.english, q.french) = draw.chance(50) ? std::pair<Text, Text>("why", "pourquoi") : std::pair<Text, Text>("when", "quand");
  return q;
}

// Makes a sentence such as "The baker does not sell the old house." or "Why can she not sing here?"
void verb_sentence(Draw& draw, Sentence& s, Text& end) {
  enum class Form : std::uint8_t { present, progressive, past, modal };
  const Verb& verb = draw.of(draw.words.verbs);
  std::size_t form_draw = draw.below(100);
  Form form = form_draw < 45 ? Form::present : form_draw < 60 ? Form::progressive : form_draw < 85 ? Form::past : Form::modal;
  if (form == Form::progressive && verb.ing.empty()) form = Form::present;
  Question q = question(draw);
  // The French participle of a verb with être agrees with the subject. "I", "we" and "you" do not tell the subject's gender, so they are not drawn here.
  Subject who = subject(draw, verb.subjects, verb.with_etre && form == Form::past);
  if (q.asks && q.english.empty() && draw.chance(25) && shares_kind(verb.subjects, "p")) who = {.who = true};
  const std::size_t polarity_draw = draw.below(100);
  Polarity polarity = polarity_draw < 68 ? Polarity::positive : polarity_draw < 92 ? Polarity::negative : Polarity::never;
  if (polarity == Polarity::never && (form != Form::present || q.asks)) polarity = Polarity::positive;
  const bool negative = polarity == Polarity::negative;
  Adjunct frequency, where, when;
  if (form == Form::present && polarity == Polarity::positive && draw.chance(20)) frequency.phrase = &draw.of(draw.words.frequencies);
  std::optional<NounPhrase> object;
  if (verb.objects != "-") object = noun_phrase(draw, verb.objects, Role::any);
  if (draw.chance(verb.objects == "-" ? 50 : 20)) where = place(draw);
  if (q.english != "when" && draw.chance(30)) when.phrase = &draw.of(form == Form::past ? draw.words.past_times : draw.words.times);
  const auto& [modal, french_modal] = draw.of(draw.words.modals);
  const bool wants = form == Form::modal && modal == "want", can_not = form == Form::modal && modal == "can" && negative && (!q.asks || who.who);
  const bool third = who.person == il, inverts = q.asks && !who.who;
  // A clause without object whose subject is a pronoun, such as "We sing", has no key, so it is always in training: no other clause has the form "chantons".
  if (who.pronoun == nullptr || object) s.key(cat(who.name(), " ", verb.base, object ? cat(" ", object->noun->english[0]) : ""));

  std::string auxiliary;
  if (form == Form::progressive) auxiliary = english_be(who, false);
  else if (form == Form::modal && !wants) auxiliary = can_not ? "cannot" : std::string(modal);
  else if (inverts || negative) auxiliary = form == Form::past ? "did" : third ? "does" : "do";
  if (!q.english.empty()) q.at = s.english(q.english);
  int auxiliary_at = inverts ? s.english(auxiliary) : kNone, negation_at = kNone, modal_at = kNone, to_at = kNone;
  who.english(s);
  if (!inverts && !auxiliary.empty()) auxiliary_at = s.english(auxiliary);
  if (negative) negation_at = can_not ? auxiliary_at : s.english("not");
  if (polarity == Polarity::never) negation_at = s.english("never");
  frequency.english(s);
  const bool inflects = third && auxiliary.empty();
  if (wants) modal_at = s.english(inflects ? "wants" : "want"), to_at = s.english("to");
  const int main_at = s.english(form == Form::progressive                                             ? verb.ing
                                : form == Form::past && auxiliary.empty()                             ? verb.ed
                                : form == Form::present && inflects                                   ? verb.s
                                                                                                      : verb.base);
  if (form == Form::modal && !wants) modal_at = auxiliary_at;
  if (object) object->english(s);
  where.english(s);
  when.english(s);

  if (inverts) q.ask(s, auxiliary_at);
  who.french(s);
  if (polarity != Polarity::positive) s.french("ne/n'", negation_at, auxiliary_at);
  switch (form) {
    case Form::present:
    case Form::progressive: s.french(verb.french.present[who.person], main_at, auxiliary_at); break;
    case Form::past: s.french((verb.with_etre ? kEtre : kAvoir)[who.person], main_at, auxiliary_at); break;
    case Form::modal: s.french(french_modal.present[who.person], modal_at, auxiliary_at); break;
  }
  if (polarity != Polarity::positive) s.french(french_negation(polarity), negation_at, auxiliary_at);
  frequency.french(s);
  if (form == Form::past) {
    const std::string& p = verb.french.participle;
    const std::string gender = verb.with_etre && who.feminine ? french_feminine(p) : p;
    s.french(verb.with_etre && who.plural ? french_plural(gender) : gender, main_at, auxiliary_at);
  }
  if (form == Form::modal) s.french(verb.french.infinitive, main_at, to_at);
  if (object) object->french(s, polarity != Polarity::positive);
  where.french(s);
  when.french(s);
  if (q.asks) end = "?";
}

// Makes a sentence such as "The small red car is parked outside.", "Is the girl very happy?" or "They were not at home."
void be_sentence(Draw& draw, Sentence& s, Text& end) {
  Question q = question(draw);
  Subject who = subject(draw, "paftrvbo", true);
  const bool past = draw.chance(30), people = who.pronoun != nullptr;
  const auto fits = [&](const Adjective& a) {
    return people ? shares_kind(a.kinds, "p") : std::ranges::all_of(who.phrases, [&](const NounPhrase& n) { return shares_kind(a.kinds, n.noun->kind) && n.before != &a && n.after != &a; });
  };
  const std::size_t what = draw.below(100);
  const Adjective* predicate = nullptr;
  // No predicate may fit: some kinds of nouns have no participle, and two subjects may share no adjective.
  const auto choose = [&](const std::vector<Adjective>& list) {
    for (int i = 0; i < 100 && predicate == nullptr; ++i)
      if (const Adjective& a = draw.of(list); fits(a) && a.english != "other" && a.english != "true") predicate = &a;
  };
  if (what < 45) choose(draw.words.adjectives);
  else if (what < 80) choose(draw.words.participles);
  const bool participle = predicate != nullptr && what >= 45, negative = draw.chance(25);
  Adjunct frequency, where, when;
  if (!negative && !past && draw.chance(15)) frequency.phrase = &draw.of(draw.words.frequencies);
  if (predicate == nullptr || (participle && draw.chance(80))) where = place(draw);
  if (q.english != "when" && draw.chance(25)) when.phrase = &draw.of(past ? draw.words.past_times : draw.words.times);
  const bool very = predicate != nullptr && !participle && draw.chance(25);
  s.key(cat(who.name(), " ", predicate != nullptr ? std::string(predicate->english) : "be " + where.name()));

  if (!q.english.empty()) q.at = s.english(q.english);
  int be_at = q.asks ? s.english(english_be(who, past)) : kNone;
  who.english(s);
  if (!q.asks) be_at = s.english(english_be(who, past));
  const int negation_at = negative ? s.english("not") : kNone;
  frequency.english(s);
  const int very_at = very ? s.english("very") : kNone, predicate_at = predicate != nullptr ? s.english(predicate->english) : kNone;
  where.english(s);
  when.english(s);

  if (q.asks) q.ask(s, be_at);
  who.french(s);
  if (negative) s.french("ne/n'", negation_at, be_at);
  s.french((past ? kEtait : kEtre)[who.person], be_at);
  if (negative) s.french("pas", negation_at, be_at);
  frequency.french(s);
  if (very) s.french("très", very_at);
  if (predicate != nullptr) s.french(NounPhrase::plain(predicate->french[who.feminine][who.plural]), predicate_at);
  where.french(s);
  when.french(s);
  if (q.asks) end = "?";
}

// Makes a sentence such as "There are two cats in the garden."
void there_sentence(Draw& draw, Sentence& s) {
  NounPhrase what = noun_phrase(draw, "patrvo", Role::indefinite);
  Adjunct where = place(draw);
  s.key(cat("there ", what.noun->english[0], " ", where.name()));
  const int there_at = s.english("there"), be_at = s.english(what.plural ? "are" : "is");
  what.english(s);
  where.english(s);
  s.french("il", there_at);
  s.french("y", there_at);
  s.french("a", be_at);
  what.french(s);
  where.french(s);
}

// Makes a sentence such as "Where are my other shoes?"
void where_sentence(Draw& draw, Sentence& s, Text& end) {
  Subject what = subject(draw, "paftrvbo", true, Role::definite);
  const int where_at = s.english("where"), be_at = s.english(english_be(what, false));
  what.english(s);
  s.french("où", where_at);
  s.french(kEtre[what.person], be_at);
  what.french(s);
  end = "?";
}

// Returns the part (training, validation or held out) to which a combination of words belongs.
GrammarPart part_of(const std::string& key) {
  if (key == "car red small" || key == "car parked" || hash_of(key) % 12 == 0) return GrammarPart::held_out;
  return hash_of(key) % 24 == 1 ? GrammarPart::validation : GrammarPart::training;
}

AlignedPair any_sentence(Draw& draw, std::vector<std::string>& keys) {
  Sentence s(draw.text);
  Text end = draw.ends(50) ? "." : "";
  const std::size_t kind = draw.below(100);
  if (kind < 57) verb_sentence(draw, s, end);
  else if (kind < 88) be_sentence(draw, s, end);
  else if (kind < 96) there_sentence(draw, s);
  else where_sentence(draw, s, end);
  keys = s.keys();
  return s.finish(end);
}

}  // namespace

AlignedPair grammar_sentence(GrammarPart part, std::uint64_t seed, std::uint64_t number) {
  Draw draw(nn::derive_seed(nn::derive_seed(seed, number), static_cast<std::uint64_t>(part)));
  for (std::vector<std::string> keys;;) {
    AlignedPair pair = any_sentence(draw, keys);
    GrammarPart own = GrammarPart::training;  // the sentence's part: the largest GrammarPart among its combinations of words
    for (const std::string& key : keys) own = std::max(own, part_of(key));
    if (own == part) return pair;
  }
}

std::optional<AlignedPair> grammar_translation(std::string_view english) {
  std::string text(english), spaced(english);
  if (text.empty()) return std::nullopt;
  if (text[0] >= 'a' && text[0] <= 'z') text[0] = static_cast<char>(text[0] - 'a' + 'A');
  if (!text.starts_with("I ")) spaced[0] = static_cast<char>(spaced[0] | 32);
  if (text.ends_with('.') || text.ends_with('?')) spaced.insert(spaced.size() - 1, " ");
  const std::vector<Text> list = split(spaced, ' ');
  const Lexicon part = lexicon().of_text({list.begin(), list.end()});
  Draw draw(0, part, &list);
  std::vector<std::string> keys;
  for (int i = 0; i < 300000; ++i) try {
      if (AlignedPair pair = any_sentence(draw, keys); sentence_text(pair.source, Language::english) == text) return pair;
    } catch (const Sentence::OtherText&) {
    }
  return std::nullopt;
}

std::string sentence_text(const std::vector<std::string>& words, Language language) {
  std::string text;
  for (const std::string& word : words) {
    const bool joins = text.empty() || text.back() == '\'' || word == "." || word == "," || (word == "?" && language == Language::english);
    if (!joins) text += ' ';
    text += word;
  }
  return text;
}

}  // namespace polyhead::training
