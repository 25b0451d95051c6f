// TERN_HOST_DEVICE marks functions that kernels may call too, where a compiler for kernels reads
// them. Elsewhere it is nothing.

#pragma once

#if defined(__CUDACC__)
#define TERN_HOST_DEVICE __host__ __device__
#else
#define TERN_HOST_DEVICE
#endif
