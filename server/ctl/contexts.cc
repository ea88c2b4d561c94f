#include "server/ctl/contexts.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/cli/environment.h"
#include "common/formats/json_depth.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kBytesMax = 1 << 20;

absl::Status Damaged(const std::string& path, absl::string_view why) {
  return absl::DataLossError(absl::StrCat(path, ": ", why,
                                          "; mend it, or remove it and use ",
                                          "`cohortctl context set` again"));
}

}  // namespace

std::string ContextsPath(absl::Span<const std::string> environment) {
  const absl::string_view given = ValueIn(environment, "COHORT_CONFIG");
  if (!given.empty()) return std::string(given);
  constexpr absl::string_view kFile = "/cohort/contexts.json";
  const absl::string_view folder = ValueIn(environment, "XDG_CONFIG_HOME");
  if (!folder.empty()) return absl::StrCat(folder, kFile);
  const absl::string_view home = ValueIn(environment, "HOME");
  return home.empty() ? "" : absl::StrCat(home, "/.config", kFile);
}

absl::StatusOr<Contexts> ReadContexts(FileSystem& files,
                                      const std::string& path) {
  const absl::StatusOr<ByteRope> bytes = files.ReadFile(path, kBytesMax);
  if (absl::IsNotFound(bytes.status())) return Contexts();
  COHORT_RETURN_IF_ERROR(bytes.status());
  const std::string text = bytes->ToString();
  if (NestsDeeperThan(text, kJsonNestingMax)) {
    return Damaged(path, "nests too deep");
  }
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return Damaged(path, "is not a JSON object");
  Contexts contexts;
  const Json current = json.value("current", Json(""));
  if (!current.is_string()) return Damaged(path, "'current' is not a text");
  contexts.current = current.get<std::string>();
  const Json named = json.value("contexts", Json::object());
  if (!named.is_object()) return Damaged(path, "'contexts' is not an object");
  for (const auto& [name, context] : named.items()) {
    if (!context.is_object() || !context.contains("server") ||
        !context.at("server").is_string()) {
      return Damaged(path, absl::StrCat("context '", name, "' has no server"));
    }
    ServerTarget& target = contexts.servers[name];
    target.server = context.at("server").get<std::string>();
    const Json ops = context.value("ops", Json(""));
    if (!ops.is_string()) {
      return Damaged(path,
                     absl::StrCat("'ops' of context '", name, "' is no text"));
    }
    target.ops = ops.get<std::string>();
    for (const char* flag : kCredentialFlags) {
      const Json file = context.value(flag, Json(""));
      if (!file.is_string()) {
        return Damaged(path, absl::StrCat("'", flag, "' of context '", name,
                                          "' is not a text"));
      }
      CredentialOf(target, flag) = file.get<std::string>();
    }
  }
  return contexts;
}

absl::Status WriteContexts(FileSystem& files, const std::string& path,
                           const Contexts& contexts) {
  Json json = {{"current", contexts.current}, {"contexts", Json::object()}};
  for (auto [name, target] : contexts.servers) {
    Json& entry = json["contexts"][name];
    entry = {{"server", target.server}};
    if (!target.ops.empty()) entry["ops"] = target.ops;
    for (const char* flag : kCredentialFlags) {
      const std::string& file = CredentialOf(target, flag);
      if (!file.empty()) entry[flag] = file;
    }
  }
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(),
                                      error);
  return WriteFileAtomically(
      files, path, kPublicFileMode,
      {ByteRope::CopyText(
          json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n")});
}

absl::StatusOr<ServerTarget> ServerOf(const Contexts& contexts,
                                      const std::string& name) {
  const auto found = contexts.servers.find(name);
  if (found != contexts.servers.end()) return found->second;
  return absl::NotFoundError(
      absl::StrCat("unknown context '", name, "', want one of: ",
                   absl::StrJoin(contexts.servers, ", ",
                                 [](std::string* out, const auto& context) {
                                   out->append(context.first);
                                 }),
                   "\n`cohortctl context set NAME ADDRESS` adds one"));
}

}  // namespace cohort
