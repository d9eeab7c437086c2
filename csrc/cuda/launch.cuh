// How every op reaches the GPU: on the device and stream that torch has current, with one checked launch.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "stable.h"

namespace hisparse::cuda {

struct LaunchShape {
  int64_t blocks;
  int threads;
  size_t shared_bytes = 0;  // dynamic
  int cluster = 1;          // blocks that run together
};

// Every kernel of this folder may start while the one before it in the stream still runs: it hides the
// start-up time. A kernel calls this before it relies on global memory.
__device__ __forceinline__ void wait_for_previous_kernel() {
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
}

// The device and stream of one call.
class Queue {
 public:
  explicit Queue(const Tensor& beside) : call_(beside) {}

  // Streaming multiprocessors of the device.
  int processors() const {
    int device = 0, count = 0;
    STD_CUDA_CHECK(cudaGetDevice(&device));
    STD_CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
    return count;
  }

  // A shape that the device cannot run raises here, before anything has changed.
  template <class... Params, class... Args>
  void launch(void (*kernel)(Params...), const LaunchShape& shape, const Args&... args) const {
    constexpr size_t kSharedWithoutAsking = 48 << 10;
    if (shape.shared_bytes > kSharedWithoutAsking) {
      STD_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(shape.shared_bytes)));
    }
    cudaLaunchAttribute attributes[2]{};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = shape.cluster;
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(shape.blocks));
    config.blockDim = dim3(shape.threads);
    config.dynamicSmemBytes = shape.shared_bytes;
    config.stream = static_cast<cudaStream_t>(call_.stream());
    config.attrs = attributes;
    config.numAttrs = shape.cluster > 1 ? 2 : 1;
    STD_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...));
  }

 private:
  CudaCall call_;
};

}  // namespace hisparse::cuda
