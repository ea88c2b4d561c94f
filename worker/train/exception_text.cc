#include "worker/train/exception_text.h"

#include <c10/util/Exception.h>

namespace cohort {

std::string TextOf(const std::exception& e) {
  const auto* error = dynamic_cast<const c10::Error*>(&e);
  return error == nullptr ? e.what() : error->what_without_backtrace();
}

}  // namespace cohort
