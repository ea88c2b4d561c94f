#include "server/main/data_server.h"

#include <grpcpp/impl/service_type.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/log/log.h"
#include "common/ops/process_collector.h"
#include "common/status_macros.h"
#include "server/main/start_files.h"
#include "server/metrics/data_shard_metrics.h"
#include "server/rpc/call_interceptor.h"
#include "server/rpc/services.h"

namespace cohort {
namespace {

constexpr absl::Duration kStreamCheck = absl::Seconds(1);

}  // namespace

absl::StatusOr<std::unique_ptr<DataServer>> DataServer::Start(
    const ServerOptions& options, std::ostream& out) {
  COHORT_RETURN_IF_ERROR(Validate(options));
  COHORT_ASSIGN_OR_RETURN(std::unique_ptr<ServerSecurity> security,
                          ServerSecurity::Open(options.security));
  COHORT_ASSIGN_OR_RETURN(std::shared_ptr<TraceFile> trace,
                          OpenTrace(options.trace, "shard"));
  std::unique_ptr<DataServer> server(
      new DataServer(options, std::move(security), std::move(trace)));
  COHORT_RETURN_IF_ERROR(server->Listen());
  COHORT_RETURN_IF_ERROR(server->operations_.Start(
      server->address_,
      {.calls = server->calls_.metrics, .metrics = [&host = server->host_] {
         DataShardFigures figures = host.figures();
         figures.memory_limit_bytes = MemoryLimitBytes();
         return DataShardFamilies(figures);
       }}));
  // Shard 0 can connect. Whether it has is a metric: if it were a condition,
  // a cluster that sends nothing to processes that are not ready would never
  // let it.
  server->operations_.SetReady(absl::OkStatus());
  out << "data shard: listening on " << server->address()
      << ", waiting for shard 0 of a run" << std::endl;
  if (const std::string url = server->operations_.url(); !url.empty()) {
    out << "metrics: " << url << "metrics" << std::endl;
  }
  COHORT_RETURN_IF_ERROR(
      WriteAddressFile(options.ops_address_file, server->ops_address()));
  COHORT_RETURN_IF_ERROR(
      WriteAddressFile(options.address_file, server->address()));
  return server;
}

DataServer::DataServer(const ServerOptions& options,
                       std::unique_ptr<ServerSecurity> security,
                       std::shared_ptr<TraceFile> trace)
    : options_(options),
      calls_(DataShardMethods(), clock_),
      security_(std::move(security)),
      trace_(std::move(trace)),
      host_({.fold_threads = options.fold_threads,
             .on_end = [this] { OnEnd(); },
             .on_event =
                 [](const std::string& text) { Log(LogLevel::kInfo, text); },
             .on_attach =
                 [this](const ShardAttachment& attachment) {
                   OnBegin();
                   Log(LogLevel::kInfo,
                       absl::StrCat("shard 0 of run ", attachment.run_name,
                                    " has connected: this is shard ",
                                    attachment.place.index, " of ",
                                    attachment.place.count));
                   if (trace_ == nullptr) return;
                   trace_->SetIdentity(attachment.run_id,
                                       attachment.place.index);
                 },
             .timeline = trace_.get()},
            clock_),
      doors_(options_, *security_, calls_),
      operations_(options_, *security_) {}

DataServer::~DataServer() { Stop(); }

absl::Status DataServer::Listen() {
  Transport::Services services;
  services.push_back(MakeDataShardsService(host_, calls_));
  services.push_back(MakeDataParametersService(host_, calls_));
  COHORT_RETURN_IF_ERROR(doors_.Listen(
      std::move(services), options_.inflight_bytes_max, [](absl::string_view) {
        return "this is a data shard (cohort-server --data_shard); workers and "
               "cohortctl use the address of the server that coordinates the "
               "run";
      }));
  address_ = doors_.address().ToString();
  ticker_ = std::make_unique<PeriodicTask>("streams", kStreamCheck,
                                           [this] { host_.CheckStreams(); });
  return absl::OkStatus();
}

void DataServer::OnBegin() {
  MutexLock lock(mu_);
  ended_ = false;
  // A run needs it, and steps are shard 0's to count.
  progress_.Made();
}

void DataServer::OnEnd() {
  MutexLock lock(mu_);
  ended_ = true;
  changed_.NotifyAll();
}

void DataServer::RequestStop() {
  MutexLock lock(mu_);
  stop_requested_ = true;
  changed_.NotifyAll();
}

bool DataServer::Wait() {
  bool ended = false;
  {
    MutexLock lock(mu_);
    // Without --exit_when_done it waits for the next run.
    while (!stop_requested_ && !(ended_ && options_.exit_when_done)) {
      changed_.Wait(mu_);
    }
    ended = ended_;
  }
  if (!ended) StayForShard0();
  Stop();
  MutexLock lock(mu_);
  return ended_;
}

// Shard 0 writes a checkpoint, with this shard's part, before it disconnects,
// also if an engine stops all processes of a run at once.
void DataServer::StayForShard0() {
  // Less than what engines leave a process to stop in: 30 s.
  constexpr absl::Duration kStayMax = absl::Seconds(20);
  constexpr absl::Duration kPoll = absl::Milliseconds(50);
  host_.Leave();
  if (!host_.figures().connected) return;
  Log(LogLevel::kInfo,
      "stopping once shard 0 has written a checkpoint and disconnected, or in "
      "20 s; a second signal stops at once");
  const Instant deadline = clock_.Now() + kStayMax;
  while (host_.figures().connected && clock_.Now() < deadline) {
    MutexLock lock(mu_);
    if (ended_) return;
    changed_.WaitFor(mu_, kPoll);
  }
}

void DataServer::Stop() {
  operations_.SetReady(absl::UnavailableError("the data shard is stopping"));
  ticker_.reset();
  operations_.StopProbe();
  host_.CloseStreams(absl::UnavailableError("the data shard is stopping"));
  host_.Stop();
  doors_.Shutdown();
  operations_.Close();
  if (trace_ != nullptr && !trace_->status().ok()) {
    Log(LogLevel::kError, trace_->status().message());
  }
}

}  // namespace cohort
