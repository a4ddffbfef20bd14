//! Gates and ups of many tokens, and what their activation makes of them, on Hopper, with a matrix in bf16. The library
//! leaves both in memory, 12 KiB a token of Qwen3-0.6B, and a launch behind it reads them.
//!
//! Tokens stand on the left here, 64 of them for each of two groups of warps, and on the right 128 gates with their 128
//! ups, where the other kernels of `wgmma.cu` have tokens: TOKENS, the size of that side, is 256 rows here. So a thread
//! has gates and their ups in its registers. Two blocks of a cluster take the same rows with tokens of their own: one
//! asks for the gates and the other for the ups, and the copy engine brings either to both. Blocks stay, and go on with
//! their next tile, of which the copy engine has brought up to four slabs while they end the one before.
//!
//! Bytes: of a tile and slab a block gets 48 KiB, 32 of which it asks for, and leaves 32 KiB of a tile. Ceiling: tensor
//! cores, 1,024 cycles of a block for each slab; 16,384 tokens of Qwen3-0.6B are 24 tiles of 16 slabs for each block.

#define GROUP 128 // threads that multiply 64 tokens
#define GROUPS 2
#define LEFT (64 * GROUPS) // tokens of a block
#define HALF (TOKENS / 2)  // gates of a tile, and as many ups
#define LEFT_OF_SLAB (LEFT * 128)
#define HALF_OF_SLAB (HALF * 128)
#define STAGE (LEFT_OF_SLAB + 2 * HALF_OF_SLAB)
#define STAGES 4
/// Bytes of 16 tokens, as many as a warp has, over a slab of what they become.
#define LEFT_AT_ONCE (16 * 128)

struct Broad {
    TensorMap weight; // of gates and ups [slabs][2][rows][SLAB]
    TensorMap x;      // [slabs][n][SLAB]
    TensorMap out;    // [slabs of rows][n][SLAB]
    u32 n, rows, slabs, activation;
    float alpha, limit;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/// A block: its barriers, and its pair's tiles, whose number counts gates first and then tokens, 256 at a time.
struct Block {
    u32 rank, ring, there, free, across, tiles;

    __device__ __forceinline__ Block(const Broad& p, const u8* memory, const u64* barriers)
        : rank(cluster_rank()), ring(shared_address(memory)), there(shared_address(barriers)), free(there + 8 * STAGES), across(p.rows / HALF),
          tiles(across * ((p.n + 2 * LEFT - 1) / (2 * LEFT))) {}
    __device__ __forceinline__ u32 row(u32 tile) const { return tile % across * HALF; }
    __device__ __forceinline__ u32 token(u32 tile) const { return (tile / across * 2 + rank) * LEFT; }
};

/// Brings one side of this block's stage, and its half of the other side of both blocks. Called by a thread.
DEVICE void fetch_all(const Broad& p, const Block& b) {
    Stage stage = {0, 1};
    for (u32 tile = blockIdx.x / 2; tile < b.tiles; tile += gridDim.x / 2)
        for (u32 slab = 0; slab < p.slabs; slab++, stage.next(STAGES)) {
            u32 to = b.ring + stage.slot * STAGE, barrier = b.there + 8 * stage.slot;
            barrier_wait(b.free + 8 * stage.slot, stage.phase);
            expect_bytes(barrier, STAGE);
            fetch(to, p.x, b.token(tile), slab, barrier);
            fetch_for_both(to + LEFT_OF_SLAB + b.rank * HALF_OF_SLAB, p.weight, b.row(tile), b.rank, slab, barrier);
        }
}

/// Lets both blocks' copies have a stage, which this warp is done with.
DEVICE void let_go(const Block& b, u32 stage) {
    if (threadIdx.x % 32 < 2) arrive_at(b.free + 8 * stage, threadIdx.x % 32);
}

/// The products of a tile.
DEVICE void multiply_all(float (&c)[TOKENS / 8][4], const Broad& p, const Block& b, u32 group, Stage& stage) {
    u32 before = FULL;
    for (u32 slab = 0; slab < p.slabs; slab++, stage.next(STAGES)) {
        barrier_wait(b.there + 8 * stage.slot, stage.phase);
        hold(c);
        products_begin();
        u32 tokens = matrix_at(b.ring + stage.slot * STAGE + group * 64 * 128), rows = matrix_at(b.ring + stage.slot * STAGE + LEFT_OF_SLAB);
#pragma unroll
        for (u32 k = 0; k < SLAB / 16; k++) multiply(c, tokens + 32 * k / 16, rows + 32 * k / 16);
        products_end();
        products_wait<1>();
        if (before != FULL) let_go(b, before);
        before = stage.slot;
    }
    products_wait<0>();
    hold(c);
    let_go(b, before);
}

/// Activates a tile, and lets the copy engine write it: each warp its own 16 tokens, from a place of its own, 64
/// numbers of each token side by side and swizzled.
template <u32 ACTIVATION> DEVICE void end(const float (&c)[TOKENS / 8][4], const Broad& p, u8* memory, u32 token, u32 row) {
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
#endif

KERNEL __launch_bounds__((GROUPS + 1) * GROUP, 1) void broad(const __grid_constant__ Broad p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) u8 memory[];
    __shared__ __align__(8) u64 barriers[2 * STAGES];
    u32 tid = threadIdx.x, group = tid / GROUP;
    Block b(p, memory, barriers);
    if (tid < STAGES) {
        barrier_init(b.there + 8 * tid, 1);
        barrier_init(b.free + 8 * tid, 2 * GROUPS * GROUP / 32);
    }
    show_barriers();
    cluster_arrive();
    cluster_wait();
    let_next_begin();
    wait_for_previous();
    if (group == GROUPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (tid == GROUPS * GROUP) fetch_all(p, b);
    } else {
        // All together as many as the launch has: 168 for each thread.
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        u8* own = memory + STAGES * STAGE + tid / 32 * (HALF / SLAB * LEFT_AT_ONCE);
        Stage stage = {0, 0};
        for (u32 tile = blockIdx.x / 2; tile < b.tiles; tile += gridDim.x / 2) {
            // As zeros, for what the first product would find undefined keeps some compilers from asking for
            // another before one has ended.
            float c[TOKENS / 8][4] = {};
            multiply_all(c, p, b, group, stage);
            u32 token = b.token(tile) + tid / 32 * 16, row = b.row(tile);
            if (p.activation == SILU) end<SILU>(c, p, own, token, row);
            else if (p.activation == GELU_TANH) end<GELU_TANH>(c, p, own, token, row);
            else end<CLAMPED_SWIGLU>(c, p, own, token, row);
        }
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
    // No block ends while the other one may still tell it what is free.
    __syncwarp();
    cluster_arrive();
    cluster_wait();
#endif
}
