// The device `neuron` on PyTorch's PrivateUse1: what PyTorch takes from C++ alone. Links to libtorch_cpu and libc10,
// not to Python: one library serves every Python version. Loading it changes nothing; neuron_initialize() registers.
//
// autograd_threads.h when PyTorch starts threads for backward passes
// memory.h   allocator, statistics, write epochs, pinned memory, fork
// device.h   guard, streams, events, generators, hooks
// waiting.h  memory that queued operators will read or write
// ledger.h   counts per operator
// alias.h    device tensor <-> CPU tensor on the same memory
// sparse.h   sparse tensors: their parts on the device
// queue*.h   operators that wait, to run as one program: their text, their results, the queue, whose it is, running it
// queued_call.h  an operator's calls, on their way into a queue
// fallback.h the boxed kernel
// quick.h    the same unboxed, for a few operators
// kernels.h  operators with kernels of their own
// histogram.h  one of them: counts of integers
// autocast.h autocast
#define AT_PER_OPERATOR_HEADERS

#include "autocast.h"
#include "histogram.h"
#include "kernels.h"
#include "queue_run.h"
#include "quick.h"

#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include <unordered_set>

namespace neuron {

// torch.ops.neuron_compiler -----------------------------------------------------------------------------------------

using BoxedFunction = void(const c10::OperatorHandle&, c10::DispatchKeySet, Stack*);

inline at::Tensor pop_tensor(Stack* stack) {
  at::Tensor tensor = std::move(stack->back()).toTensor();
  stack->pop_back();
  return tensor;
}

inline void check_dense(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.defined() && is_dense(*tensor.unsafeGetTensorImpl()), "expected a dense tensor");
}

void as_cpu(const c10::OperatorHandle&, c10::DispatchKeySet, Stack* stack) {
  at::Tensor tensor = pop_tensor(stack);
  check_dense(tensor);
  stack->emplace_back(on_device(tensor) ? owning_cpu(tensor, true) : tensor);
}

void from_cpu(const c10::OperatorHandle&, c10::DispatchKeySet, Stack* stack) {
  const auto index = static_cast<c10::DeviceIndex>(stack->back().toInt());
  stack->pop_back();
  at::Tensor tensor = pop_tensor(stack);
  check_dense(tensor);
  TORCH_CHECK(tensor.device().type() == c10::DeviceType::CPU, "expected a tensor on cpu, not on ", tensor.device());
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  const size_t bytes = impl.storage().nbytes();
  auto memory = shared_memory(impl.storage(), c10::Device(c10::DeviceType::CPU));
  auto storage = device_storage(adopt(std::move(memory), bytes, check_index(index)), bytes);
  stack->emplace_back(same_view(std::move(storage), c10::DispatchKey::PrivateUse1, impl));
}

const c10::StorageImpl& storage_of(const at::Tensor& tensor) {
  check_dense(tensor);
  return *tensor.unsafeGetTensorImpl()->storage().unsafeGetStorageImpl();
}

int64_t epoch_of(const at::Tensor& tensor) {
  const Block* block = block_of(storage_of(tensor));
  TORCH_CHECK(block != nullptr, "expected a tensor on neuron, not on ", tensor.device());
  return static_cast<int64_t>(block->epoch.load(std::memory_order_relaxed));
}

void write_epochs(const c10::OperatorHandle&, c10::DispatchKeySet, Stack* stack) {
  const auto tensors = stack->back().toTensorVector();
  stack->pop_back();
  c10::List<int64_t> found;
  found.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    found.push_back(epoch_of(tensor));
  }
  stack->emplace_back(std::move(found));
}

void mark_written(const c10::OperatorHandle&, c10::DispatchKeySet, Stack* stack) {
  written(storage_of(pop_tensor(stack)));
}

// Of a ticket: what was queued, as text; the tensors that it is given; those that it makes and that somebody holds.
void take_queue(const c10::OperatorHandle&, c10::DispatchKeySet, Stack* stack) {
  const auto ticket = static_cast<uint64_t>(stack->back().toInt());
  stack->pop_back();
  Taken taken;
  if (const auto queue = queue_of(ticket)) {
    queue->take(ticket, taken);
  }
  stack->emplace_back(std::move(taken.text));
  stack->emplace_back(c10::List<at::Tensor>(taken.inputs));
  stack->emplace_back(c10::List<at::Tensor>(taken.outputs));
}

void run_queue(const c10::OperatorHandle&, c10::DispatchKeySet, Stack* stack) {
  const auto ticket = static_cast<uint64_t>(stack->back().toInt());
  stack->pop_back();
  run_tickets(ticket);
}

template <BoxedFunction* function>
void define(const char* schema) {
  auto& dispatcher = c10::Dispatcher::singleton();
  auto parsed = torch::jit::parseSchema(schema);
  const c10::OperatorName name = parsed.operator_name();
  parsed.setAliasAnalysis(c10::AliasAnalysisKind::CONSERVATIVE);
  registrations().push_back(dispatcher.registerDef(std::move(parsed), "device neuron"));
  // The last is for operators without a tensor to go by.
  for (const c10::DispatchKey key :
       {c10::DispatchKey::CPU, c10::DispatchKey::PrivateUse1, c10::DispatchKey::CompositeExplicitAutograd}) {
    register_kernel(name, key, c10::KernelFunction::makeFromBoxedFunction<function>());
  }
}

void define_operators() {
  define<&as_cpu>("neuron_compiler::as_cpu(Tensor self) -> Tensor");
  define<&from_cpu>("neuron_compiler::from_cpu(Tensor self, int index) -> Tensor");
  define<&write_epochs>("neuron_compiler::write_epochs(Tensor[] tensors) -> int[]");
  define<&mark_written>("neuron_compiler::mark_written(Tensor self) -> ()");
  define<&run_queue>("neuron_compiler::run_queue(int ticket) -> ()");
  define<&take_queue>("neuron_compiler::take_queue(int ticket) -> (str, Tensor[], Tensor[])");
}

// Registration -------------------------------------------------------------------------------------------------------

// Composite on the CPU; run there as one operator instead of one by one.
bool taken_whole(const c10::OperatorName& name) {
  static const std::unordered_set<std::string> names = {
      "aten::copy_",
      "aten::convolution",
      "aten::convolution_backward",
      "aten::mode", // looks for a CPU or CUDA device
      "aten::conj_physical_", // calls a kernel that is chosen by device, below the dispatcher
  };
  return names.count(name.name) != 0 || name.name.rfind("aten::_foreach_", 0) == 0;
}

// Has a kernel for all devices, whose errors differ from those of the CPU's own: an IndexError for a wrong dimension.
bool left_to_pytorch(const c10::OperatorName& name) {
  return name.name == "aten::narrow_copy" && name.overload_name.empty();
}

bool has_own_kernel(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1);
}

void register_sparse_fallbacks(const c10::OperatorHandle& op) {
  using c10::DispatchKey;
  for (const auto& [cpu, device] :
       {std::pair(DispatchKey::SparseCPU, DispatchKey::SparsePrivateUse1),
        std::pair(DispatchKey::SparseCsrCPU, DispatchKey::SparseCsrPrivateUse1)}) {
    if (op.hasKernelForDispatchKey(cpu) && !op.hasKernelForDispatchKey(device)) {
      register_kernel(op.operator_name(), device, fallback_kernel(op));
    }
  }
}

void register_fallbacks() {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) {
      continue;
    }
    const auto op = dispatcher.findSchema(name);
    if (!op.has_value()) {
      continue;
    }
    register_sparse_fallbacks(*op);
    if (has_own_kernel(*op) || left_to_pytorch(name)) {
      continue;
    }
    const bool on_cpu = op->hasKernelForDispatchKey(c10::DispatchKey::CPU);
    if (on_cpu ||
        (taken_whole(name) && op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd))) {
      register_kernel(name, c10::DispatchKey::PrivateUse1, fallback_kernel(*op));
    }
  }
  registrations().push_back(dispatcher.registerFallback(
      c10::DispatchKey::PrivateUse1, c10::KernelFunction::makeFromBoxedFunction<&catch_all>(), "device neuron"));
}

// Reaches every operator of PyTorch, 50 ms: not for processes that import PyTorch and use no device.
void register_the_rest() {
  register_quick_kernels();
  register_fallbacks();
  register_autocast();
  start_device_threads();
}

thread_local std::string last_error;

void initialize(int devices, int64_t limit) {
  static bool done = false;
  TORCH_CHECK(!done, "device neuron is registered already");
  TORCH_CHECK(devices >= 1 && devices <= kMaxDevices, "device neuron can have 1 to ", kMaxDevices, " devices");
  TORCH_CHECK(
      !c10::impl::hasDeviceGuardImpl(kDevice) && !at::isPrivateUse1HooksRegistered(),
      "another package has registered a device on PrivateUse1 in this process");
  done = true;
  device_count.store(devices);
  for (Memory& memory : memories) {
    memory.limit.store(limit);
  }
  pthread_atfork(nullptr, nullptr, &after_fork_in_child);
  c10::SetAllocator(kDevice, allocator());
  static Guard guard;
  c10::impl::registerDeviceGuard(kDevice, &guard);
  put_off_device_threads();
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  register_own_kernels();
  register_histograms();
  define_operators();
  first_use = &register_the_rest;
  run_ticket = &run_tickets;
}

} // namespace neuron

// For ctypes ---------------------------------------------------------------------------------------------------------

#pragma GCC visibility push(default)
extern "C" {

// 0, or 1 with the reason in neuron_error().
int neuron_initialize(int devices, int64_t limit) {
  try {
    neuron::initialize(devices, limit);
    return 0;
  } catch (const std::exception& fault) {
    neuron::last_error = fault.what();
    return 1;
  }
}

const char* neuron_error() {
  return neuron::last_error.c_str();
}

int neuron_is_forked() {
  return neuron::forked.load();
}

int neuron_is_used() {
  return neuron::used.load();
}

// As if memory had been allocated; autocast may be entered before any is.
void neuron_use() {
  neuron::use();
}

// Before the process ends.
void neuron_rest(int milliseconds) {
  neuron::let_device_threads_rest(std::chrono::milliseconds(milliseconds));
}

void neuron_set_memory_limit(int index, int64_t bytes) {
  neuron::memories[index].limit.store(bytes);
}

int64_t neuron_memory_limit(int index) {
  return neuron::memories[index].limit.load();
}

// The ledger ------------------------------------------------------------------------------------------------------------

void neuron_count_calls(int on) {
  (void)neuron::nanoseconds_per_tick(); // measured here and not within the first op
  neuron::counting.store(on != 0);
}

int neuron_record_count() {
  std::lock_guard<std::mutex> lock(neuron::records().mutex);
  return static_cast<int>(neuron::records().all.size());
}

// Name of a record; calls, nanoseconds and bytes into `counts`.
const char* neuron_record(int place, uint64_t* counts) {
  std::lock_guard<std::mutex> lock(neuron::records().mutex);
  const neuron::Record& record = neuron::records().all[place];
  counts[0] = record.calls.load();
  counts[1] = record.nanoseconds.load();
  counts[2] = record.bytes.load();
  return record.name.c_str();
}

void neuron_clear_records() {
  std::lock_guard<std::mutex> lock(neuron::records().mutex);
  for (neuron::Record& record : neuron::records().all) {
    record.calls.store(0);
    record.nanoseconds.store(0);
    record.bytes.store(0);
  }
}

// Whether the observer is told before the op runs: 0 never, 1 at the next call only, 2 at each.
void neuron_set_notice(const char* name, int notice) {
  neuron::record_of(name).notice.store(static_cast<uint8_t>(notice));
}

// Fused eager -----------------------------------------------------------------------------------------------------------

// Who runs what was queued.
void neuron_set_runner(neuron::Runner runner) {
  neuron::runner.store(runner);
}

// Who says which operators may be queued, when the first would be.
void neuron_set_prepare(neuron::Prepare prepare) {
  neuron::prepare.store(prepare);
}

// Which queues take calls of an operator: 0 none, 1 those of one operator, 2 all; 4 more with numbers in place of tensors.
void neuron_set_queued(const char* name, int queued) {
  neuron::record_of(name).queued.store(static_cast<uint8_t>(queued));
}

// Who is told of operators that ran by their kernel in a queue of one operator.
void neuron_set_missed(neuron::Missed missed) {
  neuron::missed.store(missed);
}

// Queues of up to `limit` operators, 0 for none, for threads that ask for none themselves.
void neuron_queue_by_default(int64_t limit, int options) {
  neuron::default_options.store(options);
  const size_t before = neuron::default_limit.exchange(static_cast<size_t>(limit));
  neuron::queues_asked_for.fetch_add((limit != 0) - (before != 0));
}

// A queue for this thread, and for backward passes that it starts; 0 for the limit has each operator run at once.
// Returns a number to leave it by.
uint64_t neuron_enter_queue(int64_t limit, int options) {
  neuron::queues_asked_for.fetch_add(1);
  return neuron::enter_queue(static_cast<size_t>(limit), options);
}

// Leaves a queue, from whichever thread; returns the ticket of what is still in it, or 0.
uint64_t neuron_leave_queue(uint64_t number) {
  neuron::queues_asked_for.fetch_sub(1);
  return neuron::leave_queue(number);
}

// After a ticket was run, whether it worked or not.
void neuron_close_queue(uint64_t ticket) {
  neuron::close_queue(ticket);
}

int neuron_queue_is_empty() {
  return neuron::open_count.load() == 0;
}

void neuron_set_observer(neuron::Observer observer) {
  neuron::observer.store(observer);
}
}
#pragma GCC visibility pop
