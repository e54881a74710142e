// The fallback once more, unboxed, for the operators that small programs spend their time in: arguments do not go
// through a stack, which saves a fifth of what an operator on the device costs over the CPU.
//
// Only for operators whose result is new memory, or the first argument written in place. Anything out of the ordinary
// (tensors of two devices, a layout that is not dense) is left to the boxed kernel.
#pragma once

#include "fallback.h"

namespace neuron {

template <class Signature>
struct Quick;

template <class Result, class... Arguments>
struct Quick<Result(Arguments...)> final : c10::OperatorKernel {
  explicit Quick(const c10::OperatorHandle& op) : op(op.typed<Result(Arguments...)>()), boxed(op) {}

  struct Seen {
    c10::DeviceIndex device = -1;
    bool ordinary = true;
  };

  static void look(const at::Tensor& tensor, Seen& seen) {
    if (tensor.defined() && on_device(tensor)) {
      const auto own = tensor.unsafeGetTensorImpl()->device().index();
      seen.ordinary &= is_dense(*tensor.unsafeGetTensorImpl()) && (seen.device < 0 || seen.device == own);
      seen.device = own;
    } else {
      seen.ordinary &= !writes && tensor.defined() && tensor.dim() == 0 && tensor.is_cpu();
    }
  }
  template <class Other>
  static void look(const Other&, Seen&) {}

  static at::Tensor lend(const at::Tensor& tensor) {
    return on_device(tensor) ? borrowed_cpu(tensor, false) : tensor;
  }
  template <class Other>
  static const Other& lend(const Other& other) {
    return other;
  }

  Result operator()(Arguments... arguments) {
    Seen seen;
    (look(arguments, seen), ...);
    if (C10_UNLIKELY(!seen.ordinary || seen.device < 0 || current_queue() != nullptr)) {
      return run_boxed(arguments...);
    }
    check_usable();
    Counted counted(boxed.record);
    if (C10_UNLIKELY(counted.on)) {
      (count_bytes(arguments, counted), ...);
    }
    if constexpr (writes) {
      return write(seen, arguments...);
    } else {
      at::Tensor made = op.redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), lend(arguments)...);
      if (C10_UNLIKELY(counted.on)) {
        count_bytes(made, counted);
      }
      return to_device(std::move(made), seen.device);
    }
  }

  template <class... Others>
  at::Tensor& write(const Seen&, at::Tensor& self, const Others&... others) {
    at::Tensor alias = borrowed_cpu(self, true);
    op.redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), alias, lend(others)...);
    written(*self.unsafeGetTensorImpl()->storage().unsafeGetStorageImpl());
    return self;
  }

  static void count_bytes(const at::Tensor& tensor, Counted& counted) {
    counted.bytes += tensor.unsafeGetTensorImpl()->numel() * tensor.dtype().itemsize();
  }
  template <class Other>
  static void count_bytes(const Other&, Counted&) {}

  template <class First, class... Others>
  Result run_boxed(First& first, Others&... others) {
    Stack stack;
    stack.reserve(sizeof...(Arguments));
    stack.emplace_back(first);
    (stack.emplace_back(others), ...);
    boxed(op, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), &stack);
    if constexpr (writes) {
      return first;
    } else {
      return std::move(stack.back()).toTensor();
    }
  }

  static constexpr bool writes = std::is_same_v<Result, at::Tensor&>;
  const c10::TypedOperatorHandle<Result(Arguments...)> op;
  Fallback boxed;
};

template <class Signature>
void register_quick(std::initializer_list<const char*> names) {
  for (const char* word : names) {
    const std::string name = word;
    const size_t dot = name.find('.');
    const c10::OperatorName full("aten::" + name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1));
    const auto op = c10::Dispatcher::singleton().findSchema(full);
    if (op.has_value() && !op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) {
      register_kernel(
          full, c10::DispatchKey::PrivateUse1,
          c10::KernelFunction::makeFromUnboxedFunctor<false, Quick<Signature>>(
              std::make_unique<Quick<Signature>>(*op)));
    }
  }
}

inline void register_quick_kernels() {
  using at::Scalar;
  using at::Tensor;
  register_quick<Tensor(const Tensor&, const Tensor&, const Scalar&)>({"add.Tensor", "sub.Tensor"});
  register_quick<Tensor&(Tensor&, const Tensor&, const Scalar&)>({"add_.Tensor", "sub_.Tensor"});
  register_quick<Tensor(const Tensor&, const Tensor&)>(
      {"mul.Tensor", "div.Tensor", "maximum", "minimum", "mm", "bmm", "mv", "dot", "eq.Tensor", "ne.Tensor",
       "lt.Tensor", "le.Tensor", "gt.Tensor", "ge.Tensor", "bitwise_and.Tensor", "bitwise_or.Tensor"});
  register_quick<Tensor&(Tensor&, const Tensor&)>({"mul_.Tensor", "div_.Tensor"});
  register_quick<Tensor(const Tensor&)>(
      {"exp", "log", "neg", "abs", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "tanh", "sigmoid", "relu", "silu",
       "erf", "bitwise_not"});
  register_quick<Tensor(const Tensor&, const Tensor&, const Tensor&, const Scalar&, const Scalar&)>({"addmm"});
}

} // namespace neuron
