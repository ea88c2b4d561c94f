#pragma once

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"

namespace cohort {

// Makes lines of what a process wrote, however it was cut on its way.
// A line that never ends is given out in pieces of 64 KiB.
class LineBuffer {
 public:
  // Calls `on_line` with each line that is whole, without its end.
  void Append(absl::string_view bytes,
              absl::FunctionRef<void(absl::string_view)> on_line);
  // Gives out what is left: its writer is gone.
  void Flush(absl::FunctionRef<void(absl::string_view)> on_line);

 private:
  std::string rest_;
};

}  // namespace cohort
