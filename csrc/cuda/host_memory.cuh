// Pools in CPU memory, as a GPU kernel reaches them.
#pragma once

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#include "common/params.h"
#include "stable.h"

namespace hisparse::cuda {

// The address under which the GPU sees a byte of pinned memory; null if the byte is not pinned.
inline char* device_address(char* host) {
  cudaPointerAttributes attributes{};
  STD_CUDA_CHECK(cudaPointerGetAttributes(&attributes, host));
  return static_cast<char*>(attributes.devicePointer);
}

// Replaces the addresses of CPU layers by those that the GPU sees. They differ from registration to
// registration, so that a layer must lie within one.
inline void make_reachable(const char* op, const char* name, const TensorList& tensors, Pool& pool,
                           int64_t row_bytes) {
  if (pool.rows == 0 || row_bytes == 0) return;
  for (size_t l = 0; l < tensors.size(); ++l) {
    if (!tensors[l].is_cpu()) continue;
    Layer& layer = pool.layers[l];
    const int64_t last = (pool.rows - 1) * layer.row_stride + row_bytes - 1;
    char* first_byte = device_address(layer.data);
    if (first_byte == nullptr || device_address(layer.data + last) != first_byte + last) {
      throw std::runtime_error(std::string("hisparse::") + op + ": " + name +
                               " must be on the GPU, or wholly in one piece of pinned CPU memory");
    }
    layer.data = first_byte;
  }
}

}  // namespace hisparse::cuda
