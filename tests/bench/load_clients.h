#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace cohort::bench {

// The steps of a run under load, in this order. They do no arithmetic.
struct LoadShape {
  // Batch-norm layers, the channels of each, and float32 weights.
  int32_t layers = 20;
  int64_t channels = 64;
  int64_t elements = 20'000;
  // Steps with a push only, then steps in which each layer is called `repeats`
  // times forward and backward.
  int32_t push_steps = 5;
  int32_t rendezvous_steps = 1;
  int32_t repeats = 1;
  // How long rank 0 keeps all others waiting in the step before those.
  absl::Duration rest = absl::Seconds(2);

  // Two steps come first: one to warm up, and the one with the rest. One
  // follows, at whose beginning all others are over.
  int32_t first_push_step() const { return 2; }
  int32_t first_rendezvous_step() const {
    return first_push_step() + push_steps;
  }
  int32_t steps() const {
    return first_rendezvous_step() + rendezvous_steps + 1;
  }
};

// A process of clients.
struct LoadPack {
  std::string server;
  pid_t server_process = 0;
  int32_t first_rank = 0;
  int32_t clients = 0;
  LoadShape shape;
};

// Runs the clients, each on a thread of its own, to the end of the run, and
// prints, with instants in seconds of the machine's steady clock:
//   registered INSTANT           all of them have registered
//   pulled FIRST LAST            they have read the weights once
//   begun VERSION INSTANT        the step of the pack's lowest rank
//   answers CALL FIRST LAST      the returns of one rendezvous of a timed step
//   cost KIND CPU TIME COUNT     in the pack of rank 0: CPU seconds of the
//                                server, and seconds, for this many
//                                contributions or pushes of each worker; kind
//                                "rest": none
//   repeated COUNT               assignments that were not carried through
// Errors: that of the first client that fails.
absl::Status RunLoadClients(const LoadPack& pack);

}  // namespace cohort::bench
