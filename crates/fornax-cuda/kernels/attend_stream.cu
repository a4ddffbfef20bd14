//! Attention of many rows with one new token each, at the speed at which memory can be read.
//!
//! All positions of all rows and KV heads form one list of steps, of which each block takes an equal
//! share, whatever the rows' lengths. A warp copies its positions to a ring in shared memory ahead of
//! its step, over the ends of rows, and multiplies on the tensor cores: the GROUP query heads of a KV
//! head are rows of one matrix. What blocks leave of a row that they share the last of them joins.

#define WARPS 2
#define STEP (WARPS * SLICE)
// On a multiprocessor.
#if TYPE == KV_Q8_0
#define BLOCKS (GROUP <= 2 ? 8 : 6)
#else
#define BLOCKS (GROUP <= 2 ? 6 : 5)
#endif
// While a slice is multiplied the next is on its way. More warps hide more of the time from one
// instruction to the next than a third stage would.
#define STAGES 2
#define MOST_ROWS 384
#define PIECE (HEAD + 2) // a head's sums, their largest score and their total

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
                    const float* two = &s.queries[g < GROUP ? g : 0][query_element(lane, k, r)];
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
                put_newest(keys, at.position - from, s.newest, s.newest_scales);
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
