#include "worker/models/model.h"

#include <torch/torch.h>

#include <array>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "worker/models/initial_values.h"
#include "worker/models/pspnet.h"
#include "worker/models/resnet.h"
#include "worker/models/script_model.h"
#include "worker/models/small_nets.h"
#include "worker/models/unet.h"

namespace cohort {
namespace {

constexpr absl::string_view kUnet = "unet";
constexpr int64_t kUnetWidth = 64;

struct KnownModel {
  absl::string_view name;
  std::shared_ptr<Model> (*make)(const ModelOptions& options);
};

// In the order of messages and help.
constexpr std::array kModels = {
    KnownModel{
        "cnn",
        [](const ModelOptions& o) { return MakeCnn(o.channels, o.classes); }},
    KnownModel{"smooth",
               [](const ModelOptions& o) {
                 return MakeSmooth(o.channels, o.classes);
               }},
    KnownModel{"resnet20",
               [](const ModelOptions& o) {
                 return MakeCifarResNet(20, o.channels, o.classes);
               }},
    KnownModel{"resnet56",
               [](const ModelOptions& o) {
                 return MakeCifarResNet(56, o.channels, o.classes);
               }},
    KnownModel{"resnet18",
               [](const ModelOptions& o) {
                 return MakeResNet(ResNetSize::k18, o.channels, o.classes);
               }},
    KnownModel{"resnet50",
               [](const ModelOptions& o) {
                 return MakeResNet(ResNetSize::k50, o.channels, o.classes);
               }},
    KnownModel{kUnet,
               [](const ModelOptions& o) {
                 return MakeUnet({.channels = o.channels,
                                  .classes = o.classes,
                                  .width = o.width > 0 ? o.width : kUnetWidth});
               }},
    KnownModel{"pspnet",
               [](const ModelOptions& o) {
                 return MakePspNet(ResNetSize::k50, o.channels, o.classes);
               }},
    KnownModel{"pspnet18",
               [](const ModelOptions& o) {
                 return MakePspNet(ResNetSize::k18, o.channels, o.classes);
               }},
};

bool IsFile(const std::string& name) {
  return absl::StrContains(name, '/') || absl::EndsWith(name, ".pt") ||
         absl::EndsWith(name, ".pth") || absl::EndsWith(name, ".ts");
}

absl::Status CheckOptions(const ModelOptions& options) {
  if (options.channels < 1 || options.classes < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model ", options.name, ": got ", options.channels, " channels and ",
        options.classes, " classes, want at least 1 each"));
  }
  // The weight of the widest convolution then takes 2.4 GB.
  constexpr int64_t kWidthMax = 512;
  if (options.width < 0 || options.width > kWidthMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("--width: got ", options.width, ", want 1 to ", kWidthMax,
                     ", or 0 for the model's own"));
  }
  if (options.width > 0 && options.name != kUnet) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--width: got ", options.width, " for --model=", options.name,
        ", which has a fixed width; only unet takes one"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<Model>> MakeModel(const ModelOptions& options) {
  const absl::Status checked = CheckOptions(options);
  if (!checked.ok()) return checked;
  if (IsFile(options.name)) return LoadScriptModel(options);
  for (const KnownModel& known : kModels) {
    if (known.name != options.name) continue;
    std::shared_ptr<Model> model = known.make(options);
    SetInitialValues(*model, options.seed);
    return model;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--model: got ", options.name, ", want ",
      absl::StrJoin(kModels, ", ",
                    [](std::string* out, const KnownModel& known) {
                      absl::StrAppend(out, known.name);
                    }),
      " or a TorchScript file (its name ends in .pt, .pth or .ts, or holds a "
      "slash)"));
}

}  // namespace cohort
