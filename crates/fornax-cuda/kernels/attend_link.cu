//! Attention as a link of a chain. Must not know who projects, nor who multiplies what it gives.
//!
//! Bytes: K and V of the positions that are seen, and the token's words.

/// What the warps of a block found.
struct Attending {
    float queries[GROUP][HEAD], newest[2][HEAD];
    float largest_of[WARPS], total_of[WARPS];
    float sums[WARPS][HEAD];
};

/// The first position that a warp sees of those that its block has.
DEVICE u32 first_of_warp(const Span& span) { return span.begin + threadIdx.x / 32 % OF_HEAD * STRIDE; }

/// Whether which positions are whose is known from a layer before.
DEVICE bool is_known(const Thread& t, const Attend& p) { return t.span.tables == p.tables + t.table && t.span.window == p.window; }

/// Finds out which positions are whose.
DEVICE void find_span(Thread& t, const Attend& p) {
    Span& span = t.span;
    const u32* tables = span.tables = p.tables + t.table;
    span.window = p.window;
    u32 position = t.position, shift = __ffs(p.page_size) - 1, first = first_seen(position, p.window);
    // As many blocks as have a whole turn of positions each.
    u32 splits = 1;
    while (splits < MOST_SPLITS && 2 * splits * t.parts <= gridDim.x && position + 1 - first > splits * TURN) splits *= 2;
    span.log_splits = 31 - __clz(splits);
    u32 share = position + splits - first >> span.log_splits;
    share = (share + STRIDE - 1) / STRIDE * STRIDE;
    span.begin = first + t.rank * share;
    span.end = min(span.begin + share, position + 1);
    span.owner = span.begin <= position && position < span.end;
    if (span.owner) span.end = position;
    span.newest_page = tables[position >> shift];
    u32 at = first_of_warp(span) + threadIdx.x % 32 / LANES;
#pragma unroll
    for (u32 u = 0; u < TOGETHER; u++) span.pages[u] = tables[min(at + u * SIDE, position) >> shift];
}

/// Where a position of a KV head is kept.
DEVICE u64 slot_on(const Attend& p, u32 kv_head, u32 page, u32 at) {
    return ((u64)page * p.kv_heads + kv_head) * p.page_size + (at & (p.page_size - 1));
}

/// Asks for the positions that each head's warps see first, for an attention to come, where it is known which these are.
DEVICE void bring_positions_near(const Attend& p, const Thread& t) {
    const Span& span = t.span;
    if (!is_known(t, p) || t.rank >> span.log_splits || threadIdx.x / 32 >= OF_HEAD) return;
    u32 lane = threadIdx.x % 32, at = first_of_warp(span) + lane / LANES;
#pragma unroll
    for (u32 u = 0; u < TOGETHER; u++, at += SIDE) {
        if (at >= span.end) break;
        u64 from = slot_on(p, t.kv_head, span.pages[u], at) * HEAD + lane % LANES * 8;
        constexpr u32 BYTES = TYPE == KV_Q8_0 ? 1 : 2;
        asm volatile("prefetch.global.L2 [%0];" ::"l"(p.keys + from * BYTES));
        asm volatile("prefetch.global.L2 [%0];" ::"l"(p.values + from * BYTES));
    }
}

/// Attention of the token, which was projected with nothing done to it since: blocks share the
/// positions of GROUP query heads of a KV head, each warp has one head, and what they saw is brought
/// together in slices.
DEVICE void attend_link(Shared& s, const Link& link, Thread& t, Attending& a) {
    const Attend& p = link.attend;
    u32 tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
    u32 parts = t.parts, part = t.part, rank = t.rank;
    if (!is_known(t, p)) find_span(t, p);
    const Span& span = t.span;
    u32 position = t.position, shift = __ffs(p.page_size) - 1, log_splits = span.log_splits, splits = 1 << log_splits;
    if (rank >= splits) {
        keep_ahead(s, t);
        meet();
        return;
    }
    u32 kv_head = t.kv_head, subgroup = t.subgroup;
    u32 first_head = (kv_head * t.subgroups + subgroup) * GROUP;
    const u32* table = span.tables;
    bool owner = span.owner;
    auto slot_of = [&](u32 at, u32) { return slot_on(p, kv_head, table[at >> shift], at); };
    // Everything on its way at once: norms, then positions.
    float norm[HEAD / 32];
    if (p.q_norm && warp <= GROUP)
#pragma unroll
        for (u32 i = 0; i < HEAD / 32; i++) norm[i] = warp < GROUP ? p.q_norm[lane + 32 * i] : p.k_norm[lane + 32 * i];
    Eight k[TOGETHER], v[TOGETHER];
    u32 own_head = warp / OF_HEAD, base = first_of_warp(span);
    // Those that would be of one head more than there are see nothing.
    u32 own_end = own_head < GROUP ? span.end : 0;
    load_positions(k, v, p, base, own_end, [&](u32 at, u32 u) { return slot_on(p, kv_head, span.pages[u], at); });

    if (t.turned_by != p.frequencies) {
        t.turned_by = p.frequencies;
        for (u32 pair = tid; pair < p.rotary / 2; pair += 32 * WARPS) {
            float sine, cosine;
            sincosf(__fmul_rn((float)position, p.frequencies[pair]), &sine, &cosine);
            s.turns[pair] = make_float2(sine * p.magnitude, cosine * p.magnitude);
        }
    }
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
            if (subgroup == 0) store_head(h == GROUP ? p.keys : p.values, slot_on(p, kv_head, span.newest_page, position) * HEAD, TYPE, p.slots * HEAD, to, HEAD);
            for (u32 i = lane; i < HEAD; i += 32) to[i] = rounded(to[i]);
        }
    }
    keep_ahead(s, t);
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
