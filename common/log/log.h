#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cohort {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Of each level: "debug", "info", "warning", "error".
absl::string_view LogLevelName(LogLevel level);

// Errors: InvalidArgument: no such level, naming those there are.
absl::StatusOr<LogLevel> ParseLogLevel(absl::string_view name);

// How log lines look.
enum class LogFormat {
  // Human on a terminal, JSON otherwise.
  kAuto,
  kHuman,
  kJson,
};

struct LogOptions {
  LogLevel level = LogLevel::kInfo;
  LogFormat format = LogFormat::kAuto;
  // "server" or "worker"; on each line.
  std::string process;
};

struct LogField {
  absl::string_view key;
  std::string value;
};

// Call once, early. Lines before it are human and of level info.
void InitLogging(const LogOptions& options);

// Sets what is on every line from now on, such as run and rank.
// Thread safety: safe.
void SetLogContext(std::initializer_list<LogField> fields);

// The version of the weights, on every line from now on unless a line names
// one itself; negative: none is known. Cheap enough to be called at each step.
// Thread safety: safe.
void SetLogVersion(int64_t version);

// Changeable while running. Thread safety: safe.
void SetLogLevel(LogLevel level);
LogLevel CurrentLogLevel();

// Messages of this level since the process started, with those that the limit
// on repetitions left out, without those that were below the level in force.
// Thread safety: safe; takes no lock.
int64_t LogMessageCount(LogLevel level);

// One line to stderr, at a change of state; rates belong in metrics. The text
// is escaped, so input cannot forge lines. Of lines that differ in numbers
// only, the first 20 within 10 s are written; how many were left out is told by
// a line of its own, before the next line after that or by FlushLog.
// Thread safety: safe.
void Log(LogLevel level, absl::string_view text,
         std::initializer_list<LogField> fields = {});

// Tells what was left out and not told yet. Call it when the process ends.
void FlushLog();

}  // namespace cohort
