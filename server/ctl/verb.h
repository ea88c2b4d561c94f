#pragma once

#include <functional>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/clock.h"
#include "server/ctl/admin_client.h"
#include "server/ctl/arguments.h"

namespace cohort {

// Where cohortctl reads and writes; main and tests each make their own.
struct CtlIo {
  // Results.
  std::ostream& out;
  // Everything else: errors, and whom is waited for.
  std::ostream& err;
  const Clock& clock;
  // Sleeps; returns false if Ctrl-C came.
  std::function<bool(absl::Duration)> pause;
  // `out` may be rewritten in place, and coloured.
  bool terminal = false;
  bool color = false;
};

// What a verb gets to work with.
struct Context {
  AdminClient& server;
  const Arguments& arguments;
  // Those behind the verb's name.
  absl::Span<const std::string> words;
  // Flags that are neither cohortctl's nor the verb's, of a verb that takes
  // settings.
  std::map<std::string, std::string> settings;
  absl::Duration timeout;
  bool json = false;
  CtlIo& io;
};

// One thing that cohortctl can do.
struct Verb {
  // "status", or noun and verb: "policy set".
  absl::string_view name;
  absl::string_view summary;
  // What stands in the help for words behind the name, such as "FILE...";
  // empty: there may be none.
  absl::string_view words = {};
  std::vector<FlagSpec> flags;
  // Any other flag is the name of a setting.
  bool takes_settings = false;
  std::vector<absl::string_view> examples;
  // Errors decide the exit code: see ExitCodeForVerb.
  absl::Status (*run)(Context& context) = nullptr;
};

// All verbs, in the order of the help. A new one is a new row.
absl::Span<const Verb> Verbs();
// Flags that every verb has.
absl::Span<const FlagSpec> CommonFlags();

// The verbs' functions.
absl::Status RunStatus(Context& context);
absl::Status RunHealth(Context& context);
absl::Status RunPolicyGet(Context& context);
absl::Status RunPolicySet(Context& context);
absl::Status RunPolicyHistory(Context& context);
absl::Status RunWorkersList(Context& context);
absl::Status RunWorkersEvict(Context& context);
absl::Status RunDrain(Context& context);
absl::Status RunCheckpointSave(Context& context);
absl::Status RunExport(Context& context);
absl::Status RunStatisticsCollect(Context& context);
absl::Status RunLogLevel(Context& context);
absl::Status RunTraceMerge(Context& context);

// `status` with what to do next on a line of its own, if it is `code`.
absl::Status WithNext(const absl::Status& status, absl::StatusCode code,
                      absl::string_view next);

}  // namespace cohort
