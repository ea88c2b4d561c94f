// A server that listens on a Unix socket, or has one for workers of its host.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cohort/v1/admin.grpc.pb.h"
#include "cohort/v1/parameters.grpc.pb.h"
#include "common/local/boot_id.h"
#include "common/ops/page_client.h"
#include "common/unix_address.h"
#include "common/wire/channel.h"
#include "server/main/server.h"
#include "tests/fakes/statuses.h"
#include "tests/fakes/temp_dir.h"
#include "tests/rpc/hand_worker.h"
#include "tests/rpc/service_fixture.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class UnixListenTest : public ServiceTest {
 protected:
  UnixListenTest() {
    options_.listen = absl::StrCat("unix:", folder_.File("socket"));
  }

  TempDir folder_;
  ServerOptions options_ = TinyOptions();
};

TEST_F(UnixListenTest, TrainsAndLeavesNoSocket) {
  StartWithTwoWorkers(options_);
  EXPECT_EQ(server_->address(), options_.listen);
  TrainOneStep();
  for (ExchangeCall& exchange : exchanges_) {
    EXPECT_EQ(AwaitVerdict(exchange).verdict(), v1::VERDICT_APPLIED);
  }
  EXPECT_TRUE(StatusAt(options_.listen).ok());
  workers_.clear();
  server_.reset();
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

// gRPC reads an address as a URI, in which these characters have a meaning.
TEST_F(UnixListenTest, APathMayHaveAnyPrintableCharacter) {
  options_.listen = absl::StrCat("unix:", folder_.File("a b%20c?d#e:f"));
  Start(options_);
  const grpc::Status status = StatusAt(options_.listen);
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST_F(UnixListenTest, AnAbstractNameNeedsNoFile) {
  options_.listen = absl::StrCat("unix-abstract:cohort test-", getpid());
  Start(options_);
  const grpc::Status status = StatusAt(options_.listen);
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST_F(UnixListenTest, ASecondServerIsRefused) {
  Start(options_);
  EXPECT_THAT(
      StartServer(options_, out_),
      IsError(kUnavailable, options_.listen + ": the socket is in use"));
  EXPECT_TRUE(StatusAt(options_.listen).ok());
}

TEST_F(UnixListenTest, AddressesThatCannotBeReadAreRefused) {
  options_.listen = "unix:socket";
  EXPECT_TRUE(absl::IsInvalidArgument(StartServer(options_, out_).status()));
  options_.listen = absl::StrCat("unix:/", std::string(107, 'a'));
  const absl::Status status = StartServer(options_, out_).status();
  EXPECT_THAT(status, IsError(kInvalidArgument, "want 1 to 107"));
  options_ = TinyOptions();
  options_.ops_listen = absl::StrCat("unix:", folder_.File("ops"));
  EXPECT_THAT(std::string(StartServer(options_, out_).status().message()),
              HasSubstr("--ops_listen: got 'unix:"));
}

TEST_F(UnixListenTest, AdminMayHaveASocketOfItsOwn) {
  options_.listen = "127.0.0.1:0";
  options_.admin_listen = absl::StrCat("unix:", folder_.File("admin"));
  Start(options_);
  EXPECT_THAT(out_.str(), HasSubstr("served at " + options_.admin_listen));
  EXPECT_TRUE(StatusAt(options_.admin_listen).ok());
  EXPECT_EQ(StatusAt(server_->address()).error_code(), grpc::UNIMPLEMENTED);
}

TEST_F(UnixListenTest, IsReadyOnceItsSocketAnswers) {
  options_.ops_listen = "127.0.0.1:0";
  Start(options_);
  const auto page = OkValue(FetchPage({.address = server_->ops_address(),
                                       .path = "/readyz",
                                       .timeout = absl::Seconds(20)}));
  EXPECT_EQ(page.status, 200) << page.body;
}

// All connections have one name, so none of them can be limited by it.
TEST_F(UnixListenTest, ManyWorkersMayPullAtOnce) {
  StartWithTwoWorkers(options_);
  constexpr int kPulls = 12;
  const auto stub = v1::Parameters::NewStub(
      MakeChannel(options_.listen, ChannelPurpose::kBulk));
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::PullReply>>> pulls;
  v1::PullRequest request;
  request.set_weights(true);
  for (int i = 0; i < kPulls; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    SetDeadline(*contexts.back());
    pulls.push_back(stub->Pull(contexts.back().get(), Sealed(request)));
  }
  for (const auto& pull : pulls) {
    v1::PullReply reply;
    while (pull->Read(&reply)) {
    }
    const grpc::Status status = pull->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
}

// In a child, which can become another user.
TEST_F(UnixListenTest, OtherUsersAreNotServed) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const std::string abstract = absl::StrCat("@cohort-user-test-", getpid());
  // Others may enter the folder, so that only the socket keeps them out.
  ASSERT_EQ(chmod(folder_.path().c_str(), 0755), 0);
  options_.admin_listen = absl::StrCat("unix-abstract:", abstract.substr(1));
  Start(options_);
  // True if bytes come back: a server greets first in HTTP/2.
  const auto greeted = [](const std::string& name) {
    const auto address = UnixAddressOf(name);
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    char byte = 0;
    const bool served = connect(fd, address->get(), address->size) == 0 &&
                        recv(fd, &byte, 1, 0) == 1;
    close(fd);
    return served;
  };
  const std::string path = folder_.File("socket");
  EXPECT_TRUE(greeted(path));
  EXPECT_TRUE(greeted(abstract));
  constexpr uid_t kNobody = 65534;
  const pid_t child = fork();
  if (child == 0) {
    if (setresuid(kNobody, kNobody, kNobody) != 0) _exit(9);
    _exit((greeted(path) ? 1 : 0) + (greeted(abstract) ? 2 : 0));
  }
  int ended = 0;
  ASSERT_EQ(waitpid(child, &ended, 0), child);
  ASSERT_TRUE(WIFEXITED(ended));
  EXPECT_EQ(WEXITSTATUS(ended), 0);
}

class LocalOfferTest : public ServiceTest {
 protected:
  // The answer to a worker that joins now.
  v1::JoinReply Joined() {
    auto worker = std::make_unique<HandWorker>(server_->address());
    EXPECT_TRUE(worker->Join().ok());
    workers_.push_back(std::move(worker));
    return workers_.back()->joined();
  }

  TempDir folder_;
  ServerOptions options_ = TinyOptions();
};

TEST_F(LocalOfferTest, IsMadeUnlessLocalIsTcp) {
  options_.local_dir = folder_.path();
  Start(options_);
  EXPECT_EQ(Joined().local().boot_id(), BootId());
  EXPECT_THAT(Joined().local().socket(), StartsWith(folder_.path()));
  workers_.clear();
  server_.reset();
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  options_.local = "tcp";
  Start(options_);
  EXPECT_FALSE(Joined().has_local());
}

TEST_F(LocalOfferTest, AFolderThatIsMissingIsAnErrorOrAWarning) {
  options_.local_dir = folder_.File("no");
  options_.local = "shm";
  EXPECT_THAT(StartServer(options_, out_),
              IsError(kUnavailable, "set --local_dir"));
  options_.local = "auto";
  Start(options_);
  EXPECT_FALSE(Joined().has_local());
}

}  // namespace
}  // namespace cohort
