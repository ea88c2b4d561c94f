#include "worker/client/bulk_stream.h"

#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"
#include "common/byte_rope.h"
#include "common/clock.h"
#include "common/wire/channel.h"
#include "common/wire/framed_message.h"
#include "tests/client/fake_server.h"
#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

constexpr int64_t kQueuedBytesMax = 8 << 20;

grpc::ByteBuffer FourMegabytes() {
  static const ByteRope kPayload =
      ByteRope::Copy(std::vector<std::byte>(4 << 20));
  return EncodeFramed(v1::ExchangeRequest(), kPayload);
}

// Sends until a message does not fit; gRPC and the kernel buffer some too.
absl::Status FillUp(BulkStream& stream, const Clock& clock) {
  for (int i = 0; i < 100; ++i) {
    const absl::Status status =
        stream.Send(FourMegabytes(), clock.Now() + absl::Milliseconds(100));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

TEST(BulkStreamTest, SendBlocksWhenTheQueueIsFullAndGoesOnAfterwards) {
  FakeServer server;
  absl::Notification read;
  server.on_exchange = [&read](FakeServer::ExchangeIo& io) {
    read.WaitForNotification();
    v1::ExchangeRequest request;
    while (io.Read(&request)) {
    }
    return grpc::Status::OK;
  };
  const SteadyClock clock;
  Link link(server.address(), clock);
  absl::Notification ended;
  BulkStream stream(
      MakeChannel(server.address(), ChannelPurpose::kBulk),
      "/cohort.v1.Parameters/Exchange", link,
      [](grpc::ByteBuffer&) { return absl::OkStatus(); },
      [&ended](const absl::Status&) { ended.Notify(); }, kQueuedBytesMax);
  EXPECT_EQ(FillUp(stream, clock).code(), kDeadlineExceeded);
  read.Notify();
  ExpectOk(stream.Send(FourMegabytes(), clock.Now() + absl::Minutes(1)));
  stream.FinishWrites();
  ended.WaitForNotification();
}

TEST(BulkStreamTest, FullQueueOfAnEndedStreamDoesNotBlock) {
  FakeServer server;
  absl::Notification refuse;
  server.on_exchange = [&refuse](FakeServer::ExchangeIo&) {
    refuse.WaitForNotification();
    return grpc::Status(grpc::INVALID_ARGUMENT, "no");
  };
  const SteadyClock clock;
  Link link(server.address(), clock);
  BulkStream stream(
      MakeChannel(server.address(), ChannelPurpose::kBulk),
      "/cohort.v1.Parameters/Exchange", link,
      [](grpc::ByteBuffer&) { return absl::OkStatus(); },
      [](const absl::Status&) {}, kQueuedBytesMax);
  EXPECT_EQ(FillUp(stream, clock).code(), kDeadlineExceeded);
  refuse.Notify();
  absl::Status last;
  while (last.ok()) {
    last = stream.Send(FourMegabytes(), clock.Now() + absl::Minutes(1));
  }
  EXPECT_EQ(last.code(), kUnavailable);
}

}  // namespace
}  // namespace cohort
