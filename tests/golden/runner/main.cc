// polyhead_golden FOLDER [--dtype f64|f32|all] [--float32-errors FILE] [--backend NAME]
#include <cstdio>
#include <string_view>

#include "golden/runner/run.h"

namespace {

using namespace polyhead;

int run(int count, char** arguments) {
  std::filesystem::path folder;
  golden::RunOptions options;
  for (int i = 1; i < count; ++i) {
    const std::string_view argument = arguments[i];
    const auto value = [&]() -> std::string_view {
      require(i + 1 < count, argument, " needs a value");
      return arguments[++i];
    };
    if (argument == "--dtype") {
      const std::string_view name = value();
      require(name == "f64" || name == "f32" || name == "all", "--dtype is ", name, "; it must be f64, f32 or all");
      options.dtypes = name == "all" ? std::vector{DType::f64, DType::f32} : std::vector{name == "f64" ? DType::f64 : DType::f32};
    } else if (argument == "--float32-errors") {
      options.torch = golden::read_float32_errors(value());
    } else if (argument == "--backend") {
      options.setting.backend = &find_backend(value());
    } else {
      require(folder.empty() && argument.substr(0, 1) != "-", "unknown argument ", argument);
      folder = argument;
    }
  }
  require(!folder.empty(),
          "a folder of golden vectors is needed: polyhead_golden FOLDER [--dtype f64|f32|all] [--float32-errors FILE] [--backend NAME]");
  const golden::RunResult result = golden::run_folder(folder, options, [](const std::string& line) { std::puts(line.c_str()); });
  std::printf("%d passed, %d failed\n", result.passed, result.failed);
  return result.failed == 0 ? 0 : 1;
}

}  // namespace

int main(int count, char** arguments) {
  try {
    return run(count, arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "polyhead_golden: %s\n", error.what());
    return 2;
  }
}
