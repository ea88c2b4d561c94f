#pragma once

#include "absl/status/statusor.h"
#include "cohort/v1/types.pb.h"
#include "common/byte_rope.h"
#include "common/element_type.h"
#include "common/float_buffer.h"

// The encodings of gradients and changes of weights on the wire.
namespace cohort {

v1::Encoding EncodingOf(ElementType type);
// Errors: InvalidArgument: gradients do not come in this encoding.
absl::StatusOr<ElementType> ElementTypeOf(v1::Encoding encoding);

// `floats` as they are sent: themselves, or a copy rounded to nearest even. A
// finite value above the range of bfloat16 becomes infinite, and the server
// then names the sender as for any other gradient that is not finite.
ByteRope EncodeGradient(const ByteRope& floats, ElementType type);

// The weights that `change`, in bfloat16, makes of `base`, into a buffer of
// `pool`. Errors: InvalidArgument if they have not as many elements.
absl::StatusOr<SharedFloats> AddChange(const ByteRope& base,
                                       const ByteRope& change,
                                       FloatBufferPool& pool);

}  // namespace cohort
