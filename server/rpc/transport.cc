#include "server/rpc/transport.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/resource_quota.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/cli/file_limit.h"
#include "common/ops/process_collector.h"
#include "common/status_macros.h"
#include "common/wire/channel.h"
#include "common/wire/security.h"
#include "server/rpc/call_gate.h"
#include "server/rpc/call_interceptor.h"

namespace cohort {
namespace {

// Reserves descriptors for files and operations connections, which must remain
// possible when all other connections are taken.
int64_t ConnectionFilesMax() {
  constexpr int64_t kKeptBack = 512;
  const int64_t limit = FileLimit();
  return limit - std::min(kKeptBack, limit / 2);
}

// Limit on the bytes that gRPC may hold in total, including received gradients.
// gRPC itself does not limit unfinished messages: an announced message is
// buffered as a whole before its length is checked. Above the quota gRPC ends
// calls, so the quota is above what an honest run needs.
size_t TransportBytesMax(const TransportOptions& options) {
  constexpr int64_t kMib = 1 << 20;
  // Room for its streams' look-ahead and its unread answers.
  constexpr int64_t kPerWorker = 128 * kMib;
  constexpr int64_t kOthers = 256 * kMib;
  const int64_t in_flight = options.inflight_bytes_max;
  const int64_t wanted =
      in_flight + in_flight / 4 + options.workers * kPerWorker + kOthers;
  const int64_t memory = MemoryLimitBytes();
  return static_cast<size_t>(
      memory <= 0 ? wanted : std::min(wanted, memory - memory / 8));
}

// A machine may run all workers, each with three connections.
int32_t ConnectionsPerAddress(const TransportOptions& options) {
  if (options.connections_per_address > 0) {
    return options.connections_per_address;
  }
  return 4 * options.workers + 64;
}

class Unserved final : public grpc::CallbackGenericService {
 public:
  explicit Unserved(std::function<std::string(absl::string_view)> text)
      : text_(std::move(text)) {}

  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override {
    class Refusal final : public grpc::ServerGenericBidiReactor {
     public:
      explicit Refusal(const std::string& text) {
        Finish(grpc::Status(grpc::StatusCode::UNIMPLEMENTED, text));
      }
      void OnDone() override { delete this; }
    };
    return new Refusal(text_(context->method()));
  }

 private:
  const std::function<std::string(absl::string_view)> text_;
};

std::shared_ptr<grpc::ServerCredentials> CredentialsOf(
    const TransportOptions& options, const OpenCalls& calls) {
  if (options.security == nullptr || !options.security->encrypted()) {
    return grpc::InsecureServerCredentials();
  }
  // Clients with a token have no certificate.
  auto credentials = options.security->ForServer(
      /*require_certificate=*/!options.access->takes_tokens());
  credentials->SetAuthMetadataProcessor(MakeCallGate(*options.access, calls));
  return credentials;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> Transport::Start(
    const TransportOptions& options, Services services, CallCounts& counts) {
  std::unique_ptr<Transport> transport(new Transport);
  COHORT_ASSIGN_OR_RETURN(transport->address_,
                          ParseListenAddress(options.flag, options.listen));
  transport->services_ = std::move(services);
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  ApplyServerSettings(
      builder, LookaheadBytes(options.inflight_bytes_max, options.workers),
      ReadChunkFor(options.workers));
  grpc::ResourceQuota quota("cohort-server");
  builder.SetResourceQuota(quota.Resize(TransportBytesMax(options)));
  // It must exist before the server starts.
  auto acceptor = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      CredentialsOf(options, counts.open));
  for (const auto& service : transport->services_) {
    builder.RegisterService(service.get());
  }
  if (options.unserved != nullptr) {
    transport->unserved_ = std::make_unique<Unserved>(options.unserved);
    builder.RegisterCallbackGenericService(transport->unserved_.get());
  }
  std::vector<
      std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>>
      interceptors;
  interceptors.push_back(MakeCallCounter(counts));
  builder.experimental().SetInterceptorCreators(std::move(interceptors));
  absl::StatusOr<ListenSocket> socket =
      ListenSocket::Open(options.flag, transport->address_);
  transport->server_ = socket.ok() ? builder.BuildAndStart() : nullptr;
  if (transport->server_ == nullptr) {
    if (transport->address_.is_unix() && !socket.ok()) return socket.status();
    return absl::UnavailableError(absl::StrCat(
        options.flag, ": cannot listen on ", options.listen,
        ": another process uses the port, or the address does not belong to "
        "this machine; stop that process or choose another port"));
  }
  const int64_t files_max = options.connections_max > 0
                                ? options.connections_max
                                : ConnectionFilesMax();
  transport->accept_ =
      std::make_unique<AcceptLoop>(*std::move(socket), std::move(acceptor),
                                   files_max, ConnectionsPerAddress(options));
  return transport;
}

Transport::~Transport() = default;

void Transport::Shutdown(absl::Duration grace) {
  accept_.reset();
  server_->Shutdown(absl::ToChronoTime(absl::Now() + grace));
}

}  // namespace cohort
