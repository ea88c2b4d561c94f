// Times the CUDA kernels, and a device copy in the same run.

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "kernels/cuda/cuda_kernels.h"
#include "tests/gpu/bench_report.h"
#include "tests/gpu/bench_timer.h"
#include "tests/gpu/shapes.h"
#include "tests/kernels/sample_data.h"

namespace cohort::kernels::cuda {
namespace {

constexpr char kUsage[] =
    "usage: cohort_cuda_bench [--device=N] [--rounds=N] [--csv=FILE]\n"
    "\n"
    "Times the batch-norm kernels and the packing on a GPU, each as\n"
    "a share of the bandwidth of a device copy measured in the same run. Ends\n"
    "with PASS or FAIL; exit code 0, or 1 where a goal was missed, 2 on "
    "errors\n"
    "and 77 where there is no GPU.\n";
constexpr int kExitSkipped = 77;

struct Options {
  int32_t device = 0;
  int32_t rounds = 60;
  // If not empty, results are written there, a line a measurement, for the
  // comparison with PyTorch.
  std::string csv;
};

struct Bench {
  Queue queue;
  int32_t rounds = 0;
  Report report;
};

// A network's activation.
struct Activation {
  int64_t images = 0;
  int64_t channels = 0;
  int64_t side = 0;
  bool channels_last = false;

  BatchShape shape() const {
    return channels_last ? BatchShape{images * side * side, channels, 1}
                         : BatchShape{images, channels, side * side};
  }
  int64_t elements() const { return images * channels * side * side; }
};

// Random numbers to fill memory with; the period fits no channel.
template <typename T>
std::vector<T> Pattern() {
  return Numbers(7).Take<T>(1000003, 0.5);
}

// The tensors of one layer. Several sets are used in turn. Together they are
// four times the cache, so a pass finds only the previous pass's data there.
template <typename T>
class LayerMemory {
 public:
  explicit LayerMemory(const Activation& activation)
      : shape_(activation.shape()), bytes_(activation.elements() * sizeof(T)) {
    const std::vector<T> pattern = Pattern<T>();
    const int64_t set_bytes = bytes_ * 6;
    sets_ = static_cast<int32_t>(
        std::clamp<int64_t>((int64_t{1} << 29) / set_bytes + 1, 2, 8));
    for (int32_t i = 0; i < sets_ * 6; ++i) {
      tensors_.push_back(std::make_unique<DeviceMemory>(bytes_));
      tensors_.back()->Fill(pattern.data(), pattern.size() * sizeof(T));
    }
    const std::vector<double> ones = Numbers(8).Take<double>(4099, 1, 0.1);
    for (int32_t i = 0; i < 6; ++i) {
      statistics_.push_back(
          std::make_unique<DeviceMemory>(shape_.channels * 8));
      statistics_.back()->Fill(ones.data(), ones.size() * 8);
    }
    const std::vector<float> parameters = Numbers(9).Take<float>(4099, 1, 0.1);
    gamma_ = std::make_unique<DeviceMemory>(shape_.channels * 4);
    gamma_->Fill(parameters.data(), parameters.size() * 4);
  }

  int32_t sets() const { return sets_; }
  int64_t bytes() const { return bytes_; }

  void Forward(const Queue& queue, int32_t set, bool relu, bool add) const {
    Expect(Moments({.shape = shape_,
                    .type = TypeOf<T>(),
                    .x = Tensor(set, 0),
                    .mean = statistics_[0]->doubles(),
                    .m2 = statistics_[1]->doubles()},
                   queue));
    Expect(Normalize({.shape = shape_,
                      .type = TypeOf<T>(),
                      .x = Tensor(set, 0),
                      .mean = statistics_[0]->doubles(),
                      .invstd = statistics_[2]->doubles(),
                      .gamma = gamma_->get(),
                      .beta = gamma_->get(),
                      .add = add ? Tensor(set, 4) : nullptr,
                      .relu = relu,
                      .y = Tensor(set, 1)},
                     queue));
  }

  // With an addend the mask is read and the masked gradient stored.
  void Backward(const Queue& queue, int32_t set, bool relu, bool add) const {
    Expect(BackwardReduce({.shape = shape_,
                           .type = TypeOf<T>(),
                           .x = Tensor(set, 0),
                           .dy = Tensor(set, 2),
                           .mean = statistics_[3]->doubles(),
                           .sum_dy = statistics_[4]->doubles(),
                           .sum_dy_xmu = statistics_[5]->doubles(),
                           .relu = relu,
                           .y = add ? Tensor(set, 1) : nullptr,
                           .invstd = statistics_[2]->doubles(),
                           .gamma = gamma_->get(),
                           .beta = gamma_->get(),
                           .dz = add ? Tensor(set, 5) : nullptr},
                          queue));
    Expect(BackwardElementwise({.shape = shape_,
                                .type = TypeOf<T>(),
                                .x = Tensor(set, 0),
                                .dy = Tensor(set, add ? 5 : 2),
                                .mean = statistics_[3]->doubles(),
                                .invstd = statistics_[2]->doubles(),
                                .gamma = gamma_->get(),
                                .sum_dy = statistics_[4]->doubles(),
                                .sum_dy_xmu = statistics_[5]->doubles(),
                                .total_count = shape_.count(),
                                .relu = relu && !add,
                                .beta = gamma_->get(),
                                .dx = Tensor(set, 3)},
                               queue));
  }

 private:
  void* Tensor(int32_t set, int32_t which) const {
    return tensors_[set * 6 + which]->get();
  }

  BatchShape shape_;
  int64_t bytes_;
  int32_t sets_ = 0;
  std::vector<std::unique_ptr<DeviceMemory>> tensors_;
  std::vector<std::unique_ptr<DeviceMemory>> statistics_;
  std::unique_ptr<DeviceMemory> gamma_;
};

// Work to time, and its minimum: passes over the activation.
struct Work {
  const char* name;
  bool backward;
  bool relu;
  bool add;
  int32_t passes;
};

constexpr Work kWorks[] = {
    {"forward", false, false, false, 3},
    {"forward+relu", false, true, false, 3},
    {"forward+add+relu", false, true, true, 4},
    {"backward", true, false, false, 5},
    {"backward+relu", true, true, false, 5},
    // x, dy and y in and dz out; x and dz in and dx out.
    {"backward+add+relu", true, true, true, 7},
};

template <typename T>
void TimeLayer(const Activation& activation, Bench& bench) {
  const LayerMemory<T> layer(activation);
  const std::string tensor =
      absl::StrCat(TypeName<T>(), " ",
                   activation.channels_last ? "channels_last" : "contiguous",
                   " [", activation.images, ", ", activation.channels, ", ",
                   activation.side, ", ", activation.side, "]");
  for (const Work& work : kWorks) {
    const double seconds = MedianSeconds(
        bench.queue.stream, bench.rounds, layer.sets(), [&](int32_t set) {
          if (work.backward) {
            layer.Backward(bench.queue, set, work.relu, work.add);
          } else {
            layer.Forward(bench.queue, set, work.relu, work.add);
          }
        });
    bench.report.measurements.push_back(
        {.work = work.name,
         .tensor = tensor,
         .floor_bytes = work.passes * layer.bytes(),
         .seconds = seconds});
  }
}

// Bytes read and written a second by a large copy of the runtime.
double CopyBandwidth(const Bench& bench) {
  constexpr int64_t kBytes = int64_t{1} << 30;
  const DeviceMemory from(kBytes), to(kBytes);
  const std::vector<float> pattern = Pattern<float>();
  from.Fill(pattern.data(), pattern.size() * 4);
  const double seconds =
      MedianSeconds(bench.queue.stream, bench.rounds, 1, [&](int32_t) {
        Expect(cudaMemcpyAsync(to.get(), from.get(), kBytes,
                               cudaMemcpyDeviceToDevice, bench.queue.stream),
               "the copy");
      });
  return 2 * kBytes / seconds;
}

void TimePack(bool pack, Bench& bench) {
  constexpr int64_t kCount = int64_t{1} << 26;
  const DeviceMemory tensor(kCount * 4), packed(kCount * 4);
  const std::vector<float> pattern = Pattern<float>();
  packed.Fill(pattern.data(), pattern.size() * 4);
  tensor.Fill(pattern.data(), pattern.size() * 4);
  const PackSegment segment = {static_cast<float*>(tensor.get()), kCount, 0};
  auto* floats = static_cast<float*>(packed.get());
  const double seconds =
      MedianSeconds(bench.queue.stream, bench.rounds, 1, [&](int32_t) {
        Expect(pack ? Pack({segment}, floats, bench.queue)
                    : Unpack(floats, {segment}, bench.queue));
      });
  bench.report.measurements.push_back(
      {.work = pack ? "pack" : "unpack",
       .tensor = absl::StrCat("float32 [", kCount, "]"),
       .floor_bytes = kCount * 8,
       .seconds = seconds,
       .has_goal = false});
}

// 64 MB and more of each type; channels that fill vectors, and channels that do
// not.
void TimeAll(Bench& bench) {
  bench.report.copy_bandwidth = CopyBandwidth(bench);
  for (bool channels_last : {false, true}) {
    for (const Activation& a : {Activation{64, 64, 112},
                                {64, 256, 56},
                                {128, 512, 28},
                                {512, 2048, 7},
                                {64, 100, 112},
                                {64, 65, 112}}) {
      Activation activation = a;
      activation.channels_last = channels_last;
      TimeLayer<float>(activation, bench);
      TimeLayer<BFloat16>(activation, bench);
    }
  }
  TimePack(true, bench);
  TimePack(false, bench);
}

void WriteCsv(const Report& report, const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) {
    std::fprintf(stderr, "%s: cannot be written\n", path.c_str());
    std::exit(2);
  }
  for (const Measurement& m : report.measurements) {
    std::fprintf(file, "%s;%s;%.9f\n", m.work.c_str(), m.tensor.c_str(),
                 m.seconds);
  }
  std::fclose(file);
}

// Returns false for an unknown argument.
bool Read(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    if (absl::ConsumePrefix(&argument, "--device=")) {
      if (!absl::SimpleAtoi(argument, &options.device)) return false;
    } else if (absl::ConsumePrefix(&argument, "--rounds=")) {
      if (!absl::SimpleAtoi(argument, &options.rounds)) return false;
    } else if (absl::ConsumePrefix(&argument, "--csv=")) {
      options.csv = std::string(argument);
    } else {
      return false;
    }
  }
  return options.rounds > 0;
}

int Run(const Options& options) {
  absl::StatusOr<Device> device = OpenDevice(options.device);
  if (!device.ok()) {
    std::printf("skipped: %s\n",
                std::string(device.status().message()).c_str());
    return absl::IsInvalidArgument(device.status()) ? 2 : kExitSkipped;
  }
  std::printf("%s: %d multiprocessors, compute capability %d.%d\n",
              device->name.c_str(), device->multiprocessors,
              device->capability / 10, device->capability % 10);
  constexpr int64_t kWorkspaceBytes = 64 << 20;
  const DeviceMemory workspace(kWorkspaceBytes);
  Expect(cudaMemset(workspace.get(), 0, kWorkspaceBytes), "the workspace");
  Bench bench = {.queue = {.workspace = workspace.get(),
                           .workspace_bytes = kWorkspaceBytes,
                           .multiprocessors = device->multiprocessors},
                 .rounds = options.rounds};
  Expect(cudaStreamCreate(&bench.queue.stream), "a stream");
  TimeAll(bench);
  PrintTable(bench.report, stdout);
  if (!options.csv.empty()) WriteCsv(bench.report, options.csv);
  std::printf("\n%s\n", Verdict(bench.report).c_str());
  return bench.report.Passes() ? 0 : 1;
}

}  // namespace
}  // namespace cohort::kernels::cuda

int main(int argc, char** argv) {
  cohort::kernels::cuda::Options options;
  if (!cohort::kernels::cuda::Read(argc, argv, options)) {
    std::fputs(cohort::kernels::cuda::kUsage, stderr);
    return 2;
  }
  return cohort::kernels::cuda::Run(options);
}
