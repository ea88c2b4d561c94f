// A data shard as its clients see it.
#include "server/main/data_server.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/flags/flag_table.h"
#include "server/main/server_options.h"
#include "tests/fakes/statuses.h"
#include "tests/rpc/attach_call.h"
#include "tests/rpc/hand_worker.h"
#include "tests/rpc/service_fixture.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;

TEST(DataServerTest, ClientsOfARunAreToldWhereTheyAre) {
  std::ostringstream out;
  const std::unique_ptr<DataServer> server =
      OkValue(DataServer::Start(TinyOptions(), out));
  HandWorker worker(server->address());
  EXPECT_THAT(worker.Join(),
              EndedWith(grpc::UNIMPLEMENTED, "this is a data shard"));

  EXPECT_THAT(StatusAt(server->address()).error_message(),
              HasSubstr("this is a data shard"));
}

TEST(DataServerTest, TheHelpNamesEachFlagThatHasAnEffect) {
  const FlagInfo* const help = FindFlag(ServerFlagTable(), "data_shard");
  ASSERT_NE(help, nullptr);
  for (const absl::string_view name : DataShardFlags()) {
    const FlagInfo* const flag = FindFlag(ServerFlagTable(), name);
    ASSERT_NE(flag, nullptr) << name;
    if (flag == help || flag->subject == "security") continue;
    EXPECT_THAT(std::string(help->help), HasSubstr(absl::StrCat("--", name)));
  }
}

// Without certificates nothing tells the first server from another client.
TEST(DataServerTest, AFirstServerThatIsConnectedIsNotReplaced) {
  std::ostringstream out;
  const std::unique_ptr<DataServer> server =
      OkValue(DataServer::Start(TinyOptions(), out));
  AttachCall first(server->address(), grpc::InsecureChannelCredentials());
  ASSERT_TRUE(first.Attach(int64_t{1000} << 32));
  for (const int64_t generation : {int64_t{1001} << 32, int64_t{1} << 62}) {
    AttachCall other(server->address(), grpc::InsecureChannelCredentials());
    EXPECT_FALSE(other.Attach(generation));
    EXPECT_FALSE(other.End().ok());
  }
  first.Close();
  // The data shard may notice a moment later that the connection has ended.
  for (;;) {
    AttachCall next(server->address(), grpc::InsecureChannelCredentials());
    if (next.Attach(int64_t{1001} << 32)) break;
    ASSERT_EQ(next.End().error_code(), grpc::UNAVAILABLE);
  }
}

}  // namespace
}  // namespace cohort
