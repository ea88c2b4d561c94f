#pragma once

#include <cstdint>
#include <memory>

#include "worker/models/model.h"

namespace cohort {

// "cnn" and "smooth" of MakeModel; initial values are not set.
std::shared_ptr<Model> MakeCnn(int64_t channels, int64_t classes);
std::shared_ptr<Model> MakeSmooth(int64_t channels, int64_t classes);

}  // namespace cohort
