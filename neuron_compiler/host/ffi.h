// What the custom calls share: XLA's C interface for them.
#pragma once

#include <cstdint>

#include "xla/ffi/api/c_api.h"

#define NEURON_HOST_CALL extern "C" __attribute__((visibility("default")))

namespace neuron {

// Asked when the call is registered: which version of the interface it speaks.
inline bool states_version(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Extension_Base* extension = frame->extension_start;
  if (extension == nullptr || extension->type != XLA_FFI_Extension_Metadata) return false;
  XLA_FFI_Metadata* metadata = reinterpret_cast<XLA_FFI_Metadata_Extension*>(extension)->metadata;
  metadata->api_version.major_version = XLA_FFI_API_MAJOR;
  metadata->api_version.minor_version = XLA_FFI_API_MINOR;
  metadata->traits = 0;
  return true;
}

inline XLA_FFI_Buffer& argument(XLA_FFI_CallFrame* frame, int index) {
  return *static_cast<XLA_FFI_Buffer*>(frame->args.args[index]);
}

inline XLA_FFI_Buffer& result(XLA_FFI_CallFrame* frame) {
  return *static_cast<XLA_FFI_Buffer*>(frame->rets.rets[0]);
}

inline XLA_FFI_Error* refuse(XLA_FFI_CallFrame* frame, const char* why) {
  XLA_FFI_Error_Create_Args error{};
  error.struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE;
  error.message = why;
  error.errc = XLA_FFI_Error_Code_INVALID_ARGUMENT;
  return frame->api->XLA_FFI_Error_Create(&error);
}

}  // namespace neuron
