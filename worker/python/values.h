#pragma once

#include <nanobind/nanobind.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/data_type.h"
#include "worker/python/batch_norm_calls.h"
#include "worker/python/moving_buffers.h"

// Values that pass between C++ and Python.
namespace cohort {

// What Tensor.data_ptr() returns.
template <typename T>
T* Pointer(uintptr_t address) {
  return reinterpret_cast<T*>(address);  // NOLINT
}

// "float32" and so on; float32 for any other name.
kernels::DataType TypeNamed(const std::string& name);

// From [outer, channels, inner].
inline kernels::BatchShape ShapeOf(const std::vector<int64_t>& shape) {
  return {.outer = shape[0], .channels = shape[1], .inner = shape[2]};
}

// The moving statistics that a call moves, as Python passes them. `momentum` is
// NaN for the cumulative average.
struct BufferUpdate {
  uintptr_t mean = 0;
  uintptr_t variance = 0;
  uintptr_t tracked = 0;
  double momentum = 0;
  bool own = false;

  MovingBuffers::Update args() const {
    MovingBuffers::Update update{
        .place = {.mean = Pointer<float>(mean),
                  .variance = Pointer<float>(variance),
                  .tracked = Pointer<int64_t>(tracked)},
        .own = own};
    if (!std::isnan(momentum)) update.momentum = momentum;
    return update;
  }
};

// A batch-norm call as Python passes it.
struct NormCall {
  int32_t layer = 0;
  std::string site;
  double epsilon = 0;
  std::vector<int64_t> shape;
  std::vector<int64_t> extents;
  std::string type;
  uintptr_t x = 0;
  std::string affine_type;
  uintptr_t gamma = 0;
  uintptr_t beta = 0;
  uintptr_t y = 0;
  BufferUpdate update;

  BatchNormCalls::ForwardArgs args() const {
    return {.call = {.layer = layer,
                     .site = site,
                     .epsilon = epsilon,
                     .extents = extents,
                     .update = update.args()},
            .shape = ShapeOf(shape),
            .type = TypeNamed(type),
            .x = Pointer<void>(x),
            .affine = {.type = TypeNamed(affine_type),
                       .gamma = Pointer<void>(gamma),
                       .beta = Pointer<void>(beta)},
            .y = Pointer<void>(y)};
  }
};

// Handed back to Python between the passes.
struct KeptCall {
  BatchNormCalls::SharedCall call;
};

// Its backward pass.
struct NormGradient {
  KeptCall saved;
  std::vector<int32_t> path;
  std::vector<int64_t> shape;
  std::string type;
  uintptr_t x = 0;
  uintptr_t dy = 0;
  std::string affine_type;
  uintptr_t gamma = 0;
  bool needs_dx = false;
  uintptr_t dx = 0;

  BatchNormCalls::BackwardArgs args() const {
    return {.saved = saved.call,
            .path = path,
            .shape = ShapeOf(shape),
            .type = TypeNamed(type),
            .x = Pointer<void>(x),
            .dy = Pointer<void>(dy),
            .affine = {.type = TypeNamed(affine_type),
                       .gamma = Pointer<void>(gamma)},
            .needs_dx = needs_dx,
            .dx = Pointer<void>(dx)};
  }
};

// Defines them in the module.
void DefineValues(nanobind::module_& m);

}  // namespace cohort
