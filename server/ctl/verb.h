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
#include "common/cli/progress_line.h"
#include "common/clock.h"
#include "server/ctl/admin_client.h"
#include "server/ctl/arguments.h"

namespace cohort {

// cohortctl's streams and environment. main and tests each make their own.
struct CtlIo {
  // Results.
  std::ostream& out;
  // Everything else: errors, and what a verb waits for.
  std::ostream& err;
  const Clock& clock;
  // The name this program was called by, for commands that it suggests.
  std::string program = "cohortctl";
  // Sleeps; returns false after Ctrl-C.
  std::function<bool(absl::Duration)> pause;
  // The number of the signal, once `pause` has returned false.
  std::function<int()> signal = [] { return 0; };
  // True if `out` may be rewritten in place.
  bool terminal = false;
  bool color = false;
  // "NAME=value" each.
  absl::Span<const std::string> environment = {};
  // Like `pause`, but returns as soon as keys are typed, and adds their bytes
  // to `typed`. Null if there is no keyboard.
  std::function<bool(absl::Duration, std::string& typed)> keys = nullptr;
  // The size of the terminal now.
  std::function<ScreenSize()> screen = [] { return ScreenSize(); };
};

// The inputs and outputs of a verb.
struct Context {
  AdminClient& server;
  const Arguments& arguments;
  // The words after the verb's name.
  absl::Span<const std::string> words;
  // Flags that belong neither to cohortctl nor to the verb: settings of the
  // run, or flags of the server.
  std::map<std::string, std::string> settings;
  // Flags of the workers, by name, for a verb that starts them.
  std::map<std::string, std::string> worker_flags;
  absl::Duration timeout;
  bool json = false;
  CtlIo& io;
  // cohortctl's exit code if the verb returns no error, such as that of a
  // program which it ran.
  int exit_code = 0;
};

// The process that a verb contacts. Common flags that say how to reach another
// one are refused, because they would have no effect.
enum class Contacts { kServer, kOperationsPort, kNothing };

// A command of cohortctl.
struct Verb {
  // "status", or noun and verb: "policy set".
  absl::string_view name;
  absl::string_view summary;
  // Placeholder in help for words after the name, such as "FILE..."; empty if
  // no words are allowed.
  absl::string_view words = {};
  std::vector<FlagSpec> flags;
  // If true, any other flag is the name of a setting.
  bool takes_settings = false;
  // If true, it starts a server and workers, and any other flag is theirs.
  bool takes_program_flags = false;
  // Placeholder in help for words after "--"; empty if none are allowed.
  absl::string_view rest = {};
  Contacts contacts = Contacts::kServer;
  // If false, --json is refused.
  bool prints_json = true;
  std::vector<absl::string_view> examples;
  // The status decides the exit code: see ExitCodeForVerb.
  absl::Status (*run)(Context& context) = nullptr;
};

// All verbs, in the order of the help.
absl::Span<const Verb> Verbs();
// The verb with that name, which must exist.
const Verb& VerbNamed(absl::string_view name);
// The flags that are the same for all verbs.
absl::Span<const FlagSpec> CommonFlags();
// Whether one of CommonFlags has an effect on the verb; true for other flags.
bool Takes(const Verb& verb, absl::string_view common_flag);

// "ana@host" for the history of changes, as the environment and the machine
// say; without a user's name only the machine.
std::string OperatorName(absl::Span<const std::string> environment);

// `status`, with the next step added on its own line if it has `code`.
absl::Status WithNext(const absl::Status& status, absl::StatusCode code,
                      absl::string_view next);

}  // namespace cohort
