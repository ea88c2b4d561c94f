#include "server/main/data_server.h"

#include <grpcpp/impl/service_type.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/byte_rope.h"
#include "common/formats/file_system.h"
#include "common/log/log.h"
#include "common/status_macros.h"
#include "server/rpc/call_interceptor.h"
#include "server/rpc/data_streams.h"

namespace cohort {
namespace {

constexpr absl::Duration kGraceOfCalls = absl::Seconds(2);
constexpr absl::Duration kStreamCheck = absl::Seconds(1);
constexpr int kPublicMode = 0644;

}  // namespace

absl::StatusOr<std::unique_ptr<DataServer>> DataServer::Start(
    const ServerOptions& options, std::ostream& out) {
  COHORT_RETURN_IF_ERROR(Validate(options));
  COHORT_ASSIGN_OR_RETURN(std::unique_ptr<ServerSecurity> security,
                          ServerSecurity::Open(options.security));
  std::unique_ptr<DataServer> server(
      new DataServer(options, std::move(security)));
  COHORT_RETURN_IF_ERROR(server->Listen());
  out << "data shard: listening on " << server->address()
      << ", waiting for shard 0 of a run" << std::endl;
  if (!options.address_file.empty()) {
    const std::string line = absl::StrCat(server->address(), "\n");
    COHORT_RETURN_IF_ERROR(
        WriteFileAtomically(RealFileSystem(), options.address_file, kPublicMode,
                            {ByteRope::CopyText(line)}));
  }
  return server;
}

DataServer::DataServer(const ServerOptions& options,
                       std::unique_ptr<ServerSecurity> security)
    : options_(options),
      metrics_(ServedMethods()),
      security_(std::move(security)),
      host_({.fold_threads = options.fold_threads,
             .on_end = [this] { OnEnd(); },
             .on_event =
                 [](const std::string& text) { Log(LogLevel::kInfo, text); }},
            clock_) {}

DataServer::~DataServer() { Stop(); }

absl::Status DataServer::Listen() {
  Transport::Services services;
  services.push_back(MakeDataShardsService(host_));
  services.push_back(MakeDataParametersService(host_));
  absl::StatusOr<std::unique_ptr<Transport>> transport = Transport::Start(
      {.listen = options_.listen,
       .workers = options_.coordinator.workers,
       .inflight_bytes_max = options_.inflight_bytes_max,
       .security = security_->security(),
       .access = security_->access(),
       .connections_per_address = options_.connections_per_address},
      std::move(services), metrics_, clock_);
  if (!transport.ok()) return transport.status();
  transport_ = *std::move(transport);
  address_ = transport_->address().ToString();
  security_->Watch(nullptr);
  ticker_ = std::make_unique<PeriodicTask>("streams", kStreamCheck,
                                           [this] { host_.CheckStreams(); });
  return absl::OkStatus();
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

// An engine stops all processes of a run at once. Shard 0 then writes a
// checkpoint, with this shard's part, before it disconnects.
void DataServer::StayForShard0() {
  // Less than what engines leave a process to stop in: 30 s.
  constexpr absl::Duration kStayMax = absl::Seconds(20);
  constexpr absl::Duration kPoll = absl::Milliseconds(50);
  if (!host_.attached()) return;
  Log(LogLevel::kInfo,
      "stopping once shard 0 has disconnected, or in 20 s; a second signal "
      "stops at once");
  const Instant deadline = clock_.Now() + kStayMax;
  while (host_.attached() && clock_.Now() < deadline) {
    MutexLock lock(mu_);
    if (ended_) return;
    changed_.WaitFor(mu_, kPoll);
  }
}

void DataServer::Stop() {
  ticker_.reset();
  host_.Stop();
  if (transport_ != nullptr) transport_->Shutdown(kGraceOfCalls);
  transport_.reset();
  security_->StopWatching();
}

}  // namespace cohort
