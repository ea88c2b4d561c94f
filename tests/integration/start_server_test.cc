// Servers that start, or say why they do not.

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/service/server.h"
#include "tests/integration/hand_worker.h"
#include "tests/integration/service_fixture.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(StartServerTest, PortInUseIsRefusedWithAClearText) {
  std::ostringstream out;
  absl::StatusOr<std::unique_ptr<Server>> first =
      StartServer(TinyOptions(), out);
  ASSERT_TRUE(first.ok());
  ServerOptions options = TinyOptions();
  options.listen = (*first)->address();
  const absl::Status status = StartServer(options, out).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrCat("cannot listen on ", options.listen)));
}

TEST(StartServerTest, OpenAddressNeedsInsecure) {
  std::ostringstream out;
  ServerOptions options = TinyOptions();
  options.listen = "0.0.0.0:0";
  const absl::Status status = StartServer(options, out).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("--insecure"));
  options.insecure = true;
  EXPECT_TRUE(StartServer(options, out).ok());
}

TEST(StartServerTest, ResumeNeedsACheckpointDirectory) {
  std::ostringstream out;
  ServerOptions options = TinyOptions();
  options.files.resume = true;
  EXPECT_EQ(StartServer(options, out).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(StartServerTest, HealthServiceSaysServing) {
  std::ostringstream out;
  absl::StatusOr<std::unique_ptr<Server>> server =
      StartServer(TinyOptions(), out);
  ASSERT_TRUE(server.ok());
  grpc::GenericStub stub(grpc::CreateChannel(
      (*server)->address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  SetDeadline(context);
  // HealthCheckRequest{}; the answer is HealthCheckResponse{status: SERVING}.
  grpc::Slice nothing;
  const grpc::ByteBuffer request(&nothing, 1);
  grpc::ByteBuffer reply;
  std::mutex mu;
  std::condition_variable changed;
  std::optional<grpc::Status> status;
  stub.UnaryCall(&context, "/grpc.health.v1.Health/Check", grpc::StubOptions(),
                 &request, &reply, [&](const grpc::Status& end) {
                   std::lock_guard<std::mutex> lock(mu);
                   status = end;
                   changed.notify_all();
                 });
  std::unique_lock<std::mutex> lock(mu);
  changed.wait(lock, [&] { return status.has_value(); });
  ASSERT_TRUE(status->ok()) << status->error_message();
  std::vector<grpc::Slice> slices;
  ASSERT_TRUE(reply.Dump(&slices).ok());
  ASSERT_EQ(slices.size(), 1u);
  EXPECT_THAT(std::vector<int>(slices[0].begin(), slices[0].end()),
              ElementsAre(0x08, 0x01));
}

}  // namespace
}  // namespace cohort
