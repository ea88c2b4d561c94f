#include "common/formats/checkpoint_files.h"

#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/byte_rope.h"
#include "common/checksum.h"
#include "common/formats/json_depth.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kPrefix[] = "checkpoint-";
// Format 3 has several sets of moving statistics.
constexpr int64_t kFormat = 3;

absl::Status DamagedCheckpoint(const std::string& path,
                               absl::string_view what) {
  return absl::DataLossError(
      absl::StrCat(path, ": not a valid manifest: ", what));
}

uint64_t ChecksumOf(const std::string& text) {
  return Xxh3(absl::MakeConstSpan(
      reinterpret_cast<const std::byte*>(text.data()), text.size()));
}

std::string WholeText(const Json& whole) { return whole.dump(1) + "\n"; }

// nlohmann's accessors would convert 1e300 to a whole number, which is
// undefined. Throws, as those do on another wrong type.
const Json& WholeNumber(const Json& body, const char* name) {
  const Json& number = body.at(name);
  if (number.is_number_integer()) return number;
  throw std::out_of_range(absl::StrCat(name, " is not a whole number"));
}

// nlohmann's accessors throw on a wrong type; the caller catches.
CheckpointManifest ManifestFrom(const Json& body) {
  CheckpointManifest manifest{
      .identity = {.run_id = body.at("run_id"),
                   .seed = WholeNumber(body, "seed"),
                   .policy = body.at("policy"),
                   .run_name = body.at("run_name")},
      .version = WholeNumber(body, "version"),
      .tensors_xxh3 =
          std::stoull(body.at("tensors_xxh3").get<std::string>(), nullptr, 16),
      .tensors_bytes = WholeNumber(body, "tensors_bytes")};
  return manifest;
}

// Reads in pieces, so that a large model does not need as much memory again
// beside the server that may be training it. A file larger than it was written
// is not read at all.
absl::StatusOr<TensorFileSum> SumOf(const std::string& path,
                                    int64_t bytes_max) {
  TensorFileSum sum;
  StreamingXxh3 checksum;
  COHORT_RETURN_IF_ERROR(
      ReadFileInPieces(path, bytes_max, [&](absl::Span<const std::byte> piece) {
        checksum.Update(piece);
        sum.bytes += static_cast<int64_t>(piece.size());
      }));
  sum.xxh3 = checksum.Digest();
  return sum;
}

}  // namespace

std::string CheckpointName::Text() const {
  return repetition == 0
             ? absl::StrFormat("%s%012d", kPrefix, version)
             : absl::StrFormat("%s%012d.%06d", kPrefix, version, repetition);
}

std::optional<CheckpointName> CheckpointName::Parse(absl::string_view text) {
  const std::string whole(text);
  if (!absl::ConsumePrefix(&text, kPrefix)) return std::nullopt;
  const std::vector<absl::string_view> numbers = absl::StrSplit(text, '.');
  CheckpointName name;
  if (!absl::SimpleAtoi(numbers[0], &name.version)) return std::nullopt;
  if (numbers.size() > 1 && !absl::SimpleAtoi(numbers[1], &name.repetition)) {
    return std::nullopt;
  }
  if (name.Text() != whole) return std::nullopt;
  return name;
}

absl::StatusOr<std::vector<CheckpointName>> ListCheckpoints(
    FileSystem& files, const std::string& dir) {
  COHORT_ASSIGN_OR_RETURN(const std::vector<std::string> entries,
                          files.List(dir));
  std::vector<CheckpointName> names;
  for (const std::string& entry : entries) {
    const std::optional<CheckpointName> name = CheckpointName::Parse(entry);
    if (name.has_value()) names.push_back(*name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string EncodeCheckpointManifest(const CheckpointManifest& manifest) {
  Json body = {{"format", kFormat},
               {"run_id", manifest.identity.run_id},
               {"seed", manifest.identity.seed},
               {"policy", manifest.identity.policy},
               {"run_name", manifest.identity.run_name},
               {"version", manifest.version},
               {"tensors_xxh3", ChecksumText(manifest.tensors_xxh3)},
               {"tensors_bytes", manifest.tensors_bytes}};
  body.update(Json::parse(manifest.state));
  const Json whole = {{"body", body},
                      {"xxh3", ChecksumText(ChecksumOf(body.dump()))}};
  return WholeText(whole);
}

absl::StatusOr<CheckpointManifest> DecodeCheckpointManifest(
    const std::string& path, const std::string& text) {
  // The JSON writer recurses once a level, so a file could exhaust the stack.
  if (NestsDeeperThan(text, kJsonNestingMax)) {
    return DamagedCheckpoint(path, absl::StrCat("it nests deeper than ",
                                                kJsonNestingMax, " levels"));
  }
  try {
    const Json whole = Json::parse(text);
    const Json& body = whole.at("body");
    std::string state = body.dump();
    const std::string sum = ChecksumText(ChecksumOf(state));
    if (whole.at("xxh3").get<std::string>() != sum) {
      return absl::DataLossError(
          absl::StrCat(path, ": checksum: got ", sum, ", want ",
                       whole.at("xxh3").get<std::string>()));
    }
    // The checksum covers the body as this code writes it. Only this comparison
    // covers every byte of the file, including spaces, order and spelling.
    if (WholeText(whole) != text) {
      return DamagedCheckpoint(path,
                               "its bytes have changed since it was written");
    }
    if (WholeNumber(body, "format").get<int64_t>() != kFormat) {
      return absl::FailedPreconditionError(absl::StrCat(
          path, ": got format ", body.at("format").get<int64_t>(), ", want ",
          kFormat, ": another release of Cohort wrote it"));
    }
    CheckpointManifest manifest = ManifestFrom(body);
    manifest.state = std::move(state);
    return manifest;
  } catch (const std::exception& e) {
    return DamagedCheckpoint(path, e.what());
  }
}

absl::StatusOr<CheckpointManifest> ReadCheckpointManifest(
    FileSystem& files, const std::string& path) {
  const std::string manifest = absl::StrCat(path, "/", kCheckpointManifest);
  COHORT_ASSIGN_OR_RETURN(const ByteRope text,
                          files.ReadFile(manifest, kManifestBytesMax));
  return DecodeCheckpointManifest(manifest, text.ToString());
}

absl::Status CheckTensorFile(const std::string& path,
                             const CheckpointManifest& manifest,
                             const TensorFileSum& seen) {
  if (seen.bytes != manifest.tensors_bytes) {
    return absl::DataLossError(absl::StrCat(
        path, ": got ", seen.bytes, " bytes, want ", manifest.tensors_bytes));
  }
  if (seen.xxh3 != manifest.tensors_xxh3) {
    return absl::DataLossError(
        absl::StrCat(path, ": checksum: got ", ChecksumText(seen.xxh3),
                     ", want ", ChecksumText(manifest.tensors_xxh3)));
  }
  return absl::OkStatus();
}

absl::Status VerifyCheckpoint(FileSystem& files, const std::string& path) {
  COHORT_ASSIGN_OR_RETURN(const CheckpointManifest manifest,
                          ReadCheckpointManifest(files, path));
  const std::string tensors = absl::StrCat(path, "/", kCheckpointTensors);
  COHORT_ASSIGN_OR_RETURN(const TensorFileSum sum,
                          SumOf(tensors, manifest.tensors_bytes));
  return CheckTensorFile(tensors, manifest, sum);
}

}  // namespace cohort
