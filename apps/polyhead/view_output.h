// What `polyhead view` writes for texts and for images alike: the page, its frame and the reports.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "json.h"
#include "polyhead/viewer.h"
#include "view_head.h"
#include "view_input.h"

namespace polyhead::app {

// Prints "wrote 'PATH' (WHAT)" as a diagnostic.
void report_written(const std::string& path, const std::string& what);

// Writes a page, and reports the path, `holds` (for example "144 heads") and the size. path: "-" is standard output, for which nothing is reported.
void write_html(const std::string& path, const std::string& html, const std::string& holds = {});

// Writes the page of a model's heads as write_html() does, and adds the path to `files`.
void write_view_page(const std::string& path, const std::string& html, const HeadChoice& choice, Json& files);

// A page to which no text is added yet. names: the names of its texts or images; the title is the first name and the number of further ones.
viewer::Page page_frame(const std::vector<std::string>& names, const std::string& model, std::optional<viewer::Language> language, double vector_megabytes);

Json to_json(const HeadChoice& choice, bool by_norms);  // by_norms: the map is norm-weighted

}  // namespace polyhead::app
