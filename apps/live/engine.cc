// The functions that a live page calls (viewer/script/live.js). The page writes the name of a task and a text, without a separator, into the memory that
// room(bytes) returns. answer(bytes of the name) returns the address of the answer, and bytes() its length. The files of a model, packed as page_files.h writes
// them, are passed to open() in the same memory. A call that throws does not return (failure.cc) and ends the module.
// A text that is too long does not throw: its answer has the member `error`.
#include <cstddef>
#include <filesystem>
#include <string>
#include <utility>

#include "answer.h"
#include "page_files.h"  // a header of apps/polyhead
#include "page_memory.h"
#include "polyhead/version.h"

namespace {
std::string given, made;
}

extern "C" {

[[clang::export_name("room"), gnu::visibility("default")]] char* live_room(std::size_t bytes) {
  given.resize(bytes);
  return given.data();
}

[[clang::export_name("answer"), gnu::visibility("default")]] const char* live_answer(std::size_t task) {
  made = polyhead::live::answer(given.substr(0, task), given.substr(task));
  return made.data();
}

[[clang::export_name("open"), gnu::visibility("default")]] void live_open() {
  polyhead::live::set_page_files(std::move(given));
  given = {};
  polyhead::live::open_model(std::filesystem::path(polyhead::live::kPageFolder));
}

[[clang::export_name("version"), gnu::visibility("default")]] const char* live_version() {
  made = POLYHEAD_VERSION;
  return made.data();
}

[[clang::export_name("bytes"), gnu::visibility("default")]] std::size_t live_bytes() { return made.size(); }

}  // extern "C"
