// native_answer TASK TEXT... or native_answer model FOLDER TEXT...: prints what the engine of a live page answers, one line of JSON for each text. For tests: this
// program computes the answers with this machine's kernels.
#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>
#include <string_view>

#include "answer.h"

int main(int count, char** arguments) {
  const bool of_folder = count > 2 && std::string_view(arguments[1]) == "model";
  if (of_folder) polyhead::live::open_model(arguments[2]);
  for (int i = of_folder ? 3 : 2; i < count; ++i) {
    try {
      std::puts(polyhead::live::answer(arguments[1], arguments[i]).c_str());
    } catch (const std::exception& error) {
      std::puts(nlohmann::json{{"error", error.what()}}.dump().c_str());
    }
  }
}
