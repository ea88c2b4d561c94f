#include "worker/models/script_graph.h"

#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/passes/inliner.h>
#include <torch/script.h>

#include <algorithm>
#include <array>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

using torch::jit::Block;
using torch::jit::Node;
using torch::jit::Value;

// Possible origins of a value of the graph. A branch has several.
struct Origins {
  // Dotted paths of attributes.
  std::set<std::string> attributes;
  std::vector<c10::IValue> constants;
  // True if any origin is neither an attribute nor a constant.
  bool computed = false;
};

absl::string_view KindOf(const Node& node) {
  return node.kind().toQualString();
}

bool Is(const Node& node, absl::string_view kind) {
  return KindOf(node) == kind;
}

// "aten::batch_norm %24 (batchnorm.py:168)".
std::string NameOf(const Node& node) {
  std::string name(KindOf(node));
  if (!node.outputs().empty()) {
    absl::StrAppend(&name, " %", node.outputs()[0]->debugName());
  }
  if (const auto place = node.sourceRange().file_line_col()) {
    const auto& [file, line, column] = *place;
    const std::vector<absl::string_view> parts = absl::StrSplit(file, '/');
    absl::StrAppend(&name, " (", parts.back(), ":", line, ")");
  }
  return name;
}

absl::Status Refusal(const Node& node, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(NameOf(node), ": ", why));
}

std::string Join(const std::string& path, const std::string& name) {
  return path.empty() ? name : absl::StrCat(path, ".", name);
}

const Value* InputNamed(const Node& node, const char* name) {
  return node.namedInput(name);
}

// True if the operator's first result is its first argument, or a view of it.
bool PassesOn(const Node& node) {
  const c10::FunctionSchema* schema = node.maybeSchema();
  return schema != nullptr && !schema->returns().empty() &&
         schema->returns()[0].alias_info() != nullptr && !node.inputs().empty();
}

// Follows a value to its origins. It follows views only on request, because a
// view is another tensor than the one it shows.
class OriginFinder {
 public:
  OriginFinder(const torch::jit::Graph& graph, bool through_views)
      : self_(graph.inputs()[0]), through_views_(through_views) {}

  Origins Of(const Value* value) const {
    Origins origins;
    Add(value, origins);
    return origins;
  }

 private:
  void Add(const Value* value, Origins& origins) const {
    const Node& node = *value->node();
    if (value == self_) {
      origins.attributes.insert("");
    } else if (auto constant = torch::jit::toIValue(value)) {
      origins.constants.push_back(*std::move(constant));
    } else if (Is(node, "prim::GetAttr")) {
      const Origins owner = Of(node.input());
      if (owner.attributes.size() != 1 || owner.computed) {
        origins.computed = true;
      } else {
        origins.attributes.insert(
            Join(*owner.attributes.begin(), node.s(torch::jit::attr::name)));
      }
    } else if (Is(node, "prim::If")) {
      for (const Block* block : node.blocks()) {
        Add(block->outputs()[value->offset()], origins);
      }
    } else if (Is(node, "prim::unchecked_cast") ||
               Is(node, "prim::unchecked_unwrap_optional") ||
               Is(node, "aten::_unwrap_optional") ||
               (through_views_ && PassesOn(node))) {
      Add(node.inputs()[0], origins);
    } else {
      origins.computed = true;
    }
  }

  const Value* const self_;
  const bool through_views_;
};

// The attribute's value; None if there is no such path.
c10::IValue AttributeAt(const torch::jit::Module& module,
                        const std::string& path) {
  c10::IValue value = module._ivalue();
  for (absl::string_view part : absl::StrSplit(path, '.')) {
    if (!value.isObject()) return {};
    const auto object = value.toObject();
    const auto slot = object->type()->findAttributeSlot(std::string(part));
    if (!slot.has_value()) return {};
    value = object->getSlot(*slot);
  }
  return value;
}

class Surveyor {
 public:
  Surveyor(const torch::jit::Module& module, const torch::jit::Graph& graph)
      : module_(module),
        exact_(graph, /*through_views=*/false),
        loose_(graph, /*through_views=*/true) {}

  // Batch norms first: the check of writes has to know which state is theirs.
  absl::StatusOr<ScriptSurvey> Survey(const Block& body) {
    COHORT_RETURN_IF_ERROR(
        Visit(body, [this](const Node& node) { return ReadNorm(node); }));
    COHORT_RETURN_IF_ERROR(
        Visit(body, [this](const Node& node) { return Check(node); }));
    return std::move(survey_);
  }

 private:
  template <typename Function>
  absl::Status Visit(const Block& block, const Function& function) {
    for (const Node* node : block.nodes()) {
      COHORT_RETURN_IF_ERROR(function(*node));
      for (const Block* inner : node->blocks()) {
        COHORT_RETURN_IF_ERROR(Visit(*inner, function));
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReadNorm(const Node& node) {
    if (!Is(node, "aten::batch_norm")) return absl::OkStatus();
    ScriptBatchNorm norm;
    COHORT_RETURN_IF_ERROR(ReadTensors(node, norm));
    const Value* training = InputNamed(node, "training");
    if (norm.track_statistics && torch::jit::toIValue(training).has_value()) {
      return Refusal(
          node, absl::StrCat(
                    "batch norm ", norm.path,
                    ": its input `training` is the "
                    "constant ",
                    torch::jit::toIValue(training)->toBool() ? "true" : "false",
                    ", so it does not follow train() and eval(); the file is "
                    "a trace: export with torch.jit.script instead"));
    }
    COHORT_RETURN_IF_ERROR(ReadNumbers(node, norm));
    for (const ScriptBatchNorm& known : survey_.batch_norms) {
      if (known.path != norm.path) continue;
      if (known.epsilon == norm.epsilon && known.momentum == norm.momentum &&
          known.affine == norm.affine &&
          known.track_statistics == norm.track_statistics) {
        return absl::OkStatus();
      }
      return Refusal(node,
                     absl::StrCat("batch norm ", norm.path,
                                  " is called with two different settings"));
    }
    survey_.batch_norms.push_back(std::move(norm));
    return absl::OkStatus();
  }

  // Sets path, channels, affine and track_statistics.
  absl::Status ReadTensors(const Node& node, ScriptBatchNorm& norm) {
    constexpr std::array<const char*, 4> kNames = {
        "weight", "bias", "running_mean", "running_var"};
    std::set<std::string> owners;
    std::set<std::string> present;
    for (const char* name : kNames) {
      const Origins origins = exact_.Of(InputNamed(node, name));
      if (origins.computed) {
        return Refusal(node, absl::StrCat("batch norm: its ", name,
                                          " is computed, want a parameter or "
                                          "buffer of a module"));
      }
      for (const c10::IValue& constant : origins.constants) {
        if (constant.isNone()) continue;
        return Refusal(node,
                       absl::StrCat("batch norm: its ", name,
                                    " is a constant of the graph, so it cannot "
                                    "be trained (a frozen module?)"));
      }
      for (const std::string& path : origins.attributes) {
        const c10::IValue value = AttributeAt(module_, path);
        if (!value.isTensor()) continue;
        const size_t dot = path.rfind('.');
        if (dot == std::string::npos || path.substr(dot + 1) != name) {
          return Refusal(
              node, absl::StrCat(
                        "batch norm: got ", path, " as its ", name,
                        ", want a tensor of that name in a separate module"));
        }
        owners.insert(path.substr(0, dot));
        present.insert(name);
        norm.channels = value.toTensor().numel();
      }
    }
    norm.affine = present.contains("weight");
    norm.track_statistics = present.contains("running_mean");
    if (owners.size() != 1 || norm.affine != present.contains("bias") ||
        norm.track_statistics != present.contains("running_var")) {
      return Refusal(
          node, absl::StrCat("batch norm: got the tensors [",
                             absl::StrJoin(present, ", "), "] of modules [",
                             absl::StrJoin(owners, ", "),
                             "], want weight and bias, or running_mean and "
                             "running_var, or all four, of one module"));
    }
    norm.path = *owners.begin();
    return absl::OkStatus();
  }

  absl::Status ReadNumbers(const Node& node, ScriptBatchNorm& norm) {
    const auto epsilon = torch::jit::toIValue(InputNamed(node, "eps"));
    if (!epsilon.has_value()) {
      return Refusal(node, absl::StrCat("batch norm ", norm.path,
                                        ": its eps is computed, want a "
                                        "constant"));
    }
    norm.epsilon = epsilon->toDouble();
    // PyTorch's modules compute the momentum for the cumulative average only,
    // and pass 0 if it is not used.
    const Origins momentum = exact_.Of(InputNamed(node, "momentum"));
    std::set<double> constants;
    for (const c10::IValue& constant : momentum.constants) {
      constants.insert(constant.toDouble());
    }
    const bool zero_or_none = constants.empty() || constants == std::set{0.0};
    if (momentum.computed && momentum.attributes.empty() && zero_or_none) {
      norm.momentum = std::nullopt;
    } else if (!momentum.computed && momentum.attributes.empty() &&
               constants.size() == 1) {
      norm.momentum = *constants.begin();
    } else {
      return Refusal(node, absl::StrCat("batch norm ", norm.path,
                                        ": its momentum is computed, want a "
                                        "constant or None"));
    }
    return absl::OkStatus();
  }

  absl::Status Check(const Node& node) {
    const absl::string_view kind = KindOf(node);
    if (absl::StrContains(kind, "batch_norm") && kind != "aten::batch_norm") {
      return Refusal(node,
                     "is not supported, want aten::batch_norm, the only form "
                     "that can use the moments of all workers");
    }
    if (kind == "prim::fork" || kind == "prim::awaitable") {
      return Refusal(node,
                     "runs on another thread, where batch norm cannot tell "
                     "which step it belongs to");
    }
    if (kind == "prim::CallMethod" || kind == "prim::CallFunction") {
      return Refusal(node,
                     "is only known at run time (a module interface?), so its "
                     "batch norms cannot be listed");
    }
    if (kind == "prim::SetAttr") return CheckSetAttribute(node);
    if (absl::EndsWith(kind, "dropout") || absl::EndsWith(kind, "dropout_")) {
      CheckDropout(node);
    }
    return CheckWrites(node);
  }

  absl::Status CheckSetAttribute(const Node& node) {
    const Origins owner = exact_.Of(node.inputs()[0]);
    const std::string& name = node.s(torch::jit::attr::name);
    if (owner.attributes.size() == 1 && !owner.computed) {
      const std::string path = Join(*owner.attributes.begin(), name);
      if (IsCounter(path)) return absl::OkStatus();
      return Refusal(node, absl::StrCat("sets ", path, StateIsRefused()));
    }
    return Refusal(node, absl::StrCat("sets ", name, StateIsRefused()));
  }

  // Checks the writes that the operator's schema declares.
  absl::Status CheckWrites(const Node& node) {
    const c10::FunctionSchema* schema = node.maybeSchema();
    if (schema == nullptr) return absl::OkStatus();
    const size_t count =
        std::min(schema->arguments().size(), node.inputs().size());
    for (size_t i = 0; i < count; ++i) {
      const c10::AliasInfo* alias = schema->arguments()[i].alias_info();
      const bool hidden =
          Is(node, "aten::instance_norm") &&
          absl::StartsWith(schema->arguments()[i].name(), "running_");
      if (!hidden && (alias == nullptr || !alias->isWrite())) continue;
      for (const std::string& path : loose_.Of(node.inputs()[i]).attributes) {
        if (IsCounter(path)) continue;
        if (hidden && !AttributeAt(module_, path).isTensor()) continue;
        return Refusal(node,
                       absl::StrCat("writes to ", path, StateIsRefused()));
      }
    }
    return absl::OkStatus();
  }

  void CheckDropout(const Node& node) {
    const c10::FunctionSchema* schema = node.maybeSchema();
    if (schema == nullptr || !schema->argumentIndexWithName("train")) return;
    const auto train = torch::jit::toIValue(InputNamed(node, "train"));
    if (!train.has_value()) return;
    survey_.warnings.push_back(absl::StrCat(
        NameOf(node), ": its input `train` is the constant ",
        train->toBool() ? "true, so it drops in evaluation as well"
                        : "false, so it never drops",
        "; export with torch.jit.script to let it follow train() and eval()"));
  }

  static absl::string_view StateIsRefused() {
    return ", but only batch norm may keep state that changes between calls: "
           "other state would differ between workers and is not saved";
  }

  // The server does this counting itself.
  bool IsCounter(const std::string& path) const {
    for (const ScriptBatchNorm& norm : survey_.batch_norms) {
      if (path == Join(norm.path, "num_batches_tracked")) return true;
    }
    return false;
  }

  const torch::jit::Module& module_;
  const OriginFinder exact_;
  const OriginFinder loose_;
  ScriptSurvey survey_;
};

}  // namespace

absl::StatusOr<ScriptSurvey> SurveyScript(const torch::jit::Module& module) {
  const std::shared_ptr<torch::jit::Graph> graph =
      module.get_method("forward").graph()->copy();
  torch::jit::Inline(*graph);
  return Surveyor(module, *graph).Survey(*graph->block());
}

void AllowOneElementAChannel(torch::jit::Module& module) {
  for (torch::jit::Function* function :
       module._ivalue()->compilation_unit()->get_functions()) {
    if (function->name() != "_verify_batch_size" ||
        !absl::StrContains(function->qualname().qualifiedName(),
                           "torch.nn.functional")) {
      continue;
    }
    torch::jit::Graph& graph = *torch::jit::toGraphFunction(*function).graph();
    Value* nothing = graph.insertConstant(c10::IValue());
    graph.block()->replaceOutput(0, nothing);
    for (auto node = graph.nodes().rbegin(); node != graph.nodes().rend();
         ++node) {
      if (*node != nothing->node()) node.destroyCurrent();
    }
  }
}

}  // namespace cohort
