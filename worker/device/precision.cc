#include "worker/device/precision.h"

#include <ATen/autocast_mode.h>
#include <torch/version.h>

namespace cohort {
namespace {

// The only place where this project's LibTorch versions differ: from 2.4 on,
// autocast functions take a device type.
#if TORCH_VERSION_MAJOR > 2 || \
    (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)

void SetAutocast(at::DeviceType type, bool enabled) {
  if (enabled) at::autocast::set_autocast_dtype(type, at::kBFloat16);
  at::autocast::set_autocast_enabled(type, enabled);
}

#else

void SetAutocast(at::DeviceType type, bool enabled) {
  if (type == at::kCPU) {
    if (enabled) at::autocast::set_autocast_cpu_dtype(at::kBFloat16);
    at::autocast::set_cpu_enabled(enabled);
  } else {
    if (enabled) at::autocast::set_autocast_gpu_dtype(at::kBFloat16);
    at::autocast::set_enabled(enabled);
  }
}

#endif

}  // namespace

PrecisionScope::PrecisionScope(at::DeviceType type, Precision precision)
    : type_(type), precision_(precision) {
  if (precision_ == Precision::kFloat32) return;
  at::autocast::increment_nesting();
  SetAutocast(type_, true);
}

PrecisionScope::~PrecisionScope() {
  if (precision_ == Precision::kFloat32) return;
  SetAutocast(type_, false);
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
}

}  // namespace cohort
