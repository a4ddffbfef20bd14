//! Words between the device and page-locked memory of the host: a step's tables on their way in, its
//! answers on their way out. The copy engines take 1 µs for as little, and to hand over to one and
//! back takes 7 to 9 more (H200), in which no kernel runs. What goes out and what comes in between two steps is one
//! launch.

/// Words that lie one behind the other on both sides.
struct Pieces {
    u32* to[4];
    const u32* from[4];
    u32 words[4];
};

/// Copies pieces, each by blocks of its own, for a read from the host takes more than a microsecond. It
/// lets no launch begin before it has ended: kernels read a step's tables before they wait for the launch
/// before them.
KERNEL void carry(const __grid_constant__ Pieces pieces) {
    wait_for_previous();
    u32* to = pieces.to[blockIdx.y];
    const u32* from = pieces.from[blockIdx.y];
    u32 words = pieces.words[blockIdx.y];
#pragma unroll 4
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < words; i += gridDim.x * blockDim.x) to[i] = __ldcv(from + i);
}
