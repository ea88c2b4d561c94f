#include "server/rpc/call_interceptor.h"

#include <google/protobuf/descriptor.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/support/server_interceptor.h>

#include <memory>
#include <string>
#include <utility>

#include "cohort/v1/admin.pb.h"
#include "cohort/v1/data_shard.pb.h"
#include "cohort/v1/kept_state.pb.h"
#include "cohort/v1/membership.pb.h"
#include "cohort/v1/moments.pb.h"
#include "cohort/v1/parameters.pb.h"
#include "server/rpc/caller.h"

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

// The methods of the services that are in the files of these messages.
void AddServices(
    const std::vector<const google::protobuf::Descriptor*>& messages,
    std::vector<GrpcMethod>& methods) {
  for (const google::protobuf::Descriptor* message : messages) {
    const google::protobuf::FileDescriptor& file = *message->file();
    for (int s = 0; s < file.service_count(); ++s) {
      const google::protobuf::ServiceDescriptor& service = *file.service(s);
      for (int m = 0; m < service.method_count(); ++m) {
        methods.push_back({.type = TypeOf(*service.method(m)),
                           .service = service.full_name(),
                           .method = service.method(m)->name()});
      }
    }
  }
}

// gRPC serves it itself.
void AddHealth(std::vector<GrpcMethod>& methods) {
  methods.push_back(
      {.type = "unary", .service = "grpc.health.v1.Health", .method = "Check"});
  methods.push_back({.type = "server_stream",
                     .service = "grpc.health.v1.Health",
                     .method = "Watch"});
}

// Counts one call. Does not read its messages.
class CallCounter final : public grpc::experimental::Interceptor {
 public:
  // `client` is empty without encryption.
  CallCounter(GrpcMetrics::Calls& calls, OpenCalls& open, std::string client,
              const Clock& clock)
      : calls_(calls),
        open_(open),
        client_(std::move(client)),
        clock_(clock),
        begin_(clock.Now()) {
    calls_.Started();
    if (!client_.empty()) open_.Opened(client_);
  }
  ~CallCounter() override {
    if (!client_.empty()) open_.Closed(client_);
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
  OpenCalls& open_;
  const std::string client_;
  const Clock& clock_;
  const Instant begin_;
};

class CallCounterFactory final
    : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  CallCounterFactory(GrpcMetrics& metrics, OpenCalls& open, const Clock& clock)
      : metrics_(metrics), open_(open), clock_(clock) {}

  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* info) override {
    // gRPC deletes it when the call is over.
    return new CallCounter(metrics_.Of(info->method()), open_,
                           ClientOf(*info->server_context()), clock_);
  }

 private:
  static std::string ClientOf(const grpc::ServerContextBase& context) {
    const std::shared_ptr<const grpc::AuthContext> connection =
        context.auth_context();
    if (connection == nullptr ||
        connection->GetPeerIdentityPropertyName().empty()) {
      return "";
    }
    return CountedAs(*connection);
  }

  GrpcMetrics& metrics_;
  OpenCalls& open_;
  const Clock& clock_;
};

}  // namespace

std::vector<GrpcMethod> CoordinatorMethods() {
  std::vector<GrpcMethod> methods;
  AddServices({v1::JoinReply::descriptor(), v1::PullReply::descriptor(),
               v1::ReduceReply::descriptor(), v1::HoldReply::descriptor(),
               v1::Status::descriptor()},
              methods);
  AddHealth(methods);
  return methods;
}

std::vector<GrpcMethod> DataShardMethods() {
  std::vector<GrpcMethod> methods;
  AddServices({v1::PullReply::descriptor(), v1::ShardReport::descriptor()},
              methods);
  // Models are registered at the server that coordinates the run.
  std::erase_if(methods, [](const GrpcMethod& method) {
    return method.method == "Register";
  });
  AddHealth(methods);
  return methods;
}

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>
MakeCallCounter(GrpcMetrics& metrics, OpenCalls& open, const Clock& clock) {
  return std::make_unique<CallCounterFactory>(metrics, open, clock);
}

}  // namespace cohort
