//! Attention of rows with one new token each: a cluster of blocks for each row and KV head. Compiled
//! for GROUP query heads a block, TOGETHER loads of positions at once and what most models need (PLAIN) too.

#define STRIDE (SIDE * TOGETHER)
#define ROW_WARPS 8

/// Rows of one new token each: a cluster for a row and GROUP query heads of one KV head, whose blocks
/// split the positions; every KV element is loaded once for all of the heads. With `frequencies` the
/// rows are a fused projection that is turned, and whose K and V are stored, on the way; then all older
/// positions are in the cache before the launch behind has ended, and their loads start at once.
KERNEL __launch_bounds__(32 * ROW_WARPS, TOGETHER == 2 ? 3 : 2) void attend_rows(const __grid_constant__ Attend p) {
    __shared__ __align__(16) float queries[GROUP][HEAD], newest[2][HEAD];
    __shared__ float norms[2][HEAD];
    __shared__ float2 turns[HEAD / 2];
    __shared__ float largest_of[ROW_WARPS][GROUP], total_of[ROW_WARPS][GROUP];
    __shared__ float sums[ROW_WARPS][GROUP][HEAD];
    // What the blocks of the cluster send to the one that ends a slice of the result.
    __shared__ float sent[PARTS], sent_largest[8][GROUP], sent_total[8][GROUP];
    u32 rank = cluster_rank(), splits = cluster_size();
    if (splits > 1) cluster_arrive();
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 t = blockIdx.y, part = blockIdx.z;
    u32 kv_head = part % p.kv_heads, subgroup = part / p.kv_heads;
    u32 first_head = kv_head * (p.q_count / p.kv_heads) + subgroup * GROUP;
    let_next_begin();
    bool fused = p.frequencies != nullptr;
    if (!fused) wait_for_previous();

    // Single tokens are in the order of their rows.
    Token token = p.tokens[t];
    const u32* table = p.tables + p.rows[t].table;
    bool idle = token.row == FULL;
    u32 position = idle ? 0 : token.position, shift = __ffs(p.page_size) - 1;
    u32 first = first_seen(position, window_of(p));
    u32 share = (position + splits - first) / splits;
    share = (share + STRIDE - 1) / STRIDE * STRIDE;
    u32 begin = first + rank * share, end = begin + share < position + 1 ? begin + share : position + 1;
    bool owner = fused && begin <= position && position < end;
    if (owner) end = position;
    if (idle) end = begin;

    auto slot_of = [&](u32 at, u32) { return ((u64)table[at >> shift] * p.kv_heads + kv_head) * p.page_size + (at & (p.page_size - 1)); };
    Eight k[TOGETHER], v[TOGETHER];
    u32 base = begin + warp * STRIDE;
    load_positions(k, v, p, base, end, slot_of);
    u64 newest_slot = owner && !idle ? slot_of(position, 0) : 0;

    const float* row = p.q + (u64)t * p.q_stride;
    if (fused) {
        for (u32 pair = threadIdx.x; pair < p.rotary / 2; pair += 32 * ROW_WARPS) {
            float sine, cosine;
            sincosf(__fmul_rn((float)position, p.frequencies[pair]), &sine, &cosine);
            turns[pair] = make_float2(sine * p.magnitude, cosine * p.magnitude);
        }
        if (p.q_norm)
            for (u32 i = threadIdx.x; i < HEAD; i += 32 * ROW_WARPS) { norms[0][i] = p.q_norm[i]; norms[1][i] = p.k_norm[i]; }
        __syncthreads();
        wait_for_previous();
    }
    for (u32 h = warp; h < GROUP + 2; h += ROW_WARPS) {
        u32 from = h < GROUP ? p.q_offset + (first_head + h) * HEAD : h == GROUP ? p.k_offset + kv_head * HEAD : p.v_offset + kv_head * HEAD;
        if (h >= GROUP && (!owner || idle)) continue;
        float own[HEAD / 32];
#pragma unroll
        for (u32 i = 0; i < HEAD / 32; i++) own[i] = row[from + lane + 32 * i];
        float* to = h < GROUP ? queries[h] : newest[h - GROUP];
        if (fused && h <= GROUP) {
            turn_known(to, own, p.q_norm ? norms[h < GROUP ? 0 : 1] : nullptr, p.eps, turns, p.rotary, p.style);
        } else {
#pragma unroll
            for (u32 i = 0; i < HEAD / 32; i++) to[lane + 32 * i] = own[i];
        }
        if (h < GROUP) continue;
        // The newest position: to its page, and as it is there to the sums below.
        if (subgroup == 0) store_head(h == GROUP ? p.keys : p.values, newest_slot * HEAD, TYPE, p.slots * HEAD, to, HEAD);
        for (u32 i = lane; i < HEAD; i += 32) to[i] = rounded(to[i]);
    }
    __syncthreads();

    Seen<GROUP> seen;
    seen.begin(queries, p.scale);
    for (; base < end; base += ROW_WARPS * STRIDE) {
        Eight next_k[TOGETHER], next_v[TOGETHER];
        load_positions(next_k, next_v, p, base + ROW_WARPS * STRIDE, end, slot_of);
        seen.see(k, v, base, end, cap_of(p));
#pragma unroll
        for (u32 u = 0; u < TOGETHER; u++) { k[u] = next_k[u]; v[u] = next_v[u]; }
    }
    if (owner && !idle && warp == 0) seen.see_newest(newest, cap_of(p));
    __syncwarp();

    // The sides of a warp, then the warps of the block, then the blocks of the cluster.
    seen.leave(sums[warp], largest_of[warp], total_of[warp]);
    __syncthreads();
    if (splits > 1) cluster_wait();
    u32 slice = PARTS / splits;
    for (u32 i = threadIdx.x; i < PARTS; i += 32 * ROW_WARPS) {
        u32 h = i / HEAD;
        Gathered g = gather_warps<ROW_WARPS>(sums, largest_of, total_of, i);
        send(&sent[rank * slice + i % slice], i / slice, g.value);
        // One thread of each slice sends what all of it needs of each head that it has a part of.
        if (i % slice == 0 || i % HEAD == 0) {
            send(&sent_largest[rank][h], i / slice, g.most);
            send(&sent_total[rank][h], i / slice, g.all);
        }
    }
    if (splits > 1) { cluster_arrive(); cluster_wait(); }
    else __syncthreads();
    for (u32 i = threadIdx.x; i < slice; i += 32 * ROW_WARPS) {
        u32 part = rank * slice + i, h = part / HEAD, head = first_head + h;
        const float* sinks = sinks_of(p);
        float most = sinks ? sinks[head] : -INFINITE;
        for (u32 r = 0; r < splits; r++) most = fmaxf(most, sent_largest[r][h]);
        float all = sinks ? __expf(sinks[head] - most) : 0.0f, value = 0.0f;
        for (u32 r = 0; r < splits; r++) {
            float keep = sent_largest[r][h] == -INFINITE ? 0.0f : __expf(sent_largest[r][h] - most);
            all += sent_total[r][h] * keep;
            value += sent[r * slice + i] * keep;
        }
        u64 to = ((u64)t * p.q_count + head) * HEAD + part % HEAD;
        float y = idle ? 0.0f : value / all;
        if (p.dense) store_brain(p.dense + to, p.dense_apart, y);
        else p.out[to] = y;
    }
}
