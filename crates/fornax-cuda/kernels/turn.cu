//! Norm and rotation of Q and K, and K and V on their way to the cache: for any sizes, and for heads of
//! HEAD elements that turn as a whole into a cache of TYPE.

/// Where a token's head lies in a cache `[pages, kv_heads, page_size, dim]`.
DEVICE u64 place(const Token& token, const Row* rows, const u32* tables, u32 page_size, u32 kv_heads, u32 head, u32 dim) {
    u32 page = tables[rows[token.row].table + token.position / page_size];
    return (((u64)page * kv_heads + head) * page_size + token.position % page_size) * dim;
}

struct Turn {
    float* qkv;
    u8 *keys, *values;
    const float *q_norm, *k_norm, *frequencies;
    const Token* tokens;
    const Row* rows;
    const u32* tables;
    u64 slots; // of the cache: [slots, dim] and [slots, v_dim]
    float eps, magnitude;
    u32 n, stride, q_offset, q_count, dim, k_offset, v_offset, v_dim, kv_heads, type, page_size, rotary, style;
};

#ifndef HEAD
/// A head as it is kept in shared memory: normed where there is a weight, then turned. `style` 0 pairs
/// element i with i + rotary / 2, 1 pairs 2i with 2i + 1. Called by a warp.
DEVICE void turn_head(float* head, const float* x, u32 dim, const float* norm, float eps, const float2* turns, u32 rotary, u32 style) {
    u32 lane = threadIdx.x % 32;
    float squares = 0.0f;
    for (u32 i = lane; i < dim; i += 32) {
        float v = head[i] = x[i];
        squares += v * v;
    }
    float factor = norm ? rsqrtf(warp_sum(squares) / dim + eps) : 1.0f;
    auto normed = [&](u32 i) { return norm ? head[i] * factor * norm[i] : head[i]; };
    __syncwarp();
    for (u32 pair = lane; pair < rotary / 2; pair += 32) {
        u32 first = style == 0 ? pair : 2 * pair, second = style == 0 ? pair + rotary / 2 : 2 * pair + 1;
        float2 turn = turns[pair];
        float a = normed(first), b = normed(second);
        head[first] = a * turn.y - b * turn.x;
        head[second] = a * turn.x + b * turn.y;
    }
    for (u32 i = rotary + lane; i < dim; i += 32) head[i] = normed(i);
    __syncwarp();
}

/// Norm and rotation of Q in place, of K on its way to its page, and V to its page: a block for each
/// token, whose sines are made once, a warp for a head at a time. Every head is read once and written
/// once. Shared memory holds the turns, `float2 [rotary / 2]`, and a head for each warp.
KERNEL void qk_norm_rope_store(const __grid_constant__ Turn p) {
    extern __shared__ float2 turns[];
    let_next_begin();
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    Token token = p.tokens[blockIdx.x];
    bool idle = token.row == FULL;
    for (u32 pair = threadIdx.x; pair < p.rotary / 2 && !idle; pair += blockDim.x) {
        float sine, cosine;
        sincosf(__fmul_rn((float)token.position, p.frequencies[pair]), &sine, &cosine);
        turns[pair] = make_float2(sine * p.magnitude, cosine * p.magnitude);
    }
    __syncthreads();
    wait_for_previous();
    if (idle) return;
    float *row = p.qkv + (u64)blockIdx.x * p.stride, *turned = (float*)(turns + p.rotary / 2) + warp * p.dim;
    for (u32 h = warp; h < p.q_count + 2 * p.kv_heads; h += warps) {
        if (h < p.q_count) {
            float* at = row + p.q_offset + h * p.dim;
            turn_head(turned, at, p.dim, p.q_norm, p.eps, turns, p.rotary, p.style);
            for (u32 i = lane; i < p.dim; i += 32) at[i] = turned[i];
        } else if (h < p.q_count + p.kv_heads) {
            u32 head = h - p.q_count;
            turn_head(turned, row + p.k_offset + head * p.dim, p.dim, p.k_norm, p.eps, turns, p.rotary, p.style);
            u64 to = place(token, p.rows, p.tables, p.page_size, p.kv_heads, head, p.dim);
            store_head(p.keys, to, p.type, p.slots * p.dim, turned, p.dim);
        } else {
            u32 head = h - p.q_count - p.kv_heads;
            u64 to = place(token, p.rows, p.tables, p.page_size, p.kv_heads, head, p.v_dim);
            store_head(p.values, to, p.type, p.slots * p.v_dim, row + p.v_offset + head * p.v_dim, p.v_dim);
        }
        __syncwarp();
    }
}
#else

#define PAIRS (HEAD / 64)   // of elements that turn together, of each lane
#define WARPS 8
#define TOGETHER 4          // heads of a warp that are loaded at once

/// A lane's pairs of a head: element i with i + HEAD / 2 where `style` is 0, 2i with 2i + 1 where it is 1.
DEVICE void load_pairs(float2 (&v)[PAIRS], const float* x, u32 style) {
    u32 lane = threadIdx.x % 32;
#if PAIRS == 2
    float2 a = *(const float2*)(x + (style ? 4 * lane : 2 * lane)), b = *(const float2*)(x + (style ? 4 * lane + 2 : HEAD / 2 + 2 * lane));
    v[0] = style ? a : make_float2(a.x, b.x);
    v[1] = style ? b : make_float2(a.y, b.y);
#else
    v[0] = style ? *(const float2*)(x + 2 * lane) : make_float2(x[lane], x[HEAD / 2 + lane]);
#endif
}
/// The same of brain floats.
DEVICE void load_pairs(float2 (&v)[PAIRS], const u16* x, u32 style) {
    u32 lane = threadIdx.x % 32;
#if PAIRS == 2
    float2 a = f32_of_bf16_pair(*(const u32*)(x + (style ? 4 * lane : 2 * lane)));
    float2 b = f32_of_bf16_pair(*(const u32*)(x + (style ? 4 * lane + 2 : HEAD / 2 + 2 * lane)));
    v[0] = style ? a : make_float2(a.x, b.x);
    v[1] = style ? b : make_float2(a.y, b.y);
#else
    v[0] = style ? f32_of_bf16_pair(*(const u32*)(x + 2 * lane)) : make_float2(f32_of_bf16(x[lane]), f32_of_bf16(x[HEAD / 2 + lane]));
#endif
}
DEVICE void store_pairs(float* x, const float2 (&v)[PAIRS], u32 style) {
    u32 lane = threadIdx.x % 32;
#if PAIRS == 2
    *(float2*)(x + (style ? 4 * lane : 2 * lane)) = style ? v[0] : make_float2(v[0].x, v[1].x);
    *(float2*)(x + (style ? 4 * lane + 2 : HEAD / 2 + 2 * lane)) = style ? v[1] : make_float2(v[0].y, v[1].y);
#else
    if (style) *(float2*)(x + 2 * lane) = v[0];
    else { x[lane] = v[0].x; x[HEAD / 2 + lane] = v[0].y; }
#endif
}

/// The same to the cache; Q8_0 goes through shared memory, for its blocks are others.
DEVICE void keep_pairs(u8* cache, u64 at, u64 elements, const float2 (&v)[PAIRS], u32 style, float* head) {
#if TYPE == KV_Q8_0
    store_pairs(head, v, style);
    __syncwarp();
    store_head(cache, at, TYPE, elements, head, HEAD);
    __syncwarp();
#else
    u32 lane = threadIdx.x % 32;
    u16* to = (u16*)cache + at;
    auto pair = [](float a, float b) { return TYPE == KV_F16 ? f16_pair(a, b) : bf16_pair(a, b); };
#if PAIRS == 2
    *(u32*)(to + (style ? 4 * lane : 2 * lane)) = style ? pair(v[0].x, v[0].y) : pair(v[0].x, v[1].x);
    *(u32*)(to + (style ? 4 * lane + 2 : HEAD / 2 + 2 * lane)) = style ? pair(v[1].x, v[1].y) : pair(v[0].y, v[1].y);
#else
    u32 both = pair(v[0].x, v[0].y);
    if (style) *(u32*)(to + 2 * lane) = both;
    else { to[lane] = (u16)both; to[HEAD / 2 + lane] = (u16)(both >> 16); }
#endif
#endif
}

/// A block for each token, a warp for some heads, whose elements stay in registers: every head is read
/// once and written once, Q in single precision. Rows are in single precision too, and Q stays in place,
/// or in brain floats from the same beginning on. Of a token of Qwen3-0.6B those are 16 or 8 KiB, 8 KiB
/// and 4 KiB in 16 bits; 8,192 tokens at 4.4 TB/s take 52 or 37 µs.
template <typename NUMBER> DEVICE void turn(const Turn& p) {
    constexpr bool BRAINS = sizeof(NUMBER) == 2;
#if TYPE == KV_Q8_0
    __shared__ float heads[WARPS][HEAD];
    float* head = heads[threadIdx.x / 32];
#else
    float* head = nullptr;
#endif
    let_next_begin();
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, all = p.q_count + 2 * p.kv_heads;
    Token token = p.tokens[blockIdx.x];
    if (token.row == FULL) { wait_for_previous(); return; }
    u64 page = p.tables[p.rows[token.row].table + token.position / p.page_size];
    float2 turns[PAIRS], norms[2][PAIRS];
#pragma unroll
    for (u32 e = 0; e < PAIRS; e++) {
        sincosf(__fmul_rn((float)token.position, p.frequencies[PAIRS * lane + e]), &turns[e].x, &turns[e].y);
        turns[e] = make_float2(turns[e].x * p.magnitude, turns[e].y * p.magnitude);
    }
    if (p.q_norm) {
        load_pairs(norms[0], p.q_norm, p.style);
        load_pairs(norms[1], p.k_norm, p.style);
    }
    wait_for_previous();
    float* row = p.qkv + (u64)blockIdx.x * p.stride;
    // Q, K and V one behind the other, whatever lies between them.
    auto at = [&](u32 h) {
        if (h < p.q_count) return p.q_offset + h * HEAD;
        if (h < p.q_count + p.kv_heads) return p.k_offset + (h - p.q_count) * HEAD;
        return p.v_offset + (h - p.q_count - p.kv_heads) * HEAD;
    };
    // A query in single precision comes to lie where later brain floats were: the last heads go first.
    u32 rounds = (all + WARPS * TOGETHER - 1) / (WARPS * TOGETHER);
    for (u32 round = 0; round < rounds; round++) {
        u32 first = warp + (BRAINS ? rounds - 1 - round : round) * WARPS * TOGETHER;
        float2 v[TOGETHER][PAIRS];
#pragma unroll
        for (u32 i = 0; i < TOGETHER; i++) {
            u32 h = first + i * WARPS;
            if (h < all) load_pairs(v[i], (const NUMBER*)row + at(h), h < p.q_count + p.kv_heads ? p.style : 1);
        }
        if (BRAINS) __syncthreads();
#pragma unroll
        for (u32 i = 0; i < TOGETHER; i++) {
            u32 h = first + i * WARPS;
            if (h >= all) continue;
            bool query = h < p.q_count, value = h >= p.q_count + p.kv_heads;
            if (!value) {
                float squares = 0.0f;
#pragma unroll
                for (u32 e = 0; e < PAIRS; e++) squares += v[i][e].x * v[i][e].x + v[i][e].y * v[i][e].y;
                float factor = p.q_norm ? rsqrtf(warp_sum(squares) / HEAD + p.eps) : 1.0f;
#pragma unroll
                for (u32 e = 0; e < PAIRS; e++) {
                    float2 norm = p.q_norm ? norms[query ? 0 : 1][e] : make_float2(1.0f, 1.0f);
                    float x = v[i][e].x * factor * norm.x, y = v[i][e].y * factor * norm.y;
                    v[i][e] = make_float2(x * turns[e].y - y * turns[e].x, x * turns[e].x + y * turns[e].y);
                }
            }
            if (query) { store_pairs(row + at(h), v[i], p.style); continue; }
            u32 kv_head = value ? h - p.q_count - p.kv_heads : h - p.q_count;
            u64 to = ((page * p.kv_heads + kv_head) * p.page_size + token.position % p.page_size) * HEAD;
            keep_pairs(value ? p.values : p.keys, to, p.slots * HEAD, v[i], value ? 1 : p.style, head);
        }
    }
}

KERNEL __launch_bounds__(32 * WARPS, 5) void turn_rows(const __grid_constant__ Turn p) { turn<float>(p); }
KERNEL __launch_bounds__(32 * WARPS, 5) void turn_brains(const __grid_constant__ Turn p) { turn<u16>(p); }
#endif
