// The checks that the ops share, so that siblings refuse the same mistake in the same way.
#pragma once

#include <sstream>
#include <stdexcept>
#include <utility>

#include "common/overlap.h"
#include "common/params.h"
#include "stable.h"

namespace hisparse {

constexpr int64_t kAnySize = -1;
constexpr int64_t kMaxRows = int64_t{kMaxRow} + 1;

// The checks of one call, all against the device of one tensor.
class Checks {
 public:
  Checks(const char* op, const Tensor& anchor) : op_(op), device_(anchor.device()) {}

  template <class... Parts>
  void require(bool holds, const Parts&... message) const {
    if (holds) return;
    std::ostringstream text;
    text << "hisparse::" << op_ << ": ";
    (text << ... << message);
    throw std::runtime_error(text.str());
  }

  // A list of int32.
  NumberList list(const char* name, const Tensor& tensor, int64_t size = kAnySize) const {
    return {whole(name, tensor, {size}), tensor.size(0)};
  }

  // Two contiguous int32 tensors of equal shape.
  PairList pairs(const char* source_name, const Tensor& source, const char* destination_name,
                 const Tensor& destination) const {
    typed(source_name, source, ScalarType::Int, source.dim());
    typed(destination_name, destination, ScalarType::Int, source.dim());
    for (int64_t dim = 0; dim < source.dim(); ++dim) {
      sized(destination_name, destination, dim, source.size(dim));
    }
    contiguous(source_name, source);
    contiguous(destination_name, destination);
    return {source.const_data_ptr<int32_t>(), destination.const_data_ptr<int32_t>(), source.numel()};
  }

  // An int32 matrix at any row stride.
  IndexMatrix matrix(const char* name, const Tensor& tensor, int64_t rows = kAnySize,
                     int64_t columns = kAnySize) const {
    typed(name, tensor, ScalarType::Int, 2);
    sized(name, tensor, 0, rows);
    sized(name, tensor, 1, columns);
    require(tensor.size(1) <= 1 || tensor.stride(1) == 1, name, " must have contiguous rows, got stride ",
            tensor.stride(1), " in dimension 1");
    return {tensor.const_data_ptr<int32_t>(), tensor.size(0), tensor.size(1), tensor.stride(0)};
  }

  // A contiguous int32 tensor.
  int32_t* whole(const char* name, const Tensor& tensor, std::initializer_list<int64_t> sizes) const {
    typed(name, tensor, ScalarType::Int, sizes.size());
    int64_t dim = 0;
    for (const int64_t size : sizes) sized(name, tensor, dim++, size);
    contiguous(name, tensor);
    return static_cast<int32_t*>(tensor.data_ptr());
  }

  HotSlots slots(const Tensor& rows) const {
    int32_t* data = whole("slot_rows", rows, {kAnySize, kAnySize});
    require(rows.size(1) <= kMaxRow, "slot_rows must have fewer than 2^31 slots, got ", rows.size(1));
    return {data, nullptr, nullptr, rows.size(0), rows.size(1)};
  }

  HotSlots slots(const Tensor& rows, const Tensor& stamps, const Tensor& clock) const {
    HotSlots hot = slots(rows);
    hot.stamps = whole("slot_stamps", stamps, {hot.states, hot.slots});
    hot.clock = whole("clock", clock, {hot.states});
    return hot;
  }

  void typed(const char* name, const Tensor& tensor, ScalarType dtype, int64_t dims) const {
    require(tensor.scalar_type() == dtype, name, " must have dtype ", toString(dtype), ", got ",
            toString(tensor.scalar_type()));
    require(tensor.dim() == dims, name, " must have ", dims, " dimensions, got ", tensor.dim());
    require(tensor.device() == device_, name, " must be on the same device as the other arguments");
  }

  void sized(const char* name, const Tensor& tensor, int64_t dim, int64_t size) const {
    require(size == kAnySize || tensor.size(dim) == size, name, " must have size ", size, " in dimension ",
            dim, ", got ", tensor.size(dim));
  }

  void contiguous(const char* name, const Tensor& tensor) const {
    require(tensor.is_contiguous(), name, " must be contiguous");
  }

  BlockShape blocks(int64_t block_size, int64_t block_stride) const {
    require(block_size > 0, "block_size must be positive, got ", block_size);
    require(block_stride >= block_size, "a block stride must be at least block_size (", block_size, "), got ",
            block_stride);
    require(block_stride <= kMaxRow, "a block stride must stay below 2^31, got ", block_stride);
    return {static_cast<int32_t>(block_size), static_cast<int32_t>(block_stride)};
  }

  PoolPair pools(const char* source_name, const TensorList& source, const char* destination_name,
                 const TensorList& destination) const {
    require(source.size() == destination.size() && !source.empty(), source_name, " and ", destination_name,
            " must hold the same layers, got ", source.size(), " and ", destination.size());
    const Tensor& sample = source[0];
    Pool from = pool(source_name, source, sample), to = pool(destination_name, destination, sample);
    return {std::move(from), std::move(to), sample.size(1) * static_cast<int64_t>(sample.element_size())};
  }

  PoolPair separate_pools(const char* source_name, const TensorList& source, const char* destination_name,
                          const TensorList& destination) const {
    PoolPair pair = pools(source_name, source, destination_name, destination);
    require(!overlap(pair), source_name, " and ", destination_name, " must not overlap");
    return pair;
  }

 private:
  // A pool lies beside the indices, or in CPU memory that a GPU reads.
  Pool pool(const char* name, const TensorList& tensors, const Tensor& sample) const {
    Pool pool{};
    pool.layers.reserve(tensors.size());
    for (const Tensor& layer : tensors) {
      require(layer.dim() == 2, name, " must hold [rows, width] tensors, got ", layer.dim(), " dimensions");
      require(layer.scalar_type() == sample.scalar_type(), "pools must agree in dtype: ", name, " has ",
              toString(layer.scalar_type()), ", expected ", toString(sample.scalar_type()));
      require(layer.size(1) == sample.size(1), "pools must agree in width: ", name, " has ", layer.size(1),
              ", expected ", sample.size(1));
      if (pool.layers.empty()) pool.rows = layer.size(0);
      require(layer.size(0) == pool.rows, "the layers of ", name, " must have equal numbers of rows, got ",
              pool.rows, " and ", layer.size(0));
      require(pool.rows <= kMaxRows, name, " must have at most 2^31 rows, got ", pool.rows);
      require(layer.device() == device_ || (device_.is_cuda() && layer.is_cpu()), name,
              " must be on the same device as the indices");
      require(layer.size(1) <= 1 || layer.stride(1) == 1, name, " must have contiguous rows, got stride ",
              layer.stride(1), " in dimension 1");
      require(pool.rows <= 1 || layer.stride(0) >= layer.size(1), name,
              " must not have overlapping rows: ", layer.size(1), " wide, ", layer.stride(0), " apart");
      const auto element = static_cast<int64_t>(layer.element_size());
      pool.layers.push_back({static_cast<char*>(layer.data_ptr()), layer.stride(0) * element});
    }
    return pool;
  }

  const char* op_;
  Device device_;
};

}  // namespace hisparse
