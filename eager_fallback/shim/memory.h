// Device memory: host memory from PyTorch's own CPU allocator (64-byte aligned), counted per device.
//
// Every storage of the device owns a Block, the context of its DataPtr. A Block knows its device, its size and the
// write epoch: a number that no two states of any storage share, changed whenever a kernel writes. Whoever keeps a
// packed copy of a tensor compares epochs to learn whether the copy is still good.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Storage.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/Exception.h>

#include <pthread.h>

#include <atomic>
#include <map>
#include <mutex>

namespace neuron {

constexpr c10::DeviceType kDevice = c10::DeviceType::PrivateUse1;
constexpr int kMaxDevices = 128;

inline std::atomic<int> device_count{1};
inline thread_local c10::DeviceIndex current_device = 0;

// Fork ---------------------------------------------------------------------------------------------------------------

inline std::atomic<bool> used{false};
inline std::atomic<bool> forked{false};

inline void after_fork_in_child() {
  forked.store(used.load());
}

// Run before the first memory is handed out: what costs too much for processes that never use the device.
using FirstUse = void (*)();
inline FirstUse first_use = nullptr;
inline std::once_flag first_used;

inline void use() {
  if (C10_UNLIKELY(!used.load(std::memory_order_acquire))) {
    std::call_once(first_used, [] {
      first_use();
      used.store(true, std::memory_order_release);
    });
  }
}

inline void check_usable() {
  if (C10_UNLIKELY(forked.load(std::memory_order_relaxed))) {
    TORCH_CHECK(
        false,
        "Cannot use device neuron in a forked process: its parent has used the device already. "
        "To use it with multiprocessing, take the 'spawn' start method.");
  }
}

inline c10::DeviceIndex check_index(c10::DeviceIndex index) {
  if (index < 0) {
    return current_device;
  }
  TORCH_CHECK(
      index < device_count.load(std::memory_order_relaxed),
      "neuron error: invalid device ordinal ", static_cast<int>(index), ", there ",
      device_count.load() == 1 ? "is 1 device" : c10::str("are ", device_count.load(), " devices"),
      ". NEURON_RT_NUM_CORES or NEURON_RT_VISIBLE_CORES set how many.");
  return index;
}

struct WithDevice {
  explicit WithDevice(c10::DeviceIndex index) : previous(current_device) {
    current_device = check_index(index);
  }
  ~WithDevice() {
    current_device = previous;
  }
  WithDevice(const WithDevice&) = delete;
  WithDevice& operator=(const WithDevice&) = delete;
  const c10::DeviceIndex previous;
};

// Statistics -----------------------------------------------------------------------------------------------------------

struct Counter {
  std::atomic<int64_t> current{0}, peak{0}, allocated{0}, freed{0};

  void increase(int64_t amount) {
    const int64_t now = current.fetch_add(amount, std::memory_order_relaxed) + amount;
    allocated.fetch_add(amount, std::memory_order_relaxed);
    int64_t seen = peak.load(std::memory_order_relaxed);
    while (now > seen && !peak.compare_exchange_weak(seen, now, std::memory_order_relaxed)) {
    }
  }
  void decrease(int64_t amount) {
    current.fetch_sub(amount, std::memory_order_relaxed);
    freed.fetch_add(amount, std::memory_order_relaxed);
  }
  c10::CachingAllocator::Stat stat() const {
    c10::CachingAllocator::Stat made;
    made.current = current.load();
    made.peak = peak.load();
    made.allocated = allocated.load();
    made.freed = freed.load();
    return made;
  }
};

struct Memory {
  Counter bytes, blocks;
  std::atomic<int64_t> limit{INT64_MAX};
  std::atomic<int64_t> out_of_memory{0};
};

inline Memory memories[kMaxDevices];

inline void check_room(c10::DeviceIndex index, size_t bytes) {
  Memory& memory = memories[index];
  const int64_t held = memory.bytes.current.load(std::memory_order_relaxed);
  const int64_t limit = memory.limit.load(std::memory_order_relaxed);
  if (C10_LIKELY(held + static_cast<int64_t>(bytes) <= limit)) {
    return;
  }
  memory.out_of_memory.fetch_add(1);
  using c10::CachingAllocator::format_size;
  TORCH_CHECK_WITH(
      OutOfMemoryError,
      false,
      "NEURON out of memory. Tried to allocate ", format_size(bytes), ". Device neuron:", static_cast<int>(index),
      " has a total capacity of ", format_size(limit), " of which ", format_size(std::max<int64_t>(limit - held, 0)),
      " is free. ", format_size(held), " is allocated by PyTorch.");
}

// Blocks ---------------------------------------------------------------------------------------------------------------

inline std::atomic<uint64_t> epochs{0};

inline uint64_t next_epoch() {
  return epochs.fetch_add(1, std::memory_order_relaxed) + 1;
}

struct Block {
  c10::DataPtr memory; // how the memory is freed: a result of a CPU kernel keeps the deleter it came with
  size_t bytes;
  c10::DeviceIndex device;
  std::atomic<uint64_t> epoch;
  // The same memory as storage of the CPU, for kernels that read it; made when first asked for.
  std::atomic<c10::StorageImpl*> on_cpu{nullptr};
  // Tickets of queued operators that will write the memory, or read it (waiting.h).
  std::atomic<uint64_t> writer{0}, reader{0};
};

inline void report_to_profiler(const Block& block, int64_t change) {
  if (C10_UNLIKELY(c10::memoryProfilingEnabled())) {
    const auto held = static_cast<size_t>(memories[block.device].bytes.current.load());
    c10::reportMemoryUsageToProfiler(block.memory.get(), change, held, held, c10::Device(kDevice, block.device));
  }
}

inline void free_block(void* context) {
  auto* block = static_cast<Block*>(context);
  Memory& memory = memories[block->device];
  memory.bytes.decrease(static_cast<int64_t>(block->bytes));
  memory.blocks.decrease(1);
  report_to_profiler(*block, -static_cast<int64_t>(block->bytes));
  if (c10::StorageImpl* alias = block->on_cpu.load(std::memory_order_acquire)) {
    c10::intrusive_ptr<c10::StorageImpl>::reclaim(alias);
  }
  delete block;
}

// Host memory as memory of a device; the memory is freed as before, when the device is done with it.
inline c10::DataPtr adopt(c10::DataPtr&& memory, size_t bytes, c10::DeviceIndex index) {
  use();
  void* data = memory.get();
  bytes = data == nullptr ? 0 : bytes; // a tensor that is zero without memory has a size
  check_room(index, bytes);
  auto* block = new Block{std::move(memory), bytes, index, {next_epoch()}};
  memories[index].bytes.increase(static_cast<int64_t>(bytes));
  memories[index].blocks.increase(1);
  report_to_profiler(*block, static_cast<int64_t>(bytes));
  return {data, block, &free_block, c10::Device(kDevice, index)};
}

inline c10::DataPtr allocate_on(size_t bytes, c10::DeviceIndex index) {
  check_usable();
  check_room(index, bytes);
  void* data = bytes == 0 ? nullptr : c10::alloc_cpu(bytes);
  return adopt({data, data, &c10::free_cpu, c10::Device(c10::DeviceType::CPU)}, bytes, index);
}

inline Block* block_of(const c10::StorageImpl& storage) {
  return storage.data_ptr().cast_context<Block>(&free_block);
}

inline void written(const c10::StorageImpl& storage) {
  if (Block* block = block_of(storage)) {
    block->epoch.store(next_epoch(), std::memory_order_relaxed);
  }
}

struct Allocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    return allocate_on(bytes, current_device);
  }
  // No raw_deleter: a DataPtr's context is the Block, not the memory.
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  bool initialized() override {
    return true;
  }
  void emptyCache(c10::MempoolId_t) override {} // nothing is cached
  void recordStream(const c10::DataPtr&, c10::Stream) override {} // every stream runs in order with the caller
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    const Memory& memory = memories[check_index(index)];
    c10::CachingDeviceAllocator::DeviceStats stats;
    // Aggregate alone: there are no pools. What is reserved is what is allocated.
    stats.allocation[0] = stats.segment[0] = stats.active[0] = memory.blocks.stat();
    stats.allocated_bytes[0] = stats.reserved_bytes[0] = stats.active_bytes[0] = stats.requested_bytes[0] =
        memory.bytes.stat();
    stats.num_ooms = memory.out_of_memory.load();
    stats.num_device_alloc = memory.blocks.allocated.load();
    stats.num_device_free = memory.blocks.freed.load();
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex index) override {
    Memory& memory = memories[check_index(index)];
    for (Counter* counter : {&memory.bytes, &memory.blocks}) {
      counter->allocated.store(0);
      counter->freed.store(0);
    }
    memory.out_of_memory.store(0);
  }
  void resetPeakStats(c10::DeviceIndex index) override {
    Memory& memory = memories[check_index(index)];
    for (Counter* counter : {&memory.bytes, &memory.blocks}) {
      counter->peak.store(counter->current.load());
    }
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
    const Memory& memory = memories[check_index(index)];
    const int64_t limit = memory.limit.load();
    return {static_cast<size_t>(std::max<int64_t>(limit - memory.bytes.current.load(), 0)), static_cast<size_t>(limit)};
  }
};

inline Allocator* allocator() {
  static auto* made = new Allocator(); // lives as long as the process: freed storages may come after static destructors
  return made;
}

inline c10::intrusive_ptr<c10::StorageImpl> device_storage(c10::DataPtr&& data, size_t bytes) {
  return c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes, std::move(data), allocator(), /*resizable=*/true);
}

// Pinned host memory -----------------------------------------------------------------------------------------------------

// Nothing has to be pinned for a device in host memory; the ranges are kept so that is_pinned() answers as asked.
struct Pinned {
  std::mutex mutex;
  std::map<const char*, size_t> ranges;
};

inline Pinned& pinned() {
  static auto* made = new Pinned();
  return *made;
}

inline void free_pinned(void* data) {
  {
    std::lock_guard<std::mutex> lock(pinned().mutex);
    pinned().ranges.erase(static_cast<const char*>(data));
  }
  c10::free_cpu(data);
}

inline bool is_pinned(const void* pointer) {
  std::lock_guard<std::mutex> lock(pinned().mutex);
  const auto& ranges = pinned().ranges;
  const auto* place = static_cast<const char*>(pointer);
  auto after = ranges.upper_bound(place);
  return after != ranges.begin() && (--after)->first + after->second > place;
}

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* data = c10::alloc_cpu(std::max<size_t>(bytes, 1));
    std::lock_guard<std::mutex> lock(pinned().mutex);
    pinned().ranges[static_cast<const char*>(data)] = std::max<size_t>(bytes, 1);
    return {data, data, &free_pinned, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &free_pinned;
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

} // namespace neuron
