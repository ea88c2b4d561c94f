#include "kernels/cuda/errors.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/launch.h"

namespace cohort::kernels::cuda {

absl::Status StatusOf(int error, absl::string_view what) {
  if (error == 0) return absl::OkStatus();
  const std::string text =
      absl::StrCat(what, ": ", ErrorName(error), ": ", ErrorMeaning(error));
  if (IsOutOfMemory(error)) return absl::ResourceExhaustedError(text);
  if (IsWithoutCode(error)) {
    return absl::FailedPreconditionError(
        absl::StrCat(text,
                     "; this program has no code for the GPU: build it with "
                     "the GPU's number in COHORT_CUDA_ARCHITECTURES"));
  }
  if (IsWithoutDevice(error)) return absl::FailedPreconditionError(text);
  return absl::UnavailableError(text);
}

}  // namespace cohort::kernels::cuda
