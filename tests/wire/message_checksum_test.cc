#include "common/wire/message_checksum.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "cohort/v1/admin.pb.h"
#include "cohort/v1/membership.pb.h"
#include "cohort/v1/moments.pb.h"
#include "common/wire/announced_checksum.h"
#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

v1::ReduceRequest Request() {
  v1::ReduceRequest request;
  request.mutable_sender()->set_run_id("run");
  request.mutable_sender()->set_rank(1);
  request.mutable_sender()->set_incarnation(int64_t{1000} << 32);
  request.mutable_key()->set_step(7);
  request.mutable_key()->set_phase(v1::REDUCE_PHASE_FORWARD);
  request.set_count(64);
  request.set_values(std::string("0123456789abcdef"));
  request.add_further()->set_count(5);
  return request;
}

TEST(MessageChecksumTest, AnIntactMessagePassesAndIsAsItWas) {
  v1::ReduceRequest request = Request();
  AddMessageChecksum(&request);
  EXPECT_TRUE(request.has_message_xxh3());
  EXPECT_TRUE(TakeMessageChecksum(&request).ok());
  EXPECT_EQ(request.SerializeAsString(), Request().SerializeAsString());
}

TEST(MessageChecksumTest, AMessageWithoutAChecksumIsRefused) {
  v1::ReduceRequest request = Request();
  EXPECT_EQ(TakeMessageChecksum(&request).code(), kDataLoss);
}

TEST(MessageChecksumTest, ARequestOfAdminNeedsOneOnlyIfItWasAnnounced) {
  v1::SetPolicyRequest request;
  request.set_author("anna");
  EXPECT_TRUE(TakeAnnouncedChecksum(&request, /*announced=*/false).ok());
  EXPECT_TRUE(
      absl::IsDataLoss(TakeAnnouncedChecksum(&request, /*announced=*/true)));
  AddMessageChecksum(&request);
  request.set_author("anne");
  EXPECT_TRUE(
      absl::IsDataLoss(TakeAnnouncedChecksum(&request, /*announced=*/false)));
}

// Every flipped bit of the encoding, including the checksum's own, is noticed,
// unless no reader could see the change.
TEST(MessageChecksumTest, EveryFlippedBitIsNoticed) {
  v1::ReduceRequest sealed = Request();
  AddMessageChecksum(&sealed);
  const std::string good = sealed.SerializeAsString();
  int noticed = 0;
  for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    v1::ReduceRequest request;
    if (!request.ParseFromString(bad)) continue;
    const absl::Status status = TakeMessageChecksum(&request);
    if (status.ok()) {
      EXPECT_EQ(request.SerializeAsString(), Request().SerializeAsString())
          << "bit " << bit;
      continue;
    }
    ++noticed;
    EXPECT_THAT(status, IsError(kDataLoss, "cohort.v1.ReduceRequest: got "));
  }
  EXPECT_GT(noticed, 300);
}

// A later release may send unknown fields; the checksum covers them.
TEST(MessageChecksumTest, UnknownFieldsAreCovered) {
  v1::JoinReply later;
  later.set_rank(3);
  later.set_run_name("nightly");
  v1::SessionReply reply;
  *reply.mutable_joined() = later;
  AddMessageChecksum(&reply);
  std::string bytes = reply.SerializeAsString();
  v1::SessionReply same;
  ASSERT_TRUE(same.ParseFromString(bytes));
  EXPECT_TRUE(TakeMessageChecksum(&same).ok());
  // Field 100, a varint that the checksum does not cover.
  bytes += std::string("\xa0\x06\x01", 3);
  v1::SessionReply more;
  ASSERT_TRUE(more.ParseFromString(bytes));
  EXPECT_EQ(TakeMessageChecksum(&more).code(), kDataLoss);
}

TEST(MessageChecksumTest, TheOrderOfAMapDoesNotMatter) {
  v1::SessionRequest one;
  v1::SessionRequest two;
  auto& a = *one.mutable_heartbeat()->mutable_phase_seconds();
  auto& b = *two.mutable_heartbeat()->mutable_phase_seconds();
  for (int i = 0; i < 50; ++i) a[std::to_string(i)] = i;
  for (int i = 49; i >= 0; --i) b[std::to_string(i)] = i;
  AddMessageChecksum(&one);
  AddMessageChecksum(&two);
  EXPECT_EQ(one.message_xxh3(), two.message_xxh3());
}

}  // namespace
}  // namespace cohort
