#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/clock.h"
#include "server/access/open_calls.h"
#include "server/metrics/grpc_metrics.h"

namespace grpc {
class CallbackServerContext;
class ServerContextBase;
}  // namespace grpc

namespace cohort {

// The counts of a server's calls.
// Thread safety: safe.
struct CallCounts {
  // `clock` must outlive it.
  CallCounts(const std::vector<GrpcMethod>& methods, const Clock& clock)
      : metrics(methods), clock(clock) {}

  GrpcMetrics metrics;
  // Calls of encrypted connections, by client.
  OpenCalls open{kOpenCallsEachMax};
  const Clock& clock;
};

// One call, from its start until it is destroyed. `counts` must outlive it.
class CountedCall {
 public:
  // `method` as on the wire: "/package.Service/Method".
  CountedCall(CallCounts& counts, absl::string_view method,
              const grpc::ServerContextBase& context);
  ~CountedCall();

  CountedCall(const CountedCall&) = delete;
  CountedCall& operator=(const CountedCall&) = delete;

  void Received() { calls_.Received(); }
  void Sent() { calls_.Sent(); }
  // `code` is that of gRPC.
  void Ended(int code) { calls_.Handled(code, counts_.clock.Now() - begin_); }

 private:
  CallCounts& counts_;
  GrpcMetrics::Calls& calls_;
  const Instant begin_;
  // Empty without encryption.
  const std::string client_;
};

// A streaming call that counts itself.
struct StreamCall {
  grpc::CallbackServerContext* context = nullptr;
  // As CountedCall's.
  absl::string_view method;
  CallCounts& counts;
};

}  // namespace cohort
