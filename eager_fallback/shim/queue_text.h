// A call as text, for a queue: JSON in which a tensor is a storage of the program, by number, with the sizes and strides
// of the view of it.
#pragma once

#include "alias.h"

#include <ATen/core/ivalue.h>
#include <c10/core/DefaultDtype.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace neuron {

using Stack = std::vector<c10::IValue>;
using Sizes = c10::SmallVector<int64_t, 5>;

// Sizes and strides of new or of whole memory, in elements from its start.
struct Whole {
  c10::ScalarType dtype = c10::ScalarType::Undefined; // undefined: a result that is no tensor
  Sizes sizes, strides;
};

inline void write(std::string& text, c10::IntArrayRef numbers) {
  text += '[';
  for (size_t i = 0; i < numbers.size(); ++i) {
    text += i == 0 ? "" : ",";
    text += std::to_string(numbers[i]);
  }
  text += ']';
}

inline void write(std::string& text, double number) {
  if (std::isnan(number) || std::isinf(number)) {
    text += std::isnan(number) ? "NaN" : number > 0 ? "Infinity" : "-Infinity";
    return;
  }
  char digits[40];
  std::snprintf(digits, sizeof digits, "%.17g", number);
  text += digits;
  if (std::string_view(digits).find_first_of(".e") == std::string_view::npos) {
    text += ".0"; // an integer otherwise
  }
}

inline void write(std::string& text, uint32_t place, const Whole& whole) {
  text += '[' + std::to_string(place) + ',' + std::to_string(static_cast<int>(whole.dtype)) + ',';
  write(text, whole.sizes);
  text += ',';
  write(text, whole.strides);
  text += ']';
}

// Strides and sizes of the dimensions with more than one element, the smallest stride first.
inline c10::SmallVector<std::pair<int64_t, int64_t>, 5> wide_dimensions(
    c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  c10::SmallVector<std::pair<int64_t, int64_t>, 5> wide;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] != 1) {
      wide.emplace_back(strides[i], sizes[i]);
    }
  }
  std::sort(wide.begin(), wide.end());
  return wide;
}

// Whether elements of a tensor may share a place.
inline bool meets_itself(const c10::TensorImpl& impl) {
  int64_t last = 0; // place of what comes last so far
  for (const auto& [stride, size] : wide_dimensions(impl.sizes(), impl.strides())) {
    if (stride <= last) {
      return true;
    }
    last += stride * (size - 1);
  }
  return false;
}

// Whether a tensor of these sizes and strides has one element in each place of its memory.
inline bool is_whole(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  int64_t expected = 1;
  for (const auto& [stride, size] : wide_dimensions(sizes, strides)) {
    if (stride != expected) {
      return false;
    }
    expected *= size;
  }
  return true;
}

inline const c10::StorageImpl* storage_in(const c10::TensorImpl& impl) {
  return impl.storage().unsafeGetStorageImpl();
}

inline bool covers_memory(const c10::TensorImpl& impl) {
  return impl.storage_offset() == 0 &&
      static_cast<size_t>(impl.numel()) * impl.dtype().itemsize() == storage_in(impl)->nbytes() &&
      is_whole(impl.sizes(), impl.strides());
}

// One call as text. '@' stands for the number of a storage and '#' for a float, until they are known: what is left is
// what the sizes of the results depend on.
struct Encoded {
  struct Read {
    const c10::TensorImpl* tensor;
    bool written;
  };
  std::string text;
  c10::SmallVector<Read, 6> tensors;
  c10::SmallVector<double, 4> floats;
  c10::DeviceIndex device = -1;
  bool numbers = false; // are taken in place of tensors

  // False for what a queue does not take: the call runs at once then.
  bool value(const c10::IValue& value, bool written) {
    if (value.isTensor()) {
      return tensor(value.toTensor(), written);
    }
    if (value.isNone()) {
      text += "null";
    } else if (value.isBool()) {
      text += value.toBool() ? "true" : "false";
    } else if (value.isInt()) {
      text += std::to_string(value.toInt());
    } else if (value.isDouble()) {
      text += '#';
      floats.push_back(value.toDouble());
    } else if (value.isString()) {
      text += '"' + value.toStringRef() + '"';
    } else if (value.isList()) {
      const auto list = value.toListRef();
      text += '[';
      for (size_t i = 0; i < list.size(); ++i) {
        text += i == 0 ? "" : ",";
        if (!this->value(list[i], written)) {
          return false;
        }
      }
      text += ']';
    } else {
      return false;
    }
    return true;
  }

  // Types that programs compute in: neither half complex numbers nor those of 8 bits and less, quantized or packed.
  static bool known_type(const c10::TensorImpl& impl) {
    switch (const auto type = c10::typeMetaToScalarType(impl.dtype())) {
      case c10::ScalarType::Half:
      case c10::ScalarType::BFloat16:
      case c10::ScalarType::Float:
      case c10::ScalarType::Double:
      case c10::ScalarType::ComplexFloat:
      case c10::ScalarType::ComplexDouble:
        return true;
      default:
        return c10::isIntegralType(type, /*includeBool=*/true);
    }
  }

  bool tensor(const at::Tensor& given, bool written) {
    if (!given.defined()) {
      text += "null";
      return true;
    }
    const c10::TensorImpl& impl = *given.unsafeGetTensorImpl();
    if (!on_device(given)) {
      return !written && wrapped_number(given);
    }
    if (!is_dense(impl) || impl.key_set().has_any(kViewBits) || !known_type(impl) || impl.numel() == 0 || impl.is_wrapped_number() ||
        block_of(*storage_in(impl)) == nullptr || (device >= 0 && device != impl.device().index())) {
      return false;
    }
    device = impl.device().index();
    text += "{\"t\":[@," + std::to_string(static_cast<int>(c10::typeMetaToScalarType(impl.dtype()))) + ',';
    write(text, impl.sizes());
    text += ',';
    write(text, impl.strides());
    text += ',' + std::to_string(impl.storage_offset()) + "]}";
    tensors.push_back({&impl, written});
    return true;
  }

  // What else a kernel's taking the call, and the types of its results, depend on.
  std::string settings() const {
    std::string made = std::to_string(static_cast<int>(c10::get_default_dtype_as_scalartype()));
    const auto whole = [](const Read& read) { return c10::isIntegralType(c10::typeMetaToScalarType(read.tensor->dtype()), true); };
    for (size_t i = 0; i < floats.size() && std::any_of(tensors.begin(), tensors.end(), whole); ++i) {
      made += ' ';
      write(made, floats[i]);
    }
    return made;
  }

  // A number of the user's program, which PyTorch passes as a tensor.
  bool wrapped_number(const at::Tensor& given) {
    if (!numbers || !given.is_cpu() || !given.unsafeGetTensorImpl()->is_wrapped_number() || given.dim() != 0) {
      return false;
    }
    text += "{\"w\":";
    switch (given.scalar_type()) {
      case c10::ScalarType::Double:
        text += '#';
        floats.push_back(*given.const_data_ptr<double>());
        break;
      case c10::ScalarType::Long:
        text += std::to_string(*given.const_data_ptr<int64_t>());
        break;
      case c10::ScalarType::Bool:
        text += *given.const_data_ptr<bool>() ? "true" : "false";
        break;
      default:
        return false;
    }
    text += '}';
    return true;
  }

  // Kernels refuse to write what they read through another view, or one place twice, or do so in an order of their own;
  // and a program knows memory by one type: such a call has to reach them.
  bool overlaps() const {
    for (const Read& one : tensors) {
      if (one.written && !one.tensor->is_contiguous() && meets_itself(*one.tensor)) {
        return true;
      }
      for (const Read& other : tensors) {
        if (one.tensor == other.tensor || storage_in(*one.tensor) != storage_in(*other.tensor)) {
          continue;
        }
        if (one.tensor->dtype() != other.tensor->dtype()) {
          return true;
        }
        if (one.written &&
            (one.tensor->sizes() != other.tensor->sizes() || one.tensor->strides() != other.tensor->strides() ||
             one.tensor->storage_offset() != other.tensor->storage_offset())) {
          return true;
        }
      }
    }
    return false;
  }
};

} // namespace neuron
