#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <stdexcept>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"

namespace cohort {

using enum absl::StatusCode;

// Fails the test unless the call has succeeded.
inline void ExpectOk(const absl::Status& status) {
  EXPECT_TRUE(status.ok()) << status;
}
template <typename T>
void ExpectOk(const absl::StatusOr<T>& result) {
  ExpectOk(result.status());
}

// The value of a result that has to be OK. Otherwise it throws, which ends the
// test as a failed ASSERT does, and prints the status.
template <typename T>
T OkValue(absl::StatusOr<T> result) {
  if (!result.ok()) throw std::runtime_error(result.status().ToString());
  return *std::move(result);
}

template <typename T>
T OkValue(std::optional<T> value) {
  if (!value.has_value()) throw std::runtime_error("got no value");
  return *std::move(value);
}

inline const absl::Status& StatusOf(const absl::Status& status) {
  return status;
}
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

// Matches a status, or the result of a call, of this code whose message
// contains `part`.
MATCHER_P2(IsError, code, part, "") {
  const absl::Status& status = StatusOf(arg);
  *result_listener << status;
  return status.code() == code && absl::StrContains(status.message(), part);
}

}  // namespace cohort
