#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/cli/command_line.h"
#include "server/ctl/verb.h"

namespace cohort {

// cohortctl: runs the verb named in `arguments` (without the program's name)
// and returns the exit code. Results go to io.out, messages to io.err.
int RunCtl(absl::Span<const std::string> arguments, CtlIo& io);

// The exit code for a verb's error:
//   NotFound                             kExitUsage: no such verb, flag or
//                                        setting, or one is missing
//   InvalidArgument, FailedPrecondition  kExitConfig: the server refuses
//   Unavailable                          kExitUnreachable
//   DeadlineExceeded                     kExitWaitTimeout
//   all others                           kExitFailure
ExitCode ExitCodeForVerb(const absl::Status& status);

}  // namespace cohort
