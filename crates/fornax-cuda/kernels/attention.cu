//! Attention over pages `[pages, kv_heads, page_size, dim]`: what its kernels share, and the one for
//! any sizes.

/// Where a block of `attend_stream` begins, and how many steps it has: which row, which KV head of it, which
/// step of that; the row's newest position and its pages; what one KV head of all rows before it and of this one costs.
struct __align__(16) Start { u32 row, part, step, count, position, table, before, cost; };

struct Attend {
    float* out;     // [n, q_count * v_dim]
    const float* q; // [n, q_stride] from q_offset on; with `narrow` halves from the same beginnings on, scaled
    u8 *keys, *values;
    const Token* tokens;
    const Row* rows;
    const u32* tables;
    const uint2* tiles; // row and first token in it, FULL where there is none
    const float* sinks; // [q_count]
    const float *q_norm, *k_norm, *frequencies;
    u16* dense; // out as bf16 in its stead, [n, q_count * v_dim]
    u32* pieces; // what blocks leave of heads that several of them share: zeros between launches
    u32* before;   // [n + 1], for `attend_stream`: what one KV head of all rows before each row costs
    Start* starts; // of its blocks
    float2* turns; // [n, dim / 2], for `attend_stream` where it turns: sine and cosine of each pair
    u64 slots;     // of the cache: [slots, dim] and [slots, v_dim]
    u64 dense_apart; // numbers from one of `dense` to what is left of it, of single tokens' rows; zero where it is not wanted
    float scale, cap, eps, magnitude;
    u32 n, q_stride, q_offset, q_count, kv_heads, dim, v_dim, type, page_size, window;
    u32 k_offset, v_offset, rotary, style, narrow;
    u32 apart; // whether `attend_stream` has the rows before the first one with several new tokens, and only those
};

// What few models have, and none where this is compiled PLAIN. Code that all others go around takes their time, too: on an
// H200 0.6 % of a step of 130 rows, 1.5 % of one stream's in Q8_0.
#ifndef PLAIN
#define PLAIN 0
#endif
DEVICE u32 window_of(const Attend& p) { return PLAIN ? 0 : p.window; }
DEVICE float cap_of(const Attend& p) { return PLAIN ? 0.0f : p.cap; }
DEVICE const float* sinks_of(const Attend& p) { return PLAIN ? nullptr : p.sinks; }

/// Whether token `t` is the only new one of its row, and so is each before it.
DEVICE bool leads_alone(const Attend& p, u32 t) {
    Token token = p.tokens[t];
    Row row = p.rows[t];
    return token.row == t & row.start == t & row.len == 1; // both are asked for at once
}

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
            if (lane + 32 * i < p.dim) score += query[i] * load_element(p.keys, slot * p.dim + lane + 32 * i, p.type, p.slots * p.dim);
        score = capped(warp_sum(score) * p.scale, p.cap);
        float before = largest;
        largest = fmaxf(largest, score);
        float keep = expf(before - largest), weight = expf(score - largest);
        total = total * keep + weight;
#pragma unroll
        for (u32 i = 0; i < MOST; i++)
            if (lane + 32 * i < p.v_dim)
                sum[i] = sum[i] * keep + weight * load_element(p.values, slot * p.v_dim + lane + 32 * i, p.type, p.slots * p.v_dim);
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
// Compiled for HEAD elements of a head and TYPE of the cache.

DEVICE float power_of_two(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }

#if TYPE != KV_BF16
#define PAIR f16_pair
#else
#define PAIR bf16_pair
#endif
DEVICE void multiply(float* c, const u32* a, u32 b0, u32 b1) {
#if TYPE != KV_BF16
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#endif
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Signed bytes by signed bytes, in whole numbers.
DEVICE void multiply_bytes(int* c, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

DEVICE void load_matrices(u32* out, u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3]) : "r"(address) : "memory");
}
DEVICE void load_matrices_turned(u32* out, u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3]) : "r"(address) : "memory");
}

#if TYPE == KV_Q8_0
DEVICE u32 product_of_halves(u32 a, u32 b) { u32 c; asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b)); return c; }

/// Two signed bytes as halves: those that `order` picks out of a word in which 128 was added to each.
DEVICE u32 whole_bytes(u32 biased, u32 order) {
    // 0x64 before a byte makes 1024 and so many more.
    u32 halves = __byte_perm(biased, 0x64646464u, order);
    asm("sub.rn.f16x2 %0, %0, %1;" : "+r"(halves) : "r"(0x64806480u));
    return halves;
}
DEVICE u32 scaled_bytes(u32 biased, u32 order, u32 scale) { return product_of_halves(whole_bytes(biased, order), scale); }
#endif

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

/// A head in the registers of a warp, of which a lane has both numbers of each pair that is turned, so that
/// nothing passes from lane to lane but a norm's sum. What is not turned makes pairs of neighbours.
struct Pairs {
    static constexpr u32 COUNT = HEAD / 64;

    float x[COUNT], y[COUNT];
    u32 first[COUNT], second[COUNT]; // where these are in the head

    __device__ __forceinline__ Pairs(u32 rotary, u32 style) {
#pragma unroll
        for (u32 i = 0; i < COUNT; i++) {
            u32 pair = threadIdx.x % 32 + 32 * i;
            bool apart = style == 0 && pair < rotary / 2;
            first[i] = apart ? pair : 2 * pair;
            second[i] = apart ? pair + rotary / 2 : 2 * pair + 1;
        }
    }
    __device__ __forceinline__ void load(const float* head) {
#pragma unroll
        for (u32 i = 0; i < COUNT; i++) { x[i] = head[first[i]]; y[i] = head[second[i]]; }
    }
    __device__ __forceinline__ void store(float* head) const {
#pragma unroll
        for (u32 i = 0; i < COUNT; i++) { head[first[i]] = x[i]; head[second[i]] = y[i]; }
    }
    __device__ __forceinline__ void scale(float by) {
#pragma unroll
        for (u32 i = 0; i < COUNT; i++) { x[i] *= by; y[i] *= by; }
    }
    /// Norm where there is a weight, and rotation by the sine and cosine of each pair.
    __device__ __forceinline__ void turn(const float* norm, float eps, const float2* turns) {
        float2 by[COUNT];
#pragma unroll
        for (u32 i = 0; i < COUNT; i++) by[i] = turns[threadIdx.x % 32 + 32 * i];
        if (norm) {
            float squares = 0.0f;
#pragma unroll
            for (u32 i = 0; i < COUNT; i++) squares += x[i] * x[i] + y[i] * y[i];
            float factor = rsqrtf(warp_sum(squares) / HEAD + eps);
#pragma unroll
            for (u32 i = 0; i < COUNT; i++) { x[i] *= factor * norm[first[i]]; y[i] *= factor * norm[second[i]]; }
        }
#pragma unroll
        for (u32 i = 0; i < COUNT; i++) {
            float before = x[i];
            x[i] = before * by[i].y - y[i] * by[i].x;
            y[i] = before * by[i].x + y[i] * by[i].y;
        }
    }
};

#endif
