// Having queued operators run, by Python.
#pragma once

#include "queue.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

namespace neuron {

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

} // namespace neuron
