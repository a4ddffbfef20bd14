//! Attention of many new tokens of a row, on the tensor cores. Compiled for HEAD, TYPE and what most
//! models need (PLAIN), and for GROUPS of four warps that share a block's tiles.

#define KEYS 64
#define QUERIES 64

// On a multiprocessor.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define BLOCKS (GROUPS == 1 ? 3 : 1)
#else
#define BLOCKS (GROUPS == 1 ? 2 : 1)
#endif

#define COLUMN (KEYS * 128) // bytes of 64 elements of a tile's rows

/// Where 16 bytes of a tile's row lie in shared memory: 64 elements of all rows, then the next 64,
/// swizzled so that eight rows share no bank. It is how `wgmma` wants atoms of 8 rows of 128 bytes.
DEVICE u32 swizzled(u32 row, u32 chunk) { return chunk / 8 * COLUMN + row * 128 + ((chunk % 8 ^ (row & 7)) * 16); }

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// Hopper's tensor cores read a tile from shared memory by themselves, for the four warps at once.
#if TYPE != KV_BF16
#define HALVES "f16.f16"
#else
#define HALVES "bf16.bf16"
#endif
#define FOUR(c, i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#define THIRTY_TWO(c, i) FOUR(c, i), FOUR(c, i + 1), FOUR(c, i + 2), FOUR(c, i + 3), FOUR(c, i + 4), FOUR(c, i + 5), FOUR(c, i + 6), FOUR(c, i + 7)

/// What they are told of a matrix there: 1,024 bytes from eight rows to the next eight, COLUMN from
/// 64 elements of a row to the next.
DEVICE u64 matrix_at(u32 address) {
    return 1ull << 62 | (u64)(1024 / 16) << 32 | (u64)(COLUMN / 16) << 16 | (address & 0x3ffff) / 16;
}
/// Nothing that is computed with these registers moves over this point: the compiler does not know
/// that products are written to them later than they are asked for.
template <u32 COUNT> DEVICE void hold(float (&c)[COUNT][4]) {
#pragma unroll
    for (u32 i = 0; i < COUNT; i++) asm volatile("" : FOUR(c, i)::"memory");
}
/// Registers that products read keep what is in them up to this point: those are read later than asked for, too.
DEVICE void hold(const u32 (&a)[KEYS / 16][4]) {
#pragma unroll
    for (u32 i = 0; i < KEYS / 16; i++) asm volatile("" ::"r"(a[i][0]), "r"(a[i][1]), "r"(a[i][2]), "r"(a[i][3]) : "memory");
}
template <u32 COUNT> DEVICE void products_begin(float (&c)[COUNT][4]) {
    hold(c);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
template <u32 COUNT, typename WORK> DEVICE void products_end(float (&c)[COUNT][4], WORK meanwhile) {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    meanwhile();
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    hold(c);
}

/// 16 elements of 64 queries with those of 64 keys, added to what is there unless they are the first.
DEVICE void multiply_keys(float (&c)[8][4], u64 queries, u64 keys, bool first) {
    asm volatile("{ .reg .pred p; setp.eq.u32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32." HALVES
                 " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31},"
                 " %32, %33, p, 1, 1, 0, 0; }"
                 : THIRTY_TWO(c, 0) : "l"(queries), "l"(keys), "r"((u32)first));
}

/// Adds 16 values under the weights of 16 queries a warp.
DEVICE void add_values(float (&c)[HEAD / 8][4], const u32 (&a)[4], u64 values) {
#if HEAD == 128
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." HALVES
                 " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63},"
                 " {%64,%65,%66,%67}, %68, 1, 1, 1, 1;"
                 : THIRTY_TWO(c, 0), THIRTY_TWO(c, 8) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(values));
#else
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." HALVES
                 " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31},"
                 " {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"
                 : THIRTY_TWO(c, 0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(values));
#endif
}
#endif

/// Scores of a warp's 16 of the QUERIES queries with the KEYS keys of a tile, and what a thread does
/// until it has them.
template <typename WORK> DEVICE void score_tile(float (&score)[KEYS / 8][4], u32 queries, u32 keys, WORK meanwhile) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    products_begin(score);
#pragma unroll
    for (u32 step = 0; step < HEAD / 16; step++) {
        u32 at = step / 4 * COLUMN + step % 4 * 32;
        multiply_keys(score, matrix_at(queries + at), matrix_at(keys + at), step == 0);
    }
    products_end(score, meanwhile);
#else
    meanwhile();
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (u32 i = 0; i < KEYS / 8; i++) score[i][0] = score[i][1] = score[i][2] = score[i][3] = 0.0f;
#pragma unroll
    for (u32 step = 0; step < HEAD / 16; step++) {
        u32 a[4];
        load_matrices(a, queries + swizzled(warp * 16 + lane % 16, step * 2 + lane / 16));
#pragma unroll
        for (u32 i = 0; i < KEYS / 16; i++) {
            u32 b[4];
            load_matrices(b, keys + swizzled(i * 16 + (lane & 7) + (lane / 16) * 8, step * 2 + (lane / 8) % 2));
            multiply(score[2 * i], a, b[0], b[1]);
            multiply(score[2 * i + 1], a, b[2], b[3]);
        }
    }
#endif
}

/// Adds a tile's values under their weights.
template <typename WORK> DEVICE void sum_tile(float (&sum)[HEAD / 8][4], const float (&weight)[KEYS / 8][4], u32 values, WORK meanwhile) {
    u32 a[KEYS / 16][4];
#pragma unroll
    for (u32 step = 0; step < KEYS / 16; step++)
#pragma unroll
        for (u32 r = 0; r < 4; r++) a[step][r] = PAIR(weight[2 * step + r / 2][r % 2 * 2], weight[2 * step + r / 2][r % 2 * 2 + 1]);
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    products_begin(sum);
#pragma unroll
    for (u32 step = 0; step < KEYS / 16; step++) add_values(sum, a[step], matrix_at(values + step * 2048));
    products_end(sum, meanwhile);
    hold(a);
#else
    meanwhile();
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (u32 step = 0; step < KEYS / 16; step++)
#pragma unroll
        for (u32 i = 0; i < HEAD / 16; i++) {
            u32 b[4];
            load_matrices_turned(b, values + swizzled(step * 16 + (lane & 7) + (lane / 8) % 2 * 8, i * 2 + lane / 16));
            multiply(sum[2 * i], a[step], b[0], b[1]);
            multiply(sum[2 * i + 1], a[step], b[2], b[3]);
        }
#endif
}

/// What this thread wrote to shared memory is there for tensor cores that read it by themselves.
DEVICE void make_visible() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

DEVICE void store_chunk(u32 to, const u32 (&words)[4]) {
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]) : "memory");
}

/// A thread's rows of a tile, one behind the other, so that all of them lie on one page.
#define THREADS 128 // of a group
#define ROUNDS (KEYS * (HEAD / 8) / THREADS)
DEVICE u32 first_row() { return threadIdx.x % THREADS / (HEAD / 8) * ROUNDS; }
/// Waits for the threads of the group.
DEVICE void meet() {
    if (threadIdx.x < THREADS) asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory");
    else asm volatile("bar.sync 2, %0;" ::"n"(THREADS) : "memory");
}

/// Looks up the page of this thread's rows of the tile at `first`, a tile before it is copied: nothing
/// waits for it then.
DEVICE u32 look_up(const u32* table, u32 shift, u32 first, u32 end) {
    u32 position = first + first_row();
    return table[(position < end ? position : end - 1) >> shift];
}
/// Where those rows begin on it: the first of their slots in a cache.
DEVICE u32 slot_on(u32 page, const Attend& p, u32 kv_head, u32 first) {
    return (page * p.kv_heads + kv_head) * p.page_size + (first + first_row() & p.page_size - 1);
}

/// Ends a group of copies.
DEVICE void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until all but the newest of this thread's groups are there, and shows what it wrote to whoever
/// reads it behind a barrier.
DEVICE void arrive() {
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    make_visible();
}

#if TYPE == KV_Q8_0
/// A thread's bytes of a tile: 16 of every other of its rows, from the first or the second on. Eight
/// threads that store halves of theirs at once share no bank then.
DEVICE u32 second() { return threadIdx.x / 4 % 2; }
DEVICE u32 part() { return threadIdx.x % 4 + threadIdx.x % (HEAD / 8) / 8 * 4; }

/// Starts the copy of KEYS positions' bytes of K or V of one head, and loads two of the scales of the
/// HEAD / 8 threads that have the same rows. What lies before the first that is seen or behind the last
/// is zero; it may have no page.
DEVICE u32 fetch_bytes(u32 to, const u8* cache, u32 slot, const Attend& p, u32 first, u32 begin, u32 end) {
    u32 position = first + first_row(), pair = threadIdx.x % (ROUNDS * HEAD / 64);
    bool whole = first >= begin && first + KEYS <= end;
    const u8* from = cache + (u64)slot * HEAD + second() * HEAD + part() * 16;
    to += threadIdx.x % THREADS * 16;
#pragma unroll
    for (u32 i = 0; i < ROUNDS / 2; i++) {
        u32 row = position + second() + 2 * i;
        copy16(to + i * THREADS * 16, from + i * 2 * HEAD, whole || (begin <= row && row < end) ? 16 : 0);
    }
    u32 row = position + pair / (HEAD / 64);
    if (!whole && (row < begin || row >= end)) return 0;
    return ((const u32*)kv_scales(cache, p.slots * HEAD))[(u64)slot * (HEAD / 64) + pair];
}

/// Makes a tile of halves out of them: of those that this thread copied, so that it waits for no other.
DEVICE void widen_tile(u32 to, u32 from, u32 scales) {
    uint4 bytes[ROUNDS / 2];
    from += threadIdx.x % THREADS * 16;
    to += swizzled(first_row() + second(), 2 * part());
    u32 splat = part() / 2 % 2 ? 0x3232 : 0x1010;
#pragma unroll
    for (u32 i = 0; i < ROUNDS / 2; i++) bytes[i] = shared16(from + i * THREADS * 16);
#pragma unroll
    for (u32 i = 0; i < ROUNDS / 2; i++) {
        u32 pair = __shfl_sync(FULL, scales, (2 * i + second()) * (HEAD / 64) + part() / 4, HEAD / 8);
        u32 scale = __byte_perm(pair, 0, splat);
        // The first row is a multiple of ROUNDS: the next ones differ in the lowest bits of a swizzle alone.
        u32 row = (to ^ i * 32) + i * 256;
        u32 four[4] = {bytes[i].x, bytes[i].y, bytes[i].z, bytes[i].w};
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            u32 x = four[2 * half] ^ 0x80808080u, y = four[2 * half + 1] ^ 0x80808080u;
            u32 words[4] = {scaled_bytes(x, 0x4140, scale), scaled_bytes(x, 0x4342, scale),
                            scaled_bytes(y, 0x4140, scale), scaled_bytes(y, 0x4342, scale)};
            store_chunk(row ^ half * 16, words);
        }
    }
}
#else
/// Starts the copy of KEYS positions' K or V of one head. What lies before the first that is seen or
/// behind the last is zero; it may have no page.
DEVICE void fetch_tile(u32 to, const u8* cache, u32 slot, const Attend& p, u32 first, u32 begin, u32 end) {
    u32 chunk = threadIdx.x % (HEAD / 8), position = first + first_row();
    u64 element = (u64)slot * HEAD + chunk * 8;
    bool whole = first >= begin && first + KEYS <= end;
    to += swizzled(first_row(), chunk);
#pragma unroll
    for (u32 i = 0; i < ROUNDS; i++, element += HEAD) {
        // The first row is a multiple of ROUNDS: the next ones differ in the lowest bits of a swizzle alone.
        u32 row = (to ^ i * 16) + i * 128;
        bool there = whole || (begin <= position + i && position + i < end);
        copy16(row, cache + element * 2, there ? 16 : 0);
    }
}
#endif

/// Many new tokens of a row: a block for 64 of them and a head, four warps of 16 queries, tiles of 64
/// positions, softmax on the way (Dao 2023, arXiv:2307.08691). Where blocks are few, two groups of four
/// warps take tiles in turn, and the first joins what both have seen: a block's tiles follow one another,
/// each some 2 µs behind the one before it, and a prompt of 512 has no more than eight of them.
///
/// A tile of K is done with before the V beside it is wanted: three places do for what two of K and
/// two of V would, and so three blocks share a Hopper multiprocessor, each of which waits for its
/// copies, products and powers in turn.
///
/// A cache in Q8_0 brings bytes into the third place, those of K into one half of it and those of V into
/// the other, a tile before they are wanted. Threads make halves of them while tensor cores multiply: of V
/// while there are scores to wait for, of the next K while values are added. A copy that one waits for
/// where it is asked for costs memory's time to answer twice a tile, and nothing hides it.
KERNEL __launch_bounds__(THREADS * GROUPS, BLOCKS) void attend_tiles(const __grid_constant__ Attend p) {
    extern __shared__ __align__(1024) u8 memory[];
    let_next_begin();
    uint2 tile = p.tiles[blockIdx.x];
    if (tile.x == FULL) { wait_for_previous(); return; }
    Row row = p.rows[tile.x];
    if (p.apart && leads_alone(p, tile.x)) { wait_for_previous(); return; }
    const u32* table = p.tables + row.table;
    u32 head = blockIdx.y, kv_head = head / (p.q_count / p.kv_heads);
    u32 lane = threadIdx.x % 32, group = threadIdx.x / THREADS, warp = threadIdx.x % THREADS / 32, g = lane / 4, t = lane % 4;
    u32 count = row.len - tile.y < QUERIES ? row.len - tile.y : QUERIES;
    u32 position0 = row.cached + tile.y, end = position0 + count;
    u32 begin = first_seen(position0, window_of(p)), first = (begin / KEYS + group) * KEYS;
    // The queries, then three tiles for each group.
    const u32 bytes = KEYS * HEAD * 2;
    u32 queries = (u32)__cvta_generic_to_shared(memory), keys = queries + (1 + 3 * group) * bytes;
    u32 values = keys + bytes, spare = values + bytes;

    u32 shift = __ffs(p.page_size) - 1, page = look_up(table, shift, first, end), slot = 0;
#if TYPE == KV_Q8_0
    u32 key_bytes = spare, value_bytes = spare + bytes / 2, key_scales = 0, value_scales = 0;
    u32 next_page = look_up(table, shift, first + GROUPS * KEYS, end);
#endif
    wait_for_previous();

    // Queries, scaled for powers of two; zeros behind the last. Each group brings some.
    const float log2e = 1.4426950408889634f;
    float factor = cap_of(p) > 0.0f ? p.scale : p.scale * log2e;
    u32 chunk = threadIdx.x % (HEAD / 8);
    const float* from = p.q + (u64)(row.start + tile.y) * p.q_stride;
#pragma unroll
    for (u32 i = 0; i < ROUNDS / GROUPS; i++) {
        u32 query = first_row() + i * GROUPS + group, to = queries + swizzled(query, chunk);
        const float* row = from + (u64)(query < count ? query : count - 1) * p.q_stride;
        u32 at = p.q_offset + head * HEAD + chunk * 8;
        if (p.narrow) {
            copy16(to, (const u8*)((const u16*)row + at), query < count ? 16 : 0);
            continue;
        }
        const float2* pairs = (const float2*)(row + at);
        float scale = query < count ? factor : 0.0f;
        u32 words[4];
#pragma unroll
        for (u32 e = 0; e < 4; e++) words[e] = PAIR(pairs[e].x * scale, pairs[e].y * scale);
        store_chunk(to, words);
    }
    if (first < end) {
        slot = slot_on(page, p, kv_head, first);
#if TYPE == KV_Q8_0
        key_scales = fetch_bytes(key_bytes, p.keys, slot, p, first, begin, end);
#else
        fetch_tile(keys, p.keys, slot, p, first, begin, end);
#endif
    }
    commit();
#if TYPE == KV_Q8_0
    if (first < end) value_scales = fetch_bytes(value_bytes, p.values, slot, p, first, begin, end);
    commit();
    page = look_up(table, shift, first + 2 * GROUPS * KEYS, end);
    arrive();
    widen_tile(keys, key_bytes, key_scales);
    if (first + GROUPS * KEYS < end) {
        slot = slot_on(next_page, p, kv_head, first + GROUPS * KEYS);
        key_scales = fetch_bytes(key_bytes, p.keys, slot, p, first + GROUPS * KEYS, begin, end);
    }
    commit();
#else
    if (first < end) fetch_tile(values, p.values, slot, p, first, begin, end);
    commit();
    page = look_up(table, shift, first + GROUPS * KEYS, end);
    arrive();
#endif
    __syncthreads();
    u32 here[2] = {warp * 16 + g, warp * 16 + g + 8};
    float sum[HEAD / 8][4], largest[2] = {-INFINITE, -INFINITE}, total[2] = {0.0f, 0.0f};
#pragma unroll
    for (u32 i = 0; i < HEAD / 8; i++) sum[i][0] = sum[i][1] = sum[i][2] = sum[i][3] = 0.0f;

    for (u32 at = first; at < end; at += GROUPS * KEYS) {
        u32 next = at + GROUPS * KEYS;
        arrive();
        meet(); // Nobody reads the values before these keys any more.
#if TYPE == KV_Q8_0
        auto meanwhile = [&] {
            widen_tile(values, value_bytes, value_scales);
            if (next < end) value_scales = fetch_bytes(value_bytes, p.values, slot, p, next, begin, end);
            commit();
        };
#else
        auto meanwhile = [] {};
        if (next < end) {
            slot = slot_on(page, p, kv_head, next);
            fetch_tile(spare, p.keys, slot, p, next, begin, end);
        }
        commit();
#endif

        float score[KEYS / 8][4];
        score_tile(score, queries, keys, meanwhile);
        if (cap_of(p) > 0.0f)
#pragma unroll
            for (u32 i = 0; i < KEYS / 8; i++)
#pragma unroll
                for (u32 e = 0; e < 4; e++) score[i][e] = capped(score[i][e], cap_of(p)) * log2e;
        if (at + KEYS > position0 || window_of(p))
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                // Which of this tile's positions a query sees, from the first of this lane on.
                u32 mine = position0 + here[half];
                int from = (int)(first_seen(mine, window_of(p)) - at - 2 * t), to = (int)(mine - at - 2 * t);
#pragma unroll
                for (u32 i = 0; i < KEYS / 8; i++)
#pragma unroll
                    for (int e = 0; e < 2; e++)
                        if ((int)i * 8 + e < from || (int)i * 8 + e > to) score[i][2 * half + e] = -INFINITE;
            }
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            float most = largest[half];
#pragma unroll
            for (u32 i = 0; i < KEYS / 8; i++) most = fmaxf(most, fmaxf(score[i][2 * half], score[i][2 * half + 1]));
            most = fmaxf(most, __shfl_xor_sync(FULL, most, 1));
            most = fmaxf(most, __shfl_xor_sync(FULL, most, 2));
            float base = most == -INFINITE ? 0.0f : most;
            float keep = power_of_two(largest[half] - base);
            largest[half] = most;
            total[half] *= keep;
#pragma unroll
            for (u32 i = 0; i < HEAD / 8; i++) { sum[i][2 * half] *= keep; sum[i][2 * half + 1] *= keep; }
#pragma unroll
            for (u32 i = 0; i < KEYS / 8; i++)
#pragma unroll
                for (u32 e = 0; e < 2; e++) {
                    score[i][2 * half + e] = power_of_two(score[i][2 * half + e] - base);
                    total[half] += score[i][2 * half + e];
                }
        }
        arrive();
        meet(); // Nobody reads these keys any more.
#if TYPE == KV_Q8_0
        sum_tile(sum, score, values, [&] {
            if (next < end) widen_tile(keys, key_bytes, key_scales);
            u32 later = next + GROUPS * KEYS;
            if (later < end) {
                slot = slot_on(page, p, kv_head, later);
                key_scales = fetch_bytes(key_bytes, p.keys, slot, p, later, begin, end);
                page = look_up(table, shift, later + GROUPS * KEYS, end);
            }
            commit();
        });
#else
        if (next < end) {
            fetch_tile(keys, p.values, slot, p, next, begin, end);
            page = look_up(table, shift, next + GROUPS * KEYS, end);
        }
        commit();
        sum_tile(sum, score, values, [] {});
        u32 done = values;
        values = keys;
        keys = spare;
        spare = done;
#endif
    }
#if GROUPS == 2
    // What the second group has seen, each thread's number by number, where its tiles were.
    float* seen = (float*)(memory + 4 * bytes) + threadIdx.x % THREADS;
    if (group == 1) {
        meet();
#pragma unroll
        for (u32 i = 0; i < HEAD / 2; i++) seen[i * THREADS] = sum[i / 4][i % 4];
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            seen[(HEAD / 2 + half) * THREADS] = largest[half];
            seen[(HEAD / 2 + 2 + half) * THREADS] = total[half];
        }
    }
    __syncthreads();
    if (group == 1) return;
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        float its = seen[(HEAD / 2 + half) * THREADS], most = fmaxf(largest[half], its);
        // Of tiles before a window nobody may have seen anything.
        float base = most == -INFINITE ? 0.0f : most, keep = power_of_two(largest[half] - base), scale = power_of_two(its - base);
        largest[half] = most;
        total[half] = total[half] * keep + seen[(HEAD / 2 + 2 + half) * THREADS] * scale;
#pragma unroll
        for (u32 i = 0; i < HEAD / 8; i++)
#pragma unroll
            for (u32 e = 2 * half; e < 2 * half + 2; e++) sum[i][e] = sum[i][e] * keep + seen[(4 * i + e) * THREADS] * scale;
    }
#endif
    // Results in brain floats meet where this warp's queries were: a row's lie side by side then.
    u32 first_here = queries + 4 * t;
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        total[half] += __shfl_xor_sync(FULL, total[half], 1);
        total[half] += __shfl_xor_sync(FULL, total[half], 2);
        float keep = 1.0f;
        if (const float* sinks = sinks_of(p)) {
            // The sink may be the largest of all.
            float sink = sinks[head] * log2e, most = fmaxf(sink, largest[half]);
            keep = exp2f(largest[half] - most);
            total[half] = total[half] * keep + exp2f(sink - most);
        }
        float inverse = keep / total[half];
        u64 to = ((u64)(row.start + tile.y + here[half]) * p.q_count + head) * HEAD + 2 * t;
#pragma unroll
        for (u32 i = 0; i < HEAD / 8; i++) {
            float x = sum[i][2 * half] * inverse, y = sum[i][2 * half + 1] * inverse;
            if (p.dense) asm volatile("st.shared.u32 [%0], %1;" ::"r"(first_here + swizzled(here[half], i)), "r"(bf16_pair(x, y)) : "memory");
            else if (here[half] < count) *(float2*)(p.out + to + i * 8) = make_float2(x, y);
        }
    }
    if (!p.dense) return;
    __syncwarp();
#pragma unroll
    for (u32 i = 0; i < HEAD / 16; i++) {
        u32 at = i * 32 + lane, query = warp * 16 + at / (HEAD / 8);
        if (query >= count) continue;
        uint4* to = (uint4*)(p.dense + ((u64)(row.start + tile.y + query) * p.q_count + head) * HEAD);
        to[at % (HEAD / 8)] = shared16(queries + swizzled(query, at % (HEAD / 8)));
    }
}
