#pragma once

#include <exception>
#include <string>

namespace cohort {

// What it says, without the stack that LibTorch appends to it.
std::string TextOf(const std::exception& e);

}  // namespace cohort
