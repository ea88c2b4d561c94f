#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace cohort {

// Exit codes that all programs of Cohort share.
enum ExitCode : int {
  kExitOk = 0,
  kExitFailure = 1,
  // The command line itself is wrong: an unknown flag, a stray argument.
  kExitUsage = 2,
  // A flag's value, or a combination, cannot be used.
  kExitConfig = 3,
  // The server does not know the certificate or token, or it may not do this.
  kExitDenied = 4,
  kExitUnreachable = 5,
  kExitWaitTimeout = 6,
  kExitBadCheckpoint = 7,
  kExitNonfinite = 8,
  // An exception or a failed allocation in the middle of a change.
  kExitHalfDone = 9,
  // A training script that left before its rank's work was done.
  kExitLeft = 75,
  // A shell's for a program that cannot be run, or is not there.
  kExitCannotRun = 126,
  kExitNoProgram = 127,
};

// Whether a second process with the same flags would end in the same way, so
// that it is not started. Every supervisor goes by it: those of this project
// call it, and the lists in deploy/ and the table in deploy/OPERATIONS.md are
// compared with it by tests/deploy/exit_codes_test.py.
bool WouldEndSoAgain(int code);

// A process that ended with an error, as its supervisor sees it.
struct LostProcess {
  int code = 0;
  // How often it was started again, and how often it may be. A supervisor that
  // knows of applied steps counts the starts since the last one.
  int restarts = 0;
  int restarts_max = 0;
};

// Why a process is not started again; empty if it is. `limit` names
// restarts_max: "--max_restarts".
std::string WhyNotAgain(const LostProcess& lost, absl::string_view limit);

// What the end of a process means for a run whose size is known.
enum class AfterLoss {
  kStartAgain,
  kContinueWithout,
  // The run cannot continue: it waits for the process, or too few are left.
  kStopRun,
};

// The rule for the ranks of a run.
struct SizeRule {
  // The run waits for the replacement of a lost worker.
  bool waits = true;
  // The least size of an elastic cohort; 0: the size is fixed.
  int workers_min = 0;
};

// `may_start` is whether WhyNotAgain had nothing to say, `others` the number of
// workers that still run. A pure function.
AfterLoss DecideAfterLoss(bool may_start, const SizeRule& rule, int others);

}  // namespace cohort
