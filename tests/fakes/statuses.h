#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"

namespace cohort {

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

// Matches a status of this code whose message contains `part`.
MATCHER_P2(IsError, code, part, "") {
  return arg.code() == code && absl::StrContains(arg.message(), part);
}

}  // namespace cohort
