#include "golden/runner/run.h"

#include <algorithm>
#include <charconv>

#include "support/compare.h"

namespace polyhead::golden {
namespace {

struct Worst {
  std::string tensor;
  double error = 0;   // relative to the tensor's magnitude
  double share = -1;  // error divided by its bound; above 1 the case fails
  std::string where;
};

Worst compare(const Case& which, const Tensors& results, const Bounds& bounds) {
  Worst worst;
  for (const auto& [name, expected] : which.expected) {
    const auto found = results.find(name);
    require(found != results.end(), "the runner computes no '", name, "' for this operation");
    require(found->second.shape() == expected.shape(), name, " is ", found->second.shape(), ", expected ", expected.shape());
    const std::vector<double> a = test::to_doubles(found->second), e = test::to_doubles(expected);
    const std::vector<double>& bound = bounds.at(name);
    const double unit = magnitude(which, name);
    for (std::size_t i = 0; i < a.size(); ++i) {
      const double error = test::difference(a[i], e[i]);
      const double share = error == 0 ? 0 : bound[i] > 0 ? error / bound[i] : std::numeric_limits<double>::infinity();
      if (share <= worst.share) continue;
      worst = {name, unit > 0 ? error / unit : error, share,
               cat(name, test::position(expected.shape(), static_cast<std::int64_t>(i)), " is ", a[i], ", expected ", e[i], " within ",
                   bound[i])};
    }
  }
  return worst;
}

std::string brief(double x) {
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof digits, x, std::chars_format::scientific, 1).ptr;
  return std::string(digits, end);
}

std::string padded(std::string text, std::size_t width) { return text.resize(std::max(width, text.size()), ' '), text; }

}  // namespace

RunResult run_files(std::span<const std::filesystem::path> paths, const RunOptions& options, const std::function<void(const std::string&)>& print) {
  RunResult result;
  for (const auto& path : paths) {
    for (const DType dtype : options.dtypes) {
      std::string line = padded(path.stem().string(), 42) + " " + std::string(info(dtype).name) + "  ";
      try {
        const Case which = read_case(path);
        Tensors inputs = inputs_as(which, dtype);
        const Bounds bounds = dtype_of(inputs) == DType::f64 ? float64_bounds(which) : float32_bounds(which, options.torch);
        const Worst worst = compare(which, compute(which, std::move(inputs), options.setting), bounds);
        const bool passed = worst.share <= 1;
        ++(passed ? result.passed : result.failed);
        append(line, cat("worst ", brief(worst.error), " in ", worst.tensor, ", ", brief(worst.share), " of what is allowed"));
        if (!passed) append(line, cat("  FAILED: ", worst.where));
      } catch (const std::exception& error) {
        ++result.failed;
        append(line, cat("FAILED: ", std::string_view(error.what())));
      }
      print(line);
    }
  }
  return result;
}

}  // namespace polyhead::golden
