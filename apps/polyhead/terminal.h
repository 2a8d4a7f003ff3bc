// Output: stdout for results, stderr for diagnostics and progress.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace polyhead::app {

enum class Stream : std::uint8_t { out = 1, err = 2 };

bool is_terminal(Stream stream);

// The width of a line: the environment variable COLUMNS if it is set, else the terminal's width, else 80; at least 20.
std::size_t terminal_width(Stream stream);

// The width of a table on stdout. Unlimited if stdout is no terminal and COLUMNS is not set, so that lines written to a pipe or file are not broken.
std::size_t table_width();

enum class Colour : std::uint8_t { none, indexed256, rgb };

// The colours that stdout can show: none if it is no colour terminal or NO_COLOR is set and not empty (no-color.org).
Colour colour_of_stdout();

// Thrown if the reader of stdout has closed it, as in `polyhead inspect x | head -1`. The program then ends without a message.
class ClosedPipe : public std::runtime_error {
 public:
  ClosedPipe() : std::runtime_error("closed pipe") {}
};

// Writes `text` to stdout. Throws ClosedPipe, or polyhead::Error (io) with the system's reason.
void print(std::string_view text);

void print_stderr(std::string_view text);

// These print one line on stderr. They apply printable() to the sentence, because names of files and tensors may contain control characters.
void print_diagnostic(std::string_view sentence);  // "polyhead: ..."
void print_note(std::string_view sentence);        // "polyhead: note: ..."
void note_replaced_bytes(std::int64_t count);      // prints how many bytes of a text were replaced by U+FFFD; prints nothing if count is 0

// A progress bar on stderr, if stderr is a terminal that can clear a line.
class Progress {
 public:
  Progress(std::string_view what, std::size_t total);
  ~Progress();  // removes the bar
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(std::size_t done, std::string_view detail = {});  // draws the bar, with `detail` after it
  void clear();  // removes the bar before other text is written to the terminal; the next show() draws it again

 private:
  std::string what_;
  std::size_t total_;
  bool visible_;
  bool drawn_ = false;
};

}  // namespace polyhead::app
