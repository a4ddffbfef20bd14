//! Words of CUDA that the preprocessor puts others for.

#pragma once
#define __device__
#define __constant__ const
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#ifndef __CUDA_ARCH__
#define __CUDA_ARCH__ 800
#endif

#define threadIdx (emu_now->index)
#define blockIdx (emu_now->block->index)
#define blockDim (emu_now->block->launch->threads)
#define gridDim (emu_now->block->launch->grid)

#define __expf expf
