#pragma once

#include <ostream>
#include <streambuf>
#include <string>

namespace cohort {

// A stream that takes one JSON document a line and writes each as a YAML
// document to `out`, at once. Documents after the first begin with "---". A
// line that is not JSON is passed on unchanged.
class YamlOutput : public std::ostream {
 public:
  explicit YamlOutput(std::ostream& out);

 private:
  class Buffer : public std::streambuf {
   public:
    explicit Buffer(std::ostream& out) : out_(out) {}

   protected:
    int overflow(int byte) override;
    int sync() override;

   private:
    std::ostream& out_;
    std::string line_;
    bool first_ = true;
  };

  Buffer buffer_;
};

}  // namespace cohort
