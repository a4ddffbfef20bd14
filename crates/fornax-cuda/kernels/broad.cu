//! Products of many tokens in bf16 on Hopper, of which something else is left than the library would: what a launch behind
//! it would make of them. Must not know what that is.
//!
//! Tokens stand on the left here, 64 of them for each of two groups of warps, and rows of the matrix on the right, where
//! the other kernels of `wgmma.cu` have tokens: TOKENS, the size of that side, is 256 rows here, two halves that need not
//! be neighbours. So a thread has all rows of some tokens that go together in its registers. Two blocks of a cluster take
//! the same rows with tokens of their own: each asks for one half, and the copy engine brings either to both. Blocks stay,
//! and go on with their next tile, of which the copy engine has brought up to four slabs while they end the one before.
//!
//! Bytes: of a tile and slab a block gets 48 KiB, 32 of which it asks for. Ceiling: tensor cores, 1,024 cycles of a block
//! for each slab; gates and ups of 16,384 tokens of Qwen3-0.6B are 24 tiles of 16 slabs for each block.

#define GROUP 128 // threads that multiply 64 tokens
#define GROUPS 2
#define LEFT (64 * GROUPS) // tokens of a block
#define HALF (TOKENS / 2)  // rows of half a tile
#define LEFT_OF_SLAB (LEFT * 128)
#define HALF_OF_SLAB (HALF * 128)
#define STAGE (LEFT_OF_SLAB + 2 * HALF_OF_SLAB)
#define STAGES 4
#define OF_WARP 16 // tokens of a warp
/// Bytes of as many tokens over a slab of what they become, and of half a tile.
#define LEFT_AT_ONCE (OF_WARP * 128)
#define HALF_AT_ONCE (HALF / SLAB * LEFT_AT_ONCE)

struct Broad {
    TensorMap weight; // [slabs][rows][SLAB]
    TensorMap x;      // [slabs][n][SLAB]
    // Tiles side by side, rows from one to the next, and from the first half of one to its second.
    u32 n, across, step, apart, slabs;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/// A block: its barriers, and its pair's tiles, whose number counts rows first and then tokens, 256 at a time.
struct Block {
    u32 rank, ring, there, free, tiles;

    __device__ __forceinline__ Block(const Broad& p, const u8* memory, const u64* barriers)
        : rank(cluster_rank()), ring(shared_address(memory)), there(shared_address(barriers)), free(there + 8 * STAGES),
          tiles(p.across * ((p.n + 2 * LEFT - 1) / (2 * LEFT))) {}
    __device__ __forceinline__ u32 token(const Broad& p, u32 tile) const { return (tile / p.across * 2 + rank) * LEFT; }
};

/// Brings one side of this block's stage, and its half of the other side of both blocks. Called by a thread.
DEVICE void fetch_all(const Broad& p, const Block& b) {
    Stage stage = {0, 1};
    for (u32 tile = blockIdx.x / 2; tile < b.tiles; tile += gridDim.x / 2)
        for (u32 slab = 0; slab < p.slabs; slab++, stage.next(STAGES)) {
            u32 to = b.ring + stage.slot * STAGE, barrier = b.there + 8 * stage.slot;
            barrier_wait(b.free + 8 * stage.slot, stage.phase);
            expect_bytes(barrier, STAGE);
            fetch(to, p.x, b.token(p, tile), slab, barrier);
            fetch_for_both(to + LEFT_OF_SLAB + b.rank * HALF_OF_SLAB, p.weight, tile % p.across * p.step + b.rank * p.apart, slab, barrier);
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

/// All products of a block. `end` is told which 16 tokens this warp has next, ends each tile with its sums, and leaves
/// behind the last one: it may use HALF_AT_ONCE bytes of memory, which begin where swizzled rows do.
template <class End> DEVICE void multiply_broad(const Broad& p, u8* memory, End end) {
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
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (tid == GROUPS * GROUP) fetch_all(p, b);
    } else {
        // All together as many as the launch has: 168 for each thread.
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        u8* own = memory + STAGES * STAGE + tid / 32 * HALF_AT_ONCE;
        Stage stage = {0, 0};
        for (u32 tile = blockIdx.x / 2; tile < b.tiles; tile += gridDim.x / 2) {
            end.begin(b.token(p, tile) + tid / 32 * OF_WARP);
            // As zeros, for what the first product would find undefined keeps some compilers from asking for
            // another before one has ended.
            float c[TOKENS / 8][4] = {};
            multiply_all(c, p, b, group, stage);
            end.end(c, own, tile % p.across);
        }
        end.leave();
    }
    // No block ends while the other one may still tell it what is free.
    __syncwarp();
    cluster_arrive();
    cluster_wait();
}
#endif
