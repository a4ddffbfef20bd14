//! Attention of many rows with one new token each, at the speed at which memory can be read.
//!
//! All positions of all rows and KV heads form one list of steps, whatever the rows' lengths. Each block
//! takes a share of them that costs as much as any other: a head that it begins is as long as some steps.
//! Shares are the same in all layers alike, and are dealt once a step by a launch of their own.
//! A warp copies its positions to a ring in shared memory ahead of its step, over the ends of rows, and
//! multiplies on the tensor cores: the GROUP query heads of a KV head are rows of one matrix. Blocks that share
//! a head leave pieces of it, which the one that begins it joins to its own where they are there by then, and
//! else whoever is last. Compiled for GROUP, HEAD and TYPE, for WARPS of a block and BLOCKS of a
//! multiprocessor, and for STAGES of a ring and MOST_ROWS.

#define STEP (WARPS * SLICE)
// What it costs to begin a head, whose queries are turned, in steps: as much as 128 positions on an H200.
#define HEAD_COST (128 / STEP)
#define PIECE (HEAD + 4) // a head's sums, the base of their powers and their total; as a whole for 16 bytes at once

/// A walk over steps: which row, which KV head of it, which of its positions.
struct Walk {
    u32 t, part, kv_head, step, first, last, position, begin, table;

    /// Goes to a row with steps, whose newest position and pages these are.
    __device__ __forceinline__ void enter(const Attend& p, u32 row, u32 newest, u32 pages) {
        t = row;
        position = newest;
        table = pages;
        begin = first_seen(position, p.window);
        first = begin / STEP;
        last = position / STEP;
    }
    /// The next step; `before` says what one KV head of all rows before each row costs.
    __device__ __forceinline__ void advance(const Attend& p, const u32* before, u32 parts) {
        if (step++ < last) return;
        if (++kv_head == p.kv_heads) kv_head = 0;
        if (++part == parts) {
            u32 row = t + 1;
            while (row < p.n && before[row + 1] == before[row]) row++;
            part = 0;
            if (row == p.n) return;
            enter(p, row, p.tokens[row].position, p.rows[row].table);
        }
        step = first;
    }
};

struct Shared {
    __align__(16) float queries[GROUP + 2][HEAD]; // and the newest key and value: first of them as they come
    float2 turns[HEAD / 2];
    float norms[2][HEAD]; // of queries and of keys, which each head would wait for
    float base[WARPS][GROUP], total[WARPS][GROUP];
    __align__(16) u8 newest[2][ROW_BYTES];
    u16 newest_scales[2][HEAD / 32];
    u32 before[MOST_ROWS + 1], is_last[2];
    u32 others_came; // whether all other pieces of the head that this block begins last are there
};

/// Costs in equal shares for blocks; the first ones have one more than the others where they must.
struct Shares {
    u32 each, more;

    __device__ __forceinline__ Shares(u32 costs, u32 blocks) : each(costs / blocks), more(costs % blocks) {}
    __device__ __forceinline__ u32 begin_of(u32 block) const { return block * each + (block < more ? block : more); }
    __device__ __forceinline__ u32 block_of(u32 cost) const {
        u32 longer = more * (each + 1);
        return cost < longer ? cost / (each + 1) : more + (cost - longer) / each;
    }
};

/// A head's step at a cost that lies inside of it: a block begins with the step that its share begins in,
/// and so leaves that one to no other.
DEVICE u32 step_of(u32 cost) { return cost < HEAD_COST ? 0 : cost - HEAD_COST; }

/// Deals the steps to `blocks` blocks: one block, with a thread for each row and then for each block. The rows
/// that are attended to come before all others. What is launched behind it begins when it has ended, so that
/// `attend_stream` reads shares while it still waits for its turn.
KERNEL __launch_bounds__(MOST_ROWS) void deal_shares(const __grid_constant__ Attend p, u32 blocks) {
    __shared__ u32 before[MOST_ROWS + 1], costs_of_warps[MOST_ROWS / 32];
    wait_for_previous();
    u32 tid = threadIdx.x, lane = tid % 32, parts = p.q_count / GROUP, until = 0;
    if (tid < p.n && leads_alone(p, tid)) {
        u32 position = p.tokens[tid].position;
        until = HEAD_COST + position / STEP - first_seen(position, p.window) / STEP + 1;
    }
#pragma unroll
    for (u32 far = 1; far < 32; far <<= 1) {
        u32 other = __shfl_up_sync(FULL, until, far);
        if (lane >= far) until += other;
    }
    if (lane == 31) costs_of_warps[tid / 32] = until;
    __syncthreads();
    for (u32 w = 0; w < tid / 32; w++) until += costs_of_warps[w];
    before[tid + 1] = until;
    if (tid == 0) before[0] = 0;
    __syncthreads();
    for (u32 i = tid; i <= p.n; i += MOST_ROWS) p.before[i] = before[i];

    u32 costs = before[p.n] * parts, some = blocks < costs ? blocks : costs;
    auto row_of = [&](u32 cost) {
        u32 low = 0, high = p.n - 1;
        while (low < high) {
            u32 middle = (low + high) / 2;
            if (before[middle + 1] * parts > cost) high = middle;
            else low = middle + 1;
        }
        return low;
    };
    for (u32 b = tid; b < blocks; b += MOST_ROWS) {
        Start start = {};
        if (b < some) {
            Shares shares(costs, some);
            u32 from = shares.begin_of(b), to = shares.begin_of(b + 1), row = 0, inside = 0, each = 0;
            // Of all steps, the first that begins at a cost or behind it.
            auto step_at = [&](u32 cost) {
                row = row_of(cost);
                inside = cost - before[row] * parts;
                each = before[row + 1] - before[row];
                return (before[row] - row * HEAD_COST) * parts + inside / each * (each - HEAD_COST) + step_of(inside % each);
            };
            u32 end = to < costs ? step_at(to) : step_at(costs - 1) + 1;
            start.count = end - step_at(from);
            start.row = row;
            start.part = inside / each;
            start.position = p.tokens[row].position;
            start.table = p.rows[row].table;
            start.step = first_seen(start.position, p.window) / STEP + step_of(inside % each);
        }
        p.starts[b] = start;
    }
}

/// Four elements of a head's result, with the sink where there is one.
DEVICE void finish(const Attend& p, u32 t, u32 head, u32 element, float most, float all, float4 v) {
    float scale = 1.0f;
    if (p.sinks) {
        float sink = p.sinks[head] * 1.4426950408889634f, larger = fmaxf(sink, most);
        scale = exp2f(most - larger);
        all = all * scale + exp2f(sink - larger);
    }
    u64 to = ((u64)t * p.q_count + head) * HEAD + element;
    v = make_float4(v.x * scale / all, v.y * scale / all, v.z * scale / all, v.w * scale / all);
    if (p.dense) *(uint2*)(p.dense + to) = make_uint2(bf16_pair(v.x, v.y), bf16_pair(v.z, v.w));
    else *(float4*)(p.out + to) = v;
}
DEVICE float4 scaled(float4 v, float by) { return make_float4(v.x * by, v.y * by, v.z * by, v.w * by); }
DEVICE float4 plus(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

/// Joins four elements of a head with those of another block's piece of it.
DEVICE void join(float& most, float& all, float4& value, const float* piece, u32 element) {
    float2 its = __ldcg((const float2*)(piece + HEAD));
    float larger = fmaxf(most, its.x), keep = exp2f(most - larger), scale = exp2f(its.x - larger);
    all = all * keep + its.y * scale;
    value = plus(scaled(value, keep), scaled(__ldcg((const float4*)(piece + element)), scale));
    most = larger;
}

KERNEL __launch_bounds__(32 * WARPS, BLOCKS) void attend_stream(const __grid_constant__ Attend p) {
    extern __shared__ __align__(128) u8 memory[];
    Shared& s = *(Shared*)(memory + WARPS * STAGES * 2 * HALF);
    let_next_begin();
    bool fused = p.frequencies != nullptr;
    if (!fused) wait_for_previous();
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4;
    const float *q_norm = p.q_norm ? s.norms[0] : nullptr, *k_norm = p.k_norm ? s.norms[1] : nullptr;
    for (u32 i = threadIdx.x; i < HEAD; i += 32 * WARPS) {
        if (p.q_norm) s.norms[0][i] = p.q_norm[i];
        if (p.k_norm) s.norms[1][i] = p.k_norm[i];
    }
    u32 parts = p.q_count / GROUP, shift = __ffs(p.page_size) - 1;

    // This block's share, which was dealt before: its first row needs no more to be asked for.
    Start share = p.starts[blockIdx.x];
    for (u32 i = threadIdx.x; i <= p.n; i += 32 * WARPS) s.before[i] = p.before[i];
    if (share.count == 0) { if (fused) wait_for_previous(); return; }
    u32 end = share.count;
    Walk at;
    at.enter(p, share.row, share.position, share.table);
    at.part = share.part;
    at.kv_head = at.part % p.kv_heads;
    at.step = share.step;
    __syncthreads();

    u32 ring = (u32)__cvta_generic_to_shared(memory) + warp * STAGES * 2 * HALF;
    Walk ahead = at;
    u32 started = 0;
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
    // What is read once pushes neither weights out of the cache nor what was brought near.
    u64 policy = leaves_first();
    auto start = [&](u32 stage) {
        if (started < end) {
            started++;
            u32 from = ahead.step * STEP + warp * SLICE;
            if (is_seen(ahead, from)) {
                u32 keys = ring + stage * 2 * HALF;
                u64 slot = slot_in(ahead, page, from);
                fetch_half(keys, p.keys, slot, p.slots, policy);
                fetch_half(keys + HALF, p.values, slot, p.slots, policy);
            }
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
    u32 copied = 0;
    auto first_head = [&](const Walk& walk) {
        return walk.kv_head * (p.q_count / p.kv_heads) + walk.part / p.kv_heads * GROUP;
    };
    auto copy_rows = [&]() {
        const float* row = p.q + (u64)next.t * p.q_stride;
        for (u32 h = warp; h < GROUP + (fused ? 2 : 0); h += WARPS) {
            u32 from = h < GROUP ? p.q_offset + (first_head(next) + h) * HEAD : (h == GROUP ? p.k_offset : p.v_offset) + next.kv_head * HEAD;
            if (p.narrow) {
                if (lane < HEAD / 8) copy16(shared_address(&s.queries[h][4 * lane]), (const u8*)((const u16*)row + from + 8 * lane), 16);
            } else if (lane < HEAD / 4)
                copy16((u32)__cvta_generic_to_shared(&s.queries[h][4 * lane]), (const u8*)(row + from + 4 * lane), 16);
        }
        if (fused) newest_page = page_at(next, next.position);
    };

    // Of a head that several blocks share: where its costs begin and end, the blocks that have a piece, and how
    // many of these have told so.
    u32 costs = s.before[p.n] * parts;
    Shares shares(costs, gridDim.x < costs ? gridDim.x : costs);
    auto begin_of = [&](u32 row, u32 part) { return s.before[row] * parts + part * (s.before[row + 1] - s.before[row]); };
    auto first_block_of = [&](u32 row, u32 part) { return shares.block_of(begin_of(row, part) + HEAD_COST); };
    auto last_block_of = [&](u32 row, u32 part) { return shares.block_of(begin_of(row, part + 1) - 1); };
    auto others_of = [&](u32 row, u32 part) { return last_block_of(row, part) - first_block_of(row, part); };
    auto arrived_at = [&](u32 row, u32 part) { return p.arrived + row * parts + part; };
    // Tells of a piece that all threads have left; whoever comes last joins them all.
    auto tell = [&](u32 slot, u32 row, u32 part) {
        __threadfence();
        s.is_last[slot] = atomicAdd(arrived_at(row, part), 1) == others_of(row, part);
        if (s.is_last[slot]) *arrived_at(row, part) = 0;
    };

    const float log2e = 1.4426950408889634f;
    float sum[HEAD / 16][4], base[2], total[2];
    u32 q[HEAD / 16][2], stage = 0, turned = FULL;
    bool fresh = true, waited = !fused, copies = false;
    u32 inside = 0;
    // Heads that it shares with others: its first, its last, or neither.
    u32 left = 0, told = 0, left_row[2] = {}, left_part[2] = {};
    for (u32 now = 0; now < end; now++) {
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
            bool ends = now + (at.last - at.step) < end, owner = fused && ends;
            // The end of another block's head was this block's first: the others learn of it long before they
            // need it. So may this block, of the head that it begins last.
            if (threadIdx.x == 32 * (WARPS - 1)) {
                if (left & ~told) tell(0, left_row[0], left_part[0]);
                if (!ends && at.step == at.first) {
                    u32 came;
                    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(came) : "l"(arrived_at(at.t, at.part)) : "memory");
                    s.others_came = came == others_of(at.t, at.part);
                }
            }
            told = left;
            for (u32 h = warp; h < GROUP + (owner ? 2 : 0); h += WARPS) {
                float own[HEAD / 32], *to = s.queries[h];
#pragma unroll
                for (u32 i = 0; i < HEAD / 32; i++) own[i] = s.queries[h][lane + 32 * i];
                if (fused && h <= GROUP) {
                    turn_known(to, own, h < GROUP ? q_norm : k_norm, p.eps, s.turns, p.rotary, p.style);
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
                    const float* query = s.queries[g < GROUP ? g : 0];
                    u32 element = query_element(lane, k, r);
                    q[k][r] = p.narrow ? ((const u32*)query)[element / 2] : PAIR(query[element] * factor, query[element + 1] * factor);
                    if (g >= GROUP) q[k][r] = 0;
                }
#pragma unroll
            for (u32 i = 0; i < HEAD / 16; i++) sum[i][0] = sum[i][1] = sum[i][2] = sum[i][3] = 0.0f;
            base[0] = base[1] = -INFINITE;
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
                put_newest(keys, keys + HALF, at.position - from, s.newest, s.newest_scales);
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
            float most[2] = {fmaxf(score[0], score[2]), fmaxf(score[1], score[3])};
            if (__any_sync(FULL, most[0] > base[0] + ABOVE_BASE || most[1] > base[1] + ABOVE_BASE)) {
#pragma unroll
                for (u32 e = 0; e < 2; e++) {
                    float before = base[e];
#pragma unroll
                    for (u32 far = 4; far < 32; far <<= 1) most[e] = fmaxf(most[e], __shfl_xor_sync(FULL, most[e], far));
                    base[e] = fmaxf(before, most[e]);
                    float keep = power_of_two(before - base[e]);
                    total[e] *= keep;
#pragma unroll
                    for (u32 i = 0; i < HEAD / 16; i++) { sum[i][e] *= keep; sum[i][e + 2] *= keep; }
                }
            }
#pragma unroll
            for (u32 e = 0; e < 4; e++) { score[e] = power_of_two(score[e] - base[e % 2]); total[e % 2] += score[e]; }
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
                if (g == 0) { s.base[warp][head] = base[e]; s.total[warp][head] = total[e]; }
            }
            __syncthreads();
            bool whole = !inside && at.step == at.last, joins = !inside && !whole && s.others_came;
            u32 one = joins ? first_block_of(at.t, at.part) : 0, other = joins ? last_block_of(at.t, at.part) : 0;
            u32 slot = inside || now == at.step - at.first ? 0 : 1;
            float* piece = p.pieces + (2 * blockIdx.x + slot) * (u64)(GROUP * PIECE);
            for (u32 i = 4 * threadIdx.x; i < GROUP * HEAD; i += 4 * 32 * WARPS) {
                u32 h = i / HEAD;
                float most = -INFINITE, all = 0.0f;
                float4 value = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
                for (u32 w = 0; w < WARPS; w++) most = fmaxf(most, s.base[w][h]);
#pragma unroll
                for (u32 w = 0; w < WARPS; w++) {
                    float keep = exp2f(s.base[w][h] - most);
                    all += s.total[w][h] * keep;
                    value = plus(value, scaled(*(const float4*)&sums_of(w)[h][i % HEAD], keep));
                }
                for (u32 b = one + 1; b <= other; b++) join(most, all, value, p.pieces + 2 * b * (u64)(GROUP * PIECE) + h * PIECE, i % HEAD);
                if (whole | joins) finish(p, at.t, first_head(at) + h, i % HEAD, most, all, value);
                else {
                    *(float4*)(piece + h * PIECE + i % HEAD) = value;
                    if (i % HEAD == 0) *(float2*)(piece + h * PIECE + HEAD) = make_float2(most, all);
                }
            }
            if (joins && threadIdx.x == 0) *arrived_at(at.t, at.part) = 0;
            if (!(whole | joins)) {
                left |= 1 << slot;
                if (slot == 0) { left_row[0] = at.t; left_part[0] = at.part; }
                else { left_row[1] = at.t; left_part[1] = at.part; }
            }
        }
        at.advance(p, s.before, parts);
    }
    if (left == 0) return;

    // Who comes last to a head that several blocks share joins their pieces of it.
    __syncthreads();
#pragma unroll
    for (u32 i = 0; i < 2; i++)
        if (threadIdx.x == i && (left & ~told) >> i & 1) tell(i, left_row[i], left_part[i]);
    __syncthreads();
#pragma unroll
    for (u32 n = 0; n < 2; n++) {
        if (!(left >> n & 1) || !s.is_last[n]) continue;
        __threadfence();
        u32 row = left_row[n], part = left_part[n], head = begin_of(row, part), one = first_block_of(row, part), other = last_block_of(row, part);
        u32 heads = part % p.kv_heads * (p.q_count / p.kv_heads) + part / p.kv_heads * GROUP;
        for (u32 i = 4 * threadIdx.x; i < GROUP * HEAD; i += 4 * 32 * WARPS) {
            u32 h = i / HEAD;
            float most = -INFINITE, all = 0.0f;
            float4 value = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            for (u32 b = one; b <= other; b++) {
                bool second = b == one && shares.begin_of(b) < head;
                join(most, all, value, p.pieces + (2 * b + second) * (u64)(GROUP * PIECE) + h * PIECE, i % HEAD);
            }
            finish(p, row, heads + h, i % HEAD, most, all, value);
        }
    }
}
