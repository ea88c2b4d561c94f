#pragma once

#include <cstdint>

#include "kernels/batch_norm_args.h"
#include "kernels/cuda/block.h"
#include "kernels/cuda/pack_kernel.h"
#include "kernels/cuda/plan.h"
#include "kernels/data_type.h"

// The interface of the CUDA sources to ordinary ones. Functions take plain data
// and return a cudaError_t as a number, 0 for success. None waits for the
// device.
struct CUstream_st;

namespace cohort::kernels::cuda {

int LaunchMoments(const MomentsArgs& args, const Plan& plan,
                  const Exchange& exchange, CUstream_st* stream);
int LaunchNormalize(const NormalizeArgs& args, const Plan& plan,
                    CUstream_st* stream);
int LaunchBackwardReduce(const BackwardReduceArgs& args, const Plan& plan,
                         const Exchange& exchange, CUstream_st* stream);
int LaunchBackwardElementwise(const BackwardElementwiseArgs& args,
                              const Plan& plan, CUstream_st* stream);
int LaunchPack(bool pack, const PackArgs& args, const PackPlan& plan,
               CUstream_st* stream);
int FillWithZeros(void* memory, int64_t bytes, CUstream_st* stream);

struct DeviceFacts {
  char name[256] = {};
  int32_t multiprocessors = 0;
  // Compute capability 9.0 is 90.
  int32_t capability = 0;
  int64_t memory_bytes = 0;
};

int CountDevices(int32_t& devices);
// Version of the linked runtime, such as 13000 for 13.0.
int32_t CudaVersion();
// For the calling thread.
int SetDevice(int32_t device);
int DescribeDevice(int32_t device, DeviceFacts& facts);

// Says whether this program has code that the current device runs.
int TryCode();

// Such as "cudaErrorNoDevice" and what it means.
const char* ErrorName(int error);
const char* ErrorMeaning(int error);

// Classes of errors that call for different answers.
bool IsOutOfMemory(int error);
bool IsWithoutCode(int error);
bool IsWithoutDevice(int error);

}  // namespace cohort::kernels::cuda
