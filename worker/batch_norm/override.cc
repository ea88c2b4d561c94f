#include "worker/batch_norm/override.h"

#include <ATen/ops/batch_norm_native.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <optional>
#include <type_traits>

#include "worker/batch_norm/batch_norm_function.h"
#include "worker/batch_norm/scope.h"

namespace cohort {
namespace {

at::Tensor BatchNormKernel(const at::Tensor& input,
                           const OptionalTensor& weight,
                           const OptionalTensor& bias,
                           const OptionalTensor& running_mean,
                           const OptionalTensor& running_var, bool training,
                           double momentum, double epsilon,
                           bool cudnn_enabled) {
  const std::shared_ptr<BatchNormScope::Step>& step = BatchNormScope::Current();
  if (step != nullptr) {
    const std::optional<int32_t> layer = step->binding->LayerOf(
        weight.has_value() ? *weight : at::Tensor(),
        running_mean.has_value() ? *running_mean : at::Tensor());
    if (layer.has_value()) {
      return CohortBatchNorm({{.tensors = {.input = input,
                                           .weight = weight,
                                           .bias = bias,
                                           .running_mean = running_mean,
                                           .running_var = running_var},
                               .call = {.step = step,
                                        .layer = *layer,
                                        .epsilon = epsilon,
                                        .batch_statistics = training}}})
          .front();
    }
  }
  return at::native::batch_norm(input, weight, bias, running_mean, running_var,
                                training, momentum, epsilon, cudnn_enabled);
}

}  // namespace

void InstallBatchNormKernel() {
  // The stock operator is composite: it has no separate kernels for autograd
  // on CPU and CUDA. So these entries replace nothing, and every tensor there
  // outside inference mode reaches them. They are never destroyed, because
  // modules may still run during static destruction.
  const auto install = [](c10::DispatchKey key) {
    auto* made = new torch::Library(torch::Library::IMPL, "aten", key, __FILE__,
                                    __LINE__);
    made->impl("batch_norm", TORCH_FN(BatchNormKernel));
    return made;
  };
  static torch::Library* const kCpu = install(c10::DispatchKey::AutogradCPU);
  static torch::Library* const kCuda = install(c10::DispatchKey::AutogradCUDA);
  static_cast<void>(kCpu);
  static_cast<void>(kCuda);
}

}  // namespace cohort
