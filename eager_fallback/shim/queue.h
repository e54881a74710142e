// Fused eager: operators wait in a queue until a value is needed, and then run as one program.
//
// What is queued is text (queue_text.h), the key under which compiled programs are kept, so that nothing is compiled twice.
// Results get their memory at once, and their sizes from PyTorch's meta kernels (queue_results.h); only their values come
// later, as on any device that runs behind the program.
#pragma once

#include "ledger.h"
#include "queue_results.h"
#include "waiting.h"

#include <c10/util/ThreadLocalDebugInfo.h>

namespace neuron {

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

} // namespace neuron
