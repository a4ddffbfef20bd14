//! Attention of rows with one new token each: a cluster of blocks for each row and KV head. Compiled
//! for GROUP query heads a block and TOGETHER loads of positions at once too.

/// Eight numbers of a head in the cache.
#if TYPE == KV_Q8_0
struct Eight { uint2 bytes; float scale; };
DEVICE Eight load_eight(const u8* cache, u64 at, u64 elements) {
    return {*(const uint2*)(cache + at), f32_of_f16(kv_scales(cache, elements)[at / 32])};
}
DEVICE void widen(const Eight& v, float* out) {
    u32 words[2] = {v.bytes.x ^ 0x80808080u, v.bytes.y ^ 0x80808080u};
    // 0x4b0000 before a byte makes 2^23 and so many more.
    for (int i = 0; i < 8; i++)
        out[i] = (__uint_as_float(__byte_perm(words[i / 4], 0x4b000000u, 0x7440 + i % 4)) - 8388736.0f) * v.scale;
}
#else
typedef uint4 Eight;
DEVICE Eight load_eight(const u8* cache, u64 at, u64) { return *(const uint4*)(cache + at * 2); }
DEVICE void widen(const Eight& v, float* out) { widen_eight<TYPE == KV_BF16>(v, out); }
#endif

#define LANES (HEAD / 8)
#define SIDE (32 / LANES)
#define STRIDE (SIDE * TOGETHER)
#define ROW_WARPS 8
#define PARTS (GROUP * HEAD)

/// A number of each lane as the cache keeps it.
DEVICE float rounded(float x) {
#if TYPE == KV_Q8_0
    u16 scale;
    int bytes = quantise(x, scale);
    return (float)bytes * f32_of_f16(scale);
#else
    return TYPE == KV_F16 ? f32_of_f16(f16_of_f32(x)) : f32_of_bf16(bf16_of_f32(x));
#endif
}

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
    u32 first = first_seen(position, p.window);
    u32 share = (position + splits - first) / splits;
    share = (share + STRIDE - 1) / STRIDE * STRIDE;
    u32 begin = first + rank * share, end = begin + share < position + 1 ? begin + share : position + 1;
    bool owner = fused && begin <= position && position < end;
    if (owner) end = position;
    if (idle) end = begin;

    u32 side = lane / LANES, column = lane % LANES * 8;
    auto slot_of = [&](u32 at) { return ((u64)table[at >> shift] * p.kv_heads + kv_head) * p.page_size + (at & (p.page_size - 1)); };
    auto load = [&](u32 base, Eight* k, Eight* v) {
#pragma unroll
        for (u32 u = 0; u < TOGETHER; u++) {
            u32 at = base + u * SIDE + side;
            k[u] = v[u] = Eight{};
            if (at < end) {
                u64 from = slot_of(at) * HEAD + column;
                k[u] = load_eight(p.keys, from, p.slots * HEAD);
                v[u] = load_eight(p.values, from, p.slots * HEAD);
            }
        }
    };
    Eight k[TOGETHER], v[TOGETHER];
    u32 base = begin + warp * STRIDE;
    load(base, k, v);
    u64 newest_slot = owner && !idle ? slot_of(position) : 0;

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

    float query[GROUP][8], sum[GROUP][8], largest[GROUP], total[GROUP];
#pragma unroll
    for (u32 h = 0; h < GROUP; h++) {
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            query[h][i] = queries[h][column + i] * p.scale;
            sum[h][i] = 0.0f;
        }
        largest[h] = -INFINITE;
        total[h] = 0.0f;
    }
    auto score_of = [&](u32 h, const float* key) {
        float s = 0.0f;
#pragma unroll
        for (u32 i = 0; i < 8; i++) s += query[h][i] * key[i];
#pragma unroll
        for (int step = LANES / 2; step > 0; step >>= 1) s += __shfl_xor_sync(FULL, s, step);
        return capped(s, p.cap);
    };
    for (; base < end; base += ROW_WARPS * STRIDE) {
        Eight next_k[TOGETHER], next_v[TOGETHER];
        load(base + ROW_WARPS * STRIDE, next_k, next_v);
        float score[TOGETHER][GROUP];
#pragma unroll
        for (u32 u = 0; u < TOGETHER; u++) {
            float key[8];
            widen(k[u], key);
#pragma unroll
            for (u32 h = 0; h < GROUP; h++) {
                float s = score_of(h, key);
                score[u][h] = base + u * SIDE + side < end ? s : -INFINITE;
            }
        }
#pragma unroll
        for (u32 h = 0; h < GROUP; h++) {
            float before = largest[h];
#pragma unroll
            for (u32 u = 0; u < TOGETHER; u++) largest[h] = fmaxf(largest[h], score[u][h]);
            // All of a lane's positions may lie behind the end.
            float keep = largest[h] == -INFINITE ? 1.0f : __expf(before - largest[h]);
            total[h] *= keep;
#pragma unroll
            for (u32 i = 0; i < 8; i++) sum[h][i] *= keep;
#pragma unroll
            for (u32 u = 0; u < TOGETHER; u++) {
                score[u][h] = score[u][h] == -INFINITE ? 0.0f : __expf(score[u][h] - largest[h]);
                total[h] += score[u][h];
            }
        }
#pragma unroll
        for (u32 u = 0; u < TOGETHER; u++) {
            float value[8];
            widen(v[u], value);
#pragma unroll
            for (u32 h = 0; h < GROUP; h++)
#pragma unroll
                for (u32 i = 0; i < 8; i++) sum[h][i] += score[u][h] * value[i];
            k[u] = next_k[u];
            v[u] = next_v[u];
        }
    }
    if (owner && !idle && warp == 0) {
#pragma unroll
        for (u32 h = 0; h < GROUP; h++) {
            float s = score_of(h, newest[0] + column);
            if (side > 0) continue;
            float before = largest[h];
            largest[h] = fmaxf(before, s);
            float keep = __expf(before - largest[h]), weight = __expf(s - largest[h]);
            total[h] = total[h] * keep + weight;
#pragma unroll
            for (u32 i = 0; i < 8; i++) sum[h][i] = sum[h][i] * keep + weight * newest[1][column + i];
        }
    }
    __syncwarp();

    // The sides of a warp, then the warps of the block, then the blocks of the cluster.
#pragma unroll
    for (u32 h = 0; h < GROUP; h++) {
        float most = largest[h];
#pragma unroll
        for (int step = LANES; step < 32; step <<= 1) most = fmaxf(most, __shfl_xor_sync(FULL, most, step));
        float keep = largest[h] == -INFINITE ? 0.0f : __expf(largest[h] - most);
        total[h] *= keep;
#pragma unroll
        for (int step = LANES; step < 32; step <<= 1) total[h] += __shfl_xor_sync(FULL, total[h], step);
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            sum[h][i] *= keep;
#pragma unroll
            for (int step = LANES; step < 32; step <<= 1) sum[h][i] += __shfl_xor_sync(FULL, sum[h][i], step);
            if (side == 0) sums[warp][h][column + i] = sum[h][i];
        }
        if (lane == 0) { largest_of[warp][h] = most; total_of[warp][h] = total[h]; }
    }
    __syncthreads();
    if (splits > 1) cluster_wait();
    u32 slice = PARTS / splits;
    for (u32 i = threadIdx.x; i < PARTS; i += 32 * ROW_WARPS) {
        u32 h = i / HEAD;
        float most = -INFINITE, all = 0.0f, value = 0.0f;
#pragma unroll
        for (u32 w = 0; w < ROW_WARPS; w++) most = fmaxf(most, largest_of[w][h]);
#pragma unroll
        for (u32 w = 0; w < ROW_WARPS; w++) {
            float keep = largest_of[w][h] == -INFINITE ? 0.0f : __expf(largest_of[w][h] - most);
            all += total_of[w][h] * keep;
            value += sums[w][h][i % HEAD] * keep;
        }
        send(&sent[rank * slice + i % slice], i / slice, value);
        // One thread of each slice sends what all of it needs of each head that it has a part of.
        if (i % slice == 0 || i % HEAD == 0) {
            send(&sent_largest[rank][h], i / slice, most);
            send(&sent_total[rank][h], i / slice, all);
        }
    }
    if (splits > 1) { cluster_arrive(); cluster_wait(); }
    else __syncthreads();
    for (u32 i = threadIdx.x; i < slice; i += 32 * ROW_WARPS) {
        u32 part = rank * slice + i, h = part / HEAD, head = first_head + h;
        float most = p.sinks ? p.sinks[head] : -INFINITE;
        for (u32 r = 0; r < splits; r++) most = fmaxf(most, sent_largest[r][h]);
        float all = p.sinks ? __expf(p.sinks[head] - most) : 0.0f, value = 0.0f;
        for (u32 r = 0; r < splits; r++) {
            float keep = sent_largest[r][h] == -INFINITE ? 0.0f : __expf(sent_largest[r][h] - most);
            all += sent_total[r][h] * keep;
            value += sent[r * slice + i] * keep;
        }
        u64 to = ((u64)t * p.q_count + head) * HEAD + part % HEAD;
        float y = idle ? 0.0f : value / all;
        if (p.dense) p.dense[to] = bf16_of_f32(y);
        else p.out[to] = y;
    }
}
