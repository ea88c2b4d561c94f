// State that programs keep beside the model, as clients of any language
// exchange it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>

#include "cohort/v1/admin.grpc.pb.h"
#include "cohort/v1/kept_state.grpc.pb.h"
#include "server/main/server.h"
#include "tests/rpc/hand_worker.h"
#include "tests/rpc/service_fixture.h"

namespace cohort {
namespace {

class KeptStateTest : public ServiceTest {
 protected:
  // Both workers begin the step after the first.
  void StartAtVersionOne() {
    ServerOptions options = TinyOptions();
    options.coordinator.epochs = 3;
    options.files.checkpoint_dir = TemporaryFolder("state");
    // A rank would evaluate the first epoch in place of the next step.
    plan_.set_test_samples(0);
    StartWithTwoWorkers(options);
    stub_ = v1::KeptState::NewStub(PlainChannel(server_->address()));
    EXPECT_FALSE(Hold(0, 0));
    TrainOneStep();
    for (size_t i = 0; i < 2; ++i) {
      assignments_[i] = AwaitVerdict(exchanges_[i]).next();
      ASSERT_EQ(assignments_[i].version(), 1);
    }
  }

  bool Hold(size_t worker, int64_t version) {
    v1::HoldRequest request;
    *request.mutable_sender() = workers_[worker]->sender();
    request.set_version(version);
    request.set_moves_from(1);
    TimedContext context;
    v1::HoldReply reply;
    ExpectOk(stub_->Hold(&context, Sealed(request), &reply));
    return reply.wanted();
  }

  // The whole state of version 1. True: it is enough.
  bool Give(size_t worker) {
    v1::GiveRequest request;
    *request.mutable_sender() = workers_[worker]->sender();
    request.set_version(1);
    request.set_total(7);
    request.set_piece("teacher");
    TimedContext context;
    v1::GiveReply reply;
    ExpectOk(stub_->Give(&context, Sealed(request), &reply));
    return reply.enough();
  }

  std::unique_ptr<v1::Admin::Stub> Admin() const {
    return v1::Admin::NewStub(PlainChannel(server_->address()));
  }

  v1::TakeRequest TakeOf(size_t worker) {
    v1::TakeRequest request;
    *request.mutable_sender() = workers_[worker]->sender();
    request.mutable_key()->set_sequence(assignments_[worker].sequence());
    request.mutable_key()->set_attempt(assignments_[worker].attempt());
    request.set_version(1);
    request.set_members(2);
    return request;
  }

  grpc::Status Take(const v1::TakeRequest& request, v1::TakeReply& reply) {
    TimedContext context;
    return stub_->Take(&context, request, &reply);
  }

  std::unique_ptr<v1::KeptState::Stub> stub_;
};

TEST_F(KeptStateTest, AMemberSendsItOnceTheStepIsRepeated) {
  StartAtVersionOne();
  v1::TakeReply reply;
  ExpectOk(Take(Sealed(TakeOf(1)), reply));
  EXPECT_EQ(reply.answer(), v1::TakeReply::ANSWER_AWAITED);
  // The first verdict's assignment came on the session, too.
  v1::Assignment again = assignments_[0];
  while (again.attempt() == 0) {
    again = OkValue(workers_[0]->Await(v1::ASSIGNMENT_KIND_TRAIN));
  }
  EXPECT_EQ(again.version(), 1);
  EXPECT_EQ(again.attempt(), 1);
  EXPECT_TRUE(Hold(0, 1));
  EXPECT_TRUE(Give(0));
  ExpectOk(Take(Sealed(TakeOf(1)), reply));
  EXPECT_EQ(reply.answer(), v1::TakeReply::ANSWER_HERE);
  EXPECT_EQ(reply.piece(), "teacher");
  EXPECT_EQ(reply.moves_from(), 1);
}

// A checkpoint waits for it, and the one that had to send it leaves.
TEST_F(KeptStateTest, AnotherMemberSendsItIfTheSenderIsGone) {
  StartAtVersionOne();
  const auto admin = Admin();
  auto saved = std::async(std::launch::async, [&admin] {
    TimedContext context;
    v1::CheckpointReply reply;
    return admin->Checkpoint(&context, {}, &reply);
  });
  while (!Hold(0, 1)) {
  }
  EXPECT_FALSE(Hold(1, 1));
  TimedContext evicting;
  v1::EvictRequest evict;
  v1::EvictReply evicted;
  ExpectOk(admin->Evict(&evicting, evict, &evicted));
  EXPECT_TRUE(Hold(1, 1));
  EXPECT_TRUE(Give(1));
  ExpectOk(saved.get());
}

// No worker begins a step, so none sends it.
TEST_F(KeptStateTest, ACheckpointThatWaitsForItKeepsNobodyElseWaiting) {
  StartAtVersionOne();
  const auto admin = Admin();
  auto saved = std::async(std::launch::async, [&admin] {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::seconds(3));
    v1::CheckpointReply reply;
    return admin->Checkpoint(&context, {}, &reply);
  });
  while (saved.wait_for(std::chrono::milliseconds(100)) !=
         std::future_status::ready) {
    TimedContext context;
    v1::SetLogLevelReply level;
    ExpectOk(admin->SetLogLevel(&context, {}, &level));
  }
  // Before the caller gives up.
  EXPECT_THAT(saved.get(), EndedWith(grpc::StatusCode::FAILED_PRECONDITION,
                                     "kept state of step 1"));
}

TEST_F(KeptStateTest, RefusesWhatIsDamagedMalformedOrAnotherRuns) {
  using enum grpc::StatusCode;
  StartAtVersionOne();
  v1::TakeReply reply;
  EXPECT_THAT(Take(TakeOf(1), reply), EndedWith(DATA_LOSS, "checksum"));
  v1::TakeRequest request = TakeOf(1);
  request.set_version(-1);
  EXPECT_THAT(Take(Sealed(request), reply),
              EndedWith(INVALID_ARGUMENT, "version: got -1"));
  request = TakeOf(1);
  request.set_members(0);
  EXPECT_THAT(Take(Sealed(request), reply),
              EndedWith(INVALID_ARGUMENT, "0 members"));
  request = TakeOf(1);
  request.mutable_sender()->set_run_id("another");
  EXPECT_THAT(Take(Sealed(request), reply),
              EndedWith(FAILED_PRECONDITION, "another"));
  request = TakeOf(1);
  request.mutable_sender()->set_incarnation(99);
  EXPECT_THAT(Take(Sealed(request), reply), EndedWith(ABORTED, ""));
}

}  // namespace
}  // namespace cohort
