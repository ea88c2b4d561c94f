#include "common/formats/safetensors.h"
#include "tests/fuzz/target.h"

namespace cohort::fuzz {
namespace {

std::string Whole(const std::vector<ByteRope>& parts) {
  std::string text;
  for (const ByteRope& part : parts) text += part.ToString();
  return text;
}

void RequireSame(const SafetensorsContent& a, const SafetensorsContent& b) {
  COHORT_CHECK(a.metadata == b.metadata, "other metadata");
  COHORT_CHECK(a.tensors.size() == b.tensors.size(), "other tensors");
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    const NamedTensor& x = a.tensors[i];
    const NamedTensor& y = b.tensors[i];
    COHORT_CHECK(x.name == y.name && x.type == y.type && x.shape == y.shape &&
                     x.bytes.ToString() == y.bytes.ToString(),
                 x.name);
  }
}

void RunSafetensors(absl::string_view input) {
  const absl::StatusOr<SafetensorsContent> content =
      DecodeSafetensors("f", ByteRope::CopyText(input));
  RequireCode(content.status(), {absl::StatusCode::kDataLoss});
  if (!content.ok()) return;
  // Whatever is accepted can be written, and read again.
  const absl::StatusOr<std::vector<ByteRope>> written =
      EncodeSafetensors(*content);
  COHORT_CHECK(written.ok(), written.status().ToString());
  const std::string bytes = Whole(*written);
  const absl::StatusOr<SafetensorsContent> again =
      DecodeSafetensors("f", ByteRope::CopyText(bytes));
  COHORT_CHECK(again.ok(), again.status().ToString());
  RequireSame(*again, *content);
  COHORT_CHECK(Whole(*EncodeSafetensors(*again)) == bytes, "not canonical");
}

std::vector<std::string> SafetensorsSeeds() {
  const NamedTensor weights = {.name = "conv.weight",
                               .shape = {2, 1},
                               .bytes = ByteRope::CopyText("12345678")};
  const NamedTensor count = {.name = "bn.num_batches_tracked",
                             .type = TensorType::kInt64,
                             .bytes = ByteRope::CopyText("87654321")};
  const NamedTensor mean = {.name = "mean",
                            .type = TensorType::kFloat64,
                            .shape = {1},
                            .bytes = ByteRope::CopyText("12344321")};
  const NamedTensor none = {.name = "none", .shape = {0, 3}};
  return {Whole(*EncodeSafetensors({})),
          Whole(*EncodeSafetensors({.tensors = {weights}})),
          Whole(*EncodeSafetensors(
              {.tensors = {weights, none, count, mean},
               .metadata = {{"format", "pt"}, {"run", "\"a\""}}}))};
}

}  // namespace

Target SafetensorsTarget() {
  return {.name = "safetensors",
          .run = RunSafetensors,
          .seeds = SafetensorsSeeds,
          .input_bytes_max = 1024};
}

}  // namespace cohort::fuzz
