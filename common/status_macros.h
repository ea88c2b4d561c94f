#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Returns from the enclosing function if `expr` is not OK.
#define COHORT_RETURN_IF_ERROR(expr)                                \
  do {                                                              \
    if (absl::Status cohort_status = (expr); !cohort_status.ok()) { \
      return cohort_status;                                         \
    }                                                               \
  } while (false)

#define COHORT_INTERNAL_CONCAT2(a, b) a##b
#define COHORT_INTERNAL_CONCAT(a, b) COHORT_INTERNAL_CONCAT2(a, b)

#define COHORT_INTERNAL_ASSIGN_OR_RETURN(tmp, lhs, expr) \
  auto tmp = (expr);                                     \
  if (!tmp.ok()) return std::move(tmp).status();         \
  lhs = std::move(tmp).value()

// Assigns the value of a StatusOr to `lhs`, or returns its status.
#define COHORT_ASSIGN_OR_RETURN(lhs, expr) \
  COHORT_INTERNAL_ASSIGN_OR_RETURN(        \
      COHORT_INTERNAL_CONCAT(cohort_statusor_, __LINE__), lhs, expr)
