#include "server/ctl/yaml_output.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"

namespace cohort {
namespace {

using Json = nlohmann::ordered_json;

bool IsNested(const Json& json) {
  return json.is_structured() && !json.empty();
}

// JSON's scalars and its empty collections are YAML as well; texts stay quoted,
// so that none is read as a number or as a truth value.
std::string Scalar(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void Append(const Json& json, int indent, std::string& out) {
  const std::string blanks(static_cast<size_t>(indent), ' ');
  if (json.is_array()) {
    for (const Json& item : json) {
      absl::StrAppend(&out, blanks, "-");
      if (!IsNested(item)) {
        absl::StrAppend(&out, " ", Scalar(item), "\n");
        continue;
      }
      // The first line of the item follows the dash.
      std::string nested;
      Append(item, indent + 2, nested);
      absl::StrAppend(&out, " ", nested.substr(blanks.size() + 2));
    }
    return;
  }
  for (const auto& [name, value] : json.items()) {
    absl::StrAppend(&out, blanks, Scalar(name), ":");
    if (IsNested(value)) {
      absl::StrAppend(&out, "\n");
      Append(value, indent + 2, out);
    } else {
      absl::StrAppend(&out, " ", Scalar(value), "\n");
    }
  }
}

std::string Yaml(const std::string& line) {
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return absl::StrCat(line, "\n");
  if (!IsNested(json)) return absl::StrCat(Scalar(json), "\n");
  std::string yaml;
  Append(json, 0, yaml);
  return yaml;
}

}  // namespace

// The buffer does not exist yet while the base is constructed.
YamlOutput::YamlOutput(std::ostream& out)
    : std::ostream(nullptr), buffer_(out) {
  rdbuf(&buffer_);
}

int YamlOutput::Buffer::overflow(int byte) {
  if (byte == traits_type::eof()) return traits_type::not_eof(byte);
  if (byte != '\n') {
    line_ += static_cast<char>(byte);
    return byte;
  }
  if (!std::exchange(first_, false)) out_ << "---\n";
  out_ << Yaml(std::exchange(line_, ""));
  return out_.good() ? byte : traits_type::eof();
}

int YamlOutput::Buffer::sync() {
  out_ << std::flush;
  return out_.good() ? 0 : -1;
}

}  // namespace cohort
