#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/printable.h"

namespace cohort {

// Lines of cells, each column as wide as its widest cell and two spaces apart.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}

  // As many cells as the header has.
  void Add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }

  // `bold` marks the header for a terminal.
  std::string ToString(bool bold) const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

// `text` in bold for a terminal, or unchanged.
std::string Bold(absl::string_view text, bool bold);

}  // namespace cohort
