#include "view_input.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <string_view>
#include <system_error>
#include <variant>

#include "arguments.h"
#include "command.h"
#include "core/join.h"
#include "format.h"
#include "polyhead/models/model_config.h"
#include "terminal.h"
#include "text_layout.h"

namespace polyhead::app {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxTextBytes = std::size_t{64} << 20;
// A text with more bytes than this for each token that the model may read is refused before it is split into tokens.
constexpr std::size_t kMaxBytesOfToken = 1000;
constexpr std::array<std::string_view, 2> kModelFiles{"config.json", "model.safetensors"};
constexpr std::string_view kWanted = "a model is a folder with config.json, model.safetensors and tokenizer.json or vocab.txt";

// Reads all bytes. More than kMaxTextBytes are an error, because a device such as /dev/zero has no end.
std::string read_all(int descriptor, std::string_view name) {
  std::string contents;
  std::array<char, 1 << 16> buffer;
  while (contents.size() <= kMaxTextBytes) {
    const ssize_t got = ::read(descriptor, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(ErrorCode::io, "cannot read ", name, ": ", std::generic_category().message(errno));
    if (got == 0) return contents;
    contents.append(buffer.data(), static_cast<std::size_t>(got));
  }
  fail(ErrorCode::invalid_argument, name, " is longer than ", kMaxTextBytes >> 20, " MiB, the most text that one call reads");
}

std::string read_file_or_stdin(const std::string& path) {
  if (path == "-") {
    if (::isatty(STDIN_FILENO) == 1) print_note("reading texts from the terminal, one per line, until Ctrl-D");
    return read_all(STDIN_FILENO, "standard input");
  }
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    const int error = errno;
    fail(ErrorCode::io, "cannot open '", path, "': ", std::generic_category().message(error),
         error == ENOENT ? " (a text itself goes after --text)" : "");
  }
  const std::unique_ptr<const int, void (*)(const int*)> closing(&descriptor, [](const int* opened) { ::close(*opened); });
  return read_all(descriptor, cat("'", path, "'"));
}

bool has(const fs::path& directory, std::string_view name) {
  std::error_code ignored;
  if (fs::exists(directory / name, ignored)) return true;
  return name == "model.safetensors" && fs::exists(directory / "model.safetensors.index.json", ignored);
}

std::string which(const std::vector<InputText>& texts, std::size_t index, std::string_view list) {
  const std::string text = texts.size() == 1 ? "the text" : texts[index].line > 0 ? cat("line ", texts[index].line) : cat("text ", index + 1);
  return list.empty() ? text : cat(text, " of ", list);
}

}  // namespace

std::vector<InputText> read_texts(const std::string& path) {
  const std::string contents = read_file_or_stdin(path);
  std::vector<InputText> texts;
  std::int64_t number = 0;
  for (std::size_t first = 0; first < contents.size();) {
    const std::size_t end = std::min(contents.find('\n', first), contents.size());
    std::string line = contents.substr(first, end - first);
    if (line.ends_with('\r')) line.pop_back();
    ++number;
    if (line.find_first_not_of(" \t") != std::string::npos) texts.push_back({line, std::nullopt, number});
    first = end + 1;
  }
  if (texts.empty())
    fail(ErrorCode::format, path == "-" ? std::string("standard input") : cat("'", path, "'"), " holds no text: every line is empty");
  return texts;
}

namespace {

void check_model_folder(const fs::path& directory) {
  std::error_code ignored, unreadable;
  if (!fs::exists(directory, unreadable)) {
    if (unreadable) fail(ErrorCode::io, "cannot read '", directory.string(), "': ", unreadable.message());
    fail(ErrorCode::io, "there is no folder '", directory.string(), "'");
  }
  if (!fs::is_directory(directory, ignored)) fail(ErrorCode::io, "'", directory.string(), "' is not a folder; ", kWanted);
  const std::string missing = join(filtered(kModelFiles, [&](std::string_view name) { return !has(directory, name); }));
  if (!missing.empty()) {
    std::string hint;
    for (const fs::directory_entry& entry : fs::directory_iterator(directory, unreadable)) {
      if (entry.is_directory(ignored) && has(entry.path(), kModelFiles[0]) && has(entry.path(), kModelFiles[1]))
        hint = cat("; did you mean '", entry.path().string(), "'?");
    }
    if (unreadable) fail(ErrorCode::io, "cannot read '", directory.string(), "': ", unreadable.message());
    fail(ErrorCode::io, "'", directory.string(), "' lacks ", missing, hint.empty() ? cat("; ", kWanted) : hint);
  }
}

template <class Load>
auto loaded(const fs::path& directory, const Load& load) {
  check_model_folder(directory);
  try {
    return load(directory);
  } catch (const Error& error) {
    throw Error(error.code(), cat("cannot load the model '", directory.string(), "': ", error.what()));
  }
}

}  // namespace

models::SentenceModel open_model(const fs::path& directory) { return loaded(directory, models::load_bert); }
std::unique_ptr<models::AnyTextModel> open_any_model(const fs::path& directory) { return loaded(directory, models::load_any_text_model); }
std::string model_type(const fs::path& directory) {
  try {
    for (const models::ConfigEntry& entry : models::read_config(directory))
      if (const auto* type = std::get_if<std::string>(&entry.value); type != nullptr && entry.name == "model") return *type;
  } catch (const Error&) {  // ignored here: the code that opens the model reports the error
  }
  return {};
}
bool is_trained(const fs::path& directory) { return model_type(directory).starts_with("polyhead-"); }
bool is_encoder(const fs::path& directory) {
  return loaded(directory, [](const fs::path& folder) { return !models::image_model_kind(folder) && models::text_model_kind(folder) == models::TextModelKind::encoder; });
}
models::VisionEncoder open_vision_encoder(const fs::path& directory) { return loaded(directory, models::load_vision_encoder); }
models::TextModelKind kind_of_text_model(const fs::path& directory) {
  return loaded(directory, [](const fs::path& folder) {
    if (models::image_model_kind(folder)) fail(ErrorCode::unsupported, "it is a model of images, and `polyhead trace` does not show layers of such models; `polyhead view` shows the model's maps");
    return models::text_model_kind(folder);
  });
}
models::LanguageModel open_language_model(const fs::path& directory) {
  return loaded(directory, [](const fs::path& folder) { return models::load_language_model(folder); });
}

std::string model_name(const fs::path& directory) {
  std::error_code error;
  fs::path path = fs::weakly_canonical(directory, error);
  if (error) path = directory;
  const bool generic = path.filename() == "model" && path.parent_path().has_filename();
  return (generic ? path.parent_path() : path).filename().string();
}

std::vector<std::string> words_of(const std::string& text, const models::TokenizedText& tokens) {
  std::vector<std::string> words = tokens.pieces;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const models::ByteSpan& span = tokens.spans[i];
    std::string_view word = span.first < span.last ? std::string_view(text).substr(span.first, span.last - span.first) : words[i];
    for (const std::string_view mark : {"Ġ", "▁", " "})
      if (word.starts_with(mark) && word.size() > mark.size()) word.remove_prefix(mark.size());
    words[i] = std::string(word);
  }
  return words;
}

std::int64_t find_token(std::string_view option, std::string_view what, const std::string& given, const std::vector<std::string>& words, const std::vector<std::string>& spelled) {
  const auto place = parse<std::int64_t>(given);
  const bool is_place = place && *place >= 0 && *place < std::ssize(words);
  std::vector<std::string> places;
  std::int64_t found = -1;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] != given && words[i] != lower(given) && spelled[i] != given) continue;
    found = static_cast<std::int64_t>(i);
    places.push_back(cat(i));
  }
  if (is_place && places.empty()) return *place;
  if (places.size() == 1 && (!is_place || found == *place)) return found;
  if (is_place)  // "03" is the index 3, but not a spelling of the word "3"
    throw UsageError(cat(option, ": the ", what, " '", given, "' is a place, and also a word of the text, which is at ", join(places, std::identity{}, " and "), "; give 0", given, " for the token at place ", given, ", or 0", places[0], " for the word"));
  if (!places.empty()) throw UsageError(cat(option, ": the ", what, " '", given, "' is in the text more than once; give its place: ", join(places, std::identity{}, " or ")));
  if (place) throw UsageError(cat(option, ": the ", what, " ", *place, " is not a token of the text, which has 0 to ", words.size() - 1));
  std::vector<std::string> all;
  for (std::size_t i = 0; i < words.size(); ++i) all.push_back(cat(i, " ", printable(words[i])));
  throw UsageError(cat(option, ": the ", what, " '", given, "' is not a token of the text; its tokens are ", join(all)));
}

models::TokenizedText tokenize(const models::SentenceModel& model, const std::string& text) {
  const auto tokenizer = [&](const InputText& input) { return model.tokenize(input.text, models::WhenTooLong::longest_first); };
  return std::move(tokenize(tokenizer, model.encoder.config.longest(), {{text, std::nullopt}}, false, "give a shorter text")[0]);
}

std::vector<models::TokenizedText> tokenize(const std::function<models::TokenizedText(const InputText&)>& tokenizer, std::optional<std::int64_t> longest,
                                            const std::vector<InputText>& texts, bool truncate, std::string_view remedy, std::string_view list) {
  std::vector<models::TokenizedText> result;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    // Refuse a text that is far too long before it is split into tokens, because splitting megabytes takes long.
    const std::size_t bytes = texts[i].both().size(), allowed = static_cast<std::size_t>(std::max<std::int64_t>(longest.value_or(0), 0)) * kMaxBytesOfToken;
    if (allowed > 0 && !truncate && bytes > allowed)
      fail(ErrorCode::invalid_argument, which(texts, i, list), " has ", byte_size(bytes), "; the model takes at most ", *longest, " tokens, and ", byte_size(allowed), " of text; ", remedy);
    try {
      result.push_back(tokenizer(texts[i]));
    } catch (const Error& error) {
      if (texts.size() == 1 && list.empty()) throw;
      throw Error(error.code(), cat(which(texts, i, list), ": ", error.what()));
    }
    const models::TokenizedText& tokens = result.back();
    const std::int64_t length = static_cast<std::int64_t>(tokens.ids.size()) + tokens.dropped_tokens, positions = longest.value_or(0);
    if (tokens.dropped_tokens > 0 && !truncate)
      fail(ErrorCode::invalid_argument, which(texts, i, list), " has ", length, " tokens; the model takes at most ", positions, "; ", remedy);
    if (tokens.replaced_bytes > 0)
      print_note(cat(counted(tokens.replaced_bytes, "byte"), " of ", which(texts, i, list), tokens.replaced_bytes == 1 ? " is" : " are",
               " not UTF-8 and read as U+FFFD"));
    if (!tokens.unknown.empty())
      print_note(cat(tokens.unknown.size(), " of ", counted(tokens.ids.size(), "token"), " of ", which(texts, i, list),
                     tokens.unknown.size() == 1 ? " is" : " are", " unknown to this model"));
    if (tokens.dropped_tokens > 0)
      print_note(cat(which(texts, i, list), " has ", length, " tokens; the model takes ", positions, ", so ", tokens.dropped_tokens, " at the end ",
               tokens.dropped_tokens == 1 ? "is" : "are", " left out"));
  }
  return result;
}

}  // namespace polyhead::app
