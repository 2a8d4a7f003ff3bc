// Readers of the training data. Lines that break the format are skipped and listed; see lines.h for what all formats share.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "training/lines.h"

namespace polyhead::training {

// A line has the form "rating TAB set TAB id TAB text" or the short form "rating TAB text". A rating is a number from -4 to 4, or `positive` (1), `neutral` (0)
// or `negative` (-1).
struct Rating {
  double rating;
  std::string set, id;  // "" for a line of the short form
  std::string text;
};
Data<Rating> read_ratings(const std::filesystem::path& path);

// A line has the form "source TAB target".
struct SentencePair {
  std::string source, target;
};
Data<SentencePair> read_pairs(const std::filesystem::path& path);

// A source sentence and its translations, in the order of the file. The translations are the references of one BLEU segment.
struct Translations {
  std::string source;
  std::vector<std::string> targets;
};
std::vector<Translations> group_by_source(const std::vector<SentencePair>& pairs);

// A line has the form "source tokens TAB target tokens TAB links". Tokens and links are separated by spaces. A link is i-j (sure) or ipj (possible), where i is
// the index of a source token and j that of a target token, both counted from 0.
struct Link {
  std::int64_t source, target;
  bool sure = true;
};
struct AlignedPair {
  std::vector<std::string> source, target;
  std::vector<Link> links;
};
Data<AlignedPair> read_aligned_pairs(const std::filesystem::path& path);

// Each line is a JSON object with `source`, the sentences of an abstract, `target`, one or more summaries, and optionally `source_labels`, a number for each
// sentence. Other keys are ignored.
struct Abstract {
  std::vector<std::string> sentences, targets;
  std::vector<double> labels;  // the numbers of `source_labels`; empty if they are not given
};
Data<Abstract> read_abstracts(const std::filesystem::path& path);

// True if rows with this key are kept for validation, which is so for about `share` of all keys. The result depends only on the key. So rows with equal keys,
// such as a source with several translations, stay in one part, and adding rows to the data moves no other row.
bool in_validation(std::string_view key, double share);

}  // namespace polyhead::training
