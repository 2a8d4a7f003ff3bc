// The functions that a live page calls (viewer/script/live.js). The page writes a task and then a text into the memory that room(bytes) returns. answer(bytes
// of the task) reads both and returns the address of the answer. A call that throws does not return (failure.cc).
#include <cstddef>
#include <string>

#include "answer.h"
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

[[clang::export_name("version"), gnu::visibility("default")]] const char* live_version() {
  made = POLYHEAD_VERSION;
  return made.data();
}

[[clang::export_name("bytes"), gnu::visibility("default")]] std::size_t live_bytes() { return made.size(); }

}  // extern "C"
