#include "server/rpc/call_interceptor.h"

#include <google/protobuf/descriptor.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/support/server_interceptor.h>

#include <memory>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "cohort/v1/admin.pb.h"
#include "cohort/v1/data_shard.pb.h"
#include "cohort/v1/kept_state.pb.h"
#include "cohort/v1/membership.pb.h"
#include "cohort/v1/moments.pb.h"
#include "cohort/v1/parameters.pb.h"

namespace cohort {
namespace {

using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::InterceptorBatchMethods;

constexpr char kBidiStream[] = "bidi_stream";

std::string TypeOf(const google::protobuf::MethodDescriptor& method) {
  if (method.client_streaming()) {
    return method.server_streaming() ? kBidiStream : "client_stream";
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
  CallCounter(CallCounts& counts, grpc::experimental::ServerRpcInfo& info)
      : call_(counts, info.method(), *info.server_context()) {}

  void Intercept(InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(
            InterceptionHookPoints::POST_RECV_MESSAGE) &&
        methods->GetRecvMessage() != nullptr) {
      call_.Received();
    }
    if (methods->QueryInterceptionHookPoint(
            InterceptionHookPoints::PRE_SEND_MESSAGE)) {
      call_.Sent();
    }
    if (methods->QueryInterceptionHookPoint(
            InterceptionHookPoints::PRE_SEND_STATUS)) {
      call_.Ended(methods->GetSendStatus().error_code());
    }
    methods->Proceed();
  }

 private:
  CountedCall call_;
};

class CallCounterFactory final
    : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit CallCounterFactory(CallCounts& counts) : counts_(counts) {
    for (const auto& methods : {CoordinatorMethods(), DataShardMethods()}) {
      for (const GrpcMethod& of : methods) {
        if (of.type != kBidiStream) continue;
        streams_.insert(absl::StrCat("/", of.service, "/", of.method));
      }
    }
  }

  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* info) override {
    if (streams_.contains(info->method())) return nullptr;
    // gRPC deletes it when the call is over.
    return new CallCounter(counts_, *info);
  }

 private:
  CallCounts& counts_;
  absl::flat_hash_set<std::string> streams_;
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
MakeCallCounter(CallCounts& counts) {
  return std::make_unique<CallCounterFactory>(counts);
}

}  // namespace cohort
