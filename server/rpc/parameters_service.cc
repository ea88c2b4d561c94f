#include "cohort/v1/parameters.grpc.pb.h"
#include "server/rpc/data_streams.h"
#include "server/rpc/services.h"
#include "server/rpc/stream_starts.h"

namespace cohort {
namespace {

using RawParameters = v1::Parameters::WithRawCallbackMethod_Register<
    v1::Parameters::WithRawCallbackMethod_Exchange<
        v1::Parameters::WithRawCallbackMethod_Pull<v1::Parameters::Service>>>;

class ParametersService final : public RawParameters {
 public:
  ParametersService(Shard& shard, LocalDoor* local)
      : shard_(shard), local_(local) {}

  ByteBidiReactor* Register(grpc::CallbackServerContext* context) override {
    return StartRegister(shard_, context);
  }

  ByteBidiReactor* Exchange(grpc::CallbackServerContext* context) override {
    return StartExchange(shard_.host(), &shard_, context, local_);
  }

  ByteWriteReactor* Pull(grpc::CallbackServerContext* context,
                         const grpc::ByteBuffer* request) override {
    return StartPull(shard_.host(), &shard_, context, *request);
  }

 private:
  Shard& shard_;
  // Null if there is no shared memory.
  LocalDoor* const local_;
};

using RawDataParameters = v1::Parameters::WithRawCallbackMethod_Exchange<
    v1::Parameters::WithRawCallbackMethod_Pull<v1::Parameters::Service>>;

class DataParametersService final : public RawDataParameters {
 public:
  explicit DataParametersService(DataHost& host) : host_(host) {}

  ByteBidiReactor* Exchange(grpc::CallbackServerContext* context) override {
    return StartExchange(host_, nullptr, context, nullptr);
  }
  ByteWriteReactor* Pull(grpc::CallbackServerContext* context,
                         const grpc::ByteBuffer* request) override {
    return StartPull(host_, nullptr, context, *request);
  }

 private:
  DataHost& host_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeDataParametersService(DataHost& host) {
  return std::make_unique<DataParametersService>(host);
}

std::unique_ptr<grpc::Service> MakeParametersService(Shard& shard,
                                                     LocalDoor* local) {
  return std::make_unique<ParametersService>(shard, local);
}

}  // namespace cohort
