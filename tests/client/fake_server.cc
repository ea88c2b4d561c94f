#include "tests/client/fake_server.h"

#include <gtest/gtest.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/wire/channel.h"
#include "common/wire/convert.h"
#include "common/wire/status.h"
#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

grpc::Status Unexpected(const char* method) {
  return grpc::Status(grpc::UNIMPLEMENTED,
                      absl::StrCat("no test hook for ", method));
}

template <typename Reply, typename Request>
using Stream = grpc::ServerReaderWriter<Reply, Request>;

}  // namespace

// The generated services, forwarding to the hooks.
struct FakeServer::Services {
  struct Membership final : v1::Membership::Service {
    explicit Membership(FakeServer& fake) : fake(fake) {}
    grpc::Status Session(
        grpc::ServerContext*,
        Stream<v1::SessionReply, v1::SessionRequest>* stream) override {
      SessionIo io{*stream};
      return fake.Session(io);
    }
    grpc::Status Report(grpc::ServerContext*, const v1::ReportRequest* request,
                        v1::ReportReply* reply) override {
      if (!fake.on_report) return Unexpected("Report");
      const absl::StatusOr<Assignment> next = fake.on_report(*request);
      if (next.ok()) ToProto(*next, reply->mutable_next());
      AddMessageChecksum(reply);
      return ToGrpcStatus(next.status());
    }
    FakeServer& fake;
  };

  struct Parameters final : v1::Parameters::Service {
    explicit Parameters(FakeServer& fake) : fake(fake) {}
    grpc::Status Register(
        grpc::ServerContext* context,
        Stream<v1::RegisterReply, v1::RegisterRequest>* stream) override {
      RegisterIo io{*stream};
      {
        MutexLock lock(fake.mu_);
        fake.register_peers_.push_back(context->peer());
      }
      return fake.on_register ? fake.on_register(io) : Unexpected("Register");
    }
    grpc::Status Exchange(
        grpc::ServerContext*,
        Stream<v1::ExchangeReply, v1::ExchangeRequest>* stream) override {
      ExchangeIo io{*stream};
      return fake.on_exchange ? fake.on_exchange(io) : Unexpected("Exchange");
    }
    grpc::Status Pull(grpc::ServerContext*, const v1::PullRequest* request,
                      grpc::ServerWriter<v1::PullReply>* stream) override {
      PullIo io{*stream};
      return fake.on_pull ? fake.on_pull(*request, io) : Unexpected("Pull");
    }
    FakeServer& fake;
  };

  struct Moments final : v1::Moments::Service {
    explicit Moments(FakeServer& fake) : fake(fake) {}
    grpc::Status Reduce(
        grpc::ServerContext*,
        Stream<v1::ReduceReply, v1::ReduceRequest>* stream) override {
      ReduceIo io{*stream};
      return fake.on_reduce ? fake.on_reduce(io) : Unexpected("Reduce");
    }
    FakeServer& fake;
  };

  explicit Services(FakeServer& fake)
      : membership(fake), parameters(fake), moments(fake) {}

  Membership membership;
  Parameters parameters;
  Moments moments;
};

FakeServer::FakeServer() : services_(std::make_unique<Services>(*this)) {
  on_join = [this](const v1::Join& join) { return Admit(join); };
  grpc::ServerBuilder builder;
  ApplyServerSettings(builder);
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                           &port);
  builder.RegisterService(&services_->membership);
  builder.RegisterService(&services_->parameters);
  builder.RegisterService(&services_->moments);
  server_ = builder.BuildAndStart();
  address_ = absl::StrCat("127.0.0.1:", port);
}

FakeServer::~FakeServer() { Shutdown(); }

void FakeServer::Shutdown() {
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
}

ClientOptions FakeServer::Options() const {
  ClientOptions options;
  options.server = address_;
  options.rank = Rank(2);
  options.batch_size = 8;
  options.server_timeout = absl::Seconds(30);
  return options;
}

v1::JoinReply FakeServer::Admit(const v1::Join& join) {
  v1::JoinReply reply;
  reply.set_rank(join.has_rank() ? join.rank() : 2);
  reply.set_run_id("run-1");
  reply.set_seed(99);
  reply.set_version(10);
  reply.set_workers(4);
  reply.set_policy("sync");
  // Short, because EndSession waits for the next heartbeat.
  reply.set_heartbeat_interval_ms(2);
  MutexLock lock(mu_);
  reply.set_incarnation(join.incarnation() > 0 ? join.incarnation()
                                               : ++incarnations_);
  return reply;
}

grpc::Status FakeServer::Session(SessionIo& io) {
  v1::SessionRequest request;
  if (!io.Read(&request)) return grpc::Status::OK;
  int session = 0;
  {
    MutexLock lock(mu_);
    received_.push_back(request);
    session = ++sessions_;
  }
  absl::StatusOr<v1::JoinReply> admitted = on_join(request.join());
  if (!admitted.ok()) return ToGrpcStatus(admitted.status());
  v1::SessionReply reply;
  *reply.mutable_joined() = *std::move(admitted);
  {
    // As soon as this is sent, the client may continue and the test may call
    // Tell.
    MutexLock lock(mu_);
    open_ = &io;
    end_.reset();
    io.Write(reply);
  }
  if (on_open) on_open(session);
  absl::Status end;
  while (io.Read(&request)) {
    MutexLock lock(mu_);
    received_.push_back(request);
    changed_.NotifyAll();
    const int64_t sent = request.heartbeat().sent_unix_us();
    if (sent != 0 && echo_ahead.has_value()) {
      v1::SessionReply echo;
      echo.mutable_heartbeat_echo()->set_sent_unix_us(sent);
      echo.mutable_heartbeat_echo()->set_server_unix_us(
          absl::ToUnixMicros(absl::Now() + *echo_ahead));
      io.Write(echo);
    }
    if (end_.has_value()) {
      end = *end_;
      break;
    }
  }
  MutexLock lock(mu_);
  // The client may have opened its next session already.
  if (open_ == &io) open_ = nullptr;
  return ToGrpcStatus(end);
}

void FakeServer::Tell(const Assignment& assignment) {
  v1::SessionReply reply;
  ToProto(assignment, reply.mutable_assignment());
  MutexLock lock(mu_);
  ASSERT_NE(open_, nullptr);
  open_->Write(reply);
}

void FakeServer::TellAborted(int64_t step, int32_t attempt) {
  v1::SessionReply reply;
  reply.mutable_step_aborted()->set_step(step);
  reply.mutable_step_aborted()->set_attempt(attempt);
  reply.mutable_step_aborted()->set_reason("rank 3 was lost");
  MutexLock lock(mu_);
  ASSERT_NE(open_, nullptr);
  open_->Write(reply);
}

void FakeServer::EndSession(const absl::Status& status) {
  MutexLock lock(mu_);
  end_ = status;
}

std::vector<v1::SessionRequest> FakeServer::received() {
  MutexLock lock(mu_);
  return received_;
}

std::vector<v1::Join> FakeServer::joins() {
  std::vector<v1::Join> joins;
  for (const v1::SessionRequest& request : received()) {
    if (request.has_join()) joins.push_back(request.join());
  }
  return joins;
}

void FakeServer::AwaitReceived(
    const std::function<bool(const v1::SessionRequest&)>& matches) {
  MutexLock lock(mu_);
  for (size_t seen = 0;;) {
    for (; seen < received_.size(); ++seen) {
      if (matches(received_[seen])) return;
    }
    changed_.Wait(mu_);
  }
}

std::unique_ptr<Client> JoinedClient(const ClientOptions& options) {
  absl::StatusOr<std::unique_ptr<Client>> client = MakeGrpcClient(options);
  EXPECT_TRUE(client.ok()) << client.status();
  const absl::StatusOr<Membership> membership = (*client)->Join();
  EXPECT_TRUE(membership.ok()) << membership.status();
  return *std::move(client);
}

ModelLayout TestLayout() {
  ModelLayout layout;
  layout.parameters = {{.name = "a", .shape = {2}},
                       {.name = "frozen", .shape = {1}, .trainable = false},
                       {.name = "b", .shape = {2}}};
  layout.batch_norms = {{.name = "bn", .channels = 2}};
  return layout;
}

std::vector<Partition> TestPartitions() {
  return MakePartitions(TestLayout(), 2 * sizeof(float));
}

grpc::Status RegisterWithoutValues(FakeServer::RegisterIo& io) {
  v1::RegisterRequest request;
  if (!io.Read(&request)) return grpc::Status::OK;
  v1::RegisterReply reply;
  ToProto(TestPartitions(), reply.mutable_partitions());
  reply.set_loss_reference(8);
  reply.set_done(true);
  io.Write(reply);
  return grpc::Status::OK;
}

absl::StatusOr<Registration> TryRegister(
    Client& client, const std::vector<LayerStatistics>& statistics) {
  const std::vector<float> a = {1, 2};
  const std::vector<float> frozen = {3};
  const std::vector<float> b = {4, 5};
  const std::vector<absl::Span<const float>> values = {a, frozen, b};
  return client.Register(TestLayout(), {.dataset = "test", .train_samples = 60},
                         values, statistics);
}

void RegisterTestModel(Client& client) {
  ExpectOk(TryRegister(client).status());
}

v1::PullReply HeaderReply(int64_t version) {
  v1::PullReply reply;
  reply.mutable_header()->set_version(version);
  ToProto(TestLayout(), reply.mutable_header()->mutable_layout());
  ToProto(TestPartitions(), reply.mutable_header()->mutable_partitions());
  ToProto(InitialStatistics(TestLayout()),
          reply.mutable_header()->mutable_statistics());
  return reply;
}

v1::PullReply PartitionReply(int32_t partition,
                             const std::vector<float>& values) {
  v1::PullReply reply;
  reply.set_partition(partition);
  reply.set_encoding(v1::ENCODING_FLOAT32);
  reply.set_payload(FloatBytes(values));
  return reply;
}

bool ReadPush(FakeServer::ExchangeIo& io,
              std::vector<v1::ExchangeRequest>* push) {
  v1::ExchangeRequest request;
  while (io.Read(&request)) {
    push->push_back(request);
    if (request.has_closing()) return true;
  }
  return false;
}

grpc::Status Drain(FakeServer::ExchangeIo& io) {
  v1::ExchangeRequest request;
  while (io.Read(&request)) {
  }
  return grpc::Status::OK;
}

Assignment TrainAssignment(int64_t sequence, int32_t attempt, int64_t step) {
  Assignment assignment;
  assignment.kind = AssignmentKind::kTrain;
  assignment.sequence = Sequence(sequence);
  assignment.attempt = Attempt(attempt);
  assignment.version = Version(step);
  assignment.members = {Rank(2)};
  assignment.range = {.begin = 0, .end = 8};
  assignment.global_normalization = true;
  return assignment;
}

std::string FloatBytes(const std::vector<float>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()),
                     values.size() * sizeof(float));
}

}  // namespace cohort
