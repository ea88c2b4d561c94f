#pragma once

#include <cstdint>

#include "worker/models/model.h"

namespace cohort {

// Overwrites the weights of a model that ships with the worker, from `seed`
// alone: the same seed gives the same bits under every release of LibTorch.
// Batch norm keeps scale 1 and shift 0.
//   convolution without bias (batch norm and ReLU follow): Kaiming-uniform
//     with gain sqrt(2), U(-b, b) with b = sqrt(6 / fan_in);
//   convolution with bias, transposed convolution, linear layer: weight and
//     bias U(-b, b) with b = 1/sqrt(fan_in), PyTorch's defaults;
// Source: He et al., "Delving Deep into Rectifiers", 2015, section 2.2.
void SetInitialValues(Model& model, uint64_t seed);

}  // namespace cohort
