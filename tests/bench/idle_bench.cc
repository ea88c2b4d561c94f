// Measures how long a call takes after a while without events, on loopback.
//
// The client uses gRPC's blocking calls, which poll for themselves, so only the
// server's threads, those of the callback API, are measured.

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <condition_variable>
#include <iostream>
#include <memory>
#include <mutex>
#include <sstream>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "cohort/v1/admin.grpc.pb.h"
#include "cohort/v1/membership.grpc.pb.h"
#include "common/clock.h"
#include "common/periodic_task.h"
#include "server/main/server.h"

namespace cohort {
namespace {

constexpr int kRounds = 10;

// A joined worker that sends a heartbeat every `interval` and nothing else.
class QuietWorker {
 public:
  QuietWorker(const std::string& address, absl::Duration interval)
      : stub_(v1::Membership::NewStub(
            grpc::CreateChannel(address, grpc::InsecureChannelCredentials()))),
        stream_(stub_->Session(&context_)) {
    v1::SessionRequest request;
    request.mutable_join()->set_batch_size(1);
    stream_->Write(request);
    v1::SessionReply reply;
    stream_->Read(&reply);
    heartbeats_ = std::make_unique<PeriodicTask>("heartbeat", interval, [this] {
      v1::SessionRequest heartbeat;
      heartbeat.mutable_heartbeat();
      stream_->Write(heartbeat);
    });
  }
  ~QuietWorker() {
    heartbeats_.reset();
    context_.TryCancel();
    stream_->Finish();
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<v1::Membership::Stub> stub_;
  std::unique_ptr<
      grpc::ClientReaderWriter<v1::SessionRequest, v1::SessionReply>>
      stream_;
  std::unique_ptr<PeriodicTask> heartbeats_;
};

void Pause(absl::Duration time) {
  std::mutex mu;
  std::condition_variable never;
  std::unique_lock<std::mutex> lock(mu);
  never.wait_for(lock, absl::ToChronoMilliseconds(time), [] { return false; });
}

// Milliseconds of calls after `pause`, ascending.
std::vector<double> TimeCalls(v1::Admin::Stub& admin, absl::Duration pause) {
  const SteadyClock clock;
  std::vector<double> times;
  for (int i = 0; i < kRounds; ++i) {
    Pause(pause);
    grpc::ClientContext context;
    v1::GetPolicyReply reply;
    const Instant begin = clock.Now();
    admin.GetPolicy(&context, v1::GetPolicyRequest(), &reply);
    times.push_back(absl::ToDoubleMilliseconds(clock.Now() - begin));
  }
  std::sort(times.begin(), times.end());
  return times;
}

int Main() {
  ServerOptions options;
  options.listen = "127.0.0.1:0";
  std::ostringstream out;
  absl::StatusOr<std::unique_ptr<Server>> server = StartServer(options, out);
  if (!server.ok()) {
    std::cerr << server.status() << '\n';
    return 1;
  }
  const auto admin = v1::Admin::NewStub(grpc::CreateChannel(
      (*server)->address(), grpc::InsecureChannelCredentials()));
  absl::PrintF("%10s %8s %10s %10s\n", "heartbeat", "pause", "median ms",
               "worst ms");
  // 0: no heartbeat. A thread without events for 1000 ms sleeps for 100 ms, so
  // pauses end in the middle of the first, second and third sleep.
  for (const int heartbeat_ms : {0, 1000, 800}) {
    std::unique_ptr<QuietWorker> worker;
    if (heartbeat_ms > 0) {
      worker = std::make_unique<QuietWorker>((*server)->address(),
                                             absl::Milliseconds(heartbeat_ms));
    }
    for (const int pause_ms : {900, 1020, 1050, 1080, 2150, 3250}) {
      const std::vector<double> times =
          TimeCalls(*admin, absl::Milliseconds(pause_ms));
      absl::PrintF("%10d %8d %10.2f %10.2f\n", heartbeat_ms, pause_ms,
                   times[times.size() / 2], times.back());
      std::cout << std::flush;
    }
  }
  return 0;
}

}  // namespace
}  // namespace cohort

int main() { return cohort::Main(); }
