// Which memory queued operators are about to read or write, for those that want to touch it now.
//
// Every filling of a queue has a ticket, a number used once. A Block notes the ticket of the operators that will write
// it and of those that will read it; a ticket is open until its operators have run. Nothing here knows what a queue is.
#pragma once

#include "ledger.h"
#include "memory.h"

#include <unordered_set>

namespace neuron {

constexpr uint64_t kSeveral = UINT64_MAX; // read by operators of more than one queue

inline std::atomic<int> open_count{0};

struct Open {
  std::mutex mutex;
  std::unordered_set<uint64_t> tickets;
};

inline Open& open_tickets() {
  static auto* made = new Open();
  return *made;
}

inline uint64_t open_ticket() {
  static std::atomic<uint64_t> last{0};
  const uint64_t made = ++last;
  std::lock_guard<std::mutex> lock(open_tickets().mutex);
  open_tickets().tickets.insert(made);
  open_count.fetch_add(1);
  return made;
}

inline void close_ticket(uint64_t ticket) {
  std::lock_guard<std::mutex> lock(open_tickets().mutex);
  open_count.fetch_sub(static_cast<int>(open_tickets().tickets.erase(ticket)));
}

inline bool is_open(uint64_t ticket) {
  if (ticket == 0) {
    return false;
  }
  std::lock_guard<std::mutex> lock(open_tickets().mutex);
  return ticket == kSeveral ? !open_tickets().tickets.empty() : open_tickets().tickets.count(ticket) != 0;
}

// Runs what has a ticket; kSeveral is all. Set by the queue.
using RunTicket = void (*)(uint64_t ticket);
inline RunTicket run_ticket = nullptr;

inline void settle_ticket(std::atomic<uint64_t>& ticket) {
  uint64_t seen = ticket.load();
  if (is_open(seen)) {
    run_ticket(seen);
    ticket.compare_exchange_strong(seen, 0);
  }
}

// Before memory is read, or written: operators that were to write it, or to read it, run first. No lock may be held.
inline void settle(const c10::StorageImpl& storage, bool writes) {
  if (C10_LIKELY(open_count.load(std::memory_order_relaxed) == 0) || running_queue) {
    return;
  }
  if (Block* block = block_of(storage)) {
    settle_ticket(block->writer);
    if (writes) {
      settle_ticket(block->reader);
    }
  } else {
    run_ticket(kSeveral); // a tensor made of a pointer: it may point into any memory
  }
}

inline void settle_all() {
  if (C10_UNLIKELY(open_count.load() != 0) && !running_queue) {
    run_ticket(kSeveral);
  }
}

} // namespace neuron
