// Rendezvous of workers that share memory with the server, driven by hand.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/local/local_messages.h"
#include "common/model_layout.h"
#include "server/rpc/services.h"
#include "tests/fakes/statuses.h"
#include "tests/rpc/service_fixture.h"
#include "worker/client/local_link.h"

namespace cohort {
namespace {

absl::Status Ok() { return absl::OkStatus(); }

std::string MailOf(const v1::ReduceRequest& request) {
  return std::string(1, static_cast<char>(local::Mail::kReduce)) +
         request.SerializeAsString();
}

class LocalReduceTest : public ServiceTest {
 protected:
  void SetUp() override {
    ServerOptions options = TinyOptions();
    options.coordinator.on_worker_loss = OnWorkerLoss::kContinue;
    StartWithTwoWorkers(options, NormalisedLayout());
    const std::vector<Partition> partitions = {
        {.slices = {{.parameter = 0, .count = 4}}, .elements = 4}};
    const v1::LocalOffer& offer = workers_[0]->joined().local();
    auto link = LocalLink::Connect(offer.socket(), offer.token(), partitions);
    ASSERT_TRUE(link.ok()) << link.status();
    link_ = *std::move(link);
  }

  void Send(const std::string& mail) { ExpectOk(link_->SendMessage(mail, Ok)); }

  // The next message from the server.
  std::string Mail() {
    for (;;) {
      auto mail = link_->ReceiveMessage();
      EXPECT_TRUE(mail.ok()) << mail.status();
      if (!mail.ok()) return "";
      if (mail->has_value()) return **std::move(mail);
      link_->WaitForMessage(absl::Seconds(30));
    }
  }

  v1::ReduceReply Reply() {
    const std::string mail = Mail();
    v1::ReduceReply reply;
    EXPECT_FALSE(mail.empty());
    EXPECT_EQ(mail.front(), static_cast<char>(local::Mail::kReduce));
    EXPECT_TRUE(reply.ParseFromString(mail.substr(1)));
    return reply;
  }

  // The status with which the server ends the rendezvous of this worker.
  absl::Status EndStatus() {
    const std::string mail = Mail();
    if (mail.size() < 2 ||
        mail.front() != static_cast<char>(local::Mail::kEnd)) {
      ADD_FAILURE() << "got " << mail.size() << " bytes, want an end";
      return absl::OkStatus();
    }
    return absl::Status(static_cast<absl::StatusCode>(mail[1]), mail.substr(2));
  }

  std::unique_ptr<LocalLink> link_;
};

// Two samples around 1 and two around 3: mean 2, m2 = 2 + 2 + 4.
TEST_F(LocalReduceTest, AWorkerThatSharesMemoryMeetsOneThatDoesNot) {
  ReduceCall remote = workers_[1]->OpenReduce();
  ASSERT_TRUE(
      remote.Write(workers_[1]->Contribution(assignments_[1], 2, 3, 2)));
  Send(MailOf(workers_[0]->Contribution(assignments_[0], 2, 1, 2)));
  const v1::ReduceReply here = Reply();
  const auto there = OkValue(remote.Read());
  EXPECT_EQ(here.count(), 4);
  EXPECT_EQ(DoublesOf(here.values()), (std::vector<double>{2, 8}));
  EXPECT_EQ(here.values(), there.values());
}

TEST_F(LocalReduceTest, SeveralContributionsAreAnsweredTogether) {
  ReduceCall remote = workers_[1]->OpenReduce();
  Send(MailOf(TwoContributions(*workers_[0], assignments_[0], 1)));
  ASSERT_TRUE(remote.Write(TwoContributions(*workers_[1], assignments_[1], 3)));
  const v1::ReduceReply reply = Reply();
  EXPECT_EQ(DoublesOf(reply.values()), (std::vector<double>{2, 8}));
  ASSERT_EQ(reply.further_size(), 1);
  EXPECT_EQ(reply.further(0).key().call(), 1);
  EXPECT_EQ(DoublesOf(reply.further(0).values()), (std::vector<double>{3, 8}));
}

TEST_F(LocalReduceTest, AContributionForAnotherRankIsRefused) {
  v1::ReduceRequest foreign =
      workers_[1]->Contribution(assignments_[1], 2, 3, 2);
  Send(MailOf(foreign));
  EXPECT_THAT(EndStatus(), IsError(kPermissionDenied, "got rank 1"));
}

TEST_F(LocalReduceTest, AnIncarnationThatIsOverTakesNoPart) {
  ReduceCall remote = workers_[1]->OpenReduce();
  ASSERT_TRUE(
      remote.Write(workers_[1]->Contribution(assignments_[1], 2, 3, 2)));
  Send(MailOf(workers_[0]->Contribution(assignments_[0], 2, 1, 2)));
  (void)Reply();
  (void)workers_[0]->Leave();
  EXPECT_TRUE(absl::IsAborted(EndStatus()));
}

TEST_F(LocalReduceTest, AMessageThatIsNoneEndsTheRendezvousOfItsSender) {
  for (const std::string& mail :
       {std::string(), std::string("\7abc"),
        std::string(1, static_cast<char>(local::Mail::kReduce)) +
            "\xff\xff\xff"}) {
    Send(mail);
  }
  EXPECT_TRUE(absl::IsDataLoss(EndStatus()));
  // Others continue.
  ReduceCall remote = workers_[1]->OpenReduce();
  ASSERT_TRUE(
      remote.Write(workers_[1]->Contribution(assignments_[1], 2, 3, 2)));
  ReduceCall mine = workers_[0]->OpenReduce();
  ASSERT_TRUE(mine.Write(workers_[0]->Contribution(assignments_[0], 2, 1, 2)));
  const auto there = OkValue(remote.Read());
  EXPECT_EQ(DoublesOf(there.values()), (std::vector<double>{2, 8}));
}

TEST_F(LocalReduceTest, ContributionsThatAreRefusedSayWhy) {
  v1::ReduceRequest request =
      workers_[0]->Contribution(assignments_[0], 2, 1, 2);
  request.mutable_key()->set_layer(7);
  Send(MailOf(request));
  EXPECT_TRUE(absl::IsInvalidArgument(EndStatus()));
}

TEST_F(LocalReduceTest, AStepThatEndsEarlyIsAnswered) {
  Send(MailOf(workers_[0]->Contribution(assignments_[0], 2, 1, 2)));
  (void)workers_[1]->Leave();
  EXPECT_FALSE(Reply().aborted().empty());
}

TEST_F(LocalReduceTest, AServerThatEndsEndsTheRendezvous) {
  Send(MailOf(workers_[0]->Contribution(assignments_[0], 2, 1, 2)));
  server_.reset();
  EXPECT_FALSE(EndStatus().ok());
}

// Answers for all calls in which a rank may wait find room.
TEST(LocalMessageBytesTest, GrowsWithTheModel) {
  ModelLayout layout;
  const int64_t least = LocalMessageBytes(layout);
  EXPECT_GE(least, 64 << 10);
  for (int layer = 0; layer < 100; ++layer) {
    layout.batch_norms.push_back(
        {.name = absl::StrCat(layer), .channels = 2048});
  }
  // Two phases of each layer, with two float64 a channel.
  EXPECT_GE(LocalMessageBytes(layout), int64_t{100} * 2 * 2048 * 16);
  EXPECT_LE(LocalMessageBytes(layout), int64_t{1} << 30);
  EXPECT_EQ(LocalMessageBytes(layout) & (LocalMessageBytes(layout) - 1), 0);
}

}  // namespace
}  // namespace cohort
