#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/ops/metrics_page.h"
#include "prometheus/counter.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"

namespace cohort {

// One method of a gRPC service, labelled as the usual dashboards expect.
struct GrpcMethod {
  // "unary", "client_stream", "server_stream" or "bidi_stream".
  std::string type;
  std::string service;
  std::string method;
};

// Rate, errors and duration of calls, under the names of go-grpc-prometheus.
// Thread safety: safe; a call costs a few atomic additions.
class GrpcMetrics {
 public:
  // Calls of one method.
  class Calls {
   public:
    void Started() { started_->Increment(); }
    void Received() { received_->Increment(); }
    void Sent() { sent_->Increment(); }
    // `code` is a gRPC code; an unknown one counts as Unknown.
    void Handled(int code, absl::Duration took);

   private:
    friend class GrpcMetrics;
    static constexpr size_t kCodes = 17;

    // Owned by the registry.
    prometheus::Counter* started_ = nullptr;
    prometheus::Counter* received_ = nullptr;
    prometheus::Counter* sent_ = nullptr;
    std::array<prometheus::Counter*, kCodes> handled_ = {};
    prometheus::Histogram* seconds_ = nullptr;
  };

  // All other methods are counted together, under the name "unknown".
  explicit GrpcMetrics(const std::vector<GrpcMethod>& methods);

  // `path` as on the wire: "/package.Service/Method". The result lives as long
  // as this object.
  Calls& Of(absl::string_view path);

  MetricFamilies Collect() const { return registry_.Collect(); }

 private:
  prometheus::Registry registry_;
  // By path, fixed after construction; unknown methods have none.
  std::map<std::string, Calls, std::less<>> calls_;
};

}  // namespace cohort
