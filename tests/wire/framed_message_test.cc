#include "common/wire/framed_message.h"

#include <google/protobuf/stubs/logging.h>
#include <grpcpp/support/slice.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cohort/v1/parameters.pb.h"
#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

using Framed = FramedMessage<v1::ExchangeRequest>;

v1::ExchangeRequest Header() {
  v1::ExchangeRequest header;
  header.mutable_sender()->set_run_id("run-1");
  header.mutable_sender()->set_rank(3);
  header.mutable_key()->set_sequence(300);
  header.mutable_gradient()->set_partition(7);
  header.mutable_gradient()->set_xxh3(0x1234567890abcdef);
  return header;
}

std::string Flat(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string flat;
  for (const grpc::Slice& slice : slices) {
    flat.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return flat;
}

// A received message that arrived in slices of `slice_bytes`, with an empty
// one now and then.
grpc::ByteBuffer Received(const std::string& bytes, size_t slice_bytes) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < bytes.size(); at += slice_bytes) {
    const size_t size = std::min(slice_bytes, bytes.size() - at);
    slices.emplace_back(bytes.data() + at, size);
    if (slices.size() % 3 == 0) slices.emplace_back();
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

// One field of type `bytes` by hand; numbers below 16, lengths below 128.
std::string BytesField(int number, const std::string& value) {
  std::string field;
  field.push_back(static_cast<char>((number << 3) | 2));
  field.push_back(static_cast<char>(value.size()));
  return field + value;
}

TEST(FramedMessageTest, HeaderAndPayloadComeBack) {
  ByteRope payload = ByteRope::CopyText("abc");
  const ByteRope tail = ByteRope::CopyText("defgh");
  payload.Append(tail.pieces()[0].bytes, tail.pieces()[0].owner);
  const Framed framed = OkValue(
      DecodeFramed<v1::ExchangeRequest>(EncodeFramed(Header(), payload)));
  EXPECT_EQ(framed.header.SerializeAsString(), Header().SerializeAsString());
  EXPECT_EQ(framed.payload.ToString(), "abcdefgh");
}

TEST(FramedMessageTest, PayloadIsSentFromWhereItLies) {
  const ByteRope payload = ByteRope::CopyText(std::string(1000, 'x'));
  const grpc::ByteBuffer message = EncodeFramed(Header(), payload);
  std::vector<grpc::Slice> slices;
  ASSERT_TRUE(message.Dump(&slices).ok());
  ASSERT_EQ(slices.size(), 2u);
  EXPECT_EQ(static_cast<const void*>(slices[1].begin()),
            static_cast<const void*>(payload.pieces()[0].bytes.data()));
}

TEST(FramedMessageTest, PayloadIsKeptWhereItArrived) {
  const std::string bytes =
      Flat(EncodeFramed(Header(), ByteRope::CopyText(std::string(1000, 'x'))));
  const grpc::Slice slice(bytes.data(), bytes.size());
  const Framed framed =
      OkValue(DecodeFramed<v1::ExchangeRequest>(grpc::ByteBuffer(&slice, 1)));
  ASSERT_EQ(framed.payload.pieces().size(), 1u);
  EXPECT_EQ(static_cast<const void*>(framed.payload.pieces()[0].bytes.data()),
            static_cast<const void*>(slice.end() - 1000));
}

TEST(FramedMessageTest, OwnersAreHeldUntilTheMessageIsGone) {
  auto owner = std::make_shared<const std::string>(1000, 'x');
  const std::weak_ptr<const std::string> watch = owner;
  auto message = std::make_unique<grpc::ByteBuffer>(EncodeFramed(
      Header(), ByteRope(absl::MakeConstSpan(
                             reinterpret_cast<const std::byte*>(owner->data()),
                             owner->size()),
                         owner)));
  owner.reset();
  EXPECT_FALSE(watch.expired());
  message.reset();
  EXPECT_TRUE(watch.expired());
}

TEST(FramedMessageTest, PayloadOutlivesTheReceivedMessage) {
  ByteRope payload;
  {
    // Three bytes a slice: gRPC keeps these inside its slice objects.
    const grpc::ByteBuffer message = Received(
        Flat(EncodeFramed(Header(), ByteRope::CopyText("0123456789"))), 3);
    Framed framed = OkValue(DecodeFramed<v1::ExchangeRequest>(message));
    payload = std::move(framed.payload);
  }
  EXPECT_EQ(payload.ToString(), "0123456789");
}

TEST(FramedMessageTest, AnyProtobufParserReadsTheBytes) {
  for (size_t size :
       {size_t{0}, size_t{1}, size_t{127}, size_t{128}, size_t{20000}}) {
    const std::string payload(size, 'p');
    v1::ExchangeRequest parsed;
    ASSERT_TRUE(parsed.ParseFromString(
        Flat(EncodeFramed(Header(), ByteRope::CopyText(payload)))));
    v1::ExchangeRequest wanted = Header();
    wanted.set_payload(payload);
    EXPECT_EQ(parsed.SerializeAsString(), wanted.SerializeAsString());
  }
}

TEST(FramedMessageTest, ReadsWhatAnyProtobufWriterSends) {
  v1::ExchangeRequest sent = Header();
  sent.set_payload(std::string(300, 'p'));
  const std::string bytes = sent.SerializeAsString();
  for (size_t slice_bytes = 1; slice_bytes <= bytes.size(); ++slice_bytes) {
    const Framed framed = OkValue(
        DecodeFramed<v1::ExchangeRequest>(Received(bytes, slice_bytes)));
    EXPECT_EQ(framed.header.SerializeAsString(), Header().SerializeAsString());
    EXPECT_EQ(framed.payload.ToString(), sent.payload());
  }
}

TEST(FramedMessageTest, PayloadBeforeOtherFieldsIsStillFound) {
  const std::string bytes =
      BytesField(15, "early") + Header().SerializeAsString();
  const Framed framed =
      OkValue(DecodeFramed<v1::ExchangeRequest>(Received(bytes, 4)));
  EXPECT_EQ(framed.header.SerializeAsString(), Header().SerializeAsString());
  EXPECT_EQ(framed.payload.ToString(), "early");
}

TEST(FramedMessageTest, LastOfTwoPayloadsCounts) {
  const Framed framed = OkValue(DecodeFramed<v1::ExchangeRequest>(
      Received(BytesField(15, "first") + BytesField(15, "second"), 64)));
  EXPECT_EQ(framed.payload.ToString(), "second");
}

// Field 14 as an empty group, which only other protobuf versions may send.
TEST(FramedMessageTest, UnknownGroupIsSkipped) {
  const std::string group = {char{14 << 3 | 3}, char{14 << 3 | 4}};
  const Framed framed = OkValue(DecodeFramed<v1::ExchangeRequest>(
      Received(group + BytesField(15, "after"), 64)));
  EXPECT_EQ(framed.payload.ToString(), "after");
}

TEST(FramedMessageTest, EmptyMessageIsAnEmptyHeader) {
  const Framed framed =
      OkValue(DecodeFramed<v1::ExchangeRequest>(grpc::ByteBuffer()));
  EXPECT_EQ(framed.header.ByteSizeLong(), 0u);
  EXPECT_EQ(framed.payload.size_bytes(), 0);
}

TEST(FramedMessageTest, MalformedBytesAreDataLoss) {
  const std::string cases[] = {
      // A length of 5 with 4 bytes left.
      std::string("\x7a\x05") + "abcd",
      // A varint without an end.
      std::string(11, '\x80'),
      // Field number 0.
      std::string("\x02\x00", 2),
      // The end of a group that never began.
      std::string("\x74"),
      // The length 2^64 - 1.
      std::string("\x7a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
      // A sender field that holds no message.
      BytesField(1, "\xff\xff"),
  };
  for (const std::string& bytes : cases) {
    EXPECT_TRUE(absl::IsDataLoss(
        DecodeFramed<v1::ExchangeRequest>(Received(bytes, 2)).status()));
  }
}

// Whatever an ordinary parser accepts must be accepted with the same meaning.
void ExpectAgreesWithProtobuf(const std::string& bytes, size_t slice_bytes) {
  const absl::StatusOr<Framed> framed =
      DecodeFramed<v1::ExchangeRequest>(Received(bytes, slice_bytes));
  v1::ExchangeRequest plain;
  if (!plain.ParseFromString(bytes)) return;
  ASSERT_TRUE(framed.ok()) << framed.status();
  EXPECT_EQ(framed->payload.ToString(), plain.payload());
  plain.clear_payload();
  EXPECT_EQ(framed->header.SerializeAsString(), plain.SerializeAsString());
}

TEST(FramedMessageTest, TruncationAgreesWithProtobuf) {
  const std::string bytes =
      Flat(EncodeFramed(Header(), ByteRope::CopyText(std::string(40, 'x'))));
  for (size_t size = 0; size <= bytes.size(); ++size) {
    ExpectAgreesWithProtobuf(bytes.substr(0, size), 5);
    const bool whole_field = size == bytes.size() || size == bytes.size() - 42;
    if (whole_field) continue;
    // Inside the header a cut may fall between two fields.
    if (size > bytes.size() - 42) {
      EXPECT_FALSE(
          DecodeFramed<v1::ExchangeRequest>(Received(bytes.substr(0, size), 5))
              .ok())
          << "cut at " << size;
    }
  }
}

TEST(FramedMessageTest, MutationAgreesWithProtobuf) {
  const std::string bytes =
      Flat(EncodeFramed(Header(), ByteRope::CopyText(std::string(40, 'x'))));
  // Mutated names are not UTF-8, which protobuf would log each time.
  const google::protobuf::LogSilencer silencer;
  std::mt19937 random(1);
  for (int round = 0; round < 20000; ++round) {
    std::string mutated = bytes;
    const int changes = 1 + static_cast<int>(random() % 4);
    for (int i = 0; i < changes; ++i) {
      mutated[random() % mutated.size()] = static_cast<char>(random());
    }
    ExpectAgreesWithProtobuf(mutated, 1 + random() % 20);
    if (HasFailure()) FAIL() << "in round " << round;
  }
}

}  // namespace
}  // namespace cohort
