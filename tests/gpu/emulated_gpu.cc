// The checked longjmp would treat a jump to another stack as an error.
#undef _FORTIFY_SOURCE

#include "tests/gpu/emulated_gpu.h"

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace cohort::kernels::cuda {
namespace {

constexpr size_t kStackBytes = 128 << 10;

}  // namespace

struct FiberBlock::State {
  struct Fiber {
    // The context where the fibre begins, and the one where it waits.
    ucontext_t start;
    jmp_buf waiting;
    std::unique_ptr<char[]> stack;
    bool started = false;
    bool ended = false;
  };

  // Fibres start through a context and continue through jumps: swapcontext
  // makes a system call each time, which took half of the tests' time.
  jmp_buf scheduler;
  std::vector<Fiber> fibers;
  int32_t current = 0;
  const std::function<void(int32_t)>* body = nullptr;

  // makecontext passes integers only.
  static void Enter(unsigned int high, unsigned int low) {
    auto* state = reinterpret_cast<State*>(static_cast<uintptr_t>(high) << 32 |
                                           static_cast<uintptr_t>(low));
    const int32_t thread = state->current;
    (*state->body)(thread);
    state->fibers[thread].ended = true;
    _longjmp(state->scheduler, 1);
  }

  void Prepare(int32_t thread) {
    Fiber& fiber = fibers[thread];
    fiber.started = fiber.ended = false;
    getcontext(&fiber.start);
    fiber.start.uc_stack.ss_sp = fiber.stack.get();
    fiber.start.uc_stack.ss_size = kStackBytes;
    const auto address = reinterpret_cast<uintptr_t>(this);
    makecontext(&fiber.start, reinterpret_cast<void (*)()>(&Enter), 2,
                static_cast<unsigned int>(address >> 32),
                static_cast<unsigned int>(address));
  }

  // Returns when the fibre waits or has ended.
  void Resume(int32_t thread) {
    current = thread;
    if (_setjmp(scheduler) != 0) return;
    Fiber& fiber = fibers[thread];
    if (fiber.started) _longjmp(fiber.waiting, 1);
    fiber.started = true;
    setcontext(&fiber.start);
  }

  void Wait() {
    if (_setjmp(fibers[current].waiting) == 0) _longjmp(scheduler, 1);
  }
};

FiberBlock::FiberBlock(int32_t threads_max)
    : state_(std::make_unique<State>()) {
  state_->fibers.resize(threads_max);
  for (State::Fiber& fiber : state_->fibers) {
    // Left uninitialised, because pages that are never touched take no memory.
    fiber.stack.reset(new char[kStackBytes]);
  }
}

FiberBlock::~FiberBlock() = default;

void FiberBlock::Run(int32_t threads, Order order,
                     const std::function<void(int32_t)>& body) {
  state_->body = &body;
  for (int32_t t = 0; t < threads; ++t) state_->Prepare(t);
  const std::vector<int64_t> turns = Ordered(threads, order);
  for (int32_t ended = 0; ended == 0;) {
    for (int64_t t : turns) {
      state_->Resume(static_cast<int32_t>(t));
      if (state_->fibers[t].ended) ++ended;
    }
    COHORT_CHECK(ended == 0 || ended == threads,
                 absl::StrCat(ended, " of ", threads,
                              " threads ended while others wait"));
  }
}

void FiberBlock::Sync() { state_->Wait(); }

std::vector<int64_t> Ordered(int64_t count, Order order) {
  std::vector<int64_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0);
  if (order == Order::kDescending) std::reverse(numbers.begin(), numbers.end());
  if (order == Order::kShuffled) {
    uint64_t state = 12345;
    for (int64_t i = count - 1; i > 0; --i) {
      state = state * 6364136223846793005 + 1442695040888963407;
      std::swap(numbers[i],
                numbers[static_cast<int64_t>((state >> 33) % (i + 1))]);
    }
  }
  return numbers;
}

}  // namespace cohort::kernels::cuda
