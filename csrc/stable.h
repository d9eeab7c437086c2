// The only file that knows torch's stable C++ interface: what the ops need of a tensor, and of threads.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#ifdef USE_CUDA
#include <cuda_runtime.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/macros.h>
#endif

#include <cstdint>
#include <initializer_list>
#include <tuple>
#include <vector>

namespace hisparse {

using torch::headeronly::ScalarType;
using torch::stable::Device;
using torch::stable::DeviceType;
using torch::stable::parallel_for;
using torch::stable::Tensor;
using TensorList = std::vector<Tensor>;

// A fresh, unwritten int32 tensor beside `like`.
inline Tensor new_indices(const Tensor& like, std::initializer_list<int64_t> sizes) {
  return torch::stable::new_empty(like, {sizes.begin(), sizes.size()}, ScalarType::Int);
}

inline int32_t* indices_of(Tensor& tensor) { return tensor.mutable_data_ptr<int32_t>(); }

#ifdef USE_CUDA
// Makes the device of `beside` current for the time of a call, and knows torch's current stream there.
class CudaCall {
 public:
  explicit CudaCall(const Tensor& beside) : guard_(beside.get_device()) {
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(beside.get_device(), &stream_));
  }

  void* stream() const { return stream_; }

 private:
  torch::stable::accelerator::DeviceGuard guard_;
  void* stream_ = nullptr;
};
#endif

}  // namespace hisparse
