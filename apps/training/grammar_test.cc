#include "training/grammar.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

namespace polyhead::training {
namespace {

struct Example {
  std::string english, french;
};

std::string french_of(const std::string& english) {
  const std::optional<AlignedPair> pair = grammar_translation(english);
  return pair ? sentence_text(pair->target, Language::french) : "(not in the grammar)";
}


TEST(Grammar, SentencesEqualTranslationsMadeByHand) {
  for (const auto& [english, french] : std::vector<Example>{
           {"The small red car is parked outside", "La petite voiture rouge est garée dehors"},
           {"The small red cars are parked outside.", "Les petites voitures rouges sont garées dehors."},
           {"The man does not sleep.", "L'homme ne dort pas."},
           {"I eat an apple.", "Je mange une pomme."},
           {"I do not eat an apple.", "Je ne mange pas de pomme."},
           {"I love my friend.", "J'aime mon ami."},
           {"She loves her old friend.", "Elle aime son vieil ami."},
           {"He is buying some other houses.", "Il achète d'autres maisons."},
           {"Is the nurse happy?", "Est-ce que l'infirmière est heureuse ?"},
           {"The girl and the aunt are happy.", "La fille et la tante sont heureuses."},
           {"The girl and the boy are happy.", "La fille et le garçon sont heureux."},
           {"The girls arrived yesterday.", "Les filles sont arrivées hier."},
           {"The boys did not arrive yesterday.", "Les garçons ne sont pas arrivés hier."},
           {"We are eating some good pears.", "Nous mangeons de bonnes poires."},
           {"The cat never sleeps in the kitchen.", "Le chat ne dort jamais dans la cuisine."},
           {"He has two white horses.", "Il a deux chevaux blancs."},
           {"Do you see this bird?", "Est-ce que vous voyez cet oiseau ?"},
           {"Why is the inn closed?", "Pourquoi est-ce que l'auberge est fermée ?"},
           {"When did she leave?", "Quand est-ce qu'elle est partie ?"},
           {"Who is opening the door?", "Qui ouvre la porte ?"},
           {"Where are my new shoes?", "Où sont mes nouvelles chaussures ?"},
           {"There are many owls in the forest.", "Il y a beaucoup de hiboux dans la forêt."},
           {"She visits a high tower every day.", "Elle visite une haute tour chaque jour."},
           {"The hero wants to sing tonight.", "Le héros veut chanter ce soir."},
           {"They cannot swim.", "Ils ne peuvent pas nager."},
           {"She must work every morning.", "Elle doit travailler chaque matin."},
           {"The elephants are not very fat.", "Les éléphants ne sont pas très gros."},
           {"The old hotel was empty last night.", "Le vieil hôtel était vide la nuit dernière."},
           {"The children were in the garden.", "Les enfants étaient dans le jardin."},
           {"My sister is near the museum.", "Ma sœur est près du musée."},
           {"Our doctor waits opposite the churches.", "Notre médecin attend en face des églises."},
           {"You are drawing three jewels.", "Vous dessinez trois bijoux."},
           {"Another student is reading every letter.", "Un autre étudiant lit chaque lettre."},
           {"He did not find another key.", "Il n'a pas trouvé d'autre clé."},
           {"The newspapers are always national.", "Les journaux sont toujours nationaux."}})
    EXPECT_EQ(french_of(english), french) << english;
  EXPECT_EQ(french_of("The small red submarine is parked outside"), "(not in the grammar)");
}

std::set<std::pair<std::string, std::string>> linked_words(const AlignedPair& pair, bool sure) {
  std::set<std::pair<std::string, std::string>> words;
  for (const Link& link : pair.links)
    if (link.sure == sure) words.emplace(pair.source[static_cast<std::size_t>(link.source)], pair.target[static_cast<std::size_t>(link.target)]);
  return words;
}

TEST(Grammar, LinksEqualThoseMadeByHand) {
  using Words = std::set<std::pair<std::string, std::string>>;
  const AlignedPair car = grammar_translation("The small red car is parked outside").value();
  EXPECT_EQ(linked_words(car, true), (Words{{"The", "La"}, {"small", "petite"}, {"red", "rouge"}, {"car", "voiture"}, {"is", "est"}, {"parked", "garée"}, {"outside", "dehors"}}));
  EXPECT_EQ(linked_words(car, false), Words{});
  const AlignedPair eat = grammar_translation("He does not eat an apple").value();
  EXPECT_EQ(linked_words(eat, true), (Words{{"He", "Il"}, {"not", "ne"}, {"eat", "mange"}, {"not", "pas"}, {"an", "de"}, {"apple", "pomme"}}));
  EXPECT_EQ(linked_words(eat, false), (Words{{"does", "ne"}, {"does", "mange"}, {"does", "pas"}}));
  const AlignedPair near = grammar_translation("She is near the boat").value();
  EXPECT_EQ(linked_words(near, true), (Words{{"She", "Elle"}, {"is", "est"}, {"near", "près"}, {"the", "du"}, {"boat", "bateau"}}));
}

std::string lower(std::string word) {
  word[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(word[0])));
  return word;
}

TEST(Grammar, SentencesAreWellFormedAndPartsAreSeparate) {
  std::set<std::string> english, french, earlier, drawn;
  std::map<std::string, std::string> translation;
  for (const GrammarPart part : {GrammarPart::training, GrammarPart::validation, GrammarPart::held_out}) {
    for (std::uint64_t i = 0; i < 4000; ++i) {
      const AlignedPair pair = grammar_sentence(part, 3, i);
      const std::string text = sentence_text(pair.source, Language::english), translated = sentence_text(pair.target, Language::french);
      SCOPED_TRACE(text);
      EXPECT_FALSE(earlier.contains(text));
      drawn.insert(text);
      EXPECT_EQ(translation.emplace(text, translated).first->second, translated) << "one sentence, two translations";
      for (const std::string& word : pair.source) english.insert(lower(word));
      for (const std::string& word : pair.target) french.insert(lower(word));
      EXPECT_LE(pair.source.size(), 24U);
      EXPECT_LE(pair.target.size(), 28U);
      std::vector<int> sure(pair.target.size());
      for (const Link& link : pair.links) {
        ASSERT_TRUE(link.source >= 0 && link.source < std::ssize(pair.source) && link.target >= 0 && link.target < std::ssize(pair.target));
        sure[static_cast<std::size_t>(link.target)] += link.sure;
      }
      EXPECT_TRUE(std::ranges::all_of(sure, [](int n) { return n == 1; }));
      for (const char* wrong : {"/", " de le ", " de les ", " le homme", " la amie", " a apple", " a old", " an b", " ne est", " ce oiseau", "l'hibou", "l'héros"})
        EXPECT_EQ((text + translated).find(wrong), std::string::npos) << wrong << translated;
    }
    earlier.merge(drawn);
  }
  EXPECT_GE(english.size(), 350U);
  EXPECT_GE(french.size(), 350U);
}

TEST(Grammar, ASentenceDependsOnlyOnPartSeedAndNumber) {
  const auto text = [](GrammarPart part, std::uint64_t seed, std::uint64_t number) { return sentence_text(grammar_sentence(part, seed, number).source, Language::english); };
  EXPECT_EQ(text(GrammarPart::training, 1, 5), text(GrammarPart::training, 1, 5));
  EXPECT_NE(text(GrammarPart::training, 1, 5), text(GrammarPart::training, 1, 6));
  EXPECT_NE(text(GrammarPart::training, 1, 5), text(GrammarPart::training, 2, 5));
}

}  // namespace
}  // namespace polyhead::training
