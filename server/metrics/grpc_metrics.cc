#include "server/metrics/grpc_metrics.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/ops/metrics_page.h"

namespace cohort {
namespace {

using Labels = std::vector<prometheus::ClientMetric::Label>;

// Source: gRPC's status codes 0 to 16, spelt as go-grpc-prometheus does.
constexpr std::array<const char*, 17> kCodeNames = {"OK",
                                                    "Canceled",
                                                    "Unknown",
                                                    "InvalidArgument",
                                                    "DeadlineExceeded",
                                                    "NotFound",
                                                    "AlreadyExists",
                                                    "PermissionDenied",
                                                    "ResourceExhausted",
                                                    "FailedPrecondition",
                                                    "Aborted",
                                                    "OutOfRange",
                                                    "Unimplemented",
                                                    "Internal",
                                                    "Unavailable",
                                                    "DataLoss",
                                                    "Unauthenticated"};
constexpr int kUnknown = 2;

Labels LabelsOf(const GrpcMethod& method) {
  return {{"grpc_type", method.type},
          {"grpc_service", method.service},
          {"grpc_method", method.method}};
}

double Read(const std::atomic<int64_t>& counter) {
  return static_cast<double>(counter.load(std::memory_order_relaxed));
}

}  // namespace

void GrpcMetrics::Calls::Handled(int code, absl::Duration took) {
  const bool known = code >= 0 && code < static_cast<int>(kCodes);
  Increment(handled_[static_cast<size_t>(known ? code : kUnknown)]);
  const double seconds = absl::ToDoubleSeconds(took);
  const auto bucket =
      std::lower_bound(kBounds.begin(), kBounds.end(), seconds) -
      kBounds.begin();
  Increment(durations_[static_cast<size_t>(bucket)]);
  duration_us_.fetch_add(absl::ToInt64Microseconds(took),
                         std::memory_order_relaxed);
}

GrpcMetrics::GrpcMetrics(const std::vector<GrpcMethod>& methods) {
  for (const GrpcMethod& method : methods) {
    calls_.push_back(std::make_unique<Calls>());
    calls_.back()->method_ = method;
    paths_.push_back(absl::StrCat("/", method.service, "/", method.method));
  }
  calls_.push_back(std::make_unique<Calls>());
  calls_.back()->method_ = {
      .type = "unknown", .service = "unknown", .method = "unknown"};
}

GrpcMetrics::Calls& GrpcMetrics::Of(absl::string_view path) {
  for (size_t i = 0; i < paths_.size(); ++i) {
    if (paths_[i] == path) return *calls_[i];
  }
  return *calls_.back();
}

std::vector<prometheus::MetricFamily> GrpcMetrics::Collect() const {
  prometheus::MetricFamily started =
      CounterFamily("grpc_server_started_total", "Calls started.");
  prometheus::MetricFamily handled =
      CounterFamily("grpc_server_handled_total", "Calls completed, by status.");
  prometheus::MetricFamily received = CounterFamily(
      "grpc_server_msg_received_total", "Messages received from clients.");
  prometheus::MetricFamily sent =
      CounterFamily("grpc_server_msg_sent_total", "Messages sent to clients.");
  prometheus::MetricFamily seconds = {
      "grpc_server_handling_seconds",
      "Time from the start of a call to its status.",
      prometheus::MetricType::Histogram,
      {}};
  for (const auto& calls : calls_) {
    const Labels labels = LabelsOf(calls->method_);
    AddValue(started, Read(calls->started_), labels);
    AddValue(received, Read(calls->received_), labels);
    AddValue(sent, Read(calls->sent_), labels);
    for (size_t code = 0; code < Calls::kCodes; ++code) {
      Labels with_code = labels;
      with_code.push_back({"grpc_code", kCodeNames[code]});
      AddValue(handled, Read(calls->handled_[code]), std::move(with_code));
    }
    prometheus::ClientMetric histogram;
    histogram.label = labels;
    uint64_t cumulative = 0;
    for (size_t i = 0; i < calls->durations_.size(); ++i) {
      cumulative += static_cast<uint64_t>(Read(calls->durations_[i]));
      histogram.histogram.bucket.push_back(
          {.cumulative_count = cumulative,
           .upper_bound = i < Calls::kBounds.size()
                              ? Calls::kBounds[i]
                              : std::numeric_limits<double>::infinity()});
    }
    histogram.histogram.sample_count = cumulative;
    histogram.histogram.sample_sum = Read(calls->duration_us_) / 1e6;
    seconds.metric.push_back(std::move(histogram));
  }
  return {started, handled, received, sent, seconds};
}

}  // namespace cohort
