#include <gmock/gmock.h>

#include <cmath>

#include "core/join.h"
#include "polyhead/error.h"
#include "training/bleu.h"
#include "training/lines.h"
#include "training/rouge.h"
#include "training/statistics.h"

namespace polyhead::training {
namespace {

using testing::ElementsAre;

// The expected scores are those of sacrebleu 2.6.0 with default settings.
TEST(Bleu, TokenizesAs13a) {
  EXPECT_EQ(join(tokenize_13a("Hello, world. 3.5 km; 10-12 (x) don't..."), {}, " "), "Hello , world . 3.5 km ; 10 - 12 ( x ) don't . . .");
  EXPECT_EQ(join(tokenize_13a("a\u202f! b\u00a0: \u00ab c \u00bb,d ."), {}, " "), "a ! b : « c » , d .");
  EXPECT_EQ(join(tokenize_13a("x&quot;y&amp;lt;z<skipped> end-\nof  "), {}, " "), "x \" y < z endof");
  EXPECT_EQ(join(tokenize_13a(" "), {}, " "), "");
}

TEST(Bleu, EqualsSacrebleu) {
  struct Case {
    std::vector<std::string> hypotheses;
    std::vector<std::vector<std::string>> references;
    double score;
  };
  const Case cases[] = {
      {{"Le chat dort sur la table.", "Il pleut ."}, {{"Le chat dort sur la table.", "Un chat dort sur la table."}, {"Il pleut.", "Il pleut aujourd'hui."}}, 100},
      {{"La voiture rouge est garée ici, dehors"}, {{"La petite voiture rouge est garée dehors.", "La voiture est rouge"}}, 41.11336169005198},
      {{"un deux trois"}, {{"un deux trois"}}, 0},                            // the sentence is too short for a 4-gram
      {{"a b c d e"}, {{"v b w x y"}}, 10.682175159905848},                   // no 2-, 3- or 4-gram matches, so these three precisions are smoothed
      {{"the the the the the the the"}, {{"the cat is on the mat", "there is a cat on the mat"}}, 7.809849842300637},  // "the" counts at most as often as in one reference
      {{"Quoi ?", "Oui, à 3.5 km - 10-12 fois."}, {{"Quoi ?"}, {"Oui, à 3,5 km, 10-12 fois !", "Oui : 10-12 fois."}}, 49.45703137422567},
      {{""}, {{"a"}}, 0},
  };
  for (const Case& c : cases) EXPECT_NEAR(corpus_bleu(c.hypotheses, c.references), c.score, 1e-9) << c.hypotheses[0];
  const std::vector<std::string> one{"a"};
  EXPECT_THROW(corpus_bleu(one, {}), Error);
  EXPECT_THROW(corpus_bleu(one, std::vector<std::vector<std::string>>(1)), Error);
}

// The stems are NLTK's (3.9), the scores those of rouge-score (0.1.2) with its stemmer.
TEST(Rouge, StemsAsNltk) {
  const std::string words =
      "caresses ponies ties cats feed agreed plastered motoring sing conflated troubled sized hopping falling hissing failing filing happy sky enjoy relational conditional "
      "valenci digitizer radically vileli analogousli vietnamization operator hopefulness sensibiliti geology triplicate formative formalize electrical goodness revival adoption "
      "adjustment irritant effective bowdlerize probate rate cease controll roll skies dying died dies spied by";
  std::vector<std::string> stems;
  for (const auto word : split(words, ' ')) stems.push_back(porter_stem(std::string(word)));
  EXPECT_EQ(join(stems, {}, " "),
            "caress poni tie cat feed agre plaster motor sing conflat troubl size hop fall hiss fail file happi sky enjoy relat condit "
            "valenc digit radic vile analog vietnam oper hope sensibl geolog triplic form formal electr good reviv adopt "
            "adjust irrit effect bowdler probat rate ceas control roll sky die die die spi by");
}

TEST(Rouge, EqualsRougeScore) {
  EXPECT_DOUBLE_EQ(rouge_1("We propose relational learning of happily flying objects.", "Learned relations of objects that flew; a proposal"), 0.625);
  EXPECT_DOUBLE_EQ(rouge_1("the cat the cat", "the cat sat on the mat"), 0.6);
  EXPECT_DOUBLE_EQ(rouge_1("", "a"), 0);
  EXPECT_DOUBLE_EQ(rouge_1("It is 3 Kelvin\u212a, naïvely generalised", "Naive generalisation: it is 3 kelvink"), 0.7692307692307692);
  const std::vector<std::string> targets{"nothing", "the cat sat on the mat"};
  EXPECT_DOUBLE_EQ(rouge_1("the cat the cat", targets), 0.6);
}

TEST(Statistics, ScoresEqualThoseComputedByHand) {
  EXPECT_DOUBLE_EQ(accuracy(std::vector<std::int64_t>{1, 2, 3, 4}, std::vector<std::int64_t>{1, 2, 0, 4}), 0.75);
  const std::vector<double> wanted{2, -1, 0, 0.25, -3}, given{0.1, 0.2, -5, -1, 0};
  EXPECT_DOUBLE_EQ(sign_accuracy(given, wanted), 0.5);  // the sign is right for 2 and -3, two of four numbers
  EXPECT_DOUBLE_EQ(sign_accuracy(given, wanted, 0.5), 2.0 / 3);
  EXPECT_TRUE(std::isnan(sign_accuracy(std::vector<double>{1}, std::vector<double>{0})));
  EXPECT_NEAR(correlation(std::vector<double>{1, 2, 3, 4}, std::vector<double>{1, 3, 2, 5}), 0.83152184062029, 1e-12);  // numpy.corrcoef
  EXPECT_NEAR(correlation(std::vector<double>{1, 2}, std::vector<double>{5, -5}), -1, 1e-15);
  EXPECT_TRUE(std::isnan(correlation(std::vector<double>{1, 1}, std::vector<double>{1, 2})));
  EXPECT_THROW(correlation({}, {}), Error);
}

TEST(Statistics, AlignmentErrorRateCountsSureLinksAsPossible) {
  AlignmentErrors errors;
  errors.add(std::vector<Link>{{0, 0}, {1, 1}, {1, 1}, {2, 2}}, std::vector<Link>{{0, 0, true}, {1, 1, false}, {3, 3, true}});
  EXPECT_EQ(errors.given, 3);
  EXPECT_DOUBLE_EQ(errors.rate(), 1 - (1 + 2) / (3.0 + 2));
  errors.add({}, std::vector<Link>{{0, 0, true}});
  EXPECT_DOUBLE_EQ(errors.rate(), 1 - 3 / 6.0);
  EXPECT_TRUE(std::isnan(AlignmentErrors{}.rate()));
}

}  // namespace
}  // namespace polyhead::training
