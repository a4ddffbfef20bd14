//! A warp's products with slices of K and V, for GROUP query heads: in halves, or of bytes as they are kept.
//! Both ways have the same functions, so that nobody else knows which it is.

/// Queries, weights and values in halves.
struct InHalves {
    static constexpr u32 HEADS = 2; // of which a lane has scores: 2t and 2t + 1, and of positions g and g + 8
    // How far the base of powers comes to lie below the largest score, and a score above it before it moves.
    static constexpr float BELOW = 0.0f, ABOVE = ABOVE_BASE;

    // What is made once of a turned query: halves.
    struct Room { __align__(16) u16 halves[HEAD]; };

    u32 words[HEAD / 16][2];

    /// Called by a warp, as is the next one.
    DEVICE void prepare(const Pairs& head, Room& room) {
#pragma unroll
        for (u32 i = 0; i < Pairs::COUNT; i++) {
            u32 both = PAIR(head.x[i], head.y[i]);
            room.halves[head.first[i]] = (u16)both;
            room.halves[head.second[i]] = (u16)(both >> 16);
        }
    }
    /// The same of a query in halves.
    DEVICE void prepare_narrow(const u16* query, Room& room) {
        for (u32 i = threadIdx.x % 32; i < HEAD / 8; i += 32) ((uint4*)room.halves)[i] = ((const uint4*)query)[i];
    }
    /// Takes the queries `[GROUP]` when they are prepared.
    __device__ __forceinline__ void take(const Room* rooms) {
        u32 lane = threadIdx.x % 32, g = lane / 4;
#pragma unroll
        for (u32 k = 0; k < HEAD / 16; k++)
#pragma unroll
            for (u32 r = 0; r < 2; r++) {
                const u32* query = (const u32*)rooms[g < GROUP ? g : 0].halves;
                words[k][r] = g < GROUP ? query[query_element(lane, k, r) / 2] : 0;
            }
    }
    __device__ __forceinline__ void scores(float (&score)[2 * HEADS], u32 keys) const { score_slice(score, words, keys); }
    DEVICE void add(float (*sum)[4], const float (&weight)[2 * HEADS], u32 values) {
        u32 turned[2] = {turned_matrix(PAIR(weight[0], weight[1])), turned_matrix(PAIR(weight[2], weight[3]))};
        sum_slice(sum, turned, values);
    }
    DEVICE u32 head_of(u32 e) { return 2 * (threadIdx.x % 4) + e; }
    /// The sums of a lane's heads to where a whole head comes together.
    DEVICE void leave(float (*sums)[HEAD], const float (*sum)[4]) {
        u32 g = threadIdx.x % 32 / 4;
#pragma unroll
        for (u32 e = 0; e < HEADS; e++) {
            if (head_of(e) >= GROUP) continue;
#pragma unroll
            for (u32 i = 0; i < HEAD / 16; i++) {
                sums[head_of(e)][element_of(i, g)] = sum[i][e];
                sums[head_of(e)][element_of(i, g + 8)] = sum[i][e + 2];
            }
        }
    }
};

#if TYPE == KV_Q8_0 && GROUP <= 2
/// Bytes of K as they are kept times queries in whole numbers of two bytes, and bytes of V as halves under
/// weights that have their scales in them. The eight columns of a product are two query heads, and of each
/// both bytes and two blocks of 32 elements, or four blocks, for blocks have different scales.
struct InBytes {
    static constexpr u32 HEADS = 1; // of which a lane has scores: t % 2, and of positions g and g + 8
    /// A weight times a scale, which may be a thousandth, is rounded as a half: were the largest weight 1, those
    /// beside a position with most of the weight would be lost. So it is 2^7 when the base moves, and 2^9 before
    /// it does: that leaves room for values up to 16,000.
    static constexpr float BELOW = 7.0f, ABOVE = 9.0f;

    float scale;
    // Where a lane has its bytes of the queries, if any: reading them again for each slice leaves registers to all
    // else. 130 rows took 0.5 % longer with these bytes in registers, on an H200.
    u32 bytes;
    bool has;

    // The upper bytes of a query's numbers and the lower ones, in other banks, and what one of these is.
    struct Room {
        __align__(16) u8 upper[HEAD + 32], lower[HEAD];
        float scale;
    };

    /// Called by a warp, as is the next one.
    DEVICE void prepare(const Pairs& head, Room& room) {
        // As whole numbers, so that what is no number is the largest.
        u32 magnitudes = 0;
#pragma unroll
        for (u32 i = 0; i < Pairs::COUNT; i++)
            magnitudes = max(magnitudes, max(__float_as_uint(fabsf(head.x[i])), __float_as_uint(fabsf(head.y[i]))));
        const float most = 127.0f * 256.0f; // so that no upper byte is rounded to 128
        float largest = __uint_as_float(__reduce_max_sync(FULL, magnitudes)), inverse = largest > 1e-30f ? most / largest : 0.0f;
        auto put = [&](u32 at, float x) {
            int whole = __float2int_rn(x * inverse);
            room.upper[at] = (u8)(whole + 128 >> 8);
            room.lower[at] = (u8)whole; // what is left below it: from -128 to 127
        };
#pragma unroll
        for (u32 i = 0; i < Pairs::COUNT; i++) { put(head.first[i], head.x[i]); put(head.second[i], head.y[i]); }
        if (threadIdx.x % 32 == 0) room.scale = largest / most;
    }
    /// The same of a query in halves.
    DEVICE void prepare_narrow(const u16* query, Room& room) {
        Pairs head(0, 0);
#pragma unroll
        for (u32 i = 0; i < Pairs::COUNT; i++) {
            float2 both = f32_of_f16_pair(((const u32*)query)[head.first[i] / 2]);
            head.x[i] = both.x;
            head.y[i] = both.y;
        }
        prepare(head, room);
    }
    /// Column g is of head g / 2 % 2 its upper or lower bytes, and of one block or of the other.
    __device__ __forceinline__ void take(const Room* rooms) {
        u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, head = g / 2 % 2;
        has = t / 2 == g / 4 && head < GROUP;
        const Room& room = rooms[head % GROUP];
        bytes = shared_address(g % 2 ? room.lower : room.upper) + 16 * t;
        scale = rooms[t % 2 % GROUP].scale;
    }
    __device__ __forceinline__ void scores(float (&score)[2 * HEADS], u32 keys) const {
        u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        float sum[2] = {};
#pragma unroll
        for (u32 j = 0; j < HEAD / 64; j++) {
            u32 chunk = 4 * j + t;
            uint4 v[2], query = make_uint4(0, 0, 0, 0);
            if (has) query = shared16(bytes + 64 * j);
            float scales[2];
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                v[i] = shared16(keys + at_chunk(g + 8 * i, chunk));
                scales[i] = f32_of_f16(shared_half(keys + SLICE * ROW_BYTES + (g + 8 * i) * (HEAD / 16) + chunk / 2 * 2));
            }
            int both[4] = {};
            multiply_bytes(both, v[0].x, v[1].x, v[0].y, v[1].y, query.x, query.y);
            multiply_bytes(both, v[0].z, v[1].z, v[0].w, v[1].w, query.z, query.w);
#pragma unroll
            for (u32 i = 0; i < 2; i++) sum[i] += (float)(256 * both[2 * i] + both[2 * i + 1]) * scales[i];
        }
#pragma unroll
        for (u32 i = 0; i < 2; i++) score[i] = (sum[i] + __shfl_xor_sync(FULL, sum[i], 2)) * scale;
    }
    /// Column g has the weights of head g / 2 % 2 times the scales of one block; of other blocks its sums mean
    /// nothing.
    DEVICE void add(float (*sum)[4], const float (&weight)[2 * HEADS], u32 values) {
        u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, scales[4], b[2];
        u32 own = turned_matrix(PAIR(weight[0], weight[1])), other = __shfl_xor_sync(FULL, own, 4);
        u32 block = (g / 4 * 2 + g % 2) % (HEAD / 32);
#pragma unroll
        for (u32 r = 0; r < 4; r++)
            scales[r] = shared_half(values + SLICE * ROW_BYTES + (2 * t + r % 2 + r / 2 * 8) * (HEAD / 16) + 2 * block);
        b[0] = product_of_halves(g % 2 ? other : own, scales[0] | scales[1] << 16);
        b[1] = product_of_halves(g % 2 ? own : other, scales[2] | scales[3] << 16);
        // Turned two bytes at a time: a word has two elements of two positions.
        u32 from = at_chunk(lane % 16, lane / 16), v[HEAD / 32][4];
#pragma unroll
        for (u32 i = 0; i < HEAD / 32; i++) load_matrices_turned(v[i], values + (from ^ 32 * i));
#pragma unroll
        for (u32 i = 0; i < HEAD / 16; i++) {
            u32 upper = v[i / 2][i % 2 * 2] ^ 0x80808080u, lower = v[i / 2][i % 2 * 2 + 1] ^ 0x80808080u;
            u32 a[4] = {whole_bytes(upper, 0x4240), whole_bytes(upper, 0x4341), whole_bytes(lower, 0x4240), whole_bytes(lower, 0x4341)};
            multiply(sum[i], a, b[0], b[1]);
        }
    }
    DEVICE u32 head_of(u32) { return threadIdx.x % 2; }
    DEVICE void leave(float (*sums)[HEAD], const float (*sum)[4]) {
        u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        if (head_of(0) >= GROUP) return;
#pragma unroll
        for (u32 i = 0; i < HEAD / 16; i++) {
            u32 block = i / 2;
            if (t / 2 == block / 2)
                *(float2*)&sums[head_of(0)][16 * i + 2 * g] = make_float2(sum[i][block % 2], sum[i][2 + block % 2]);
        }
    }
};
typedef InBytes Products;
#else
typedef InHalves Products;
#endif
