// The program that computes golden vectors and compares the results: polyhead_golden FOLDER [--dtype f64|f32|all] [--float32-errors FILE] [--backend NAME]
#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <string>

#include "golden/runner/run.h"

namespace {

using namespace polyhead;

const std::map<std::string, std::vector<DType>> kNamedDTypes{
    {"f64", {DType::f64}}, {"f32", {DType::f32}}, {"all", {DType::f64, DType::f32}}};

int run(const std::string& folder, const std::string& dtype, const std::string& errors, const std::string& backend) {
  golden::RunOptions options;
  options.dtypes = kNamedDTypes.at(dtype);
  if (!errors.empty()) options.torch = golden::read_float32_errors(errors);
  if (!backend.empty()) options.setting.backend = &find_backend(backend);
  const golden::RunResult result = golden::run_folder(folder, options, [](const std::string& line) { std::puts(line.c_str()); });
  std::printf("%d passed, %d failed\n", result.passed, result.failed);
  return result.failed == 0 ? 0 : 1;
}

}  // namespace

int main(int count, char** arguments) {
  CLI::App parser("Runs golden vectors through the public interface.", "polyhead_golden");
  std::string folder, dtype = "f64", errors, backend;
  parser.add_option("FOLDER", folder, "of *.safetensors files")->required();
  parser.add_option("--dtype", dtype, "f64, f32 or all (default: f64)")->check(CLI::IsMember(kNamedDTypes));
  parser.add_option("--float32-errors", errors, "JSON file with the errors of plain PyTorch in float32, from which bounds are computed");
  parser.add_option("--backend", backend, "use this backend instead of the one that the library chooses");
  try {
    parser.parse(count, arguments);
    return run(folder, dtype, errors, backend);
  } catch (const CLI::CallForHelp& help) {
    return parser.exit(help);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "polyhead_golden: %s\n", error.what());
    return 2;
  }
}
