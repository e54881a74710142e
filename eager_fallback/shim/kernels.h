// Operators that the boxed fallback cannot do: new memory, views, resizing, and those that PyTorch's C++ code chooses
// only because the device is not the CPU.
#pragma once

#include "fallback.h"

#include <ATen/EmptyTensor.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice_cpu_dispatch.h>
#include <ATen/ops/_reshape_alias_cpu_dispatch.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/add.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/is_set_to_cpu_dispatch.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/native_dropout_backward.h>
#include <ATen/ops/resize_cpu_dispatch.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/unfold_cpu_dispatch.h>
#include <ATen/ops/view_as_complex_cpu_dispatch.h>
#include <ATen/ops/view_as_real_cpu_dispatch.h>
#include <ATen/ops/view_cpu_dispatch.h>

namespace neuron {

using at::IntArrayRef;
using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

// New memory -----------------------------------------------------------------------------------------------------------

inline void check_options(std::optional<c10::Layout> layout, std::optional<bool> pin) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !layout.has_value() || *layout == c10::Layout::Strided,
      "device neuron holds dense and sparse tensors, not layout ", layout.value_or(c10::Layout::Strided));
  TORCH_CHECK(!pin.value_or(false), "Only dense CPU tensors can be pinned");
}

inline c10::ScalarType given_or_default(std::optional<c10::ScalarType> dtype) {
  return dtype.has_value() ? *dtype : c10::typeMetaToScalarType(c10::get_default_dtype());
}

inline c10::DeviceIndex index_of(std::optional<c10::Device> device) {
  return device.has_value() ? device->index() : c10::DeviceIndex(-1);
}

inline Tensor empty(
    IntArrayRef size,
    std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout> layout,
    std::optional<c10::Device> device,
    std::optional<bool> pin,
    std::optional<c10::MemoryFormat> format) {
  NEURON_COUNTED("aten::empty.memory_format");
  check_options(layout, pin);
  WithDevice with(index_of(device));
  return at::detail::empty_generic(size, allocator(), kKeys, given_or_default(dtype), format);
}

inline Tensor empty_strided(
    IntArrayRef size,
    IntArrayRef stride,
    std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout> layout,
    std::optional<c10::Device> device,
    std::optional<bool> pin) {
  NEURON_COUNTED("aten::empty_strided");
  check_options(layout, pin);
  WithDevice with(index_of(device));
  return at::detail::empty_strided_generic(size, stride, allocator(), kKeys, given_or_default(dtype));
}

// Views: the CPU kernel only looks at sizes, and takes the device tensor itself. ---------------------------------------

inline Tensor view(const Tensor& self, IntArrayRef size) {
  NEURON_COUNTED("aten::view");
  return at::cpu::view(self, size);
}
inline Tensor as_strided(const Tensor& self, IntArrayRef size, IntArrayRef stride, std::optional<int64_t> offset) {
  NEURON_COUNTED("aten::as_strided");
  return at::cpu::as_strided(self, size, stride, offset);
}
inline Tensor reshape_alias(const Tensor& self, IntArrayRef size, IntArrayRef stride) {
  NEURON_COUNTED("aten::_reshape_alias");
  return at::cpu::_reshape_alias(self, size, stride);
}
inline Tensor unfold(const Tensor& self, int64_t dimension, int64_t size, int64_t step) {
  NEURON_COUNTED("aten::unfold");
  return at::cpu::unfold(self, dimension, size, step);
}
inline Tensor view_as_real(const Tensor& self) {
  NEURON_COUNTED("aten::view_as_real");
  return at::cpu::view_as_real(self);
}
inline Tensor view_as_complex(const Tensor& self) {
  NEURON_COUNTED("aten::view_as_complex");
  return at::cpu::view_as_complex(self);
}
inline bool is_set_to(const Tensor& self, const Tensor& other) {
  return at::cpu::is_set_to(self, other);
}

// Memory of a tensor changes hands -------------------------------------------------------------------------------------

// PyTorch's resizing leaves a storage without memory on the CPU.
inline const Tensor& stay(const Tensor& self, c10::DeviceIndex index) {
  c10::StorageImpl& storage = *self.storage().unsafeGetStorageImpl();
  if (storage.device_type() != kDevice) {
    storage.set_data_ptr_noswap(allocate_on(0, index));
  }
  return self;
}

inline const Tensor& resize(const Tensor& self, IntArrayRef size, std::optional<c10::MemoryFormat> format) {
  NEURON_COUNTED("aten::resize_");
  const c10::DeviceIndex index = self.device().index();
  WithDevice with(index);
  settle(*self.storage().unsafeGetStorageImpl(), true);
  at::cpu::resize_(self, size, format);
  return stay(self, index);
}

inline void check_source(const Tensor& self, const c10::Storage& source) {
  TORCH_CHECK(
      source.device_type() == kDevice && source.device() == self.device(),
      "Attempted to set the storage of a tensor on device \"", self.device(), "\" to a storage on different device \"",
      source.device(), "\". This is no longer allowed; the devices must match.");
}

inline Tensor& set_storage(Tensor& self, c10::Storage source) {
  NEURON_COUNTED("aten::set_.source_Storage");
  check_source(self, source);
  WithDevice with(self.device().index());
  return at::cpu::set_(self, std::move(source));
}
inline Tensor& set_storage_at(Tensor& self, c10::Storage source, int64_t offset, IntArrayRef size, IntArrayRef stride) {
  check_source(self, source);
  WithDevice with(self.device().index());
  return at::cpu::set_(self, std::move(source), offset, size, stride);
}
inline Tensor& set_tensor(Tensor& self, const Tensor& source) {
  NEURON_COUNTED("aten::set_.source_Tensor");
  TORCH_CHECK(
      self.device() == source.device(),
      "Attempted to set the storage of a tensor on device \"", self.device(), "\" to a storage on different device \"",
      source.device(), "\". This is no longer allowed; the devices must match.");
  return at::cpu::set_(self, source);
}
inline Tensor& set_empty(Tensor& self) {
  c10::Storage none(device_storage(allocate_on(0, self.device().index()), 0));
  return at::cpu::set_(self, std::move(none), 0, {0}, {});
}

// Asked whether `tensor.data = other` is possible, which Module.to() does where it is: so that parameters stay the objects
// that optimizers and tied layers know, as on other devices. PyTorch's own answer knows no PrivateUse1.
inline bool has_compatible_shallow_copy_type(const Tensor& self, const Tensor& from) {
  const auto ours = [](const Tensor& tensor) {
    return (tensor.is_cpu() || on_device(tensor)) && is_dense(*tensor.unsafeGetTensorImpl()) &&
        !tensor.unsafeGetTensorImpl()->is_python_dispatch();
  };
  return (ours(self) && ours(from)) || self.unsafeGetTensorImpl()->has_compatible_shallow_copy_type(from.key_set());
}

inline void record_stream(Tensor&, c10::Stream) {} // all streams run in order with the caller

inline Tensor copy_from(const Tensor& self, const Tensor& to, bool) {
  Tensor target = to;
  target.copy_(self);
  return target;
}
inline Tensor copy_from_and_resize(const Tensor& self, const Tensor& to) {
  to.resize_(self.sizes());
  return copy_from(self, to, false);
}

// Composite on the CPU, of device's own making here: done on CPU aliases, so that the values are the CPU's -----------

// The tensors of one call: aliases of its arguments, and its results back on the device of the first.
struct OnCpu {
  explicit OnCpu(const Tensor& first) : index(first.device().index()) {
    check_usable();
  }
  Tensor operator()(const Tensor& tensor) const {
    if (!tensor.defined() || !on_device(tensor)) {
      TORCH_CHECK(
          !tensor.defined() || tensor.dim() == 0,
          "Expected all tensors to be on the same device, but found at least two devices, neuron:",
          static_cast<int>(index), " and ", tensor.device(), "!");
      return tensor;
    }
    TORCH_CHECK(
        tensor.device().index() == index,
        "Expected all tensors to be on the same device, but found at least two devices, neuron:",
        static_cast<int>(index), " and ", tensor.device(), "!");
    return owning_cpu(tensor, false);
  }
  OptionalTensor operator()(const OptionalTensor& tensor) const {
    return tensor.has_value() ? OptionalTensor((*this)(*tensor)) : std::nullopt;
  }
  Tensor back(Tensor tensor) const {
    return tensor.defined() ? to_device(std::move(tensor), index) : std::move(tensor);
  }
  const c10::DeviceIndex index;
  // Arguments do not require gradients down here; this keeps the calls below as short as the CPU's own.
  at::AutoDispatchBelowADInplaceOrView below;
};

inline Tensor convolution(
    const Tensor& input, const Tensor& weight, const OptionalTensor& bias, IntArrayRef stride, IntArrayRef padding,
    IntArrayRef dilation, bool transposed, IntArrayRef output_padding, int64_t groups) {
  NEURON_COUNTED("aten::convolution_overrideable");
  OnCpu cpu(input);
  return cpu.back(at::convolution(
      cpu(input), cpu(weight), cpu(bias), stride, padding, dilation, transposed, output_padding, groups));
}

inline std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& gradient, const Tensor& input, const Tensor& weight, IntArrayRef stride, IntArrayRef padding,
    IntArrayRef dilation, bool transposed, IntArrayRef output_padding, int64_t groups, std::array<bool, 3> mask) {
  NEURON_COUNTED("aten::convolution_backward_overrideable");
  OnCpu cpu(gradient);
  const int64_t channels = gradient.size(1);
  auto [a, b, c] = at::convolution_backward(
      cpu(gradient), cpu(input), cpu(weight), at::OptionalIntArrayRef(IntArrayRef(&channels, 1)), stride, padding,
      dilation, transposed, output_padding, groups, mask);
  return {cpu.back(std::move(a)), cpu.back(std::move(b)), cpu.back(std::move(c))};
}

// Dropout of a device tensor is one operator; its values are those of the CPU's noise, multiplied in the same order.
inline Tensor dropout_noise(const Tensor& kept, c10::ScalarType dtype, double keep) {
  return kept.to(dtype).div_(keep);
}

inline std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p, std::optional<bool> train) {
  NEURON_COUNTED("aten::native_dropout");
  OnCpu cpu(input);
  Tensor in = cpu(input);
  if (in.numel() == 0 || !train.value_or(true)) {
    return {cpu.back(in.clone()), cpu.back(at::empty_like(in, in.options().dtype(c10::ScalarType::Bool)).fill_(1))};
  }
  Tensor noise = at::empty_like(in).bernoulli_(1 - p);
  Tensor mask = noise.to(c10::ScalarType::Bool);
  if (p < 1) {
    noise.div_(1 - p);
  }
  return {cpu.back(in * noise), cpu.back(std::move(mask))};
}

inline Tensor native_dropout_backward(const Tensor& gradient, const Tensor& mask, double scale) {
  NEURON_COUNTED("aten::native_dropout_backward");
  OnCpu cpu(gradient);
  Tensor in = cpu(gradient);
  if (!in.is_floating_point() || scale == 0) {
    return cpu.back(at::native_dropout_backward(in, cpu(mask), scale));
  }
  return cpu.back(in * dropout_noise(cpu(mask), in.scalar_type(), 1 / scale));
}

// Recurrent cells, which have no CPU kernel under these names ----------------------------------------------------------

inline Tensor with_bias(const Tensor& gates, const OptionalTensor& bias) {
  return bias.has_value() && bias->defined() ? gates + *bias : gates;
}

inline std::tuple<Tensor, Tensor, Tensor> lstm_cell(
    const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cx, const OptionalTensor& input_bias,
    const OptionalTensor& hidden_bias) {
  NEURON_COUNTED("aten::_thnn_fused_lstm_cell");
  OnCpu cpu(input_gates);
  auto gates = (with_bias(cpu(hidden_gates), cpu(hidden_bias)) + with_bias(cpu(input_gates), cpu(input_bias))).chunk(4, 1);
  Tensor in = gates[0].sigmoid(), forget = gates[1].sigmoid(), cell = gates[2].tanh(), out = gates[3].sigmoid();
  Tensor cy = (forget * cpu(cx)).add_(in * cell);
  Tensor hy = out * cy.tanh();
  return {cpu.back(std::move(hy)), cpu.back(std::move(cy)), cpu.back(at::cat({in, forget, cell, out}, 1))};
}

inline std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(
    const OptionalTensor& grad_hy, const OptionalTensor& grad_cy, const Tensor& cx, const Tensor& cy,
    const Tensor& workspace, bool has_bias) {
  NEURON_COUNTED("aten::_thnn_fused_lstm_cell_backward_impl");
  const bool has_hy = grad_hy.has_value() && grad_hy->defined(), has_cy = grad_cy.has_value() && grad_cy->defined();
  if (!has_hy && !has_cy) {
    return {};
  }
  OnCpu cpu(cx);
  auto gates = cpu(workspace).chunk(4, 1);
  const Tensor &in = gates[0], &forget = gates[1], &cell = gates[2], &out = gates[3];
  const Tensor squashed = cpu(cy).tanh();
  Tensor grad_cell = has_cy ? cpu(*grad_cy) : Tensor();
  Tensor grad_out = at::empty_like(squashed).zero_();
  if (has_hy) {
    const Tensor grad = cpu(*grad_hy);
    grad_out = grad * squashed;
    const Tensor through = grad * out * (1 - squashed * squashed);
    grad_cell = has_cy ? grad_cell + through : through;
  }
  Tensor grad_gates = at::cat(
      {grad_cell * cell * in * (1 - in),
       grad_cell * cpu(cx) * forget * (1 - forget),
       grad_cell * in * (1 - cell * cell),
       grad_out * out * (1 - out)},
      1);
  Tensor grad_bias = has_bias ? grad_gates.sum(0, /*keepdim=*/false) : Tensor();
  return {cpu.back(std::move(grad_gates)), cpu.back(grad_cell * forget), cpu.back(std::move(grad_bias))};
}

inline std::tuple<Tensor, Tensor> gru_cell(
    const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx, const OptionalTensor& input_bias,
    const OptionalTensor& hidden_bias) {
  NEURON_COUNTED("aten::_thnn_fused_gru_cell");
  OnCpu cpu(input_gates);
  auto from_input = with_bias(cpu(input_gates), cpu(input_bias)).chunk(3, 1);
  auto from_hidden = with_bias(cpu(hidden_gates), cpu(hidden_bias)).chunk(3, 1);
  const Tensor before = cpu(hx);
  Tensor reset = (from_hidden[0] + from_input[0]).sigmoid();
  Tensor update = (from_hidden[1] + from_input[1]).sigmoid();
  Tensor fresh = (from_input[2] + from_hidden[2] * reset).tanh();
  Tensor hy = (before - fresh).mul_(update).add_(fresh);
  return {cpu.back(std::move(hy)), cpu.back(at::cat({reset, update, fresh, before, from_hidden[2]}, 1))};
}

inline std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(
    const Tensor& grad_hy, const Tensor& workspace, bool has_bias) {
  NEURON_COUNTED("aten::_thnn_fused_gru_cell_backward");
  OnCpu cpu(grad_hy);
  const Tensor grad = cpu(grad_hy);
  auto kept = cpu(workspace).chunk(5, 1);
  const Tensor &reset = kept[0], &update = kept[1], &fresh = kept[2], &before = kept[3], &hidden = kept[4];
  const Tensor grad_fresh = grad * (1 - update) * (1 - fresh * fresh);
  const Tensor grad_update = grad * (before - fresh) * update * (1 - update);
  const Tensor grad_reset = grad_fresh * hidden * reset * (1 - reset);
  Tensor grad_input = at::cat({grad_reset, grad_update, grad_fresh}, 1);
  Tensor grad_hidden = at::cat({grad_reset, grad_update, grad_fresh * reset}, 1);
  Tensor input_bias = has_bias ? grad_input.sum(0, /*keepdim=*/false) : Tensor();
  Tensor hidden_bias = has_bias ? grad_hidden.sum(0, /*keepdim=*/false) : Tensor();
  return {
      cpu.back(std::move(grad_input)), cpu.back(std::move(grad_hidden)), cpu.back(grad * update),
      cpu.back(std::move(input_bias)), cpu.back(std::move(hidden_bias))};
}

// Attention: the device takes the CPU's choice between its flash kernel and plain arithmetic --------------------------

constexpr int64_t kMath = 0, kFlash = 1, kOverrideable = 4; // sdp::SDPBackend

inline int64_t sdp_choice(
    const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& mask, double dropout,
    bool causal, std::optional<double> scale, bool grouped) {
  if (const Queue* queue = current_queue(); queue != nullptr && queue->one_by_one()) {
    return kMath; // there are programs for its parts
  }
  // The choice depends on which tensors require gradients, which an alias does not say by itself.
  const auto alias = [](const Tensor& tensor) {
    if (!tensor.defined() || !on_device(tensor)) {
      return tensor;
    }
    at::AutoDispatchBelowADInplaceOrView below;
    return unsettled_cpu(tensor).set_requires_grad(tensor.requires_grad());
  };
  if (!is_dense(*query.unsafeGetTensorImpl()) || !is_dense(*key.unsafeGetTensorImpl()) ||
      !is_dense(*value.unsafeGetTensorImpl())) {
    return kMath;
  }
  const int64_t chosen = at::cpu::_fused_sdp_choice(
      alias(query), alias(key), alias(value), mask.has_value() ? OptionalTensor(alias(*mask)) : std::nullopt, dropout,
      causal, scale, grouped);
  return chosen == kFlash ? kOverrideable : chosen;
}

using Attention = std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>;

inline Attention attention(
    const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& mask, double dropout,
    bool causal, bool, std::optional<double> scale) {
  NEURON_COUNTED("aten::_scaled_dot_product_fused_attention_overrideable");
  OnCpu cpu(query);
  auto [out, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
      cpu(query), cpu(key), cpu(value), dropout, causal, cpu(mask), scale);
  const auto none = [&] { return cpu.back(at::empty({0}, c10::TensorOptions(c10::ScalarType::Long))); };
  return {
      cpu.back(std::move(out)), cpu.back(std::move(logsumexp)), none(), none(), query.size(2), key.size(2), none(),
      none(), none()};
}

inline std::tuple<Tensor, Tensor, Tensor, Tensor> attention_backward(
    const Tensor& gradient, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& mask,
    std::array<bool, 4>, const Tensor& out, const Tensor& logsumexp, const Tensor&, const Tensor&, c10::SymInt,
    c10::SymInt, double dropout, bool causal, const Tensor&, const Tensor&, std::optional<double> scale) {
  NEURON_COUNTED("aten::_scaled_dot_product_fused_attention_overrideable_backward");
  OnCpu cpu(gradient);
  auto [q, k, v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      cpu(gradient), cpu(query), cpu(key), cpu(value), cpu(out), cpu(logsumexp), dropout, causal,
      mask.defined() ? OptionalTensor(cpu(mask)) : std::nullopt, scale);
  // A mask that requires a gradient is never sent here: the CPU's choice is arithmetic then.
  return {cpu.back(std::move(q)), cpu.back(std::move(k)), cpu.back(std::move(v)), Tensor()};
}

// Registration ---------------------------------------------------------------------------------------------------------

template <class Function>
void own(const char* name, const char* overload, Function function) {
  register_kernel(
      {std::string("aten::") + name, overload}, c10::DispatchKey::PrivateUse1,
      c10::KernelFunction::makeFromUnboxedFunction(function));
}

inline void register_own_kernels() {
  own("empty", "memory_format", TORCH_FN(empty));
  own("empty_strided", "", TORCH_FN(empty_strided));
  own("view", "", TORCH_FN(view));
  own("as_strided", "", TORCH_FN(as_strided));
  own("_reshape_alias", "", TORCH_FN(reshape_alias));
  own("unfold", "", TORCH_FN(unfold));
  own("view_as_real", "", TORCH_FN(view_as_real));
  own("view_as_complex", "", TORCH_FN(view_as_complex));
  own("is_set_to", "", TORCH_FN(is_set_to));
  own("resize_", "", TORCH_FN(resize));
  own("set_", "", TORCH_FN(set_empty));
  own("set_", "source_Storage", TORCH_FN(set_storage));
  own("set_", "source_Storage_storage_offset", TORCH_FN(set_storage_at));
  own("set_", "source_Tensor", TORCH_FN(set_tensor));
  own("_has_compatible_shallow_copy_type", "", TORCH_FN(has_compatible_shallow_copy_type));
  own("record_stream", "", TORCH_FN(record_stream));
  own("_copy_from", "", TORCH_FN(copy_from));
  own("_copy_from_and_resize", "", TORCH_FN(copy_from_and_resize));
  own("convolution_overrideable", "", TORCH_FN(convolution));
  own("convolution_backward_overrideable", "", TORCH_FN(convolution_backward));
  own("native_dropout", "", TORCH_FN(native_dropout));
  own("native_dropout_backward", "", TORCH_FN(native_dropout_backward));
  own("_thnn_fused_lstm_cell", "", TORCH_FN(lstm_cell));
  own("_thnn_fused_lstm_cell_backward_impl", "", TORCH_FN(lstm_cell_backward));
  own("_thnn_fused_gru_cell", "", TORCH_FN(gru_cell));
  own("_thnn_fused_gru_cell_backward", "", TORCH_FN(gru_cell_backward));
  own("_fused_sdp_choice", "", TORCH_FN(sdp_choice));
  own("_scaled_dot_product_fused_attention_overrideable", "", TORCH_FN(attention));
  own("_scaled_dot_product_fused_attention_overrideable_backward", "", TORCH_FN(attention_backward));
}

} // namespace neuron

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &neuron::sdp_choice)
} // namespace at::native
