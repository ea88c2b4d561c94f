#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <type_traits>
#include <vector>

#include "kernels/cuda/block.h"

// Runs the templates of the CUDA kernels on this processor: blocks one after
// another, the threads of a block as fibres that take turns at each barrier. It
// finds wrong indices, missing and diverging barriers, and results that depend
// on the order of blocks or threads. It cannot show speed or the visibility of
// memory between threads.
namespace cohort::kernels::cuda {

// The order in which blocks, and threads between two barriers, run.
enum class Order { kAscending, kDescending, kShuffled };

// The threads of one block.
class FiberBlock {
 public:
  explicit FiberBlock(int32_t threads_max);
  ~FiberBlock();
  FiberBlock(const FiberBlock&) = delete;
  FiberBlock& operator=(const FiberBlock&) = delete;

  // Runs body(thread) for [0, threads). Aborts the process if some threads
  // end while others wait at a barrier.
  void Run(int32_t threads, Order order,
           const std::function<void(int32_t)>& body);

  // A barrier; called within a body.
  void Sync();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A thread's place in an emulated launch.
class EmulatedThread {
 public:
  EmulatedThread(FiberBlock* fibers, int32_t thread, int64_t block,
                 int64_t blocks)
      : fibers_(fibers), thread_(thread), block_(block), blocks_(blocks) {}

  int32_t thread() const { return thread_; }
  int64_t block() const { return block_; }
  int64_t blocks() const { return blocks_; }
  void Sync() const { fibers_->Sync(); }

  bool LastToArrive(uint32_t* counter, int64_t parties, bool& flag) const {
    Sync();
    if (parties == 1) return true;
    if (thread_ == 0) {
      flag = ++*counter == parties;
      if (flag) *counter = 0;
    }
    Sync();
    const bool is_last = flag;
    Sync();
    return is_last;
  }

 private:
  FiberBlock* fibers_;
  int32_t thread_;
  int64_t block_;
  int64_t blocks_;
};

// The numbers [0, count) in an order.
std::vector<int64_t> Ordered(int64_t count, Order order);

// The counterpart of StreamLauncher.
struct EmulatedLauncher {
  template <typename Kernel>
  void Launch(const typename Kernel::Args& args,
              const typename Kernel::ThePlan& plan, int64_t blocks) {
    using Shared = typename Kernel::Shared;
    const auto shared = std::make_unique<Shared>();
    for (int64_t block : Ordered(blocks, order)) {
      // Shared memory is undefined when a block begins; here it is NaN.
      std::memset(static_cast<void*>(shared.get()), 0xff, sizeof(Shared));
      const auto body = [&](int32_t thread) {
        Kernel::Run(EmulatedThread(fibers, thread, block, blocks), *shared,
                    args, plan, exchange);
      };
      if (std::is_empty_v<Shared>) {
        // A kernel without shared memory has no barrier.
        for (int64_t t : Ordered(Kernel::kThreads, order)) {
          body(static_cast<int32_t>(t));
        }
      } else {
        fibers->Run(Kernel::kThreads, order, body);
      }
    }
  }

  FiberBlock* fibers = nullptr;
  Exchange exchange = {};
  Order order = Order::kAscending;
};

}  // namespace cohort::kernels::cuda
