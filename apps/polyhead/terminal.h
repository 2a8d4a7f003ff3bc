// Where results, notes and progress go: stdout carries results only, stderr everything that is said about them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace polyhead::app {

enum class Stream : std::uint8_t { out = 1, err = 2 };

bool is_terminal(Stream stream);

// COLUMNS where it is set, else the terminal's own width, else 80; at least 20.
std::size_t terminal_width(Stream stream);

// How wide a table on stdout may be: without limit where no terminal and no COLUMNS says otherwise, so that a pipe sees whole lines.
std::size_t table_width();

enum class Colour : std::uint8_t { none, indexed256, rgb };

// What stdout shows: none unless it is a terminal that knows colours and NO_COLOR is empty or not set (no-color.org).
Colour colour_of_stdout();

// The reader of stdout went away (`polyhead inspect x | head -1`): nothing more to do, and nothing to complain about.
class ClosedPipe : public std::runtime_error {
 public:
  ClosedPipe() : std::runtime_error("closed pipe") {}
};

// Writes all of `text` to stdout. ClosedPipe, or polyhead::Error (io) with the system's reason.
void print(std::string_view text);

void say(std::string_view text);  // on stderr, as it is

// On stderr; what a terminal would obey is replaced, as names of files and tensors may hold anything.
void note(std::string_view sentence);      // "polyhead: note: ..."
void complain(std::string_view sentence);  // "polyhead: ..."

// A bar on stderr while stderr is a terminal that can clear a line; nothing elsewhere.
class Progress {
 public:
  Progress(std::string_view what, std::size_t total);
  ~Progress();  // clears the line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(std::size_t done);
  void clear();  // before something else is written to the terminal; the next show() draws again

 private:
  std::string what_;
  std::size_t total_;
  bool visible_;
  bool drawn_ = false;
};

// The bar's text, at most `width` columns: "texts ━━━━━━━───── 3/8".
std::string progress_line(std::string_view what, std::size_t done, std::size_t total, std::size_t width);

}  // namespace polyhead::app
