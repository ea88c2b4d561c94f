#include "common/wire/message_checksum.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <cstddef>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/byte_rope.h"
#include "common/checksum.h"

namespace cohort {

std::string SortedEncoding(const google::protobuf::Message& message) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream out(&bytes);
    google::protobuf::io::CodedOutputStream coded(&out);
    // Affects only the order of maps, on which no checksum may depend.
    coded.SetSerializationDeterministic(true);
    message.SerializePartialToCodedStream(&coded);
  }
  return bytes;
}

namespace wire_internal {

uint64_t DigestOf(const google::protobuf::Message& message) {
  const std::string bytes = SortedEncoding(message);
  return Xxh3(absl::MakeConstSpan(
      reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()));
}

absl::Status CompareDigest(const google::protobuf::Message& message,
                           uint64_t claimed) {
  const uint64_t seen = DigestOf(message);
  if (seen == claimed) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      message.GetTypeName(), ": got checksum ", ChecksumText(seen), ", want ",
      ChecksumText(claimed), ": the message was damaged in transit"));
}

absl::Status NoDigest(const google::protobuf::Message& message) {
  return absl::DataLossError(
      absl::StrCat(message.GetTypeName(),
                   ": got no message_xxh3, want the checksum of the message "
                   "(proto/cohort/v1/types.proto): the sender left it out, or "
                   "the message was damaged in transit"));
}

}  // namespace wire_internal
}  // namespace cohort
