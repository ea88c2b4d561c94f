#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

#include "worker/python/batch_norm_calls.h"

// Values that pass between C++ and Python.
namespace cohort {

// What Tensor.data_ptr() returns.
template <typename T>
T* Pointer(uintptr_t address) {
  return reinterpret_cast<T*>(address);  // NOLINT
}

// Handed back to Python between the passes.
struct KeptCall {
  BatchNormCalls::SharedCall call;
};

// Defines them in the module.
void DefineValues(nanobind::module_& m);

}  // namespace cohort
