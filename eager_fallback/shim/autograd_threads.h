// When autograd starts its threads for devices: at the first use of the device instead of the first backward.
//
// PyTorch's engine starts a thread for each device of any guard at the first backward of the process, also one of the
// CPU alone, and from then on refuses every backward in forked children. It does so once: here it is made to, at
// registration, while the guard says that there is no device, which starts nothing. The first use then has it start
// them. That also helps where a backward came before registration.
#pragma once

#include "memory.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/autograd/engine.h>

namespace neuron {

inline thread_local bool hidden_from_engine = false;

// Not a class to make objects of: it may name what the engine keeps to itself.
struct EngineMembers : torch::autograd::Engine {
  static bool has_device_threads(const torch::autograd::Engine& engine) {
    return !(engine.*(&EngineMembers::device_ready_queues_)).empty();
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

} // namespace neuron
