#include "server/rpc/call_interceptor.h"

#include <google/protobuf/descriptor.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/support/server_interceptor.h>

#include <string>

#include "cohort/v1/admin.pb.h"
#include "cohort/v1/membership.pb.h"
#include "cohort/v1/moments.pb.h"
#include "cohort/v1/parameters.pb.h"

namespace cohort {
namespace {

using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::InterceptorBatchMethods;

std::string TypeOf(const google::protobuf::MethodDescriptor& method) {
  if (method.client_streaming()) {
    return method.server_streaming() ? "bidi_stream" : "client_stream";
  }
  return method.server_streaming() ? "server_stream" : "unary";
}

void AddServices(const google::protobuf::FileDescriptor& file,
                 std::vector<GrpcMethod>& methods) {
  for (int s = 0; s < file.service_count(); ++s) {
    const google::protobuf::ServiceDescriptor& service = *file.service(s);
    for (int m = 0; m < service.method_count(); ++m) {
      methods.push_back({.type = TypeOf(*service.method(m)),
                         .service = service.full_name(),
                         .method = service.method(m)->name()});
    }
  }
}

// Counts one call. Does not read its messages.
class CallCounter final : public grpc::experimental::Interceptor {
 public:
  CallCounter(GrpcMetrics::Calls& calls, const Clock& clock)
      : calls_(calls), clock_(clock), begin_(clock.Now()) {
    calls_.Started();
  }

  void Intercept(InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(
            InterceptionHookPoints::POST_RECV_MESSAGE) &&
        methods->GetRecvMessage() != nullptr) {
      calls_.Received();
    }
    if (methods->QueryInterceptionHookPoint(
            InterceptionHookPoints::PRE_SEND_MESSAGE)) {
      calls_.Sent();
    }
    if (methods->QueryInterceptionHookPoint(
            InterceptionHookPoints::PRE_SEND_STATUS)) {
      calls_.Handled(methods->GetSendStatus().error_code(),
                     clock_.Now() - begin_);
    }
    methods->Proceed();
  }

 private:
  GrpcMetrics::Calls& calls_;
  const Clock& clock_;
  const Instant begin_;
};

class CallCounterFactory final
    : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  CallCounterFactory(GrpcMetrics& metrics, const Clock& clock)
      : metrics_(metrics), clock_(clock) {}

  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* info) override {
    // gRPC deletes it when the call is over.
    return new CallCounter(metrics_.Of(info->method()), clock_);
  }

 private:
  GrpcMetrics& metrics_;
  const Clock& clock_;
};

}  // namespace

std::vector<GrpcMethod> ServedMethods() {
  std::vector<GrpcMethod> methods;
  for (const google::protobuf::Descriptor* of :
       {v1::JoinReply::descriptor(), v1::PullReply::descriptor(),
        v1::ReduceReply::descriptor(), v1::Status::descriptor()}) {
    AddServices(*of->file(), methods);
  }
  methods.push_back(
      {.type = "unary", .service = "grpc.health.v1.Health", .method = "Check"});
  methods.push_back({.type = "server_stream",
                     .service = "grpc.health.v1.Health",
                     .method = "Watch"});
  return methods;
}

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>
MakeCallCounter(GrpcMetrics& metrics, const Clock& clock) {
  return std::make_unique<CallCounterFactory>(metrics, clock);
}

}  // namespace cohort
