//! Attention over pages `[pages, kv_heads, page_size, dim]`, in three ways: for any sizes, for rows
//! with one new token each, and for many new tokens on the tensor cores.

struct Attend {
    float* out;     // [n, q_count * v_dim]
    const float* q; // [n, q_stride] from q_offset on
    u8 *keys, *values;
    const Token* tokens;
    const Row* rows;
    const u32* tables;
    const uint2* tiles; // row and first token in it, FULL where there is none
    const float* sinks; // [q_count]
    const float *q_norm, *k_norm, *frequencies;
    u16* dense; // out as bf16 in its stead, [n, q_count * v_dim]
    float scale, cap, eps, magnitude;
    u32 n, q_stride, q_offset, q_count, kv_heads, dim, v_dim, type, page_size, window;
    u32 k_offset, v_offset, rotary, style;
};

DEVICE u32 first_seen(u32 position, u32 window) { return window && position + 1 > window ? position + 1 - window : 0; }
DEVICE float capped(float score, float cap) { return cap > 0.0f ? cap * tanhf(score / cap) : score; }

#ifdef ANY
// Elements of a head for each lane: heads of up to 640.
#define MOST 20
/// A warp for each token and head, position by position.
KERNEL void attend_any(const __grid_constant__ Attend p) {
    let_next_begin();
    wait_for_previous();
    u32 lane = threadIdx.x % 32, index = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (index >= p.n * p.q_count) return;
    u32 t = index / p.q_count, h = index % p.q_count, kv_head = h / (p.q_count / p.kv_heads);
    Token token = p.tokens[t];
    if (token.row == FULL) return;
    const u32* table = p.tables + p.rows[token.row].table;
    const float* q = p.q + (u64)t * p.q_stride + p.q_offset + h * p.dim;
    float query[MOST], sum[MOST];
    for (u32 i = 0; i < MOST; i++) {
        query[i] = lane + 32 * i < p.dim ? q[lane + 32 * i] : 0.0f;
        sum[i] = 0.0f;
    }
    float largest = p.sinks ? p.sinks[h] : -INFINITE, total = p.sinks ? 1.0f : 0.0f;
    for (u32 position = first_seen(token.position, p.window); position <= token.position; position++) {
        u64 slot = ((u64)table[position / p.page_size] * p.kv_heads + kv_head) * p.page_size + position % p.page_size;
        float score = 0.0f;
#pragma unroll
        for (u32 i = 0; i < MOST; i++)
            if (lane + 32 * i < p.dim) score += query[i] * load_element(p.keys, slot * p.dim + lane + 32 * i, p.type);
        score = capped(warp_sum(score) * p.scale, p.cap);
        float before = largest;
        largest = fmaxf(largest, score);
        float keep = expf(before - largest), weight = expf(score - largest);
        total = total * keep + weight;
#pragma unroll
        for (u32 i = 0; i < MOST; i++)
            if (lane + 32 * i < p.v_dim)
                sum[i] = sum[i] * keep + weight * load_element(p.values, slot * p.v_dim + lane + 32 * i, p.type);
    }
#pragma unroll
    for (u32 i = 0; i < MOST; i++) {
        if (lane + 32 * i >= p.v_dim) continue;
        u64 to = (u64)index * p.v_dim + lane + 32 * i;
        p.out[to] = sum[i] / total;
        if (p.dense) p.dense[to] = bf16_of_f32(sum[i] / total);
    }
}
#endif

#ifdef HEAD
// Compiled for HEAD elements of a head, GROUP query heads a block and TYPE of the cache.

DEVICE void widen(uint4 v, float* out) {
    u32 words[4] = {v.x, v.y, v.z, v.w};
    for (int i = 0; i < 4; i++) {
#if TYPE == KV_F16
        out[2 * i] = f32_of_f16(words[i] & 0xffff);
        out[2 * i + 1] = f32_of_f16(words[i] >> 16);
#else
        out[2 * i] = __uint_as_float(words[i] << 16);
        out[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
#endif
    }
}

#define LANES (HEAD / 8)
#define SIDE (32 / LANES)
#define UNROLL 4
#define STRIDE (SIDE * UNROLL)
#define ROW_WARPS 8
#define PARTS (GROUP * HEAD)

DEVICE u32 cluster_rank() {
    u32 rank = 0;
#if __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
    return rank;
}
DEVICE u32 cluster_size() {
    u32 size = 1;
#if __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
#endif
    return size;
}
DEVICE void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
#endif
}
DEVICE void cluster_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
}
/// Writes to another block of the cluster, at the place of ours.
DEVICE void send(float* ours, u32 rank, float value) {
#if __CUDA_ARCH__ >= 900
    u32 at;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"((u32)__cvta_generic_to_shared(ours)), "r"(rank));
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(at), "f"(value) : "memory");
#else
    *ours = value;
#endif
}

/// Norm where there is a weight, and rotation by known sines and cosines. Called by a warp, which has
/// the head's elements lane, lane + 32 and so on.
DEVICE void turn_known(float* out, float* own, const float* norm, float eps, const float2* turns, u32 rotary, u32 style) {
    u32 lane = threadIdx.x % 32;
    float squares = 0.0f;
#pragma unroll
    for (u32 i = 0; i < HEAD / 32; i++) squares += own[i] * own[i];
    float factor = norm ? rsqrtf(warp_sum(squares) / HEAD + eps) : 1.0f;
#pragma unroll
    for (u32 i = 0; i < HEAD / 32; i++) out[lane + 32 * i] = norm ? own[i] * factor * norm[lane + 32 * i] : own[i];
    __syncwarp();
    for (u32 pair = lane; pair < rotary / 2; pair += 32) {
        u32 first = style == 0 ? pair : 2 * pair, second = style == 0 ? pair + rotary / 2 : 2 * pair + 1;
        float2 turn = turns[pair];
        float x = out[first], y = out[second];
        out[first] = x * turn.y - y * turn.x;
        out[second] = x * turn.x + y * turn.y;
    }
    __syncwarp();
}

/// A number as the cache keeps it.
DEVICE float rounded(float x) { return TYPE == KV_F16 ? f32_of_f16(f16_of_f32(x)) : f32_of_bf16(bf16_of_f32(x)); }

/// Rows of one new token each: a cluster for a row and GROUP query heads of one KV head, whose blocks
/// split the positions; every KV element is loaded once for all of the heads. With `frequencies` the
/// rows are a fused projection that is turned, and whose K and V are stored, on the way; then all older
/// positions are in the cache before the launch behind has ended, and their loads start at once.
KERNEL __launch_bounds__(32 * ROW_WARPS, 2) void attend_rows(const __grid_constant__ Attend p) {
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
    auto load = [&](u32 base, uint4* k, uint4* v) {
#pragma unroll
        for (u32 u = 0; u < UNROLL; u++) {
            u32 at = base + u * SIDE + side;
            k[u] = v[u] = make_uint4(0, 0, 0, 0);
            if (at < end) {
                u64 from = (slot_of(at) * HEAD + column) * 2;
                k[u] = *(const uint4*)(p.keys + from);
                v[u] = *(const uint4*)(p.values + from);
            }
        }
    };
    uint4 k[UNROLL], v[UNROLL];
    u32 base = begin + warp * STRIDE;
    load(base, k, v);

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
        u64 slot = slot_of(position) * HEAD;
        for (u32 i = lane; i < HEAD; i += 32) {
            store_element(h == GROUP ? p.keys : p.values, slot + i, TYPE, to[i]);
            to[i] = rounded(to[i]);
        }
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
        uint4 next_k[UNROLL], next_v[UNROLL];
        load(base + ROW_WARPS * STRIDE, next_k, next_v);
        float score[UNROLL][GROUP];
#pragma unroll
        for (u32 u = 0; u < UNROLL; u++) {
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
            for (u32 u = 0; u < UNROLL; u++) largest[h] = fmaxf(largest[h], score[u][h]);
            // All of a lane's positions may lie behind the end.
            float keep = largest[h] == -INFINITE ? 1.0f : __expf(before - largest[h]);
            total[h] *= keep;
#pragma unroll
            for (u32 i = 0; i < 8; i++) sum[h][i] *= keep;
#pragma unroll
            for (u32 u = 0; u < UNROLL; u++) {
                score[u][h] = score[u][h] == -INFINITE ? 0.0f : __expf(score[u][h] - largest[h]);
                total[h] += score[u][h];
            }
        }
#pragma unroll
        for (u32 u = 0; u < UNROLL; u++) {
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

#define KEYS 64
#define QUERIES 64

/// Where 16 bytes of a tile's row lie in shared memory: swizzled, so that eight rows share no bank.
DEVICE u32 swizzled(u32 row, u32 chunk) { return row * HEAD * 2 + ((chunk ^ (row & 7)) * 16); }

DEVICE void load_matrices(u32* out, u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3]) : "r"(address) : "memory");
}
DEVICE void load_matrices_turned(u32* out, u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3]) : "r"(address) : "memory");
}
#if TYPE == KV_F16
#define PAIR f16_pair
#else
#define PAIR bf16_pair
#endif
DEVICE void multiply(float* c, const u32* a, u32 b0, u32 b1) {
#if TYPE == KV_F16
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#endif
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Starts the copy of KEYS positions' K or V of one head. What lies before the first that is seen or
/// behind the last is zero; it may have no page.
DEVICE void fetch_tile(u32 to, const u8* cache, const u32* table, const Attend& p, u32 kv_head, u32 first, u32 begin, u32 end) {
    for (u32 i = threadIdx.x; i < KEYS * (HEAD / 8); i += blockDim.x) {
        u32 row = i / (HEAD / 8), chunk = i % (HEAD / 8), position = first + row;
        bool there = begin <= position && position < end;
        u32 at = there ? position : end - 1;
        u64 slot = ((u64)table[at / p.page_size] * p.kv_heads + kv_head) * p.page_size + at % p.page_size;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to + swizzled(row, chunk)),
                     "l"(cache + (slot * HEAD + chunk * 8) * 2), "r"(there ? 16 : 0) : "memory");
    }
}

/// Many new tokens of a row: a block for 64 of them and a head, four warps of 16 queries, tiles of 64
/// positions, softmax on the way (Dao 2023, arXiv:2307.08691).
KERNEL __launch_bounds__(128) void attend_tiles(const __grid_constant__ Attend p) {
    extern __shared__ __align__(128) u8 memory[];
    let_next_begin();
    wait_for_previous();
    uint2 tile = p.tiles[blockIdx.x];
    if (tile.x == FULL) return;
    Row row = p.rows[tile.x];
    const u32* table = p.tables + row.table;
    u32 head = blockIdx.y, kv_head = head / (p.q_count / p.kv_heads);
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    u32 count = row.len - tile.y < QUERIES ? row.len - tile.y : QUERIES;
    u32 position0 = row.cached + tile.y, end = position0 + count;
    u32 begin = first_seen(position0, p.window), first = begin / KEYS * KEYS;
    u32 keys = (u32)__cvta_generic_to_shared(memory), values = keys + 2 * KEYS * HEAD * 2;

    fetch_tile(keys, p.keys, table, p, kv_head, first, begin, end);
    fetch_tile(values, p.values, table, p, kv_head, first, begin, end);
    asm volatile("cp.async.commit_group;" ::: "memory");

    // Queries g and g + 8 of this warp, scaled for powers of two.
    const float log2e = 1.4426950408889634f;
    float factor = p.cap > 0.0f ? p.scale : p.scale * log2e;
    u32 q[HEAD / 16][4];
    u32 here[2] = {warp * 16 + g, warp * 16 + g + 8};
#pragma unroll
    for (u32 step = 0; step < HEAD / 16; step++)
#pragma unroll
        for (u32 r = 0; r < 4; r++) {
            u32 query = here[r % 2], column = step * 16 + 2 * t + (r / 2) * 8;
            float2 v = make_float2(0.0f, 0.0f);
            if (query < count)
                v = *(const float2*)(p.q + (u64)(row.start + tile.y + query) * p.q_stride + p.q_offset + head * HEAD + column);
            q[step][r] = PAIR(v.x * factor, v.y * factor);
        }
    float sum[HEAD / 8][4], largest[2] = {-INFINITE, -INFINITE}, total[2] = {0.0f, 0.0f};
#pragma unroll
    for (u32 i = 0; i < HEAD / 8; i++) sum[i][0] = sum[i][1] = sum[i][2] = sum[i][3] = 0.0f;

    u32 buffer = 0;
    for (u32 at = first; at < end; at += KEYS, buffer ^= 1) {
        u32 k_at = keys + buffer * KEYS * HEAD * 2, v_at = values + buffer * KEYS * HEAD * 2;
        if (at + KEYS < end) {
            fetch_tile(keys + (buffer ^ 1) * KEYS * HEAD * 2, p.keys, table, p, kv_head, at + KEYS, begin, end);
            fetch_tile(values + (buffer ^ 1) * KEYS * HEAD * 2, p.values, table, p, kv_head, at + KEYS, begin, end);
        }
        asm volatile("cp.async.commit_group;\ncp.async.wait_group 1;" ::: "memory");
        __syncthreads();

        float score[KEYS / 8][4];
#pragma unroll
        for (u32 i = 0; i < KEYS / 8; i++) score[i][0] = score[i][1] = score[i][2] = score[i][3] = 0.0f;
#pragma unroll
        for (u32 step = 0; step < HEAD / 16; step++)
#pragma unroll
            for (u32 i = 0; i < KEYS / 16; i++) {
                u32 b[4];
                load_matrices(b, k_at + swizzled(i * 16 + (lane & 7) + (lane / 16) * 8, step * 2 + (lane / 8) % 2));
                multiply(score[2 * i], q[step], b[0], b[1]);
                multiply(score[2 * i + 1], q[step], b[2], b[3]);
            }
        bool edge = at + KEYS > position0 || p.window || p.cap > 0.0f;
        if (edge)
#pragma unroll
            for (u32 i = 0; i < KEYS / 8; i++)
#pragma unroll
                for (u32 e = 0; e < 4; e++) {
                    u32 position = at + i * 8 + 2 * t + e % 2, mine = position0 + here[e / 2];
                    if (p.cap > 0.0f) score[i][e] = capped(score[i][e], p.cap) * log2e;
                    if (position > mine || position < first_seen(mine, p.window)) score[i][e] = -INFINITE;
                }
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            float most = largest[half];
#pragma unroll
            for (u32 i = 0; i < KEYS / 8; i++) most = fmaxf(most, fmaxf(score[i][2 * half], score[i][2 * half + 1]));
            most = fmaxf(most, __shfl_xor_sync(FULL, most, 1));
            most = fmaxf(most, __shfl_xor_sync(FULL, most, 2));
            float base = most == -INFINITE ? 0.0f : most;
            float keep = exp2f(largest[half] - base);
            largest[half] = most;
            total[half] *= keep;
#pragma unroll
            for (u32 i = 0; i < HEAD / 8; i++) { sum[i][2 * half] *= keep; sum[i][2 * half + 1] *= keep; }
#pragma unroll
            for (u32 i = 0; i < KEYS / 8; i++)
#pragma unroll
                for (u32 e = 0; e < 2; e++) {
                    score[i][2 * half + e] = exp2f(score[i][2 * half + e] - base);
                    total[half] += score[i][2 * half + e];
                }
        }
#pragma unroll
        for (u32 step = 0; step < KEYS / 16; step++) {
            u32 a[4] = {PAIR(score[2 * step][0], score[2 * step][1]), PAIR(score[2 * step][2], score[2 * step][3]),
                        PAIR(score[2 * step + 1][0], score[2 * step + 1][1]), PAIR(score[2 * step + 1][2], score[2 * step + 1][3])};
#pragma unroll
            for (u32 i = 0; i < HEAD / 16; i++) {
                u32 b[4];
                load_matrices_turned(b, v_at + swizzled(step * 16 + (lane & 7) + (lane / 8) % 2 * 8, i * 2 + lane / 16));
                multiply(sum[2 * i], a, b[0], b[1]);
                multiply(sum[2 * i + 1], a, b[2], b[3]);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        total[half] += __shfl_xor_sync(FULL, total[half], 1);
        total[half] += __shfl_xor_sync(FULL, total[half], 2);
        float keep = 1.0f;
        if (p.sinks) {
            // The sink may be the largest of all.
            float sink = p.sinks[head] * log2e, most = fmaxf(sink, largest[half]);
            keep = exp2f(largest[half] - most);
            total[half] = total[half] * keep + exp2f(sink - most);
        }
        if (here[half] >= count) continue;
        float inverse = keep / total[half];
        u64 to = ((u64)(row.start + tile.y + here[half]) * p.q_count + head) * HEAD + 2 * t;
#pragma unroll
        for (u32 i = 0; i < HEAD / 8; i++) {
            float x = sum[i][2 * half] * inverse, y = sum[i][2 * half + 1] * inverse;
            if (p.dense) *(u32*)(p.dense + to + i * 8) = bf16_pair(x, y);
            else *(float2*)(p.out + to + i * 8) = make_float2(x, y);
        }
    }
}
#endif
