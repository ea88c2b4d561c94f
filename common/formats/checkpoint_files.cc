#include "common/formats/checkpoint_files.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/byte_rope.h"
#include "common/checksum.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

constexpr char kPrefix[] = "checkpoint-";
constexpr char kMagic[] = "cohort-checkpoint";
// Format 4 is the first whose manifest begins with a line.
constexpr int64_t kFormat = 6;
// The manifest of the formats before.
constexpr char kFormerManifest[] = "manifest.json";

absl::Status DamagedCheckpoint(const std::string& path,
                               absl::string_view what) {
  return absl::DataLossError(
      absl::StrCat(path, ": not a valid manifest: ", what));
}

absl::Status OtherFormat(const std::string& path, absl::string_view seen) {
  return absl::FailedPreconditionError(absl::StrCat(
      path, ": got format ", seen, ", want ", kFormat,
      ": another release of Cohort wrote it; continue the run with that "
      "release, or begin another in a new folder"));
}

// The sum of a manifest: of the text before it, and of what follows its line.
std::string SumText(absl::string_view before, absl::string_view after) {
  StreamingXxh3 sum;
  for (const absl::string_view text : {before, after}) {
    sum.Update(absl::MakeConstSpan(
        reinterpret_cast<const std::byte*>(text.data()), text.size()));
  }
  return ChecksumText(sum.Digest());
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
  const std::string line =
      absl::StrCat(kMagic, " ", kFormat, " ", manifest.tensors.bytes, " ",
                   ChecksumText(manifest.tensors.xxh3), " ");
  return absl::StrCat(line, SumText(line, manifest.state), "\n",
                      manifest.state);
}

absl::StatusOr<CheckpointManifest> DecodeCheckpointManifest(
    const std::string& path, absl::string_view text) {
  const size_t end = text.find('\n');
  const absl::string_view line = text.substr(0, end);
  const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
  CheckpointManifest manifest;
  int64_t format = 0;
  if (end == absl::string_view::npos || words.size() != 5 ||
      words[0] != kMagic || !absl::SimpleAtoi(words[1], &format) ||
      !absl::SimpleAtoi(words[2], &manifest.tensors.bytes) ||
      !absl::SimpleHexAtoi(words[3], &manifest.tensors.xxh3)) {
    return DamagedCheckpoint(path, "its first line is not one of a manifest");
  }
  const absl::string_view state = text.substr(end + 1);
  if (words[4] !=
      SumText(line.substr(0, line.size() - words[4].size()), state)) {
    return DamagedCheckpoint(path,
                             "its bytes have changed since it was written");
  }
  if (format != kFormat) return OtherFormat(path, words[1]);
  manifest.state = std::string(state);
  return manifest;
}

absl::StatusOr<CheckpointManifest> ReadCheckpointManifest(
    FileSystem& files, const std::string& path) {
  const std::string manifest = absl::StrCat(path, "/", kCheckpointManifest);
  const absl::StatusOr<ByteRope> text =
      files.ReadFile(manifest, kManifestBytesMax);
  if (text.ok()) return DecodeCheckpointManifest(manifest, text->ToString());
  if (absl::IsNotFound(text.status())) {
    COHORT_ASSIGN_OR_RETURN(const std::vector<std::string> entries,
                            files.List(path));
    if (std::find(entries.begin(), entries.end(), kFormerManifest) !=
        entries.end()) {
      return OtherFormat(absl::StrCat(path, "/", kFormerManifest),
                         absl::StrCat("below ", kFormat));
    }
  }
  return text.status();
}

absl::Status CheckTensorFile(const std::string& path,
                             const TensorFileSum& wanted,
                             const TensorFileSum& seen) {
  if (seen.bytes != wanted.bytes) {
    return absl::DataLossError(absl::StrCat(path, ": got ", seen.bytes,
                                            " bytes, want ", wanted.bytes));
  }
  if (seen.xxh3 != wanted.xxh3) {
    return absl::DataLossError(absl::StrCat(path, ": checksum: got ",
                                            ChecksumText(seen.xxh3), ", want ",
                                            ChecksumText(wanted.xxh3)));
  }
  return absl::OkStatus();
}

absl::Status VerifyCheckpoint(FileSystem& files, const std::string& path) {
  COHORT_ASSIGN_OR_RETURN(const CheckpointManifest manifest,
                          ReadCheckpointManifest(files, path));
  const std::string tensors = absl::StrCat(path, "/", kCheckpointTensors);
  COHORT_ASSIGN_OR_RETURN(const TensorFileSum sum,
                          SumOf(tensors, manifest.tensors.bytes));
  return CheckTensorFile(tensors, manifest.tensors, sum);
}

}  // namespace cohort
