#include <google/protobuf/stubs/logging.h>
#include <grpcpp/support/slice.h>

#include <string>
#include <vector>

#include "cohort/v1/parameters.pb.h"
#include "common/wire/framed_message.h"
#include "tests/fuzz/target.h"

namespace cohort::fuzz {
namespace {

// Cuts `bytes` into slices whose lengths are the digits of `cuts`, repeated
// to the end; zeros make empty slices.
grpc::ByteBuffer Sliced(absl::string_view bytes, uint8_t cuts) {
  const size_t lengths[] = {1 + cuts % 5u, cuts / 5u % 8u, 1 + cuts / 40u};
  std::vector<grpc::Slice> slices;
  for (size_t i = 0; !bytes.empty(); ++i) {
    const absl::string_view piece = bytes.substr(0, lengths[i % 3]);
    slices.emplace_back(piece.data(), piece.size());
    bytes.remove_prefix(piece.size());
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

grpc::ByteBuffer Whole(absl::string_view bytes) {
  const grpc::Slice slice(bytes.data(), bytes.size());
  return grpc::ByteBuffer(&slice, 1);
}

template <typename Message>
void CheckSame(const FramedMessage<Message>& a,
               const FramedMessage<Message>& b) {
  COHORT_CHECK(a.header.SerializeAsString() == b.header.SerializeAsString(),
               "another header");
  COHORT_CHECK(a.payload.ToString() == b.payload.ToString(), "another payload");
}

// Output of generated code is accepted.
template <typename Message>
void CheckEncoded(const Message& message) {
  const absl::StatusOr<FramedMessage<Message>> framed =
      DecodeFramed<Message>(Whole(message.SerializeAsString()));
  COHORT_CHECK(framed.ok(), framed.status().ToString());
  COHORT_CHECK(framed->payload.ToString() == message.payload(),
               "another payload");
}

template <typename Message>
void CheckFrame(absl::string_view bytes, uint8_t cuts) {
  const absl::StatusOr<FramedMessage<Message>> framed =
      DecodeFramed<Message>(Whole(bytes));
  RequireCode(framed.status(), {absl::StatusCode::kDataLoss});
  const absl::StatusOr<FramedMessage<Message>> sliced =
      DecodeFramed<Message>(Sliced(bytes, cuts));
  COHORT_CHECK(sliced.status() == framed.status(),
               absl::StrCat("in slices: ", sliced.status().ToString(),
                            ", in one piece: ", framed.status().ToString()));
  // The generated code must agree, because other clients use it.
  Message plain;
  const bool parsed =
      plain.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
  if (!framed.ok()) {
    // Generated code cuts tags to 32 bits, where this code refuses them. No
    // encoder writes such tags.
    if (parsed) CheckEncoded(plain);
    return;
  }
  COHORT_CHECK(parsed, "generated code refuses it");
  CheckSame(*framed, *sliced);
  COHORT_CHECK(plain.payload() == framed->payload.ToString(),
               "another payload than that of generated code");
  plain.clear_payload();
  COHORT_CHECK(plain.SerializeAsString() == framed->header.SerializeAsString(),
               "another header than that of generated code");
  const absl::StatusOr<FramedMessage<Message>> again =
      DecodeFramed<Message>(EncodeFramed(framed->header, framed->payload));
  COHORT_CHECK(again.ok(), again.status().ToString());
  CheckSame(*again, *framed);
  RequireCode(DecodeFramed<Message>(Whole(bytes), cuts).status(),
              {absl::StatusCode::kResourceExhausted});
}

void RunFrame(absl::string_view input) {
  // Protobuf prints a line for each text that is not UTF-8.
  google::protobuf::SetLogHandler(nullptr);
  Reader reader(input);
  const int32_t kind = reader.Below(4);
  const uint8_t cuts = reader.Byte();
  const absl::string_view bytes = reader.Rest();
  switch (kind) {
    case 0:
      return CheckFrame<v1::ExchangeRequest>(bytes, cuts);
    case 1:
      return CheckFrame<v1::ExchangeReply>(bytes, cuts);
    case 2:
      return CheckFrame<v1::RegisterRequest>(bytes, cuts);
    default:
      return CheckFrame<v1::PullReply>(bytes, cuts);
  }
}

std::string Seed(char kind, const google::protobuf::MessageLite& header,
                 absl::string_view payload) {
  grpc::ByteBuffer bytes = EncodeFrame(header, ByteRope::CopyText(payload));
  grpc::Slice slice;
  COHORT_CHECK(bytes.DumpToSingleSlice(&slice).ok(), "no memory");
  return absl::StrCat(
      std::string({kind, '\x2a'}),
      absl::string_view(reinterpret_cast<const char*>(slice.begin()),
                        slice.size()));
}

std::vector<std::string> FrameSeeds() {
  v1::ExchangeRequest gradient;
  gradient.mutable_sender()->set_run_id("run");
  gradient.mutable_key()->set_sequence(7);
  gradient.mutable_gradient()->set_partition(1);
  gradient.mutable_gradient()->add_absent_slices(2);
  gradient.set_message_xxh3(1);
  v1::ExchangeReply weights;
  weights.mutable_weights()->set_version(300);
  v1::RegisterRequest values;
  values.set_partition(3);
  values.set_xxh3(5);
  v1::PullReply header;
  header.mutable_header()->set_version(9);
  return {Seed(0, gradient, "12345678"), Seed(0, gradient, ""),
          Seed(1, weights, "abcd"), Seed(2, values, "values"),
          Seed(3, header, std::string(200, 'w'))};
}

}  // namespace

Target FrameTarget() {
  return {.name = "frame",
          .run = RunFrame,
          .seeds = FrameSeeds,
          .input_bytes_max = 512};
}

}  // namespace cohort::fuzz
