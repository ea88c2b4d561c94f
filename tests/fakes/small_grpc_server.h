#pragma once

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"

namespace cohort {

// A gRPC server of a free port that serves nothing.
class SmallGrpcServer {
 public:
  explicit SmallGrpcServer(
      const std::shared_ptr<grpc::ServerCredentials>& credentials) {
    grpc::ServerBuilder builder;
    builder.RegisterCallbackGenericService(&service_);
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", credentials, &port);
    server_ = builder.BuildAndStart();
    address_ = absl::StrCat("127.0.0.1:", port);
  }

  // At a Unix socket.
  SmallGrpcServer(const std::shared_ptr<grpc::ServerCredentials>& credentials,
                  const std::string& path)
      : address_("unix:" + path) {
    grpc::ServerBuilder builder;
    builder.RegisterCallbackGenericService(&service_);
    builder.AddListeningPort(address_, credentials);
    server_ = builder.BuildAndStart();
  }

  const std::string& address() const { return address_; }
  void Shutdown() { server_->Shutdown(); }

 private:
  grpc::CallbackGenericService service_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

}  // namespace cohort
