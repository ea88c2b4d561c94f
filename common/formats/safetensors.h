#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/byte_rope.h"

namespace cohort {

// The safetensors file format:
//   8 bytes   length H of the header, little-endian
//   H bytes   JSON: {"name": {"dtype": "F32", "shape": [..],
//             "data_offsets": [begin, end]}, ..., "__metadata__": {..}}
//   the rest  tensor bytes, row-major, little-endian; offsets count from here
// Source: the format's own description, huggingface/safetensors README.

enum class TensorType { kFloat32, kFloat64, kInt64, kUint8 };

struct NamedTensor {
  std::string name;
  TensorType type = TensorType::kFloat32;
  std::vector<int64_t> shape;
  // Row-major, little-endian.
  ByteRope bytes;
};

struct SafetensorsContent {
  // In file order.
  std::vector<NamedTensor> tensors;
  std::map<std::string, std::string> metadata;
};

// The file's bytes; tensors are referenced, not copied.
// Errors: InvalidArgument: a name that is repeated, reserved or not UTF-8, or
//   bytes that do not fit the shape.
absl::StatusOr<std::vector<ByteRope>> EncodeSafetensors(
    const SafetensorsContent& content);

// Tensors reference `file`. Errors name `path`.
// Errors: DataLoss naming the file and the tensor: header too long (100 MB) or
//   not JSON of the right form, unknown type, offsets outside the file,
//   overlapping or leaving gaps, size that does not match the shape.
absl::StatusOr<SafetensorsContent> DecodeSafetensors(const std::string& path,
                                                     const ByteRope& file);

}  // namespace cohort
