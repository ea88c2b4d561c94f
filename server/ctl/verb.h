#pragma once

#include <functional>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/clock.h"
#include "server/ctl/admin_client.h"
#include "server/ctl/arguments.h"

namespace cohort {

struct ScreenSize {
  int columns = 80;
  int rows = 24;
};

// Where cohortctl reads and writes; main and tests each make their own.
struct CtlIo {
  // Results.
  std::ostream& out;
  // Everything else: errors, and whom is waited for.
  std::ostream& err;
  const Clock& clock;
  // What this program was called as, for commands that it suggests.
  std::string program = "cohortctl";
  // Sleeps; returns false if Ctrl-C came.
  std::function<bool(absl::Duration)> pause;
  // The number of the signal that came, once `pause` has returned false.
  std::function<int()> signal = [] { return 0; };
  // `out` may be rewritten in place, and coloured.
  bool terminal = false;
  bool color = false;
  // "NAME=value" each.
  absl::Span<const std::string> environment = {};
  // Of the terminal, at this moment.
  std::function<ScreenSize()> screen = [] { return ScreenSize(); };
};

// What a verb gets to work with.
struct Context {
  AdminClient& server;
  const Arguments& arguments;
  // Those behind the verb's name.
  absl::Span<const std::string> words;
  // Flags that are neither cohortctl's nor the verb's: settings of the run, or
  // flags of the server.
  std::map<std::string, std::string> settings;
  // Flags of the workers, by name, of a verb that starts them.
  std::map<std::string, std::string> worker_flags;
  absl::Duration timeout;
  bool json = false;
  CtlIo& io;
  // cohortctl's if the verb returns no error, such as that of a program which
  // it ran.
  int exit_code = 0;
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
  // It starts a server and workers: any other flag is theirs.
  bool takes_program_flags = false;
  // How the help calls what may stand behind "--"; empty: nothing may.
  absl::string_view rest = {};
  // It speaks to no server that runs already: --server is refused.
  bool local = false;
  std::vector<absl::string_view> examples;
  // Errors decide the exit code: see ExitCodeForVerb.
  absl::Status (*run)(Context& context) = nullptr;
};

// All verbs, in the order of the help.
absl::Span<const Verb> Verbs();
// The verb of that name, which must exist.
const Verb& VerbNamed(absl::string_view name);
// Flags that every verb has.
absl::Span<const FlagSpec> CommonFlags();

// `status` with what to do next on a line of its own, if it is `code`.
absl::Status WithNext(const absl::Status& status, absl::StatusCode code,
                      absl::string_view next);

}  // namespace cohort
