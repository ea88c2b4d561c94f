#include <algorithm>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/backend.h"
#include "tests/kernels/backend_matrix.h"
#include "tests/kernels/sample_data.h"

namespace cohort::kernels {
namespace {

// Cuts tasks into as many ranges as it has threads, and notes the most tasks.
class Threads {
 public:
  explicit Threads(int64_t threads) : threads_(threads) {}

  ParallelFor For() {
    return
        [this](int64_t tasks, absl::FunctionRef<void(int64_t, int64_t)> run) {
          tasks_max_ = std::max(tasks_max_, tasks);
          std::vector<std::jthread> running;
          for (int64_t t = 0; t < threads_; ++t) {
            const int64_t begin = tasks * t / threads_;
            const int64_t end = tasks * (t + 1) / threads_;
            if (begin < end) running.emplace_back([=] { run(begin, end); });
          }
        };
  }

  int64_t tasks_max() const { return tasks_max_; }

 private:
  const int64_t threads_;
  int64_t tasks_max_ = 0;
};

// Backwards and one by one: a range need not hold neighbours' work.
void OneByOne(int64_t tasks, absl::FunctionRef<void(int64_t, int64_t)> run) {
  for (int64_t i = tasks - 1; i >= 0; --i) run(i, i + 1);
}

// The results of a layer in a step.
template <typename T>
struct Answers {
  std::vector<double> mean, m2, sum, product;
  std::vector<T> y, dz, dx;

  friend bool operator==(const Answers&, const Answers&) = default;
};

template <typename T>
Answers<T> Train(const Backend& backend, const BatchShape& shape) {
  Numbers numbers(31);
  const std::vector<T> x = numbers.Take<T>(Elements(shape), 1);
  const std::vector<T> dy = numbers.Take<T>(Elements(shape));
  const auto channels = static_cast<size_t>(shape.channels);
  const std::vector<double> invstd(channels, 1.5);
  Answers<T> a;
  for (auto* table : {&a.mean, &a.m2, &a.sum, &a.product}) {
    table->resize(channels);
  }
  for (auto* tensor : {&a.y, &a.dz, &a.dx}) tensor->resize(x.size());
  backend.Moments({.shape = shape,
                   .type = TypeOf<T>(),
                   .x = x.data(),
                   .mean = a.mean.data(),
                   .m2 = a.m2.data()});
  backend.Normalize({.shape = shape,
                     .type = TypeOf<T>(),
                     .x = x.data(),
                     .mean = a.mean.data(),
                     .invstd = invstd.data(),
                     .add = dy.data(),
                     .relu = true,
                     .y = a.y.data()});
  backend.BackwardReduce({.shape = shape,
                          .type = TypeOf<T>(),
                          .x = x.data(),
                          .dy = dy.data(),
                          .mean = a.mean.data(),
                          .sum_dy = a.sum.data(),
                          .sum_dy_xmu = a.product.data(),
                          .relu = true,
                          .y = a.y.data(),
                          .dz = a.dz.data()});
  backend.BackwardElementwise({.shape = shape,
                               .type = TypeOf<T>(),
                               .x = x.data(),
                               .dy = a.dz.data(),
                               .mean = a.mean.data(),
                               .invstd = invstd.data(),
                               .sum_dy = a.sum.data(),
                               .sum_dy_xmu = a.product.data(),
                               .total_count = shape.count(),
                               .dx = a.dx.data()});
  return a;
}

// Cut by rows, by channels, within a run, and with a row left over; the last
// is too small to be cut at all.
std::vector<BatchShape> CutShapes() {
  return {{.outer = 20, .channels = 64, .inner = 256},
          {.outer = 3, .channels = 2049, .inner = 49},
          {.outer = 2, .channels = 3, .inner = 100000},
          {.outer = 3001, .channels = 65, .inner = 1},
          {.outer = 600, .channels = 2049, .inner = 1},
          {.outer = 4001, .channels = 5, .inner = 7},
          {.outer = 3, .channels = 5, .inner = 1}};
}

class ParallelTest : public BackendTest {};

TEST_P(ParallelTest, AnyNumberOfThreadsGivesTheSameBits) {
  for (const BatchShape& shape : CutShapes()) {
    SCOPED_TRACE(Describe(shape));
    const bool large = shape.outer * shape.channels * shape.inner > 100000;
    ForEachType([&]<typename T>(std::type_identity<T>) {
      const Answers<T> alone = Train<T>(backend(), shape);
      for (int64_t count : {2, 7}) {
        Threads threads(count);
        EXPECT_TRUE(Train<T>(*NewCpuBackend(threads.For()), shape) == alone)
            << count;
        // How far a tensor is cut depends on the width of a vector, too.
        if (large) {
          EXPECT_GT(threads.tasks_max(), 1);
        }
      }
      EXPECT_TRUE(Train<T>(*NewCpuBackend(OneByOne), shape) == alone);
    });
  }
}

// The reference has no tasks.
INSTANTIATE_TEST_SUITE_P(CpuBackends, ParallelTest, testing::ValuesIn([] {
                           std::vector<BackendCase> cases = AllBackends();
                           cases.erase(cases.begin());
                           return cases;
                         }()),
                         BackendCaseName);

}  // namespace
}  // namespace cohort::kernels
