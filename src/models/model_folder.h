// A folder of a trained model: config.json with the kind of model and its sizes, model.safetensors with the parameters as visit(f) names them.
// A config is a struct that names the kind of its model and lists its fields once:
//   static constexpr std::string_view kModelType = "polyhead-...";
//   template <class F, class Self>
//   static void visit_fields(const F& f, Self& self) { f("width", self.width); f("dropout", self.dropout); }
// Fields are std::int64_t, double, bool and std::string. A missing field is an Error, unless its name is Config::kNewField: it then keeps its default. Other
// members of the file are ignored.
#pragma once

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <string_view>

#include "core/text.h"
#include "io/file_bytes.h"
#include "io/json.h"
#include "models/json_file.h"
#include "polyhead/io/atomic_file.h"
#include "polyhead/io/parameters.h"
#include "polyhead/io/tensor_file.h"

namespace polyhead::models {

inline std::string json_value(std::int64_t value) { return cat(value); }
inline std::string json_value(double value) { return cat(value); }
inline std::string json_value(bool value) { return cat(value); }
inline std::string json_value(const std::string& value) { return io::json_string(value); }

// Creates the folder where it is missing.
void make_folder(const std::filesystem::path& folder);

// Creates the folder where it is missing. Each file appears whole or not at all; config.json, which makes the folder a model, comes last.
template <class Config, VisitsTensors M>
void write_model(const std::filesystem::path& folder, const Config& config, const M& module) {
  make_folder(folder);
  io::save_parameters(module, folder / "model.safetensors");
  std::string text = cat("{\n  \"model_type\": ", io::json_string(Config::kModelType));
  Config::visit_fields([&](std::string_view name, const auto& value) { text += cat(",\n  ", io::json_string(name), ": ", json_value(value)); }, config);
  io::write_file(folder / "config.json", text + "\n}\n");
}

// Reads config.json. Error if the folder holds another kind of model, or if an integer is not in [0, 2^31], so that products of two integers do not overflow.
template <class Config>
Config read_model_config(const std::filesystem::path& folder) {
  const JsonFile file(folder / "config.json");
  const auto kind = file.get<std::string>(file.root(), "model_type").value_or("");
  if (kind != Config::kModelType) fail(ErrorCode::unsupported, file.name(), ": model_type is '", kind, "'; '", Config::kModelType, "' is needed here");
  Config config{.seed = 0};  // any seed: the file replaces the parameters
  Config::visit_fields(
      [&](std::string_view name, auto& value) {
        using T = std::remove_reference_t<decltype(value)>;
        if constexpr (requires { Config::kNewField; })
          if (name == Config::kNewField && JsonFile::find(file.root(), name) == nullptr) return;
        file.require(file.root(), name);
        value = *file.get<T>(file.root(), name);
        if constexpr (std::is_same_v<T, std::int64_t>)
          if (value < 0 || value > std::int64_t{1} << 31) file.fail_at("", name, cat("is ", value, "; it must be in [0, 2^31]"));
      },
      config);
  // Check the file of parameters before memory for parameters of these sizes is allocated.
  io::require_regular(folder / "model.safetensors");
  const io::TensorFile parameters = io::open_tensors(folder / "model.safetensors");
  const auto tensors = static_cast<std::int64_t>(parameters.tensors.size());
  if (config.layers > tensors) file.fail_at("", "layers", cat("is ", config.layers, "; model.safetensors has ", tensors, " tensors"));
  std::int64_t values = 0;
  for (const auto& [name, tensor] : parameters.tensors) values += tensor.numel();
  Config::visit_fields(
      [&](std::string_view name, const auto& value) {
        if constexpr (std::is_same_v<std::remove_cvref_t<decltype(value)>, std::int64_t>)
          if (value > std::max<std::int64_t>(values, 256)) file.fail_at("", name, cat("is ", value, "; model.safetensors has ", values, " values"));
      },
      config);
  return config;
}

// Fills the float32 parameters of a module that has the config's sizes. Error if one is not finite, because answers would be NaN or meaningless.
template <VisitsTensors M>
void read_model_parameters(M& module, const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "model.safetensors";
  io::load_parameters(module, path);
  module.visit([&](const std::string& name, const Tensor& tensor) {
    const float* const values = tensor.data<float>();
    const float* const end = values + tensor.view().numel();
    const float* const odd = std::find_if(values, end, [](float x) { return !std::isfinite(x); });
    if (odd != end) fail(ErrorCode::format, path.string(), ": ", name, " has the value ", *odd, "; it must be finite");
  });
}

// Loads a model that consists of its config and its parameters only.
template <class M, class Config>
M read_model(const std::filesystem::path& folder) {
  M model(read_model_config<Config>(folder));
  read_model_parameters(model, folder);
  return model;
}

}  // namespace polyhead::models
