//! Attention of one new token, as far as a warp can do it: its lanes share positions, LANES of them
//! each one, and what they have seen is brought together in shared memory. Compiled for GROUP query
//! heads, HEAD elements of each and TYPE of the cache. Must not know which blocks share a row.

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

/// Positions `base + u * SIDE + side` of a KV head, a lane's eight columns of each, zeros from `end` on. `slot_of` says
/// where the `u`th of these is.
template <u32 LOADS, class SlotOf>
DEVICE void load_positions(Eight (&k)[LOADS], Eight (&v)[LOADS], const Attend& p, u32 base, u32 end, SlotOf slot_of) {
    u32 lane = threadIdx.x % 32, side = lane / LANES, column = lane % LANES * 8;
#pragma unroll
    for (u32 u = 0; u < LOADS; u++) {
        u32 at = base + u * SIDE + side;
        k[u] = v[u] = Eight{};
        if (at < end) {
            u64 from = slot_of(at, u) * HEAD + column;
            k[u] = load_eight(p.keys, from, p.slots * HEAD);
            v[u] = load_eight(p.values, from, p.slots * HEAD);
        }
    }
}

/// What a lane has seen of COUNT query heads: of its positions and its eight columns.
template <u32 COUNT> struct Seen {
    float query[COUNT][8], sum[COUNT][8], largest[COUNT], total[COUNT];

    __device__ __forceinline__ void begin(const float (*queries)[HEAD], float scale) {
        u32 column = threadIdx.x % LANES * 8;
#pragma unroll
        for (u32 h = 0; h < COUNT; h++) {
#pragma unroll
            for (u32 i = 0; i < 8; i++) {
                query[h][i] = queries[h][column + i] * scale;
                sum[h][i] = 0.0f;
            }
            largest[h] = -INFINITE;
            total[h] = 0.0f;
        }
    }

    /// Of one position, in all of its lanes.
    __device__ __forceinline__ float score_of(u32 h, const float* key, float cap) {
        float s = 0.0f;
#pragma unroll
        for (u32 i = 0; i < 8; i++) s += query[h][i] * key[i];
#pragma unroll
        for (int step = LANES / 2; step > 0; step >>= 1) s += __shfl_xor_sync(FULL, s, step);
        return capped(s, cap);
    }

    /// The positions that `load_positions` loaded.
    template <u32 LOADS>
    __device__ __forceinline__ void see(const Eight (&k)[LOADS], const Eight (&v)[LOADS], u32 base, u32 end, float cap) {
        u32 side = threadIdx.x % 32 / LANES;
        float score[LOADS][COUNT];
#pragma unroll
        for (u32 u = 0; u < LOADS; u++) {
            float key[8];
            widen(k[u], key);
#pragma unroll
            for (u32 h = 0; h < COUNT; h++) {
                float s = score_of(h, key, cap);
                score[u][h] = base + u * SIDE + side < end ? s : -INFINITE;
            }
        }
#pragma unroll
        for (u32 h = 0; h < COUNT; h++) {
            float before = largest[h];
#pragma unroll
            for (u32 u = 0; u < LOADS; u++) largest[h] = fmaxf(largest[h], score[u][h]);
            // All of a lane's positions may lie behind the end.
            float keep = largest[h] == -INFINITE ? 1.0f : __expf(before - largest[h]);
            total[h] *= keep;
#pragma unroll
            for (u32 i = 0; i < 8; i++) sum[h][i] *= keep;
#pragma unroll
            for (u32 u = 0; u < LOADS; u++) {
                score[u][h] = score[u][h] == -INFINITE ? 0.0f : __expf(score[u][h] - largest[h]);
                total[h] += score[u][h];
            }
        }
#pragma unroll
        for (u32 u = 0; u < LOADS; u++) {
            float value[8];
            widen(v[u], value);
#pragma unroll
            for (u32 h = 0; h < COUNT; h++)
#pragma unroll
                for (u32 i = 0; i < 8; i++) sum[h][i] += score[u][h] * value[i];
        }
    }

    /// The newest position, which only the first side counts.
    __device__ __forceinline__ void see_newest(const float (*newest)[HEAD], float cap) {
        u32 column = threadIdx.x % LANES * 8;
#pragma unroll
        for (u32 h = 0; h < COUNT; h++) {
            float s = score_of(h, newest[0] + column, cap);
            if (threadIdx.x % 32 >= LANES) continue;
            float before = largest[h];
            largest[h] = fmaxf(before, s);
            float keep = __expf(before - largest[h]), weight = __expf(s - largest[h]);
            total[h] = total[h] * keep + weight;
#pragma unroll
            for (u32 i = 0; i < 8; i++) sum[h][i] = sum[h][i] * keep + weight * newest[1][column + i];
        }
    }

    /// Brings the sides of a warp together and leaves what they saw in its place.
    __device__ __forceinline__ void leave(float (*sums)[HEAD], float* largest_of, float* total_of) {
        u32 lane = threadIdx.x % 32, column = lane % LANES * 8;
#pragma unroll
        for (u32 h = 0; h < COUNT; h++) {
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
                if (lane < LANES) sums[h][column + i] = sum[h][i];
            }
            if (lane == 0) { largest_of[h] = most; total_of[h] = total[h]; }
        }
    }
};

/// What COUNT warps left, for one number of the result: its sum, what all of its head's positions
/// weigh, and the score that both are relative to.
struct Gathered { float value, all, most; };
template <u32 COUNT>
DEVICE Gathered gather_warps(const float (*sums)[GROUP][HEAD], const float (*largest_of)[GROUP], const float (*total_of)[GROUP], u32 i) {
    u32 h = i / HEAD;
    Gathered g = {0.0f, 0.0f, -INFINITE};
#pragma unroll
    for (u32 w = 0; w < COUNT; w++) g.most = fmaxf(g.most, largest_of[w][h]);
#pragma unroll
    for (u32 w = 0; w < COUNT; w++) {
        float keep = largest_of[w][h] == -INFINITE ? 0.0f : __expf(largest_of[w][h] - g.most);
        g.all += total_of[w][h] * keep;
        g.value += sums[w][h][i % HEAD] * keep;
    }
    return g;
}
