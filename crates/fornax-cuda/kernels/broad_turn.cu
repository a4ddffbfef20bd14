//! Q, K and V of many tokens as a product of `broad.cu`: heads are normed and turned where their sums are, queries left in
//! 16 bits as attention multiplies them, keys and values on their pages. HEAD elements a head, TYPE of the cache.
//!
//! A thread has numbers of two tokens: 2 i and 2 i + 1 of every eight of a head, so both of every pair that turns, and a
//! fourth of each block of Q8_0.
//!
//! Bytes: a block leaves 64 KiB of a tile, or about 48 of keys and values in Q8_0's half. Beside the product each number of Q and K
//! takes some eight instructions, and each pair of a token's elements 16 for its sine and cosine in each tile.

#define HEADS (TOKENS / HEAD) // of a tile
#define OF_HEAD (HEAD / 8)    // of a thread's groups of four sums

struct Turned {
    Broad product;
    u16* queries; // [n, pitch], scaled
    u8 *keys, *values;
    const float *q_norm, *k_norm, *frequencies;
    const uint2* places; // [n]
    u64 slots;           // of the cache: [slots, HEAD]
    float eps, magnitude, query_scale;
    u32 pitch, q_count, kv_heads, page_size, style;
};

/// Finds for each token its position, and the slot of its first head on its page; FULL where it takes no part. They are
/// the same for all layers.
KERNEL void find_places(uint2* places, const Token* tokens, const Row* rows, const u32* tables, u32 n, u32 kv_heads, u32 page_size) {
    let_next_begin();
    wait_for_previous();
    u32 t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= n) return;
    Token token = tokens[t];
    u32 slot = FULL;
    if (token.row != FULL) slot = tables[rows[token.row].table + token.position / page_size] * kv_heads * page_size + token.position % page_size;
    places[t] = make_uint2(token.position, slot);
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/// What all tiles of a block read.
struct Turns { float frequencies[HEAD / 2], norms[2][HEAD]; };

/// The sine and cosine of so many radians, up to some 100,000 of them: less than 1e-6 off. Whole turns are left out in
/// two steps, of which the first is exact.
DEVICE float2 sine_cosine(float angle) {
    float turns = rintf(angle * 0.15915494f);
    float rest = fmaf(turns, 1.7484556e-7f, fmaf(turns, -6.2831855f, angle));
    return make_float2(__sinf(rest), __cosf(rest));
}
DEVICE void turn_pair(float& a, float& b, float2 turn) {
    float first = a;
    a = first * turn.y - b * turn.x;
    b = first * turn.x + b * turn.y;
}
/// The sum over the four lanes that have numbers of the same tokens, or the largest.
DEVICE float four_sum(float x) {
    x += __shfl_xor_sync(FULL, x, 1);
    return x + __shfl_xor_sync(FULL, x, 2);
}
DEVICE float four_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(FULL, x, 1));
    return fmaxf(x, __shfl_xor_sync(FULL, x, 2));
}
/// Numbers in signed bytes under the scale of a block with this largest magnitude, as `quantise_under` has them but
/// without its divisions, which call something, and calls keep tensor cores waiting.
struct Quantiser {
    float d, inverse;

    __device__ __forceinline__ Quantiser(float largest) {
        // Rounded as a division is: what the first product lacks is exact.
        const float part = 1.0f / 127.0f;
        float about = largest * part;
        d = fmaf(fmaf(-127.0f, about, largest), part, about);
        // Far below the least scale in 16 bits.
        float first = __fdividef(1.0f, d);
        inverse = d < 1e-20f ? 0.0f : fmaf(fmaf(-d, first, 1.0f), first, first);
    }
    __device__ __forceinline__ int of(float x) const { return (int)roundf(x * inverse); }
    __device__ __forceinline__ u16 scale() const { return f16_of_f32(d); }
};

struct TurnAndKeep {
    const Turned& p;
    const Turns& turns;
    u32 token;   // the warp's first one
    uint2 place; // of the lane's own

    __device__ __forceinline__ void begin(u32 first) {
        u32 own = first + threadIdx.x % OF_WARP;
        token = first;
        place = own < p.product.n ? p.places[own] : make_uint2(0, FULL);
    }
    /// Which head the first one of a tile is: queries are followed by keys, and these by values.
    __device__ __forceinline__ u32 head(u32 tile, u32 i) const { return tile * HEADS + i; }
    __device__ __forceinline__ u32 turned() const { return p.q_count + p.kv_heads; }

    __device__ __forceinline__ void end(float (&c)[TOKENS / 8][4], u8* memory, u32 tile) {
        if (tile * HEADS < turned()) {
            if (p.style == 0) turn<0>(c, tile);
            else turn<1>(c, tile);
        }
#pragma unroll
        for (u32 slab = 0; slab < TOKENS / SLAB; slab++) {
            u32 h = tile * HEADS + slab * SLAB / HEAD;
            if (h >= turned() + p.kv_heads) break;
#if TYPE == KV_Q8_0
            if (h >= p.q_count) {
                keep_bytes(c, memory, slab, h - p.q_count);
                continue;
            }
#endif
            keep_halves(c, memory, slab, h);
        }
    }

    /// Norms and turns the heads of a tile that are not values.
    template <u32 STYLE> __device__ __forceinline__ void turn(float (&c)[TOKENS / 8][4], u32 tile) {
        u32 lane = threadIdx.x % 32;
        float factors[HEADS][2];
#pragma unroll
        for (u32 h = 0; h < HEADS; h++) {
            float squares[2] = {0.0f, 0.0f};
#pragma unroll
            for (u32 i = 0; i < OF_HEAD; i++)
#pragma unroll
                for (u32 e = 0; e < 4; e++) squares[e / 2] += c[h * OF_HEAD + i][e] * c[h * OF_HEAD + i][e];
            float scale = head(tile, h) < p.q_count ? p.magnitude * p.query_scale : p.magnitude;
#pragma unroll
            for (u32 t = 0; t < 2; t++) factors[h][t] = p.q_norm ? scale * rsqrtf(four_sum(squares[t]) / HEAD + p.eps) : scale;
        }
        float positions[2];
#pragma unroll
        for (u32 t = 0; t < 2; t++) positions[t] = (float)__shfl_sync(FULL, place.x, lane / 4 + 8 * t);
        // Where this lane's first number of a group of eight is among all numbers of its head, and where what it turns with.
        auto turn_with = [&](u32 pair, u32 i, u32 e, u32 and_i, u32 and_e) {
            float frequency = turns.frequencies[pair];
            float2 by[2];
#pragma unroll
            for (u32 t = 0; t < 2; t++) by[t] = sine_cosine(__fmul_rn(positions[t], frequency));
#pragma unroll
            for (u32 h = 0; h < HEADS; h++) {
                if (head(tile, h) >= turned()) continue;
                const float* norm = turns.norms[head(tile, h) < p.q_count ? 0 : 1] + lane % 4 * 2;
#pragma unroll
                for (u32 t = 0; t < 2; t++) {
                    float &a = c[h * OF_HEAD + i][2 * t + e], &b = c[h * OF_HEAD + and_i][2 * t + and_e];
                    a *= factors[h][t] * norm[8 * i + e];
                    b *= factors[h][t] * norm[8 * and_i + and_e];
                    turn_pair(a, b, by[t]);
                }
            }
        };
#pragma unroll
        for (u32 i = 0; i < OF_HEAD; i++)
            if (STYLE == 1) turn_with(4 * i + lane % 4, i, 0, i, 1);
            else if (i < OF_HEAD / 2)
#pragma unroll
                for (u32 e = 0; e < 2; e++) turn_with(8 * i + lane % 4 * 2 + e, i, e, i + OF_HEAD / 2, e);
    }

    /// Writes 64 numbers of each token in 16 bits, 128 bytes of a row at once.
    __device__ __forceinline__ void keep_halves(const float (&c)[TOKENS / 8][4], u8* memory, u32 slab, u32 h) {
        u32 lane = threadIdx.x % 32, column = slab * SLAB % HEAD;
        auto pair = [](float a, float b) { return TYPE == KV_BF16 ? bf16_pair(a, b) : f16_pair(a, b); };
        __syncwarp();
#pragma unroll
        for (u32 i = 0; i < SLAB / 8; i++) {
            const float(&v)[4] = c[slab * SLAB / 8 + i];
            u8* to = memory + lane / 4 * 128 + (i ^ lane / 4) * 16 + lane % 4 * 4;
            *(u32*)to = pair(v[0], v[1]);
            *(u32*)(to + 8 * 128) = pair(v[2], v[3]);
        }
        __syncwarp();
        u8* cache = h < turned() ? p.keys : p.values;
        u32 own = h - p.q_count < p.kv_heads ? h - p.q_count : h - turned();
#pragma unroll
        for (u32 i = 0; i < OF_WARP / 4; i++) {
            u32 t = 4 * i + lane / 8, slot = __shfl_sync(FULL, place.y, t);
            uint4 chunk = *(const uint4*)(memory + t * 128 + (lane % 8 ^ t % 8) * 16);
            u16* to = h < p.q_count ? p.queries + (u64)(token + t) * p.pitch + h * HEAD : (u16*)cache + (u64)(slot + own * p.page_size) * HEAD;
            if (slot != FULL) *(uint4*)(to + column + lane % 8 * 8) = chunk;
        }
    }

#if TYPE == KV_Q8_0
    /// Writes 64 numbers of each token in bytes, and their two scales.
    __device__ __forceinline__ void keep_bytes(const float (&c)[TOKENS / 8][4], u8* memory, u32 slab, u32 h) {
        u32 lane = threadIdx.x % 32, column = slab * SLAB % HEAD;
        u8* cache = h < p.kv_heads ? p.keys : p.values;
        u32 own = h < p.kv_heads ? h : h - p.kv_heads;
        auto element = [&](u32 slot) { return (u64)(slot + own * p.page_size) * HEAD + column; };
        __syncwarp();
#pragma unroll
        for (u32 block = 0; block < SLAB / 32; block++)
#pragma unroll
            for (u32 t = 0; t < 2; t++) {
                const float(*v)[4] = c + slab * SLAB / 8 + block * 4;
                float largest = 0.0f;
#pragma unroll
                for (u32 i = 0; i < 4; i++) largest = fmaxf(largest, fmaxf(fabsf(v[i][2 * t]), fabsf(v[i][2 * t + 1])));
                Quantiser quantiser(four_max(largest));
                u32 row = lane / 4 + 8 * t, slot = __shfl_sync(FULL, place.y, row);
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    u32 chunk = block * 2 + i / 2 ^ row / 2 % 4, both = quantiser.of(v[i][2 * t]) & 0xff | quantiser.of(v[i][2 * t + 1]) << 8;
                    *(u16*)(memory + row * SLAB + chunk * 16 + i % 2 * 8 + lane % 4 * 2) = (u16)both;
                }
                if (lane % 4 == 0 && slot != FULL) kv_scales(cache, p.slots * HEAD)[element(slot) / 32 + block] = quantiser.scale();
            }
        __syncwarp();
#pragma unroll
        for (u32 i = 0; i < OF_WARP / 8; i++) {
            u32 t = 8 * i + lane / 4, slot = __shfl_sync(FULL, place.y, t);
            uint4 chunk = *(const uint4*)(memory + t * SLAB + (lane % 4 ^ t / 2 % 4) * 16);
            if (slot != FULL) *(uint4*)(cache + element(slot) + lane % 4 * 16) = chunk;
        }
    }
#endif
};
#endif

KERNEL __launch_bounds__((GROUPS + 1) * GROUP, 1) void turned(const __grid_constant__ Turned p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) u8 memory[];
    __shared__ __align__(16) Turns turns;
    for (u32 i = threadIdx.x; i < HEAD; i += blockDim.x) {
        if (i < HEAD / 2) turns.frequencies[i] = p.frequencies[i];
        turns.norms[0][i] = p.q_norm ? p.q_norm[i] : 1.0f;
        turns.norms[1][i] = p.q_norm ? p.k_norm[i] : 1.0f;
    }
    // The blocks of a cluster meet before anybody reads them.
    multiply_broad(p.product, memory, TurnAndKeep{p, turns, 0, make_uint2(0, FULL)});
#endif
}
