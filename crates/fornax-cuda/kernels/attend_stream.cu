//! Attention of many rows with one new token each, at the speed at which memory can be read.
//!
//! All positions of all rows and KV heads form one list of steps, whatever the rows' lengths. Each block
//! takes a share of them that costs as much as any other: a head that it begins is as long as some steps.
//! Shares are the same in all layers alike, and are dealt once a step by a launch of their own.
//! A warp copies its positions to a ring in shared memory ahead of its step, over the ends of rows, and
//! multiplies on the tensor cores: the GROUP query heads of a KV head are columns of one matrix. Blocks that
//! share a head leave pieces of it, which the one that begins it joins to its own: it comes there last, for that
//! is its last head and the others' first. Compiled for GROUP, HEAD and TYPE, for what most models need (PLAIN), and as
//! `src/kernels/attend_stream.rs` has it for WARPS of a block, BLOCKS of a multiprocessor, STAGES of a ring, KNOWN heads,
//! MOST_ROWS and ROOM.

#define STEP (WARPS * SLICE)
// What it costs to begin a head, whose queries are turned, in steps: as much as 128 positions on an H200.
#define HEAD_COST (128 / STEP)
#define PIECE (HEAD + 4) // a head's sums, the base of their powers and their total; as a whole for 16 bytes at once

/// A KV head of a row to attend to: which row, which of the parts that its query heads make, what the row's newest
/// position says, where its pages are, and what one KV head of all rows before it and of this one costs.
struct Head {
    u32 t, part, kv_head, table, position, before, cost;

    __device__ __forceinline__ void enter(const Attend& p, u32 row) {
        t = row;
        position = p.tokens[row].position;
        table = p.rows[row].table;
        before = p.before[row];
        cost = p.before[row + 1] - before;
    }
};

/// A place in the walk over steps: in which of the block's heads, at which step of that, and the head's newest position.
struct Place { u32 head, step, position; };

// A warp knows of the head it is at, and of those that it copies from, which may be short.
static_assert(KNOWN > STAGES, "one for each step that is copied ahead");

struct Shared {
    // Of a head as the projection has it: queries, the newest key and value; sines and cosines.
    __align__(16) float rows[GROUP + 3][HEAD];
    float norms[2][HEAD]; // of queries and of keys, which each head would wait for
    Products::Room queries[GROUP]; // of the head that is attended to
    float base[WARPS][GROUP], total[WARPS][GROUP];
    __align__(16) u8 newest[2][ROW_BYTES];
    u16 newest_scales[2][HEAD / 32];
    Head heads[WARPS][KNOWN]; // seldom wanted: in registers they would be in the way of all else
    u32 copied[WARPS]; // the step at which what the next head needs was asked for
    u32 costs, others; // of all rows; blocks whose pieces this one has joined
};

static_assert(WARPS * STAGES * 2 * HALF + sizeof(Shared) <= ROOM, "what the host leaves for it");

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

/// Deals the steps to `blocks` blocks, with a thread for each row and then for each block. The rows that are
/// attended to come before all others. Further blocks find sines and cosines of all rows' pairs. What is launched
/// behind it begins when it has ended, so that `attend_stream` reads shares while it still waits for its turn.
KERNEL __launch_bounds__(MOST_ROWS) void deal_shares(const __grid_constant__ Attend p, u32 blocks) {
    __shared__ u32 before[MOST_ROWS + 1], costs_of_warps[MOST_ROWS / 32];
    wait_for_previous();
    if (blockIdx.x > 0) {
        u32 i = (blockIdx.x - 1) * MOST_ROWS + threadIdx.x, row = i / (HEAD / 2), pair = i % (HEAD / 2);
        if (row >= p.n) return;
        float sine = 0.0f, cosine = 1.0f;
        if (pair < p.rotary / 2) {
            sincosf(__fmul_rn((float)p.tokens[row].position, p.frequencies[pair]), &sine, &cosine);
            sine *= p.magnitude;
            cosine *= p.magnitude;
        }
        p.turns[i] = make_float2(sine, cosine);
        return;
    }
    u32 tid = threadIdx.x, lane = tid % 32, parts = p.q_count / GROUP, until = 0;
    if (tid < p.n && leads_alone(p, tid)) {
        u32 position = p.tokens[tid].position;
        until = HEAD_COST + position / STEP - first_seen(position, window_of(p)) / STEP + 1;
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
            start.before = before[row];
            start.cost = each;
            start.step = first_seen(start.position, window_of(p)) / STEP + step_of(inside % each);
        }
        p.starts[b] = start;
    }
}

/// Four elements of a head's result, with the sink where there is one.
DEVICE void finish(const Attend& p, u32 t, u32 head, u32 element, float most, float all, float4 v) {
    float scale = 1.0f;
    if (const float* sinks = sinks_of(p)) {
        float sink = sinks[head] * 1.4426950408889634f, larger = fmaxf(sink, most);
        scale = exp2f(most - larger);
        all = all * scale + exp2f(sink - larger);
    }
    u64 to = ((u64)t * p.q_count + head) * HEAD + element;
    v = make_float4(v.x * scale / all, v.y * scale / all, v.z * scale / all, v.w * scale / all);
    if (p.dense) store_brains(p.dense + to, p.dense_apart, v);
    else *(float4*)(p.out + to) = v;
}
DEVICE float4 scaled(float4 v, float by) { return make_float4(v.x * by, v.y * by, v.z * by, v.w * by); }
DEVICE float4 plus(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

/// A number of a piece as a word that says itself that it is there: no flag beside it and no fence before it,
/// and zero while it is not. Only a NaN that no arithmetic makes would be zero, and is made another.
DEVICE u32 left_word(float x) { return max(~__float_as_uint(x), 1u); }
DEVICE void leave(u32* at, float4 v) {
    asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(at), "r"(left_word(v.x)), "r"(left_word(v.y)), "r"(left_word(v.z)), "r"(left_word(v.w)) : "memory");
}
DEVICE void leave(u32* at, float2 v) {
    asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1,%2};" ::"l"(at), "r"(left_word(v.x)), "r"(left_word(v.y)) : "memory");
}
DEVICE bool are_there(uint4 words) { return words.x != 0 & words.y != 0 & words.z != 0 & words.w != 0; }
DEVICE bool are_there(uint2 words) { return words.x != 0 & words.y != 0; }
DEVICE float number_left(u32 word) { return __uint_as_float(~word); }

/// Joins four elements of a head with those of the pieces that `others` blocks leave of it, as they come.
DEVICE void join(float& most, float& all, float4& value, const u32* pieces, u32 others, u32 element) {
    constexpr u32 AT_ONCE = 4; // is asked for before anything is waited for
    for (u32 first = 0; first < others; first += AT_ONCE) {
        uint4 sums[AT_ONCE];
        uint2 bases[AT_ONCE]; // and totals
        Patience patience;
        for (bool there = false; !there;) {
            const u32* piece = pieces + first * (GROUP * PIECE);
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; i++, piece += GROUP * PIECE) {
                // What only some loads give a value would have its register from the kernel's beginning on.
                sums[i] = make_uint4(0, 0, 0, 0);
                bases[i] = make_uint2(0, 0);
                if (first + i >= others) continue;
                sums[i] = look_four(piece + element);
                bases[i] = look_two(piece + HEAD);
            }
            there = true;
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; i++) {
                if (first + i >= others) break;
                there &= are_there(sums[i]) & are_there(bases[i]);
            }
            if (!there) patience.wait();
        }
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) {
            if (first + i >= others) break;
            float its = number_left(bases[i].x), larger = fmaxf(most, its), keep = exp2f(most - larger), scale = exp2f(its - larger);
            all = all * keep + number_left(bases[i].y) * scale;
            float4 sum = make_float4(number_left(sums[i].x), number_left(sums[i].y), number_left(sums[i].z), number_left(sums[i].w));
            value = plus(scaled(value, keep), scaled(sum, scale));
            most = larger;
        }
    }
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
    u32 parts = p.q_count / GROUP, shift = __ffs(p.page_size) - 1, window = window_of(p);
    if (threadIdx.x == 0) {
        s.costs = p.before[p.n] * parts;
        s.others = 0;
    }

    // This block's share, which was dealt before: its first head needs no more to be asked for.
    Start share = p.starts[blockIdx.x];
    if (share.count == 0) { if (fused) wait_for_previous(); return; }
    u32 end = share.count;
    Head* heads = s.heads[warp];
    auto keep_head = [&](u32 number, const Head& head) {
        if (lane == 0) heads[number % KNOWN] = head;
        __syncwarp();
    };
    keep_head(0, Head{share.row, share.part, share.part % p.kv_heads, share.table, share.position, share.before, share.cost});
    // What comes behind a head, of which there is one while the block has steps left.
    auto follow = [&](u32 number) {
        Head head = heads[number % KNOWN];
        if (++head.kv_head == p.kv_heads) head.kv_head = 0;
        if (++head.part == parts) {
            u32 row = head.t + 1;
            while (p.before[row + 1] == p.before[row]) row++;
            head.part = 0;
            head.enter(p, row);
        }
        keep_head(number + 1, head);
    };
    Place ahead = {0, share.step, share.position}; // what is copied next

    u32 ring = (u32)__cvta_generic_to_shared(memory) + warp * STAGES * 2 * HALF;
    auto slot_in = [&](u32 kv_head, u32 page, u32 position) {
        return (page * p.kv_heads + kv_head << shift) + (position & (p.page_size - 1));
    };
    auto is_seen = [&](u32 position, u32 from) { // whether any of a slice is, by a row's newest position
        return (PLAIN || from + SLICE > first_seen(position, window)) && from <= position;
    };
    // The page of a slice is looked up a step before it is copied.
    u32 page = 0;
    auto look_up = [&]() {
        u32 from = ahead.step * STEP + warp * SLICE;
        if (is_seen(ahead.position, from)) page = p.tables[heads[ahead.head % KNOWN].table + (from >> shift)];
    };
    look_up();
    // What is read once pushes neither weights out of the cache nor what was brought near.
    u64 policy = leaves_first();
    auto start = [&](u32 step) {
        if (step < end) {
            u32 from = ahead.step * STEP + warp * SLICE;
            if (is_seen(ahead.position, from)) {
                u32 keys = ring + step % STAGES * 2 * HALF;
                u32 slot = slot_in(heads[ahead.head % KNOWN].kv_head, page, from);
                fetch_half(keys, p.keys, slot, p.slots, policy);
                fetch_half(keys + HALF, p.values, slot, p.slots, policy);
            }
            if (step + 1 < end) {
                if (ahead.step++ == ahead.position / STEP) {
                    follow(ahead.head++);
                    ahead.position = heads[ahead.head % KNOWN].position;
                    ahead.step = first_seen(ahead.position, window) / STEP;
                }
                look_up();
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
#pragma unroll
    for (u32 step = 0; step + 1 < STAGES; step++) start(step);

    // What a head needs of the fused projection comes while the one before it is attended to.
    auto first_head = [&](const Head& head) {
        return head.kv_head * (p.q_count / p.kv_heads) + head.part / p.kv_heads * GROUP;
    };
    u32 rows = GROUP + (fused ? 3 : 0), row_chunks = HEAD / (p.narrow ? 8 : 4); // of 16 bytes; narrow ones are turned
    auto copy_rows = [&](const Head& head) {
        auto row_at = [&](u32 h) {
            if (h == GROUP + 2) return (const u8*)(p.turns + (u64)head.t * (HEAD / 2));
            u32 from = h < GROUP ? p.q_offset + (first_head(head) + h) * HEAD : (h == GROUP ? p.k_offset : p.v_offset) + head.kv_head * HEAD;
            const float* row = p.q + (u64)head.t * p.q_stride;
            return p.narrow ? (const u8*)((const u16*)row + from) : (const u8*)(row + from);
        };
        for (u32 h = warp; h < rows; h += WARPS)
            if (lane < row_chunks) copy16(shared_address(&s.rows[h][4 * lane]), row_at(h) + 16 * lane);
    };

    const float log2e = 1.4426950408889634f, cap = cap_of(p), factor = cap > 0.0f ? p.scale : p.scale * log2e;
    constexpr u32 HEADS = Products::HEADS;
    u32 now = 0; // of the block's steps
    for (u32 number = 0; now < end; number++) {
        const Head& head = heads[number % KNOWN];
        u32 position = head.position, begin = first_seen(position, window), step = number == 0 ? share.step : begin / STEP;
        bool inside = step != begin / STEP; // of a head that another block began
        u32 until = now + position / STEP - step + 1;
        bool ends = until <= end; // has its last step
        until = ends ? until : end;
        if (now == 0) {
            if (fused) wait_for_previous();
            copy_rows(head);
            asm volatile("cp.async.commit_group;" ::: "memory");
            asm volatile("cp.async.wait_group 0;" ::: "memory");
        } else if (now - s.copied[warp] < STAGES) asm volatile("cp.async.wait_group 0;" ::: "memory"); // older ones have ended
        u32 newest_page = fused && ends ? p.tables[head.table + (head.position >> shift)] : 0;
        __syncthreads();
        const float2* turns = (const float2*)s.rows[GROUP + 2];
        for (u32 h = warp; h < GROUP; h += WARPS) {
            if (p.narrow) { Products::prepare_narrow((const u16*)s.rows[h], s.queries[h]); continue; }
            Pairs query(p.rotary, p.style);
            query.load(s.rows[h]);
            if (fused) query.turn(q_norm, p.eps, turns);
            query.scale(factor);
            Products::prepare(query, s.queries[h]);
        }
        __syncthreads();
        Products products;
        products.take(s.queries);
        // The last of the stages is begun here: sooner it keeps rows waiting, and then what turns them.
        if (now == 0) start(STAGES - 1);
        // Who has the last step of a head has its newest key and value.
        for (u32 h = GROUP; fused && ends && h < GROUP + 2; h++) {
            if (h % WARPS != warp) continue;
            float* newest = s.rows[h];
            if (h == GROUP) {
                Pairs key(p.rotary, p.style);
                key.load(newest);
                key.turn(k_norm, p.eps, turns);
                key.store(newest);
                __syncwarp();
            }
            u32 slot = slot_in(head.kv_head, newest_page, head.position);
            keep_newest(h == GROUP ? p.keys : p.values, slot, p.slots, newest, s.newest[h - GROUP], s.newest_scales[h - GROUP]);
        }
        __syncthreads();
        if (until < end) {
            follow(number);
            copy_rows(heads[(number + 1) % KNOWN]);
            if (lane == 0) s.copied[warp] = now;
            __syncwarp();
        }
        float sum[HEAD / 16][4] = {}, base[HEADS], total[HEADS] = {};
#pragma unroll
        for (u32 e = 0; e < HEADS; e++) base[e] = -INFINITE;
        for (; now < until; now++, step++) {
            __syncwarp();
            if (now > 0) {
                start(now + STAGES - 1);
                asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 1) : "memory");
            } else { // all stages were begun
                asm volatile("cp.async.commit_group;" ::: "memory");
                asm volatile("cp.async.wait_group %0;" ::"n"(STAGES) : "memory");
            }
            __syncwarp();
            u32 from = step * STEP + warp * SLICE, keys = ring + now % STAGES * 2 * HALF;
            if (is_seen(position, from)) {
                if (position - from < SLICE) {
                    clear_behind(keys + HALF, position - from + 1);
                    __syncwarp();
                }
                if (fused && position - from < SLICE) {
                    // The newest position was not in the cache when the copy began.
                    put_newest(keys, keys + HALF, position - from, s.newest, s.newest_scales);
                    __syncwarp();
                }
                float score[2 * HEADS] = {};
                products.scores(score, keys);
                if (from < begin || from + SLICE > position + 1 || cap > 0.0f)
#pragma unroll
                    for (u32 e = 0; e < 2 * HEADS; e++) {
                        u32 its = from + g + e / HEADS * 8;
                        if (cap > 0.0f) score[e] = capped(score[e], cap) * log2e;
                        if (its < begin || its > position) score[e] = -INFINITE;
                    }
                float most[HEADS];
                bool above = false;
#pragma unroll
                for (u32 e = 0; e < HEADS; e++) {
                    most[e] = fmaxf(score[e], score[e + HEADS]);
                    above |= most[e] > base[e] + Products::ABOVE;
                }
                if (__any_sync(FULL, above)) {
#pragma unroll
                    for (u32 e = 0; e < HEADS; e++) {
                        float before = base[e];
#pragma unroll
                        for (u32 far = 4; far < 32; far <<= 1) most[e] = fmaxf(most[e], __shfl_xor_sync(FULL, most[e], far));
                        base[e] = fmaxf(before, most[e] - Products::BELOW);
                        float keep = power_of_two(before - base[e]);
                        total[e] *= keep;
#pragma unroll
                        for (u32 i = 0; i < HEAD / 16; i++)
#pragma unroll
                            for (u32 c = e; c < 4; c += HEADS) sum[i][c] *= keep;
                    }
                }
#pragma unroll
                for (u32 e = 0; e < 2 * HEADS; e++) {
                    score[e] = power_of_two(score[e] - base[e % HEADS]);
                    total[e % HEADS] += score[e];
                }
                products.add(sum, score, keys + HALF);
            }
        }

        // The warps' sums become the block's, and the block's a result or a piece of one. They meet
        // where the slices were that were multiplied last.
        auto sums_of = [&](u32 w) { return (float(*)[HEAD])(memory + (w * STAGES + (until - 1) % STAGES) * 2 * HALF); };
        float (*sums)[HEAD] = sums_of(warp);
        __syncwarp();
        products.leave(sums, sum);
#pragma unroll
        for (u32 e = 0; e < HEADS; e++) {
#pragma unroll
            for (u32 far = 4; far < 32; far <<= 1) total[e] += __shfl_xor_sync(FULL, total[e], far);
            u32 h = products.head_of(e);
            if (h < GROUP && g == 0) { s.base[warp][h] = base[e]; s.total[warp][h] = total[e]; }
        }
        __syncthreads();
        // Who begins a head gives its result, and all others leave what they have of it.
        u32 others = 0;
        if (!inside) {
            Shares shares(s.costs, gridDim.x < s.costs ? gridDim.x : s.costs);
            others = shares.block_of(head.before * parts + (head.part + 1) * head.cost - 1) - blockIdx.x;
            if (threadIdx.x == 0) s.others = others;
        }
        u32* pieces = p.pieces + (u64)blockIdx.x * (GROUP * PIECE);
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
            if (!inside) {
                join(most, all, value, pieces + GROUP * PIECE + h * PIECE, others, i % HEAD);
                finish(p, head.t, first_head(head) + h, i % HEAD, most, all, value);
            } else {
                leave(pieces + h * PIECE + i % HEAD, value);
                if (i % HEAD == 0) leave(pieces + h * PIECE + HEAD, make_float2(most, all));
            }
        }
    }
    // What was joined is not there any more.
    __syncthreads();
    u32 others = s.others;
    if (others == 0) return;
    uint4* joined = (uint4*)(p.pieces + (u64)(blockIdx.x + 1) * (GROUP * PIECE));
    for (u32 i = threadIdx.x; i < others * (GROUP * PIECE) / 4; i += 32 * WARPS) joined[i] = make_uint4(0, 0, 0, 0);
}
