//! The first half of a layer: norm, Q, K and V, attention and its projection, for the query heads of one
//! KV head in each cluster, so that nothing of it but the projection's parts leaves a cluster. Must not
//! know the other team.
//!
//! Bytes: a cluster's share of the weights, K and V of the positions that are seen.

/// What the warps of a block found, and then its cluster's blocks.
struct Attending {
    float queries[GROUP][HEAD], newest[2][HEAD];
    float sums[WARPS][HEAD];
    float attended[(PARTS + PANEL - 1) / PANEL * PANEL];
    float pieces[TEAM][PARTS];
    float largest[TEAM][GROUP], totals[TEAM][GROUP];
    float largest_of[WARPS], total_of[WARPS];
};

/// Tiles of a cluster's Q, K and V, and the row of the matrix where one begins.
#define TILES_OF_HEADS (HEADS_OF_CLUSTER * HEAD / TILE_ROWS)
DEVICE u32 row_of_heads(const Layers& c, u32 kv_head, u32 place) {
    if (place < GROUP * HEAD) return c.q_offset + kv_head * GROUP * HEAD + place;
    place -= GROUP * HEAD;
    return place < HEAD ? c.k_offset + kv_head * HEAD + place : c.v_offset + kv_head * HEAD + place - HEAD;
}

DEVICE void attend_layer(const Layers& c, Shared& s, Thread& t, const u8* ring, Attending& a) {
    const Layer& l = s.layers[t.layer % 2];
    const Attend& p = l.attend;
    u32 tid = threadIdx.x, lane = tid % 32, warp = tid / 32, kv_head = t.cluster, position = t.position;
    if (tid < sizeof(Layer) / 8 && t.layer + 1 < c.count) t.ahead = ((const u64*)(c.layers + t.layer + 1))[tid];

    // Everything that is there already on its way: norms, then positions. Blocks of a cluster share them.
    float4 weights = norm_of_slice(c, t, l.attention_norm);
    float norm[HEAD / 32];
    if (p.q_norm && warp <= GROUP)
#pragma unroll
        for (u32 i = 0; i < HEAD / 32; i++) norm[i] = warp < GROUP ? p.q_norm[lane + 32 * i] : p.k_norm[lane + 32 * i];
    u32 shift = __ffs(p.page_size) - 1, first = first_seen(position, p.window);
    const u32* table = p.tables + t.table;
    u32 share = (position + TEAM - first) / TEAM;
    share = (share + STRIDE - 1) / STRIDE * STRIDE;
    u32 begin = first + t.rank * share, end = begin + share < position + 1 ? begin + share : position + 1;
    bool owner = begin <= position && position < end;
    if (owner) end = position;
    auto slot_of = [&](u32 at) { return ((u64)table[at >> shift] * p.kv_heads + kv_head) * p.page_size + (at & (p.page_size - 1)); };
    Eight k[TOGETHER], v[TOGETHER];
    u32 own_head = warp / OF_HEAD, base = begin + warp % OF_HEAD * STRIDE;
    // Those that would be of one head more than there are see nothing.
    u32 own_end = own_head < GROUP ? end : 0;
    load_positions(k, v, p, base, own_end, slot_of);
    if (t.turned_by != p.frequencies) {
        t.turned_by = p.frequencies;
        for (u32 pair = tid; pair < p.rotary / 2; pair += 32 * WARPS) {
            float sine, cosine;
            sincosf(__fmul_rn((float)position, p.frequencies[pair]), &sine, &cosine);
            s.turns[pair] = make_float2(sine * p.magnitude, cosine * p.magnitude);
        }
    }

    float4 own = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (t.layer > 0) own = gather_slice(c, s, t, c.fed, c.feeders, t.layer - 1);
    else if (4 * lane < c.hidden / TEAM) own = *(const float4*)(c.x + t.rank * (c.hidden / TEAM) + 4 * lane);
    share_token(c, s, t, own, weights);

    u32 tiles = dealt(TILES_OF_HEADS, t.rank), panels = (c.hidden + PANEL - 1) / PANEL;
    auto sums = multiply_tiles(s, t, ring, of_rows(c.qkv_pitch, c.hidden), tiles, s.normed, c.hidden);
    keep_ahead(s, t);
    float factor = norm_factor(c, s, c.attention_eps);
    for (u32 i = lane; i < tiles * TILE_ROWS; i += 32) {
        u32 place = (t.rank + i / TILE_ROWS * TEAM) * TILE_ROWS + i % TILE_ROWS;
        float y = sum_of(sums, i, panels) * factor;
        if (l.qkv_bias) y += l.qkv_bias[row_of_heads(c, kv_head, place)];
        tell_peer(s.heads + place, warp, s.received + HEADS, y);
    }
    receive(s, t, HEADS, 4 * HEADS_OF_CLUSTER * HEAD);

    if (warp < GROUP || (warp < GROUP + 2 && owner)) {
        if (p.q_norm && warp <= GROUP)
#pragma unroll
            for (u32 i = 0; i < HEAD / 32; i++) s.norms[warp][lane + 32 * i] = norm[i];
        float values[HEAD / 32];
#pragma unroll
        for (u32 i = 0; i < HEAD / 32; i++) values[i] = s.heads[warp * HEAD + lane + 32 * i];
        float* to = warp < GROUP ? a.queries[warp] : a.newest[warp - GROUP];
        if (warp <= GROUP) {
            turn_known(to, values, p.q_norm ? s.norms[warp] : nullptr, p.eps, s.turns, p.rotary, p.style);
        } else {
#pragma unroll
            for (u32 i = 0; i < HEAD / 32; i++) to[lane + 32 * i] = values[i];
        }
        if (warp >= GROUP) {
            // The newest position: to its page, and as it is there to the sums below.
            store_head(warp == GROUP ? p.keys : p.values, slot_of(position) * HEAD, TYPE, p.slots * HEAD, to, HEAD);
            for (u32 i = lane; i < HEAD; i += 32) to[i] = rounded(to[i]);
        }
    }
    meet();

    Seen<1> seen;
    seen.begin(&a.queries[own_head < GROUP ? own_head : 0], p.scale);
#pragma unroll 1
    for (; base < own_end; base += OF_HEAD * STRIDE) {
        Eight next_k[TOGETHER], next_v[TOGETHER];
        load_positions(next_k, next_v, p, base + OF_HEAD * STRIDE, own_end, slot_of);
        seen.see(k, v, base, own_end, p.cap);
#pragma unroll
        for (u32 u = 0; u < TOGETHER; u++) { k[u] = next_k[u]; v[u] = next_v[u]; }
    }
    if (owner && warp % OF_HEAD == 0 && own_head < GROUP) seen.see_newest(a.newest, p.cap);
    __syncwarp();
    seen.leave(&a.sums[warp], &a.largest_of[warp], &a.total_of[warp]);
    meet();

    // What the warps of a head saw, to all blocks of the cluster.
    const u64* message = s.received + PIECES;
#pragma unroll 1
    for (u32 i = tid; i < PARTS; i += 32 * WARPS) {
        float value = 0.0f, all = 0.0f, most = -INFINITE;
        u32 first_warp = i / HEAD * OF_HEAD;
#pragma unroll
        for (u32 w = 0; w < OF_HEAD; w++) most = fmaxf(most, a.largest_of[first_warp + w]);
#pragma unroll
        for (u32 w = 0; w < OF_HEAD; w++) {
            float keep = most == -INFINITE ? 0.0f : __expf(a.largest_of[first_warp + w] - most);
            value += a.sums[first_warp + w][i % HEAD] * keep;
            all += a.total_of[first_warp + w] * keep;
        }
#pragma unroll
        for (u32 peer = 0; peer < TEAM; peer++) {
            tell_peer(&a.pieces[t.rank][i], peer, message, value);
            if (i % HEAD > 0) continue;
            tell_peer(&a.largest[t.rank][i / HEAD], peer, message, most);
            tell_peer(&a.totals[t.rank][i / HEAD], peer, message, all);
        }
    }
    receive(s, t, PIECES, 4 * TEAM * (PARTS + 2 * GROUP));
#pragma unroll 1
    for (u32 i = tid; i < PARTS; i += 32 * WARPS) {
        u32 h = i / HEAD;
        float value = 0.0f, all = 0.0f, most = p.sinks ? p.sinks[kv_head * GROUP + h] : -INFINITE;
        float sink = most;
#pragma unroll
        for (u32 from = 0; from < TEAM; from++) most = fmaxf(most, a.largest[from][h]);
        if (p.sinks) all = __expf(sink - most);
#pragma unroll
        for (u32 from = 0; from < TEAM; from++) {
            float keep = a.largest[from][h] == -INFINITE ? 0.0f : __expf(a.largest[from][h] - most);
            value += a.pieces[from][i] * keep;
            all += a.totals[from][h] * keep;
        }
        a.attended[i] = __fdividef(value, all);
    }
    meet();

    tiles = dealt(c.hidden / TILE_ROWS, t.rank);
    sums = multiply_tiles(s, t, ring, of_slices(kv_head * PARTS / 32, PARTS / 32), tiles, a.attended, PARTS);
    tell_team(c, s, t, c.attended, c.kv_heads, sums, (PARTS + PANEL - 1) / PANEL, tiles, l.output_bias);
}
