// What PyTorch's core asks of a device: guard, streams, events, generators, hooks.
//
// All work is done when the call that asks for it returns, but for what waits in a queue (queue.h). Streams are therefore
// numbers that only have to be told apart, and an event is the time at which it was recorded.
#pragma once

#include "autograd_threads.h"
#include "waiting.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/GeneratorForPrivateuseone.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <chrono>
#include <cstring>
#include <unordered_map>

namespace neuron {

using Clock = std::chrono::steady_clock;

inline std::atomic<int64_t> streams{0};
inline thread_local std::unordered_map<c10::DeviceIndex, c10::StreamId> current_streams;

inline c10::Stream stream_of(c10::DeviceIndex index) {
  const auto found = current_streams.find(index);
  return c10::Stream(
      c10::Stream::UNSAFE, c10::Device(kDevice, index), found == current_streams.end() ? 0 : found->second);
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return kDevice;
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device previous = getDevice();
    setDevice(device);
    return previous;
  }
  c10::Device getDevice() const override {
    return {kDevice, current_device};
  }
  void setDevice(c10::Device device) const override {
    if (device.has_index()) {
      current_device = check_index(device.index());
    }
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) {
      current_device = device.index();
    }
  }
  c10::Stream getStream(c10::Device device) const override {
    return stream_of(check_index(device.index()));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, c10::Device(kDevice, check_index(device.index())));
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kDevice, check_index(device.index())), ++streams);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getNewStream(device, 0);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream previous = stream_of(stream.device_index());
    current_streams[stream.device_index()] = stream.id();
    return previous;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return reinterpret_cast<void*>(stream.id());
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return hidden_from_engine ? 0 : static_cast<c10::DeviceIndex>(device_count.load());
  }
  // Types that the CPU's kernels convert to and from: not those of less than a byte, bare bits, or quantized ones.
  c10::DeviceCapability getDeviceCapability(c10::Device) const override {
    c10::DeviceCapability made;
    made.capability_data.capability_bits = 0;
    auto& types = made.capability_data.supported_scalar_types;
    types.has_Bool = types.has_Byte = types.has_Char = types.has_Short = types.has_Int = types.has_Long = 1;
    types.has_UInt16 = types.has_UInt32 = types.has_UInt64 = 1;
    types.has_Half = types.has_BFloat16 = types.has_Float = types.has_Double = 1;
    types.has_ComplexHalf = types.has_ComplexFloat = types.has_ComplexDouble = 1;
    types.has_Float8_e5m2 = types.has_Float8_e4m3fn = types.has_Float8_e5m2fnuz = types.has_Float8_e4m3fnuz = 1;
    types.has_Float8_e8m0fnu = 1;
    return made;
  }
  bool queryStream(const c10::Stream&) const override {
    return true;
  }
  void synchronizeStream(const c10::Stream&) const override {
    settle_all();
  }
  void synchronizeDevice(const c10::DeviceIndex) const override {
    settle_all();
  }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
  void record(void** event, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {
    settle_all(); // what was asked for before is done at that time
    if (*event == nullptr) {
      *event = new Clock::time_point();
    }
    *static_cast<Clock::time_point*>(*event) = Clock::now();
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override {
    return true;
  }
  void synchronizeEvent(void*) const override {}
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Clock::time_point*>(event);
  }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    TORCH_CHECK(start != nullptr && end != nullptr, "Both events must be recorded before calculating elapsed time.");
    const auto passed = *static_cast<Clock::time_point*>(end) - *static_cast<Clock::time_point*>(start);
    return std::chrono::duration<double, std::milli>(passed).count();
  }
};

// Generators -----------------------------------------------------------------------------------------------------------

// A CPU generator under the device's name: a seed gives the numbers that it gives on CPU. The default generators of all
// devices are PyTorch's default generator, so that there is one seed and one stream of numbers wherever a model runs.
struct Generator final : c10::GeneratorImpl {
  Generator(at::Generator inner, c10::DeviceIndex index)
      : c10::GeneratorImpl(c10::Device(kDevice, index), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        inner(std::move(inner)) {}

  void set_current_seed(uint64_t seed) override {
    std::lock_guard<std::mutex> lock(inner.mutex());
    inner.set_current_seed(seed);
  }
  void set_offset(uint64_t offset) override {
    inner.set_offset(offset);
  }
  uint64_t get_offset() const override {
    return inner.get_offset();
  }
  uint64_t current_seed() const override {
    return inner.current_seed();
  }
  uint64_t seed() override {
    auto drawn = c10::detail::getNonDeterministicRandom();
    set_current_seed(drawn);
    return drawn;
  }
  void set_state(const c10::TensorImpl& state) override {
    std::lock_guard<std::mutex> lock(inner.mutex());
    inner.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return inner.unsafeGetGeneratorImpl()->get_state();
  }
  Generator* clone_impl() const override {
    return new Generator(inner.clone(), device().index());
  }

  at::Generator inner;
};

inline const at::Generator& default_generator(c10::DeviceIndex index) {
  static const auto* made = [] {
    auto* all = new std::vector<at::Generator>();
    for (int i = 0; i < kMaxDevices; ++i) {
      all->push_back(at::make_generator<Generator>(
          at::detail::getDefaultCPUGenerator(), static_cast<c10::DeviceIndex>(i)));
    }
    return all;
  }();
  return (*made)[check_index(index)];
}

inline at::Generator new_generator(c10::DeviceIndex index) {
  return at::make_generator<Generator>(at::detail::createCPUGenerator(), check_index(index));
}

// The generator that a CPU kernel draws from where the device's was given.
inline at::Generator cpu_generator(const at::Generator& given) {
  if (given.defined() && given.device().type() == kDevice) {
    return static_cast<Generator*>(given.unsafeGetGeneratorImpl())->inner;
  }
  return given;
}

// Hooks ----------------------------------------------------------------------------------------------------------------

// Storage that is resized keeps what fits, on its own device; one of no bytes still says which device it is on.
inline void resize_storage(c10::StorageImpl& storage, size_t bytes) {
  TORCH_CHECK(storage.resizable(), "Trying to resize storage that is not resizable");
  settle(storage, true);
  auto fresh = allocate_on(bytes, storage.device().index());
  if (const size_t kept = std::min(bytes, storage.nbytes()); kept > 0) {
    std::memcpy(fresh.get(), storage.data(), kept);
  }
  storage.set_data_ptr_noswap(std::move(fresh));
  storage.set_nbytes(bytes);
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return device_count.load() > 0;
  }
  bool hasPrimaryContext(c10::DeviceIndex index) const override {
    return index >= 0 && index < device_count.load();
  }
  void init() const override {}
  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(device_count.load());
  }
  void setCurrentDevice(c10::DeviceIndex index) const override {
    current_device = check_index(index);
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return current_device;
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    const auto previous = current_device;
    current_device = check_index(index);
    return previous;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return index < 0 ? current_device : exchangeDevice(index);
  }
  bool isPinnedPtr(const void* pointer) const override {
    return is_pinned(pointer);
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    static auto* made = new PinnedAllocator();
    return made;
  }
  c10::Device getDeviceFromPtr(void*) const override {
    return {kDevice, current_device};
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return default_generator(index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return new_generator(index);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(*storage.unsafeGetStorageImpl(), bytes);
  }
};

} // namespace neuron
