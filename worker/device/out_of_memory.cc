#include "worker/device/out_of_memory.h"

#include <c10/util/Exception.h>
#include <torch/torch.h>

#include <new>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace cohort {

bool IsOutOfMemory(const std::exception& e) {
  if (dynamic_cast<const c10::OutOfMemoryError*>(&e) != nullptr ||
      dynamic_cast<const std::bad_alloc*>(&e) != nullptr) {
    return true;
  }
  // The libraries below LibTorch, and its host allocator, throw exceptions
  // without a separate type, so only the text tells.
  const absl::string_view text = e.what();
  return absl::StrContains(text, "out of memory") ||
         absl::StrContains(text, "can't allocate memory") ||
         absl::StrContains(text, "ALLOC_FAILED");
}

std::string TypeAndShapeText(at::ScalarType type, at::IntArrayRef shape) {
  auto bytes = static_cast<int64_t>(c10::elementSize(type));
  for (const int64_t extent : shape) bytes *= extent;
  return absl::StrCat(c10::toString(type), " [",
                      absl::StrJoin(shape.begin(), shape.end(), ","), "], ",
                      bytes, " bytes");
}

std::string TensorText(absl::string_view name, const at::Tensor& tensor) {
  return absl::StrCat(name, ", ",
                      TypeAndShapeText(tensor.scalar_type(), tensor.sizes()));
}

absl::Status OutOfMemory(const Compute& compute, absl::string_view what,
                         const std::exception& e) {
  const auto* error = dynamic_cast<const c10::Error*>(&e);
  return OutOfMemory(compute, what,
                     error == nullptr
                         ? absl::string_view(e.what())
                         : absl::string_view(error->what_without_backtrace()));
}

absl::Status OutOfMemory(const Compute& compute, absl::string_view what,
                         absl::string_view why) {
  std::string where = "the CPU";
  if (compute.accelerator != nullptr) {
    where = std::string(compute.accelerator->name());
    const absl::StatusOr<int64_t> free_bytes = compute.accelerator->FreeBytes();
    if (free_bytes.ok()) {
      absl::StrAppend(&where, ", where ", *free_bytes, " bytes are free");
    }
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("out of memory on ", where, ": ", what, " (", why,
                   "); use a smaller --batch_size, compute it in parts with "
                   "--accumulate, or use --precision=bfloat16"));
}

}  // namespace cohort
