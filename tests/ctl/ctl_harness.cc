#include "tests/ctl/ctl_harness.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cohort/v1/admin.grpc.pb.h"
#include "common/wire/channel.h"
#include "common/wire/status.h"
#include "server/ctl/ctl.h"

namespace cohort {
namespace {

template <typename Reply>
grpc::Status Answer(const absl::StatusOr<Reply>& answer, Reply* reply) {
  if (answer.ok()) *reply = *answer;
  return ToGrpcStatus(answer.status());
}

class FakeAdminService final : public v1::Admin::Service {
 public:
  explicit FakeAdminService(FakeAdmin& fake) : fake_(fake) {}

  grpc::Status GetStatus(grpc::ServerContext*, const v1::GetStatusRequest*,
                         v1::Status* reply) override {
    absl::StatusOr<v1::Status> status = fake_.on_status();
    const absl::StatusOr<v1::GetPolicyReply> policy = fake_.on_get();
    if (status.ok() && policy.ok()) *status->mutable_policy() = *policy;
    return Answer(status, reply);
  }
  grpc::Status GetPolicy(grpc::ServerContext*, const v1::GetPolicyRequest*,
                         v1::GetPolicyReply* reply) override {
    return Answer(fake_.on_get(), reply);
  }
  grpc::Status SetPolicy(grpc::ServerContext*,
                         const v1::SetPolicyRequest* request,
                         v1::SetPolicyReply* reply) override {
    return Answer(fake_.on_set(*request), reply);
  }
  grpc::Status Evict(grpc::ServerContext*, const v1::EvictRequest* request,
                     v1::EvictReply* reply) override {
    return Answer(fake_.on_evict(*request), reply);
  }
  grpc::Status Drain(grpc::ServerContext*, const v1::DrainRequest* request,
                     v1::DrainReply* reply) override {
    return Answer(fake_.on_drain(*request), reply);
  }
  grpc::Status Checkpoint(grpc::ServerContext*, const v1::CheckpointRequest*,
                          v1::CheckpointReply* reply) override {
    return Answer(fake_.on_checkpoint(), reply);
  }
  grpc::Status CollectStatistics(grpc::ServerContext*,
                                 const v1::CollectStatisticsRequest*,
                                 v1::CollectStatisticsReply* reply) override {
    return Answer(fake_.on_collect(), reply);
  }
  grpc::Status SetLogLevel(grpc::ServerContext*,
                           const v1::SetLogLevelRequest* request,
                           v1::SetLogLevelReply* reply) override {
    return Answer(fake_.on_log_level(*request), reply);
  }
  grpc::Status Export(grpc::ServerContext*, const v1::ExportRequest*,
                      v1::ExportReply* reply) override {
    return Answer(fake_.on_export(), reply);
  }

 private:
  FakeAdmin& fake_;
};

class PausedClock final : public Clock {
 public:
  explicit PausedClock(const absl::Duration& now) : now_(now) {}
  Instant Now() const override { return now_; }

 private:
  const absl::Duration& now_;
};

}  // namespace

struct FakeAdmin::Connection {
  explicit Connection(FakeAdmin& fake)
      : service(std::make_unique<FakeAdminService>(fake)) {}

  std::unique_ptr<grpc::Service> service;
  std::unique_ptr<grpc::Server> server;
};

FakeAdmin::FakeAdmin()
    : status(ExampleStatus()),
      policy(ExamplePolicy()),
      connection_(std::make_unique<Connection>(*this)) {
  on_status = [this] { return status; };
  on_get = [this] { return policy; };
  grpc::ServerBuilder builder;
  ApplyServerSettings(builder);
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                           &port);
  builder.RegisterService(connection_->service.get());
  connection_->server = builder.BuildAndStart();
  address_ = absl::StrCat("127.0.0.1:", port);
}

FakeAdmin::~FakeAdmin() { Shutdown(); }

void FakeAdmin::Shutdown() {
  connection_->server->Shutdown(std::chrono::system_clock::now());
  connection_->server->Wait();
}

CtlResult CtlHarness::RunPlain(const std::string& arguments) {
  std::ostringstream out;
  std::ostringstream err;
  const PausedClock clock(now_);
  CtlIo io{.out = out,
           .err = err,
           .clock = clock,
           .pause =
               [this](absl::Duration pause) {
                 now_ += pause;
                 return now_ < interrupt_at;
               },
           .terminal = terminal,
           .color = color,
           .environment = environment};
  if (!typed.empty()) {
    io.keys = [this](absl::Duration pause, std::string& keys) {
      if (!typed.empty()) {
        keys = typed.front();
        typed.pop_front();
        return true;
      }
      now_ += pause;
      return now_ < interrupt_at;
    };
  }
  const std::vector<std::string> words =
      absl::StrSplit(arguments, ' ', absl::SkipEmpty());
  const int code = RunCtl(words, io);
  return {.code = code, .out = out.str(), .err = err.str()};
}

CtlResult CtlHarness::Run(const std::string& arguments) {
  return RunPlain(absl::StrCat(arguments, " --server=", server.address()));
}

v1::Status ExampleStatus() {
  v1::Status status;
  status.set_run_id("3f2a");
  status.set_state("training, 1 of 2 workers");
  status.set_version(150);
  status.set_data_epoch(1);
  status.set_epochs(4);
  status.set_samples(150);
  status.set_samples_total(400);
  status.set_samples_per_second(10);
  status.set_learning_rate(0.05);
  status.set_train_loss(0.4312);
  status.set_workers_live(1);
  status.set_workers_expected(2);
  v1::WorkerStatus* live = status.add_workers();
  live->set_rank(0);
  live->set_state("live");
  live->set_incarnation(7);
  live->set_description("host-a, process 12");
  live->set_batch_size(64);
  live->set_sequence(151);
  live->set_silent_ms(340);
  live->set_cpu_cores(1.44);
  live->set_resident_bytes(int64_t{2100} << 20);
  live->set_transport("shm");
  (*live->mutable_phase_seconds())["forward"] = 0.25;
  (*live->mutable_phase_seconds())["data"] = 0.5;
  v1::WorkerStatus* vacant = status.add_workers();
  vacant->set_rank(1);
  vacant->set_state("vacant");
  (*status.mutable_counters())["pushes_applied"] = 300;
  return status;
}

v1::Status StatusWithoutShard() {
  v1::Status status = ExampleStatus();
  status.set_server_unix_us(absl::ToUnixMicros(absl::Now()));
  status.set_phase("waiting");
  status.set_state("waiting for data shard 1 at b:7070, gone for 12 s");
  status.add_shards()->set_connected(true);
  v1::ShardStatus& away = *status.add_shards();
  away.set_shard(1);
  away.set_address("b:7070");
  away.set_generation(5);
  // Texts are rounded down to tenths.
  away.set_since_unix_s(static_cast<double>(status.server_unix_us()) / 1e6 -
                        12.05);
  away.set_lost_because("data shard 1 at b:7070: it has said nothing for 3 s");
  return status;
}

v1::GetPolicyReply ExamplePolicy() {
  v1::GetPolicyReply policy;
  policy.set_run_id("3f2a");
  policy.set_policy_epoch(1);
  policy.set_text("sync, global normalisation, sync statistics");
  auto& settings = *policy.mutable_settings();
  settings["aggregation"] = "sync";
  settings["learning_rate"] = "0.1";
  settings["normalization"] = "auto";
  v1::PolicyChange* first = policy.add_history();
  first->set_policy_epoch(1);
  *first->mutable_settings() = settings;
  first->set_text("sync, global normalisation, sync statistics");
  return policy;
}

v1::GetPolicyReply PendingPolicy() {
  v1::GetPolicyReply policy = ExamplePolicy();
  (*policy.mutable_pending())["aggregation"] = "async";
  (*policy.mutable_pending())["normalization"] = "local";
  policy.set_pending_reason("waiting for worker 1, gives up in 90 s");
  return policy;
}

v1::GetPolicyReply ChangedPolicy() {
  v1::GetPolicyReply policy = ExamplePolicy();
  policy.set_policy_epoch(2);
  policy.set_text("async, local normalisation, async statistics");
  (*policy.mutable_settings())["aggregation"] = "async";
  (*policy.mutable_settings())["normalization"] = "local";
  v1::PolicyChange* change = policy.add_history();
  change->set_policy_epoch(2);
  change->set_version(1234);
  change->set_samples(9872);
  (*change->mutable_settings())["aggregation"] = "async";
  (*change->mutable_settings())["normalization"] = "local";
  change->set_text("aggregation sync -> async; momentum is kept");
  policy.set_since_version(1234);
  return policy;
}

}  // namespace cohort
