#pragma once

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"

namespace cohort {

// Splits the output of a process into lines, however it arrives. A line without
// an end is passed on in pieces of 64 KiB.
class LineBuffer {
 public:
  // Calls `on_line` with each complete line, without its newline.
  void Append(absl::string_view bytes,
              absl::FunctionRef<void(absl::string_view)> on_line);
  // Passes on the rest once the writer has ended.
  void Flush(absl::FunctionRef<void(absl::string_view)> on_line);

 private:
  std::string rest_;
};

}  // namespace cohort
