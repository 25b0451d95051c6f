/* Not part of the interface: programs include tern/interop/arrow.hpp.
 *
 * The structures of Arrow's C Data, C Stream and C Device interfaces, as everybody declares them.
 *
 * Global, under Arrow's own names and guards, so that this header and Arrow's may stand in one
 * source, in either order, and their types are one. Plain C. Layouts are asserted for 64-bit
 * machines.
 */

#pragma once

#ifdef __cplusplus
#include <cstddef>
#include <cstdint>
#else
#include <stddef.h>
#include <stdint.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

#ifndef ARROW_C_DATA_INTERFACE
#define ARROW_C_DATA_INTERFACE

#define ARROW_FLAG_DICTIONARY_ORDERED 1
#define ARROW_FLAG_NULLABLE 2
#define ARROW_FLAG_MAP_KEYS_SORTED 4

struct ArrowSchema {
  const char* format;
  const char* name;
  const char* metadata;
  int64_t flags;
  int64_t n_children;
  struct ArrowSchema** children;
  struct ArrowSchema* dictionary;
  void (*release)(struct ArrowSchema*);
  void* private_data;
};

struct ArrowArray {
  int64_t length;
  int64_t null_count;
  int64_t offset;
  int64_t n_buffers;
  int64_t n_children;
  const void** buffers;
  struct ArrowArray** children;
  struct ArrowArray* dictionary;
  void (*release)(struct ArrowArray*);
  void* private_data;
};

#endif /* ARROW_C_DATA_INTERFACE */

#ifndef ARROW_C_DEVICE_DATA_INTERFACE
#define ARROW_C_DEVICE_DATA_INTERFACE

typedef int32_t ArrowDeviceType;

#define ARROW_DEVICE_CPU 1
#define ARROW_DEVICE_CUDA 2
#define ARROW_DEVICE_CUDA_HOST 3
#define ARROW_DEVICE_OPENCL 4
#define ARROW_DEVICE_VULKAN 7
#define ARROW_DEVICE_METAL 8
#define ARROW_DEVICE_VPI 9
#define ARROW_DEVICE_ROCM 10
#define ARROW_DEVICE_ROCM_HOST 11
#define ARROW_DEVICE_EXT_DEV 12
#define ARROW_DEVICE_CUDA_MANAGED 13
#define ARROW_DEVICE_ONEAPI 14
#define ARROW_DEVICE_WEBGPU 15
#define ARROW_DEVICE_HEXAGON 16

struct ArrowDeviceArray {
  struct ArrowArray array;
  int64_t device_id;
  ArrowDeviceType device_type;
  void* sync_event;
  int64_t reserved[3];
};

#endif /* ARROW_C_DEVICE_DATA_INTERFACE */

#ifndef ARROW_C_STREAM_INTERFACE
#define ARROW_C_STREAM_INTERFACE

struct ArrowArrayStream {
  int (*get_schema)(struct ArrowArrayStream*, struct ArrowSchema* out);
  int (*get_next)(struct ArrowArrayStream*, struct ArrowArray* out);
  const char* (*get_last_error)(struct ArrowArrayStream*);
  void (*release)(struct ArrowArrayStream*);
  void* private_data;
};

#endif /* ARROW_C_STREAM_INTERFACE */

#ifndef ARROW_C_DEVICE_STREAM_INTERFACE
#define ARROW_C_DEVICE_STREAM_INTERFACE

struct ArrowDeviceArrayStream {
  ArrowDeviceType device_type;
  int (*get_schema)(struct ArrowDeviceArrayStream* self, struct ArrowSchema* out);
  int (*get_next)(struct ArrowDeviceArrayStream* self, struct ArrowDeviceArray* out);
  const char* (*get_last_error)(struct ArrowDeviceArrayStream* self);
  void (*release)(struct ArrowDeviceArrayStream* self);
  void* private_data;
};

#endif /* ARROW_C_DEVICE_STREAM_INTERFACE */

#ifdef __cplusplus
}

#if defined(__LP64__)
static_assert(sizeof(ArrowSchema) == 72 && alignof(ArrowSchema) == 8);
static_assert(offsetof(ArrowSchema, format) == 0 && offsetof(ArrowSchema, name) == 8 &&
              offsetof(ArrowSchema, metadata) == 16 && offsetof(ArrowSchema, flags) == 24 &&
              offsetof(ArrowSchema, n_children) == 32 && offsetof(ArrowSchema, children) == 40 &&
              offsetof(ArrowSchema, dictionary) == 48 && offsetof(ArrowSchema, release) == 56 &&
              offsetof(ArrowSchema, private_data) == 64);
static_assert(sizeof(ArrowArray) == 80 && alignof(ArrowArray) == 8);
static_assert(offsetof(ArrowArray, length) == 0 && offsetof(ArrowArray, null_count) == 8 &&
              offsetof(ArrowArray, offset) == 16 && offsetof(ArrowArray, n_buffers) == 24 &&
              offsetof(ArrowArray, n_children) == 32 && offsetof(ArrowArray, buffers) == 40 &&
              offsetof(ArrowArray, children) == 48 && offsetof(ArrowArray, dictionary) == 56 &&
              offsetof(ArrowArray, release) == 64 && offsetof(ArrowArray, private_data) == 72);
static_assert(sizeof(ArrowDeviceArray) == 128 && alignof(ArrowDeviceArray) == 8);
static_assert(offsetof(ArrowDeviceArray, array) == 0 &&
              offsetof(ArrowDeviceArray, device_id) == 80 &&
              offsetof(ArrowDeviceArray, device_type) == 88 &&
              offsetof(ArrowDeviceArray, sync_event) == 96 &&
              offsetof(ArrowDeviceArray, reserved) == 104);
static_assert(sizeof(ArrowArrayStream) == 40 && alignof(ArrowArrayStream) == 8);
static_assert(offsetof(ArrowArrayStream, get_schema) == 0 &&
              offsetof(ArrowArrayStream, get_next) == 8 &&
              offsetof(ArrowArrayStream, get_last_error) == 16 &&
              offsetof(ArrowArrayStream, release) == 24 &&
              offsetof(ArrowArrayStream, private_data) == 32);
static_assert(sizeof(ArrowDeviceArrayStream) == 48 && alignof(ArrowDeviceArrayStream) == 8);
static_assert(offsetof(ArrowDeviceArrayStream, device_type) == 0 &&
              offsetof(ArrowDeviceArrayStream, get_schema) == 8 &&
              offsetof(ArrowDeviceArrayStream, get_next) == 16 &&
              offsetof(ArrowDeviceArrayStream, get_last_error) == 24 &&
              offsetof(ArrowDeviceArrayStream, release) == 32 &&
              offsetof(ArrowDeviceArrayStream, private_data) == 40);
#endif
#endif
