#pragma once

#include <cstddef>

#include "absl/types/span.h"

namespace cohort {

// Copies `from` to `to`, which has the same size and does not overlap. What is
// large is written past the caches: the processor then reads no line of `to`
// just to overwrite it, and what the caches hold stays there. For bytes that
// another core or a later phase reads next.
void StreamCopy(absl::Span<const std::byte> from, absl::Span<std::byte> to);

}  // namespace cohort
