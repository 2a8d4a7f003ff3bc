#include "measure_texts.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "core/text.h"
#include "format.h"

namespace polyhead::app {

std::uint64_t usable_memory() {
  const auto machine = static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(sysconf(_SC_PAGE_SIZE));
  rlimit limit{};
  return getrlimit(RLIMIT_AS, &limit) == 0 ? std::min<std::uint64_t>(machine, limit.rlim_cur) : machine;
}

void require_measurable(const models::AnyTextModel::Sizes& sizes, std::span<const models::TokenizedText> texts) {
  const std::uint64_t memory = usable_memory();
  for (const models::TokenizedText& tokens : texts) {
    const std::int64_t count = sizes.attention_weights(std::ssize(tokens.ids), 0);
    if (count > static_cast<std::int64_t>(memory / sizeof(float)))
      fail(ErrorCode::invalid_argument, "texts: the attention weights of all heads of a text of ", tokens.ids.size(), " tokens are ", count, " numbers of 4 bytes; there is ", byte_size(memory), " of memory, so give shorter texts");
  }
}

viewer::MeasuredTexts measure_texts(const models::AnyTextModel& model, std::vector<models::TokenizedText> texts, const std::function<void(std::size_t)>& told) {
  require_measurable(model.sizes(), texts);
  viewer::MeasuredTexts measured;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (told) told(i);
    const models::TextRun run = model.run(std::move(texts[i]), {});
    measured.add(run.attentions, {.pieces = run.tokens.pieces, .special = run.tokens.special});
  }
  return measured;
}

}  // namespace polyhead::app
