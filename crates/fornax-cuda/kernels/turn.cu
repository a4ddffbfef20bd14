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
    float query_scale; // of queries that become halves, 0 where they stay in single precision
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
#define BLOCKS 4            // on a multiprocessor

// So many numbers that lie side by side.
#if PAIRS == 2
typedef float2 Floats;
typedef u32 Brains;
DEVICE Floats widened(Brains v) { return f32_of_bf16_pair(v); }
#else
typedef float Floats;
typedef u16 Brains;
DEVICE Floats widened(Brains v) { return f32_of_bf16(v); }
#endif
DEVICE Floats widened(Floats v) { return v; }

/// A lane's numbers of a head: elements i and i + HEAD / 2 where `style` is 0, 2i and 2i + 1 where it is 1.
template <typename FEW> struct Loaded { FEW first, second; };
DEVICE u32 first_of(u32 style) { return style ? 2 * (threadIdx.x % 32) : threadIdx.x % 32; }
DEVICE u32 second_of(u32 style) { return style ? 2 * (threadIdx.x % 32) + 1 : 32 + threadIdx.x % 32; }
/// The same as pairs that turn together.
template <typename FEW> DEVICE void pairs_of(float2 (&v)[PAIRS], const Loaded<FEW>& loaded, u32 style) {
    Floats a = widened(loaded.first), b = widened(loaded.second);
#if PAIRS == 2
    v[0] = style ? a : make_float2(a.x, b.x);
    v[1] = style ? b : make_float2(a.y, b.y);
#else
    v[0] = make_float2(a, b);
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

/// The same to halves, as attention multiplies them.
DEVICE void store_pairs(u16* to, const float2 (&v)[PAIRS], u32 style) {
    u32 lane = threadIdx.x % 32;
    auto pair = [](float a, float b) { return TYPE == KV_BF16 ? bf16_pair(a, b) : f16_pair(a, b); };
#if PAIRS == 2
    *(u32*)(to + (style ? 4 * lane : 2 * lane)) = style ? pair(v[0].x, v[0].y) : pair(v[0].x, v[1].x);
    *(u32*)(to + (style ? 4 * lane + 2 : HEAD / 2 + 2 * lane)) = style ? pair(v[1].x, v[1].y) : pair(v[0].y, v[1].y);
#else
    u32 both = pair(v[0].x, v[0].y);
    if (style) *(u32*)(to + 2 * lane) = both;
    else { to[lane] = (u16)both; to[HEAD / 2 + lane] = (u16)(both >> 16); }
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
    store_pairs((u16*)cache + at, v, style);
#endif
}

/// A block for some tokens, a warp for some heads of each, whose elements stay in registers: every head
/// is read once and written once. Rows are of FEW together, in single precision or in brain floats from
/// the same beginning on, and so is Q where it is left: in single precision, or in halves for those who
/// would only round it. Of a token of Qwen3-0.6B 8 KiB are read in brain floats and 8 are written in 16
/// bits; 8,192 tokens at 4.4 TB/s take 30 µs.
///
/// No warp waits for an answer in its turn: heads are loaded while those before them are turned, and
/// each lane looks up one of the next 32 tokens, for which three answers are needed, one by one.
template <typename FEW> DEVICE void turn(const Turn& p) {
    constexpr bool BRAINS = sizeof(FEW) == 2 * PAIRS;
#if TYPE == KV_Q8_0
    __shared__ float heads[WARPS][HEAD];
    float* head = heads[threadIdx.x / 32];
#else
    float* head = nullptr;
#endif
    __shared__ __align__(16) float2 sines[WARPS][HEAD / 2]; // of as many tokens, a warp those of one
    let_next_begin();
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    // Q, K and V one behind the other, whatever lies between them.
    u32 q_end = p.q_count, k_end = q_end + p.kv_heads, all = k_end + p.kv_heads;
    u32 k_at = p.k_offset - q_end * HEAD, v_at = p.v_offset - k_end * HEAD;
    auto at = [&](u32 h) { return (h < q_end ? p.q_offset : h < k_end ? k_at : v_at) + h * HEAD; };
    auto style_of = [&](u32 h) { return h < k_end ? p.style : 1; };
    // A query in single precision comes to lie where later brain floats were: the last heads go first.
    // One in halves comes to lie where a query was that was read before it, or with it.
    bool narrow = p.query_scale != 0.0f, backwards = BRAINS && !narrow;
    u32 rounds = (all + WARPS * TOGETHER - 1) / (WARPS * TOGETHER);
    float frequencies[PAIRS];
    float2 norms[2][PAIRS];
#pragma unroll
    for (u32 e = 0; e < PAIRS; e++) frequencies[e] = p.frequencies[PAIRS * lane + e];
    if (p.q_norm) {
        const Floats *q = (const Floats*)p.q_norm, *k = (const Floats*)p.k_norm;
        pairs_of(norms[0], Loaded<Floats>{q[first_of(p.style)], q[second_of(p.style)]}, p.style);
        pairs_of(norms[1], Loaded<Floats>{k[first_of(p.style)], k[second_of(p.style)]}, p.style);
    }
    bool waited = false;
    for (u32 round = 0; round < rounds; round++) {
        u32 h0 = warp + (backwards ? rounds - 1 - round : round) * WARPS * TOGETHER;
        // Where this lane's numbers lie in a row; of heads that there are none of, those of the first.
        u32 from[TOGETHER], and_from[TOGETHER];
#pragma unroll
        for (u32 i = 0; i < TOGETHER; i++) {
            u32 h = h0 + i * WARPS < all ? h0 + i * WARPS : 0;
            from[i] = at(h) / PAIRS + first_of(style_of(h));
            and_from[i] = at(h) / PAIRS + second_of(style_of(h));
        }
        Loaded<FEW> ahead[TOGETHER];
        auto load = [&](u32 t) {
            const FEW* row = (const FEW*)(p.qkv + (u64)t * p.stride);
#pragma unroll
            for (u32 i = 0; i < TOGETHER; i++) ahead[i] = {row[from[i]], row[and_from[i]]};
        };
        for (u32 base = blockIdx.x; base < p.n; base += 32 * gridDim.x) {
            u32 mine = base + lane * gridDim.x, positions = 0, pages = FULL;
            if (mine < p.n && p.tokens[mine].row != FULL) {
                positions = p.tokens[mine].position;
                pages = p.tables[p.rows[p.tokens[mine].row].table + positions / p.page_size];
            }
            if (!waited) wait_for_previous();
            waited = true;
            load(base);
            for (u32 next = 0; next < 32 && base + next * gridDim.x < p.n; next++) {
                if (next % WARPS == 0) {
                    float position = (float)__shfl_sync(FULL, positions, next + warp);
                    __syncthreads();
#pragma unroll
                    for (u32 e = 0; e < PAIRS; e++) {
                        float2 turn;
                        sincosf(__fmul_rn(position, frequencies[e]), &turn.x, &turn.y);
                        sines[warp][PAIRS * lane + e] = make_float2(turn.x * p.magnitude, turn.y * p.magnitude);
                    }
                    __syncthreads();
                }
                u32 t = base + next * gridDim.x, position = __shfl_sync(FULL, positions, next), page = __shfl_sync(FULL, pages, next);
                float2 turns[PAIRS], v[TOGETHER][PAIRS];
#pragma unroll
                for (u32 e = 0; e < PAIRS; e++) turns[e] = sines[next % WARPS][PAIRS * lane + e];
#pragma unroll
                for (u32 i = 0; i < TOGETHER; i++) pairs_of(v[i], ahead[i], style_of(h0 + i * WARPS));
                if (next + 1 < 32 && t + gridDim.x < p.n) load(t + gridDim.x);
                if (BRAINS != narrow) __syncthreads();
                if (page == FULL) continue;
                float* row = p.qkv + (u64)t * p.stride;
                u64 slot = (u64)page * p.kv_heads * p.page_size + position % p.page_size;
#pragma unroll
                for (u32 i = 0; i < TOGETHER; i++) {
                    u32 h = h0 + i * WARPS;
                    if (h >= all) continue;
                    bool query = h < q_end, value = h >= k_end;
                    if (!value) {
                        float squares = 0.0f;
#pragma unroll
                        for (u32 e = 0; e < PAIRS; e++) squares += v[i][e].x * v[i][e].x + v[i][e].y * v[i][e].y;
                        float factor = p.q_norm ? rsqrtf(warp_sum(squares) / HEAD + p.eps) : 1.0f;
                        float scale = query && narrow ? p.query_scale : 1.0f;
#pragma unroll
                        for (u32 e = 0; e < PAIRS; e++) {
                            float2 norm = p.q_norm ? norms[query ? 0 : 1][e] : make_float2(1.0f, 1.0f);
                            float x = v[i][e].x * factor * norm.x, y = v[i][e].y * factor * norm.y;
                            v[i][e] = make_float2((x * turns[e].y - y * turns[e].x) * scale, (x * turns[e].x + y * turns[e].y) * scale);
                        }
                    }
                    if (query && narrow) store_pairs((u16*)row + at(h), v[i], p.style);
                    else if (query) store_pairs(row + at(h), v[i], p.style);
                    else {
                        u64 to = (slot + (value ? h - k_end : h - q_end) * p.page_size) * HEAD;
                        keep_pairs(value ? p.values : p.keys, to, p.slots * HEAD, v[i], style_of(h), head);
                    }
                }
            }
        }
    }
}

KERNEL __launch_bounds__(32 * WARPS, BLOCKS) void turn_rows(const __grid_constant__ Turn p) { turn<Floats>(p); }
KERNEL __launch_bounds__(32 * WARPS, BLOCKS) void turn_brains(const __grid_constant__ Turn p) { turn<Brains>(p); }
#endif
