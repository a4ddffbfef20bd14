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
//! one FORMAT of weights, and for attention as `slices.cu`.
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
        if (threadIdx.x % 32 > 0) return barrier_arrive(barrier);
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

    /// Fetches a slice of sixteen rows: `quants` bytes of each, and their scales from `scales_at` on. The
    /// bulk copy engine takes as long for such pieces as for whole rows, so that lanes bring 16 bytes each.
    __device__ __forceinline__ void fetch_slice(const Pitch& pitch, const u8* rows, u32 row_pitch, u32 at, u32 quants, u32 scales_at) {
        u32 lane = threadIdx.x % 32, to = make_room(pitch.tile), barrier = full + 8 * (next++ % SLOTS);
#pragma unroll
        for (u32 row = lane / 8; row < TILE_ROWS; row += 4)
            for (u32 i = lane % 8 * 16; i < quants; i += 128) copy16(to + row * pitch.rows + i, rows + (u64)row * row_pitch + at + i);
        u32 row = lane % TILE_ROWS;
        for (u32 i = lane / TILE_ROWS * 16; i < pitch.of_scales; i += 32)
            copy16(to + TILE_ROWS * pitch.rows + row * pitch.of_scales + i, rows + (u64)row * row_pitch + scales_at + i);
        asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
    }

    /// Fetches a slice of sixteen rows without scales, which begins at `rows`: pieces of 16 bits a number
    /// are long enough for the bulk copy engine, one for each of sixteen lanes.
    __device__ __forceinline__ void fetch_pieces(const Pitch& pitch, const u8* rows, u32 row_pitch, u32 count) {
        u32 lane = threadIdx.x % 32, to = make_room(pitch.tile), barrier = full + 8 * (next++ % SLOTS);
        if (lane == 0) expect_bytes(barrier, TILE_ROWS * count);
        else barrier_arrive(barrier);
        if (lane < TILE_ROWS) copy(to + lane * pitch.rows, rows + (u64)lane * row_pitch, count, barrier);
    }

    /// Brings such a slice near, which will be fetched when the ring has room.
    __device__ __forceinline__ void bring_near(const u8* rows, u32 row_pitch, u32 count) {
        u32 lane = threadIdx.x % 32;
#if __CUDA_ARCH__ >= 900
        if (lane < TILE_ROWS) asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(rows + (u64)lane * row_pitch), "r"(count) : "memory");
#endif
    }
};

/// Fetches this block's tiles of all layers, in the order in which they are multiplied. Called by a warp.
DEVICE void fetch_all(const Layers& c, Shared& s, u8* memory, u32 rank, u32 cluster, bool attends) {
    u64 policy = 0;
#if __CUDA_ARCH__ >= 900
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
    // Who does not attend has that room too.
    Ring ring = {s, shared_address(memory), c.ring + (attends ? 0 : c.attending), shared_address(s.barriers), policy};
    u32 tiles_out = dealt(c.hidden / TILE_ROWS, rank);
    Run slices = attends ? Run{cluster * PARTS / 32, PARTS / 32} : units_of(c, cluster);
    u32 in_pitch = attends ? c.qkv_pitch : c.gate_up_pitch, out_pitch = attends ? c.output_pitch : c.down_pitch;
    u32 tiles = attends ? dealt(TILES_OF_HEADS, rank) : 4 * dealt(slices.count, rank);
    Pitch whole = of_rows(in_pitch, c.hidden), slice = of_slices(slices.first, slices.count);
    u32 quants = slices.count * BLOCK_BYTES, scales_at = (attends ? c.kv_heads * PARTS : c.width) / 32 * BLOCK_BYTES + 2 * slices.first / 16 * 16;
    const u8 *in = attends ? c.layers[0].qkv : c.layers[0].gate_up, *out = attends ? c.layers[0].output : c.layers[0].down;
#pragma unroll 1
    for (u32 layer = 0; layer < c.count; layer++) {
        const u8 *next_in = in, *next_out = out;
        if (layer + 1 < c.count) {
            const Layer& l = c.layers[layer + 1];
            next_in = attends ? l.qkv : l.gate_up;
            next_out = attends ? l.output : l.down;
        }
        auto rows_from = [&](u32 i) { return out + (u64)(rank + i * TEAM) * TILE_ROWS * out_pitch; };
        u32 near = 0;
#pragma unroll 1
        for (u32 i = 0; i < tiles; i++) {
            // The ring has no room for a layer in 16 bits a number: its second product comes from the cache.
            for (; !SCALED && near * tiles < (i + 1) * tiles_out; near++)
                ring.bring_near(rows_from(near) + slices.first * BLOCK_BYTES, out_pitch, quants);
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
        for (u32 i = 0; i < tiles_out; i++) {
            if (SCALED) ring.fetch_slice(slice, rows_from(i), out_pitch, slices.first * BLOCK_BYTES, quants, scales_at);
            else ring.fetch_pieces(slice, rows_from(i) + slices.first * BLOCK_BYTES, out_pitch, quants);
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
        barrier_init(shared_address(s.barriers + tid), 32);
        barrier_init(shared_address(s.barriers + SLOTS + tid), WARPS);
    }
    if (tid < MESSAGES) barrier_init(shared_address(s.received + tid), 1);
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    // What nobody writes to: numbers behind the last of a panel.
    for (u32 i = tid; i < sizeof(Operand) / 4; i += THREADS) {
        ((u32*)&s.token)[i] = ((u32*)&s.units)[i] = 0;
        if (attends) ((u32*)&a.attended)[i] = 0;
    }
    if (tid < sizeof(Layer) / 8) ((u64*)s.layers)[tid] = ((const u64*)c.layers)[tid];
    __syncthreads();
    // No block writes to another one's memory before that is ready.
    cluster_arrive();
    if (tid / 32 >= WARPS) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
        asm volatile("setmaxnreg.dec.sync.aligned.u32 64;");
#endif
        if (tid / 32 == WARPS) fetch_all(c, s, memory, rank, cluster, attends);
        __syncwarp();
        let_next_begin();
        cluster_wait();
        return;
    }

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("setmaxnreg.inc.sync.aligned.u32 216;");
#endif
    wait_for_previous();
    Thread t;
    t.rank = rank;
    t.cluster = cluster;
    t.slice = slice_of(c, rank);
    t.epoch = look(c.state);
    t.position = c.tokens[0].position;
    t.table = c.rows[0].table;
    cluster_wait();
    if (attends) {
        for (; t.layer < c.count; t.layer++) attend_layer(c, s, t, memory, a);
        // The first cluster ends what the other team gave last.
        if (cluster == 0) {
            float4 own = gather_slice(c, s, t, c.fed, c.feeders, c.count - 1);
            if (tid < 8 * t.slice.count) *(float4*)(c.x + 32 * t.slice.first + 4 * tid) = own;
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
