//! A whole run of products and attention for one single token in one launch.
//!
//! A launch after a launch costs a microsecond, in which the memory is idle. Here one block for each
//! multiprocessor stays for all links of the chain. One warp of it fetches its share of every matrix
//! through a ring of shared memory, from the first link to the last without ever waiting for a result;
//! the others compute. What a link gives goes to the next one through the device's cache, word by word:
//! the lowest bits of each number say which link of which launch wrote it, so that who reads it sees by
//! itself whether it is there, and no block waits for another anywhere else.
//!
//! All blocks must run at once. Compiled for one FORMAT of weights, and for attention as `heads.cu`.
//!
//! Bytes: every weight once. Least time: those over the bandwidth of the device's memory.

#define WARPS 8
#define THREADS (32 * WARPS + 32)
#define ROWS 8
/// Tiles that are multiplied together, or twice as many as pairs of them.
#define BATCH 8
/// Tiles in the ring at most.
#define SLOTS 64
#define TOGETHER 2
#define STRIDE (SIDE * TOGETHER)
/// Warps that have one query head, and positions that they see at once.
#define OF_HEAD (WARPS / GROUP)
#define TURN (OF_HEAD * STRIDE)
/// Copies of every word: who looks for one asks for it again and again, and all blocks at one place would
/// wait for one another there.
#define COPIES 8
/// Blocks that share a row of attention at most.
#define MOST_SPLITS 16

#define PRODUCT 0
#define ATTENTION 1

/// One product or one attention. As the host lays it out.
struct Link {
    u32 kind;
    u32 tag, stride;           // of its results: which of the writes to their place in a launch, of how many
    u32 from_tag, from_stride; // of its input
    u32 batch;                 // tiles that are multiplied together
    u32 parts;                 // of the search for the largest logit
    u32 of_each;               // tiles of every block, and one more of the first `one_more`
    u32 one_more;
    u32 from_apart, to_apart;  // words from a copy to the next
    u32 spare;
    const u32* from;           // its input as tagged words; null where that was there before the launch
    u32* to;                   // where its results go as such; null where no link reads them
    u64* pieces;               // of attention: what blocks that share a row tell one another
    u64* totals;
    union { Product product; Attend attend; };
};

/// Where the weights of a product are.
struct Source { const u8* weight; u32 rows, pitch, second, spare; };

struct Chain {
    const Link* links;
    const Source* sources;
    u32* state; // launches so far, and blocks that are done with this one
    u64* told;  // all pieces and totals of attention
    const Token* tokens;
    const Row* rows;
    u32 links_count, sources_count, told_count;
    u32 q_count, kv_heads;
    u32 ring, left; // bytes of the ring, and of a token as it is multiplied
};

// Words and whom they are from. A number loses its lowest four bits.
DEVICE u32 tagged(float x, u32 tag) { return (__float_as_uint(x) & ~15u) | tag; }
DEVICE float number_of(u32 word) { return __uint_as_float(word & ~15u); }
DEVICE void tell(u32* at, float x, u32 tag) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(tagged(x, tag)) : "memory");
}
DEVICE u32 look(const u32* at) {
    u32 word;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(at) : "memory");
    return word;
}
DEVICE uint4 look_four(const u32* at) {
    uint4 v;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at) : "memory");
    return v;
}
// The same with 32 bits to say it: for what not every launch writes.
DEVICE void tell_whole(u64* at, float x, u32 tag) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(at), "l"((u64)tag << 32 | __float_as_uint(x)) : "memory");
}
DEVICE u64 look_whole(const u64* at) {
    u64 word;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(at) : "memory");
    return word;
}
DEVICE bool are_from(const uint4& a, const uint4& b, u32 tag) {
    return (((a.x ^ tag) | (a.y ^ tag) | (a.z ^ tag) | (a.w ^ tag) | (b.x ^ tag) | (b.y ^ tag) | (b.z ^ tag) | (b.w ^ tag)) & 15) == 0;
}
DEVICE bool is_from_whole(u64 word, u32 tag) { return (u32)(word >> 32) == tag; }

/// Counts looks in vain, and ends a launch that waits for what will never come: seconds, where a link
/// takes microseconds.
struct Patience {
    u32 looks = 0;
    __device__ __forceinline__ void wait() {
        if (++looks > 1 << 24) asm volatile("trap;");
    }
};

/// Only those that compute.
DEVICE void meet() {
    __syncwarp();
    asm volatile("bar.sync 1, 256;" ::: "memory");
}

/// Which of the tiles of the ring a block is at, and how its warps use what they share.
struct Shared {
    u64 barriers[2 * SLOTS];
    u32 begins[SLOTS];
    Link links[4];
    float totals[2][WARPS], sums[2][BATCH][ROWS][WARPS];
    uint4 best[ROWS * BATCH];
    float2 turns[HEAD / 2];
    float norms[GROUP + 1][HEAD];
};
struct Attending {
    float queries[GROUP][HEAD], newest[2][HEAD];
    float largest_of[WARPS], total_of[WARPS];
    float sums[WARPS][HEAD];
};

/// Fetches this block's tiles of every product, in the order in which they are multiplied. Called by
/// one thread.
DEVICE void fetch_all(const Chain& c, Shared& s, u8* ring) {
#if __CUDA_ARCH__ >= 900
    u32 full = shared_address(s.barriers), empty = full + 8 * SLOTS, next = 0, oldest = 0, head = 0;
    u64 policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    auto copy = [&](u32 to, const u8* from, u32 bytes, u32 barrier) {
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
                         shared_address(ring) + to), "l"(from), "r"(bytes), "r"(barrier), "l"(policy) : "memory");
    };
    auto let_go_of_oldest = [&] {
        barrier_wait(empty + 8 * (oldest % SLOTS), oldest / SLOTS & 1);
        oldest++;
    };
    Source ahead = c.sources[0];
    for (u32 i = 0; i < c.sources_count; i++) {
        Source source = ahead;
        if (i + 1 < c.sources_count) ahead = c.sources[i + 1];
        u32 tiles = (source.rows + ROWS - 1) / ROWS, half = ROWS * source.pitch;
        u32 size = ((source.second ? 2 : 1) * half + 127) / 128 * 128;
        for (u32 tile = blockIdx.x; tile < tiles; tile += gridDim.x, next++) {
            if (next - oldest == SLOTS) let_go_of_oldest();
            if (head + size > c.ring) {
                // What lies behind the head is older than all before it.
                while (oldest < next && s.begins[oldest % SLOTS] >= head) let_go_of_oldest();
                head = 0;
            }
            while (oldest < next && s.begins[oldest % SLOTS] >= head && s.begins[oldest % SLOTS] < head + size) let_go_of_oldest();
            u32 first = tile * ROWS, count = source.rows - first < ROWS ? source.rows - first : ROWS, bytes = count * source.pitch;
            u32 barrier = full + 8 * (next % SLOTS);
            s.begins[next % SLOTS] = head;
            asm volatile("{ .reg .b64 t; mbarrier.arrive.expect_tx.shared.b64 t, [%0], %1; }" ::"r"(barrier), "r"(source.second ? 2 * bytes : bytes) : "memory");
            copy(head, source.weight + (u64)first * source.pitch, bytes, barrier);
            if (source.second) copy(head + half, source.weight + (u64)(source.second + first) * source.pitch, bytes, barrier);
            head += size;
        }
    }
#endif
}

/// The sums of a tile's rows over a warp: lane 4r has that of row r.
DEVICE float fold(const float (&y)[ROWS]) {
    u32 lane = threadIdx.x % 32;
    float four[4], two[2];
#pragma unroll
    for (u32 i = 0; i < 4; i++) four[i] = (lane & 16 ? y[i + 4] : y[i]) + __shfl_xor_sync(FULL, lane & 16 ? y[i] : y[i + 4], 16);
#pragma unroll
    for (u32 i = 0; i < 2; i++) two[i] = (lane & 8 ? four[i + 2] : four[i]) + __shfl_xor_sync(FULL, lane & 8 ? four[i] : four[i + 2], 8);
    float sum = (lane & 4 ? two[1] : two[0]) + __shfl_xor_sync(FULL, lane & 4 ? two[0] : two[1], 4);
    sum += __shfl_xor_sync(FULL, sum, 2);
    return sum + __shfl_xor_sync(FULL, sum, 1);
}

/// What a thread of a block keeps from link to link.
struct Thread {
    u32 next = 0;    // tiles that were multiplied
    u32 batches = 0; // of them
    u32 position;    // of the token
    u32 table;       // where its pages begin in each group's tables
    // Of attention: blocks of a row, which of them this one is, and how many of those there are; its heads.
    u32 parts, part, rank, kv_head, subgroup, subgroups;
    u32 epoch;      // launches before this one
    u32 link = 0;
    u64 ahead;      // a word of a link to come
    const float* turned_by = nullptr; // what the known sines and cosines are of

    __device__ __forceinline__ u32 tag_of(u32 tag, u32 stride) const { return (epoch * stride + tag) & 15; }
};

/// Keeps the link after the next, which was loaded meanwhile. Its place is not read any more: who comes
/// here has met all others since.
DEVICE void keep_ahead(Shared& s, const Thread& t) {
    if (threadIdx.x < sizeof(Link) / 8) ((u64*)&s.links[(t.link + 2) % 4])[threadIdx.x] = t.ahead;
}

/// A product: norm, multiplication, activation and sum. A thread has eight columns of all rows, or eight
/// of every 2048; where there are 1024 columns at most, half of the warps have every other tile.
DEVICE void multiply_link(Shared& s, const Link& link, Thread& t, const u8* ring, Octet* octets) {
    const Product& p = link.product;
    u32 tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
    u32 padded = p.padded, mine = link.of_each + (blockIdx.x < link.one_more ? 1 : 0);
    // Twice as many units as tiles where those are of pairs, and half as wide teams where two share them.
    u32 pair = p.second ? 1 : 0, two = padded <= 128 * WARPS ? 1 : 0, width = 32 * WARPS >> two;
    u32 team = two ? tid / (16 * WARPS) : 0, of_team = tid & (width - 1);
    float* totals = s.totals[t.link & 1];
    // What this thread ends, and all of it that is at hand before the input is.
    u32 place = tid % (ROWS * BATCH), own_copy = tid / (ROWS * BATCH), row = (blockIdx.x + place / ROWS * gridDim.x) * ROWS + place % ROWS;
    float *residual = p.residual, *out = p.out;
    const float* bias = p.bias;
    u32* to = link.to;
    u32 rows = place < ROWS * link.batch ? p.rows : 0;
    const u32* from = link.from ? link.from + blockIdx.x % COPIES * link.from_apart : nullptr;
    float total = 0.0f;
    float before = residual && row < rows ? residual[row] : 0.0f, added = bias && row < rows ? bias[row] : 0.0f;
    if (mine > 0) {
        u32 tag = t.tag_of(link.from_tag, link.from_stride), cols = p.cols;
        const float* x = p.x + (p.pick && !from ? (u64)p.pick[0] * cols : 0);
        u32 k = of_team * 8;
        uint4 a = make_uint4(0, 0, 0, 0), b = a;
        if (from && k < cols) { a = look_four(from + k); b = look_four(from + k + 4); }
        Octet* own = octets + tid;
        // Whole warps, so that a block's lanes are together.
#pragma unroll 1
        for (; k - lane * 8 < padded; k += width * 8, own += 32 * WARPS) {
            float v[8];
            bool there = k < cols;
            uint4 next_a = make_uint4(0, 0, 0, 0), next_b = next_a;
            if (from && k + width * 8 < cols) { next_a = look_four(from + k + width * 8); next_b = look_four(from + k + width * 8 + 4); }
            float4 w0 = make_float4(1.0f, 1.0f, 1.0f, 1.0f), w1 = w0;
            if (p.norm && there) { w0 = *(const float4*)(p.norm + k); w1 = *(const float4*)(p.norm + k + 4); }
            if (from) {
                Patience patience;
                while (!__all_sync(FULL, !there || are_from(a, b, tag))) {
                    patience.wait();
                    if (there) { a = look_four(from + k); b = look_four(from + k + 4); }
                }
                v[0] = number_of(a.x); v[1] = number_of(a.y); v[2] = number_of(a.z); v[3] = number_of(a.w);
                v[4] = number_of(b.x); v[5] = number_of(b.y); v[6] = number_of(b.z); v[7] = number_of(b.w);
                a = next_a;
                b = next_b;
            } else {
#pragma unroll
                for (u32 i = 0; i < 8; i++) v[i] = there ? x[k + i] : 0.0f;
            }
#pragma unroll
            for (u32 i = 0; i < 8; i++) total += v[i] * v[i];
            v[0] *= w0.x; v[1] *= w0.y; v[2] *= w0.z; v[3] *= w0.w;
            v[4] *= w1.x; v[5] *= w1.y; v[6] *= w1.z; v[7] *= w1.w;
            *own = octet_of(v);
        }
    }
    keep_ahead(s, t);

    u32 full = shared_address(s.barriers), empty = full + 8 * SLOTS, pitch = p.pitch;
    u32 to_tag = t.tag_of(link.tag, link.stride);
    float factor = 1.0f, best = -INFINITE, exponentials = 0.0f;
    u32 best_row = FULL, unsound = 0, base = 0;
#pragma unroll 1
    do {
        u32 count = mine - base < link.batch ? mine - base : link.batch;
        auto sums = s.sums[t.batches++ & 1];
#pragma unroll 1
        for (u32 unit = team; unit < count << pair; unit += 1 + two) {
            u32 tile = t.next + (unit >> pair), slot = tile % SLOTS;
            barrier_wait(full + 8 * slot, tile / SLOTS & 1);
            const u8* at = ring + s.begins[slot] + (unit & pair) * ROWS * pitch;
            float y[ROWS] = {};
#pragma unroll 1
            for (u32 k = of_team * 8, j = tid; k < padded; k += width * 8, j += 32 * WARPS) {
                Octet o = octets[j];
#pragma unroll
                for (u32 r = 0; r < ROWS; r++) y[r] += product_of(o, at + r * pitch, padded, k);
            }
            float sum = fold(y);
            if (lane % 4 == 0) sums[unit][lane / 4][of_team / 32] = sum;
        }
        if (base == 0 && p.norm) {
            total = warp_sum(total);
            if (lane == 0) totals[warp] = team == 0 ? total : 0.0f;
        }
        // All warps are done with the batch's tiles once they have met.
        meet();
        if (tid < count) barrier_arrive(empty + 8 * ((t.next + tid) % SLOTS));
        t.next += count;
        if (place / ROWS < count && row < rows) {
            if (base == 0 && p.norm) {
                float squares = 0.0f;
#pragma unroll
                for (u32 i = 0; i < WARPS; i++) squares += totals[i];
                factor = rsqrtf(__fdividef(squares, (float)p.cols) + p.eps);
            }
            auto sum_of = [&](u32 unit) {
                const float4* of_warps = (const float4*)sums[unit][place % ROWS];
                float4 a = of_warps[0];
                float sum = (a.x + a.y) + (a.z + a.w);
                if (!two) { a = of_warps[1]; sum += (a.x + a.y) + (a.z + a.w); }
                return sum * factor;
            };
            float y = sum_of(place / ROWS << pair);
            if (pair) y = gated(y, sum_of(place / ROWS * 2 + 1), p.activation, p.alpha, p.limit);
            y += before + added;
            if (to)
                for (u32 copy = own_copy; copy < COPIES; copy += 32 * WARPS / (ROWS * BATCH)) tell(to + copy * link.to_apart + row, y, to_tag);
            if (out && own_copy == 0) out[row] = y;
            if (residual && own_copy == 0) residual[row] = y;
            if (p.best) {
                if (!(y < INFINITE)) unsound = 1;
                if (y > best) { exponentials = exponentials * expf(best - y) + 1.0f; best = y; best_row = row; }
                else if (y > -INFINITE) exponentials += expf(y - best);
            }
        }
        __syncwarp();
        base += link.batch;
        row += link.batch * gridDim.x * ROWS;
        if (base < mine) {
            before = residual && row < rows ? residual[row] : 0.0f;
            added = bias && row < rows ? bias[row] : 0.0f;
        }
    } while (base < mine);
    if (!p.best) return;
    if (tid < ROWS * BATCH) s.best[tid] = make_uint4(__float_as_uint(best), best_row, __float_as_uint(exponentials), unsound);
    meet();
    if (warp > 0) return;
    uint4 one = s.best[lane], other = s.best[lane + 32];
    float most = warp_max(fmaxf(__uint_as_float(one.x), __uint_as_float(other.x)));
    auto weighed = [&](const uint4& v) { return __uint_as_float(v.z) == 0.0f ? 0.0f : __uint_as_float(v.z) * expf(__uint_as_float(v.x) - most); };
    exponentials = weighed(one) + weighed(other);
    best_row = min(__uint_as_float(one.x) == most ? one.y : FULL, __uint_as_float(other.x) == most ? other.y : FULL);
    unsound = one.w | other.w;
    exponentials = warp_sum(exponentials);
    best_row = __reduce_min_sync(FULL, best_row);
    unsound = __reduce_or_sync(FULL, unsound);
    for (u32 part = blockIdx.x + lane * gridDim.x; part < link.parts; part += 32 * gridDim.x)
        ((uint4*)p.best)[part] = lane == 0 ? make_uint4(__float_as_uint(most), best_row, __float_as_uint(exponentials), unsound)
                                           : make_uint4(__float_as_uint(-INFINITE), FULL, 0, 0);
}

/// Attention of the token, which was projected with nothing done to it since: blocks share the
/// positions of GROUP query heads of a KV head, each warp has one head, and what they saw is brought
/// together in slices.
DEVICE void attend_link(Shared& s, const Link& link, Thread& t, Attending& a) {
    const Attend& p = link.attend;
    u32 tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
    u32 parts = t.parts, part = t.part, rank = t.rank;
    u32 position = t.position, shift = __ffs(p.page_size) - 1, first = first_seen(position, p.window);
    // As many blocks as have a whole turn of positions each.
    u32 splits = 1;
    while (splits < MOST_SPLITS && 2 * splits * parts <= gridDim.x && position + 1 - first > splits * TURN) splits *= 2;
    u32 log_splits = 31 - __clz(splits);
    if (rank >= splits) {
        keep_ahead(s, t);
        meet();
        return;
    }
    u32 kv_head = t.kv_head, subgroup = t.subgroup;
    u32 first_head = (kv_head * t.subgroups + subgroup) * GROUP;
    const u32* table = p.tables + t.table;
    u32 share = position + splits - first >> log_splits;
    share = (share + STRIDE - 1) / STRIDE * STRIDE;
    u32 begin = first + rank * share, end = begin + share < position + 1 ? begin + share : position + 1;
    bool owner = begin <= position && position < end;
    if (owner) end = position;
    auto slot_of = [&](u32 at) { return ((u64)table[at >> shift] * p.kv_heads + kv_head) * p.page_size + (at & (p.page_size - 1)); };
    // Everything on its way at once: norms, then positions.
    float norm[HEAD / 32];
    if (p.q_norm && warp <= GROUP)
#pragma unroll
        for (u32 i = 0; i < HEAD / 32; i++) norm[i] = warp < GROUP ? p.q_norm[lane + 32 * i] : p.k_norm[lane + 32 * i];
    Eight k[TOGETHER], v[TOGETHER];
    u32 own_head = warp / OF_HEAD, base = begin + warp % OF_HEAD * STRIDE;
    // Those that would be of one head more than there are see nothing.
    u32 own_end = own_head < GROUP ? end : 0;
    load_positions(k, v, p, base, own_end, slot_of);

    if (t.turned_by != p.frequencies) {
        t.turned_by = p.frequencies;
        for (u32 pair = tid; pair < p.rotary / 2; pair += 32 * WARPS) {
            float sine, cosine;
            sincosf(__fmul_rn((float)position, p.frequencies[pair]), &sine, &cosine);
            s.turns[pair] = make_float2(sine * p.magnitude, cosine * p.magnitude);
        }
    }
    keep_ahead(s, t);
    meet();
    if (warp < GROUP || (warp < GROUP + 2 && owner)) {
        if (p.q_norm && warp <= GROUP)
#pragma unroll
            for (u32 i = 0; i < HEAD / 32; i++) s.norms[warp][lane + 32 * i] = norm[i];
        u32 h = warp, from = (h < GROUP ? p.q_offset + (first_head + h) * HEAD : h == GROUP ? p.k_offset + kv_head * HEAD : p.v_offset + kv_head * HEAD) + lane;
        float own[HEAD / 32];
        if (link.from) {
            u32 words[HEAD / 32], tag = t.tag_of(link.from_tag, link.from_stride);
            Patience patience;
            for (;;) {
                u32 off = 0;
#pragma unroll
                for (u32 i = 0; i < HEAD / 32; i++) words[i] = look(link.from + rank % COPIES * link.from_apart + from + 32 * i);
#pragma unroll
                for (u32 i = 0; i < HEAD / 32; i++) off |= words[i] ^ tag;
                if (__all_sync(FULL, (off & 15) == 0)) break;
                patience.wait();
            }
#pragma unroll
            for (u32 i = 0; i < HEAD / 32; i++) own[i] = number_of(words[i]);
        } else {
#pragma unroll
            for (u32 i = 0; i < HEAD / 32; i++) own[i] = p.q[from + 32 * i];
        }
        float* to = h < GROUP ? a.queries[h] : a.newest[h - GROUP];
        if (h <= GROUP) {
            turn_known(to, own, p.q_norm ? s.norms[h] : nullptr, p.eps, s.turns, p.rotary, p.style);
        } else {
#pragma unroll
            for (u32 i = 0; i < HEAD / 32; i++) to[lane + 32 * i] = own[i];
        }
        if (h >= GROUP) {
            // The newest position: to its page, and as it is there to the sums below.
            if (subgroup == 0) store_head(h == GROUP ? p.keys : p.values, slot_of(position) * HEAD, TYPE, p.slots * HEAD, to, HEAD);
            for (u32 i = lane; i < HEAD; i += 32) to[i] = rounded(to[i]);
        }
    }
    meet();

    Seen<1> seen;
    seen.begin(&a.queries[own_head < GROUP ? own_head : 0], p.scale);
#pragma unroll 1
    for (; base < own_end; base += OF_HEAD * STRIDE) {
        Eight next_k[TOGETHER], next_v[TOGETHER];
        load_positions(next_k, next_v, p, base + OF_HEAD * STRIDE, own_end, slot_of);
        seen.see(k, v, base, own_end, p.cap);
#pragma unroll
        for (u32 u = 0; u < TOGETHER; u++) { k[u] = next_k[u]; v[u] = next_v[u]; }
    }
    if (owner && warp % OF_HEAD == 0 && own_head < GROUP) seen.see_newest(a.newest, p.cap);
    __syncwarp();
    seen.leave(&a.sums[warp], &a.largest_of[warp], &a.total_of[warp]);
    meet();

    // What the warps of a head saw, for each number of the result: each number of ours to the block that
    // ends its slice, if there are several.
    u32 whole_tag = (t.epoch << 10) + t.link + 1;
    u64 *pieces = link.pieces + (u64)part * PARTS * MOST_SPLITS, *totals = link.totals + part * GROUP * MOST_SPLITS * 2;
    // `from` of `splits` threads have each number.
    auto end_one = [&](u32 i, u32 from, float value, float all, float most) {
        u32 head = first_head + i / HEAD, column = head * HEAD + i % HEAD;
        if (p.sinks) {
            float highest = fmaxf(most, p.sinks[head]), keep = __expf(most - highest);
            value *= keep;
            all = all * keep + __expf(p.sinks[head] - highest);
        }
        float out = __fdividef(value, all);
        if (link.to)
            for (u32 copy = from; copy < COPIES; copy += splits) tell(link.to + copy * link.to_apart + column, out, t.tag_of(link.tag, link.stride));
        if (from == 0) p.out[column] = out;
    };
#pragma unroll 1
    for (u32 i = tid; i < PARTS; i += 32 * WARPS) {
        float value = 0.0f, all = 0.0f, most = -INFINITE;
        u32 first_warp = i / HEAD * OF_HEAD;
#pragma unroll
        for (u32 w = 0; w < OF_HEAD; w++) most = fmaxf(most, a.largest_of[first_warp + w]);
#pragma unroll
        for (u32 w = 0; w < OF_HEAD; w++) {
            float keep = most == -INFINITE ? 0.0f : __expf(a.largest_of[first_warp + w] - most);
            value += a.sums[first_warp + w][i % HEAD] * keep;
            all += a.total_of[first_warp + w] * keep;
        }
        if (splits == 1) {
            end_one(i, 0, value, all, most);
            continue;
        }
        tell_whole(pieces + i * MOST_SPLITS + rank, value, whole_tag);
        if (i % HEAD > 0) continue;
        tell_whole(totals + (i / HEAD * MOST_SPLITS + rank) * 2, most, whole_tag);
        tell_whole(totals + (i / HEAD * MOST_SPLITS + rank) * 2 + 1, all, whole_tag);
    }
    if (splits == 1) return;
    // A lane for each number of our slice and each block.
#pragma unroll 1
    for (u32 n = tid; n < PARTS; n += 32 * WARPS) {
        u32 from = n & (splits - 1), i = rank * (PARTS >> log_splits) + (n >> log_splits);
        const u64* of_head = totals + (i / HEAD * MOST_SPLITS + from) * 2;
        u64 x, y, z;
        Patience patience;
        for (;;) {
            x = look_whole(pieces + i * MOST_SPLITS + from);
            y = look_whole(of_head);
            z = look_whole(of_head + 1);
            if (__all_sync(FULL, is_from_whole(x, whole_tag) && is_from_whole(y, whole_tag) && is_from_whole(z, whole_tag))) break;
            patience.wait();
        }
        float value = __uint_as_float((u32)x), most = __uint_as_float((u32)y), all = __uint_as_float((u32)z), highest = most;
        for (u32 step = splits / 2; step > 0; step >>= 1) highest = fmaxf(highest, __shfl_xor_sync(FULL, highest, step));
        float keep = most == -INFINITE ? 0.0f : __expf(most - highest);
        value *= keep;
        all *= keep;
        for (u32 step = splits / 2; step > 0; step >>= 1) {
            value += __shfl_xor_sync(FULL, value, step);
            all += __shfl_xor_sync(FULL, all, step);
        }
        end_one(i, from, value, all, highest);
        __syncwarp();
    }
}

KERNEL __launch_bounds__(THREADS, 1) void chain(const __grid_constant__ Chain c) {
    extern __shared__ __align__(128) u8 memory[];
    __shared__ __align__(16) Shared s;
    u32 tid = threadIdx.x, warp = tid / 32;
    u8* ring = memory;
    if (tid < SLOTS) {
        barrier_init(shared_address(s.barriers + tid), 1);
        barrier_init(shared_address(s.barriers + SLOTS + tid), 1);
    }
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    constexpr u32 WORDS = sizeof(Link) / 8;
    if (tid < 2 * WORDS && tid / WORDS < c.links_count) ((u64*)s.links)[tid] = ((const u64*)c.links)[tid];
    __syncthreads();
    if (warp == WARPS) {
        if (tid % 32 == 0) fetch_all(c, s, ring);
        __syncwarp();
        let_next_begin();
        return;
    }

    wait_for_previous();
    Thread t;
    t.epoch = look(c.state);
    t.position = c.tokens[0].position;
    t.table = c.rows[0].table;
    t.parts = c.q_count / GROUP;
    t.part = blockIdx.x % t.parts;
    t.rank = blockIdx.x / t.parts;
    t.kv_head = t.part % c.kv_heads;
    t.subgroup = t.part / c.kv_heads;
    t.subgroups = t.parts / c.kv_heads;
    for (; t.link < c.links_count; t.link++) {
        const Link& link = s.links[t.link % 4];
        // On its way while this link waits for its input.
        if (tid < WORDS && t.link + 2 < c.links_count) t.ahead = ((const u64*)(c.links + t.link + 2))[tid];
        if (link.kind == ATTENTION) attend_link(s, link, t, *(Attending*)(memory + c.ring + c.left));
        else multiply_link(s, link, t, ring, (Octet*)(memory + c.ring));
    }

    // The last block to leave counts the launch, and makes room for the counts to begin anew.
    meet();
    if (tid > 0) return;
    if (atomicAdd(c.state + 1, 1) < gridDim.x - 1) return;
    c.state[1] = 0;
    c.state[0] = t.epoch + 1;
    if ((t.epoch + 1) % (1 << 22) == 0)
        for (u32 i = 0; i < c.told_count; i++) c.told[i] = 0;
}
