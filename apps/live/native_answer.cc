// native_answer TASK TEXT...: computes the answers of a live page's engine with this machine's kernels and prints a line of JSON for each text. For tests.
#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>

#include "answer.h"

int main(int count, char** arguments) {
  for (int i = 2; i < count; ++i) {
    try {
      std::puts(polyhead::live::answer(arguments[1], arguments[i]).c_str());
    } catch (const std::exception& error) {
      std::puts(nlohmann::json{{"error", error.what()}}.dump().c_str());
    }
  }
}
