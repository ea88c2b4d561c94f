#include "worker/models/state_dict.h"

#include <torch/torch.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "common/byte_rope.h"
#include "common/formats/safetensors.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

// Collects all problems of a file, so that the user sees all of them at once.
class Complaints {
 public:
  // `what` is such as "missing"; `name` is one tensor, with its problem.
  void Add(const std::string& what, std::string name) {
    names_[what].push_back(std::move(name));
  }

  absl::Status ToStatus(const std::string& path) const {
    if (names_.empty()) return absl::OkStatus();
    std::vector<std::string> parts;
    for (const auto& [what, names] : names_) {
      const size_t shown = std::min(names.size(), kShownMax);
      std::string part = absl::StrCat(
          names.size(), " ", what, " (",
          absl::StrJoin(names.begin(), names.begin() + shown, "; "));
      if (shown < names.size()) {
        absl::StrAppend(&part, "; and ", names.size() - shown, " more");
      }
      parts.push_back(absl::StrCat(part, ")"));
    }
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": does not fit the model: ", absl::StrJoin(parts, ", ")));
  }

 private:
  static constexpr size_t kShownMax = 10;
  std::map<std::string, std::vector<std::string>> names_;
};

struct TypeRow {
  const char* name;
  at::ScalarType type;
};

// In the order of TensorType.
constexpr TypeRow kTypes[] = {{"float32", at::kFloat},
                              {"float64", at::kDouble},
                              {"int64", at::kLong},
                              {"uint8", at::kByte}};

const TypeRow& RowOf(TensorType type) {
  return kTypes[static_cast<size_t>(type)];
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ","), "]");
}

// A new tensor over the file's values.
at::Tensor ValuesOf(const NamedTensor& from) {
  at::Tensor values =
      torch::empty(from.shape, torch::dtype(RowOf(from.type).type));
  from.bytes.CopyTo(absl::MakeSpan(static_cast<std::byte*>(values.data_ptr()),
                                   values.nbytes()));
  return values;
}

// Tensors by name, in the model's memory.
std::map<std::string, at::Tensor> StateOf(Model& model) {
  std::map<std::string, at::Tensor> state;
  for (const auto& item : model.named_parameters()) {
    state[item.key()] = item.value();
  }
  for (const auto& item : model.named_buffers()) {
    state[item.key()] = item.value();
  }
  return state;
}

// The values to write, in the order of `state`; missing ones are undefined.
absl::StatusOr<std::map<std::string, at::Tensor>> Match(
    const std::string& path, const SafetensorsContent& content,
    const std::map<std::string, at::Tensor>& state) {
  Complaints complaints;
  std::map<std::string, at::Tensor> values;
  for (const NamedTensor& tensor : content.tensors) {
    const auto known = state.find(tensor.name);
    if (known == state.end()) {
      complaints.Add("unknown", tensor.name);
      continue;
    }
    const at::Tensor& wanted = known->second;
    if (tensor.shape != wanted.sizes().vec()) {
      complaints.Add(
          "of another shape",
          absl::StrCat(tensor.name, ": got ", ShapeText(tensor.shape),
                       ", want ", ShapeText(wanted.sizes().vec())));
      continue;
    }
    if (RowOf(tensor.type).type != wanted.scalar_type()) {
      complaints.Add(
          "of another type",
          absl::StrCat(
              tensor.name, ": got ", RowOf(tensor.type).name, ", want ",
              wanted.scalar_type() == at::kLong ? "int64" : "float32"));
      continue;
    }
    at::Tensor read = ValuesOf(tensor);
    if (!read.isfinite().all().item<bool>()) {
      complaints.Add("not finite", tensor.name);
      continue;
    }
    values[tensor.name] = std::move(read);
  }
  for (const auto& [name, tensor] : state) {
    const bool there = std::any_of(
        content.tensors.begin(), content.tensors.end(),
        [&wanted = name](const NamedTensor& t) { return t.name == wanted; });
    if (!there && !absl::EndsWith(name, "num_batches_tracked")) {
      complaints.Add("missing", name);
    }
  }
  COHORT_RETURN_IF_ERROR(complaints.ToStatus(path));
  return values;
}

}  // namespace

absl::Status LoadStateDict(FileSystem& files, const std::string& path,
                           Model& model) {
  COHORT_ASSIGN_OR_RETURN(const ByteRope file,
                          files.ReadFile(path, kAnyFileSize));
  COHORT_ASSIGN_OR_RETURN(const SafetensorsContent content,
                          DecodeSafetensors(path, file));
  try {
    const std::map<std::string, at::Tensor> state = StateOf(model);
    COHORT_ASSIGN_OR_RETURN(const auto values, Match(path, content, state));
    const torch::NoGradGuard no_grad;
    for (const auto& [name, value] : values) {
      state.at(name).copy_(value);
    }
    return absl::OkStatus();
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat(path, ": ", e.what()));
  }
}

}  // namespace cohort
