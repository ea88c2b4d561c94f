#include "server/rpc/call_gate.h"

#include <grpcpp/security/auth_context.h>
#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/statusor.h"
#include "common/wire/status.h"
#include "server/rpc/caller.h"

namespace cohort {
namespace {

class CallGate final : public grpc::AuthMetadataProcessor {
 public:
  CallGate(AccessControl& access, const OpenCalls& calls)
      : access_(access), calls_(calls) {}

  // It takes two locks for moments and reads no files.
  bool IsBlocking() const override { return false; }

  grpc::Status Process(const InputMetadata& metadata,
                       grpc::AuthContext* connection, OutputMetadata* consumed,
                       OutputMetadata* /*response*/) override {
    const std::string path = ValueOf(metadata, ":path");
    Presented presented = PresentedBy(*connection);
    presented.authorization = ValueOf(metadata, "authorization");
    if (!presented.authorization.empty()) {
      // Services do not see it.
      consumed->emplace("authorization", presented.authorization);
    }
    const absl::StatusOr<Caller> caller = access_.CheckCall(path, presented);
    if (!caller.ok()) return ToGrpcStatus(caller.status());
    // All workers of a run may have one certificate.
    const bool shared =
        caller->role == PeerRole::kWorker && !caller->rank.has_value();
    if (shared) return grpc::Status::OK;
    return ToGrpcStatus(calls_.Check(CountedAs(*connection)));
  }

 private:
  static std::string ValueOf(const InputMetadata& metadata, const char* name) {
    const auto found = metadata.find(name);
    return found == metadata.end()
               ? ""
               : std::string(found->second.data(), found->second.size());
  }

  AccessControl& access_;
  const OpenCalls& calls_;
};

}  // namespace

std::shared_ptr<grpc::AuthMetadataProcessor> MakeCallGate(
    AccessControl& access, const OpenCalls& calls) {
  return std::make_shared<CallGate>(access, calls);
}

}  // namespace cohort
