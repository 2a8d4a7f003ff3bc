#include "training/classified_texts.h"

#include <iterator>
#include <set>
#include <utility>

#include "core/text.h"
#include "training/data.h"
#include "training/figures.h"

namespace polyhead::training {

ClassifiedTexts read_classified_texts(const std::filesystem::path& path) {
  ClassifiedTexts result;
  const auto has_ratings = [&]() -> bool {
    try {
      Data<Rating> data = read_ratings(path);
      if (data.rows.size() < data.bad.size()) return false;
      for (Rating& row : data.rows) result.texts.push_back(std::move(row.text)), result.ratings.push_back(row.rating);
      result.skipped = describe(data.bad, std::ssize(data.rows));
      return true;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::format) throw;
      return false;
    }
  };
  if (has_ratings()) return result;
  std::vector<std::string> names;
  const auto bad = read_lines(path, [&](std::string_view line) -> std::string {
    const auto columns = split(line, '\t');
    if (columns.size() != 2 || columns[0].empty() || split_at_white_space(columns[1]).empty()) return "expected: label TAB text";
    names.emplace_back(columns[0]), result.texts.emplace_back(columns[1]);
    return "";
  });
  const std::set<std::string> known(names.begin(), names.end());
  result.labels.assign(known.begin(), known.end());
  require(result.labels.size() > 1 && result.labels.size() <= 1000, path.string(), " has ", counted(result.labels.size(), "label"), "; a classifier needs 2 to 1000");
  for (const std::string& name : names) result.ratings.push_back(static_cast<double>(std::distance(known.begin(), known.find(name))));
  result.skipped = describe(bad, std::ssize(names));
  return result;
}

}  // namespace polyhead::training
