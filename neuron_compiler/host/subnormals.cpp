// XLA's CPU runtime sets the processor to take subnormal numbers for zero, on its own threads and, for the length of a
// run, on the thread that called it. PyTorch keeps them. Two custom calls, by XLA's C interface, set that back:
//
//   neuron_keep_subnormals             on the thread that runs it: first in every program
//   neuron_keep_subnormals_on_workers  on all threads of the pool, once, since they keep their setting; gives 1 if all have it
//
// Nothing has to be undone: XLA puts the caller's setting back after the run.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "ffi.h"

#if defined(__SSE2__) || defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

void keep_subnormals() {
#if defined(__SSE2__) || defined(__x86_64__)
  constexpr unsigned int kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040;
  _mm_setcsr(_mm_getcsr() & ~(kFlushToZero | kDenormalsAreZero));
#elif defined(__aarch64__)
  constexpr uint64_t kFlushToZero = uint64_t{1} << 24;
  uint64_t control;
  __asm__ volatile("mrs %0, fpcr" : "=r"(control));
  __asm__ volatile("msr fpcr, %0" : : "r"(control & ~kFlushToZero));
#endif
}

struct Meeting {
  int64_t wanted;
  std::atomic<int64_t> arrived{0}, met{0}, left{0};
};

// A thread that has taken one task waits for the others to have taken theirs, so that none takes two.
void attend(void* data) {
  Meeting& meeting = *static_cast<Meeting*>(data);
  keep_subnormals();
  meeting.arrived.fetch_add(1);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  while (meeting.arrived.load() < meeting.wanted && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  if (meeting.arrived.load() == meeting.wanted) meeting.met.fetch_add(1);
  meeting.left.fetch_add(1);
}

}  // namespace

NEURON_HOST_CALL XLA_FFI_Error* neuron_keep_subnormals(XLA_FFI_CallFrame* frame) {
  if (neuron::states_version(frame)) return nullptr;
  keep_subnormals();
  *static_cast<uint32_t*>(neuron::result(frame).data) = 1;
  return nullptr;
}

NEURON_HOST_CALL XLA_FFI_Error* neuron_keep_subnormals_on_workers(XLA_FFI_CallFrame* frame) {
  if (neuron::states_version(frame)) return nullptr;
  int64_t threads = 0;
  XLA_FFI_ThreadPool_NumThreads_Args asked{};
  asked.struct_size = XLA_FFI_ThreadPool_NumThreads_Args_STRUCT_SIZE;
  asked.ctx = frame->ctx;
  asked.num_threads = &threads;
  if (XLA_FFI_Error* error = frame->api->XLA_FFI_ThreadPool_NumThreads(&asked)) return error;
  Meeting meeting{threads};
  int64_t scheduled = 0;
  XLA_FFI_Error* error = nullptr;
  while (error == nullptr && scheduled < threads) {
    XLA_FFI_ThreadPool_Schedule_Args task{};
    task.struct_size = XLA_FFI_ThreadPool_Schedule_Args_STRUCT_SIZE;
    task.ctx = frame->ctx;
    task.task = attend;
    task.data = &meeting;
    error = frame->api->XLA_FFI_ThreadPool_Schedule(&task);
    if (error == nullptr) ++scheduled;
  }
  // The meeting lies on this stack: nobody may be in it any more.
  while (meeting.left.load() < scheduled) std::this_thread::yield();
  *static_cast<uint32_t*>(neuron::result(frame).data) = meeting.met.load() == threads ? 1 : 0;
  return error;
}
