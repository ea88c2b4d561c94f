#include "worker/device/compute_device.h"

#include <torch/torch.h>

#include <exception>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"
#include "worker/device/out_of_memory.h"

namespace cohort {
namespace {

absl::Status MoveTensor(const Compute& to, const std::string& name,
                        const at::Tensor& tensor) {
  try {
    const torch::NoGradGuard no_grad;
    tensor.set_data(tensor.to(to.torch));
    return absl::OkStatus();
  } catch (const std::exception& e) {
    if (!IsOutOfMemory(e)) throw;
    return OutOfMemory(to, TensorText(name, tensor), e);
  }
}

}  // namespace

std::string ComputeDevice::name() const {
  return accelerator == nullptr ? "cpu" : std::string(accelerator->name());
}

absl::StatusOr<std::optional<int32_t>> ParseDevice(const std::string& text) {
  if (text == "cpu") return std::optional<int32_t>();
  if (text == "cuda") return std::optional<int32_t>(0);
  absl::string_view rest = text;
  int32_t index = 0;
  // Compared with the text so that signs and blanks, which SimpleAtoi accepts,
  // are refused.
  if (absl::ConsumePrefix(&rest, "cuda:") && absl::SimpleAtoi(rest, &index) &&
      index >= 0 && absl::StrCat(index) == rest) {
    return std::optional<int32_t>(index);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--device: got ", text, ", want cpu or cuda:N, such as cuda:0"));
}

absl::StatusOr<ComputeDevice> OpenComputeDevice(const std::string& text) {
  COHORT_ASSIGN_OR_RETURN(const std::optional<int32_t> index,
                          ParseDevice(text));
  if (!index.has_value()) return ComputeDevice();
  absl::StatusOr<ComputeDevice> device = OpenCudaDevice(*index);
  if (device.ok()) return device;
  // The status message already names the GPU.
  return absl::Status(
      device.status().code(),
      absl::StrCat("--device: got ", text, ": ",
                   absl::StripPrefix(device.status().message(),
                                     absl::StrCat("cuda:", *index, ": "))));
}

absl::Status MoveTo(const Compute& to, torch::nn::Module& model) {
  if (to.torch.is_cpu()) return absl::OkStatus();
  for (const auto& item : model.named_parameters()) {
    COHORT_RETURN_IF_ERROR(MoveTensor(to, item.key(), item.value()));
  }
  for (const auto& item : model.named_buffers()) {
    COHORT_RETURN_IF_ERROR(MoveTensor(to, item.key(), item.value()));
  }
  return absl::OkStatus();
}

}  // namespace cohort
