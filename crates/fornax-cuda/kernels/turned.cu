//! Q, K and V of many tokens as a product of `broad.cu`: heads are normed and turned where their sums are, queries left in
//! 16 bits as attention multiplies them, keys and values on their pages. HEAD elements a head, TYPE of the cache, and STYLE,
//! by which element i turns with i + HEAD / 2 where it is 0, and 2 i with 2 i + 1 where it is 1.
//!
//! A thread has numbers of two tokens: 2 i and 2 i + 1 of every eight of a head, so both of every pair that turns, and a
//! fourth of each block of Q8_0.
//!
//! Bytes: of a tile of heads of 128 a block gets 64 KiB of sines and cosines and leaves 64 KiB, or 32 of keys and values in
//! bytes. Turning takes no time that shows beside the product, but memory does to take what is written: 7 % of a prompt.

#define HEADS (TOKENS / HEAD) // of a tile
#define OF_HEAD (HEAD / 8)    // of a thread's groups of four sums

struct Turned {
    Broad product;
    u16* queries; // [n, pitch], scaled
    u8 *keys, *values;
    const float *q_norm, *k_norm;
    const float2* turns; // sines and cosines, with the magnitude: [n][HEAD / 2]
    const u32* slots_of; // [n]
    u64 slots;           // of the cache: [slots, HEAD]
    float eps, query_scale;
    u32 pitch, q_count, kv_heads, page_size;
};

/// Finds for each token the slot of its first head on its page, FULL where it takes no part, and how its pairs turn, a
/// thread for each pair. They are the same for all layers.
KERNEL void find_turns(float2* turns, u32* slots_of, const Token* tokens, const Row* rows, const u32* tables, const float* frequencies, float magnitude,
                       u32 n, u32 kv_heads, u32 page_size) {
    let_next_begin();
    wait_for_previous();
    u32 i = blockIdx.x * blockDim.x + threadIdx.x, pair = i % (HEAD / 2);
    if (i / (HEAD / 2) >= n) return;
    Token token = tokens[i / (HEAD / 2)];
    float sine, cosine;
    sincosf(__fmul_rn((float)token.position, frequencies[pair]), &sine, &cosine);
    turns[i] = make_float2(sine * magnitude, cosine * magnitude);
    if (pair > 0) return;
    u32 slot = FULL;
    if (token.row != FULL) slot = tables[rows[token.row].table + token.position / page_size] * kv_heads * page_size + token.position % page_size;
    slots_of[i / (HEAD / 2)] = slot;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
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
/// Numbers in signed bytes under the scale of a block with this largest magnitude, as `quantise_under` has them, but for
/// blocks that read as zeros either way, and without its divisions: they call something, and calls keep tensor cores
/// waiting.
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
    const float (&norms)[2][HEAD];
    u32 token, lane_slot;   // the warp's first one, and of this lane's own
    float2 by[2][HEAD / 8]; // how this lane's pairs turn

    __device__ __forceinline__ TurnAndKeep(const Turned& p, const float (&norms)[2][HEAD]) : p(p), norms(norms) {}
    /// The first element of this lane's pair i.
    __device__ __forceinline__ static u32 first_of(u32 i) { return STYLE == 0 ? i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2 : i * 8 + threadIdx.x % 4 * 2; }
    /// What it needs of its tokens comes while they are multiplied.
    __device__ __forceinline__ void begin(u32 first) {
        u32 lane = threadIdx.x % 32, last = p.product.n - 1;
        token = first;
        lane_slot = first + lane % OF_WARP <= last ? p.slots_of[first + lane % OF_WARP] : FULL;
#pragma unroll
        for (u32 t = 0; t < 2; t++) {
            const float2* turns = p.turns + (u64)min(first + lane / 4 + 8 * t, last) * (HEAD / 2);
#pragma unroll
            for (u32 i = 0; i < HEAD / 8; i++)
                if (STYLE == 1) by[t][i] = turns[first_of(i) / 2];
                else if (i % 2 == 0) {
                    float4 two = *(const float4*)(turns + first_of(i));
                    by[t][i] = make_float2(two.x, two.y);
                    by[t][i + 1] = make_float2(two.z, two.w);
                }
        }
    }
    /// The slot of one of the warp's tokens. Called by all of its lanes.
    __device__ __forceinline__ u32 slot_of(u32 t) const { return __shfl_sync(FULL, lane_slot, t); }
    /// Heads before those that do not turn: queries are followed by keys, and these by values.
    __device__ __forceinline__ u32 values_begin() const { return p.q_count + p.kv_heads; }

    __device__ __forceinline__ void end(float (&c)[TOKENS / 8][4], u8* memory, u32 tile) {
        if (tile * HEADS < values_begin()) turn(c, tile);
#pragma unroll
        for (u32 slab = 0; slab < TOKENS / SLAB; slab++) {
            u32 h = tile * HEADS + slab * SLAB / HEAD;
            if (h >= values_begin() + p.kv_heads) break;
#if TYPE == KV_Q8_0
            if (h >= p.q_count) {
                keep_bytes(c, memory, slab, h - p.q_count);
                continue;
            }
#endif
            keep_halves(c, memory, slab, h);
        }
    }

    __device__ __forceinline__ void leave() {}

    /// Norms and turns the heads of a tile that are not values.
    __device__ __forceinline__ void turn(float (&c)[TOKENS / 8][4], u32 tile) {
#pragma unroll
        for (u32 h = 0; h < HEADS; h++) {
            if (tile * HEADS + h >= values_begin()) break;
            bool query = tile * HEADS + h < p.q_count;
            const float* norm = norms[query ? 0 : 1];
            float(*own)[4] = c + h * OF_HEAD, squares[2] = {0.0f, 0.0f}, factors[2];
#pragma unroll
            for (u32 i = 0; i < OF_HEAD; i++)
#pragma unroll
                for (u32 e = 0; e < 4; e++) squares[e / 2] += own[i][e] * own[i][e];
#pragma unroll
            for (u32 t = 0; t < 2; t++)
                factors[t] = (query ? p.query_scale : 1.0f) * (p.q_norm ? rsqrtf(four_sum(squares[t]) / HEAD + p.eps) : 1.0f);
#pragma unroll
            for (u32 i = 0; i < HEAD / 8; i++) {
                // The same element of which group of sums, and the one it turns with.
                u32 group = STYLE == 0 ? i / 2 : i, e = STYLE == 0 ? i % 2 : 0;
                u32 and_group = STYLE == 0 ? group + OF_HEAD / 2 : group, and_e = STYLE == 0 ? e : 1;
                float weight = norm[first_of(i)], and_weight = norm[first_of(i) + (STYLE == 0 ? HEAD / 2 : 1)];
#pragma unroll
                for (u32 t = 0; t < 2; t++) {
                    float &a = own[group][2 * t + e], &b = own[and_group][2 * t + and_e];
                    a *= factors[t] * weight;
                    b *= factors[t] * and_weight;
                    turn_pair(a, b, by[t][i]);
                }
            }
        }
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
        u8* cache = h < values_begin() ? p.keys : p.values;
        u32 own = h - p.q_count < p.kv_heads ? h - p.q_count : h - values_begin();
#pragma unroll
        for (u32 i = 0; i < OF_WARP / 4; i++) {
            u32 t = 4 * i + lane / 8, slot = slot_of(t);
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
                u32 row = lane / 4 + 8 * t, slot = slot_of(row);
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
            u32 t = 8 * i + lane / 4, slot = slot_of(t);
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
    __shared__ float norms[2][HEAD];
    for (u32 i = threadIdx.x; i < HEAD; i += blockDim.x) {
        norms[0][i] = p.q_norm ? p.q_norm[i] : 1.0f;
        norms[1][i] = p.q_norm ? p.k_norm[i] : 1.0f;
    }
    // The blocks of a cluster meet before anybody reads them.
    multiply_broad(p.product, memory, TurnAndKeep(p, norms));
#endif
}
