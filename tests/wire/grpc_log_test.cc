#include "common/wire/grpc_log.h"

#include <gmock/gmock.h>
#include <grpc/support/log.h>
#include <gtest/gtest.h>

#include <string>

#include "cohort/v1/types.pb.h"

namespace cohort {
namespace {

std::string* last_line = nullptr;

TEST(GrpcLogTest, LinesOfGrpcComeWithFileAndLine) {
  std::string line;
  last_line = &line;
  RouteGrpcLog([](absl::string_view text) {
    if (last_line != nullptr) *last_line = std::string(text);
  });
  gpr_log("some/folder/file.cc", 7, GPR_LOG_SEVERITY_ERROR, "%d of %d", 2, 3);
  last_line = nullptr;
  EXPECT_EQ(line, "gRPC: 2 of 3 (file.cc:7)");
}

TEST(GrpcLogTest, SilencedLinesAreNotPrinted) {
  SilenceGrpcLog();
  testing::internal::CaptureStderr();
  gpr_log("file.cc", 7, GPR_LOG_SEVERITY_ERROR, "%s", "handshake failed");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(GrpcLogTest, LinesOfProtobufComeTheSameWay) {
  std::string line;
  last_line = &line;
  RouteGrpcLog([](absl::string_view text) {
    if (last_line != nullptr) *last_line = std::string(text);
  });
  v1::Sender sender;
  EXPECT_FALSE(sender.ParseFromString("\x0a\x01\xff"));
  last_line = nullptr;
  EXPECT_THAT(line, testing::StartsWith("protobuf: "));
  EXPECT_THAT(line, testing::HasSubstr("cohort.v1.Sender.run_id"));
}

}  // namespace
}  // namespace cohort
