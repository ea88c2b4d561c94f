#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/ids.h"
#include "common/log_level.h"

namespace cohort {

// Errors: InvalidArgument: no such level; the message lists the levels.
absl::StatusOr<LogLevel> ParseLogLevel(absl::string_view name);

// The format of log lines.
enum class LogFormat {
  // Human-readable on a terminal, JSON otherwise.
  kAuto,
  kHuman,
  kJson,
};

struct LogOptions {
  LogLevel level = LogLevel::kInfo;
  LogFormat format = LogFormat::kAuto;
  // "server" or "worker"; shown on each line.
  std::string process;
};

struct LogField {
  absl::string_view key;
  std::string value;
  // How people write the value; empty if they write it in the same way. Shown
  // in place of the value; JSON has both, this one as KEY_text.
  std::string text = {};
};
// The field "incarnation".
LogField IncarnationField(Incarnation incarnation);

// Call once, early. Lines logged before it are human-readable and of level
// info.
void InitLogging(const LogOptions& options);

// Sets the fields of every line from now on, such as run and rank. Their keys
// are not copied: they are literals.
// Thread safety: safe.
void SetLogContext(std::initializer_list<LogField> fields);

// Sets the version of the weights for every line from now on, unless a line
// names one itself; negative if none is known. Cheap enough to call at each
// step.
// Thread safety: safe.
void SetLogVersion(int64_t version);

// May be called at any time. Thread safety: safe.
void SetLogLevel(LogLevel level);
LogLevel CurrentLogLevel();

// The number of messages of this level since the process started. Includes
// repeated lines that were suppressed, but not messages below the level in
// force.
// Thread safety: safe; takes no lock.
int64_t LogMessageCount(LogLevel level);

// Writes one line to stderr. For changes of state; rates belong in metrics. The
// text is escaped, so input cannot forge lines. Repeated lines, which differ
// only in numbers, are limited to 20 per 10 s. The rest are counted, and the
// count gets its own line before the next line after that, or from FlushLog.
// Thread safety: safe.
void Log(LogLevel level, absl::string_view text,
         std::initializer_list<LogField> fields = {});

// Logs the counts of suppressed lines not logged yet. Call it when the process
// ends.
void FlushLog();

}  // namespace cohort
