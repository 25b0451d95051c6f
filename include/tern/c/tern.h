/* The C API of Tern: memory pools and budgets for other languages, and for plug-ins of other
 * libraries.
 *
 *   tern_device* gpu;
 *   tern_resource* pool;
 *   void* address;
 *   tern_open_device("cuda:0", &gpu);
 *   tern_make_pool(gpu, NULL, &pool);
 *   if (tern_allocate(pool, 4096, 0, stream, &address) != TERN_OK) puts(tern_last_error());
 *   tern_free(address, stream);
 *   tern_release_resource(pool);
 *   tern_release_device(gpu);
 *
 * libtern and the Python module ternmem export these functions. All plug-ins of one process
 * should load the same library of these two, so that they share devices, pools and budgets.
 *
 * Errors. A function that can fail returns a tern_status, and TERN_OK is 0. tern_last_error()
 * returns the message of the last failure of this thread. A failed call changes nothing. No
 * function throws an exception, except tern_torch_malloc_or_throw() and the functions that are
 * exported for PyTorch only.
 *
 * Streams are handles of the driver: a CUstream or cudaStream_t as void*. NULL and the handles 1
 * and 2 are the driver's default streams. A handle must be valid during the call. If the driver
 * reuses a handle for another stream, Tern treats it as another stream.
 *
 * Lifetime. Release each handle once. Memory keeps its resource alive, and a resource keeps its
 * budget and its device alive, so releasing a handle never invalidates memory.
 *
 * Threads. All functions are thread-safe. In a forked child, freeing memory of the parent does
 * nothing, and allocations from resources of the parent fail with TERN_AFTER_FORK.
 *
 * Stability. When functions are added, TERN_ABI_VERSION increases. Functions never change their
 * meaning. Structures grow only at their end: set struct_bytes to the sizeof of the structure, so
 * that a newer library knows which fields the program has.
 */

#ifndef TERN_C_TERN_H
#define TERN_C_TERN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TERN_C_API __attribute__((visibility("default")))
#define TERN_ABI_VERSION 1

/* Handles. Each tern_device, tern_resource and tern_budget is released by its own function. */
typedef struct tern_device tern_device;
typedef struct tern_resource tern_resource;
typedef struct tern_budget tern_budget;

/* What a call returns: TERN_OK, or the reason of its failure. */
typedef int32_t tern_status;
enum {
  TERN_OK = 0,
  TERN_OUT_OF_MEMORY = 1,    /* the device or the pool has no memory */
  TERN_OUT_OF_BUDGET = 2,    /* a budget is at its limit */
  TERN_NOT_LIVE = 3,         /* no live memory begins at the address */
  TERN_INVALID_ARGUMENT = 4, /* null, a bad size, alignment or option */
  TERN_INVALID_DEVICE = 5,   /* no such device, or memory of another device */
  TERN_STREAM_MISUSE = 6,    /* the stream is being captured */
  TERN_UNSUPPORTED = 7,
  TERN_AFTER_FORK = 8,
  TERN_DEVICE_LOST = 9,
  TERN_FAILED = 10 /* anything else; tern_last_error() names it */
};

/* A kind of memory: TERN_DEVICE_MEMORY is memory of the device, TERN_PINNED_MEMORY is page-locked
 * host memory, and TERN_MANAGED_MEMORY migrates between device and host. */
typedef int32_t tern_memory_kind;
enum { TERN_DEVICE_MEMORY = 0, TERN_PINNED_MEMORY = 1, TERN_MANAGED_MEMORY = 2 };

/* --- Version and errors */

/* Returns TERN_ABI_VERSION of the library. A larger version has all functions of a smaller one. */
TERN_C_API uint32_t tern_abi_version(void);
/* Returns the version of the library, such as "0.2.0". */
TERN_C_API const char* tern_version(void);
/* Returns the message of the last failed call of this thread, or "". Valid until the next failure
 * of this thread. */
TERN_C_API const char* tern_last_error(void);
/* Returns the status of the last failed call of this thread, or TERN_OK. */
TERN_C_API tern_status tern_last_status(void);
/* Returns the name of the status, such as "TERN_OUT_OF_MEMORY". */
TERN_C_API const char* tern_status_name(tern_status status);

/* --- Devices */

/* Opens a device by its spec, such as "cuda:0" or "sim". Opening a spec twice returns the same
 * device. A device stays open until the process ends. */
TERN_C_API tern_status tern_open_device(const char* spec, tern_device** device);
/* Releases the handle. All release functions do nothing for null. */
TERN_C_API void tern_release_device(tern_device* device);
/* Returns the free and total bytes of the device. */
TERN_C_API tern_status tern_device_memory(const tern_device* device, size_t* free_bytes,
                                          size_t* total_bytes);
/* Waits until all work of the device is complete. */
TERN_C_API tern_status tern_synchronize(const tern_device* device);

/* --- Resources and budgets */

/* Options of tern_make_pool(). */
typedef struct tern_pool_options {
  size_t struct_bytes;   /* sizeof(tern_pool_options) */
  tern_memory_kind kind; /* of the memory that the pool allocates */
  size_t limit_bytes;    /* the most memory that the pool holds; 0: no limit */
  size_t initial_bytes;  /* memory that the pool allocates now */
} tern_pool_options;

/* Makes a pool. Null options select a pool of device memory without a limit. */
TERN_C_API tern_status tern_make_pool(const tern_device* device, const tern_pool_options* options,
                                      tern_resource** pool);
/* Returns the default resource of the device, which also serves the buffers of C++ and Python. */
TERN_C_API tern_status tern_default_resource(const tern_device* device, tern_memory_kind kind,
                                             tern_resource** resource);
/* Makes a budget of at most `limit_bytes`; SIZE_MAX means no limit. Each charge also counts in the
 * parent, which may be null. */
TERN_C_API tern_status tern_make_budget(const char* name, size_t limit_bytes,
                                        const tern_budget* parent, tern_budget** budget);
/* Changes the limit. Blocks above the new limit stay allocated and charged. */
TERN_C_API tern_status tern_set_budget_limit(const tern_budget* budget, size_t limit_bytes);
/* Releases the handle. Resources and children keep the budget. */
TERN_C_API void tern_release_budget(tern_budget* budget);
/* Returns a resource that charges each block of `upstream` to the budget. */
TERN_C_API tern_status tern_make_budget_resource(const tern_resource* upstream,
                                                 const tern_budget* budget,
                                                 tern_resource** resource);
/* Names the memory that is allocated through this handle, for reports and errors. */
TERN_C_API tern_status tern_set_tag(tern_resource* resource, const char* tag);
TERN_C_API void tern_release_resource(tern_resource* resource);

/* --- Memory */

/* Allocates memory for use in the order of the stream. `alignment` is a power of two, or 0 for the
 * default of 256 bytes. Writes null for 0 bytes. Memory that is allocated on a stream that is being
 * captured does not belong to the graph: after its free, other allocations may reuse it.
 * For the memory of a graph, see tern_begin_arena(). */
TERN_C_API tern_status tern_allocate(tern_resource* resource, size_t bytes, size_t alignment,
                                     void* stream, void** address);
/* Frees memory of any resource in the order of the stream: earlier work of the stream may still use
 * the memory. Freeing null does nothing. Frees of unknown addresses and second frees fail with
 * TERN_NOT_LIVE. */
TERN_C_API tern_status tern_free(void* address, void* stream);
/* Frees memory in the order of the stream that allocated it. The stream may have been destroyed. */
TERN_C_API tern_status tern_free_in_order(void* address);
/* Declares that another stream also uses the memory. After the free, the memory is not reused until
 * the work that was submitted to this stream before the free is complete. */
TERN_C_API tern_status tern_record_use(void* address, void* stream);

/* Live memory, as tern_find_block() and tern_snapshot() return it. */
typedef struct tern_block {
  size_t struct_bytes; /* sizeof(tern_block) */
  void* address;
  size_t bytes;       /* the allocated size, at least the requested size */
  const char* tag;    /* "" without a tag; valid until the process ends */
  const char* device; /* the spec; valid while the device is open */
} tern_block;

/* Finds the live memory that begins at the address. */
TERN_C_API tern_status tern_find_block(const void* address, tern_block* block);

/* The figures of a resource. */
typedef struct tern_statistics {
  size_t struct_bytes;    /* sizeof(tern_statistics) */
  size_t live_bytes;      /* allocated and not freed */
  size_t live_blocks;     /* allocations that are not freed */
  size_t peak_live_bytes; /* the most bytes that were live at one time */
  size_t pending_bytes;   /* freed, but a stream may still use them */
  size_t held_bytes;      /* memory that the resource holds from the driver */
  size_t peak_held_bytes; /* the most bytes that the resource held at one time */
  size_t limit_bytes;     /* the limit of the pool and its budgets; 0: no limit */
  uint64_t allocations;
  uint64_t frees;
  uint64_t refusals;     /* allocations that failed */
  uint64_t driver_calls; /* calls of the pool to the driver */
} tern_statistics;

/* Returns the figures of a resource. If the resource charges a budget, the call first checks which
 * pending frees have completed. Frees that tern_record_use() has delayed are pending. Fields that
 * the resource does not have are 0. */
TERN_C_API tern_status tern_get_statistics(const tern_resource* resource,
                                           tern_statistics* statistics);
/* Restarts peak_live_bytes at the bytes that are in use now. Fails with TERN_UNSUPPORTED if the
 * resource charges no budget. */
TERN_C_API tern_status tern_reset_peak(tern_resource* resource);

/* The figures of a budget. */
typedef struct tern_budget_statistics {
  size_t struct_bytes;  /* sizeof(tern_budget_statistics) */
  size_t limit_bytes;   /* SIZE_MAX: no limit */
  size_t used_bytes;    /* live and pending */
  size_t pending_bytes; /* freed, but a stream may still use them */
  size_t peak_bytes;    /* the most bytes that were used at one time */
} tern_budget_statistics;
/* Returns the figures of a budget. */
TERN_C_API tern_status tern_get_budget_statistics(const tern_budget* budget,
                                                  tern_budget_statistics* statistics);

/* Returns unused memory to the driver until at most `keep_bytes` are held. Writes the number of
 * bytes that were returned; `released_bytes` may be null. */
TERN_C_API tern_status tern_trim(tern_resource* resource, size_t keep_bytes,
                                 size_t* released_bytes);
/* Writes the live blocks of all resources of a device, at most `capacity`, and their number, which
 * may be larger. Set struct_bytes of the first block: it is the distance from one block to the
 * next. Blocks that other threads allocate or free meanwhile may be left out. */
TERN_C_API tern_status tern_snapshot(const tern_device* device, tern_block* blocks, size_t capacity,
                                     size_t* count);

/* --- Arenas: the memory of CUDA graphs
 *
 * A graph uses the same addresses at each launch. While an arena is open, allocations of all
 * plug-in functions on its device come from the arena if the filter returns true for their stream.
 * Memory that is freed is reused only in the same arena. */

/* Names an arena. */
typedef struct tern_arena_id {
  uint64_t first, second;
} tern_arena_id;
/* Returns nonzero if allocations on the stream come from the arena. `context` is what the caller
 * passed to tern_begin_arena(). */
typedef int (*tern_stream_filter)(void* context, void* stream);

/* Opens the arena of a device for allocations. An unknown id makes a new arena over the resource
 * of TERN_TORCH. A null filter accepts all streams. If several arenas are open, an allocation comes
 * from the newest one whose filter accepts the stream. The id {UINT64_MAX, UINT64_MAX} is
 * reserved. */
TERN_C_API tern_status tern_begin_arena(int ordinal, tern_arena_id id, tern_stream_filter filter,
                                        void* context);
/* Closes the arena, once for each tern_begin_arena(). Later allocations do not use a closed arena.
 * Does not release the use that tern_begin_arena() added. */
TERN_C_API tern_status tern_end_arena(int ordinal, tern_arena_id id);
/* Releases one use of the arena. Each tern_begin_arena() adds one use. After the last release
 * and the last free, Tern waits for the device and returns the memory to the resource. */
TERN_C_API tern_status tern_release_arena(int ordinal, tern_arena_id id);
/* Returns the bytes that an arena holds, and the size of one chunk that is enough for the same
 * calls. */
TERN_C_API tern_status tern_get_arena(int ordinal, tern_arena_id id, size_t* held_bytes,
                                      size_t* needed_bytes);
/* Sets the initial size of the next arena that tern_begin_arena() makes on the device. */
TERN_C_API tern_status tern_reserve_arena(int ordinal, size_t bytes);
/* Begins a rehearsal. Until tern_end_rehearsal(), the allocations of all plug-in functions on the
 * device, in all threads, run as usual. The result is the exact size of an arena for the same
 * calls. */
TERN_C_API tern_status tern_begin_rehearsal(int ordinal);
/* Ends the rehearsal, and writes the size. */
TERN_C_API tern_status tern_end_rehearsal(int ordinal, size_t* needed_bytes);

/* --- Plug-ins: the functions that other libraries call
 *
 * These functions have no parameter for a resource. Each library has a number, for which
 * tern_set_plugin() sets a resource, so each library can have its own budget. */

/* A library that allocates: TERN_TORCH, TERN_CUPY, TERN_NUMBA, or TERN_OTHER for any other. */
typedef int32_t tern_library;
enum { TERN_TORCH = 0, TERN_CUPY = 1, TERN_NUMBA = 2, TERN_OTHER = 3 };

/* Sets the resource for the memory that a library allocates on the CUDA device with this ordinal.
 * Memory that is already allocated stays in its resource. A null resource removes the setting. */
TERN_C_API tern_status tern_set_plugin(tern_library library, int ordinal,
                                       const tern_resource* resource);
/* Writes a new handle of the resource that tern_set_plugin() has set. Fails with
 * TERN_INVALID_DEVICE if there is none. */
TERN_C_API tern_status tern_get_plugin(tern_library library, int ordinal, tern_resource** resource);
/* Allocates from the resource that tern_set_plugin() has set, as tern_allocate() does. */
TERN_C_API tern_status tern_plugin_allocate(tern_library library, int ordinal, size_t bytes,
                                            void* stream, void** address);

/* CuPy. Frees are in the order of the stream that allocated the memory.
 * Returns null on failure. */
TERN_C_API void* tern_cupy_malloc(void* stream, size_t bytes, int ordinal);
/* Frees memory of tern_cupy_malloc(). */
TERN_C_API void tern_cupy_free(void* stream, void* address, int ordinal);

/* PyTorch. Returns null on failure: a MemPool then raises torch.OutOfMemoryError. Frees are in the
 * order of the stream that allocated the memory. */
TERN_C_API void* tern_torch_malloc(size_t bytes, int ordinal, void* stream);
/* Frees memory of tern_torch_malloc(). PyTorch's size, ordinal and stream are not read. */
TERN_C_API void tern_torch_free(void* address, size_t bytes, int ordinal, void* stream);
/* Like tern_torch_malloc(), but throws a std::runtime_error, because torch.cuda.memory.
 * change_current_allocator() does not check for null. The message begins with "CUDA out of memory."
 * if that is the reason: programs look for these words. */
TERN_C_API void* tern_torch_malloc_or_throw(size_t bytes, int ordinal, void* stream);
/* Like tern_record_use(), for PyTorch. Does not return a status. */
TERN_C_API void tern_torch_record_stream(void* address, void* stream);
/* Returns the address, and writes the size of the memory that begins there, or 0. */
TERN_C_API void* tern_torch_base(void* address, size_t* bytes);
/* Waits for the devices, and returns the unused memory of their resources to the driver. */
TERN_C_API void tern_torch_empty_cache(void);
/* Sets the limit of the outermost budget of the resource, or of its pool, to a fraction of the
 * device's memory. Fails with TERN_UNSUPPORTED if the resource has neither. PyTorch does not read
 * the status. */
TERN_C_API tern_status tern_torch_set_fraction(double fraction, int ordinal);
/* tern_torch_begin_pool, tern_torch_end_pool and tern_torch_release_pool take C++ types and are
 * exported for PyTorch only. */

#ifdef __cplusplus
}
#endif

#endif
