// How the server ends streams without a message, with half a registration, or
// with a push whose key is old or impossible.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/fakes/statuses.h"
#include "tests/rpc/hand_worker.h"
#include "tests/rpc/service_fixture.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;

// A field of two bytes that ends after one.
const std::string kGarbage("\x0a\x02x", 3);
// A message with a wrong message_xxh3 and nothing else.
const std::string kWrongChecksum("\x71\x01\x02\x03\x04\x05\x06\x07\x08", 9);
// One with an unknown field and no checksum, as if damage had hidden it.
const std::string kNoChecksum("\xa0\x06\x01", 3);

// A worker then reconnects and tries again.
TEST_F(ServiceTest, DamagedMessagesEndEveryStreamAsDamaged) {
  Start(TinyOptions());
  const auto channel = PlainChannel(server_->address());
  for (const char* method :
       {"/cohort.v1.Membership/Session", "/cohort.v1.Moments/Reduce",
        "/cohort.v1.Parameters/Exchange", "/cohort.v1.Parameters/Register",
        "/cohort.v1.Parameters/Pull"}) {
    for (const std::string& bytes : {kGarbage, kWrongChecksum, kNoChecksum}) {
      EXPECT_EQ(RawCall().Run(channel, method, bytes).error_code(),
                grpc::DATA_LOSS)
          << method;
    }
  }
}

TEST_F(ServiceTest, ASessionThatEndsBeforeItsJoinIsInvalid) {
  Start(TinyOptions());
  EXPECT_THAT(RawCall().Run(PlainChannel(server_->address()),
                            "/cohort.v1.Membership/Session", std::nullopt),
              EndedWith(grpc::INVALID_ARGUMENT, "want a join"));
}

// Two parameters of four elements, each in its own partition.
class HalfRegistration : public ServiceTest {
 protected:
  void SetUp() override {
    ServerOptions options = TinyOptions();
    options.coordinator.workers = 1;
    options.coordinator.partition_bytes = 16;
    Start(options);
    worker_ = std::make_unique<HandWorker>(server_->address());
    ASSERT_TRUE(worker_->Join(0).ok());
    stub_ = v1::Parameters::NewStub(PlainChannel(server_->address()));
    SetDeadline(*call_.context);
    call_.stream = stub_->Register(call_.context.get());
  }

  static v1::ModelLayout TwoParameters() {
    v1::ModelLayout layout = TinyLayout();
    *layout.add_parameters() = layout.parameters(0);
    layout.mutable_parameters(1)->set_name("w2");
    return layout;
  }

  void SendLayout() {
    v1::RegisterRequest request;
    *request.mutable_sender() = worker_->sender();
    *request.mutable_layout() = TwoParameters();
    *request.mutable_plan() = plan_;
    call_.Write(request);
    const auto reply = OkValue(call_.Read());
    ASSERT_EQ(reply.partitions_size(), 2);
  }

  void SendPartition(int32_t index, const std::vector<float>& values) {
    v1::RegisterRequest request;
    *request.mutable_sender() = worker_->sender();
    request.set_partition(index);
    request.set_encoding(v1::ENCODING_FLOAT32);
    request.set_payload(BytesOf(values));
    call_.Write(request);
  }

  std::unique_ptr<HandWorker> worker_;
  std::unique_ptr<v1::Parameters::Stub> stub_;
  RegisterCall call_;
};

TEST_F(HalfRegistration, WithoutALayoutIsInvalid) {
  call_.stream->WritesDone();
  EXPECT_THAT(call_.End(),
              EndedWith(grpc::INVALID_ARGUMENT, "want layout and plan first"));
}

TEST_F(HalfRegistration, NamesThePartitionThatIsMissing) {
  SendLayout();
  SendPartition(0, {1, 1, 1, 1});
  call_.stream->WritesDone();
  EXPECT_THAT(call_.End(),
              EndedWith(grpc::INVALID_ARGUMENT, "without partition 1 (1 of 2"));
  // The whole of it is taken afterwards.
  ExpectOk(
      worker_->Register(TwoParameters(), plan_, {{1, 2, 3, 4}, {5, 6, 7, 8}}));
}

TEST_F(HalfRegistration, AValueThatIsNotFiniteIsRefusedByItsName) {
  SendLayout();
  SendPartition(1, {1, 1, std::numeric_limits<float>::quiet_NaN(), 1});
  EXPECT_THAT(call_.End(),
              EndedWith(grpc::INVALID_ARGUMENT,
                        "w2: got the initial value nan at element 2"));
}

// Answers are addressed by incarnation, so one stream cannot serve two.
TEST_F(ServiceTest, AStreamServesOneIncarnationOnly) {
  StartWithTwoWorkers(TinyOptions());
  HandWorker& worker = *workers_[0];
  ExchangeCall exchange = worker.OpenExchange();
  exchange.Write(worker.Opening(assignments_[0], 2));
  worker.sender().set_incarnation(worker.sender().incarnation() + 1);
  exchange.Write(worker.Closing(assignments_[0], 1));
  EXPECT_THAT(exchange.End(),
              EndedWith(grpc::INVALID_ARGUMENT, "as before on this stream"));
}

TEST_F(ServiceTest, WorkersOfAFailedRunAreToldWhy) {
  ServerOptions options = TinyOptions();
  options.coordinator.nonfinite_max = 1;
  StartWithTwoWorkers(options);
  for (size_t i = 0; i < 2; ++i) {
    exchanges_.push_back(workers_[i]->OpenExchange());
    workers_[i]->Push(exchanges_[i], assignments_[i],
                      {std::numeric_limits<float>::quiet_NaN(), 1, 1, 1});
  }
  for (auto& worker : workers_) {
    const auto told = OkValue(worker->Await(v1::ASSIGNMENT_KIND_FINISHED));
    EXPECT_TRUE(told.failed());
    EXPECT_FALSE(told.unfinished());
    EXPECT_THAT(told.reason(), HasSubstr("not finite"));
  }
}

}  // namespace
}  // namespace cohort
