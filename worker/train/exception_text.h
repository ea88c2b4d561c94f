#pragma once

#include <exception>
#include <string>

namespace cohort {

// The message of `e`, without the stack trace that LibTorch appends.
std::string TextOf(const std::exception& e);

}  // namespace cohort
