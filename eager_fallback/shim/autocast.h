// torch.autocast("neuron"): which operators run in the lower precision, which in float32, which in the widest type.
//
// The lists are data, the same as PyTorch's for CUDA (torch/include/ATen/autocast_mode.h, AT_FORALL_*); one boxed
// kernel applies them.
#pragma once

#include "fallback.h"

// Declared here and not included: the header brings all of ATen, most of the compile's time.
namespace at::autocast {
TORCH_API Tensor cached_cast(at::ScalarType to_type, const Tensor& arg, c10::DeviceType device_type);
TORCH_API at::ScalarType get_autocast_dtype(at::DeviceType device_type);
} // namespace at::autocast

namespace neuron {

enum class Cast { kLower, kFloat, kFloatUnlessAsked, kWidest };

struct CastRule {
  Cast cast;
  const char* operators; // names without "aten::", separated by spaces; with their overload where there is one
};

constexpr CastRule kCastRules[] = {
    {Cast::kLower,
     "_convolution.deprecated _convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input "
     "conv_transpose3d.input convolution prelu addmm addmv addr matmul einsum mm mv linalg_vecdot linear addbmm "
     "baddbmm bmm chain_matmul linalg_multi_dot _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell "
     "rnn_tanh_cell rnn_relu_cell _scaled_dot_product_flash_attention scaled_dot_product_attention"},
    {Cast::kFloat,
     "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar "
     "pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm rms_norm group_norm frobenius_norm.dim "
     "nuclear_norm nuclear_norm.dim cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d "
     "hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss "
     "multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss "
     "binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp upsample_nearest1d "
     "_upsample_nearest_exact1d upsample_nearest2d _upsample_nearest_exact2d upsample_nearest3d "
     "_upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d "
     "upsample_bicubic2d _upsample_bicubic2d_aa norm.Scalar norm.ScalarOpt_dim"},
    {Cast::kFloatUnlessAsked,
     "prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm "
     "linalg_matrix_norm.str_ord sum sum.dim_IntList"},
    {Cast::kWidest,
     "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add"},
};

constexpr const char* kRefused = "binary_cross_entropy";

inline bool is_castable(const at::Tensor& tensor) {
  return tensor.defined() && on_device(tensor) && tensor.is_floating_point() &&
      tensor.scalar_type() != c10::ScalarType::Double;
}

template <class Visit>
void each_tensor(const c10::IValue& value, Visit visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) {
      visit(tensor);
    }
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {
      if (element.isTensor()) {
        visit(element.toTensor());
      }
    }
  }
}

inline void cast_all(c10::IValue& value, c10::ScalarType type) {
  const auto cast = [type](const at::Tensor& tensor) {
    return tensor.defined() ? at::autocast::cached_cast(type, tensor, kDevice) : tensor;
  };
  if (value.isTensor()) {
    value = c10::IValue(cast(value.toTensor()));
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> made;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      made.push_back(cast(tensor));
    }
    value = c10::IValue(std::move(made));
  }
}

struct Autocast final : c10::OperatorKernel {
  Autocast(const c10::OperatorHandle& op, Cast cast) : cast(cast), count(op.schema().arguments().size()) {
    const auto& arguments = op.schema().arguments();
    for (size_t i = 0; i < count; ++i) {
      if (arguments[i].name() == "dtype") {
        dtype_at = i;
      }
    }
  }

  c10::ScalarType widest(const c10::IValue* arguments) const {
    const c10::ScalarType lower = at::autocast::get_autocast_dtype(kDevice);
    c10::ScalarType found = lower;
    for (size_t i = 0; i < count; ++i) {
      each_tensor(arguments[i], [&](const at::Tensor& tensor) {
        if (is_castable(tensor) && tensor.scalar_type() != lower) {
          TORCH_CHECK(
              tensor.scalar_type() == c10::ScalarType::Float,
              "Unexpected floating ScalarType ", tensor.scalar_type(), " in autocast");
          found = c10::ScalarType::Float;
        }
      });
    }
    return found;
  }

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
    c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastPrivateUse1);
    c10::IValue* arguments = stack->data() + (stack->size() - count);
    if (cast == Cast::kFloatUnlessAsked) {
      if (arguments[0].isTensor() && is_castable(arguments[0].toTensor()) && dtype_at < count &&
          arguments[dtype_at].isNone()) {
        arguments[dtype_at] = c10::IValue(c10::ScalarType::Float);
      }
    } else {
      const c10::ScalarType type = cast == Cast::kLower ? at::autocast::get_autocast_dtype(kDevice)
          : cast == Cast::kFloat                        ? c10::ScalarType::Float
                                                        : widest(arguments);
      for (size_t i = 0; i < count; ++i) {
        cast_all(arguments[i], type);
      }
    }
    op.callBoxed(stack);
  }

  const Cast cast;
  const size_t count;
  size_t dtype_at = SIZE_MAX;
};

inline void refuse(const c10::OperatorHandle&, c10::DispatchKeySet, Stack*) {
  TORCH_CHECK(
      false,
      "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
      "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
      "In this case, combine the two layers using torch.nn.functional.binary_cross_entropy_with_logits\n"
      "or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are\n"
      "safe to autocast.");
}

inline void register_autocast() {
  auto& dispatcher = c10::Dispatcher::singleton();
  registrations().push_back(dispatcher.registerFallback(
      c10::DispatchKey::AutocastPrivateUse1, c10::KernelFunction::makeFallthrough(), "device neuron"));
  for (const CastRule& rule : kCastRules) {
    std::istringstream names(rule.operators);
    for (std::string word; names >> word;) {
      const size_t dot = word.find('.');
      const c10::OperatorName name(
          "aten::" + word.substr(0, dot), dot == std::string::npos ? "" : word.substr(dot + 1));
      // Another release of PyTorch may have one less.
      if (const auto op = dispatcher.findSchema(name)) {
        register_kernel(
            name, c10::DispatchKey::AutocastPrivateUse1,
            c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<Autocast>(*op, rule.cast)));
      }
    }
  }
  register_kernel(
      {std::string("aten::") + kRefused, ""}, c10::DispatchKey::AutocastPrivateUse1,
      c10::KernelFunction::makeFromBoxedFunction<&refuse>());
}

} // namespace neuron
