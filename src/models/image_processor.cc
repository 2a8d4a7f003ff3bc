#include "polyhead/models/image_processor.h"

#include <algorithm>
#include <string>

#include "core/join.h"
#include "core/text.h"
#include "io/file_bytes.h"
#include "models/vision_config_file.h"

namespace polyhead::models {
namespace {

using Size = ImageProcessor::Size;

constexpr std::array kHalf{std::array{0.5, 0.5, 0.5}, std::array{0.5, 0.5, 0.5}},
    kClip{std::array{0.48145466, 0.4578275, 0.40821073}, std::array{0.26862954, 0.26130258, 0.27577711}};

// The defaults of an image processor class of transformers.
struct ProcessorKind {
  std::string_view name;  // name of the class without "ImageProcessor" or "FeatureExtractor"
  std::int64_t size = 224, crop = 0;  // crop = 0: the class does not crop
  bool shortest = false;              // true: the default size is the length of the shorter side
  bool to_square = true;              // default_to_square: a size given as one number is height and width; false: the length of the shorter side
  Resampling resampling = Resampling::bicubic;
  std::array<std::array<double, 3>, 2> colours{};  // mean and deviation
};
constexpr ProcessorKind kKinds[] = {{.name = "ViT", .resampling = Resampling::bilinear, .colours = kHalf},
                                    {.name = "DeiT", .size = 256, .crop = 224, .colours = kHalf},
                                    {.name = "CLIP", .crop = 224, .shortest = true, .to_square = false, .colours = kClip},
                                    {.name = "Siglip", .to_square = false, .colours = kHalf}};

// The numbers by which the key `resample` names Pillow's resampling methods.
constexpr std::pair<std::int64_t, Resampling> kResamplings[] = {{1, Resampling::lanczos}, {2, Resampling::bilinear}, {3, Resampling::bicubic}, {4, Resampling::box}, {5, Resampling::hamming}};

constexpr std::int64_t kMostSide = 1 << 14;

const ProcessorKind& kind_of(ConfigFile& file) {
  std::string given;
  for (const char* key : {"feature_extractor_type", "image_processor_type"})
    if (const auto name = file.get<std::string>(key)) given = *name;
  for (const ProcessorKind& kind : kKinds)
    for (const std::string_view end : {"ImageProcessor", "ImageProcessorFast", "ImageProcessorPil", "FeatureExtractor"})
      if (given == cat(kind.name, end)) return kind;
  fail(ErrorCode::unsupported, file.name(), ": image_processor_type is '", given, "'; those of ", join(kKinds, &ProcessorKind::name), " are supported, such as ViTImageProcessor");
}

struct GivenSize {
  std::optional<Size> whole{};
  std::optional<std::int64_t> shortest{};
};

GivenSize of_side(std::int64_t side, bool shortest) { return shortest ? GivenSize{.shortest = side} : GivenSize{.whole = Size{side, side}}; }

GivenSize read_size(ConfigFile& file, std::string_view key, const GivenSize& otherwise, bool to_square) {
  const io::Json* given = file.find(key);
  if (given == nullptr) return otherwise;
  if (given->as<io::Json::Object>() == nullptr) return of_side(file.size(key, 0, kMostSide), !to_square);
  ConfigFile part = file.part(key);
  static constexpr std::string_view kKeys[] = {"height", "width", "shortest_edge"};
  file.file().allow_only(*given, kKeys, key);
  if (part.find("shortest_edge") != nullptr) {
    if (part.find("height") != nullptr || part.find("width") != nullptr) file.unsupported(key, "has shortest_edge beside height or width");
    return {.shortest = part.size("shortest_edge", 0, kMostSide)};
  }
  return {.whole = Size{part.size("height", 0, kMostSide), part.size("width", 0, kMostSide)}};
}

Resampling read_resampling(ConfigFile& file, Resampling otherwise) {
  const auto given = file.get<std::int64_t>("resample");
  if (!given) return otherwise;
  for (const auto& [number, resampling] : kResamplings)
    if (number == *given) return resampling;
  file.unsupported("resample", cat("is ", *given, "; Pillow's 1 (Lanczos), 2 (bilinear), 3 (bicubic), 4 (box) and 5 (Hamming) are supported"));
}

}  // namespace

std::array<double, 3> read_colours(ConfigFile& file, std::string_view key, const std::array<double, 3>& otherwise, bool positive) {
  const io::Json* given = file.find(key);
  if (given == nullptr) return otherwise;
  const auto* list = given->as<io::Json::Array>();
  if (list == nullptr || list->size() != 3) file.unsupported(key, cat("is ", io::describe(*given), "; a list of three numbers is supported, for red, green and blue"));
  std::array<double, 3> colours{};
  for (std::size_t i = 0; i < 3; ++i) {
    const std::optional<double> number = as_number((*list)[i]);
    if (!number) file.fail_at(key, cat("has ", io::describe((*list)[i]), "; numbers are needed"));
    colours[i] = *number;
    if (positive && !(colours[i] > 0)) file.fail_at(key, cat("has ", colours[i], "; it must be above 0"));
  }
  return colours;
}

ImageProcessor read_image_processor(const std::filesystem::path& folder) {
  if (!io::file_exists(folder / "preprocessor_config.json")) {
    ConfigFile config(folder / "config.json");
    if (is_timm(config)) return read_timm_processor(config);
  }
  ConfigFile file(folder / "preprocessor_config.json");
  const ProcessorKind& kind = kind_of(file);
  const auto flag = [&](std::string_view key, bool otherwise) { return file.get<bool>(key).value_or(otherwise); };
  ImageProcessor processor;
  const GivenSize size = read_size(file, "size", of_side(kind.size, kind.shortest), flag("default_to_square", kind.to_square));
  if (flag("do_resize", true)) processor.resize = size.whole, processor.shortest_edge = size.shortest;
  processor.resampling = read_resampling(file, kind.resampling);
  const GivenSize crop = read_size(file, "crop_size", of_side(kind.crop == 0 ? 224 : kind.crop, false), true);
  if (crop.shortest) file.unsupported("crop_size", "has shortest_edge; height and width are needed");
  if (flag("do_center_crop", kind.crop != 0)) processor.crop = crop.whole;
  const double factor = file.positive("rescale_factor", 1.0 / 255);
  if (flag("do_rescale", true)) processor.factor = factor;
  processor.normalise = flag("do_normalize", true);
  processor.mean = read_colours(file, "image_mean", kind.colours[0], false);
  processor.deviation = read_colours(file, "image_std", kind.colours[1], true);
  file.find("do_convert_rgb");  // marks the key as read: the image readers give red, green and blue, whatever this key says
  if (flag("do_pad", false)) file.unsupported("do_pad", "is true; padding is not supported");
  static constexpr std::string_view kWithoutEffect[] = {"processor_class", "data_format", "input_data_format", "device", "return_tensors", "disable_grouping", "image_seq_length", "pad_size"};
  file.require_all_read(cat(kind.name, "ImageProcessor"), kWithoutEffect);
  return processor;
}

Tensor fitted(const ImageProcessor& processor, ConstTensorView image) {
  Tensor current;
  if (processor.resize) current = resized(image, *processor.resize, processor.resampling);
  if (processor.shortest_edge) {
    const std::int64_t height = image.extent(0), width = image.extent(1), shorter = std::min(height, width);
    // Rounds like transformers.
    const auto side = [&](std::int64_t length) {
      return length == shorter ? *processor.shortest_edge : static_cast<std::int64_t>(static_cast<double>(*processor.shortest_edge * length) / static_cast<double>(shorter));
    };
    current = resized(image, {side(height), side(width)}, processor.resampling);
  }
  if (!current) current = resized(image, {image.extent(0), image.extent(1)}, processor.resampling);  // no resizing: only checks and copies the image
  if (!processor.crop) return current;
  const std::int64_t height = current.extent(0), width = current.extent(1);
  const auto [crop_height, crop_width] = *processor.crop;
  require(crop_height <= height && crop_width <= width, "fitted: the image is ", height, " x ", width, " pixels, too small for a crop of ", crop_height, " x ", crop_width, "; padding is not supported");
  const auto before = [&](std::int64_t rest) { return rest / 2 + (processor.crop_half_even && rest % 4 == 3 ? 1 : 0); };
  const std::int64_t top = before(height - crop_height), left = before(width - crop_width);
  return Tensor::copy_of(current.view().slice(0, top, top + crop_height).slice(1, left, left + crop_width));
}

Tensor normalised(const ImageProcessor& processor, ConstTensorView fitted) {
  require(fitted && fitted.dtype() == DType::u8 && fitted.rank() == 3 && fitted.extent(2) == 3, "normalised: fitted is ", fitted.dtype(), " ", fitted.shape(), "; it must be uint8 [height,width,3]");
  const Tensor bytes = Tensor::copy_of(fitted.move_axis(2, 0));
  Tensor planes = Tensor::uninitialised(DType::f32, bytes.shape());
  const std::int64_t count = fitted.extent(0) * fitted.extent(1);
  for (std::int64_t c = 0; c < 3; ++c) {
    const float mean = static_cast<float>(processor.mean[static_cast<std::size_t>(c)]), deviation = static_cast<float>(processor.deviation[static_cast<std::size_t>(c)]);
    for (std::int64_t i = c * count; i < (c + 1) * count; ++i) {
      const std::uint8_t byte = bytes.data<std::uint8_t>()[i];
      float x = byte;
      if (processor.factor) x = static_cast<float>(byte * *processor.factor);  // computed in float64, as transformers does
      planes.data<float>()[i] = processor.normalise ? (x - mean) / deviation : x;
    }
  }
  return planes;
}

}  // namespace polyhead::models
