// Every method of a server with certificates, called by every kind of client.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/security/small_file.h"
#include "common/security/tokens.h"
#include "common/wire/channel.h"
#include "common/wire/security.h"
#include "server/access/roles.h"
#include "server/main/data_server.h"
#include "server/rpc/call_interceptor.h"
#include "tests/fakes/statuses.h"
#include "tests/fakes/temp_dir.h"
#include "tests/rpc/attach_call.h"
#include "tests/rpc/service_fixture.h"
#include "tests/security/test_authority.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;

constexpr char kToken[] = "a-token-of-ana";

SharedSecurity SecurityOf(const TlsFiles& files) {
  // A client with an expired certificate does not start, so its files are not
  // checked here.
  return OkValue(Security::Load(files));
}

// A client's credentials that refuse nothing by themselves, not even their
// certificate when it has expired.
std::shared_ptr<grpc::ChannelCredentials> Unchecked(const TlsFiles& files) {
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = *ReadSmallFile("", files.ca);
  if (files.has_certificate()) {
    options.pem_cert_chain = *ReadSmallFile("", files.cert);
    options.pem_private_key = *ReadSmallFile("", files.key);
  }
  return grpc::SslCredentials(options);
}

class AccessTest : public ServiceTest {
 protected:
  ServerOptions SecureOptions() {
    ServerOptions options = TinyOptions();
    options.coordinator.run_name = "demo";
    options.security.tls = authority_.Issue("server/0");
    options.security.audit_log = authority_.File("audit.jsonl");
    return options;
  }

  ServerOptions OptionsWithTokens() {
    ServerOptions options = SecureOptions();
    options.security.viewer_tokens = authority_.File("tokens");
    std::ofstream(options.security.viewer_tokens)
        << "ana " << TokenHash(kToken) << "\n";
    return options;
  }

  std::shared_ptr<grpc::Channel> ChannelOf(
      const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
    grpc::ChannelArguments arguments =
        MakeChannelArguments(ChannelPurpose::kControl);
    // The server's certificate has this name.
    arguments.SetSslTargetNameOverride("localhost");
    return grpc::CreateCustomChannel(server_->address(), credentials,
                                     arguments);
  }

  std::shared_ptr<grpc::ChannelCredentials> CredentialsOf(
      const std::string& role, const std::string& run = "demo") {
    return SecurityOf(authority_.Issue(role, run))->ForChannel();
  }

  // Joins with the certificate of `role` as an incarnation.
  grpc::StatusCode Return(const std::string& role, int64_t incarnation) {
    const auto stub =
        v1::Membership::NewStub(ChannelOf(Unchecked(authority_.Issue(role))));
    SessionCall session;
    SetDeadline(*session.context);
    session.stream = stub->Session(session.context.get());
    v1::SessionRequest request;
    request.mutable_join()->set_incarnation(incarnation);
    request.mutable_join()->set_batch_size(2);
    session.Write(request);
    return session.End().error_code();
  }

  std::vector<std::string> Audited() {
    return ReadLines(authority_.File("audit.jsonl"));
  }

  // Calls a method with one empty message.
  static grpc::Status Call(const std::shared_ptr<grpc::Channel>& channel,
                           absl::string_view path,
                           const std::string& authorization = "") {
    return RawCall().Run(channel, std::string(path), "", authorization);
  }

  TestAuthority authority_;
};

// Whether the gate stopped the call; what a method says to an empty message is
// its own affair.
bool IsDenial(const grpc::Status& status) {
  return status.error_code() == grpc::PERMISSION_DENIED ||
         status.error_code() == grpc::UNAUTHENTICATED;
}

std::set<std::string> NamesOf(const std::vector<GrpcMethod>& methods) {
  std::set<std::string> names;
  for (const GrpcMethod& method : methods) {
    names.insert(absl::StrCat(method.service, "/", method.method));
  }
  return names;
}

TEST(ServedMethodsTest, EachKindOfServerHasItsOwn) {
  const std::set<std::string> coordinator = NamesOf(CoordinatorMethods());
  const std::set<std::string> data_shard = NamesOf(DataShardMethods());
  EXPECT_EQ(data_shard,
            (std::set<std::string>{
                "cohort.v1.DataShards/Attach", "cohort.v1.DataShards/Fetch",
                "cohort.v1.Parameters/Exchange", "cohort.v1.Parameters/Pull",
                "grpc.health.v1.Health/Check", "grpc.health.v1.Health/Watch"}));
  EXPECT_TRUE(coordinator.contains("cohort.v1.Parameters/Register"));
  EXPECT_TRUE(coordinator.contains("cohort.v1.Admin/Drain"));
  EXPECT_FALSE(coordinator.contains("cohort.v1.DataShards/Attach"));
}

TEST_F(AccessTest, EveryServedMethodIsInTheTable) {
  std::set<std::string> served;
  for (const auto& methods : {CoordinatorMethods(), DataShardMethods()}) {
    for (const std::string& name : NamesOf(methods)) served.insert("/" + name);
  }
  std::set<std::string> listed;
  for (const MethodRights& rights : RightsTable()) {
    listed.emplace(rights.path);
  }
  EXPECT_EQ(served, listed);
}

TEST_F(AccessTest, EveryRoleMayCallWhatTheTableSays) {
  Start(OptionsWithTokens());
  const std::vector<std::pair<PeerRole, std::string>> roles = {
      {PeerRole::kServer, "server/0"},
      {PeerRole::kWorker, "worker/0"},
      {PeerRole::kWorker, "worker/any"},
      {PeerRole::kViewer, "viewer"},
      {PeerRole::kOperator, "operator"}};
  for (const auto& [role, name] : roles) {
    const auto channel = ChannelOf(Unchecked(authority_.Issue(name)));
    for (const MethodRights& rights : RightsTable()) {
      // The last one: the server would refuse those after it.
      if (rights.path == "/cohort.v1.Admin/Drain" &&
          role == PeerRole::kOperator) {
        continue;
      }
      const bool may = rights.roles.empty() ||
                       std::find(rights.roles.begin(), rights.roles.end(),
                                 role) != rights.roles.end();
      const grpc::Status status = Call(channel, rights.path);
      EXPECT_EQ(IsDenial(status), !may)
          << name << " " << rights.path << ": " << status.error_message();
      EXPECT_NE(status.error_code(), grpc::UNAVAILABLE)
          << name << " " << rights.path << ": " << status.error_message();
      if (!may) {
        EXPECT_THAT(status, EndedWith(grpc::PERMISSION_DENIED, "may not call"));
      }
    }
  }
}

// Another data shard of the run has a server's certificate, too.
TEST_F(AccessTest, OnlyTheFirstServerTakesADataShard) {
  ServerOptions options = SecureOptions();
  options.security.audit_log.clear();
  std::ostringstream out;
  const auto shard = OkValue(DataServer::Start(options, out));
  const auto call = [&](const std::string& role) {
    return std::make_unique<AttachCall>(shard->address(),
                                        Unchecked(authority_.Issue(role)));
  };
  const int64_t start = int64_t{1000} << 32;
  const auto first = call("server/0");
  ASSERT_TRUE(first->Attach(start));
  const auto other = call("server/1");
  EXPECT_FALSE(other->Attach(start + 1));
  EXPECT_EQ(other->End().error_code(), grpc::PERMISSION_DENIED);
  // A restarted first server need not wait for the connection of the one
  // before.
  const auto restarted = call("server/0");
  EXPECT_TRUE(restarted->Attach(int64_t{1001} << 32));
  EXPECT_EQ(first->End().error_code(), grpc::ABORTED);
  restarted->Close();
}

TEST_F(AccessTest, OtherRunsMayCallNothing) {
  Start(SecureOptions());
  for (const std::string role : {"worker/0", "operator", "server/0"}) {
    const auto channel = ChannelOf(Unchecked(authority_.Issue(role, "other")));
    for (const MethodRights& rights : RightsTable()) {
      if (rights.roles.empty()) continue;
      EXPECT_THAT(
          Call(channel, rights.path),
          EndedWith(grpc::PERMISSION_DENIED, "example.org/cohort/demo"));
    }
  }
}

TEST_F(AccessTest, StrangersGetNothingButAHandshake) {
  Start(SecureOptions());
  TestAuthority other;
  TlsFiles foreign = other.Issue("operator");
  foreign.ca = authority_.Issue("operator").ca;
  TlsFiles none;
  none.ca = foreign.ca;
  const TlsFiles expired =
      authority_.Issue("worker/0", "demo", -absl::Minutes(1));
  for (const TlsFiles& files : {foreign, none, expired}) {
    const auto channel = ChannelOf(Unchecked(files));
    for (const MethodRights& rights : RightsTable()) {
      const grpc::Status status = Call(channel, rights.path);
      EXPECT_EQ(status.error_code(), grpc::UNAVAILABLE)
          << files.cert << " " << rights.path << ": " << status.error_message();
    }
  }
  const auto plain = ChannelOf(grpc::InsecureChannelCredentials());
  EXPECT_EQ(Call(plain, "/cohort.v1.Admin/GetStatus").error_code(),
            grpc::UNAVAILABLE);
}

TEST_F(AccessTest, TokensAreViewersAndNothingElse) {
  Start(OptionsWithTokens());
  TlsFiles none;
  none.ca = authority_.Issue("viewer").ca;
  const auto channel = ChannelOf(Unchecked(none));
  for (const MethodRights& rights : RightsTable()) {
    const absl::string_view path = rights.path;
    const bool may = rights.roles.empty() ||
                     std::find(rights.roles.begin(), rights.roles.end(),
                               PeerRole::kViewer) != rights.roles.end();
    EXPECT_EQ(IsDenial(Call(channel, path, absl::StrCat("Bearer ", kToken))),
              !may)
        << path;
    if (rights.roles.empty()) continue;
    EXPECT_EQ(Call(channel, path, "Bearer guess").error_code(),
              grpc::UNAUTHENTICATED);
    EXPECT_EQ(Call(channel, path).error_code(), grpc::UNAUTHENTICATED);
  }
}

TEST_F(AccessTest, AWorkersCertificateIsForItsRankOnly) {
  Start(SecureOptions());
  HandWorker zero(server_->address(), CredentialsOf("worker/0"));
  EXPECT_EQ(zero.Join(1).error_code(), grpc::PERMISSION_DENIED);
  // Without a rank it gets its own, although 0 is vacant.
  HandWorker one(server_->address(), CredentialsOf("worker/1"));
  ASSERT_TRUE(one.Join().ok());
  EXPECT_EQ(one.sender().rank(), 1);
  ASSERT_TRUE(zero.Join(0).ok());
  // Rank 1 speaks in the name of rank 0 on each stream.
  one.sender() = zero.sender();
  RegisterCall register_call = one.BeginRegister(TinyLayout(), TinyPlan());
  EXPECT_EQ(register_call.End().error_code(), grpc::PERMISSION_DENIED);
  ExchangeCall exchange = one.OpenExchange();
  exchange.Write(one.Opening(v1::Assignment(), 2));
  EXPECT_EQ(exchange.End().error_code(), grpc::PERMISSION_DENIED);
  ReduceCall reduce = one.OpenReduce();
  reduce.Write(one.Contribution(v1::Assignment(), 2, 0, 0));
  EXPECT_EQ(reduce.End().error_code(), grpc::PERMISSION_DENIED);
  v1::Assignment next;
  EXPECT_EQ(one.Report(v1::Assignment(), 0, next).error_code(),
            grpc::PERMISSION_DENIED);
  EXPECT_EQ(Return("worker/1", zero.sender().incarnation()),
            grpc::PERMISSION_DENIED);
  // Rank 0 is still there.
  EXPECT_TRUE(zero.Leave().ok());
  // Each is in the record, the first at once and the others together.
  server_.reset();
  int64_t recorded = 0;
  for (const std::string& line : Audited()) {
    const auto event = nlohmann::json::parse(line);
    if (event["event"] != "denied" || event["reason"] != "rank") continue;
    recorded += event["count"].get<int64_t>();
  }
  EXPECT_EQ(recorded, 6);
}

// What TLS protects needs no checksum, and one that is sent is still compared.
TEST_F(AccessTest, EncryptedWeightsCarryNoChecksum) {
  Start(SecureOptions());
  AddTwoWorkers(TinyLayout(),
                {CredentialsOf("worker/0"), CredentialsOf("worker/1")});
  for (size_t i = 0; i < 2; ++i) {
    exchanges_.push_back(workers_[i]->OpenExchange());
    workers_[i]->Push(exchanges_[i], assignments_[i], {1, 2, 3, 4});
  }
  const auto weights = exchanges_[0].Read();
  ASSERT_TRUE(weights.has_value() && weights->has_weights());
  EXPECT_EQ(FloatsOf(weights->payload()), (std::vector<float>{9, 8, 7, 6}));
  EXPECT_FALSE(weights->weights().has_xxh3());
  EXPECT_TRUE(weights->has_message_xxh3());
  v1::ExchangeRequest damaged =
      workers_[1]->Gradient(assignments_[1], {1, 2, 3, 4});
  damaged.mutable_gradient()->set_xxh3(7);
  exchanges_[1].Write(damaged);
  EXPECT_EQ(exchanges_[1].End().error_code(), grpc::DATA_LOSS);
}

TEST_F(AccessTest, TheRecordTellsADrainFromAnEviction) {
  Start(SecureOptions());
  const auto admin = v1::Admin::NewStub(
      MakeChannel(server_->address(), ChannelPurpose::kControl,
                  SecurityOf(authority_.Issue("operator"))));
  v1::EvictRequest request;
  request.set_after_step(true);
  v1::EvictReply reply;
  grpc::ClientContext context;
  // There is no worker; that is recorded, too.
  admin->Evict(&context, request, &reply);
  const auto intent = nlohmann::json::parse(Audited().at(0));
  EXPECT_EQ(intent["verb"], "DrainWorker");
  EXPECT_EQ(intent["run"], server_->run_id());
}

TEST_F(AccessTest, TheStatusSaysWhoAsksAndWhenTheCertificateEnds) {
  Start(SecureOptions());
  const auto admin = v1::Admin::NewStub(
      MakeChannel(server_->address(), ChannelPurpose::kControl,
                  SecurityOf(authority_.Issue("viewer"))));
  v1::Status status;
  grpc::ClientContext context;
  ASSERT_TRUE(admin->GetStatus(&context, {}, &status).ok());
  EXPECT_EQ(status.caller(), "spiffe://example.org/cohort/demo/viewer");
  EXPECT_NEAR(
      static_cast<double>(status.certificate_end_unix_s()),
      static_cast<double>(absl::ToUnixSeconds(absl::Now() + absl::Hours(24))),
      600);
}

TEST_F(AccessTest, OneIdentityCannotTakeAllPlaces) {
  Start(SecureOptions());
  const auto viewer =
      v1::Admin::NewStub(ChannelOf(Unchecked(authority_.Issue("viewer"))));
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::Status>>> watches;
  v1::WatchStatusRequest request;
  request.set_interval_ms(1000);
  grpc::Status refused;
  for (int i = 0; i < kOpenCallsEachMax + 1; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    SetDeadline(*contexts.back());
    watches.push_back(viewer->WatchStatus(contexts.back().get(), request));
    v1::Status status;
    if (!watches.back()->Read(&status)) refused = watches.back()->Finish();
  }
  EXPECT_THAT(refused, EndedWith(grpc::RESOURCE_EXHAUSTED, "want at most 64"));
  // Others are served, and so is this one once its calls have ended.
  const auto other = ChannelOf(Unchecked(authority_.Issue("operator")));
  EXPECT_TRUE(Call(other, "/cohort.v1.Admin/GetStatus").error_code() !=
              grpc::RESOURCE_EXHAUSTED);
  for (auto& context : contexts) context->TryCancel();
  watches.clear();
  for (;;) {
    TimedContext context;
    v1::Status status;
    const grpc::Status again = viewer->GetStatus(&context, {}, &status);
    if (again.ok()) break;
    ASSERT_EQ(again.error_code(), grpc::RESOURCE_EXHAUSTED);
  }
}

TEST_F(AccessTest, ChangesAreRecordedWithTheirAuthor) {
  Start(SecureOptions());
  const auto channel = MakeChannel(server_->address(), ChannelPurpose::kControl,
                                   SecurityOf(authority_.Issue("operator")));
  const auto admin = v1::Admin::NewStub(channel);
  v1::SetPolicyRequest request;
  (*request.mutable_settings())["learning_rate"] = "0.25";
  request.set_author("ana");
  v1::SetPolicyReply reply;
  grpc::ClientContext set;
  ASSERT_TRUE(admin->SetPolicy(&set, request, &reply).ok());
  v1::GetPolicyReply policy;
  grpc::ClientContext get;
  ASSERT_TRUE(admin->GetPolicy(&get, {}, &policy).ok());
  const std::string author = policy.history(policy.history_size() - 1).author();
  EXPECT_EQ(author, "ana (spiffe://example.org/cohort/demo/operator)");
  const auto before = nlohmann::json::parse(Audited().at(0));
  EXPECT_EQ(before["verb"], "SetPolicy");
  EXPECT_EQ(before["client"], "spiffe://example.org/cohort/demo/operator");
  EXPECT_EQ(before["arguments"]["settings"]["learning_rate"], "0.25");
  const auto after = nlohmann::json::parse(Audited().at(1));
  EXPECT_EQ(after["id"], before["id"]);
  EXPECT_EQ(after["code"], "OK");
}

TEST_F(AccessTest, RightsHoldOnAPortOfAdminsOwn) {
  ServerOptions options = SecureOptions();
  options.admin_listen = "127.0.0.1:0";
  Start(options);
  const std::vector<std::string> words = absl::StrSplit(out_.str(), '\n');
  std::string admin;
  for (absl::string_view line : words) {
    if (absl::ConsumePrefix(&line, "cohortctl is served at ")) {
      admin = std::string(line);
    }
  }
  const auto status_at = [this](const std::string& address,
                                const std::string& role) {
    const auto stub = v1::Admin::NewStub(MakeChannel(
        address, ChannelPurpose::kControl, SecurityOf(authority_.Issue(role))));
    TimedContext context;
    v1::Status status;
    return stub->GetStatus(&context, {}, &status).error_code();
  };
  EXPECT_EQ(status_at(admin, "viewer"), grpc::OK);
  EXPECT_EQ(status_at(admin, "worker/0"), grpc::PERMISSION_DENIED);
  EXPECT_EQ(status_at(server_->address(), "viewer"), grpc::UNIMPLEMENTED);
  // The gate comes first.
  EXPECT_EQ(status_at(server_->address(), "worker/0"), grpc::PERMISSION_DENIED);
}

TEST_F(AccessTest, ClientsCheckTheServersIdentity) {
  ServerOptions options = SecureOptions();
  options.coordinator.run_name = "other";
  options.security.tls = authority_.Issue("server/0", "other");
  Start(options);
  HandWorker worker(server_->address(), CredentialsOf("worker/0"));
  EXPECT_THAT(worker.Join(0),
              EndedWith(grpc::UNAVAILABLE,
                        "want spiffe://example.org/cohort/demo/server/0"));
}

// There is no host name that could be compared, and none is needed.
TEST_F(AccessTest, CertificatesWorkOverUnixSocketsToo) {
  ServerOptions options = SecureOptions();
  options.listen = absl::StrCat("unix:", authority_.File("socket"));
  Start(options);
  HandWorker worker(server_->address(), CredentialsOf("worker/0"));
  const grpc::Status joined = worker.Join(0);
  EXPECT_TRUE(joined.ok()) << joined.error_message();
  HandWorker other(server_->address(), CredentialsOf("worker/0", "other"));
  EXPECT_THAT(other.Join(0).error_message(),
              HasSubstr("want spiffe://example.org/cohort/other/server/0"));
  HandWorker plain(server_->address());
  EXPECT_EQ(plain.Join(1).error_code(), grpc::UNAVAILABLE);
}

TEST_F(AccessTest, AServerNeedsAServersCertificate) {
  ServerOptions options = SecureOptions();
  options.security.tls = authority_.Issue("operator");
  EXPECT_THAT(StartServer(options, out_),
              IsError(kInvalidArgument, "want that of a server"));
  options = SecureOptions();
  options.coordinator.run_name = "another";
  EXPECT_THAT(StartServer(options, out_),
              IsError(kFailedPrecondition, "for the run demo"));
  options = TinyOptions();
  options.security.viewer_tokens = "tokens";
  EXPECT_THAT(std::string(StartServer(options, out_).status().message()),
              HasSubstr("--viewer_tokens"));
}

TEST_F(AccessTest, TheRunHasTheNameOfTheCertificate) {
  ServerOptions options = SecureOptions();
  options.coordinator.run_name = "";
  Start(options);
  HandWorker worker(server_->address(), CredentialsOf("worker/0"));
  ASSERT_TRUE(worker.Join(0).ok());
  EXPECT_EQ(worker.joined().run_name(), "demo");
}

}  // namespace
}  // namespace cohort
