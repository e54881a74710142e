// Sorting and selecting with equal elements in the order that eager PyTorch leaves them in.
//
// ATen leaves it to the standard library's unstable algorithms, and for kthvalue to a quickselect of its own. The order of
// equals follows from the comparisons alone, so the same algorithms over the same number of elements give the same order,
// whatever is moved. Whether they are the same is asked of PyTorch in the process: order_of_equals.py.
//
// Keys are int32 or int64 in the order of the elements, or floats where ATen compares by `<` alone, NaN or not. They lie
// along the last axis; positions in it are the results:
//
//   neuron_sort               all positions
//   neuron_topk               the first k, in order; k is the size of the result's last axis
//   neuron_topk_unsorted      the same ones as the selection leaves them
//   neuron_kthvalue           the one at rank k, from 0, which is the second operand

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "ffi.h"

namespace {

enum class Way : int { kSort, kTopk, kTopkUnsorted, kKthvalue };

template <typename Key>
struct Element {
  Key key;
  int64_t position;
};

template <typename Key>
bool comes_first(const Element<Key>& left, const Element<Key>& right) {
  return left.key < right.key;
}

// Hoare's selection with the median of three as pivot. Afterwards the element of that rank is in its place.
template <typename Key>
void quickselect(std::vector<Element<Key>>& row, int64_t rank) {
  const auto greater = [&](int64_t i, int64_t j) { return row[i].key > row[j].key; };
  const auto exchange = [&](int64_t i, int64_t j) { std::swap(row[i], row[j]); };
  int64_t left = 0, right = static_cast<int64_t>(row.size()) - 1;
  while (left < right) {
    if (right == left + 1) {
      if (greater(left, right)) exchange(left, right);
      return;
    }
    exchange(left + (right - left) / 2, left + 1);
    if (greater(left + 1, right)) exchange(left + 1, right);
    if (greater(left, right)) exchange(left, right);
    if (greater(left + 1, left)) exchange(left + 1, left);
    int64_t low = left + 1, high = right;
    while (true) {
      do ++low; while (greater(left, low));
      do --high; while (greater(high, left));
      if (high < low) break;
      exchange(low, high);
    }
    exchange(left, high);
    if (high <= rank) left = low;
    if (high >= rank) right = high - 1;
  }
}

template <typename Key>
void order(std::vector<Element<Key>>& row, int64_t k, Way way) {
  const auto begin = row.begin(), end = row.end();
  const auto size = static_cast<int64_t>(row.size());
  switch (way) {
    case Way::kSort:
      std::sort(begin, end, comes_first<Key>);
      return;
    case Way::kTopk:
    case Way::kTopkUnsorted:
      if (k * 64 <= size) {
        std::partial_sort(begin, begin + k, end, comes_first<Key>);
        return;
      }
      std::nth_element(begin, begin + (k - 1), end, comes_first<Key>);
      if (way == Way::kTopk) std::sort(begin, begin + (k - 1), comes_first<Key>);
      return;
    case Way::kKthvalue:
      quickselect(row, k);
      return;
  }
}

template <typename Key>
void order_rows(const Key* keys, int64_t rows, int64_t size, int64_t first, int64_t count, int64_t k, Way way,
                int64_t* positions) {
  std::vector<Element<Key>> row(size);
  for (int64_t at = 0; at < rows; ++at, keys += size, positions += count) {
    for (int64_t i = 0; i < size; ++i) row[i] = {keys[i], i};
    order(row, k, way);
    for (int64_t i = 0; i < count; ++i) positions[i] = row[first + i].position;
  }
}

XLA_FFI_Error* call(XLA_FFI_CallFrame* frame, Way way) {
  if (neuron::states_version(frame)) return nullptr;
  const XLA_FFI_Buffer& keys = neuron::argument(frame, 0);
  XLA_FFI_Buffer& positions = neuron::result(frame);
  const int64_t size = keys.dims[keys.rank - 1], count = positions.dims[positions.rank - 1];
  int64_t rows = 1;
  for (int64_t axis = 0; axis + 1 < keys.rank; ++axis) rows *= keys.dims[axis];
  if (rows == 0 || size == 0 || count == 0) return nullptr;
  const int64_t k = way == Way::kKthvalue ? *static_cast<const int64_t*>(neuron::argument(frame, 1).data) : count;
  const int64_t first = way == Way::kKthvalue ? k : 0;
  const auto run = [&](const auto* of_type) {
    order_rows(of_type, rows, size, first, count, k, way, static_cast<int64_t*>(positions.data));
  };
  switch (keys.dtype) {
    case XLA_FFI_DataType_S32: run(static_cast<const int32_t*>(keys.data)); break;
    case XLA_FFI_DataType_S64: run(static_cast<const int64_t*>(keys.data)); break;
    case XLA_FFI_DataType_F32: run(static_cast<const float*>(keys.data)); break;
    case XLA_FFI_DataType_F64: run(static_cast<const double*>(keys.data)); break;
    default: return neuron::refuse(frame, "keys must be int32, int64, float32 or float64");
  }
  return nullptr;
}

}  // namespace

NEURON_HOST_CALL XLA_FFI_Error* neuron_sort(XLA_FFI_CallFrame* frame) { return call(frame, Way::kSort); }

NEURON_HOST_CALL XLA_FFI_Error* neuron_topk(XLA_FFI_CallFrame* frame) { return call(frame, Way::kTopk); }

NEURON_HOST_CALL XLA_FFI_Error* neuron_topk_unsorted(XLA_FFI_CallFrame* frame) {
  return call(frame, Way::kTopkUnsorted);
}

NEURON_HOST_CALL XLA_FFI_Error* neuron_kthvalue(XLA_FFI_CallFrame* frame) { return call(frame, Way::kKthvalue); }

// One row outside of a program, by the number of the way in the list above: to compare with PyTorch.
NEURON_HOST_CALL void neuron_order_row(int way, const int32_t* keys, int64_t size, int64_t k, int64_t* positions) {
  const auto which = static_cast<Way>(way);
  const bool one = which == Way::kKthvalue;
  order_rows(keys, 1, size, one ? k : 0, one ? 1 : k, k, which, positions);
}
