#pragma once

#include <cstddef>

#include "absl/strings/string_view.h"

namespace cohort {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// The name of a level: "debug", "info", "warning", "error".
constexpr absl::string_view LogLevelName(LogLevel level) {
  constexpr absl::string_view kNames[] = {"debug", "info", "warning", "error"};
  return kNames[static_cast<size_t>(level)];
}

}  // namespace cohort
