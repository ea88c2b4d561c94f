#pragma once

#include "kernels/backend.h"

namespace cohort::kernels {

// Plain loops, one element at a time: the oracle of the tests.
const Backend& ReferenceBackend();

}  // namespace cohort::kernels
