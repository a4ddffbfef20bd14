//! What an activation makes of gates and ups of many tokens, as a product of `broad.cu`: 128 gates with their 128 ups.
//! The library leaves both in memory, 12 KiB a token of Qwen3-0.6B, and a launch behind it reads them.
//!
//! Bytes: a block leaves 32 KiB of a tile.

struct Gates {
    Broad product;
    TensorMap out; // [slabs of rows][n][SLAB]
    u32 activation;
    float alpha, limit;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/// Activates a tile, and lets the copy engine write it: each warp its own 16 tokens, from a place of its own, 64
/// numbers of each token side by side and swizzled.
template <u32 ACTIVATION> DEVICE void activate(const float (&c)[TOKENS / 8][4], const Gates& p, u8* memory, u32 token, u32 row) {
    u32 lane = threadIdx.x % 32;
    // It has read what this warp left there before.
    if (lane == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    __syncwarp();
    auto number = [&](float gate, float up) { return gated_about<ACTIVATION>(gate, up, p.alpha, p.limit); };
#pragma unroll
    for (u32 i = 0; i < HALF / 8; i++) {
        const float(&gate)[4] = c[i], (&up)[4] = c[i + HALF / 8];
        u8* to = memory + i / 8 * LEFT_AT_ONCE + lane / 4 * 128 + (i % 8 ^ lane / 4) * 16 + lane % 4 * 4;
        *(u32*)to = bf16_pair(number(gate[0], up[0]), number(gate[1], up[1]));
        *(u32*)(to + 8 * 128) = bf16_pair(number(gate[2], up[2]), number(gate[3], up[3]));
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
    if (lane == 0) {
        for (u32 half = 0; half < HALF / SLAB; half++) put(p.out, token, row / SLAB + half, shared_address(memory) + half * LEFT_AT_ONCE);
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    }
    __syncwarp();
}

struct Activate {
    const Gates& p;
    u32 token;

    __device__ __forceinline__ void begin(u32 first) { token = first; }
    __device__ __forceinline__ void end(const float (&c)[TOKENS / 8][4], u8* memory, u32 tile) {
        u32 row = tile * HALF;
        if (p.activation == SILU) activate<SILU>(c, p, memory, token, row);
        else if (p.activation == GELU_TANH) activate<GELU_TANH>(c, p, memory, token, row);
        else activate<CLAMPED_SWIGLU>(c, p, memory, token, row);
    }
    __device__ __forceinline__ void leave() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
};
#endif

KERNEL __launch_bounds__((GROUPS + 1) * GROUP, 1) void gates(const __grid_constant__ Gates p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) u8 memory[];
    multiply_broad(p.product, memory, Activate{p, 0});
#endif
}
