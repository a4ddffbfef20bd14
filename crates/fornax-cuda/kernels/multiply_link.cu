//! A product as a link of a chain, with weights of one format. Must not know what is multiplied before or behind it.
//!
//! Bytes: a block's tiles, which come to its ring, and the token's words.

/// Tiles that are in the ring together, or halves of them, as a warp multiplies them.
struct Tiles {
    const u8* ring;
    float (*sums)[ROWS][WARPS];
    Lot lot;
    u32 first, units; // its first tile; tiles, or halves of pairs
};

/// What the token's product with COUNT units from `begin` on adds up to: a warp's row of each, or a part of it.
template <u32 COUNT>
DEVICE void add_up_some(Shared& s, const Tiles& tiles, u32 begin, const Product& p, const uint4* left) {
    u32 full = shared_address(s.barriers), lane = threadIdx.x % 32, pair = p.second ? 1 : 0;
    const u8* at[ABREAST];
#pragma unroll
    for (u32 j = 0; j < COUNT; j++) {
        u32 unit = min(begin + j, tiles.units - 1), tile = tiles.first + (unit >> pair), slot = tile % SLOTS;
        barrier_wait(full + 8 * slot, tile / SLOTS & 1);
        at[j] = tiles.ring + s.begins[slot] + (unit & pair) * p.tile_rows * p.stage_pitch;
    }
    float y[ABREAST] = {};
    accumulate_one<COUNT, 1>(y, at, p, left, tiles.lot);
#pragma unroll
    for (u32 j = 0; j < COUNT; j++)
        if (lane == j && begin + j < tiles.units) tiles.sums[begin + j][tiles.lot.row][tiles.lot.part] = y[j];
}

DEVICE void add_up(Shared& s, const Tiles& tiles, const Product& p, const uint4* left) {
    // Three as if they were four: the fewer instructions there are, the nearer are those that are next.
#pragma unroll 1
    for (u32 begin = 0; begin < tiles.units; begin += ABREAST) {
        u32 left_over = tiles.units - begin;
        if (left_over == 1) add_up_some<1>(s, tiles, begin, p, left);
        else if (left_over == 2) add_up_some<2>(s, tiles, begin, p, left);
        else add_up_some<ABREAST>(s, tiles, begin, p, left);
    }
}

/// Hears the token, and keeps it as it is multiplied; its squares, as far as this thread heard them.
DEVICE float hear(const Link& link, const Thread& t, const Product& p, uint4* left) {
    constexpr u32 THREADS_THAT_HEAR = 32 * WARPS;
    u32 tid = threadIdx.x, lane = tid % 32, cols = p.cols, fours = p.padded / 4, tag = t.tag_of(link.from_tag, link.from_stride);
    const u32* from = link.from ? link.from + blockIdx.x % COPIES * link.from_apart : nullptr;
    const float* x = p.x + (p.pick && !from ? (u64)p.pick[0] * cols : 0);
    float total = 0.0f;
    auto look_at = [&](u32 i) { return from && 4 * i < cols ? look_four(from + 4 * i) : make_uint4(tag, tag, tag, tag); };
    auto keep = [&](u32 i, float4 v, float4 w) {
        total += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
        v.x *= w.x; v.y *= w.y; v.z *= w.z; v.w *= w.w;
        keep_one(left, p, i, v);
    };
    auto numbers = [](uint4 v) { return make_float4(number_of(v.x), number_of(v.y), number_of(v.z), number_of(v.w)); };
    uint4 a = look_at(tid), b = look_at(tid + THREADS_THAT_HEAR);
    // Whole warps, so that a block's lanes are together.
#pragma unroll 1
    for (u32 i = tid; i - lane < fours; i += 2 * THREADS_THAT_HEAR) {
        u32 j = i + THREADS_THAT_HEAR;
        uint4 next_a = look_at(i + 2 * THREADS_THAT_HEAR), next_b = look_at(j + 2 * THREADS_THAT_HEAR);
        float4 ones = make_float4(1.0f, 1.0f, 1.0f, 1.0f), w0 = p.norm ? four(p.norm, i, cols) : ones, w1 = p.norm ? four(p.norm, j, cols) : ones;
        float4 v0, v1;
        if (from) {
            Patience patience;
            while (!__all_sync(FULL, are_from(a, b, tag))) {
                patience.wait();
                a = look_at(i);
                b = look_at(j);
            }
            v0 = numbers(a);
            v1 = numbers(b);
        } else {
            v0 = four(x, i, cols);
            v1 = four(x, j, cols);
        }
        keep(i, v0, w0);
        if (j - lane < fours) keep(j, v1, w1);
        a = next_a;
        b = next_b;
    }
    return total;
}

/// A product: norm, multiplication, activation and sum.
DEVICE void multiply_link(Shared& s, const Link& link, Thread& t, const u8* ring, uint4* left) {
    // In registers: what others tell is looked at in between, after which memory is read anew.
    const Product p = link.product;
    u32 tid = threadIdx.x, lane = tid % 32, warp = tid / 32, batch = link.batch, to_apart = link.to_apart;
    // Eights of rows are so many tiles each, of which the last one may lack some.
    u32 own = first_eight(link.first), log_rows = 31 - __clz(p.tile_rows), log_tiles = 3 - log_rows;
    u32 lacked = (ROWS - 1 - (p.rows - 1) % ROWS) >> log_rows, has_last = own == (link.one_more ? link.one_more : gridDim.x) - 1;
    u32 mine = (link.of_each + (own < link.one_more ? 1 : 0) << log_tiles) - (has_last ? lacked : 0);
    const Lot lot = lot_of(p.tile_rows, warp);
    bool pair = p.second > 0;
    float* totals = s.totals[t.link & 1];
    // What this thread ends, and all of it that is at hand before the input is.
    u32 place = tid % (ROWS * BATCH), own_copy = tid / (ROWS * BATCH), slot = place >> log_rows, of_tile = place & (p.tile_rows - 1);
    auto row_from = [&](u32 base) {
        u32 tile = base + slot;
        return (own + (tile >> log_tiles) * gridDim.x) * ROWS + ((tile & (1 << log_tiles) - 1) << log_rows) + of_tile;
    };
    u32 row = row_from(0);
    float *residual = p.residual, *out = p.out;
    const float* bias = p.bias;
    u32 *to = link.to, to_tag = t.tag_of(link.tag, link.stride);
    u32 rows = slot < batch ? p.rows : 0;
    float before = residual && row < rows ? residual[row] : 0.0f, added = bias && row < rows ? bias[row] : 0.0f;
    float total = mine > 0 ? hear(link, t, p, left) : 0.0f;
    keep_ahead(s, t);
    if (p.norm) {
        total = warp_sum(total);
        if (lane == 0) totals[warp] = total;
    }
    meet();

    u32 empty = shared_address(s.barriers + SLOTS);
    float factor = p.norm ? norm_factor(totals, p) : 1.0f;
    Peak peak;
    u32 base = 0;
#pragma unroll 1
    do {
        u32 count = min(mine - base, batch);
        auto sums = s.sums[t.batches++ & 1];
        add_up(s, {ring, sums, lot, t.next, pair ? 2 * count : count}, p, left);
        // All warps are done with the batch's tiles once they have met.
        meet();
        if (tid < count) barrier_arrive(empty + 8 * ((t.next + tid) % SLOTS));
        t.next += count;
        if (slot < count && row < rows) {
            auto sum_of = [&](u32 unit) {
                const float* parts = sums[unit][of_tile];
                float sum = parts[0];
                for (u32 part = 1; part < lot.parts; part++) sum += parts[part];
                return sum * factor;
            };
            float y = sum_of(pair ? 2 * slot : slot);
            if (pair) y = gated(y, sum_of(2 * slot + 1), p.activation, p.alpha, p.limit);
            y += before + added;
            if (to)
                for (u32 copy = own_copy; copy < COPIES; copy += 32 * WARPS / (ROWS * BATCH)) tell(to + copy * to_apart + row, y, to_tag);
            if (out && own_copy == 0) out[row] = y;
            if (residual && own_copy == 0) residual[row] = y;
            if (p.best) peak.see(y, row);
        }
        __syncwarp();
        base += batch;
        row = row_from(base);
        if (base < mine) {
            before = residual && row < rows ? residual[row] : 0.0f;
            added = bias && row < rows ? bias[row] : 0.0f;
        }
    } while (base < mine);
    if (!p.best) return;
    if (tid < ROWS * BATCH) s.best[tid] = peak.words();
    meet();
    if (warp > 0) return;
    peak = peak_of(s.best[lane]);
    peak.join(peak_of(s.best[lane + 32]));
    peak.join_warp();
    for (u32 part = blockIdx.x + lane * gridDim.x; part < link.parts; part += 32 * gridDim.x)
        ((uint4*)p.best)[part] = lane == 0 ? peak.words() : Peak().words();
}
