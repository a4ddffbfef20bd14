//! What both teams of blocks share that carry a token of each row through the layers (`layers.cu`): where things
//! are, how a block multiplies its tiles, and how blocks hand on what they found: to those of their own
//! cluster by the cluster's memory, to the other team by adding it up in the device's. Must not know attention or activations.

#define TEAM 8 // blocks of a cluster
#define WARPS 8
/// Those that compute, and four more warps, of which one fetches and one brings K and V near: only four at a
/// time can give up registers.
#define THREADS (32 * WARPS + 128)
/// Tiles of one product that a block has at most.
#define MOST_TILES 8
/// Tiles in the ring at most.
#define SLOTS 64
#define HEADS_OF_CLUSTER (GROUP + 2)
#define PARTS (GROUP * HEAD)
/// Bytes of 32 numbers ready to be multiplied, and with their scale.
#define BYTES_OF_BLOCK (2 * PART_BYTES)
#define OPERAND_OF_BLOCK (BYTES_OF_BLOCK + (SCALED ? 8 : 0))

/// One layer. As the host lays it out.
struct Layer {
    const u8 *qkv, *output, *gate_up, *down; // weights
    const float *attention_norm, *feed_norm, *qkv_bias, *output_bias, *down_bias;
    Attend attend;
};

/// A tensor as the copy engine is told of it.
struct __align__(64) TensorMap { u64 words[16]; };
/// Of one product in one layer: sixteen rows of a cluster's columns at once, and of their scales. As the
/// host lays it out.
struct Slices { TensorMap weights, scales; };

/// How a tile of a matrix lies in the ring: bytes from a row to the next, where the first row's scales
/// are from its beginning, and how far they are apart.
struct Pitch { u32 rows, scales, of_scales, tile; };

/// What is the same in all layers. As the host lays it out.
struct Layers {
    const Layer* layers;
    const Slices (*slices)[2]; // of the attention's output and of the feed-forward part's
    u64 *attended, *fed;   // [ROWS, hidden]: tallies of what either team makes of a token, zeros between launches
    float* x;              // [ROWS, hidden]: tokens before all layers, then behind them
    const Token* tokens;   // [ROWS]
    const Row* rows;       // [ROWS]
    float attention_eps, feed_eps, alpha, limit;
    u32 count, hidden, kv_heads, feeders; // layers, numbers of a token, clusters of either team
    u32 width, second, activation;        // of the feed-forward part
    u32 q_offset, k_offset, v_offset;     // rows of Q, K and V
    u32 qkv_pitch, output_pitch, gate_up_pitch, down_pitch; // bytes of a row in memory
    u32 ring, attending;   // bytes of shared memory
};

/// Messages of a cluster, each with a barrier that counts its bytes. Units are told of each row apart, for a block may
/// tell those of the next row while another one still multiplies this one's; a row's own next ones it tells when the
/// other team has heard of all blocks, of whom each has a tile of the way down. Heads of the next row nobody tells
/// before all blocks have told their pieces of this one's, nor pieces before all have told heads.
#define HEADS 0
#define PIECES 1
#define UNITS 2
#define MESSAGES (UNITS + ROWS)
/// Slices of values that a warp fetches before it attends, and of keys as many or one fewer.
#define BEHIND_VALUES ((HALVES + 1) / 2)

/// What a block's threads share beside the ring and what attention gathers. Rows that begin on 16 bytes.
struct Shared {
    u64 barriers[2 * SLOTS]; // full and then empty ones of the ring's tiles
    u64 received[MESSAGES];
    u32 begins[SLOTS];
    volatile u32 steps; // layers of rows whose positions were all seen
    u32 positions[ROWS], tables[ROWS]; // of each row's token, and where its pages begin in each group's tables
    u32 pages[WARPS][ROWS][BEHIND_VALUES]; // of a warp's first slices of positions
    Layer layers[2];
    __align__(16) u64 seen[ROWS][MOST_PANELS * PANEL]; // the other team's tallies when they were last read
    Operand token, units[ROWS];        // what either team multiplies
    float raw[MOST_PANELS * PANEL];    // the token as it is
    __align__(16) float squares[WARPS];
    float sums[2][MOST_PANELS][MOST_TILES * TILE_ROWS]; // two products by turns
    float heads[HEADS_OF_CLUSTER * HEAD];
    float2 turns[ROWS][HEAD / 2];
    __align__(16) u8 stage[WARPS][BYTES_OF_BLOCK];
};

static_assert(sizeof(Shared) <= (SCALED ? 27 : 31) * 1024 + 4 * (GROUP + 3) * HEAD + (ROWS - 1) * ((SCALED ? 11 : 13) * 1024 + 4 * HEAD),
              "what the host leaves for it");

/// Which run of `count` items one of some sharers has, of nearly the same length each.
struct Run { u32 first, count; };
DEVICE Run run_of(u32 count, u32 sharers, u32 which) {
    u32 each = count / sharers, more = count % sharers;
    return {which * each + (which < more ? which : more), each + (which < more ? 1 : 0)};
}
/// What a thread of a block keeps from layer to layer.
struct Thread {
    u32 rank, cluster; // of the block in its cluster, and of that in its team
    u32 layer = 0, row = 0;
    u32 next = 0;        // tiles that were multiplied
    u32 turn = 0;        // which sums are free
    const u32* paged_by = nullptr; // what known pages were looked up in, and for which window
    u32 paged_for = 0;
    u32 heard = 0;       // a bit for each message: whether it was received an odd number of times
    u64 ahead = 0;       // a word of the layer to come
    const float* turned_by = nullptr; // what the known sines and cosines are of
};

/// Only those that compute.
DEVICE void meet() {
    __syncwarp();
    asm volatile("bar.sync 1, 256;" ::: "memory");
}

/// Where our place in shared memory is in another block of the cluster.
DEVICE u32 of_peer(const void* ours, u32 rank) {
    u32 at = shared_address(ours);
#if __CUDA_ARCH__ >= 900
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(at), "r"(rank));
#endif
    return at;
}
/// Writes to another block, and counts the bytes there.
DEVICE void tell_peer(const void* ours, u32 rank, const u64* message, u32 v) {
#if __CUDA_ARCH__ >= 900
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(of_peer(ours, rank)), "r"(v), "r"(of_peer(message, rank)) : "memory");
#endif
}
DEVICE void tell_peer(const void* ours, u32 rank, const u64* message, float v) { tell_peer(ours, rank, message, __float_as_uint(v)); }
DEVICE void tell_peer(const void* ours, u32 rank, const u64* message, uint2 v) {
#if __CUDA_ARCH__ >= 900
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(of_peer(ours, rank)), "r"(v.x), "r"(v.y), "r"(of_peer(message, rank)) : "memory");
#endif
}
DEVICE void tell_peer(const void* ours, u32 rank, const u64* message, float2 v) {
    tell_peer(ours, rank, message, make_uint2(__float_as_uint(v.x), __float_as_uint(v.y)));
}
DEVICE void tell_peer(const void* ours, u32 rank, const u64* message, float4 v) {
#if __CUDA_ARCH__ >= 900
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(of_peer(ours, rank)), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(of_peer(message, rank)) : "memory");
#endif
}
/// Arrives at a barrier, whose phase then lasts until so many bytes have come too.
DEVICE void expect_bytes(u32 barrier, u32 bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("{ .reg .b64 t; mbarrier.arrive.expect_tx.shared.b64 t, [%0], %1; }" ::"r"(barrier), "r"(bytes) : "memory");
#endif
}
/// Waits until so many bytes have come from all blocks of the cluster, our own among them.
DEVICE void receive(Shared& s, Thread& t, u32 message, u32 bytes) {
    u32 barrier = shared_address(s.received + message);
    if (threadIdx.x == 0) expect_bytes(barrier, bytes);
    barrier_wait(barrier, t.heard >> message & 1);
    t.heard ^= 1 << message;
}

/// Items of `count` that this block has, which are dealt to a cluster's blocks in turn.
DEVICE u32 dealt(u32 count, u32 rank) { return (count + TEAM - 1 - rank) / TEAM; }

/// Which item of the cluster's the i-th number of this block's belongs to, in numbers of `each` an item.
DEVICE u32 dealt_place(const Thread& t, u32 i, u32 each) { return (t.rank + i / each * TEAM) * each + i % each; }

/// Blocks of 32 units of the feed-forward part that a cluster has.
DEVICE Run units_of(const Layers& c, u32 cluster) { return run_of(c.width / 32, c.feeders, cluster); }
DEVICE u32 most_units_of(const Layers& c) { return (c.width / 32 + c.feeders - 1) / c.feeders; }
/// Whole rows of so many bytes and columns, as they are in memory: they come in one piece.
DEVICE Pitch of_rows(u32 bytes, u32 cols) { return {bytes, cols / 32 * BLOCK_BYTES, bytes, TILE_ROWS * bytes}; }
/// Some blocks of 32 columns of each row, from one on, of `most` that a cluster has: quants of all rows,
/// then their scales, which are fetched in whole units of 16 bytes.
DEVICE Pitch of_slices(u32 first, u32 most) {
    u32 rows = apart(most * BLOCK_BYTES), skip = 2 * first % 16, of_scales = SCALED ? (14 + 2 * most + 15) / 16 * 16 : 0;
    return {rows, TILE_ROWS * rows + skip, of_scales, TILE_ROWS * (rows + of_scales)};
}

/// A product as a warp sees it: which panel of the columns it has, and that of the block's tiles every
/// `step`th from `own` on. Panels are divided among 1, 2, 4 or 8 warps.
struct Share {
    u32 cols, tiles, panel, step, own;
    bool idle;

    __device__ __forceinline__ Share(u32 cols, u32 tiles) : cols(cols), tiles(tiles) {
        u32 warp = threadIdx.x / 32, panels = (cols + PANEL - 1) / PANEL, spread = panels > 4 ? 3 : panels > 2 ? 2 : panels - 1;
        panel = warp & (1 << spread) - 1;
        step = WARPS >> spread;
        own = warp >> spread;
        idle = panel >= panels;
    }
    __device__ __forceinline__ u32 tile(u32 i) const { return own + i * step; }
    __device__ __forceinline__ bool has(u32 i) const { return !idle && tile(i) < tiles; }
};

/// Reads weights of some tiles of a product, whose first is tile `begin` of all, as soon as they are there,
/// and lets the tiles go. What is not there becomes zeros: otherwise the compiler keeps a layer's
/// weights in their registers up to the next layer's, for they might be read again.
template <u32 COUNT>
DEVICE void take_tiles(Weights (&held)[COUNT], Shared& s, u32 begin, const u8* ring, const Pitch& pitch, const Share& share, u32 from) {
    u32 lane = threadIdx.x % 32, full = shared_address(s.barriers), empty = full + 8 * SLOTS;
#pragma unroll
    for (u32 i = 0; i < COUNT; i++) {
        if (!share.has(from + i)) {
            held[i] = {};
            continue;
        }
        u32 number = begin + share.tile(from + i), slot = number % SLOTS;
        barrier_wait(full + 8 * slot, number / SLOTS & 1);
        const u8* at = ring + s.begins[slot];
        load_weights(held[i], at, pitch.rows, at + pitch.scales, pitch.of_scales, share.panel, share.cols);
        __syncwarp();
        if (lane == 0) barrier_arrive(empty + 8 * slot);
    }
}
/// Those with which a product begins, before the token is there; lets go of the tiles of other warps.
template <u32 COUNT>
DEVICE void hold_tiles(Weights (&held)[COUNT], Shared& s, u32 begin, const u8* ring, const Pitch& pitch, const Share& share) {
    u32 lane = threadIdx.x % 32, empty = shared_address(s.barriers) + 8 * SLOTS;
    if (lane < share.tiles && (share.idle || lane % share.step != share.own)) barrier_arrive(empty + 8 * ((begin + lane) % SLOTS));
    take_tiles(held, s, begin, ring, pitch, share, 0);
}

/// Multiplies them all, for what is not there costs less than asking.
template <u32 COUNT>
DEVICE void multiply_held(const Weights (&held)[COUNT], const Panel& p, const Share& share, u32 from, float* sums) {
    float2 y[COUNT];
#pragma unroll
    for (u32 i = 0; i < COUNT; i++) y[i] = multiply_panel(p, held[i]);
#pragma unroll
    for (u32 i = 0; i < COUNT; i++) leave(y[i], sums + share.tile(from + i) * TILE_ROWS, share.has(from + i));
}

/// Sums of one product, by panels.
typedef float (*Sums)[MOST_TILES * TILE_ROWS];

/// Products of this block's tiles, the first of which a warp holds, with a token.
template <u32 COUNT>
DEVICE Sums multiply_tiles(const Weights (&held)[COUNT], Shared& s, Thread& t, const u8* ring, const Pitch& pitch, const Share& share, const Operand& token) {
    Sums sums = s.sums[t.turn];
    t.turn ^= 1;
    if (!share.idle) {
        Panel p = panel_of(token, share.panel);
        multiply_held(held, p, share, 0, sums[share.panel]);
#pragma unroll 1
        for (u32 i = COUNT; COUNT < MOST_TILES && share.has(i); i += BEYOND) {
            Weights more[BEYOND];
            take_tiles(more, s, t.next, ring, pitch, share, i);
            multiply_held(more, p, share, i, sums[share.panel]);
        }
    }
    t.next += share.tiles;
    meet();
    return sums;
}

/// A row's sum over panels.
DEVICE float sum_of(Sums sums, u32 row, u32 panels) {
    float v[MOST_PANELS];
#pragma unroll
    for (u32 i = 0; i < MOST_PANELS; i++) v[i] = i < panels ? sums[i][row] : 0.0f;
    return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
}

/// Whether a thread has four numbers of the token, and four of what belongs to them.
DEVICE bool has_four(const Layers& c) { return 4 * threadIdx.x < c.hidden; }
DEVICE float4 own_four(const Layers& c, const float* of) {
    return has_four(c) ? ((const float4*)of)[threadIdx.x] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

/// A thread's numbers of a row's token as the other team leaves it, as soon as all of a warp are there.
DEVICE float4 gather_token(const Layers& c, Shared& s, u32 row, const u64* tallies_of_rows, u32 clusters) {
    u32 tid = threadIdx.x;
    bool ours = has_four(c);
    const u64* tallies = tallies_of_rows + row * c.hidden;
    u32 seen = shared_address(s.seen[row] + 4 * tid);
    u64 gained[4] = {};
    Patience patience;
    // Until one number changes nobody asks for the others: looks are in the way of weights.
    u32 first = 4 * (tid & ~31);
    for (u64 had = s.seen[row][first]; first < c.hidden && look_at(tallies + first).x == had;) patience.wait();
    for (;;) {
        bool whole = true;
        if (ours) {
            ulonglong2 has[2] = {look_at(tallies + 4 * tid), look_at(tallies + 4 * tid + 2)};
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                ulonglong2 had = shared_pair(seen + 16 * i);
                gained[2 * i] = has[i].x - had.x;
                gained[2 * i + 1] = has[i].y - had.y;
                whole &= is_whole(gained[2 * i], clusters) && is_whole(gained[2 * i + 1], clusters);
            }
        }
        if (__all_sync(FULL, whole)) break;
        patience.wait();
    }
    float4 sum = make_float4(sum_of(gained[0]), sum_of(gained[1]), sum_of(gained[2]), sum_of(gained[3]));
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        ulonglong2 had = shared_pair(seen + 16 * i);
        asm volatile("st.shared.v2.u64 [%0], {%1,%2};" ::"r"(seen + 16 * i), "l"(had.x + gained[2 * i]), "l"(had.y + gained[2 * i + 1]) : "memory");
    }
    return sum;
}

/// Keeps a thread's numbers of the token for its block: times a norm's weights, ready to be multiplied,
/// their squares, and as they are.
DEVICE void keep_token(const Layers& c, Shared& s, float4 own, float4 norm) {
    // Others of the block may still tell the team what became of the row before, for which they read that token.
    if (ROWS > 1) meet();
    u32 tid = threadIdx.x, block = tid / 8, lane = tid % 32;
    // Two chains of shuffles that go along with one another.
    float squares = warp_sum(own.x * own.x + own.y * own.y + own.z * own.z + own.w * own.w);
    FourParts parts = parts_of(make_float4(own.x * norm.x, own.y * norm.y, own.z * norm.z, own.w * norm.w));
    if (has_four(c)) {
        keep_part(s.token.bytes[block][0], tid % 8, parts.high);
        keep_part(s.token.bytes[block][1], tid % 8, parts.low);
        if (SCALED && tid % 8 == 0) s.token.scales[block] = parts.scale;
        *(float4*)(s.raw + 4 * tid) = own;
    }
    if (lane == 0) s.squares[tid / 32] = squares;
    meet();
}

/// What a norm multiplies with beside its weights.
DEVICE float norm_factor(const Layers& c, const Shared& s, float eps) {
    static_assert(WARPS == 8, "two reads have all squares");
    const float4 *of = (const float4*)s.squares, a = of[0], b = of[1];
    float squares = ((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w));
    return rsqrtf(__fdividef(squares, (float)c.hidden) + eps);
}

/// A layer's last word of a team: what its cluster adds to the token, by this block's numbers. The first
/// cluster adds the token itself.
DEVICE void tell_team(const Layers& c, const Shared& s, const Thread& t, u64* tallies_of_rows, Sums sums, u32 panels, u32 tiles, const float* bias) {
    u64* tallies = tallies_of_rows + t.row * c.hidden;
    for (u32 i = threadIdx.x; i < tiles * TILE_ROWS; i += 32 * WARPS) {
        u32 place = dealt_place(t, i, TILE_ROWS);
        float y = sum_of(sums, i, panels);
        if (t.cluster == 0) y += s.raw[place] + (bias ? bias[place] : 0.0f);
        add_to(tallies + place, y);
    }
}

/// Loads a word of the layer to come while the last row goes through this one.
DEVICE void load_ahead(const Layers& c, Thread& t) {
    if (t.row + 1 == ROWS && threadIdx.x < sizeof(Layer) / 8 && t.layer + 1 < c.count) t.ahead = ((const u64*)(c.layers + t.layer + 1))[threadIdx.x];
}
/// Keeps that layer. Its place is not read any more: who comes here has met all others in this layer.
DEVICE void keep_ahead(Shared& s, const Thread& t) {
    if (t.row + 1 == ROWS && threadIdx.x < sizeof(Layer) / 8) ((u64*)&s.layers[(t.layer + 1) % 2])[threadIdx.x] = t.ahead;
}
