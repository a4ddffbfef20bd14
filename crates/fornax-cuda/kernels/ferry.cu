//! Words between the device and page-locked memory of the host: a step's tables on their way in, its
//! answers on their way out. The copy engines take 1 µs for as little, and to hand over to one and
//! back takes 7 to 9 more (H200), in which no kernel runs.

/// Pieces of words, `[begin, end)`, at the same places on both sides.
struct Pieces { u32 begin[4], end[4]; };

/// Copies pieces, each by blocks of its own, for a read from the host takes more than a microsecond. It
/// lets no launch begin before it has ended: kernels read a step's tables before they wait for the launch
/// before them.
KERNEL void carry(u32* to, const u32* from, const __grid_constant__ Pieces pieces) {
    wait_for_previous();
    u32 first = pieces.begin[blockIdx.y], end = pieces.end[blockIdx.y];
#pragma unroll 4
    for (u32 i = first + blockIdx.x * blockDim.x + threadIdx.x; i < end; i += gridDim.x * blockDim.x) to[i] = __ldcv(from + i);
}
