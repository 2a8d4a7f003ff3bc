#include "terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <system_error>

#include "arguments.h"
#include "core/text.h"
#include "text_layout.h"

namespace polyhead::app {
namespace {

constexpr std::size_t kSmallestWidth = 20;

int descriptor(Stream stream) { return static_cast<int>(stream); }

std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// The environment variable COLUMNS, if it is a positive number.
std::optional<std::size_t> width_of_environment() {
  const auto width = parse<std::size_t>(environment("COLUMNS"));
  if (!width || *width == 0) return std::nullopt;
  return std::clamp<std::size_t>(*width, kSmallestWidth, 10000);
}

// True if the stream is a terminal that understands escape sequences.
bool obeys_escapes(Stream stream) {
  const std::string_view term = environment("TERM");
  return is_terminal(stream) && !term.empty() && term != "dumb";
}

// Returns 0, or the errno of a failed write.
int write_all(Stream stream, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor(stream), text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

// Returns a progress bar of at most `width` columns: "texts ━━━━━━━───── 3/8".
std::string progress_line(std::string_view what, std::size_t done, std::size_t total, std::string_view detail, std::size_t width) {
  const std::string count = cat(done, "/", total, detail.empty() ? "" : "  ", detail);
  const std::size_t around = columns(what) + count.size() + 2;
  if (width < around + 4) return clip(cat(what, " ", count), width);
  const std::size_t bar = std::min<std::size_t>(width - around, 40);
  const std::size_t filled = total == 0 ? bar : bar * std::min(done, total) / total;
  std::string line = cat(what, " ");
  for (std::size_t i = 0; i < bar; ++i) append(line, i < filled ? "━" : "─");
  return cat(line, " ", count);
}

}  // namespace

bool is_terminal(Stream stream) { return ::isatty(descriptor(stream)) == 1; }

std::size_t terminal_width(Stream stream) {
  if (const auto width = width_of_environment()) return *width;
  winsize size{};
  if (::ioctl(descriptor(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return std::max<std::size_t>(size.ws_col, kSmallestWidth);
  return 80;
}

std::size_t table_width() { return is_terminal(Stream::out) || width_of_environment() ? terminal_width(Stream::out) : SIZE_MAX; }

Colour colour_of_stdout() {
  const std::string_view term = environment("TERM");
  if (!obeys_escapes(Stream::out) || !environment("NO_COLOR").empty()) return Colour::none;
  const std::string_view depth = environment("COLORTERM");
  if (depth == "truecolor" || depth == "24bit" || term.ends_with("-direct")) return Colour::rgb;
  return term.find("256color") != std::string_view::npos ? Colour::indexed256 : Colour::none;
}

void print(std::string_view text) {
  const int error = write_all(Stream::out, text);
  if (error == EPIPE) throw ClosedPipe();
  if (error != 0) fail(ErrorCode::io, "cannot write to standard output: ", std::generic_category().message(error));
}

void print_stderr(std::string_view text) { write_all(Stream::err, text); }

void print_diagnostic(std::string_view sentence) { print_stderr(cat("polyhead: ", printable(sentence), "\n")); }

void print_note(std::string_view sentence) { print_diagnostic(cat("note: ", sentence)); }

void note_replaced_bytes(std::int64_t count) {
  if (count > 0) print_note(cat(count, count == 1 ? " byte of the text is" : " bytes of the text are", " not UTF-8; each is read as U+FFFD"));
}

Progress::Progress(std::string_view what, std::size_t total)
    : what_(what), total_(total), visible_(obeys_escapes(Stream::err) && total > 1) {}

Progress::~Progress() { clear(); }

void Progress::show(std::size_t done, std::string_view detail) {
  if (!visible_) return;
  // Leave the last column free, because some terminals wrap when a character is written there.
  write_all(Stream::err, cat("\r\x1b[K", progress_line(what_, done, total_, detail, terminal_width(Stream::err) - 1)));
  drawn_ = true;
}

void Progress::clear() {
  if (drawn_) write_all(Stream::err, "\r\x1b[K");
  drawn_ = false;
}

}  // namespace polyhead::app
