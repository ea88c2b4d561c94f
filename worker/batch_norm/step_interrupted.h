#pragma once

#include <exception>
#include <string>
#include <utility>

#include "absl/status/status.h"

namespace cohort {

// Thrown from a batch-norm layer's forward or backward pass when its step
// cannot continue because a rendezvous failed. This is our only exception,
// because nothing else passes through a module tree and autograd; its type
// survives both. Only the trainer catches it.
class StepInterrupted : public std::exception {
 public:
  // `status` is not OK.
  explicit StepInterrupted(absl::Status status)
      : status_(std::move(status)), what_(status_.ToString()) {}

  const absl::Status& status() const { return status_; }
  const char* what() const noexcept override { return what_.c_str(); }

 private:
  absl::Status status_;
  std::string what_;
};

}  // namespace cohort
