#include "common/formats/tensorboard.h"

#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/protobuf_encoding.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr absl::string_view kEventPrefix = "events.out.tfevents.";
constexpr absl::string_view kFileVersion = "brain.Event:2";
constexpr uint32_t kPolynomial = 0x82f63b78;  // Castagnoli, bits reversed.
constexpr uint32_t kMaskDelta = 0xa282ead8;
constexpr int kSessionStart = 1;

constexpr std::array<uint32_t, 256> CrcTable() {
  std::array<uint32_t, 256> table = {};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    }
    table[byte] = crc;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kCrcTable = CrcTable();

// Builds a protobuf message. It does not use protobuf, because formats are
// below it in the build, and three messages of five fields do not need
// generated code.
class Message {
 public:
  void Int(uint32_t field, int64_t value) {
    Tag(field, WireType::kVarint);
    Varint(static_cast<uint64_t>(value));
  }
  void Double(uint32_t field, double value) {
    Tag(field, WireType::kFixed64);
    Raw(value);
  }
  void Float(uint32_t field, float value) {
    Tag(field, WireType::kFixed32);
    Raw(value);
  }
  void Bytes(uint32_t field, absl::string_view value) {
    Tag(field, WireType::kLengthDelimited);
    Varint(value.size());
    bytes_.append(value.data(), value.size());
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void Tag(uint32_t field, WireType type) { Varint(FieldTag(field, type)); }
  void Varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) {
      bytes_.push_back(static_cast<char>(value | 0x80));
    }
    bytes_.push_back(static_cast<char>(value));
  }
  template <typename T>
  void Raw(T value) {
    char raw[sizeof value];
    std::memcpy(raw, &value, sizeof value);
    bytes_.append(raw, sizeof value);
  }

  std::string bytes_;
};

Message EventAt(absl::Time at, int64_t step) {
  Message event;
  event.Double(1, absl::ToDoubleSeconds(at - absl::UnixEpoch()));
  event.Int(2, step);
  return event;
}

template <typename T>
void AppendRaw(T value, std::string& out) {
  char raw[sizeof value];
  std::memcpy(raw, &value, sizeof value);
  out.append(raw, sizeof value);
}

std::string Record(absl::string_view data) {
  std::string record;
  AppendRaw(static_cast<uint64_t>(data.size()), record);
  AppendRaw(MaskedCrc32c(record), record);
  absl::StrAppend(&record, data);
  AppendRaw(MaskedCrc32c(data), record);
  return record;
}

// The number that orders a directory's files: seconds since 1970, but larger
// than those of existing files, even if the clock was set back or two processes
// start within a second.
int64_t NextNumber(const std::string& directory, absl::Time now) {
  int64_t next = absl::ToUnixSeconds(now);
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    if (!absl::StartsWith(name, kEventPrefix)) continue;
    const std::string rest = name.substr(kEventPrefix.size());
    int64_t number = 0;
    if (absl::SimpleAtoi(rest.substr(0, rest.find('.')), &number)) {
      next = std::max(next, number + 1);
    }
  }
  return next;
}

absl::Status CannotWrite(absl::string_view path, absl::string_view why) {
  return absl::FailedPreconditionError(
      absl::StrCat("cannot write ", path, ": ", why));
}

}  // namespace

uint32_t MaskedCrc32c(absl::string_view data) {
  uint32_t crc = 0xffffffff;
  for (const char c : data) {
    crc = kCrcTable[(crc ^ static_cast<unsigned char>(c)) & 0xff] ^ (crc >> 8);
  }
  return std::rotr(~crc, 15) + kMaskDelta;
}

absl::StatusOr<std::unique_ptr<EventFile>> EventFile::Create(
    const std::string& directory, absl::Time now, int64_t restart_at) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return CannotWrite(directory, error.message());
  if (!std::filesystem::is_directory(directory, error)) {
    return CannotWrite(directory, "it is not a directory");
  }
  char host[256] = "localhost";
  if (gethostname(host, sizeof host - 1) != 0) host[0] = '\0';
  std::unique_ptr<EventFile> file(new EventFile);
  // Leading zeros make the order of names that of the numbers.
  file->path_ =
      absl::StrFormat("%s/%s%010d.%s.%d.cohort", directory, kEventPrefix,
                      NextNumber(directory, now), host, getpid());
  file->file_.open(file->path_, std::ios::binary | std::ios::trunc);
  if (!file->file_) return CannotWrite(file->path_, std::strerror(errno));
  Message first = EventAt(now, 0);
  first.Bytes(3, kFileVersion);
  COHORT_RETURN_IF_ERROR(file->Write(first.bytes()));
  Message session;
  session.Int(1, kSessionStart);
  Message start = EventAt(now, restart_at);
  start.Bytes(7, session.bytes());
  COHORT_RETURN_IF_ERROR(file->Write(start.bytes()));
  return file;
}

absl::Status EventFile::Add(int64_t step, absl::Time at,
                            absl::Span<const EventScalar> scalars) {
  if (scalars.empty()) return absl::OkStatus();
  Message summary;
  for (const EventScalar& scalar : scalars) {
    Message value;
    value.Bytes(1, scalar.tag);
    value.Float(2, static_cast<float>(scalar.value));
    summary.Bytes(1, value.bytes());
  }
  Message event = EventAt(at, step);
  event.Bytes(5, summary.bytes());
  return Write(event.bytes());
}

absl::Status EventFile::Write(absl::string_view event) {
  if (!file_.is_open()) return absl::OkStatus();
  file_ << Record(event) << std::flush;
  if (file_) return absl::OkStatus();
  file_.close();
  return absl::InternalError(
      absl::StrCat("cannot write ", path_, "; nothing more is written to it"));
}

}  // namespace cohort
