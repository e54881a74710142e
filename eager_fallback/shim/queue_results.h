// What a queued call will give, before it is run: sizes and types from PyTorch's meta kernels, if the CPU's kernel would
// take the call at all.
#pragma once

#include "queue_text.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <memory>
#include <mutex>

namespace neuron {

inline at::Tensor as_meta(const at::Tensor& tensor) {
  if (!tensor.defined() || !on_device(tensor)) {
    return tensor;
  }
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  const c10::Device meta(c10::DeviceType::Meta);
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), storage_in(impl)->nbytes(), c10::DataPtr(nullptr, meta),
      c10::GetAllocator(c10::DeviceType::Meta), /*resizable=*/true);
  return same_view(std::move(storage), c10::DispatchKey::Meta, impl);
}

inline c10::IValue as_meta(const c10::IValue& value) {
  if (value.isTensor()) {
    return as_meta(value.toTensor());
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> made;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      made.push_back(as_meta(tensor));
    }
    return made;
  }
  if (value.isList() && value.toList().elementType()->kind() == c10::TypeKind::OptionalType) {
    c10::List<std::optional<at::Tensor>> made;
    for (const c10::IValue& element : value.toListRef()) {
      made.push_back(element.isTensor() ? std::optional(as_meta(element.toTensor())) : std::nullopt);
    }
    return made;
  }
  return value;
}

using Results = std::vector<Whole>;

struct KnownResults {
  std::mutex mutex;
  std::unordered_map<std::string, std::shared_ptr<const Results>> by_call;
};

// Arguments of the same types: with `value` for every element, each dimension as long as it is or of one element.
struct Standing {
  bool short_ones;
  int value;

  at::Tensor operator()(const at::Tensor& tensor, bool written) const {
    if (!tensor.defined() || !on_device(tensor)) {
      return tensor;
    }
    const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
    const c10::SmallVector<int64_t, 5> ones(impl.dim(), 1);
    const auto options = c10::TensorOptions(c10::typeMetaToScalarType(impl.dtype())).device(c10::DeviceType::CPU);
    at::Tensor made = at::empty(written && !short_ones ? impl.sizes() : c10::IntArrayRef(ones), options).fill_(value);
    return short_ones ? made : made.expand(impl.sizes());
  }

  c10::IValue operator()(const c10::IValue& given, bool written) const {
    if (given.isTensor()) {
      return (*this)(given.toTensor(), written);
    }
    if (given.isTensorList()) {
      c10::List<at::Tensor> made;
      for (const at::Tensor& tensor : given.toTensorVector()) {
        made.push_back((*this)(tensor, written));
      }
      return made;
    }
    if (given.isList() && given.toList().elementType()->kind() == c10::TypeKind::OptionalType) {
      c10::List<std::optional<at::Tensor>> made;
      for (const c10::IValue& element : given.toListRef()) {
        made.push_back(element.isTensor() ? std::optional((*this)(element.toTensor(), written)) : std::nullopt);
      }
      return made;
    }
    return given;
  }
};

struct Unheard final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

// Whether the CPU's kernel takes arguments of these types: meta kernels take many that it does not. Tried with few
// elements first; which of 0 and 1 is a wrong value depends on the operator.
inline bool kernel_takes(
    const c10::OperatorHandle& op, const c10::IValue* arguments, const c10::SmallVector<bool, 8>& written,
    const Results& results) {
  c10::impl::ExcludeDispatchKeyGuard below(c10::autograd_dispatch_keyset | c10::autocast_dispatch_keyset);
  Unheard unheard;
  const c10::WarningUtils::WarningHandlerGuard silently(&unheard);
  for (const Standing standing : {Standing{true, 1}, Standing{true, 0}, Standing{false, 1}, Standing{false, 0}}) {
    Stack stack;
    try {
      for (size_t i = 0; i < written.size(); ++i) {
        stack.push_back(standing(arguments[i], written[i]));
      }
      op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
    } catch (const std::exception&) {
      continue;
    }
    for (size_t i = 0; i < results.size(); ++i) {
      if (results[i].dtype != c10::ScalarType::Undefined && stack[i].toTensor().scalar_type() != results[i].dtype) {
        return false;
      }
    }
    return true;
  }
  return false;
}

// What a call gives, by PyTorch's meta kernel; null where that cannot tell, or gives what a queue does not take, or the
// CPU's kernel would refuse the call.
inline std::shared_ptr<const Results> infer(
    const c10::OperatorHandle& op, const std::string& call, const c10::IValue* arguments,
    const c10::SmallVector<bool, 8>& written) {
  static auto* known = new KnownResults();
  constexpr size_t kMost = 1 << 16;
  {
    std::lock_guard<std::mutex> lock(known->mutex);
    if (const auto found = known->by_call.find(call); found != known->by_call.end()) {
      return found->second;
    }
  }
  Stack stack;
  for (size_t i = 0; i < written.size(); ++i) {
    stack.push_back(as_meta(arguments[i]));
  }
  std::shared_ptr<Results> made = std::make_shared<Results>();
  try {
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
  } catch (const std::exception&) {
    return nullptr; // the call itself says better what is wrong
  }
  const auto& returns = op.schema().returns();
  for (size_t i = 0; i < stack.size(); ++i) {
    if (!stack[i].isTensor() && !stack[i].isNone()) {
      return nullptr;
    }
    Whole whole;
    const bool is_argument = i < returns.size() && returns[i].alias_info() != nullptr;
    if (!is_argument && stack[i].isTensor() && stack[i].toTensor().defined()) {
      const at::Tensor& result = stack[i].toTensor();
      if (result.numel() == 0 || result.layout() != c10::Layout::Strided || !is_whole(result.sizes(), result.strides())) {
        return nullptr;
      }
      whole.dtype = result.scalar_type();
      whole.sizes.assign(result.sizes().begin(), result.sizes().end());
      whole.strides.assign(result.strides().begin(), result.strides().end());
    }
    made->push_back(std::move(whole));
  }
  if (!kernel_takes(op, arguments, written, *made)) {
    return nullptr;
  }
  std::lock_guard<std::mutex> lock(known->mutex);
  if (known->by_call.size() >= kMost) {
    known->by_call.clear();
  }
  known->by_call.emplace(call, made);
  return made;
}

} // namespace neuron
