#pragma once

#include <memory>
#include <utility>

#include "worker/client/client.h"
#include "worker/client/forwarding_client.h"

namespace cohort {

// Owns the client that it forwards every call to, and can end it as if the
// process died. Override the calls that a test changes.
class OwningClient : public ForwardingClient {
 public:
  explicit OwningClient(std::unique_ptr<Client> client)
      : ForwardingClient(*client), client_(std::move(client)) {}

  void Leave(const Departure& departure) override {
    if (client_ != nullptr) client_->Leave(departure);
  }

 protected:
  // The end of a process: all its streams break. Only Leave may be called
  // afterwards.
  void Die() { client_.reset(); }

 private:
  std::unique_ptr<Client> client_;
};

}  // namespace cohort
