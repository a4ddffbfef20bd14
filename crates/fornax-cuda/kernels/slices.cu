//! Slices of K and V: how SLICE positions of a KV head come to shared memory, and what the tensor cores
//! make of them there for GROUP query heads. Compiled for HEAD elements of a head and TYPE of the cache;
//! knows nothing of which positions are whose.

#define SLICE 16 // positions of a warp in a step
#if TYPE == KV_Q8_0
#define ROW_BYTES HEAD
#define SCALES (SLICE * HEAD / 16) // bytes
#else
#define ROW_BYTES (2 * HEAD)
#define SCALES 0
#endif
#define CHUNKS (ROW_BYTES / 16)
#define TURNED ((CHUNKS < 8 ? CHUNKS : 8) - 1)
#define HALF (SLICE * ROW_BYTES + SCALES) // K or V of a step

/// How far a score, in powers of two, may lie above the base of the powers: the base follows the largest
/// score only where powers would grow beyond that, which needs a vote of a warp and seldom more.
#define ABOVE_BASE 6.0f

/// Where 16 bytes of a slice lie: no two of eight neighbours share a bank. Chunk c + 2i
/// of a row, for a c of 0 or 1, lies where an exclusive or of chunk c's place with 32i says.
DEVICE u32 at_chunk(u32 row, u32 chunk) { return row * ROW_BYTES + ((chunk ^ (row & TURNED)) * 16); }
/// The element of a head that is row `row` of sixteen of tile `tile` of the result.
DEVICE u32 element_of(u32 tile, u32 row) {
#if TYPE == KV_Q8_0
    return HEAD / 8 * (row % 8) + 2 * tile + row / 8;
#else
    return 16 * tile + row;
#endif
}

/// The first of the two elements of a query that `score_slice` wants as word `r` of a lane's tile `k`.
DEVICE u32 query_element(u32 lane, u32 k, u32 r) {
#if TYPE == KV_Q8_0
    return 16 * (k / 4 * 4 + lane % 4) + 4 * (k % 4) + 2 * r;
#else
    return 16 * k + 8 * r + 2 * (lane % 4);
#endif
}

/// Where that element stands when tiles' words lie one behind the other, as matrices of eight columns.
DEVICE u32 query_place(u32 element) {
#if TYPE == KV_Q8_0
    u32 chunk = element / 16;
    return 16 * (chunk / 4 * 4 + element % 16 / 4) + 8 * (element % 4 / 2) + 2 * (chunk % 4);
#else
    return element;
#endif
}

/// Turns a matrix of eight rows of eight halves.
DEVICE u32 turned_matrix(u32 pair) { asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(pair)); return pair; }
DEVICE u32 shared_half(u32 from) { u16 h; asm volatile("ld.shared.u16 %0, [%1];" : "=h"(h) : "r"(from) : "memory"); return h; }

/// Starts the copy of a slice of K or V from row `slot` of its cache on, which leaves the device's cache
/// before what is read again. Rows behind the newest position come too, whatever they hold: `clear_behind`
/// makes zeros of them. Called by a warp.
DEVICE void fetch_half(u32 to, const u8* cache, u64 slot, u64 slots, u64 policy) {
    u32 lane = threadIdx.x % 32, row = lane / CHUNKS, chunk = (lane % CHUNKS ^ row & TURNED) * 16;
    const u8* from = cache + slot * ROW_BYTES + lane * 16;
#pragma unroll
    for (u32 i = 0; i < SLICE * CHUNKS / 32; i++)
        // As `at_chunk` has it: a copy of all lanes is 512 bytes, whose rows begin at a power of two.
        copy16_under(policy, to + row * ROW_BYTES + i * 512 + (chunk ^ (i * (32 / CHUNKS) & TURNED) * 16), from + i * 512);
#if TYPE == KV_Q8_0
    if (lane < SCALES / 16)
        copy16_under(policy, to + SLICE * ROW_BYTES + lane * 16, cache + slots * HEAD + slot * (HEAD / 16) + lane * 16);
#endif
}

/// Zeros for values from row `first` of a slice on: nothing, under no weight, may be no number.
DEVICE void clear_behind(u32 values, u32 first) {
    u32 lane = threadIdx.x % 32;
    for (u32 i = first * CHUNKS + lane; i < SLICE * CHUNKS; i += 32)
        asm volatile("st.shared.v4.u32 [%0], {%1,%1,%1,%1};" ::"r"(values + at_chunk(i / CHUNKS, i % CHUNKS)), "r"(0) : "memory");
#if TYPE == KV_Q8_0
    for (u32 i = first * (HEAD / 32) + lane; i < SLICE * (HEAD / 32); i += 32)
        asm volatile("st.shared.u16 [%0], %1;" ::"r"(values + SLICE * ROW_BYTES + 2 * i), "h"((u16)0) : "memory");
#endif
}

#if TYPE == KV_Q8_0
/// As `quantise`, but all of a head's blocks at once: each step of one waits for the one before it.
DEVICE void quantise_head(const float (&x)[HEAD / 32], u8 (&quants)[HEAD / 32], u16 (&scales)[HEAD / 32]) {
    float largest[HEAD / 32];
#pragma unroll
    for (u32 i = 0; i < HEAD / 32; i++) largest[i] = fabsf(x[i]);
#pragma unroll
    for (u32 far = 16; far > 0; far >>= 1)
#pragma unroll
        for (u32 i = 0; i < HEAD / 32; i++) largest[i] = fmaxf(largest[i], __shfl_xor_sync(FULL, largest[i], far));
#pragma unroll
    for (u32 i = 0; i < HEAD / 32; i++) quants[i] = (u8)quantise_under(x[i], largest[i], scales[i]);
}
#endif

/// A head to its place in the cache, and to `kept` as it is there. Called by a warp.
DEVICE void keep_newest(u8* cache, u64 slot, u64 slots, const float* head, u8* kept, u16* scales) {
    u32 lane = threadIdx.x % 32;
    float own[HEAD / 32];
#pragma unroll
    for (u32 i = 0; i < HEAD / 32; i++) own[i] = head[lane + 32 * i];
#if TYPE == KV_Q8_0
    u8 quants[HEAD / 32];
    u16 scale[HEAD / 32];
    quantise_head(own, quants, scale);
#endif
#pragma unroll
    for (u32 i = 0; i < HEAD / 32; i++) {
        u64 at = slot * HEAD + lane + 32 * i;
#if TYPE == KV_Q8_0
        cache[at] = kept[lane + 32 * i] = quants[i];
        if (lane == 0) kv_scales(cache, slots * HEAD)[at / 32] = scales[i] = scale[i];
#else
        ((u16*)cache)[at] = ((u16*)kept)[lane + 32 * i] = TYPE == KV_F16 ? f16_of_f32(own[i]) : bf16_of_f32(own[i]);
#endif
    }
}

/// What was kept of the newest key and value to row `row` of their slices, which were copied before they
/// were in the cache.
DEVICE void put_newest(u32 keys, u32 values, u32 row, const u8 (*newest)[ROW_BYTES], const u16 (*scales)[HEAD / 32]) {
    u32 lane = threadIdx.x % 32, which = lane / CHUNKS;
    if (lane < 2 * CHUNKS) {
        uint4 v = *(const uint4*)(newest[which] + lane % CHUNKS * 16);
        u32 to = (which ? values : keys) + at_chunk(row, lane % CHUNKS);
        asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
    }
#if TYPE == KV_Q8_0
    if (lane < 2 * (HEAD / 32)) {
        which = lane / (HEAD / 32);
        u32 to = (which ? values : keys) + SLICE * ROW_BYTES + row * (HEAD / 16) + lane % (HEAD / 32) * 2;
        asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"(scales[which][lane % (HEAD / 32)]) : "memory");
    }
#endif
}

/// Scores of a slice: of positions g and g + 8, heads 2t and 2t + 1 each. Two sums in turn, for each
/// waits for itself.
DEVICE void score_slice(float* score, const u32 (*q)[2], u32 keys) {
    u32 lane = threadIdx.x % 32;
    float other[4] = {};
#if TYPE == KV_Q8_0
    u32 g = lane / 4, t = lane % 4;
#pragma unroll
    for (u32 j = 0; j < HEAD / 64; j++) {
        u32 chunk = 4 * j + t, words[2][4], scale[2];
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            uint4 v = shared16(keys + at_chunk(g + 8 * i, chunk));
            scale[i] = 0x10001u * shared_half(keys + SLICE * ROW_BYTES + (g + 8 * i) * (HEAD / 16) + chunk / 2 * 2);
            words[i][0] = v.x ^ 0x80808080u; words[i][1] = v.y ^ 0x80808080u;
            words[i][2] = v.z ^ 0x80808080u; words[i][3] = v.w ^ 0x80808080u;
        }
#pragma unroll
        for (u32 w = 0; w < 4; w++) {
            u32 a[4] = {scaled_bytes(words[0][w], 0x4140, scale[0]), scaled_bytes(words[1][w], 0x4140, scale[1]),
                        scaled_bytes(words[0][w], 0x4342, scale[0]), scaled_bytes(words[1][w], 0x4342, scale[1])};
            multiply(w % 2 ? other : score, a, q[4 * j + w][0], q[4 * j + w][1]);
        }
    }
#else
    u32 own = at_chunk(lane % 16, lane / 16), a[HEAD / 16][4];
#pragma unroll
    for (u32 i = 0; i < HEAD / 16; i++) load_matrices(a[i], keys + (own ^ 32 * i));
#pragma unroll
    for (u32 i = 0; i < HEAD / 16; i++) multiply(i % 2 ? other : score, a[i], q[i][0], q[i][1]);
#endif
#pragma unroll
    for (u32 e = 0; e < 4; e++) score[e] += other[e];
}

/// Adds a slice's values under their weights, which are turned already.
DEVICE void sum_slice(float (*sum)[4], const u32* weights, u32 values) {
    u32 lane = threadIdx.x % 32;
#if TYPE == KV_Q8_0
    u32 g = lane / 4, t = lane % 4, rows[4] = {2 * t, 2 * t + 1, 2 * t + 8, 2 * t + 9};
    u32 scales[4], words[4][HEAD / 32];
#pragma unroll
    for (u32 r = 0; r < 4; r++) {
        scales[r] = shared_half(values + SLICE * ROW_BYTES + rows[r] * (HEAD / 16) + HEAD / 8 * g / 32 * 2);
        uint4 v = shared16(values + at_chunk(rows[r], HEAD / 8 * g / 16));
        u32 all[4] = {v.x ^ 0x80808080u, v.y ^ 0x80808080u, v.z ^ 0x80808080u, v.w ^ 0x80808080u};
#pragma unroll
        for (u32 w = 0; w < HEAD / 32; w++) words[r][w] = HEAD == 128 || g % 2 == 0 ? all[w] : all[w + 2 & 3];
    }
    u32 upper = scales[0] | scales[1] << 16, lower = scales[2] | scales[3] << 16;
#pragma unroll
    for (u32 w = 0; w < HEAD / 32; w++)
#pragma unroll
        for (u32 two = 0; two < 2; two++) {
            u32 order = two ? 0x7362 : 0x5140;
            u32 x = __byte_perm(words[0][w], words[1][w], order), y = __byte_perm(words[2][w], words[3][w], order);
            u32 a[4] = {scaled_bytes(x, 0x4140, upper), scaled_bytes(x, 0x4342, upper),
                        scaled_bytes(y, 0x4140, lower), scaled_bytes(y, 0x4342, lower)};
            multiply(sum[2 * w + two], a, weights[0], weights[1]);
        }
#else
    // Lanes 8 to 15 name the rows of the second matrix: the same positions, eight elements on.
    u32 own = at_chunk(lane % 8 + lane / 16 * 8, lane / 8 % 2), a[HEAD / 16][4];
#pragma unroll
    for (u32 i = 0; i < HEAD / 16; i++) load_matrices_turned(a[i], values + (own ^ 32 * i));
#pragma unroll
    for (u32 i = 0; i < HEAD / 16; i++) multiply(sum[i], a[i], weights[0], weights[1]);
#endif
}
