#include "view_live.h"

#include <fstream>
#include <iterator>
#include <span>
#include <vector>

#include "arguments.h"
#include "core/embed_file.h"
#include "core/text.h"
#include "output_path.h"
#include "polyhead/version.h"
#include "view_output.h"

#ifdef POLYHEAD_LIVE_ENGINE
POLYHEAD_EMBED_FILE(polyhead_live_engine, POLYHEAD_LIVE_ENGINE)
#endif

namespace polyhead::app {
namespace {

std::vector<std::uint8_t> read_engine(const std::string& path) {
  if (path.empty()) {
#ifdef POLYHEAD_LIVE_ENGINE
    return {polyhead_live_engine, polyhead_live_engine_end};
#else
    throw UsageError("--live: this polyhead was built without the engine of live pages, which is a module of WebAssembly. In a folder of its source `scripts/live-engine` builds it; then give "
                     "--engine build/wasm/apps/live/polyhead_live.wasm.gz");
#endif
  }
  std::ifstream file(path, std::ios::binary);
  std::vector<std::uint8_t> bytes{std::istreambuf_iterator<char>(file), {}};
  if (!file) fail(ErrorCode::io, "cannot read the engine ", path);
  if (bytes.size() < 2 || bytes[0] != 0x1f || bytes[1] != 0x8b) throw UsageError(cat("--engine: '", path, "' is not compressed by gzip; `scripts/live-engine` writes polyhead_live.wasm.gz"));
  return bytes;
}

}  // namespace

void write_live_page(const LiveOptions& o) {
  if (o.page.empty()) throw UsageError("--live writes a page; give it a file with -o");
  if (o.page != "-") check_writable(o.page);
  const std::vector<std::uint8_t> engine = read_engine(o.engine);
  viewer::LivePage page{.title = "Your sentence, live", .engine = engine, .version = POLYHEAD_VERSION, .text = o.text};
  if (page.text.empty()) page.text = "I am very happy with how it looks, but the manual is too complicated.";
  page.language = o.language.value_or(viewer::Language::readers);
  write_html(o.page, viewer::render_live(page));
}

}  // namespace polyhead::app
