// Which queue a thread's operators go to: it belongs to the thread that asked for it, and follows it into the threads that
// run its backward passes.
#pragma once

#include "queue.h"

namespace neuron {

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

} // namespace neuron
