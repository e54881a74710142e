// The one boxed kernel: device tensors become CPU tensors on the same memory, the CPU kernel runs, results come back.
//
// It is registered by itself for every operator with a CPU kernel, and as the catch-all for the rest: with the
// catch-all alone, structured operators would go through their composite kernel first.
#pragma once

#include "alias.h"
#include "device.h"
#include "ledger.h"
#include "queued_call.h"
#include "sparse.h"

#include <ATen/core/List.h>

#include <algorithm>

namespace neuron {

// Registrations are kept for the life of the process.
inline std::vector<c10::RegistrationHandleRAII>& registrations() {
  static auto* made = new std::vector<c10::RegistrationHandleRAII>();
  return *made;
}

inline void register_kernel(const c10::OperatorName& name, c10::DispatchKey key, c10::KernelFunction kernel) {
  registrations().push_back(c10::Dispatcher::singleton().registerImpl(
      name, key, std::move(kernel), std::nullopt, nullptr, "device neuron"));
}

inline std::string full_name(const c10::OperatorName& name) {
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

// Operators in which tensors of several devices may meet, as on CUDA.
inline bool may_mix(const std::string& name) {
  static const std::unordered_map<std::string, bool> names = {
      {"aten::copy_", true},
      {"aten::_copy_from", true},
      {"aten::_copy_from_and_resize", true},
      {"aten::_pack_padded_sequence", true},
      {"aten::_pack_padded_sequence_backward", true},
      {"aten::_pad_packed_sequence", true},
      {"aten::_ctc_loss", true},
      {"aten::_ctc_loss_backward", true},
      {"aten::ctc_loss", true},
  };
  return names.count(name) != 0;
}

// Arguments that a kernel writes without its schema saying so: running statistics.
inline bool writes_silently(const std::string& name, const std::string& argument) {
  return (name == "aten::native_batch_norm" || name == "aten::batch_norm") &&
      (argument == "running_mean" || argument == "running_var");
}

// Kernels that keep what a backward pass needs only if an argument wants a gradient, and leave it undefined otherwise.
inline bool asks_for_gradients(const std::string& name) {
  return name == "aten::_sparse_mm_reduce_impl";
}

struct Fallback final : c10::OperatorKernel {
  enum Kind : uint8_t { kPlain, kTensor, kWritten, kTensors, kWrittenTensors, kIndices, kGenerator, kDeviceArgument };

  explicit Fallback(const c10::OperatorHandle& op)
      : record(record_of(full_name(op.operator_name()))),
        queueing(op.schema()),
        count(op.schema().arguments().size()),
        returns(count_returns(op.schema())),
        owning(op.operator_name().name.rfind("aten::", 0) != 0),
        mixing(may_mix(op.operator_name().name)),
        asking(asks_for_gradients(op.operator_name().name)) {
    const auto& arguments = op.schema().arguments();
    for (size_t i = 0; i < count; ++i) {
      const Kind kind = kind_of(op.operator_name().name, arguments[i]);
      if (kind != kPlain) {
        looked_at.push_back({static_cast<uint32_t>(i), kind});
      }
    }
  }

  static Kind kind_of(const std::string& op, const c10::Argument& argument) {
    const bool written =
        (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) || writes_silently(op, argument.name());
    c10::TypePtr type = argument.type();
    if (auto optional = type->cast<c10::OptionalType>()) {
      type = optional->getElementType();
    }
    switch (type->kind()) {
      case c10::TypeKind::TensorType:
        return written ? kWritten : kTensor;
      case c10::TypeKind::ListType: {
        const auto element = type->expectRef<c10::ListType>().getElementType();
        if (element->kind() == c10::TypeKind::TensorType) {
          return written ? kWrittenTensors : kTensors;
        }
        if (auto optional = element->cast<c10::OptionalType>()) {
          return optional->getElementType()->kind() == c10::TypeKind::TensorType ? kIndices : kPlain;
        }
        return kPlain;
      }
      case c10::TypeKind::GeneratorType:
        return kGenerator;
      case c10::TypeKind::DeviceObjType:
        return kDeviceArgument;
      default:
        return kPlain;
    }
  }

  // Tensors that a call may return; a list has any number.
  static size_t count_returns(const c10::FunctionSchema& schema) {
    size_t found = 0;
    for (const c10::Argument& result : schema.returns()) {
      found += result.type()->kind() == c10::TypeKind::ListType ? 2 : 1;
    }
    return found;
  }

  struct Place {
    uint32_t index;
    Kind kind;
  };
  struct Pair {
    at::Tensor original, alias;
    bool written;
  };
  using Pairs = c10::SmallVector<Pair, 6>;
  struct SparsePair {
    at::Tensor original, alias;
    Parts parts; // of the alias, as it was given to the kernel
    bool written;
  };

  // What one call found out about devices.
  struct Call {
    Pairs pairs;
    c10::SmallVector<SparsePair, 0> sparse; // parts of these are among the pairs
    c10::DeviceIndex device = -1; // of the results
    bool on_cpu = false; // a CPU tensor with dimensions is among the arguments
    bool cpu_written = false;
    bool two_devices = false;
    bool index_on_device = false;
    bool data_on_device = false;
    bool result_on_cpu = false;
  };

  at::Tensor alias(const c10::OperatorHandle& op, const at::Tensor& tensor, bool writes, const Call& call) const {
    const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
    TORCH_CHECK_NOT_IMPLEMENTED(
        is_dense(impl),
        op.operator_name(), ": device neuron holds dense and sparse tensors; this one has layout ", tensor.layout(),
        " and dtype ", tensor.dtype(),
        ". Move it to the CPU for this operation.");
    if (!owning) {
      return borrowed_cpu(tensor, writes);
    }
    for (const Pair& pair : call.pairs) {
      if (pair.original.unsafeGetTensorImpl()->storage().is_alias_of(impl.storage())) {
        settle(*storage_in(impl), writes);
        auto shared = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(
            pair.alias.unsafeGetTensorImpl()->storage().unsafeGetStorageImpl());
        return same_view(std::move(shared), c10::DispatchKey::CPU, impl);
      }
    }
    return owning_cpu(tensor, writes);
  }

  void take(const c10::OperatorHandle& op, at::Tensor&& tensor, bool writes, bool index, Call& call, c10::IValue& into)
      const {
    if (!tensor.defined()) {
      into = c10::IValue(std::move(tensor));
      return;
    }
    if (!on_device(tensor)) {
      if (tensor.device().type() == c10::DeviceType::CPU) {
        call.on_cpu |= !index && tensor.dim() > 0;
        call.cpu_written |= writes;
      }
      into = c10::IValue(std::move(tensor));
      return;
    }
    const c10::DeviceIndex own = tensor.unsafeGetTensorImpl()->device().index();
    (index ? call.index_on_device : call.data_on_device) = true;
    call.two_devices |= call.device >= 0 && call.device != own;
    if (call.device < 0) {
      call.device = own;
    }
    if (C10_UNLIKELY(is_sparse(*tensor.unsafeGetTensorImpl()))) {
      into = take_sparse(op, std::move(tensor), writes, call);
      return;
    }
    if (writes) {
      // Read and written (out= of an argument): the kernel has to see one tensor, to notice.
      for (Pair& pair : call.pairs) {
        if (pair.original.is_same(tensor)) {
          settle(*storage_in(*tensor.unsafeGetTensorImpl()), true);
          pair.written = true;
          into = c10::IValue(pair.alias);
          return;
        }
      }
    }
    at::Tensor made = alias(op, tensor, writes, call);
    if (C10_UNLIKELY(asking)) {
      made.set_requires_grad(tensor.requires_grad());
    }
    into = c10::IValue(made);
    call.pairs.push_back({std::move(tensor), std::move(made), writes});
  }

  at::Tensor take_sparse(const c10::OperatorHandle& op, at::Tensor&& tensor, bool writes, Call& call) const {
    const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
    Parts parts;
    for (at::Tensor& part : parts_of(impl)) {
      c10::IValue made;
      take(op, std::move(part), writes, false, call, made);
      parts.push_back(std::move(made).toTensor());
    }
    for (SparsePair& pair : call.sparse) {
      if (pair.original.is_same(tensor)) {
        pair.written |= writes;
        return pair.alias;
      }
    }
    at::Tensor made = sparse_like(impl, parts, c10::Device(c10::DeviceType::CPU));
    if (C10_UNLIKELY(asking)) {
      made.set_requires_grad(tensor.requires_grad());
    }
    call.sparse.push_back({std::move(tensor), made, std::move(parts), writes});
    return made;
  }

  void arguments_in(const c10::OperatorHandle& op, c10::IValue* arguments, Call& call) const {
    for (const Place place : looked_at) {
      c10::IValue& value = arguments[place.index];
      switch (place.kind) {
        case kTensor:
        case kWritten:
          if (value.isTensor()) {
            take(op, std::move(value).toTensor(), place.kind == kWritten, false, call, value);
          }
          break;
        case kTensors:
        case kWrittenTensors:
          if (value.isTensorList()) {
            tensors_in(op, value, place.kind == kWrittenTensors, call);
          }
          break;
        case kIndices:
          if (value.isList()) {
            indices_in(op, value, call);
          }
          break;
        case kGenerator:
          if (value.isGenerator()) {
            value = c10::IValue(cpu_generator(value.toGenerator()));
          }
          break;
        case kDeviceArgument:
          if (value.isDevice()) {
            const c10::Device asked = value.toDevice();
            if (asked.type() == kDevice) {
              call.device = check_index(asked.index());
              value = c10::IValue(c10::Device(c10::DeviceType::CPU));
            } else if (asked.type() == c10::DeviceType::CPU) {
              call.result_on_cpu = true;
            }
          }
          break;
        case kPlain:
          break;
      }
    }
  }

  void tensors_in(const c10::OperatorHandle& op, c10::IValue& value, bool writes, Call& call) const {
    auto given = value.toTensorVector();
    c10::List<at::Tensor> taken;
    taken.reserve(given.size());
    for (at::Tensor& tensor : given) {
      c10::IValue made;
      take(op, std::move(tensor), writes, false, call, made);
      taken.push_back(std::move(made).toTensor());
    }
    value = c10::IValue(std::move(taken));
  }

  void indices_in(const c10::OperatorHandle& op, c10::IValue& value, Call& call) const {
    const auto given = value.toList();
    c10::List<std::optional<at::Tensor>> taken;
    taken.reserve(given.size());
    for (size_t i = 0; i < given.size(); ++i) {
      const c10::IValue element = given.get(i);
      if (!element.isTensor()) {
        taken.push_back(std::nullopt);
        continue;
      }
      c10::IValue made;
      take(op, at::Tensor(element.toTensor()), false, true, call, made);
      taken.push_back(std::move(made).toTensor());
    }
    value = c10::IValue(std::move(taken));
  }

  void check_devices(const c10::OperatorHandle& op, const Call& call) const {
    if (C10_LIKELY(!call.on_cpu && !call.two_devices && !call.cpu_written) || mixing) {
      return;
    }
    TORCH_CHECK(
        !call.two_devices,
        "Expected all tensors to be on the same device, but found at least two devices of type neuron! (in ",
        op.operator_name(), ")");
    TORCH_CHECK(
        call.data_on_device || !call.index_on_device,
        "indices should be either on cpu or on the same device as the indexed tensor (cpu)");
    TORCH_CHECK(
        false,
        "Expected all tensors to be on the same device, but found at least two devices, neuron:",
        static_cast<int>(call.device), " and cpu! (in ", op.operator_name(), ")");
  }

  using Made = c10::SmallVectorImpl<std::pair<c10::StorageImpl*, at::Tensor>>;

  Parts parts_out(const c10::TensorImpl& result, Call& call, Made& made) const {
    Parts parts = parts_of(result);
    for (at::Tensor& part : parts) {
      part = result_out(std::move(part), call, made);
    }
    return parts;
  }

  at::Tensor result_out(at::Tensor&& result, Call& call, Made& made) const {
    if (!result.defined() || result.device().type() != c10::DeviceType::CPU) {
      return std::move(result);
    }
    const c10::TensorImpl* impl = result.unsafeGetTensorImpl();
    for (const Pair& pair : call.pairs) {
      if (pair.alias.unsafeGetTensorImpl() == impl) {
        return pair.original;
      }
    }
    for (const SparsePair& pair : call.sparse) {
      if (pair.alias.unsafeGetTensorImpl() == impl) {
        return pair.original;
      }
    }
    if (call.result_on_cpu || call.device < 0) {
      return std::move(result);
    }
    if (C10_UNLIKELY(is_sparse(*impl))) {
      return sparse_like(*impl, parts_out(*impl, call, made), c10::Device(kDevice, call.device));
    }
    TORCH_CHECK_NOT_IMPLEMENTED(
        is_dense(*impl),
        record.name, ": device neuron holds dense and sparse tensors; the result has layout ", result.layout(),
        " and dtype ", result.dtype(),
        ". Move the arguments to the CPU for this operation.");
    c10::StorageImpl* storage = impl->storage().unsafeGetStorageImpl();
    // A view of an argument, or of another result.
    for (const Pair& pair : call.pairs) {
      if (pair.alias.unsafeGetTensorImpl()->storage().unsafeGetStorageImpl() == storage) {
        auto shared = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(
            pair.original.unsafeGetTensorImpl()->storage().unsafeGetStorageImpl());
        return same_view(std::move(shared), c10::DispatchKey::PrivateUse1, *impl);
      }
    }
    for (const auto& [seen, tensor] : made) {
      if (seen == storage) {
        auto shared = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(
            tensor.unsafeGetTensorImpl()->storage().unsafeGetStorageImpl());
        return same_view(std::move(shared), c10::DispatchKey::PrivateUse1, *impl);
      }
    }
    at::Tensor fresh = to_device(std::move(result), call.device);
    if (returns > 1) {
      made.emplace_back(storage, fresh);
    }
    return fresh;
  }

  // Results that share memory must go on sharing it, so their storages must outlive the search: a list's do anyhow.
  void results_out(Stack* stack, size_t first, Call& call) const {
    c10::SmallVector<std::pair<c10::StorageImpl*, at::Tensor>, 4> made;
    for (size_t i = first; i < stack->size(); ++i) {
      c10::IValue& value = (*stack)[i];
      if (value.isTensor()) {
        value = c10::IValue(result_out(std::move(value).toTensor(), call, made));
      } else if (value.isTensorList()) {
        auto given = value.toTensorVector();
        value = c10::IValue(); // or the results would not be alone with their memory
        c10::List<at::Tensor> taken;
        taken.reserve(given.size());
        for (at::Tensor& tensor : given) {
          taken.push_back(result_out(std::move(tensor), call, made));
        }
        value = c10::IValue(std::move(taken));
      }
    }
  }

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    check_usable();
    const c10::DispatchKey cpu = on_cpu(keys);
    Counted counted(record);
    if (Queue* queue = current_queue(); C10_UNLIKELY(queue != nullptr)) {
      if (queue->takes(record) && queueing.possible && queueing(*queue, op, record, stack, counted.bytes)) {
        return;
      }
      if (const Missed told = missed.load(); queue->one_by_one() && told != nullptr) {
        told(record.name.c_str());
      }
    }
    Call call;
    arguments_in(op, stack->data() + (stack->size() - count), call);
    check_devices(op, call);
    TORCH_CHECK_NOT_IMPLEMENTED(
        op.hasComputedKernelForDispatchKey(cpu),
        "Could not run '", op.operator_name(), "' on device neuron: it has no kernel for neuron and none for the CPU.");
    const size_t first = stack->size() - count;
    try {
      op.redispatchBoxed(c10::DispatchKeySet(cpu), stack);
    } catch (...) {
      write_back(call); // a kernel may have resized before it raised
      throw;
    }
    if (C10_UNLIKELY(counted.on)) {
      counted.bytes = bytes_of(call, *stack, first);
    }
    write_back(call);
    results_out(stack, first, call);
  }

  void write_back(Call& call) const {
    for (const Pair& pair : call.pairs) {
      if (pair.written) {
        take_back(pair.original, pair.alias);
      }
    }
    for (const SparsePair& pair : call.sparse) {
      if (pair.written) {
        take_back_sparse(pair, call);
      }
    }
  }

  // The kernel may have given its alias other parts: they are the device tensor's then.
  void take_back_sparse(const SparsePair& pair, Call& call) const {
    c10::TensorImpl& impl = *pair.original.unsafeGetTensorImpl();
    const c10::TensorImpl& seen = *pair.alias.unsafeGetTensorImpl();
    c10::SmallVector<std::pair<c10::StorageImpl*, at::Tensor>, 0> made;
    set_parts(impl, same_parts(parts_of(seen), pair.parts) ? parts_of(impl) : parts_out(seen, call, made), seen);
  }

  static uint64_t bytes_of(const c10::TensorImpl& impl) {
    if (C10_LIKELY(!is_sparse(impl))) {
      return impl.numel() * impl.dtype().itemsize();
    }
    uint64_t bytes = 0;
    for (const at::Tensor& part : parts_of(impl)) {
      bytes += bytes_of(*part.unsafeGetTensorImpl());
    }
    return bytes;
  }

  static uint64_t bytes_of(const Call& call, const Stack& stack, size_t first) {
    uint64_t bytes = 0;
    for (const Pair& pair : call.pairs) {
      bytes += bytes_of(*pair.original.unsafeGetTensorImpl());
    }
    for (size_t i = first; i < stack.size(); ++i) {
      if (stack[i].isTensor() && stack[i].toTensor().defined()) {
        bytes += bytes_of(*stack[i].toTensor().unsafeGetTensorImpl());
      }
    }
    return bytes;
  }

  Record& record;
  const Queueing queueing;
  const size_t count, returns;
  const bool owning, mixing, asking;
  c10::SmallVector<Place, 6> looked_at;
};

inline c10::KernelFunction fallback_kernel(const c10::OperatorHandle& op) {
  return c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<Fallback>(op));
}

// Operators that came with other packages, or later: their Fallback is made at their first call.
inline void catch_all(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  static auto* mutex = new std::mutex();
  static auto* made = new std::unordered_map<std::string, std::unique_ptr<Fallback>>();
  Fallback* found = nullptr;
  {
    std::lock_guard<std::mutex> lock(*mutex);
    auto& place = (*made)[full_name(op.operator_name())];
    // An operator that was taken away and defined again may have another schema.
    if (place == nullptr || place->count != op.schema().arguments().size()) {
      if (place != nullptr) {
        (void)place.release(); // another thread may be in it
      }
      place = std::make_unique<Fallback>(op);
    }
    found = place.get();
  }
  (*found)(op, keys, stack);
}

} // namespace neuron
