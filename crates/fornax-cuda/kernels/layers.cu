//! All layers of a model for a single token of each of some rows, in one launch of two teams.
//!
//! What a product gives must reach all who multiply it, and through the device's cache that takes a
//! microsecond; blocks of a cluster tell one another in a fifth of that. So a layer is cut where clusters
//! can go on alone: one for each KV head projects, attends and projects back, and what all of those add
//! to the token goes to the other team, whose clusters have a share of the feed-forward part each. Two
//! exchanges a layer are left of five. While one team computes, the weights of the other one come: a warp
//! of every block fetches its share through a ring of shared memory, from the first layer to the last
//! without ever waiting for a result.
//!
//! A team would wait for the other one half of its time. So while one row is with the other team, it has the next:
//! rows take turns in each layer, and the teams go through layers and rows in the same order. Nothing is told of one
//! row that another one's would overwrite before all have read it: either a row has a place of its own, or who tells
//! the next has heard of all others what they could only tell behind it.
//!
//! This file has who fetches, and the way through all layers. All blocks must run at once. Compiled for
//! one FORMAT of weights, ROWS, HALVES slices of K or V a warp, and for attention as `slices.cu` and what most models
//! need of it (PLAIN).
//!
//! Bytes: every weight once from memory, and for each further row from the device's cache. Least time: those over the
//! bandwidth of the device's memory.

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

    /// Finds room for the next tile, and says where.
    __device__ __forceinline__ u32 make_room(u32 tile) {
        u32 size = (tile + 127) / 128 * 128;
        if (next - oldest == SLOTS) let_go_of_oldest();
        if (head + size > bytes) {
            // What lies behind the head is older than all before it.
            while (oldest < next && s.begins[oldest % SLOTS] >= head) let_go_of_oldest();
            head = 0;
        }
        while (oldest < next && s.begins[oldest % SLOTS] >= head && s.begins[oldest % SLOTS] < head + size) let_go_of_oldest();
        u32 at = head;
        __syncwarp();
        if (threadIdx.x % 32 == 0) s.begins[next % SLOTS] = at;
        __syncwarp();
        head += size;
        return place + at;
    }

    /// Fetches a tile of whole rows from one or two places, which the bulk copy engine does.
    __device__ __forceinline__ void fetch_rows(const Pitch& pitch, const u8* first, const u8* second, u32 pieces) {
        u32 to = make_room(pitch.tile), barrier = full + 8 * (next++ % SLOTS), count = pitch.tile / pieces;
        if (threadIdx.x % 32 > 0) return;
        expect_bytes(barrier, pitch.tile);
        copy(to, first, count, barrier);
        if (pieces > 1) copy(to + count, second, count, barrier);
    }

    __device__ __forceinline__ void copy(u32 to, const u8* from, u32 count, u32 barrier) {
#if __CUDA_ARCH__ >= 900
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to),
                     "l"(from), "r"(count), "r"(barrier), "l"(policy) : "memory");
#endif
    }

    /// Fetches a slice of sixteen rows from one on: `at` and `scales_at` are in bytes of a row.
    __device__ __forceinline__ void fetch_slice(const Pitch& pitch, const Slices& of, u32 row, u32 at, u32 scales_at) {
        u32 to = make_room(pitch.tile), barrier = full + 8 * (next++ % SLOTS);
        if (threadIdx.x % 32 > 0) return;
        expect_bytes(barrier, pitch.tile);
        copy_box(to, of.weights, at, row, barrier);
        if (SCALED) copy_box(to + TILE_ROWS * pitch.rows, of.scales, scales_at, row, barrier);
    }

    __device__ __forceinline__ void copy_box(u32 to, const TensorMap& from, u32 at, u32 row, u32 barrier) {
#if __CUDA_ARCH__ >= 900
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
                     "l"(&from), "r"(at / 8), "r"(row), "r"(barrier), "l"(policy) : "memory");
#endif
    }

    /// Brings such a slice near, which will be fetched when the ring has room.
    __device__ __forceinline__ void bring_near(const Slices& of, u32 row, u32 at) {
#if __CUDA_ARCH__ >= 900
        if (threadIdx.x % 32 == 0) asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(&of.weights), "r"(at / 8), "r"(row) : "memory");
#endif
    }
};

/// Makes the copy engine see the maps that the host wrote: it may still know others that were in their
/// place. Called by a warp.
DEVICE void know_maps(const Slices& of) {
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x % 32 < (SCALED ? 2 : 1))
        asm volatile("fence.proxy.tensormap::generic.acquire.sys [%0], 128;" ::"l"(&of.weights + threadIdx.x % 32) : "memory");
    __syncwarp();
#endif
}

/// Fetches this block's tiles of all layers, in the order in which they are multiplied. Called by a warp.
DEVICE void fetch_all(const Layers& c, Shared& s, u8* memory, u32 rank, u32 cluster, bool attends) {
    // The last row is who reads weights last.
    u64 leaves = 0, stays = 0;
#if __CUDA_ARCH__ >= 900
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(leaves));
    if (ROWS > 1) asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(stays));
#endif
    // Who does not attend has that room too, but for what a warp reads behind the last row's end.
    Ring ring = {s, shared_address(memory), c.ring + (attends ? 0 : c.attending - 128), shared_address(s.barriers), leaves};
    u32 tiles_out = dealt(c.hidden / TILE_ROWS, rank);
    Run slices = attends ? Run{cluster * PARTS / 32, PARTS / 32} : units_of(c, cluster);
    u32 in_pitch = attends ? c.qkv_pitch : c.gate_up_pitch, tiles = attends ? dealt(TILES_OF_HEADS, rank) : 4 * dealt(slices.count, rank);
    Pitch whole = of_rows(in_pitch, c.hidden), slice = of_slices(slices.first, attends ? PARTS / 32 : most_units_of(c));
    u32 at = slices.first * BLOCK_BYTES, scales_at = (attends ? c.kv_heads * PARTS : c.width) / 32 * BLOCK_BYTES + 2 * slices.first / 16 * 16;
    const u8* in = attends ? c.layers[0].qkv : c.layers[0].gate_up;
#pragma unroll 1
    for (u32 layer = 0; layer < c.count; layer++) {
        const Slices& out = c.slices[layer][attends ? 0 : 1];
        know_maps(out);
        const u8* next_in = in;
        if (layer + 1 < c.count) {
            const Layer& l = c.layers[layer + 1];
            next_in = attends ? l.qkv : l.gate_up;
        }
        u32 near = 0;
#pragma unroll 1
        for (u32 row = 0; row < ROWS; row++) {
            if (ROWS > 1) ring.policy = row + 1 < ROWS ? stays : leaves;
#pragma unroll 1
            for (u32 i = 0; i < tiles; i++) {
                // The ring has no room for a layer in 16 bits a number: its second product comes from the cache.
                for (; !SCALED && near * tiles < (i + 1) * tiles_out; near++)
                    ring.bring_near(out, (rank + near * TEAM) * TILE_ROWS, at);
                if (attends) {
                    const u8* rows = in + (u64)row_of_heads(c, cluster, (rank + i * TEAM) * TILE_ROWS) * in_pitch;
                    ring.fetch_rows(whole, rows, rows, 1);
                } else {
                    u32 unit = 32 * (slices.first + rank + i / 4 * TEAM) + i % 4 * UNITS_OF_TILE;
                    const u8* gates = in + (u64)unit * in_pitch;
                    ring.fetch_rows(whole, gates, gates + (u64)c.second * in_pitch, 2);
                }
            }
#pragma unroll 1
            for (u32 i = 0; i < tiles_out; i++) ring.fetch_slice(slice, out, (rank + i * TEAM) * TILE_ROWS, at, scales_at);
        }
        in = next_in;
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
    if (tid == 0) s.steps = 0;
    if (tid < MESSAGES) barrier_init(shared_address(s.received + tid), 1);
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    // What nobody writes to: numbers behind the last of a panel.
    for (u32 i = tid; i < sizeof(Operand) / 4; i += THREADS) {
        ((u32*)&s.token)[i] = 0;
        for (u32 row = 0; row < ROWS; row++) ((u32*)&s.units[row])[i] = 0;
        if (attends) ((u32*)&a.attended)[i] = 0;
    }
    for (u32 i = tid; i < ROWS * MOST_PANELS * PANEL; i += THREADS) s.seen[0][i] = 0;
    if (tid < sizeof(Layer) / 8) ((u64*)s.layers)[tid] = ((const u64*)c.layers)[tid];
    __syncthreads();
    // No block writes to another one's memory before that is ready.
    cluster_arrive();
    if (tid / 32 >= WARPS) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
#endif
        if (tid / 32 == WARPS) fetch_all(c, s, memory, rank, cluster, attends);
        if (tid / 32 == WARPS + 1 && attends) bring_slices_near(c, s, rank, cluster);
        __syncwarp();
        let_next_begin();
        cluster_wait();
        return;
    }

    // All together as many as the launch has: 168 for each thread.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
#endif
    wait_for_previous();
    Thread t;
    t.rank = rank;
    t.cluster = cluster;
    if (tid < ROWS) {
        s.positions[tid] = c.tokens[tid].position;
        s.tables[tid] = c.rows[tid].table;
    }
    meet();
    cluster_wait();
    if (attends) {
        fetch_first(s, t, a, 0, 0);
        for (; t.layer < c.count; t.layer++)
#pragma unroll 1
            for (t.row = 0; t.row < ROWS; t.row++) attend_layer(c, s, t, memory, a);
        // One block ends what the other team gave last. When it is whole for all warps, every block has told its
        // part, and nobody reads the row's tallies any more.
        if (cluster > 0 || rank > 0) return;
#pragma unroll 1
        for (u32 row = 0; row < ROWS; row++) {
            float4 own = gather_token(c, s, row, c.fed, c.feeders);
            meet();
            if (!has_four(c)) continue;
            u32 at = row * c.hidden / 4 + tid;
            ((float4*)c.x)[at] = own;
            ulonglong2 *attended = (ulonglong2*)c.attended + 2 * at, *fed = (ulonglong2*)c.fed + 2 * at;
            attended[0] = attended[1] = fed[0] = fed[1] = ulonglong2{};
        }
    } else {
        for (; t.layer < c.count; t.layer++)
#pragma unroll 1
            for (t.row = 0; t.row < ROWS; t.row++) feed_layer(c, s, t, memory);
    }
}
