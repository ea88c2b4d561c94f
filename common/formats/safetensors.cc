#include "common/formats/safetensors.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/formats/json_depth.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kHeaderBytesMax = 100'000'000;
constexpr int64_t kPrefixBytes = 8;
constexpr char kMetadata[] = "__metadata__";

struct TypeRow {
  const char* name;
  int64_t bytes;
};

// In the order of TensorType.
constexpr TypeRow kTypes[] = {{"F32", 4}, {"F64", 8}, {"I64", 8}, {"U8", 1}};

const TypeRow& RowOf(TensorType type) {
  return kTypes[static_cast<size_t>(type)];
}

std::optional<TensorType> TypeNamed(absl::string_view name) {
  for (size_t i = 0; i < std::size(kTypes); ++i) {
    if (name == kTypes[i].name) return static_cast<TensorType>(i);
  }
  return std::nullopt;
}

// -1 if an extent is negative or the product overflows.
int64_t BytesOf(TensorType type, const std::vector<int64_t>& shape) {
  int64_t bytes = RowOf(type).bytes;
  for (int64_t extent : shape) {
    if (extent < 0) return -1;
    if (__builtin_mul_overflow(bytes, extent, &bytes)) return -1;
  }
  return bytes;
}

// Bytes [begin, end) of a rope, by reference.
ByteRope SubRope(const ByteRope& rope, int64_t begin, int64_t end) {
  ByteRope out;
  int64_t at = 0;
  for (const ByteRope::Piece& piece : rope.pieces()) {
    const auto size = static_cast<int64_t>(piece.bytes.size());
    const int64_t from = std::max(begin, at);
    const int64_t to = std::min(end, at + size);
    if (from < to) {
      out.Append(piece.bytes.subspan(static_cast<size_t>(from - at),
                                     static_cast<size_t>(to - from)),
                 piece.owner);
    }
    at += size;
  }
  return out;
}

absl::Status Damaged(const std::string& path, absl::string_view what) {
  return absl::DataLossError(
      absl::StrCat(path, ": not a valid safetensors file: ", what));
}

absl::StatusOr<std::string> TextOf(const Json& json) {
  // Throws if a name or a metadata text is not UTF-8.
  try {
    return json.dump();
  } catch (const std::exception& e) {
    return absl::InvalidArgumentError(
        absl::StrCat("a tensor's name or the metadata: ", e.what()));
  }
}

// Adds the file's metadata to `metadata`.
absl::Status ParseMetadata(const std::string& path, const Json& json,
                           std::map<std::string, std::string>& metadata) {
  if (!json.is_object())
    return Damaged(path, "its metadata is not a JSON object");
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string()) {
      return Damaged(path, absl::StrCat("metadata ", key, " is not a string"));
    }
    metadata[key] = value.get<std::string>();
  }
  return absl::OkStatus();
}

struct Entry {
  NamedTensor tensor;
  int64_t begin = 0;
  int64_t end = 0;
};

absl::StatusOr<Entry> ParseEntry(const std::string& path,
                                 const std::string& name, const Json& json) {
  const auto bad = [&](absl::string_view what) {
    return Damaged(path, absl::StrCat("tensor ", name, ": ", what));
  };
  if (!json.is_object() || !json.contains("dtype") ||
      !json["dtype"].is_string() || !json.contains("shape") ||
      !json["shape"].is_array() || !json.contains("data_offsets") ||
      !json["data_offsets"].is_array() || json["data_offsets"].size() != 2) {
    return bad("want dtype, shape and data_offsets");
  }
  const std::optional<TensorType> type =
      TypeNamed(json["dtype"].get<std::string>());
  if (!type.has_value()) {
    return bad(absl::StrCat("got type ", json["dtype"].get<std::string>(),
                            ", want F32, F64 or I64"));
  }
  Entry entry{.tensor = {.name = name, .type = *type}};
  for (const Json& extent : json["shape"]) {
    if (!extent.is_number_integer()) return bad("an extent is not an integer");
    entry.tensor.shape.push_back(extent.get<int64_t>());
  }
  for (const Json& offset : json["data_offsets"]) {
    if (!offset.is_number_integer()) return bad("an offset is not an integer");
  }
  entry.begin = json["data_offsets"][0].get<int64_t>();
  entry.end = json["data_offsets"][1].get<int64_t>();
  const int64_t wanted = BytesOf(*type, entry.tensor.shape);
  // Checked in this order, no difference of two numbers from the file
  // overflows.
  if (wanted < 0 || entry.begin < 0 || entry.end < entry.begin ||
      entry.end - entry.begin != wanted) {
    return bad(absl::StrCat("got bytes ", entry.begin, " to ", entry.end,
                            " for shape [",
                            absl::StrJoin(entry.tensor.shape, ","), "]"));
  }
  return entry;
}

absl::StatusOr<Json> ParseHeader(const std::string& path, const ByteRope& file,
                                 int64_t* header_bytes) {
  if (file.size_bytes() < kPrefixBytes) {
    return Damaged(path,
                   absl::StrCat("got only ", file.size_bytes(), " bytes"));
  }
  uint64_t length = 0;
  std::memcpy(&length, SubRope(file, 0, kPrefixBytes).ToString().data(),
              sizeof(length));
  if (length > kHeaderBytesMax ||
      static_cast<int64_t>(length) > file.size_bytes() - kPrefixBytes) {
    return Damaged(
        path, absl::StrCat("got a header of ", length, " bytes in a file of ",
                           file.size_bytes(), " bytes"));
  }
  *header_bytes = static_cast<int64_t>(length);
  const std::string text =
      SubRope(file, kPrefixBytes, kPrefixBytes + *header_bytes).ToString();
  if (NestsDeeperThan(text, kJsonNestingMax)) {
    return Damaged(path, absl::StrCat("its header nests deeper than ",
                                      kJsonNestingMax, " levels"));
  }
  Json header = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!header.is_object())
    return Damaged(path, "its header is not a JSON object");
  return header;
}

}  // namespace

absl::StatusOr<std::vector<ByteRope>> EncodeSafetensors(
    const SafetensorsContent& content) {
  Json header = Json::object();
  if (!content.metadata.empty()) header[kMetadata] = content.metadata;
  std::vector<ByteRope> parts(1);
  int64_t offset = 0;
  for (const NamedTensor& tensor : content.tensors) {
    if (tensor.name == kMetadata) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", tensor.name, ": the name is reserved"));
    }
    if (header.contains(tensor.name)) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", tensor.name, " appears twice"));
    }
    const int64_t bytes = BytesOf(tensor.type, tensor.shape);
    if (tensor.bytes.size_bytes() != bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", tensor.name, ": got ",
                       tensor.bytes.size_bytes(), " bytes, want ", bytes));
    }
    header[tensor.name] = {{"dtype", RowOf(tensor.type).name},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
    parts.push_back(tensor.bytes);
  }
  COHORT_ASSIGN_OR_RETURN(std::string text, TextOf(header));
  // Spaces after the JSON align the tensors to 8 bytes in the file.
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string prefix(kPrefixBytes, '\0');
  const uint64_t length = text.size();
  std::memcpy(prefix.data(), &length, sizeof(length));
  parts[0] = ByteRope::CopyText(prefix + text);
  return parts;
}

absl::StatusOr<SafetensorsContent> DecodeSafetensors(const std::string& path,
                                                     const ByteRope& file) {
  int64_t header_bytes = 0;
  COHORT_ASSIGN_OR_RETURN(const Json header,
                          ParseHeader(path, file, &header_bytes));
  SafetensorsContent content;
  std::vector<Entry> entries;
  for (const auto& [name, json] : header.items()) {
    if (name == kMetadata) {
      COHORT_RETURN_IF_ERROR(ParseMetadata(path, json, content.metadata));
      continue;
    }
    COHORT_ASSIGN_OR_RETURN(Entry entry, ParseEntry(path, name, json));
    entries.push_back(std::move(entry));
  }
  // Also by end, because a tensor without elements begins where its neighbour
  // does.
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) {
                     return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
                   });
  const int64_t data = kPrefixBytes + header_bytes;
  const int64_t data_bytes = file.size_bytes() - data;
  int64_t expected = 0;
  for (Entry& entry : entries) {
    if (entry.end > data_bytes) {
      return Damaged(
          path, absl::StrCat("tensor ", entry.tensor.name, ": got ", data_bytes,
                             " bytes of tensors, want at least ", entry.end));
    }
    if (entry.begin != expected) {
      return Damaged(
          path, absl::StrCat("tensor ", entry.tensor.name, ": begins at byte ",
                             entry.begin, ", want ", expected));
    }
    expected = entry.end;
    entry.tensor.bytes = SubRope(file, data + entry.begin, data + entry.end);
    content.tensors.push_back(std::move(entry.tensor));
  }
  if (expected != data_bytes) {
    return Damaged(path, absl::StrCat(data_bytes - expected,
                                      " bytes belong to no tensor"));
  }
  return content;
}

}  // namespace cohort
