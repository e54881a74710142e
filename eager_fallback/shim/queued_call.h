// One operator's calls on their way into a queue.
#pragma once

#include "queue_of_thread.h"

#include <ATen/EmptyTensor.h>

namespace neuron {

// How an operator's calls are queued: which arguments are written, and which results are arguments.
struct Queueing {
  explicit Queueing(const c10::FunctionSchema& schema) {
    for (const c10::Argument& argument : schema.arguments()) {
      written.push_back(argument.alias_info() != nullptr && argument.alias_info()->isWrite());
      possible &= argument.alias_info() == nullptr || argument.alias_info()->isWrite(); // not views
      possible &= !argument.is_out(); // which a kernel may resize
    }
    for (const c10::Argument& result : schema.returns()) {
      possible &= result.type()->kind() == c10::TypeKind::TensorType;
      int32_t same = -1;
      for (size_t i = 0; i < written.size() && result.alias_info() != nullptr; ++i) {
        const auto* alias = schema.arguments()[i].alias_info();
        if (alias != nullptr && alias->afterSets() == result.alias_info()->afterSets()) {
          same = static_cast<int32_t>(i);
        }
      }
      possible &= (result.alias_info() == nullptr) == (same < 0);
      arguments.push_back(same);
    }
  }

  // Puts the results on the stack, adds to the bytes and returns true, or changes nothing and returns false.
  bool operator()(Queue& queue, const c10::OperatorHandle& op, const Record& record, Stack* stack, uint64_t& bytes) const {
    const std::string& name = record.name;
    const size_t first = stack->size() - written.size();
    Encoded call;
    call.numbers = (record.queued.load(std::memory_order_relaxed) & kNumbers) != 0;
    for (size_t i = 0; i < written.size(); ++i) {
      call.text += i == 0 ? "" : ",";
      if (!call.value((*stack)[first + i], written[i])) {
        return false;
      }
    }
    if (call.device < 0 || call.overlaps()) {
      return false;
    }
    const auto results = infer(op, name + '(' + call.text + ')' + call.settings(), stack->data() + first, written);
    if (results == nullptr || results->size() != arguments.size()) {
      return false;
    }
    std::vector<at::Tensor> made(results->size());
    for (size_t i = 0; i < made.size(); ++i) {
      const Whole& whole = (*results)[i];
      if (whole.dtype != c10::ScalarType::Undefined) {
        WithDevice with(call.device);
        made[i] = at::detail::empty_strided_generic(
            whole.sizes, whole.strides, allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), whole.dtype);
      }
    }
    settle_others(queue, call);
    if (const uint64_t mine = queue.ticket.load(); mine != 0 && !queue.continues(call.device)) {
      run_ticket(mine);
    }
    if (!queue.add(name, call, *results, made)) {
      return false;
    }
    for (size_t i = 0; i < made.size(); ++i) {
      if (arguments[i] >= 0) {
        made[i] = (*stack)[first + arguments[i]].toTensor();
      }
    }
    for (const auto& [tensor, writes] : call.tensors) {
      bytes += tensor->numel() * tensor->dtype().itemsize();
    }
    stack->erase(stack->end() - static_cast<std::ptrdiff_t>(written.size()), stack->end());
    for (at::Tensor& result : made) {
      bytes += result.defined() ? result.numel() * result.dtype().itemsize() : 0;
      stack->emplace_back(std::move(result));
    }
    return true;
  }

  // What other queues will write or read, where this one touches it.
  static void settle_others(const Queue& queue, const Encoded& call) {
    const uint64_t mine = queue.ticket.load();
    for (const auto& [tensor, writes] : call.tensors) {
      Block* block = block_of(*storage_in(*tensor));
      if (block->writer.load() != mine) {
        settle_ticket(block->writer);
      }
      if (writes && block->reader.load() != mine) {
        settle_ticket(block->reader);
      }
    }
  }

  bool possible = true;
  c10::SmallVector<bool, 8> written;
  c10::SmallVector<int32_t, 4> arguments; // by result; -1 is new
};

} // namespace neuron
