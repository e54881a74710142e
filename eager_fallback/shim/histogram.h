// torch.histc of integers, which accelerators have and the CPU has not: programs choose by the kind of device.
#pragma once

#include "kernels.h"

#include <ATen/native/Resize.h>
#include <ATen/ops/histc.h>
#include <ATen/ops/zeros.h>

namespace neuron {

// As CUDA counts them: with integer division, so exactly; what is outside of the range is in no bin.
inline Tensor count_integers(const Tensor& given, int64_t bins, int64_t low, int64_t high) {
  TORCH_CHECK(bins > 0, "bins must be > 0");
  const Tensor values = given.to(c10::ScalarType::Long).contiguous();
  const int64_t* first = values.const_data_ptr<int64_t>();
  const int64_t* last = first + values.numel();
  if (low == high && first != last) {
    const auto [least, most] = std::minmax_element(first, last);
    low = *least;
    high = *most;
  }
  if (low == high) {
    --low;
    ++high;
  }
  TORCH_CHECK(low < high, "max must be larger than min");
  const Tensor counts = at::zeros({bins}, c10::ScalarType::Long);
  int64_t* count = counts.mutable_data_ptr<int64_t>();
  const auto range = static_cast<__int128>(high) - low;
  for (; first != last; ++first) {
    if (*first >= low && *first <= high) {
      const auto bin = static_cast<int64_t>((static_cast<__int128>(*first) - low) * bins / range);
      ++count[std::min(bin, bins - 1)];
    }
  }
  return counts.to(given.scalar_type());
}

inline Tensor histc_on_cpu(const Tensor& self, int64_t bins, const at::Scalar& min, const at::Scalar& max) {
  return c10::isIntegralType(self.scalar_type(), /*includeBool=*/false)
      ? count_integers(self, bins, min.toLong(), max.toLong())
      : at::histc(self, bins, min, max);
}

inline Tensor histc(const Tensor& self, int64_t bins, const at::Scalar& min, const at::Scalar& max) {
  NEURON_COUNTED("aten::histc");
  OnCpu cpu(self);
  return cpu.back(histc_on_cpu(cpu(self), bins, min, max));
}

inline Tensor& histc_out(const Tensor& self, int64_t bins, const at::Scalar& min, const at::Scalar& max, Tensor& out) {
  NEURON_COUNTED("aten::histc.out");
  OnCpu cpu(self);
  TORCH_CHECK(
      out.scalar_type() == self.scalar_type(), "torch.histogram: input tensor and hist tensor should have the same dtype,",
      " but got input ", self.scalar_type(), " and hist ", out.scalar_type());
  const Tensor made = cpu.back(histc_on_cpu(cpu(self), bins, min, max));
  at::native::resize_output(out, made.sizes());
  return out.copy_(made);
}

inline void register_histograms() {
  own("histc", "", TORCH_FN(histc));
  own("histc", "out", TORCH_FN(histc_out));
}

} // namespace neuron
