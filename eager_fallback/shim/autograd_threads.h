// When autograd starts its threads for devices: at the first use of the device instead of the first backward.
//
// PyTorch's engine starts a thread for each device of any guard at the first backward of the process, also one of the
// CPU alone, and from then on refuses every backward in forked children. It does so once: here it is made to, at
// registration, while the guard says that there is no device, which starts nothing. The first use then has it start
// them. That also helps where a backward came before registration.
#pragma once

#include "memory.h"

#include <ATen/ops/empty.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <string>
#include <thread>

namespace neuron {

inline thread_local bool hidden_from_engine = false;

// Not a class to make objects of: it may name what the engine keeps to itself.
struct EngineMembers : torch::autograd::Engine {
  static bool has_device_threads(const torch::autograd::Engine& engine) {
    return !(engine.*(&EngineMembers::device_ready_queues_)).empty();
  }
  // Threads for deeply nested backwards are made when none of them waits for work, and kept.
  static std::pair<size_t, size_t> devices_and_waiting(const torch::autograd::Engine& engine) {
    const auto& pool = engine.*(&EngineMembers::thread_pool_shared_);
    const std::lock_guard<std::mutex> lock(pool->mutex_);
    return {(engine.*(&EngineMembers::device_ready_queues_)).size(), pool->num_workers_};
  }
  static void start(torch::autograd::Engine& engine) {
    (engine.*(&EngineMembers::start_device_threads))();
  }
};

// Devices of other kinds have threads of their own, which are theirs to start.
inline bool has_other_devices() {
  for (const auto& registered : c10::impl::device_guard_impl_registry) {
    const auto* guard = registered.load();
    if (guard != nullptr && guard->type() != kDevice && guard->type() != c10::DeviceType::CPU &&
        guard->type() != c10::DeviceType::Meta && guard->type() != c10::DeviceType::Lazy && guard->deviceCount() > 0) {
      return true;
    }
  }
  return false;
}

inline bool put_off = false;

struct Hidden {
  Hidden() {
    hidden_from_engine = true;
  }
  ~Hidden() {
    hidden_from_engine = false;
  }
};

// A forked child has a new engine, which PyTorch does not start again: it would lack what deeply nested backwards need.
inline void start_engine_in_child() {
  if (!put_off || used.load()) {
    return;
  }
  const Hidden hidden;
  EngineMembers::start(torch::autograd::Engine::get_default_engine());
}

inline void put_off_device_threads() {
  if (has_other_devices()) {
    return;
  }
  const Hidden hidden;
  try {
    torch::autograd::Engine::get_default_engine().initialize_device_threads_pool();
  } catch (const c10::Error&) {
    return; // in a forked child whose parent has such threads: no backward runs here
  }
  put_off = true;
  pthread_atfork(nullptr, nullptr, &start_engine_in_child);
}

inline void start_device_threads() {
  auto& engine = torch::autograd::Engine::get_default_engine();
  engine.initialize_device_threads_pool();
  if (!EngineMembers::has_device_threads(engine)) {
    EngineMembers::start(engine);
  }
}

// A node that does nothing, on one device.
struct Idle final : torch::autograd::Node {
  explicit Idle(const at::Tensor& on) {
    add_input_metadata(on);
  }
  torch::autograd::variable_list apply(torch::autograd::variable_list&&) override {
    return {};
  }
};

// Autograd's threads by the name that it gives those of devices; those for deeply nested backwards inherit it. 0 where
// the system does not tell.
inline size_t autograd_threads() {
  std::error_code unreadable;
  size_t found = 0;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task", unreadable)) {
    std::string name;
    std::getline(std::ifstream(thread.path() / "comm"), name);
    found += name.rfind("pt_autograd_", 0) == 0;
  }
  return found;
}

// Waits until the devices' threads have let go of the backwards before, at most for `limit`.
//
// A backward returns to its caller before the thread that ran it has dropped it, and with it what Python objects it holds.
// Where the process ends meanwhile, the thread finds the interpreter gone, is ended by it amid destructors, and the process
// is aborted. A thread takes the next backward once it has dropped the last. That one must hold no Python objects itself:
// it is run from a thread without any.
inline void let_device_threads_rest(std::chrono::milliseconds limit) {
  auto& engine = torch::autograd::Engine::get_default_engine();
  if (!used.load() || forked.load() || !EngineMembers::has_device_threads(engine)) {
    return;
  }
  auto rested = std::make_shared<std::promise<void>>();
  auto done = rested->get_future();
  std::thread([&engine, rested] {
    try {
      for (int index = 0; index < device_count.load(); ++index) {
        const at::Tensor nothing = at::empty({0}, at::TensorOptions(c10::Device(kDevice, c10::DeviceIndex(index))));
        const auto idle = c10::make_intrusive<Idle>(nothing);
        engine.execute({torch::autograd::Edge(idle, 0)}, {nothing}, false, false, true, {});
      }
    } catch (const std::exception&) { // the end of the process goes on
    }
    rested->set_value();
  }).detach();
  const auto end = std::chrono::steady_clock::now() + limit;
  done.wait_until(end);
  do {
    const auto [devices, waiting] = EngineMembers::devices_and_waiting(engine);
    if (autograd_threads() <= devices + waiting) {
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  } while (std::chrono::steady_clock::now() < end);
}

} // namespace neuron
