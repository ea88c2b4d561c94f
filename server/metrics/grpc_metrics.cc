#include "server/metrics/grpc_metrics.h"

#include "absl/strings/str_cat.h"
#include "prometheus/labels.h"

namespace cohort {
namespace {

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

prometheus::Family<prometheus::Counter>& Counters(
    prometheus::Registry& registry, const char* name, const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
}

}  // namespace

void GrpcMetrics::Calls::Handled(int code, absl::Duration took) {
  const bool known = code >= 0 && code < static_cast<int>(kCodes);
  handled_[static_cast<size_t>(known ? code : kUnknown)]->Increment();
  seconds_->Observe(absl::ToDoubleSeconds(took));
}

GrpcMetrics::GrpcMetrics(const std::vector<GrpcMethod>& methods) {
  auto& started =
      Counters(registry_, "grpc_server_started_total", "Calls started.");
  auto& handled = Counters(registry_, "grpc_server_handled_total",
                           "Calls completed, by status.");
  auto& received = Counters(registry_, "grpc_server_msg_received_total",
                            "Messages received from clients.");
  auto& sent = Counters(registry_, "grpc_server_msg_sent_total",
                        "Messages sent to clients.");
  auto& seconds = prometheus::BuildHistogram()
                      .Name("grpc_server_handling_seconds")
                      .Help("Time from the start of a call to its status.")
                      .Register(registry_);
  const auto add = [&](const std::string& path, const GrpcMethod& method) {
    const prometheus::Labels labels = {{"grpc_type", method.type},
                                       {"grpc_service", method.service},
                                       {"grpc_method", method.method}};
    Calls& calls = calls_[path];
    calls.started_ = &started.Add(labels);
    calls.received_ = &received.Add(labels);
    calls.sent_ = &sent.Add(labels);
    for (size_t code = 0; code < Calls::kCodes; ++code) {
      prometheus::Labels with_code = labels;
      with_code["grpc_code"] = kCodeNames[code];
      calls.handled_[code] = &handled.Add(with_code);
    }
    calls.seconds_ = &seconds.Add(
        labels, prometheus::Histogram::BucketBoundaries{
                    0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60, 300});
  };
  for (const GrpcMethod& method : methods) {
    add(absl::StrCat("/", method.service, "/", method.method), method);
  }
  add("", {.type = "unknown", .service = "unknown", .method = "unknown"});
}

GrpcMetrics::Calls& GrpcMetrics::Of(absl::string_view path) {
  const auto found = calls_.find(path);
  return found == calls_.end() ? calls_.at("") : found->second;
}

}  // namespace cohort
