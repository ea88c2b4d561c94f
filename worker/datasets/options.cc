#include "worker/datasets/options.h"

#include <array>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace cohort {
namespace {

constexpr int64_t kExtentMax = 16384;

constexpr std::array<std::pair<const char*, bool Augmentations::*>, 4> kNames =
    {{{"flip", &Augmentations::flip},
      {"crop", &Augmentations::crop},
      {"scale", &Augmentations::scale},
      {"jitter", &Augmentations::jitter}}};

// The member with this name; null if there is none.
bool Augmentations::*MemberOf(absl::string_view name) {
  for (const auto& [known, member] : kNames) {
    if (name == known) return member;
  }
  return nullptr;
}

}  // namespace

std::string ToText(const ImageSize& size) {
  return absl::StrCat(size.height, "x", size.width);
}

std::string ToText(const Augmentations& augmentations) {
  std::vector<absl::string_view> names;
  for (const auto& [name, member] : kNames) {
    if (augmentations.*member) names.emplace_back(name);
  }
  return names.empty() ? "none" : absl::StrJoin(names, ",");
}

Augmentations DefaultAugmentations(absl::string_view dataset) {
  if (dataset == "cifar10" || dataset == "cifar100") {
    return {.flip = true, .crop = true};
  }
  if (dataset == "voc") {
    return {.flip = true, .crop = true, .scale = true, .jitter = true};
  }
  return {};
}

absl::StatusOr<std::optional<ImageSize>> ParseImageSize(
    absl::string_view text) {
  if (text.empty()) return std::nullopt;
  const std::vector<absl::string_view> parts = absl::StrSplit(text, 'x');
  ImageSize size;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &size.height) ||
      !absl::SimpleAtoi(parts[1], &size.width) || size.height < 1 ||
      size.width < 1 || size.height > kExtentMax || size.width > kExtentMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--image_size: got ", text,
        ", want HEIGHTxWIDTH such as 240x320, each 1 to ", kExtentMax));
  }
  return size;
}

absl::StatusOr<std::optional<Augmentations>> ParseAugmentations(
    absl::string_view text) {
  if (text == "auto") return std::nullopt;
  Augmentations chosen;
  if (text == "none") return chosen;
  for (absl::string_view name : absl::StrSplit(text, ',')) {
    bool Augmentations::*const member = MemberOf(name);
    if (member == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("--augment: got '", name, "' in '", text,
                       "', want auto, none, or some of flip, crop, scale and "
                       "jitter, separated by commas"));
    }
    chosen.*member = true;
  }
  return chosen;
}

}  // namespace cohort
