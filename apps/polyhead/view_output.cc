#include "view_output.h"

#include <nlohmann/json.hpp>

#include "core/text.h"
#include "format.h"
#include "polyhead/io/atomic_file.h"
#include "terminal.h"
#include "text_layout.h"

namespace polyhead::app {

void report_written(const std::string& path, const std::string& what) { print_diagnostic(cat("wrote '", path, "' (", what, ")")); }

void write_html(const std::string& path, const std::string& html, const std::string& holds) {
  if (path == "-") return print(html);
  io::write_file(path, html);
  report_written(path, cat(holds, holds.empty() ? "" : ", ", byte_size(html.size())));
}

void write_view_page(const std::string& path, const std::string& html, const HeadChoice& choice, Json& files) {
  write_html(path, html, cat(choice.layers * choice.heads, " heads"));
  files["page"] = path;
}

viewer::Page page_frame(const std::vector<std::string>& names, const std::string& model, std::optional<viewer::Language> language, double vector_megabytes) {
  viewer::Page page;
  page.title = clip_words(printable(names[0]), 80);
  if (names.size() > 1) page.title += cat(" (+", names.size() - 1, ")");
  page.model = model_name(model);
  page.language = language.value_or(viewer::Language::readers);
  page.vector_megabytes = vector_megabytes;
  return page;
}

Json to_json(const HeadChoice& choice, bool by_norms) {
  return {{"layer", choice.layer ? Json(*choice.layer) : Json(nullptr)}, {"head", choice.head ? Json(*choice.head) : Json(nullptr)}, {"description", choice.description()}, {"weighting", by_norms ? "norm" : "attention"}};
}

}  // namespace polyhead::app
