#include "worker/models/script_model.h"

#include <sys/stat.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/runtime/interpreter.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <exception>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/status_macros.h"
#include "worker/models/script_graph.h"

namespace cohort {
namespace {

namespace nn = torch::nn;

// The first line of LibTorch's message.
std::string FirstLine(const std::exception& error) {
  const std::vector<std::string> lines = absl::StrSplit(error.what(), '\n');
  return lines[0];
}

// Identifies the memory of a parameter, to find parameters that share it.
struct MemoryView {
  const void* data = nullptr;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;

  friend auto operator<=>(const MemoryView&, const MemoryView&) = default;
};

// The file's modules as torch::nn modules over the same tensors, so that code
// that lists a model's parameters, batch norms and buffers also works on this
// one.
class ScriptModel final : public Model {
 public:
  ScriptModel(const ModelOptions& options, const torch::jit::Module& script,
              const ScriptSurvey& survey)
      : name_(options.name), classes_(options.classes), script_(script) {
    std::map<std::string, const ScriptBatchNorm*> norms;
    for (const ScriptBatchNorm& norm : survey.batch_norms) {
      norms[norm.path] = &norm;
    }
    Mirror(*this, script_, "", norms);
  }

  // Names of buffers that are not exported with the model.
  const std::vector<std::string>& kept_in_file() const { return kept_in_file_; }

  void train(bool on) override {
    nn::Module::train(on);
    script_.train(on);
  }

  ModelOutput forward(const at::Tensor& images) override {
    // Run unoptimised: in derivatives, optimised graphs replace
    // aten::batch_norm by another operator, so the step would be
    // normalised by this worker's batch alone. The switch is per thread.
    const torch::jit::GraphOptimizerEnabledGuard unoptimized(false);
    const c10::IValue result = script_.forward({images});
    at::Tensor logits = LogitsOf(result);
    TORCH_CHECK(logits.dim() >= 2 && logits.size(0) == images.size(0) &&
                    logits.size(1) == classes_,
                name_, ": got logits of shape ", logits.sizes(), ", want [",
                images.size(0), ", ", classes_,
                "] or [n, classes, h, w], the classes being the data set's");
    return {.logits = std::move(logits)};
  }

 private:
  using Norms = std::map<std::string, const ScriptBatchNorm*>;

  at::Tensor LogitsOf(const c10::IValue& result) const {
    if (result.isTensor()) return result.toTensor();
    if (result.isTuple()) return result.toTuple()->elements()[0].toTensor();
    const auto entries = result.toGenericDict();
    TORCH_CHECK(entries.contains("out"), name_,
                ": forward returned a dictionary without the entry `out`");
    return entries.at("out").toTensor();
  }

  // Registers the tensors and children of `script`, which is at `path`, with
  // `node`.
  void Mirror(nn::Module& node, torch::jit::Module& script,
              const std::string& path, const Norms& norms) {
    std::set<std::string> parameters;
    for (const auto& item : script.named_parameters(/*recurse=*/false)) {
      parameters.insert(item.name);
    }
    if (const auto norm = norms.find(path); norm != norms.end()) {
      AdoptNorm(*node.as<nn::BatchNorm2d>(), script);
      parameters.erase("weight");
      parameters.erase("bias");
    }
    for (const std::string& name : parameters) {
      const at::Tensor tensor = Shared(script, name);
      node.register_parameter(name, tensor, tensor.requires_grad());
    }
    for (const auto& item : script.named_buffers(/*recurse=*/false)) {
      MirrorBuffer(node, script, item.name, path);
    }
    for (const auto& item : script.named_children()) {
      torch::jit::Module child = item.value;
      const std::string child_path =
          path.empty() ? item.name : absl::StrCat(path, ".", item.name);
      // A module under a second name is mirrored once.
      std::shared_ptr<nn::Module>& mirrored = mirrored_[child._ivalue().get()];
      if (mirrored == nullptr) {
        const auto norm = norms.find(child_path);
        std::shared_ptr<nn::Module> made =
            norm == norms.end() ? std::make_shared<nn::Module>(item.name)
                                : NormModule(*norm->second);
        Mirror(*made, child, child_path, norms);
        mirrored_[child._ivalue().get()] = made;
        node.register_module(item.name, made);
      } else {
        node.register_module(item.name, mirrored);
      }
    }
  }

  static std::shared_ptr<nn::Module> NormModule(const ScriptBatchNorm& norm) {
    nn::BatchNorm2dOptions options(norm.channels);
    options.eps(norm.epsilon)
        .affine(norm.affine)
        .track_running_stats(norm.track_statistics);
    if (norm.momentum.has_value()) {
      options.momentum(*norm.momentum);
    } else {
      options.momentum(torch::nullopt);
    }
    return std::make_shared<nn::BatchNorm2dImpl>(options);
  }

  // Gives the script the module's tensors, holding the script's values. The
  // graph then passes to the operator the tensors by which the module is
  // recognised.
  static void AdoptNorm(nn::BatchNorm2dImpl& norm, torch::jit::Module& script) {
    const torch::NoGradGuard no_grad;
    const auto adopt = [&script](const char* name, at::Tensor& tensor) {
      if (!tensor.defined() || !script.hasattr(name)) return;
      const at::Tensor own = script.attr(name).toTensor();
      tensor.copy_(own);
      tensor.set_requires_grad(own.requires_grad());
      script.setattr(name, tensor);
    };
    adopt("weight", norm.weight);
    adopt("bias", norm.bias);
    adopt("running_mean", norm.running_mean);
    adopt("running_var", norm.running_var);
    adopt("num_batches_tracked", norm.num_batches_tracked);
  }

  // The parameter, or an earlier one that has the same memory; the script then
  // uses that one under both names.
  at::Tensor Shared(torch::jit::Module& script, const std::string& name) {
    const at::Tensor own = script.attr(name).toTensor();
    const auto [entry, inserted] =
        parameters_.try_emplace({.data = own.data_ptr(),
                                 .sizes = own.sizes().vec(),
                                 .strides = own.strides().vec()},
                                own);
    if (!inserted) script.setattr(name, entry->second);
    return entry->second;
  }

  void MirrorBuffer(nn::Module& node, torch::jit::Module& script,
                    const std::string& name, const std::string& path) {
    if (node.named_buffers(/*recurse=*/false).contains(name)) return;
    const at::Tensor tensor = script.attr(name).toTensor();
    if (tensor.scalar_type() == at::kFloat) {
      const at::Tensor whole = tensor.contiguous();
      if (!whole.is_same(tensor)) script.setattr(name, whole);
      node.register_parameter(name, whole, /*requires_grad=*/false);
      return;
    }
    node.register_buffer(name, tensor);
    kept_in_file_.push_back(path.empty() ? name
                                         : absl::StrCat(path, ".", name));
  }

  const std::string name_;
  const int64_t classes_;
  torch::jit::Module script_;
  std::vector<std::string> kept_in_file_;
  std::map<MemoryView, at::Tensor> parameters_;
  std::map<const void*, std::shared_ptr<nn::Module>> mirrored_;
};

absl::StatusOr<torch::jit::Module> ReadFile(const std::string& path) {
  struct stat found = {};
  if (stat(path.c_str(), &found) != 0 || !S_ISREG(found.st_mode)) {
    return absl::NotFoundError(
        absl::StrCat("--model=", path, ": no such file"));
  }
  try {
    return torch::jit::load(path, torch::kCPU);
  } catch (const std::exception& e) {
    return absl::InvalidArgumentError(
        absl::StrCat("--model=", path,
                     ": not a TorchScript file (want the output of "
                     "torch.jit.script(model).save(), not of torch.save()): ",
                     FirstLine(e)));
  }
}

bool HoldsLogits(const c10::TypePtr& type) {
  if (type->isSubtypeOf(*c10::TensorType::get())) return true;
  if (const auto tuple = type->cast<c10::TupleType>()) {
    return !tuple->elements().empty() &&
           tuple->elements()[0]->isSubtypeOf(*c10::TensorType::get());
  }
  const auto dict = type->cast<c10::DictType>();
  return dict != nullptr &&
         dict->getKeyType()->isSubtypeOf(*c10::StringType::get()) &&
         dict->getValueType()->isSubtypeOf(*c10::TensorType::get());
}

absl::Status CheckForward(const torch::jit::Module& script) {
  if (!script.find_method("forward").has_value()) {
    return absl::InvalidArgumentError("it has no forward method");
  }
  const c10::FunctionSchema& schema =
      script.get_method("forward").function().getSchema();
  int64_t required = 0;
  for (const c10::Argument& argument : schema.arguments()) {
    if (!argument.default_value().has_value()) ++required;
  }
  // The two arguments are self and the images.
  if (required > 2 || schema.arguments().size() < 2 ||
      !schema.arguments()[1].type()->isSubtypeOf(*c10::TensorType::get())) {
    std::string text = toString(schema);
    return absl::InvalidArgumentError(absl::StrCat(
        "got ", text, ", want a forward method that takes one tensor"));
  }
  const c10::TypePtr& result = schema.returns()[0].type();
  if (!HoldsLogits(result)) {
    return absl::InvalidArgumentError(
        absl::StrCat("forward returns ", result->str(),
                     ", want a tensor, a tuple that "
                     "begins with one, or a dictionary of tensors"));
  }
  return absl::OkStatus();
}

absl::Status Named(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrCat("--model=", path, ": ", status.message()));
}

absl::StatusOr<std::shared_ptr<Model>> Load(const ModelOptions& options) {
  COHORT_ASSIGN_OR_RETURN(torch::jit::Module script, ReadFile(options.name));
  const absl::Status callable = CheckForward(script);
  if (!callable.ok()) return Named(options.name, callable);
  AllowOneElementAChannel(script);
  absl::StatusOr<ScriptSurvey> survey = SurveyScript(script);
  if (!survey.ok()) return Named(options.name, survey.status());
  auto model = std::make_shared<ScriptModel>(options, script, *survey);
  if (model->parameters().empty()) {
    return Named(options.name,
                 absl::InvalidArgumentError(
                     "it has no parameters to train (a frozen module?)"));
  }
  if (!model->kept_in_file().empty()) {
    survey->warnings.push_back(absl::StrCat(
        "buffers that are not float32 stay as they are in the file and are "
        "not exported: ",
        absl::StrJoin(model->kept_in_file(), ", ")));
  }
  for (const std::string& warning : survey->warnings) {
    if (options.warn) {
      options.warn(absl::StrCat("--model=", options.name, ": ", warning));
    }
  }
  return model;
}

}  // namespace

absl::StatusOr<std::shared_ptr<Model>> LoadScriptModel(
    const ModelOptions& options) {
  // By default the interpreter turns every exception into a runtime_error with
  // the same text, but an interrupted step is recognised by its type.
  FLAGS_torch_jit_enable_rethrow_caught_exception = true;
  try {
    return Load(options);
  } catch (const std::exception& e) {
    return Named(options.name, absl::InvalidArgumentError(FirstLine(e)));
  }
}

}  // namespace cohort
