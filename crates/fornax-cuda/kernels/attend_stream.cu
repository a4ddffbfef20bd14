//! Attention of many rows with one new token each, at the speed at which memory can be read.
//!
//! All positions of all rows and KV heads form one list of steps, of which each block takes an equal
//! share, whatever the rows' lengths. A warp copies its positions to a ring in shared memory ahead of
//! its step, over the ends of rows, and multiplies on the tensor cores: the GROUP query heads of a KV
//! head are rows of one matrix. What blocks leave of a row that they share the last of them joins.

#define WARPS 2
#define SLICE 16 // positions of a warp in a step
#define STEP (WARPS * SLICE)
#if TYPE == KV_Q8_0
#define ROW_BYTES HEAD
#define SCALES (SLICE * HEAD / 16) // bytes
#define BLOCKS (GROUP <= 2 ? 8 : 6) // on a multiprocessor
#else
#define ROW_BYTES (2 * HEAD)
#define SCALES 0
#define BLOCKS (GROUP <= 2 ? 6 : 5)
#endif
// While a slice is multiplied the next is on its way. More warps hide more of the time from one
// instruction to the next than a third stage would.
#define STAGES 2
#define CHUNKS (ROW_BYTES / 16)
#define TURNED ((CHUNKS < 8 ? CHUNKS : 8) - 1)
#define HALF (SLICE * ROW_BYTES + SCALES) // K or V of a step
#define MOST_ROWS 384
#define PIECE (HEAD + 2) // a head's sums, their largest score and their total

/// Where 16 bytes of a slice lie: no two of eight neighbours share a bank.
DEVICE u32 at_chunk(u32 row, u32 chunk) { return row * ROW_BYTES + ((chunk ^ (row & TURNED)) * 16); }
/// The element of a head that is row `row` of sixteen of tile `tile` of the result.
DEVICE u32 element_of(u32 tile, u32 row) {
#if TYPE == KV_Q8_0
    return HEAD / 8 * (row % 8) + 2 * tile + row / 8;
#else
    return 16 * tile + row;
#endif
}

DEVICE void copy16(u32 to, const u8* from, u32 bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
DEVICE void copy16(u32 to, const u8* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
DEVICE uint4 shared16(u32 from) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(from) : "memory");
    return v;
}
/// Turns a matrix of eight rows of eight halves.
DEVICE u32 turned_matrix(u32 pair) { asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(pair)); return pair; }
DEVICE u32 shared_half(u32 from) { u16 h; asm volatile("ld.shared.u16 %0, [%1];" : "=h"(h) : "r"(from) : "memory"); return h; }

/// Starts the copy of a slice of K and of V, from row `slot` of the cache on. Rows behind the newest
/// position come too, whatever they hold: `clear_behind` makes zeros of them.
DEVICE void fetch_slices(u32 to, const Attend& p, u64 slot) {
    u32 lane = threadIdx.x % 32, row = lane / CHUNKS, chunk = (lane % CHUNKS ^ row & TURNED) * 16;
    const u8 *keys = p.keys + slot * ROW_BYTES + lane * 16, *values = p.values + slot * ROW_BYTES + lane * 16;
    to += row * ROW_BYTES;
#pragma unroll
    for (u32 i = 0; i < SLICE * CHUNKS / 32; i++) {
        // As `at_chunk` has it: a copy of all lanes is 512 bytes, whose rows begin at a power of two.
        u32 at = to + i * 512 + (chunk ^ (i * (32 / CHUNKS) & TURNED) * 16);
        copy16(at, keys + i * 512);
        copy16(at + HALF, values + i * 512);
    }
#if TYPE == KV_Q8_0
    if (lane < SCALES / 16) {
        u64 scales = p.slots * HEAD + slot * (HEAD / 16) + lane * 16;
        u32 at = to - row * ROW_BYTES + SLICE * ROW_BYTES + lane * 16;
        copy16(at, p.keys + scales);
        copy16(at + HALF, p.values + scales);
    }
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

/// A walk over steps: which row, which KV head of it, which of its positions.
struct Walk {
    u32 t, part, kv_head, step, first, last, position, begin, table;

    /// Goes to a row with steps.
    __device__ __forceinline__ void enter(const Attend& p, u32 row) {
        t = row;
        position = p.tokens[t].position;
        table = p.rows[t].table;
        begin = first_seen(position, p.window);
        first = begin / STEP;
        last = position / STEP;
    }
    /// The next step; `before` says how many steps of one KV head come before each row.
    __device__ __forceinline__ void advance(const Attend& p, const u32* before, u32 parts) {
        if (step++ < last) return;
        if (++kv_head == p.kv_heads) kv_head = 0;
        if (++part == parts) {
            u32 row = t + 1;
            while (row < p.n && before[row + 1] == before[row]) row++;
            part = 0;
            if (row == p.n) return;
            enter(p, row);
        }
        step = first;
    }
};

/// A head to its place in the cache, and to `kept` as it is there. Called by a warp.
DEVICE void keep_newest(u8* cache, u64 slot, u64 slots, const float* head, u8* kept, u16* scales) {
    store_head(cache, slot * HEAD, TYPE, slots * HEAD, head, HEAD);
    for (u32 i = threadIdx.x % 32; i < HEAD; i += 32) {
#if TYPE == KV_Q8_0
        u16 scale;
        kept[i] = (u8)quantise(head[i], scale);
        if (i % 32 == 0) scales[i / 32] = scale;
#else
        ((u16*)kept)[i] = TYPE == KV_F16 ? f16_of_f32(head[i]) : bf16_of_f32(head[i]);
#endif
    }
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
#pragma unroll
    for (u32 i = 0; i < HEAD / 16; i++) {
        u32 a[4];
        load_matrices(a, keys + at_chunk(lane % 16, 2 * i + lane / 16));
        multiply(i % 2 ? other : score, a, q[i][0], q[i][1]);
    }
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
#pragma unroll
    for (u32 i = 0; i < HEAD / 16; i++) {
        // Lanes 8 to 15 name the rows of the second matrix: the same positions, eight elements on.
        u32 a[4];
        load_matrices_turned(a, values + at_chunk(lane % 8 + lane / 16 * 8, 2 * i + lane / 8 % 2));
        multiply(sum[i], a, weights[0], weights[1]);
    }
#endif
}

struct Shared {
    __align__(16) float queries[GROUP + 2][HEAD]; // and the newest key and value: first of them as they come
    float2 turns[HEAD / 2];
    float largest[WARPS][GROUP], total[WARPS][GROUP];
    __align__(16) u8 newest[2][ROW_BYTES];
    u16 newest_scales[2][HEAD / 32];
    u32 before[MOST_ROWS + 1], is_last;
};

/// How many steps of one KV head come before each row.
DEVICE void count_steps(const Attend& p, u32* before) {
    for (u32 t = threadIdx.x; t < p.n; t += 32 * WARPS) {
        Token token = p.tokens[t];
        before[t + 1] = token.row == FULL ? 0 : token.position / STEP - first_seen(token.position, p.window) / STEP + 1;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        u32 sum = 0;
        for (u32 base = 1; base <= p.n; base += 32) {
            u32 at = base + threadIdx.x, mine = at <= p.n ? before[at] : 0;
            for (u32 far = 1; far < 32; far <<= 1) {
                u32 other = __shfl_up_sync(FULL, mine, far);
                if (threadIdx.x >= far) mine += other;
            }
            if (at <= p.n) before[at] = sum + mine;
            sum += __shfl_sync(FULL, mine, 31);
        }
        if (threadIdx.x == 0) before[0] = 0;
    }
    __syncthreads();
}

/// The result of a head's element, with the sink where there is one.
DEVICE void finish(const Attend& p, u32 t, u32 head, u32 element, float most, float all, float value) {
    if (p.sinks) {
        float sink = p.sinks[head] * 1.4426950408889634f, larger = fmaxf(sink, most), keep = exp2f(most - larger);
        all = all * keep + exp2f(sink - larger);
        value *= keep;
    }
    u64 to = ((u64)t * p.q_count + head) * HEAD + element;
    if (p.dense) p.dense[to] = bf16_of_f32(value / all);
    else p.out[to] = value / all;
}

KERNEL __launch_bounds__(32 * WARPS, BLOCKS) void attend_stream(const __grid_constant__ Attend p) {
    extern __shared__ __align__(128) u8 memory[];
    Shared& s = *(Shared*)(memory + WARPS * STAGES * 2 * HALF);
    let_next_begin();
    bool fused = p.frequencies != nullptr;
    if (!fused) wait_for_previous();
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4;
    u32 parts = p.q_count / GROUP, shift = __ffs(p.page_size) - 1;

    // This block's share of the steps.
    count_steps(p, s.before);
    u64 steps = (u64)s.before[p.n] * parts, blocks = gridDim.x < steps ? gridDim.x : steps;
    if (blockIdx.x >= blocks) { if (fused) wait_for_previous(); return; }
    u64 begin = steps * blockIdx.x / blocks, end = steps * (blockIdx.x + 1) / blocks;
    u32 low = 0, high = p.n - 1;
    while (low < high) {
        u32 middle = (low + high) / 2;
        if ((u64)s.before[middle + 1] * parts > begin) high = middle;
        else low = middle + 1;
    }
    Walk at;
    at.enter(p, low);
    u32 inside = begin - (u64)s.before[low] * parts, length = at.last - at.first + 1;
    at.part = inside / length;
    at.kv_head = at.part % p.kv_heads;
    at.step = at.first + inside % length;

    u32 ring = (u32)__cvta_generic_to_shared(memory) + warp * STAGES * 2 * HALF;
    Walk ahead = at;
    u64 started = begin;
    auto page_at = [&](const Walk& walk, u32 position) { return p.tables[walk.table + (position >> shift)]; };
    auto slot_in = [&](const Walk& walk, u32 page, u32 position) {
        return ((u64)page * p.kv_heads + walk.kv_head) * p.page_size + (position & (p.page_size - 1));
    };
    auto is_seen = [&](const Walk& walk, u32 from) { return from + SLICE > walk.begin && from <= walk.position; };
    // The page of a slice is looked up a step before it is copied.
    u32 page = 0;
    auto look_up = [&]() {
        u32 from = ahead.step * STEP + warp * SLICE;
        if (is_seen(ahead, from)) page = page_at(ahead, from);
    };
    look_up();
    auto start = [&](u32 stage) {
        if (started < end) {
            started++;
            u32 from = ahead.step * STEP + warp * SLICE;
            if (is_seen(ahead, from)) fetch_slices(ring + stage * 2 * HALF, p, slot_in(ahead, page, from));
            if (started < end) {
                ahead.advance(p, s.before, parts);
                look_up();
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
#pragma unroll
    for (u32 stage = 0; stage + 1 < STAGES; stage++) start(stage);

    // What the next head needs of the fused projection comes while this one is attended to; each warp
    // copies the rows that it will turn.
    Walk next = at;
    u32 newest_page = 0;
    u64 copied = begin;
    auto first_head = [&](const Walk& walk) {
        return walk.kv_head * (p.q_count / p.kv_heads) + walk.part / p.kv_heads * GROUP;
    };
    auto copy_rows = [&]() {
        const float* row = p.q + (u64)next.t * p.q_stride;
        for (u32 h = warp; h < GROUP + (fused ? 2 : 0); h += WARPS) {
            u32 from = h < GROUP ? p.q_offset + (first_head(next) + h) * HEAD : (h == GROUP ? p.k_offset : p.v_offset) + next.kv_head * HEAD;
            if (lane < HEAD / 4)
                copy16((u32)__cvta_generic_to_shared(&s.queries[h][4 * lane]), (const u8*)(row + from + 4 * lane), 16);
        }
        if (fused) newest_page = page_at(next, next.position);
    };

    const float log2e = 1.4426950408889634f;
    float sum[HEAD / 16][4], largest[2], total[2];
    u32 q[HEAD / 16][2], stage = 0, turned = FULL;
    bool fresh = true, waited = !fused, copies = false;
    for (u64 now = begin; now < end; now++) {
        if (fresh || at.step == at.first) {
            if (fused && turned != at.t)
                for (u32 pair = threadIdx.x; pair < p.rotary / 2; pair += 32 * WARPS) {
                    float sine, cosine;
                    sincosf(__fmul_rn((float)at.position, p.frequencies[pair]), &sine, &cosine);
                    s.turns[pair] = make_float2(sine * p.magnitude, cosine * p.magnitude);
                }
            turned = at.t;
            if (!waited) wait_for_previous();
            waited = true;
            if (fresh) {
                copy_rows();
                asm volatile("cp.async.commit_group;" ::: "memory");
            }
            // Older groups of copies have ended already.
            if (fresh || now - copied < STAGES) asm volatile("cp.async.wait_group 0;" ::: "memory");
            __syncthreads();
            // Who has the last step of a head has its newest key and value.
            bool owner = fused && now + (at.last - at.step) < end;
            for (u32 h = warp; h < GROUP + (owner ? 2 : 0); h += WARPS) {
                float own[HEAD / 32], *to = s.queries[h];
#pragma unroll
                for (u32 i = 0; i < HEAD / 32; i++) own[i] = s.queries[h][lane + 32 * i];
                if (fused && h <= GROUP) {
                    turn_known(to, own, h < GROUP ? p.q_norm : p.k_norm, p.eps, s.turns, p.rotary, p.style);
                } else {
#pragma unroll
                    for (u32 i = 0; i < HEAD / 32; i++) to[lane + 32 * i] = own[i];
                    __syncwarp();
                }
                if (h < GROUP) continue;
                u64 slot = slot_in(at, newest_page, at.position);
                keep_newest(h == GROUP ? p.keys : p.values, slot, p.slots, to, s.newest[h - GROUP], s.newest_scales[h - GROUP]);
            }
            __syncthreads();
            float factor = p.cap > 0.0f ? p.scale : p.scale * log2e;
#pragma unroll
            for (u32 k = 0; k < HEAD / 16; k++)
#pragma unroll
                for (u32 r = 0; r < 2; r++) {
#if TYPE == KV_Q8_0
                    u32 element = 16 * (k / 4 * 4 + lane % 4) + 4 * (k % 4) + 2 * r;
#else
                    u32 element = 16 * k + 8 * r + 2 * (lane % 4);
#endif
                    const float* two = &s.queries[g < GROUP ? g : 0][element];
                    q[k][r] = g < GROUP ? PAIR(two[0] * factor, two[1] * factor) : 0;
                }
#pragma unroll
            for (u32 i = 0; i < HEAD / 16; i++) sum[i][0] = sum[i][1] = sum[i][2] = sum[i][3] = 0.0f;
            largest[0] = largest[1] = -INFINITE;
            total[0] = total[1] = 0.0f;
            copies = true;
        }
        bool whole_start = at.step == at.first;
        if (fresh) inside = whole_start ? 0 : 1; // 1 where the block begins inside of a head
        else if (whole_start) inside = 0;
        fresh = false;

        __syncwarp();
        if (copies && now + (at.last - at.step) + 1 < end) {
            __syncthreads();
            next = at;
            next.step = next.last;
            next.advance(p, s.before, parts);
            copy_rows();
            copied = now;
        }
        copies = false;
        start((stage + STAGES - 1) % STAGES);
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 1) : "memory");
        __syncwarp();
        u32 from = at.step * STEP + warp * SLICE, keys = ring + stage * 2 * HALF;
        stage = (stage + 1) % STAGES;
        if (is_seen(at, from)) {
            if (at.position - from < SLICE) {
                clear_behind(keys + HALF, at.position - from + 1);
                __syncwarp();
            }
            if (fused && at.position - from < SLICE) {
                // The newest position was not in the cache when the copy began.
                u32 r = at.position - from, which = lane / CHUNKS;
                if (lane < 2 * CHUNKS) {
                    uint4 v = *(const uint4*)(s.newest[which] + lane % CHUNKS * 16);
                    u32 to = keys + which * HALF + at_chunk(r, lane % CHUNKS);
                    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
                }
#if TYPE == KV_Q8_0
                if (lane < 2 * (HEAD / 32)) {
                    which = lane / (HEAD / 32);
                    u32 to = keys + which * HALF + SLICE * ROW_BYTES + r * (HEAD / 16) + lane % (HEAD / 32) * 2;
                    asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"(s.newest_scales[which][lane % (HEAD / 32)]) : "memory");
                }
#endif
                __syncwarp();
            }
            float score[4] = {};
            score_slice(score, q, keys);
            if (from < at.begin || from + SLICE > at.position + 1 || p.cap > 0.0f)
#pragma unroll
                for (u32 e = 0; e < 4; e++) {
                    u32 position = from + g + e / 2 * 8;
                    if (p.cap > 0.0f) score[e] = capped(score[e], p.cap) * log2e;
                    if (position < at.begin || position > at.position) score[e] = -INFINITE;
                }
            // The base of the powers follows the largest score only where they would grow large.
            float most[2] = {fmaxf(score[0], score[2]), fmaxf(score[1], score[3])};
            if (__any_sync(FULL, most[0] > largest[0] + 6.0f || most[1] > largest[1] + 6.0f)) {
#pragma unroll
                for (u32 e = 0; e < 2; e++) {
                    float before = largest[e];
#pragma unroll
                    for (u32 far = 4; far < 32; far <<= 1) most[e] = fmaxf(most[e], __shfl_xor_sync(FULL, most[e], far));
                    largest[e] = fmaxf(before, most[e]);
                    float keep = power_of_two(before - largest[e]);
                    total[e] *= keep;
#pragma unroll
                    for (u32 i = 0; i < HEAD / 16; i++) { sum[i][e] *= keep; sum[i][e + 2] *= keep; }
                }
            }
#pragma unroll
            for (u32 e = 0; e < 4; e++) { score[e] = power_of_two(score[e] - largest[e % 2]); total[e % 2] += score[e]; }
            u32 weights[2] = {turned_matrix(PAIR(score[0], score[1])), turned_matrix(PAIR(score[2], score[3]))};
            sum_slice(sum, weights, keys + HALF);
        }

        if (at.step == at.last || now + 1 == end) {
            // The warps' sums become the block's, and the block's a result or a piece of one. They meet
            // where the slices were that were multiplied last.
            auto sums_of = [&](u32 w) { return (float(*)[HEAD])(memory + (w * STAGES + (stage + STAGES - 1) % STAGES) * 2 * HALF); };
            float (*sums)[HEAD] = sums_of(warp);
            __syncwarp();
#pragma unroll
            for (u32 e = 0; e < 2; e++) {
#pragma unroll
                for (u32 far = 4; far < 32; far <<= 1) total[e] += __shfl_xor_sync(FULL, total[e], far);
                u32 head = 2 * (lane % 4) + e;
                if (head >= GROUP) continue;
#pragma unroll
                for (u32 i = 0; i < HEAD / 16; i++) {
                    sums[head][element_of(i, g)] = sum[i][e];
                    sums[head][element_of(i, g + 8)] = sum[i][e + 2];
                }
                if (g == 0) { s.largest[warp][head] = largest[e]; s.total[warp][head] = total[e]; }
            }
            __syncthreads();
            u32 heads = first_head(at);
            bool whole = !inside && at.step == at.last;
            float* piece = p.pieces + (2 * blockIdx.x + (inside || now - (at.step - at.first) == begin ? 0 : 1)) * (u64)(GROUP * PIECE);
            for (u32 i = threadIdx.x; i < GROUP * HEAD; i += 32 * WARPS) {
                u32 h = i / HEAD;
                float most = -INFINITE, all = 0.0f, value = 0.0f;
#pragma unroll
                for (u32 w = 0; w < WARPS; w++) most = fmaxf(most, s.largest[w][h]);
#pragma unroll
                for (u32 w = 0; w < WARPS; w++) {
                    float keep = exp2f(s.largest[w][h] - most);
                    all += s.total[w][h] * keep;
                    value += sums_of(w)[h][i % HEAD] * keep;
                }
                if (whole) finish(p, at.t, heads + h, i % HEAD, most, all, value);
                else {
                    piece[h * PIECE + i % HEAD] = value;
                    if (i % HEAD == 0) { piece[h * PIECE + HEAD] = most; piece[h * PIECE + HEAD + 1] = all; }
                }
            }
            if (!whole) {
                u64 head = (u64)s.before[at.t] * parts + (u64)at.part * (at.last - at.first + 1);
                u64 head_end = head + (at.last - at.first + 1);
                u32 one = ((head + 1) * blocks - 1) / steps, other = (head_end * blocks - 1) / steps;
                u32* arrived = p.arrived + at.t * parts + at.part;
                __threadfence();
                __syncthreads();
                if (threadIdx.x == 0) s.is_last = atomicAdd(arrived, 1) == other - one;
                __syncthreads();
                if (s.is_last) {
                    __threadfence();
                    for (u32 i = threadIdx.x; i < GROUP * HEAD; i += 32 * WARPS) {
                        u32 h = i / HEAD;
                        float most = -INFINITE, all = 0.0f, value = 0.0f;
                        for (u32 b = one; b <= other; b++) {
                            bool second = b == one && steps * b / blocks != head;
                            const float* of = p.pieces + (2 * b + second) * (u64)(GROUP * PIECE) + h * PIECE;
                            float its = __ldcg(of + HEAD), larger = fmaxf(most, its);
                            float keep = exp2f(most - larger), scale = exp2f(its - larger);
                            all = all * keep + __ldcg(of + HEAD + 1) * scale;
                            value = value * keep + __ldcg(of + i % HEAD) * scale;
                            most = larger;
                        }
                        finish(p, at.t, heads + h, i % HEAD, most, all, value);
                    }
                    if (threadIdx.x == 0) *arrived = 0;
                }
            }
        }
        at.advance(p, s.before, parts);
    }
}
