//! A whole run of products and attention for one single token in one launch.
//!
//! A launch after a launch costs a microsecond, in which the memory is idle. Here one block for each
//! multiprocessor stays for all links of the chain. One warp of it fetches its share of every matrix
//! through a ring of shared memory, from the first link to the last without ever waiting for a result;
//! the others compute. What a link gives goes to the next one through the device's cache, word by word:
//! the lowest bits of each number say which link of which launch wrote it, so that who reads it sees by
//! itself whether it is there, and no block waits for another anywhere else.
//!
//! A link is a product (`multiply_link.cu`, with all that it needs once for each format of weights, in a namespace of
//! its own: `EACH_FORMAT`) or an attention (`attend_link.cu`); this file has what goes on beside them: who fetches, and
//! the way through all links. All blocks must run at once. Compiled for attention as `heads.cu`.
//!
//! Bytes: every weight once. Least time: those over the bandwidth of the device's memory.

/// Where the weights of a product are.
struct Source { const u8* weight; u32 rows, pitch, second, tile_rows, first_block, spare; };

struct Chain {
    const Link* links;
    const Source* sources;
    u32* state; // launches so far, and blocks that are done with this one
    u64* told;  // all pieces and totals of attention
    const Token* tokens;
    const Row* rows;
    u32 links_count, sources_count, told_count;
    u32 q_count, kv_heads;
    u32 ring, left; // bytes of the ring, and of a token as it is multiplied
};

/// Fetches this block's tiles of every product, in the order in which they are multiplied. Called by
/// one thread.
DEVICE void fetch_all(const Chain& c, Shared& s, u8* ring) {
#if __CUDA_ARCH__ >= 900
    u32 full = shared_address(s.barriers), empty = full + 8 * SLOTS, next = 0, oldest = 0, head = 0;
    u64 policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    auto copy = [&](u32 to, const u8* from, u32 bytes, u32 barrier) {
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
                         shared_address(ring) + to), "l"(from), "r"(bytes), "r"(barrier), "l"(policy) : "memory");
    };
    auto let_go_of_oldest = [&] {
        barrier_wait(empty + 8 * (oldest % SLOTS), oldest / SLOTS & 1);
        oldest++;
    };
    Source ahead = c.sources[0];
    for (u32 i = 0; i < c.sources_count; i++) {
        Source source = ahead;
        if (i + 1 < c.sources_count) ahead = c.sources[i + 1];
        u32 tile_rows = source.tile_rows, half = tile_rows * source.pitch, row = first_eight(source.first_block) * ROWS;
        u32 size = ((source.second ? 2 : 1) * half + 127) / 128 * 128;
        for (; row < source.rows; row += tile_rows, next++) {
            if (next - oldest == SLOTS) let_go_of_oldest();
            if (head + size > c.ring) {
                // What lies behind the head is older than all before it.
                while (oldest < next && s.begins[oldest % SLOTS] >= head) let_go_of_oldest();
                head = 0;
            }
            while (oldest < next && s.begins[oldest % SLOTS] >= head && s.begins[oldest % SLOTS] < head + size) let_go_of_oldest();
            u32 count = min(source.rows - row, tile_rows), bytes = count * source.pitch;
            u32 barrier = full + 8 * (next % SLOTS);
            s.begins[next % SLOTS] = head;
            asm volatile("{ .reg .b64 t; mbarrier.arrive.expect_tx.shared.b64 t, [%0], %1; }" ::"r"(barrier), "r"(source.second ? 2 * bytes : bytes) : "memory");
            copy(head, source.weight + (u64)row * source.pitch, bytes, barrier);
            if (source.second) copy(head + half, source.weight + (u64)(source.second + row) * source.pitch, bytes, barrier);
            head += size;
            // Behind the last of eight rows, and behind the last of all, those of others lie.
            if ((row + tile_rows) % ROWS == 0 || row + tile_rows >= source.rows) row = (row / ROWS + gridDim.x) * ROWS - tile_rows;
        }
    }
#endif
}

KERNEL __launch_bounds__(THREADS, 1) void chain(const __grid_constant__ Chain c) {
    extern __shared__ __align__(128) u8 memory[];
    __shared__ __align__(16) Shared s;
    u32 tid = threadIdx.x, warp = tid / 32;
    u8* ring = memory;
    if (tid < SLOTS) {
        barrier_init(shared_address(s.barriers + tid), 1);
        barrier_init(shared_address(s.barriers + SLOTS + tid), 1);
    }
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    constexpr u32 WORDS = sizeof(Link) / 8;
    if (tid < 2 * WORDS && tid / WORDS < c.links_count) ((u64*)s.links)[tid] = ((const u64*)c.links)[tid];
    __syncthreads();
    if (warp == WARPS) {
        if (tid % 32 == 0) fetch_all(c, s, ring);
        __syncwarp();
        let_next_begin();
        return;
    }

    wait_for_previous();
    Thread t;
    t.epoch = look(c.state);
    t.position = c.tokens[0].position;
    t.table = c.rows[0].table;
    t.parts = c.q_count / GROUP;
    t.part = blockIdx.x % t.parts;
    t.rank = blockIdx.x / t.parts;
    t.kv_head = t.part % c.kv_heads;
    t.subgroup = t.part / c.kv_heads;
    t.subgroups = t.parts / c.kv_heads;
    for (; t.link < c.links_count; t.link++) {
        const Link& link = s.links[t.link % 4];
        // On its way while this link waits for its input.
        if (tid < WORDS && t.link + 2 < c.links_count) t.ahead = ((const u64*)(c.links + t.link + 2))[tid];
        const Link& next = s.links[(t.link + 1) % 4];
        if (t.link + 1 < c.links_count && next.kind == ATTENTION) bring_positions_near(next.attend, t);
        switch (link.kind) {
            case ATTENTION: attend_link(s, link, t, *(Attending*)(memory + c.ring + c.left)); break;
#define PRODUCT_OF(format) \
            case format: of_##format::multiply_link(s, link, t, ring, (uint4*)(memory + c.ring)); break;
            EACH_FORMAT(PRODUCT_OF)
        }
    }

    // The last block to leave counts the launch, and makes room for the counts to begin anew.
    meet();
    if (tid > 0) return;
    if (atomicAdd(c.state + 1, 1) < gridDim.x - 1) return;
    c.state[1] = 0;
    c.state[0] = t.epoch + 1;
    if ((t.epoch + 1) % (1 << 22) == 0)
        for (u32 i = 0; i < c.told_count; i++) c.told[i] = 0;
}
