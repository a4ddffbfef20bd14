//! The first half of a layer: norm, Q, K and V, attention and its projection, for the query heads of one
//! KV head in each cluster, so that nothing of it but the projection's parts leaves a cluster. Must not
//! know the other team.
//!
//! Bytes: a cluster's share of the weights, K and V of the positions that are seen.

/// Slices of positions that a cluster sees at once, one for each warp.
#define AT_ONCE (TEAM * WARPS)
/// From a warp's position to its next one.
#define ROUND (AT_ONCE * SLICE)
#define LOG2E 1.4426950408889634f
/// Halves of a query, and as many more that no two of its rows begin in the same banks.
#define QUERY (HEAD + 8)

/// What the warps of a block found, and then its cluster's blocks. Scores are in powers of two. Rows of
/// floats begin on 16 bytes.
struct Attending {
    __align__(16) u8 slices[WARPS][HALVES][HALF];
    __align__(16) u16 queries[GROUP][2][QUERY]; // halves of numbers, see `Sight`
    float turned[WARPS][HEAD];
    __align__(16) u8 newest[2][ROW_BYTES];
    float sums[WARPS][GROUP][HEAD];
    float2 of_warps[WARPS][GROUP]; // base of the powers, near the largest score, and total
    float pieces[TEAM][PARTS];
    float2 of_blocks[TEAM][GROUP];
    Operand attended;
    u16 newest_scales[2][HEAD / 32];
};

static_assert(sizeof(Attending) <= WARPS * HALVES * HALF + 4 * (GROUP * QUERY + WARPS * HEAD + (WARPS + TEAM) * (PARTS + 2 * GROUP)) + 2 * ROW_BYTES + HEAD / 8 + MOST_BLOCKS * 128 + 64,
              "what the host leaves for it");

/// Tiles of a cluster's Q, K and V, and the row of the matrix where one begins.
#define TILES_OF_HEADS (HEADS_OF_CLUSTER * HEAD / TILE_ROWS)
DEVICE u32 row_of_heads(const Layers& c, u32 kv_head, u32 place) {
    if (place < GROUP * HEAD) return c.q_offset + kv_head * GROUP * HEAD + place;
    place -= GROUP * HEAD;
    return place < HEAD ? c.k_offset + kv_head * HEAD + place : c.v_offset + kv_head * HEAD + place - HEAD;
}

/// Tells all blocks of the cluster our rows of Q, K and V. Four warps have 64 of them at a time, each of
/// whose numbers goes to two blocks, or two warps 128 and four.
DEVICE void tell_heads(const Layers& c, Shared& s, const Thread& t, const Layer& l, Sums sums, u32 panels, u32 tiles, float factor) {
    u32 rows = tiles * TILE_ROWS, spread = rows <= 64 ? 6 : 7, i = threadIdx.x & (1 << spread) - 1, first = threadIdx.x >> spread << (spread - 5);
    if (i >= rows) return;
    u32 place = dealt_place(t, i, TILE_ROWS);
    float y = sum_of(sums, i, panels) * factor;
    if (l.qkv_bias) y += l.qkv_bias[row_of_heads(c, t.cluster, place)];
#pragma unroll
    for (u32 peer = 0; peer < 4; peer++)
        if (peer < 2 || rows > 64) tell_peer(s.heads + place, first + peer, s.received + HEADS, y);
}

/// Norm and rotation of a head, of which a lane has every 32nd number, as `turn_known` has it; where the
/// two numbers of each pair are in one lane, in registers.
DEVICE void turn_head(float* to, float (&own)[HEAD / 32], const float (&norm)[HEAD / 32], float* norms, const Attend& p, const float2* turns) {
    u32 lane = threadIdx.x % 32;
    if (p.rotary < HEAD || p.style > 0) {
#pragma unroll
        for (u32 i = 0; i < HEAD / 32; i++) norms[lane + 32 * i] = norm[i];
        __syncwarp();
        return turn_known(to, own, p.q_norm ? norms : nullptr, p.eps, turns, p.rotary, p.style);
    }
    if (p.q_norm) {
        float squares = 0.0f;
#pragma unroll
        for (u32 i = 0; i < HEAD / 32; i++) squares += own[i] * own[i];
        float factor = rsqrtf(warp_sum(squares) / HEAD + p.eps);
#pragma unroll
        for (u32 i = 0; i < HEAD / 32; i++) own[i] *= factor * norm[i];
    }
#pragma unroll
    for (u32 i = 0; i < HEAD / 64; i++) {
        float2 turn = turns[lane + 32 * i];
        float x = own[i], y = own[i + HEAD / 64];
        to[lane + 32 * i] = x * turn.y - y * turn.x;
        to[lane + 32 * i + HEAD / 2] = x * turn.x + y * turn.y;
    }
    __syncwarp();
}

/// A head's numbers as two halves each, the second what the first leaves: with them a product of halves
/// is nearly that of single precision.
DEVICE void halve(u16 (*halves)[QUERY], const float* head, float factor) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (u32 i = 0; i < HEAD / 64; i++) {
        float2 v = *(const float2*)(head + 2 * lane + 64 * i);
        v.x *= factor;
        v.y *= factor;
        u32 word = PAIR(v.x, v.y);
        float2 taken = TYPE == KV_BF16 ? f32_of_bf16_pair(word) : f32_of_f16_pair(word);
        u32 at = query_place(2 * lane + 64 * i);
        *(u32*)(halves[0] + at) = word;
        *(u32*)(halves[1] + at) = PAIR(v.x - taken.x, v.y - taken.y);
    }
}

/// Under which weight a part counts whose powers have one base, beside parts with a larger one.
DEVICE float weight_of(float base, float most) { return base == -INFINITE ? 0.0f : power_of_two(base - most); }

/// What a warp has seen: lane `4g + h` of head h, if there is one, at positions g and g + 8 of each slice,
/// and of the result rows g and g + 8 of each sixteen. Columns 2h and 2h + 1 of a product are the two
/// halves of a head's numbers; where there is no head are those of the first, which nobody asks for.
struct Sight {
    u32 q[HEAD / 16][2];
    float sum[HEAD / 16][4], base, total; // scores count as powers above the base

    __device__ __forceinline__ void begin(const u16 (*queries)[2][QUERY]) {
        u32 lane = threadIdx.x % 32, n = lane % 8;
        u32 own = shared_address(queries[n / 2 < GROUP ? n / 2 : 0][n % 2] + 8 * (lane / 8));
#pragma unroll
        for (u32 k = 0; k < HEAD / 16; k += 2) {
            u32 two[4];
            load_matrices(two, own + 32 * k);
            q[k][0] = two[0]; q[k][1] = two[1]; q[k + 1][0] = two[2]; q[k + 1][1] = two[3];
        }
#pragma unroll
        for (u32 i = 0; i < HEAD / 16; i++) sum[i][0] = sum[i][1] = sum[i][2] = sum[i][3] = 0.0f;
        base = -INFINITE;
        total = 0.0f;
    }

    /// A slice that begins at position `from`, of which those from `first` to `last` are seen. `between` is
    /// called when its keys are done with, and before its values are read.
    template <class Between>
    __device__ __forceinline__ void see(u32 keys, u32 values, u32 from, u32 first, u32 last, float cap, Between between) {
        u32 g = threadIdx.x % 32 / 4;
        float both[4] = {};
        score_slice(both, q, keys);
        between();
        float score[2] = {both[0] + both[1], both[2] + both[3]}, most = -INFINITE;
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            u32 position = from + g + 8 * i;
            if (cap > 0.0f) score[i] = capped(score[i], cap) * LOG2E;
            if (position < first || position > last) score[i] = -INFINITE;
            most = fmaxf(most, score[i]);
        }
        if (__any_sync(FULL, most > base + ABOVE_BASE)) {
#pragma unroll
            for (u32 far = 4; far < 32; far <<= 1) most = fmaxf(most, __shfl_xor_sync(FULL, most, far));
            most = fmaxf(most, base);
            float keep = weight_of(base, most);
            total *= keep;
#pragma unroll
            for (u32 i = 0; i < HEAD / 16; i++) { sum[i][0] *= keep; sum[i][1] *= keep; sum[i][2] *= keep; sum[i][3] *= keep; }
            base = most;
        }
        u32 weights[2];
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            float weight = score[i] == -INFINITE ? 0.0f : power_of_two(score[i] - base);
            total += weight;
            float rest = weight - (TYPE == KV_BF16 ? f32_of_bf16(bf16_of_f32(weight)) : f32_of_f16(f16_of_f32(weight)));
            weights[i] = turned_matrix(PAIR(weight, rest));
        }
        sum_slice(sum, weights, values);
    }

    __device__ __forceinline__ void leave(float (*sums)[HEAD], float2* scores) {
        u32 lane = threadIdx.x % 32, g = lane / 4, h = lane % 4;
#pragma unroll
        for (u32 far = 4; far < 32; far <<= 1) total += __shfl_xor_sync(FULL, total, far);
        if (h >= GROUP) return;
#pragma unroll
        for (u32 i = 0; i < HEAD / 16; i++) {
            sums[h][element_of(i, g)] = sum[i][0] + sum[i][1];
            sums[h][element_of(i, g + 8)] = sum[i][2] + sum[i][3];
        }
        if (g == 0) scores[h] = make_float2(base, total);
    }
};

/// Warps whose threads have all parts, four each, rounded up to a power of two. Where a block has so many
/// several times over, each of these sides tells its share of the peers.
static_assert(PARTS <= 4 * 32 * WARPS, "a block's threads have all parts");
#define TELLERS (PARTS <= 128 ? 1 : PARTS <= 256 ? 2 : PARTS <= 512 ? 4 : 8)

/// What the block's warps saw, to all blocks of the cluster.
DEVICE void tell_pieces(Shared& s, const Thread& t, Attending& a) {
    constexpr u32 SIDES = WARPS / TELLERS, EACH = TEAM / SIDES;
    u32 i = threadIdx.x % (32 * TELLERS) * 4, h = i / HEAD, first = threadIdx.x / (32 * TELLERS) * EACH;
    if (i >= PARTS) return;
    const u64* message = s.received + PIECES;
    float4 value = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float all = 0.0f, most = -INFINITE;
#pragma unroll
    for (u32 w = 0; w < WARPS; w++) most = fmaxf(most, a.of_warps[w][h].x);
#pragma unroll
    for (u32 w = 0; w < WARPS; w++) {
        float2 of_warp = a.of_warps[w][h];
        float keep = weight_of(of_warp.x, most);
        float4 sum = *(const float4*)&a.sums[w][h][i % HEAD];
        value.x += sum.x * keep; value.y += sum.y * keep; value.z += sum.z * keep; value.w += sum.w * keep;
        all += of_warp.y * keep;
    }
#pragma unroll
    for (u32 peer = first; peer < first + EACH; peer++) {
        tell_peer(&a.pieces[t.rank][i], peer, message, value);
        if (i % HEAD == 0) tell_peer(&a.of_blocks[t.rank][h], peer, message, make_float2(most, all));
    }
}

/// Waits for all copies that a warp began.
DEVICE void copies_done() {
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncwarp();
}
/// A warp goes through keys and values by turns, and has room for HALVES slices of them: in place of the one
/// that is done with comes the one so many behind it. By how many rounds that is later in place of keys, and
/// in place of values (`BEHIND_VALUES`), and whether it is the other of the two.
#define BEHIND_KEYS (HALVES / 2)
#define CHANGES (HALVES % 2)

/// Waits for the half that is read next. Called after each, whether there was one to fetch or not.
DEVICE void next_half_done() {
    asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.wait_group %0;" ::"n"(HALVES - 1) : "memory");
    __syncwarp();
}

/// Brings bytes of K or V near, a multiple of sixteen.
DEVICE void bring_near(const u8* at, u32 bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(at), "r"(bytes) : "memory");
#endif
}

/// Where a position of a head is kept.
DEVICE u64 slot_of(const Attend& p, u32 kv_head, u32 position, u32 page) {
    return ((u64)page * p.kv_heads + kv_head) * p.page_size + (position & (p.page_size - 1));
}

/// Brings what the block's warps see of each layer near, but for the first round, which is fetched right
/// away, and for what is behind NEAR_ROUNDS more, for which the device's cache has no room: while the other
/// team computes, when memory is idle. Called by a warp of its own.
#define NEAR_ROUNDS 4
DEVICE void bring_slices_near(const Layers& c, const Shared& s, u32 rank, u32 kv_head) {
    wait_for_previous();
    u32 lane = threadIdx.x % 32;
    if (lane >= 2 * WARPS) return;
#pragma unroll 1
    for (u32 step = 0; step < c.count * ROWS; step++) {
        while (s.steps < step) __nanosleep(100);
        const Attend& p = c.layers[step / ROWS].attend;
        u32 position = c.tokens[step % ROWS].position, begins = c.rows[step % ROWS].table;
        u32 start = first_seen(position, window_of(p)) / SLICE * SLICE, shift = __ffs(p.page_size) - 1;
        u32 from = start + (lane % WARPS * TEAM + rank) * SLICE, last = min(position, start + (1 + NEAR_ROUNDS) * ROUND - 1);
        const u32* table = p.tables + begins;
        const u8* cache = lane < WARPS ? p.keys : p.values;
#pragma unroll 1
        for (from += ROUND; from <= last; from += ROUND) {
            u64 slot = slot_of(p, kv_head, from, table[from >> shift]);
            bring_near(cache + slot * ROW_BYTES, SLICE * ROW_BYTES);
            if (SCALES > 0) bring_near(cache + p.slots * HEAD + slot * (HEAD / 16), SCALES);
        }
    }
}

/// Where slices begin that a cluster sees, and the first of a block's warp. They begin at a multiple of sixteen, and
/// the blocks' warps have them in turn.
DEVICE u32 slices_begin(const Attend& p, u32 position) { return first_seen(position, window_of(p)) / SLICE * SLICE; }
DEVICE u32 first_of_warp(const Thread& t) { return (threadIdx.x / 32 * TEAM + t.rank) * SLICE; }

/// Asks for the first slices that a warp sees in a layer of a row, whose room nobody uses any more.
DEVICE void fetch_first(Shared& s, Thread& t, const Attending& a, u32 layer, u32 row) {
    const Attend& p = s.layers[layer % 2].attend;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, shift = __ffs(p.page_size) - 1;
    if (t.paged_by != p.tables || t.paged_for != window_of(p)) {
        t.paged_by = p.tables;
        t.paged_for = window_of(p);
        // Of all rows at once, a lane for each slice.
        if (lane < ROWS * BEHIND_VALUES) {
            u32 of = lane / BEHIND_VALUES, i = lane % BEHIND_VALUES, last = s.positions[of];
            u32 at = slices_begin(p, last) + first_of_warp(t) + i * ROUND;
            s.pages[warp][of][i] = at <= last ? p.tables[s.tables[of] + (at >> shift)] : 0;
        }
        __syncwarp();
    }
    u32 position = s.positions[row], from = slices_begin(p, position) + first_of_warp(t), room = shared_address(a.slices[warp]);
    u64 policy = leaves_first();
#pragma unroll
    for (u32 i = 0; i < BEHIND_VALUES; i++)
        if (from + i * ROUND <= position) {
            u64 slot = slot_of(p, t.cluster, from + i * ROUND, s.pages[warp][row][i]);
            fetch_half(room + 2 * i * HALF, p.keys, slot, p.slots, policy);
            if (i < BEHIND_KEYS) fetch_half(room + (2 * i + 1) * HALF, p.values, slot, p.slots, policy);
        }
}

DEVICE void attend_layer(const Layers& c, Shared& s, Thread& t, const u8* ring, Attending& a) {
    const Layer& l = s.layers[t.layer % 2];
    const Attend& p = l.attend;
    u32 tid = threadIdx.x, lane = tid % 32, warp = tid / 32, kv_head = t.cluster, position = s.positions[t.row];
    load_ahead(c, t);

    // Everything that is there already on its way: norms, weights, and the first slices since the step before.
    float4 weights = own_four(c, l.attention_norm);
    float norm[HEAD / 32] = {};
    if (p.q_norm && warp <= GROUP)
#pragma unroll
        for (u32 i = 0; i < HEAD / 32; i++) norm[i] = warp < GROUP ? p.q_norm[lane + 32 * i] : p.k_norm[lane + 32 * i];
    u32 shift = __ffs(p.page_size) - 1, first = first_seen(position, window_of(p));
    const u32* table = p.tables + s.tables[t.row];
    u32 start = slices_begin(p, position), from = start + first_of_warp(t), newest = (position - start) / SLICE;
    u32 room = shared_address(a.slices[warp]);
    u64 policy = leaves_first();
    auto fetch_keys = [&](u32 to, u64 slot) { fetch_half(to, p.keys, slot, p.slots, policy); };
    auto fetch_values = [&](u32 to, u64 slot) { fetch_half(to, p.values, slot, p.slots, policy); };
    if (t.turned_by != p.frequencies) {
        t.turned_by = p.frequencies;
#pragma unroll 1
        for (u32 row = 0; row < ROWS; row++)
            for (u32 pair = tid; pair < p.rotary / 2; pair += 32 * WARPS) {
                float sine, cosine;
                sincosf(__fmul_rn((float)s.positions[row], p.frequencies[pair]), &sine, &cosine);
                s.turns[row][pair] = make_float2(sine * p.magnitude, cosine * p.magnitude);
            }
    }
    Weights held[HELD_FOR_HEADS];
    Share in(c.hidden, dealt(TILES_OF_HEADS, t.rank));
    Pitch rows = of_rows(c.qkv_pitch, c.hidden);
    hold_tiles(held, s, t.next, ring, rows, in);
    // Waits for values, and makes nothing of what is behind the newest position.
    auto settle = [&](u32 values, u32 from) {
        copies_done();
        if (position - from < SLICE) clear_behind(values, position - from + 1);
        __syncwarp();
    };
#pragma unroll
    for (u32 i = 0; i < BEHIND_KEYS; i++)
        if (from + i * ROUND <= position) settle(room + (2 * i + 1) * HALF, from + i * ROUND);

    keep_token(c, s, t.layer > 0 ? gather_token(c, s, t.row, c.fed, c.feeders) : own_four(c, c.x + t.row * c.hidden), weights);
    float factor = norm_factor(c, s, c.attention_eps);

    Sums sums = multiply_tiles(held, s, t, ring, rows, in, s.token);
    keep_ahead(s, t);
    tell_heads(c, s, t, l, sums, (c.hidden + PANEL - 1) / PANEL, in.tiles, factor);
    Share out(PARTS, dealt(c.hidden / TILE_ROWS, t.rank));
    Pitch slices = of_slices(kv_head * PARTS / 32, PARTS / 32);
    Weights meanwhile[HELD_MEANWHILE];
    hold_tiles(meanwhile, s, t.next, ring, slices, out);
    receive(s, t, HEADS, 4 * HEADS_OF_CLUSTER * HEAD);

    bool owner = newest % TEAM == t.rank;
    if (warp < GROUP || (warp < GROUP + 2 && owner)) {
        float values[HEAD / 32];
#pragma unroll
        for (u32 i = 0; i < HEAD / 32; i++) values[i] = s.heads[warp * HEAD + lane + 32 * i];
        float* to = a.turned[warp];
        if (warp <= GROUP) {
            turn_head(to, values, norm, a.sums[warp][0], p, s.turns[t.row]);
        } else {
#pragma unroll
            for (u32 i = 0; i < HEAD / 32; i++) to[lane + 32 * i] = values[i];
            __syncwarp();
        }
        // The newest position: to its page, and as it is there to its slice below.
        if (warp < GROUP) halve(a.queries[warp], to, cap_of(p) > 0.0f ? p.scale : p.scale * LOG2E);
        else
            keep_newest(warp == GROUP ? p.keys : p.values, slot_of(p, kv_head, position, table[position >> shift]), p.slots, to, a.newest[warp - GROUP], a.newest_scales[warp - GROUP]);
    }
    meet();

    Sight sight;
    sight.begin(a.queries);
    auto next_to = [&](u32 half) { return half + HALF == room + HALVES * HALF ? room : half + HALF; };
    u32 keys = room, values = room + HALF;
    u64 coming = CHANGES ? slot_of(p, kv_head, from + BEHIND_KEYS * ROUND, s.pages[warp][t.row][BEHIND_KEYS - 1 + CHANGES]) : 0;
#pragma unroll 1
    while (from <= position) {
        u32 far = from + BEHIND_VALUES * ROUND;
        u64 after = far <= position ? slot_of(p, kv_head, far, table[far >> shift]) : 0;
        if (!CHANGES) coming = after;
        if (position - from < SLICE) {
            put_newest(keys, values, position - from, a.newest, a.newest_scales);
            __syncwarp();
        }
        sight.see(keys, values, from, first, position, cap_of(p), [&] {
            if (from + BEHIND_KEYS * ROUND <= position) {
                __syncwarp();
                CHANGES ? fetch_values(keys, coming) : fetch_keys(keys, coming);
            }
            next_half_done();
        });
        from += ROUND;
        if (from > position) break;
        __syncwarp();
        if (far <= position) CHANGES ? fetch_keys(values, after) : fetch_values(values, after);
        next_half_done();
        coming = after;
        keys = next_to(values);
        values = next_to(keys);
        if (from >= start + BEHIND_KEYS * ROUND && position - from < SLICE) settle(values, from);
    }
    sight.leave(a.sums[warp], a.of_warps[warp]);
    meet();
    if (tid == 0) s.steps = t.layer * ROWS + t.row + 1;

    tell_pieces(s, t, a);
    bool is_last = t.row + 1 == ROWS;
    if (!is_last || t.layer + 1 < c.count) fetch_first(s, t, a, t.layer + is_last, is_last ? 0 : t.row + 1);
    receive(s, t, PIECES, 4 * TEAM * (PARTS + 2 * GROUP));
#pragma unroll 1
    for (u32 i = tid; i < PARTS; i += 32 * WARPS) {
        u32 h = i / HEAD;
        const float* sinks = sinks_of(p);
        float sink = sinks ? sinks[kv_head * GROUP + h] * LOG2E : -INFINITE, value = 0.0f, most = sink;
#pragma unroll
        for (u32 rank = 0; rank < TEAM; rank++) most = fmaxf(most, a.of_blocks[rank][h].x);
        float all = weight_of(sink, most);
#pragma unroll
        for (u32 rank = 0; rank < TEAM; rank++) {
            float2 of_block = a.of_blocks[rank][h];
            float keep = weight_of(of_block.x, most);
            value += a.pieces[rank][i] * keep;
            all += of_block.y * keep;
        }
        float2 scale = part_block(__fdividef(value, all), a.attended.bytes[i / 32][0]);
        if (SCALED && lane == 0) a.attended.scales[i / 32] = scale;
    }
    meet();

    sums = multiply_tiles(meanwhile, s, t, ring, slices, out, a.attended);
    tell_team(c, s, t, c.attended, sums, (PARTS + PANEL - 1) / PANEL, out.tiles, l.output_bias);
}
