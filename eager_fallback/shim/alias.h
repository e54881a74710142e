// Device tensors as CPU tensors on the same memory, and results of CPU kernels as device tensors: no copy either way.
#pragma once

#include "waiting.h"

#include <ATen/core/Tensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/TensorImpl.h>

namespace neuron {

inline bool on_device(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->device_type() == kDevice;
}

// What a tensor is beside its memory: conjugated, negated, or zero without any memory.
constexpr c10::DispatchKeySet kViewBits(
    {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor});

// Whose elements are not what their memory holds.
constexpr c10::DispatchKeySet kNotDense({c10::DispatchKey::NestedTensor, c10::DispatchKey::Quantized});

inline bool is_dense(const c10::TensorImpl& impl) {
  return impl.has_storage() && impl.layout() == c10::Layout::Strided && !impl.is_sparse() &&
      !impl.key_set().has_any(kNotDense);
}

// A tensor with the sizes of `like` on another storage and backend.
inline at::Tensor same_view(
    c10::intrusive_ptr<c10::StorageImpl> storage,
    c10::DispatchKey backend,
    const c10::TensorImpl& like) {
  const auto keys = c10::DispatchKeySet(backend) | (like.key_set() & kViewBits);
  auto made = c10::make_intrusive<c10::TensorImpl>(c10::Storage(std::move(storage)), keys, like.dtype());
  made->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (C10_UNLIKELY(like.is_wrapped_number())) {
    made->set_wrapped_number(true);
  }
  return at::Tensor(std::move(made));
}

inline c10::intrusive_ptr<c10::StorageImpl> cpu_storage(c10::DataPtr&& data, size_t bytes) {
  return c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes, std::move(data), c10::GetCPUAllocator(), /*resizable=*/true);
}

// Valid while the device tensor lives: for kernels that keep nothing. All aliases of a storage have one storage: kernels
// look at that to find arguments that overlap.
inline at::Tensor borrowed_cpu(const at::Tensor& tensor, bool writes) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  const c10::StorageImpl& storage = *impl.storage().unsafeGetStorageImpl();
  settle(storage, writes);
  const auto make = [&] {
    return cpu_storage({storage.data_ptr().get(), c10::Device(c10::DeviceType::CPU)}, storage.nbytes());
  };
  Block* block = block_of(storage);
  if (block == nullptr) {
    return same_view(make(), c10::DispatchKey::CPU, impl);
  }
  c10::StorageImpl* kept = block->on_cpu.load(std::memory_order_acquire);
  if (kept == nullptr) {
    auto made = make();
    if (block->on_cpu.compare_exchange_strong(kept, made.get(), std::memory_order_acq_rel)) {
      kept = made.release();
    }
  }
  return same_view(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(kept), c10::DispatchKey::CPU, impl);
}

inline void release_storage(void* context) {
  c10::intrusive_ptr<c10::StorageImpl>::reclaim(static_cast<c10::StorageImpl*>(context));
}

// Memory of a storage under another device's name; it keeps the storage.
inline c10::DataPtr shared_memory(const c10::Storage& storage, c10::Device device) {
  auto kept = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage.unsafeGetStorageImpl());
  void* data = kept->data_ptr().get();
  return {data, kept.release(), &release_storage, device};
}

// For those that look at sizes alone: values may still be waiting.
inline at::Tensor unsettled_cpu(const at::Tensor& tensor) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  const c10::Storage& storage = impl.storage();
  auto alias = cpu_storage(shared_memory(storage, c10::Device(c10::DeviceType::CPU)), storage.nbytes());
  return same_view(std::move(alias), c10::DispatchKey::CPU, impl);
}

inline at::Tensor owning_cpu(const at::Tensor& tensor, bool writes) {
  settle(*tensor.unsafeGetTensorImpl()->storage().unsafeGetStorageImpl(), writes);
  return unsettled_cpu(tensor);
}

inline uint64_t bits(c10::BackendComponent backend, c10::DispatchKey autocast) {
  return c10::DispatchKeySet(backend).raw_repr() | c10::DispatchKeySet(autocast).raw_repr();
}

// Not a class to make objects of: it may name the two members by which a tensor knows its device.
struct Members : c10::TensorImpl {
  static void move(c10::TensorImpl& impl, c10::Device device) {
    using c10::BackendComponent;
    using c10::DispatchKey;
    c10::DispatchKeySet& keys = impl.*(&Members::key_set_);
    keys = c10::DispatchKeySet(
        c10::DispatchKeySet::RAW,
        (keys.raw_repr() & ~bits(BackendComponent::CPUBit, DispatchKey::AutocastCPU)) |
            bits(BackendComponent::PrivateUse1Bit, DispatchKey::AutocastPrivateUse1));
    impl.*(&Members::device_opt_) = device;
  }
};

// A dense CPU tensor as a device tensor. One that nobody else sees is turned into it, memory and all.
inline at::Tensor to_device(at::Tensor&& tensor, c10::DeviceIndex index) {
  c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  c10::StorageImpl& storage = *impl.storage().unsafeGetStorageImpl();
  const size_t bytes = storage.nbytes();
  const bool alone = tensor.use_count() == 1 && impl.storage().use_count() == 1 && impl.pyobj_slot()->load_pyobj() == nullptr &&
      storage.pyobj_slot()->load_pyobj() == nullptr && storage.allocator() == c10::GetCPUAllocator();
  if (C10_LIKELY(alone)) {
    auto memory = storage.set_data_ptr(c10::DataPtr());
    storage.set_data_ptr_noswap(adopt(std::move(memory), bytes, index));
    storage.set_allocator(allocator());
    Members::move(impl, c10::Device(kDevice, index));
    return std::move(tensor);
  }
  auto memory = shared_memory(impl.storage(), c10::Device(c10::DeviceType::CPU));
  return same_view(device_storage(adopt(std::move(memory), bytes, index), bytes), c10::DispatchKey::PrivateUse1, impl);
}

// The kernel may have given its alias other sizes or other memory (out=, resizing): so has the device tensor then.
inline void take_back(const at::Tensor& original, const at::Tensor& alias) {
  c10::TensorImpl& impl = *original.unsafeGetTensorImpl();
  const c10::TensorImpl& seen = *alias.unsafeGetTensorImpl();
  c10::StorageImpl& storage = *impl.storage().unsafeGetStorageImpl();
  c10::StorageImpl& alias_storage = *seen.storage().unsafeGetStorageImpl();
  if (C10_UNLIKELY(alias_storage.data_ptr().get_context() != nullptr && alias_storage.data_ptr().get_deleter() != &release_storage)) {
    const size_t bytes = alias_storage.nbytes();
    auto memory = alias_storage.set_data_ptr(c10::DataPtr());
    storage.set_data_ptr_noswap(adopt(std::move(memory), bytes, impl.device().index()));
    storage.set_nbytes(bytes);
  } else {
    written(storage);
  }
  if (C10_UNLIKELY(seen.sizes() != impl.sizes() || seen.strides() != impl.strides())) {
    impl.set_sizes_and_strides(seen.sizes(), seen.strides(), seen.storage_offset());
  }
}

} // namespace neuron
