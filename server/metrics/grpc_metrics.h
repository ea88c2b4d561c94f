#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"

namespace cohort {

// One method of a gRPC service, labelled as the usual dashboards expect.
struct GrpcMethod {
  // "unary", "client_stream", "server_stream" or "bidi_stream".
  std::string type;
  std::string service;
  std::string method;
};

// Rate, errors and duration of calls, under the names of go-grpc-prometheus.
// Counters only, so that a call costs a few atomic additions.
//
// Thread safety: safe, without locks.
class GrpcMetrics final : public prometheus::Collectable {
 public:
  // Calls of one method.
  class Calls {
   public:
    void Started() { Increment(started_); }
    void Received() { Increment(received_); }
    void Sent() { Increment(sent_); }
    // `code` is a gRPC code; an unknown one counts as Unknown.
    void Handled(int code, absl::Duration took);

   private:
    friend class GrpcMetrics;

    // Bounds of the durations, seconds; one more bucket is beyond the last.
    static constexpr std::array<double, 11> kBounds = {
        0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60, 300};
    static constexpr size_t kCodes = 17;
    using Counter = std::atomic<int64_t>;

    // Relaxed: no other data is published through the count.
    static void Increment(Counter& counter) {
      counter.fetch_add(1, std::memory_order_relaxed);
    }

    GrpcMethod method_;
    Counter started_ = 0;
    Counter received_ = 0;
    Counter sent_ = 0;
    std::array<Counter, kCodes> handled_ = {};
    std::array<Counter, kBounds.size() + 1> durations_ = {};
    Counter duration_us_ = 0;
  };

  // All other methods are counted together, under the name "unknown".
  explicit GrpcMetrics(const std::vector<GrpcMethod>& methods);

  // `path` as on the wire: "/package.Service/Method". The result lives as long
  // as this object.
  Calls& Of(absl::string_view path);

  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  // Fixed after construction; the last is for unknown methods.
  std::vector<std::unique_ptr<Calls>> calls_;
  std::vector<std::string> paths_;
};

}  // namespace cohort
