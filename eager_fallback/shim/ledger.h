// One record per operator: how often it ran on the device, for how long, over how many bytes. Off until asked for.
//
// A record can also ask to be told of: the observer is called with its name, once or every time, before the op runs.
#pragma once

#include <c10/util/ApproximateClock.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <deque>
#include <mutex>
#include <string>
#include <unordered_map>

namespace neuron {

enum Notice : uint8_t { kSilent = 0, kOnce = 1, kAlways = 2 };

struct Record {
  explicit Record(std::string name) : name(std::move(name)) {}
  const std::string name; // with its overload: aten::add.Tensor
  std::atomic<uint64_t> calls{0}, nanoseconds{0}, bytes{0};
  std::atomic<uint8_t> notice{kSilent};
  std::atomic<uint8_t> queued{0}; // which queues take it (Queued), and kNumbers
};

// Queues that take an operator: none, those of one operator at a time, all.
enum Queued : uint8_t { kNeverQueued = 0, kQueuedAlone = 1, kQueued = 2 };
constexpr uint8_t kNumbers = 4; // also with numbers in place of tensors

inline std::atomic<bool> counting{false};

// Operators that were queued are running: they were counted when they were called.
inline thread_local bool running_queue = false;

// Returns 0 to go on. Called without locks held, by any thread.
using Observer = int (*)(const char* name);
inline std::atomic<Observer> observer{nullptr};

struct Records {
  std::mutex mutex;
  std::deque<Record> all; // records stay where they are
  std::unordered_map<std::string, Record*> by_name;
};

inline Records& records() {
  static auto* made = new Records();
  return *made;
}

inline Record& record_of(const std::string& name) {
  std::lock_guard<std::mutex> lock(records().mutex);
  Record*& found = records().by_name[name];
  if (found == nullptr) {
    found = &records().all.emplace_back(name);
  }
  return *found;
}

inline void notify(Record& record) {
  if (record.notice.load() == kOnce) {
    uint8_t once = kOnce;
    if (!record.notice.compare_exchange_strong(once, kSilent)) {
      return; // another thread was first
    }
  }
  const Observer told = observer.load();
  TORCH_CHECK_NOT_IMPLEMENTED(
      told == nullptr || told(record.name.c_str()) == 0,
      record.name, " would run on the CPU for device neuron, and that is set to be an error.");
}

inline int64_t ticks() {
  return static_cast<int64_t>(c10::getApproximateTime());
}

// Ticks of the fast clock in nanoseconds, measured once against the slow one.
inline double nanoseconds_per_tick() {
#ifdef C10_RDTSC
  static const double measured = [] {
    const int64_t begin = ticks();
    const auto begin_time = c10::getTime();
    while (c10::getTime() - begin_time < 1'000'000) {
    }
    return static_cast<double>(c10::getTime() - begin_time) / static_cast<double>(ticks() - begin);
  }();
  return measured;
#else
  return 1.0;
#endif
}

// Counts one call from here to the end of the block.
struct Counted {
  explicit Counted(Record& record) : record(record), on(counting.load(std::memory_order_relaxed) && !running_queue) {
    if (C10_UNLIKELY(record.notice.load(std::memory_order_relaxed) != kSilent) && !running_queue) {
      notify(record);
    }
    if (on) {
      start = ticks();
    }
  }
  ~Counted() {
    if (on) {
      const auto passed = static_cast<double>(ticks() - start) * nanoseconds_per_tick();
      record.calls.fetch_add(1, std::memory_order_relaxed);
      record.nanoseconds.fetch_add(static_cast<uint64_t>(passed), std::memory_order_relaxed);
      record.bytes.fetch_add(bytes, std::memory_order_relaxed);
    }
  }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

  Record& record;
  const bool on;
  int64_t start = 0;
  uint64_t bytes = 0;
};

// Counts calls of the kernel it stands in.
#define NEURON_COUNTED(name)                              \
  static neuron::Record& counted_as = neuron::record_of(name); \
  neuron::Counted counted(counted_as)

} // namespace neuron
