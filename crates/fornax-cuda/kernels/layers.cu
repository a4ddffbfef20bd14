//! All layers of a model for one single token, in one launch of two teams.
//!
//! What a product gives must reach all who multiply it, and through the device's cache that takes a
//! microsecond; blocks of a cluster tell one another in a fifth of that. So a layer is cut where clusters
//! can go on alone: one for each KV head projects, attends and projects back, and what all of those add
//! to the token goes to the other team, whose clusters have a share of the feed-forward part each. Two
//! exchanges a layer are left of five. While one team computes, the weights of the other one come: a warp
//! of every block fetches its share through a ring of shared memory, from the first layer to the last
//! without ever waiting for a result.
//!
//! This file has who fetches, and the way through all layers. All blocks must run at once. Compiled for
//! one FORMAT of weights, and for attention as `heads.cu`.
//!
//! Bytes: every weight once. Least time: those over the bandwidth of the device's memory.

/// The ring, as who fetches sees it: tiles that were asked for, those that were let go of, and where the
/// next one may lie.
struct Ring {
    Shared& s;
    u32 place, bytes, full;
    u64 policy;
    u32 next = 0, oldest = 0, head = 0;

    __device__ __forceinline__ void let_go_of_oldest() {
        barrier_wait(full + 8 * (SLOTS + oldest % SLOTS), oldest / SLOTS & 1);
        oldest++;
    }

    __device__ __forceinline__ void copy(u32 to, const u8* from, u32 count, u32 barrier) {
#if __CUDA_ARCH__ >= 900
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to),
                     "l"(from), "r"(count), "r"(barrier), "l"(policy) : "memory");
#endif
    }

    /// Fetches a tile; lane r of the first 16 knows its row r. `quants` bytes of a row, and where they lie
    /// apart from those `scales` bytes from `scales_at` on.
    __device__ __forceinline__ void fetch(const Pitch& pitch, const u8* row, u32 quants, u32 scales_at, u32 scales) {
        u32 lane = threadIdx.x % 32, size = (pitch.tile + 127) / 128 * 128;
        if (next - oldest == SLOTS) let_go_of_oldest();
        if (head + size > bytes) {
            // What lies behind the head is older than all before it.
            while (oldest < next && s.begins[oldest % SLOTS] >= head) let_go_of_oldest();
            head = 0;
        }
        while (oldest < next && s.begins[oldest % SLOTS] >= head && s.begins[oldest % SLOTS] < head + size) let_go_of_oldest();
        u32 barrier = full + 8 * (next % SLOTS), to = place + head;
        __syncwarp();
        if (lane == 0) {
            s.begins[next % SLOTS] = head;
            asm volatile("{ .reg .b64 t; mbarrier.arrive.expect_tx.shared.b64 t, [%0], %1; }" ::"r"(barrier), "r"(TILE_ROWS * (quants + scales)) : "memory");
        }
        __syncwarp();
        if (lane < TILE_ROWS) copy(to + lane * pitch.rows, row, quants, barrier);
        else if (scales) copy(to + TILE_ROWS * pitch.rows + (lane - TILE_ROWS) * scales, row + scales_at, scales, barrier);
        head += size;
        next++;
    }
};

/// A slice of rows: some blocks of 32 columns of matrices with `cols`.
struct Slice { Pitch pitch; u32 at, quants, scales_at, scales; };
DEVICE Slice slice_of(u32 first, u32 blocks, u32 cols) {
    Pitch pitch = of_slices(first, blocks);
    u32 scales_at = cols / 32 * BLOCK_BYTES + 2 * first / 16 * 16;
    // Lanes that bring scales have the row's address, those that bring quants add where their blocks begin.
    return {pitch, first * BLOCK_BYTES, blocks * BLOCK_BYTES, scales_at, pitch.of_scales};
}

/// Fetches this block's tiles of all layers, in the order in which they are multiplied. Called by a warp.
DEVICE void fetch_all(const Layers& c, Shared& s, u8* memory, u32 rank, u32 cluster, bool attends) {
    u32 lane = threadIdx.x % 32, row = lane % TILE_ROWS;
    u64 policy = 0;
#if __CUDA_ARCH__ >= 900
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
    Ring ring = {s, shared_address(memory), c.ring, shared_address(s.barriers), policy};
    u32 rows_out = dealt(c.hidden / TILE_ROWS, rank);
    u32 first = attends ? cluster * PARTS / 32 : first_block_of(c, cluster), blocks = attends ? PARTS / 32 : blocks_of(c, cluster);
    Slice slice = slice_of(first, blocks, attends ? c.kv_heads * PARTS : c.width);
    u32 in_pitch = attends ? c.qkv_pitch : c.gate_up_pitch, out_pitch = attends ? c.output_pitch : c.down_pitch;
    u32 tiles = attends ? dealt(TILES_OF_HEADS, rank) : dealt(32 * blocks / UNITS_OF_TILE, rank);
    Pitch whole = of_rows(in_pitch, c.hidden);
    const u8 *in = attends ? c.layers[0].qkv : c.layers[0].gate_up, *out = attends ? c.layers[0].output : c.layers[0].down;
#pragma unroll 1
    for (u32 layer = 0; layer < c.count; layer++) {
        const u8 *next_in = in, *next_out = out;
        if (layer + 1 < c.count) {
            const Layer& l = c.layers[layer + 1];
            next_in = attends ? l.qkv : l.gate_up;
            next_out = attends ? l.output : l.down;
        }
#pragma unroll 1
        for (u32 i = 0; i < tiles; i++) {
            u32 tile = rank + i * TEAM, from;
            if (attends) from = row_of_heads(c, cluster, tile * TILE_ROWS + row);
            else from = first * 32 + tile * UNITS_OF_TILE + row % UNITS_OF_TILE + (row < UNITS_OF_TILE ? 0 : c.second);
            ring.fetch(whole, in + (u64)from * in_pitch, in_pitch, 0, 0);
        }
#pragma unroll 1
        for (u32 i = 0; i < rows_out; i++) {
            const u8* from = out + (u64)((rank + i * TEAM) * TILE_ROWS + row) * out_pitch;
            ring.fetch(slice.pitch, from + (lane < TILE_ROWS ? slice.at : 0), slice.quants, slice.scales_at, slice.scales);
        }
        in = next_in;
        out = next_out;
    }
}

KERNEL __launch_bounds__(THREADS, 1) void layers(const __grid_constant__ Layers c) {
    extern __shared__ __align__(128) u8 memory[];
    __shared__ __align__(16) Shared s;
    Attending& a = *(Attending*)(memory + c.ring);
    u32 tid = threadIdx.x, rank = cluster_rank(), cluster = blockIdx.x / TEAM;
    bool attends = cluster < c.kv_heads;
    if (!attends) cluster -= c.kv_heads;
    if (tid < SLOTS) {
        barrier_init(shared_address(s.barriers + tid), 1);
        barrier_init(shared_address(s.barriers + SLOTS + tid), WARPS);
    }
    if (tid < MESSAGES) barrier_init(shared_address(s.received + tid), 1);
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    // What nobody writes to: numbers behind the last of a panel.
    for (u32 i = tid; i < MOST_PANELS * PANEL; i += THREADS) s.normed[i] = s.units[i] = 0.0f;
    if (attends)
        for (u32 i = tid; i < sizeof(a.attended) / 4; i += THREADS) a.attended[i] = 0.0f;
    if (tid < sizeof(Layer) / 8) ((u64*)s.layers)[tid] = ((const u64*)c.layers)[tid];
    __syncthreads();
    // No block writes to another one's memory before that is ready.
    cluster_arrive();
    if (tid / 32 == WARPS) {
        fetch_all(c, s, memory, rank, cluster, attends);
        __syncwarp();
        let_next_begin();
        cluster_wait();
        return;
    }

    wait_for_previous();
    Thread t;
    t.rank = rank;
    t.cluster = cluster;
    t.epoch = look(c.state);
    t.position = c.tokens[0].position;
    t.table = c.rows[0].table;
    cluster_wait();
    if (attends) {
        for (; t.layer < c.count; t.layer++) attend_layer(c, s, t, memory, a);
        // The first cluster ends what the other team gave last.
        if (cluster == 0) {
            float4 own = gather_slice(c, s, t, c.fed, c.feeders, c.count - 1);
            u32 slice = c.hidden / TEAM, at = 4 * tid;
            if (at < slice) *(float4*)(c.x + rank * slice + at) = own;
        }
    } else {
        for (; t.layer < c.count; t.layer++) feed_layer(c, s, t, memory);
    }

    // The last block to leave counts the launch.
    meet();
    if (tid > 0 || atomicAdd(c.state + 1, 1) < gridDim.x - 1) return;
    c.state[1] = 0;
    c.state[0] = t.epoch + 1;
}
