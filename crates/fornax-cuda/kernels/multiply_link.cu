//! A product as a link of a chain. Must not know what is multiplied before or behind it.
//!
//! Bytes: a block's tiles, which come to its ring, and the token's words.

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
