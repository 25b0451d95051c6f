// Not part of the interface.
//
// TERN_HOST_DEVICE marks functions that kernels may call as well as the host.
//
// The macro expands to `__host__ __device__` under nvcc and to nothing under other compilers.

#pragma once

#if defined(__CUDACC__)
#define TERN_HOST_DEVICE __host__ __device__
#else
#define TERN_HOST_DEVICE
#endif
