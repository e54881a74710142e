// Sparse tensors of the device: COO and the compressed layouts.
//
// A sparse tensor has no memory of its own, but dense tensors that are its parts: its indices and its values. On the
// device the parts are device tensors, so the sparse tensor has a CPU twin whose parts are aliases of them.
#pragma once

#include "alias.h"

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>

namespace neuron {

inline bool is_coo(const c10::TensorImpl& impl) {
  return impl.layout() == c10::Layout::Sparse;
}

inline bool is_sparse(const c10::TensorImpl& impl) {
  switch (impl.layout()) {
    case c10::Layout::Sparse:
    case c10::Layout::SparseCsr:
    case c10::Layout::SparseCsc:
    case c10::Layout::SparseBsr:
    case c10::Layout::SparseBsc:
      return true;
    default:
      return false;
  }
}

// Where the CPU's kernel is for what was dispatched to the device's.
inline c10::DispatchKey on_cpu(c10::DispatchKeySet keys) {
  if (C10_UNLIKELY(keys.has(c10::DispatchKey::SparseCsrPrivateUse1))) {
    return c10::DispatchKey::SparseCsrCPU;
  }
  if (C10_UNLIKELY(keys.has(c10::DispatchKey::SparsePrivateUse1))) {
    return c10::DispatchKey::SparseCPU;
  }
  return c10::DispatchKey::CPU;
}

// Indices and values; compressed indices, plain indices and values.
using Parts = c10::SmallVector<at::Tensor, 3>;

inline Parts parts_of(const c10::TensorImpl& impl) {
  if (is_coo(impl)) {
    const auto& coo = static_cast<const at::SparseTensorImpl&>(impl);
    return {coo.indices(), coo.values()};
  }
  const auto& compressed = static_cast<const at::SparseCsrTensorImpl&>(impl);
  return {compressed.compressed_indices(), compressed.plain_indices(), compressed.values()};
}

inline bool same_parts(const Parts& some, const Parts& others) {
  return std::equal(some.begin(), some.end(), others.begin(), others.end(), [](const auto& a, const auto& b) {
    return a.is_same(b);
  });
}

// Gives a sparse tensor other parts, and the sizes of `like`. Each setter checks that sizes may change at all: those of
// a detached tensor may not, so only what differs is set.
inline void set_parts(c10::TensorImpl& impl, const Parts& parts, const c10::TensorImpl& like) {
  const bool same = same_parts(parts_of(impl), parts);
  if (!is_coo(impl)) {
    if (!same || impl.sizes() != like.sizes()) {
      static_cast<at::SparseCsrTensorImpl&>(impl).set_member_tensors(parts[0], parts[1], parts[2], like.sizes());
    }
    return;
  }
  auto& coo = static_cast<at::SparseTensorImpl&>(impl);
  const auto& model = static_cast<const at::SparseTensorImpl&>(like);
  if (coo.sizes() != model.sizes() || coo.sparse_dim() != model.sparse_dim() || coo.dense_dim() != model.dense_dim()) {
    coo.raw_resize_(model.sparse_dim(), model.dense_dim(), model.sizes());
  }
  if (!same) {
    coo.set_indices_and_values_unsafe(parts[0], parts[1]);
  }
  if (coo.coalesced() != model.coalesced()) {
    coo.set_coalesced(model.coalesced());
  }
}

// A sparse tensor like another, of parts on a device.
inline at::Tensor sparse_like(const c10::TensorImpl& like, const Parts& parts, c10::Device device) {
  using c10::DispatchKey;
  at::Tensor made;
  if (is_coo(like)) {
    const auto key = device.is_cpu() ? DispatchKey::SparseCPU : DispatchKey::SparsePrivateUse1;
    made = at::Tensor(c10::make_intrusive<at::SparseTensorImpl>(c10::DispatchKeySet(key), like.dtype()));
  } else {
    const auto key = device.is_cpu() ? DispatchKey::SparseCsrCPU : DispatchKey::SparseCsrPrivateUse1;
    made = at::Tensor(c10::make_intrusive<at::SparseCsrTensorImpl>(
        c10::DispatchKeySet(key), device, like.layout(), like.dtype()));
  }
  set_parts(*made.unsafeGetTensorImpl(), parts, like);
  return made;
}

} // namespace neuron
