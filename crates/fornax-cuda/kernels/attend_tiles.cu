//! Attention of many new tokens of a row, on the tensor cores. Compiled for HEAD and TYPE.

#define KEYS 64
#define QUERIES 64

/// Where 16 bytes of a tile's row lie in shared memory: swizzled, so that eight rows share no bank.
DEVICE u32 swizzled(u32 row, u32 chunk) { return row * HEAD * 2 + ((chunk ^ (row & 7)) * 16); }

/// Starts the copy of KEYS positions' K or V of one head. What lies before the first that is seen or
/// behind the last is zero; it may have no page.
DEVICE void fetch_tile(u32 to, const u8* cache, const u32* table, const Attend& p, u32 kv_head, u32 first, u32 begin, u32 end) {
    for (u32 i = threadIdx.x; i < KEYS * (HEAD / 8); i += blockDim.x) {
        u32 row = i / (HEAD / 8), chunk = i % (HEAD / 8), position = first + row;
        bool there = begin <= position && position < end;
        u32 at = there ? position : end - 1;
        u64 slot = ((u64)table[at / p.page_size] * p.kv_heads + kv_head) * p.page_size + at % p.page_size;
        u64 element = slot * HEAD + chunk * 8;
#if TYPE == KV_Q8_0
        uint2 bytes = make_uint2(0, 0);
        u32 scale = 0;
        if (there) {
            bytes = *(const uint2*)(cache + element);
            scale = 0x10001u * kv_scales(cache, p.slots * HEAD)[element / 32];
        }
        bytes.x ^= 0x80808080u;
        bytes.y ^= 0x80808080u;
        asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(to + swizzled(row, chunk)), "r"(scaled_bytes(bytes.x, 0x4140, scale)),
                     "r"(scaled_bytes(bytes.x, 0x4342, scale)), "r"(scaled_bytes(bytes.y, 0x4140, scale)),
                     "r"(scaled_bytes(bytes.y, 0x4342, scale)) : "memory");
#else
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to + swizzled(row, chunk)),
                     "l"(cache + element * 2), "r"(there ? 16 : 0) : "memory");
#endif
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
