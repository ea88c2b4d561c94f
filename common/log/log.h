#pragma once

#include <initializer_list>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace cohort {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

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

// Changeable while running. Thread safety: safe.
void SetLogLevel(LogLevel level);

// One line to stderr, at a change of state; rates belong in metrics. The text
// is escaped, so input cannot forge lines.
// Thread safety: safe.
void Log(LogLevel level, absl::string_view text,
         std::initializer_list<LogField> fields = {});

}  // namespace cohort
