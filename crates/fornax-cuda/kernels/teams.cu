//! What both teams of blocks share that carry one token through the layers (`layers.cu`): where things
//! are, how a block multiplies its tiles, and how blocks hand on what they found: to those of their own
//! cluster by the cluster's memory, to the other team as words. Must not know attention or activations.

#define TEAM 8 // blocks of a cluster
#define WARPS 8
#define THREADS (32 * WARPS + 32)
/// Tiles of one product that a block has at most, and panels of a row.
#define MOST_TILES 8
#define MOST_PANELS 8
/// Clusters of a team at most.
#define MOST_CLUSTERS 16
/// Tiles in the ring at most.
#define SLOTS 64
#define TOGETHER 2
#define STRIDE (SIDE * TOGETHER)
/// Warps that have one query head, and positions that they see at once.
#define OF_HEAD (WARPS / GROUP)
#define HEADS_OF_CLUSTER (GROUP + 2)

/// One layer. As the host lays it out.
struct Layer {
    const u8 *qkv, *output, *gate_up, *down; // weights
    const float *attention_norm, *feed_norm, *qkv_bias, *output_bias, *down_bias;
    u64 spare;
    Attend attend;
};

/// How a tile of a matrix lies in the ring: bytes from a row to the next, where the first row's scales
/// are from its beginning, and how far they are apart.
struct Pitch { u32 rows, scales, of_scales, tile; };

/// What is the same in all layers. As the host lays it out.
struct Layers {
    const Layer* layers;
    u32* state;            // launches so far, and blocks that are done with this one
    u32 *attended, *fed;   // words from either team: [2][clusters][hidden]
    float* x;              // [hidden]: the token before all layers, then behind them
    const Token* tokens;
    const Row* rows;
    float attention_eps, feed_eps, alpha, limit;
    u32 count, hidden, kv_heads, feeders; // layers, numbers of a token, clusters of either team
    u32 width, second, activation;        // of the feed-forward part
    u32 q_offset, k_offset, v_offset;     // rows of Q, K and V
    u32 qkv_pitch, output_pitch, gate_up_pitch, down_pitch; // bytes of a row in memory
    u32 ring;              // bytes
};

/// Messages of a cluster, each with a barrier that counts its bytes.
#define TOKEN 0
#define HEADS 1
#define PIECES 2
#define UNITS 3
#define MESSAGES 4

/// What a block's threads share beside the ring and what attention gathers. Rows that begin on 16 bytes.
struct Shared {
    u64 barriers[2 * SLOTS]; // full and then empty ones of the ring's tiles
    u64 received[MESSAGES];
    u32 begins[SLOTS];
    Layer layers[2];
    float parts[MOST_CLUSTERS][PANEL]; // of our slice of a token
    float raw[MOST_PANELS * PANEL], normed[MOST_PANELS * PANEL]; // the token; normed but for a factor
    float squares[TEAM];
    float sums[2][MOST_PANELS][MOST_TILES * TILE_ROWS]; // two products by turns
    float units[MOST_PANELS * PANEL];
    float heads[HEADS_OF_CLUSTER * HEAD];
    float norms[GROUP + 1][HEAD];
    float2 turns[HEAD / 2];
};

/// What a thread of a block keeps from layer to layer.
struct Thread {
    u32 rank, cluster;   // of the block in its cluster, and of that in its team
    u32 position, table; // of the token, and where its pages begin in each group's tables
    u32 epoch;           // launches before this one
    u32 layer = 0;
    u32 next = 0;        // tiles that were multiplied
    u32 turn = 0;        // which sums are free
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
DEVICE void tell_peer(float* ours, u32 rank, const u64* message, float value) {
#if __CUDA_ARCH__ >= 900
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(of_peer(ours, rank)), "f"(value), "r"(of_peer(message, rank)) : "memory");
#endif
}
DEVICE void tell_peer(float* ours, u32 rank, const u64* message, float4 v) {
#if __CUDA_ARCH__ >= 900
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(of_peer(ours, rank)), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(of_peer(message, rank)) : "memory");
#endif
}
/// Waits until so many bytes have come from all blocks of the cluster, our own among them.
DEVICE void receive(Shared& s, Thread& t, u32 message, u32 bytes) {
    u32 barrier = shared_address(s.received + message);
    if (threadIdx.x == 0) asm volatile("{ .reg .b64 t; mbarrier.arrive.expect_tx.shared.b64 t, [%0], %1; }" ::"r"(barrier), "r"(bytes) : "memory");
    barrier_wait(barrier, t.heard >> message & 1);
    t.heard ^= 1 << message;
}

/// Items of `count` that this block has, which are dealt to a cluster's blocks in turn.
DEVICE u32 dealt(u32 count, u32 rank) { return (count + TEAM - 1 - rank) / TEAM; }

/// Blocks of 32 units of the feed-forward part that a cluster has, and the first of them.
DEVICE u32 blocks_of(const Layers& c, u32 cluster) { return (c.width / 32 + c.feeders - 1 - cluster) / c.feeders; }
DEVICE u32 first_block_of(const Layers& c, u32 cluster) {
    u32 all = c.width / 32, each = all / c.feeders, more = all % c.feeders;
    return cluster * each + (cluster < more ? cluster : more);
}

/// Bytes from a row to the next in the ring, so that those which a warp reads at once share no bank.
DEVICE u32 apart(u32 bytes) { return (bytes + 63) / 128 * 128 + 64; }
/// Whole rows of so many bytes and columns.
DEVICE Pitch of_rows(u32 bytes, u32 cols) {
    u32 rows = apart(bytes);
    return {rows, cols / 32 * BLOCK_BYTES, rows, TILE_ROWS * rows};
}
/// Some blocks of 32 columns of each row, from one on: quants of all rows, then their scales, which are
/// fetched in whole units of 16 bytes.
DEVICE Pitch of_slices(u32 first, u32 blocks) {
    u32 rows = apart(blocks * BLOCK_BYTES), skip = 2 * first % 16, of_scales = HAS_SCALES ? (skip + 2 * blocks + 15) / 16 * 16 : 0;
    return {rows, TILE_ROWS * rows + skip, of_scales, TILE_ROWS * (rows + of_scales)};
}

/// Products of this block's next tiles with `cols` columns of the token: sums by panels, in the half
/// of `sums` that it returns.
DEVICE float (*multiply_tiles(Shared& s, Thread& t, const u8* ring, const Pitch& pitch, u32 tiles, const float* x, u32 cols))[MOST_TILES * TILE_ROWS] {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, panels = (cols + PANEL - 1) / PANEL;
    // Panels are divided among 2, 4 or 8 warps, tiles among the groups of those.
    u32 spread = panels > 4 ? 3 : panels > 2 ? 2 : panels - 1, panel = warp & (1 << spread) - 1;
    u32 full = shared_address(s.barriers), empty = full + 8 * SLOTS;
    auto sums = s.sums[t.turn];
    t.turn ^= 1;
    Panel p = panel_of(x + panel * PANEL);
#pragma unroll 1
    for (u32 tile = 0; tile < tiles; tile++, t.next++) {
        u32 slot = t.next % SLOTS;
        if (panel < panels && tile % (WARPS >> spread) == warp >> spread) {
            barrier_wait(full + 8 * slot, t.next / SLOTS & 1);
            const u8* at = ring + s.begins[slot];
            float sum = fold(multiply_panel(p, at, pitch.rows, at + pitch.scales, pitch.of_scales, panel, cols));
            if (lane % 4 < 2) sums[panel][tile * TILE_ROWS + lane / 4 + lane % 4 * 8] = sum;
        }
        // Whoever has no part in a tile lets it go at once.
        if (lane == 0) barrier_arrive(empty + 8 * slot);
    }
    meet();
    return sums;
}

/// A row's sum over panels.
DEVICE float sum_of(const float (*sums)[MOST_TILES * TILE_ROWS], u32 row, u32 panels) {
    float sum = sums[0][row];
    for (u32 i = 1; i < panels; i++) sum += sums[i][row];
    return sum;
}

/// Which of the writes to a place of the words a layer's is, counted on from launch to launch.
DEVICE u32 tag_of(const Layers& c, const Thread& t, u32 layer) {
    u32 stride = (c.count + 1 - layer % 2) / 2;
    return t.epoch * stride + layer / 2 + 1 & 15;
}

/// Four numbers a lane of our slice of the token: what the clusters of the other team make of it in a
/// layer, in sum; in every warp. A slice is an eighth.
DEVICE float4 gather_slice(const Layers& c, Shared& s, const Thread& t, const u32* words, u32 clusters, u32 layer) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, slice = c.hidden / TEAM, column = t.rank * slice + 4 * lane;
    bool ours = 4 * lane < slice;
    const u32* from = words + layer % 2 * clusters * c.hidden + column;
    u32 tag = tag_of(c, t, layer);
#pragma unroll 1
    for (u32 i = warp; i < clusters; i += WARPS) {
        uint4 v = make_uint4(tag, tag, tag, tag);
        Patience patience;
        for (;;) {
            if (ours) v = look_four(from + i * c.hidden);
            if (__all_sync(FULL, are_from(v, v, tag))) break;
            patience.wait();
        }
        if (ours) *(float4*)&s.parts[i][4 * lane] = make_float4(number_of(v.x), number_of(v.y), number_of(v.z), number_of(v.w));
    }
    meet();
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (ours)
        for (u32 i = 0; i < clusters; i++) {
            float4 v = *(const float4*)&s.parts[i][4 * lane];
            sum.x += v.x; sum.y += v.y; sum.z += v.z; sum.w += v.w;
        }
    return sum;
}

/// Hands our slice to all blocks of the cluster and receives theirs: the token as it is, times a norm's
/// weights, and its squares. Each warp tells one block.
DEVICE void share_token(const Layers& c, Shared& s, Thread& t, float4 own, float4 norm) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, slice = c.hidden / TEAM, column = t.rank * slice + 4 * lane;
    const u64* message = s.received + TOKEN;
    if (4 * lane < slice) {
        tell_peer(s.normed + column, warp, message, make_float4(own.x * norm.x, own.y * norm.y, own.z * norm.z, own.w * norm.w));
        tell_peer(s.raw + column, warp, message, own);
    }
    float squares = warp_sum(own.x * own.x + own.y * own.y + own.z * own.z + own.w * own.w);
    if (lane == 0) tell_peer(s.squares + t.rank, warp, message, squares);
    receive(s, t, TOKEN, 8 * c.hidden + 4 * TEAM);
}

/// A lane's weights of a norm for its slice.
DEVICE float4 norm_of_slice(const Layers& c, const Thread& t, const float* norm) {
    u32 lane = threadIdx.x % 32, slice = c.hidden / TEAM;
    return 4 * lane < slice ? *(const float4*)(norm + t.rank * slice + 4 * lane) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

/// What a norm multiplies with beside its weights.
DEVICE float norm_factor(const Layers& c, const Shared& s, float eps) {
    float squares = 0.0f;
#pragma unroll
    for (u32 i = 0; i < TEAM; i++) squares += s.squares[i];
    return rsqrtf(__fdividef(squares, (float)c.hidden) + eps);
}

/// A layer's last word of a team: what its cluster adds to the token, by this block's rows. The first
/// cluster adds the token itself.
DEVICE void tell_team(const Layers& c, const Shared& s, const Thread& t, u32* words, u32 clusters, const float (*sums)[MOST_TILES * TILE_ROWS], u32 panels, u32 tiles, const float* bias) {
    u32* to = words + (t.layer % 2 * clusters + t.cluster) * c.hidden;
    u32 tag = tag_of(c, t, t.layer);
    for (u32 i = threadIdx.x; i < tiles * TILE_ROWS; i += 32 * WARPS) {
        u32 row = (t.rank + i / TILE_ROWS * TEAM) * TILE_ROWS + i % TILE_ROWS;
        float y = sum_of(sums, i, panels);
        if (t.cluster == 0) y += s.raw[row] + (bias ? bias[row] : 0.0f);
        tell(to + row, y, tag);
    }
}

/// Keeps the layer to come, which was loaded meanwhile. Its place is not read any more: who comes here
/// has met all others in this layer.
DEVICE void keep_ahead(Shared& s, const Thread& t) {
    if (threadIdx.x < sizeof(Layer) / 8) ((u64*)&s.layers[(t.layer + 1) % 2])[threadIdx.x] = t.ahead;
}
