#include "cohort/v1/parameters.grpc.pb.h"
#include "server/rpc/services.h"
#include "server/rpc/stream_starts.h"

namespace cohort {
namespace {

using RawParameters = v1::Parameters::WithRawCallbackMethod_Register<
    v1::Parameters::WithRawCallbackMethod_Exchange<
        v1::Parameters::WithRawCallbackMethod_Pull<v1::Parameters::Service>>>;

class ParametersService final : public RawParameters {
 public:
  ParametersService(RunHost& run, LocalDoor* local)
      : run_(run), local_(local) {}

  ByteBidiReactor* Register(grpc::CallbackServerContext* context) override {
    return StartRegister(run_, context);
  }

  ByteBidiReactor* Exchange(grpc::CallbackServerContext* context) override {
    return StartExchange(run_.partitions(), &run_, context, local_);
  }

  ByteWriteReactor* Pull(grpc::CallbackServerContext* context,
                         const grpc::ByteBuffer* request) override {
    return StartPull(run_.partitions(), &run_, context, *request);
  }

 private:
  RunHost& run_;
  // Null if there is no shared memory.
  LocalDoor* const local_;
};

using RawDataParameters = v1::Parameters::WithRawCallbackMethod_Exchange<
    v1::Parameters::WithRawCallbackMethod_Pull<v1::Parameters::Service>>;

class DataParametersService final : public RawDataParameters {
 public:
  explicit DataParametersService(PartitionsHost& host) : host_(host) {}

  ByteBidiReactor* Exchange(grpc::CallbackServerContext* context) override {
    return StartExchange(host_, nullptr, context, nullptr);
  }
  ByteWriteReactor* Pull(grpc::CallbackServerContext* context,
                         const grpc::ByteBuffer* request) override {
    return StartPull(host_, nullptr, context, *request);
  }

 private:
  PartitionsHost& host_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeDataParametersService(PartitionsHost& host) {
  return std::make_unique<DataParametersService>(host);
}

std::unique_ptr<grpc::Service> MakeParametersService(RunHost& run,
                                                     LocalDoor* local) {
  return std::make_unique<ParametersService>(run, local);
}

}  // namespace cohort
