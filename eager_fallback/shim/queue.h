// Fused eager: operators wait in a queue until a value is needed, and then run as one program.
//
// What is queued is text: JSON that names each operator, its arguments and its results; the text is the key under which
// compiled programs are kept, so that nothing is compiled twice. A tensor is a storage of the program, by number, with
// the sizes and strides of the view of it. Results get their memory at once, and their sizes from PyTorch's meta
// kernels; only their values come later, as on any device that runs behind the program.
//
// A queue belongs to the thread that asked for it, and follows it into the threads that run its backward passes.
#pragma once

#include "alias.h"
#include "ledger.h"
#include "waiting.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>

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

// Results' sizes ---------------------------------------------------------------------------------------------------------

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

// The queue --------------------------------------------------------------------------------------------------------------

// A storage of the program: given to it, or made by it and then only held if somebody else holds it.
struct Held {
  c10::intrusive_ptr<c10::StorageImpl> given;
  c10::weak_intrusive_ptr<c10::StorageImpl> made;
  Whole whole;
};

// What was queued, to be run.
struct Taken {
  std::string text;
  std::vector<at::Tensor> inputs, outputs;
};

struct Queue final : c10::DebugInfoBase, std::enable_shared_from_this<Queue> {
  Queue(size_t limit, int options) : limit(limit), options(options) {}

  // Takes the call, whose results are made already, or returns false. Foreign tickets are settled by the caller.
  bool add(const std::string& name, const Encoded& call, const Results& results, const std::vector<at::Tensor>& made);
  bool take(uint64_t wanted, Taken& into);

  // A program is of one device, and computes numbers in one type where a call names none.
  bool continues(c10::DeviceIndex on) {
    std::lock_guard<std::mutex> lock(mutex);
    return device.load() == on && default_type == c10::get_default_dtype_as_scalartype();
  }

  // Operators are run one by one, by programs instead of kernels.
  bool one_by_one() const {
    return limit == 1;
  }
  bool takes(const Record& record) const {
    return (record.queued.load(std::memory_order_relaxed) & ~kNumbers) >= (one_by_one() ? kQueuedAlone : kQueued);
  }

  const size_t limit; // operators; 0 queues none
  const int options; // known to the runner
  std::atomic<uint64_t> ticket{0}; // of what is in it; 0 is nothing
  std::atomic<c10::DeviceIndex> device{-1}; // of what is in it
  std::mutex mutex;

 private:
  bool fits(const c10::TensorImpl& tensor) const {
    const auto found = places.find(storage_in(tensor));
    const size_t item = tensor.dtype().itemsize();
    return found == places.end() ? storage_in(tensor)->nbytes() % item == 0
                                 : held[found->second].whole.dtype == c10::typeMetaToScalarType(tensor.dtype());
  }

  uint32_t hold(const c10::StorageImpl* storage, Held&& entry) {
    places[storage] = static_cast<uint32_t>(held.size());
    held.push_back(std::move(entry));
    return static_cast<uint32_t>(held.size()) - 1;
  }

  static Held held_weakly(const c10::Storage& storage, Whole whole) {
    return {nullptr, c10::weak_intrusive_ptr<c10::StorageImpl>(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(
                         storage.unsafeGetStorageImpl())),
            std::move(whole)};
  }

  uint32_t place_of(const c10::TensorImpl& tensor) {
    const c10::StorageImpl* storage = storage_in(tensor);
    if (const auto found = places.find(storage); found != places.end()) {
      return found->second;
    }
    Whole whole{c10::typeMetaToScalarType(tensor.dtype()), {}, {}};
    if (covers_memory(tensor)) {
      whole.sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
      whole.strides.assign(tensor.strides().begin(), tensor.strides().end());
    } else {
      whole.sizes = {static_cast<int64_t>(storage->nbytes() / tensor.dtype().itemsize())};
      whole.strides = {1};
    }
    return hold(
        storage,
        {c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(tensor.storage().unsafeGetStorageImpl()),
         c10::weak_intrusive_ptr<c10::StorageImpl>(c10::intrusive_ptr<c10::StorageImpl>()), std::move(whole)});
  }

  // Memory that a call writes all of, and that nothing queued knows: its old values are not part of the program.
  void hold_overwritten(const std::string& name, const Encoded& call) {
    if (name != "aten::copy_" && name != "aten::zero_" && name != "aten::fill_.Scalar") {
      return;
    }
    const c10::TensorImpl& target = *call.tensors.front().tensor;
    if (places.count(storage_in(target)) != 0 || !covers_memory(target) ||
        (call.tensors.size() > 1 && storage_in(*call.tensors.back().tensor) == storage_in(target))) {
      return;
    }
    Whole whole{c10::typeMetaToScalarType(target.dtype()), {}, {}};
    whole.sizes.assign(target.sizes().begin(), target.sizes().end());
    whole.strides.assign(target.strides().begin(), target.strides().end());
    const uint32_t place = hold(storage_in(target), held_weakly(target.storage(), whole));
    text += text.empty() ? "" : ",";
    text += "[\"empty\",[],[";
    write(text, place, whole);
    text += "]]";
  }

  void start(c10::DeviceIndex on);

  std::string text;
  size_t count = 0;
  c10::ScalarType default_type = c10::ScalarType::Undefined; // PyTorch's, when the operators were called
  std::vector<Held> held;
  std::unordered_map<const c10::StorageImpl*, uint32_t> places;
};

struct Queues {
  std::mutex mutex;
  std::unordered_map<uint64_t, std::shared_ptr<Queue>> by_ticket;
};

inline Queues& queues() {
  static auto* made = new Queues();
  return *made;
}

inline void Queue::start(c10::DeviceIndex on) {
  if (ticket.load() == 0) {
    device.store(on);
    default_type = c10::get_default_dtype_as_scalartype();
    const uint64_t opened = open_ticket();
    std::lock_guard<std::mutex> lock(queues().mutex);
    queues().by_ticket.emplace(opened, shared_from_this());
    ticket.store(opened);
  }
}

inline bool Queue::add(
    const std::string& name, const Encoded& call, const Results& results, const std::vector<at::Tensor>& made) {
  bool full = false;
  uint64_t mine = 0;
  {
    std::lock_guard<std::mutex> lock(mutex);
    for (const auto& [tensor, written] : call.tensors) {
      if (!fits(*tensor)) {
        return false;
      }
    }
    start(call.device);
    mine = ticket.load();
    hold_overwritten(name, call);
    text += text.empty() ? "[\"" : ",[\"";
    text += name + "\",[";
    auto tensor = call.tensors.begin();
    auto number = call.floats.begin();
    for (const char letter : call.text) {
      if (letter == '@') {
        text += std::to_string(place_of(*(tensor++)->tensor));
      } else if (letter == '#') {
        write(text, *number++);
      } else {
        text += letter;
      }
    }
    text += "],[";
    for (size_t i = 0; i < results.size(); ++i) {
      text += i == 0 ? "" : ",";
      if (results[i].dtype == c10::ScalarType::Undefined) {
        text += "null";
        continue;
      }
      const c10::Storage& storage = made[i].storage();
      write(text, hold(storage.unsafeGetStorageImpl(), held_weakly(storage, results[i])), results[i]);
      block_of(*storage.unsafeGetStorageImpl())->writer.store(mine);
    }
    text += "]]";
    for (const auto& [read, written] : call.tensors) {
      Block& block = *block_of(*storage_in(*read));
      if (written) {
        block.writer.store(mine);
        block.epoch.store(next_epoch(), std::memory_order_relaxed);
      }
      const uint64_t reader = block.reader.load();
      block.reader.store(reader == mine || !is_open(reader) ? mine : kSeveral);
    }
    full = ++count >= limit;
  }
  if (full) {
    run_ticket(mine);
  }
  return true;
}

inline bool Queue::take(uint64_t wanted, Taken& into) {
  std::lock_guard<std::mutex> lock(mutex);
  if (ticket.load() != wanted) {
    return false;
  }
  const auto tensor_on = [](c10::intrusive_ptr<c10::StorageImpl> storage, const Whole& whole) {
    auto made = c10::make_intrusive<c10::TensorImpl>(
        c10::Storage(std::move(storage)), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
        c10::scalarTypeToTypeMeta(whole.dtype));
    made->set_sizes_and_strides(whole.sizes, whole.strides, 0);
    return at::Tensor(std::move(made));
  };
  std::string inputs, live;
  for (uint32_t place = 0; place < held.size(); ++place) {
    Held& entry = held[place];
    if (entry.given) {
      inputs += inputs.empty() ? "" : ",";
      write(inputs, place, entry.whole);
      into.inputs.push_back(tensor_on(std::move(entry.given), entry.whole));
    } else if (auto storage = entry.made.lock()) {
      live += live.empty() ? "" : ",";
      live += std::to_string(place);
      into.outputs.push_back(tensor_on(std::move(storage), entry.whole));
    }
  }
  into.text = "{\"device\":" + std::to_string(device.load()) + ",\"default\":" +
      std::to_string(static_cast<int>(default_type)) + ",\"inputs\":[" + inputs + "],\"ops\":[" + text +
      "],\"live\":[" + live + "]}";
  text.clear();
  held.clear();
  places.clear();
  count = 0;
  ticket.store(0);
  return true;
}

// Which queue a thread's operators go to -----------------------------------------------------------------------------------

inline constexpr std::string_view kQueueName = "NEURON_EAGER_QUEUE";
inline const c10::DebugInfoKind kQueueInfo(&kQueueName);

// The queues that a thread has entered, the last of which takes its operators. They may be left in any order, and in any
// thread, as generators do that hold a context.
struct Entered final : c10::DebugInfoBase {
  std::mutex mutex;
  std::vector<std::pair<uint64_t, std::shared_ptr<Queue>>> queues;
  std::shared_ptr<Queue> last; // read and written by std::atomic_load and _store

  void change(uint64_t number, std::shared_ptr<Queue> added) {
    std::lock_guard<std::mutex> lock(mutex);
    if (added != nullptr) {
      queues.emplace_back(number, std::move(added));
    } else {
      queues.erase(std::remove_if(queues.begin(), queues.end(), [=](const auto& one) { return one.first == number; }),
                   queues.end());
    }
    std::atomic_store(&last, queues.empty() ? nullptr : queues.back().second);
  }
};

struct AllEntered {
  std::mutex mutex;
  std::unordered_map<uint64_t, std::pair<std::shared_ptr<Entered>, std::shared_ptr<Queue>>> by_number;
};

inline AllEntered& all_entered() {
  static auto* made = new AllEntered();
  return *made;
}

// Once there it stays, below what PyTorch's profiler has there: that wants to find its own on top when it ends.
inline void push_below_profilers(const std::shared_ptr<Entered>& entered) {
  using c10::ThreadLocalDebugInfo;
  std::vector<std::shared_ptr<c10::DebugInfoBase>> profilers;
  while (ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE) != nullptr) {
    try {
      profilers.push_back(ThreadLocalDebugInfo::_pop(c10::DebugInfoKind::PROFILER_STATE));
    } catch (const c10::Error&) {
      break; // another's is on top
    }
  }
  ThreadLocalDebugInfo::_push(kQueueInfo, entered);
  for (; !profilers.empty(); profilers.pop_back()) {
    ThreadLocalDebugInfo::_push(c10::DebugInfoKind::PROFILER_STATE, std::move(profilers.back()));
  }
}

// Returns a number to leave it by.
inline uint64_t enter_queue(size_t limit, int options) {
  static std::atomic<uint64_t> last{0};
  static thread_local std::shared_ptr<Entered> own;
  if (own == nullptr) {
    own = std::make_shared<Entered>();
  }
  if (c10::ThreadLocalDebugInfo::get(kQueueInfo) != own.get()) {
    push_below_profilers(own);
  }
  const uint64_t number = ++last;
  auto queue = std::make_shared<Queue>(limit, options);
  {
    std::lock_guard<std::mutex> lock(all_entered().mutex);
    all_entered().by_number.emplace(number, std::pair(own, queue));
  }
  own->change(number, std::move(queue));
  return number;
}

// Returns the ticket of what is still in it, or 0.
inline uint64_t leave_queue(uint64_t number) {
  std::pair<std::shared_ptr<Entered>, std::shared_ptr<Queue>> left;
  {
    std::lock_guard<std::mutex> lock(all_entered().mutex);
    const auto found = all_entered().by_number.find(number);
    if (found == all_entered().by_number.end()) {
      return 0;
    }
    left = std::move(found->second);
    all_entered().by_number.erase(found);
  }
  left.first->change(number, nullptr);
  return left.second->ticket.load();
}

inline std::atomic<int> queues_asked_for{0};
// For threads that asked for none: operators, 0 queues none; and what the runner knows them by.
inline std::atomic<size_t> default_limit{0};
inline std::atomic<int> default_options{0};

// Called once, before anything is queued, to say which operators may be.
using Prepare = void (*)();
inline std::atomic<Prepare> prepare{nullptr};

inline Queue* current_queue() {
  if (C10_LIKELY(queues_asked_for.load(std::memory_order_relaxed) == 0) || running_queue) {
    return nullptr;
  }
  if (C10_UNLIKELY(prepare.load(std::memory_order_relaxed) != nullptr)) {
    if (const Prepare first = prepare.exchange(nullptr)) {
      first();
    }
  }
  if (auto* entered = static_cast<Entered*>(c10::ThreadLocalDebugInfo::get(kQueueInfo))) {
    static thread_local std::shared_ptr<Queue> used; // another thread may leave it meanwhile
    used = std::atomic_load(&entered->last);
    if (used != nullptr) {
      return used->limit == 0 ? nullptr : used.get();
    }
  }
  const size_t limit = default_limit.load();
  if (limit == 0) {
    return nullptr;
  }
  static thread_local std::shared_ptr<Queue> own;
  if (own == nullptr || own->limit != limit || own->options != default_options.load()) {
    if (own != nullptr && own->ticket.load() != 0) {
      run_ticket(own->ticket.load());
    }
    own = std::make_shared<Queue>(limit, default_options.load());
  }
  return own.get();
}

// Told of operators that run by their kernel although each was to run as a program.
using Missed = void (*)(const char* name);
inline std::atomic<Missed> missed{nullptr};

// Running it -----------------------------------------------------------------------------------------------------------------

// Runs a ticket's operators; returns 0, or which error to raise with the message it has written.
using Runner = int (*)(uint64_t ticket, int options, char* message, int size);
inline std::atomic<Runner> runner{nullptr};

[[noreturn]] inline void raise_as(int code, const std::string& message) {
  switch (code) {
    case 2:
      TORCH_CHECK_INDEX(false, message);
    case 3:
      TORCH_CHECK_VALUE(false, message);
    case 4:
      TORCH_CHECK_NOT_IMPLEMENTED(false, message);
    case 5:
      TORCH_CHECK_TYPE(false, message);
    case 6:
      TORCH_CHECK_LINALG(false, message);
    default:
      TORCH_CHECK(false, message);
  }
}

inline std::shared_ptr<Queue> queue_of(uint64_t ticket) {
  std::lock_guard<std::mutex> lock(queues().mutex);
  const auto found = queues().by_ticket.find(ticket);
  return found == queues().by_ticket.end() ? nullptr : found->second;
}

inline void close_queue(uint64_t ticket) {
  {
    std::lock_guard<std::mutex> lock(queues().mutex);
    queues().by_ticket.erase(ticket);
  }
  close_ticket(ticket);
}

// Also where another thread runs it already: the runner waits for that.
inline void run_one(uint64_t ticket) {
  const auto queue = queue_of(ticket);
  if (queue == nullptr) {
    return;
  }
  // Operators were queued below autograd and autocast, wherever in the user's program they run now.
  struct Inside {
    Inside() : keys(c10::default_included_set, c10::default_excluded_set) {
      running_queue = true;
    }
    ~Inside() {
      running_queue = false;
    }
    c10::impl::ForceDispatchKeyGuard keys;
  };
  std::string message(4096, '\0');
  int code = 0;
  {
    Inside inside;
    code = runner.load()(ticket, queue->options, message.data(), static_cast<int>(message.size()));
  }
  if (C10_UNLIKELY(code != 0)) {
    raise_as(code, message[0] == '\0' ? "queued operators were interrupted" : message.c_str());
  }
}

inline void run_tickets(uint64_t ticket) {
  if (ticket != kSeveral) {
    run_one(ticket);
    return;
  }
  std::vector<uint64_t> all;
  {
    std::lock_guard<std::mutex> lock(queues().mutex);
    for (const auto& [open, queue] : queues().by_ticket) {
      all.push_back(open);
    }
  }
  std::sort(all.begin(), all.end());
  for (const uint64_t open : all) {
    run_one(open);
  }
}

// One operator's call ----------------------------------------------------------------------------------------------------------

// How an operator's calls are queued: which arguments are written, and which results are arguments.
struct Queueing {
  explicit Queueing(const c10::FunctionSchema& schema) {
    for (const c10::Argument& argument : schema.arguments()) {
      written.push_back(argument.alias_info() != nullptr && argument.alias_info()->isWrite());
      possible &= argument.alias_info() == nullptr || argument.alias_info()->isWrite(); // not views
      possible &= !argument.is_out(); // which a kernel may resize
    }
    for (const c10::Argument& result : schema.returns()) {
      possible &= result.type()->kind() == c10::TypeKind::TensorType;
      int32_t same = -1;
      for (size_t i = 0; i < written.size() && result.alias_info() != nullptr; ++i) {
        const auto* alias = schema.arguments()[i].alias_info();
        if (alias != nullptr && alias->afterSets() == result.alias_info()->afterSets()) {
          same = static_cast<int32_t>(i);
        }
      }
      possible &= (result.alias_info() == nullptr) == (same < 0);
      arguments.push_back(same);
    }
  }

  // Puts the results on the stack, adds to the bytes and returns true, or changes nothing and returns false.
  bool operator()(Queue& queue, const c10::OperatorHandle& op, const Record& record, Stack* stack, uint64_t& bytes) const {
    const std::string& name = record.name;
    const size_t first = stack->size() - written.size();
    Encoded call;
    call.numbers = (record.queued.load(std::memory_order_relaxed) & kNumbers) != 0;
    for (size_t i = 0; i < written.size(); ++i) {
      call.text += i == 0 ? "" : ",";
      if (!call.value((*stack)[first + i], written[i])) {
        return false;
      }
    }
    if (call.device < 0 || call.overlaps()) {
      return false;
    }
    const auto results = infer(op, name + '(' + call.text + ')' + call.settings(), stack->data() + first, written);
    if (results == nullptr || results->size() != arguments.size()) {
      return false;
    }
    std::vector<at::Tensor> made(results->size());
    for (size_t i = 0; i < made.size(); ++i) {
      const Whole& whole = (*results)[i];
      if (whole.dtype != c10::ScalarType::Undefined) {
        WithDevice with(call.device);
        made[i] = at::detail::empty_strided_generic(
            whole.sizes, whole.strides, allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), whole.dtype);
      }
    }
    settle_others(queue, call);
    if (const uint64_t mine = queue.ticket.load(); mine != 0 && !queue.continues(call.device)) {
      run_ticket(mine);
    }
    if (!queue.add(name, call, *results, made)) {
      return false;
    }
    for (size_t i = 0; i < made.size(); ++i) {
      if (arguments[i] >= 0) {
        made[i] = (*stack)[first + arguments[i]].toTensor();
      }
    }
    for (const auto& [tensor, writes] : call.tensors) {
      bytes += tensor->numel() * tensor->dtype().itemsize();
    }
    stack->erase(stack->end() - static_cast<std::ptrdiff_t>(written.size()), stack->end());
    for (at::Tensor& result : made) {
      bytes += result.defined() ? result.numel() * result.dtype().itemsize() : 0;
      stack->emplace_back(std::move(result));
    }
    return true;
  }

  // What other queues will write or read, where this one touches it.
  static void settle_others(const Queue& queue, const Encoded& call) {
    const uint64_t mine = queue.ticket.load();
    for (const auto& [tensor, writes] : call.tensors) {
      Block* block = block_of(*storage_in(*tensor));
      if (block->writer.load() != mine) {
        settle_ticket(block->writer);
      }
      if (writes && block->reader.load() != mine) {
        settle_ticket(block->reader);
      }
    }
  }

  bool possible = true;
  c10::SmallVector<bool, 8> written;
  c10::SmallVector<int32_t, 4> arguments; // by result; -1 is new
};

} // namespace neuron
