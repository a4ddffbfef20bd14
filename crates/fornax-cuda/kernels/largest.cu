//! The largest of many products with one token: all of them with a sketch of the matrix, and with the
//! matrix itself those of rows that can have it.
//!
//! Owns which rows these are; why no others can is in `sketch.rs` of `fornax-backend`. Their products are
//! those of `gemv.cu` to the last bit (`one_token.cu`). Must not know how a sketch is made.

#if FORMAT != F32

/// A sketch, and what comes of multiplying it.
struct Sketched {
    const u8* rows;       // [rows, pitch], as `sketch.cu` lays them
    const float* spreads; // [rows]
    uint4* peaks;         // [parts]: the largest of its products in some rows, where it is, -, whether unsound
    float longest;        // length of the matrix's longest row
    u32 pitch, parts;
};

/// Rows that a thread looks at at once.
#define LOOKED 4
/// Rows of a warp's four groups of lanes that are multiplied at once, each by one of them.
#define EACH 2
/// How far a token is from its bytes, and sums in single precision from what they stand for: in lengths of
/// what is multiplied. The first is half of one of 32512 steps in each of 32 numbers.
#define SLACK (1.0f / 8192.0f)
/// What the first of these adds to the loudness of a token.
#define LOUDER 1.0001f
/// Lengths between which nothing is lost below or above single precision.
#define SHORTEST 1e-6f
#define LONGEST 1e30f

/// What is known of a token.
struct Measured { float factor, loudness, length; };

/// Brings a token to where `put` does, four numbers of each thread, 8 of which have a block of 32, and
/// measures it: what the norm multiplies it by, and with that its loudness and its length, which is
/// negative where there is something that the bound does not hold for. Waits for the launch before.
template <class Put> DEVICE Measured take_token(const Product& p, float longest, Put put) {
    __shared__ float totals[WARPS], fourths[WARPS], squares[WARPS];
    u32 tid = threadIdx.x, lane = tid % 32, warp = tid / 32, fours = p.padded / 4;
    float total = 0.0f, fourth = 0.0f, square = 0.0f;
    for (u32 start = 0; start < fours; start += 32 * WARPS * AHEAD) {
        // All loads first, so that they wait together.
        float4 v[AHEAD], w[AHEAD];
#pragma unroll
        for (u32 j = 0; j < AHEAD; j++) w[j] = p.norm ? four(p.norm, start + tid + j * 32 * WARPS, p.cols) : make_float4(1.0f, 1.0f, 1.0f, 1.0f);
        if (start == 0) wait_for_previous();
        const float* from = p.x + (u64)(p.pick ? p.pick[0] : 0) * p.cols;
#pragma unroll
        for (u32 j = 0; j < AHEAD; j++) v[j] = four(from, start + tid + j * 32 * WARPS, p.cols);
#pragma unroll
        for (u32 j = 0; j < AHEAD; j++) {
            // The same for a warp, but for the last.
            if (start + j * 32 * WARPS + warp * 32 >= fours) break;
            u32 i = start + tid + j * 32 * WARPS;
            float4 a = v[j];
            total += a.x * a.x + a.y * a.y + a.z * a.z + a.w * a.w;
            a.x *= w[j].x; a.y *= w[j].y; a.z *= w[j].z; a.w *= w[j].w;
            float of_block = a.x * a.x + a.y * a.y + a.z * a.z + a.w * a.w;
            for (int other = 4; other > 0; other >>= 1) of_block += __shfl_xor_sync(FULL, of_block, other);
            if (lane % 8 == 0) { square += of_block; fourth += of_block * of_block; }
            put(i, a);
        }
    }
    if (p.norm) total = warp_sum(total);
    fourth = warp_sum(fourth);
    square = warp_sum(square);
    if (lane == 0) { totals[warp] = total; fourths[warp] = fourth; squares[warp] = square; }
    __syncthreads();
    fourth = square = 0.0f;
#pragma unroll
    for (u32 i = 0; i < WARPS; i++) { fourth += fourths[i]; square += squares[i]; }
    float factor = p.norm ? norm_factor(totals, p) : 1.0f, length = sqrtf(square), most = longest * length;
    bool holds = length > SHORTEST && most < LONGEST && most * factor < LONGEST;
    return {factor, sqrtf(sqrtf(fourth)) * (LOUDER * factor), holds ? length * factor : -1.0f};
}

/// 16 bytes that are read once, and leave the device's cache before what is read more often.
DEVICE uint4 read_once(const u8* from, u64 policy) {
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {%0,%1,%2,%3}, [%4], %5;"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from), "l"(policy));
    return v;
}

/// Every row's product with a token. Eight lanes have a row, and each of them one of every eight blocks of
/// it; what a warp multiplies next is on its way meanwhile, the first of it from before its turn on.
KERNEL __launch_bounds__(32 * WARPS, 2) void sketched(const __grid_constant__ Product p, const __grid_constant__ Sketched s) {
    extern __shared__ __align__(128) u8 room[];
    __shared__ uint4 peaks[WARPS];
    u32 tid = threadIdx.x, lane = tid % 32, warp = tid / 32, group = lane / 8, of_group = lane % 8;
    u32 blocks = p.padded / 32, chunks = (blocks + 31) / 32, units = (p.rows + 4 * EACH - 1) / (4 * EACH);
    // The high and the low bytes of each block's first and second half, and their scales.
    uint4* left = (uint4*)room;
    Scaled* scales = (Scaled*)(left + 4 * blocks);
    u64 policy = leaves_first();
    u32 first = blockIdx.x * WARPS + warp, apart = gridDim.x * WARPS;

    struct { uint4 quants[EACH][4]; uint2 scales[EACH]; } next, now;
    auto load = [&](u32 unit, u32 chunk) {
        if (unit >= units) return;
#pragma unroll
        for (u32 r = 0; r < EACH; r++) {
            u32 row = min(unit * 4 * EACH + group + 4 * r, p.rows - 1);
            const u8* from = s.rows + (u64)row * s.pitch;
#pragma unroll
            for (u32 c = 0; c < 4; c++) {
                u32 block = chunk * 32 + c * 8 + of_group;
                next.quants[r][c] = block < blocks ? read_once(from + block * 16, policy) : make_uint4(0, 0, 0, 0);
            }
            next.scales[r] = *(const uint2*)(from + blocks * 16 + chunk * 64 + of_group * 8);
        }
    };
    load(first, 0);
    Measured token = take_token(p, s.longest, [&](u32 i, float4 a) {
        Scaled of_block;
        uint2 split = bytes<true>(a, of_block);
        if (4 * i >= p.padded) return;
        u32 block = i / 8, half = i % 8 / 4, word = i % 4;
        ((u32*)(left + half * blocks + block))[word] = split.x;
        ((u32*)(left + (2 + half) * blocks + block))[word] = split.y;
        if (i % 8 == 0) scales[block] = of_block;
    });
    __syncthreads();
    let_next_begin();

    float best = -INFINITE, sums[EACH] = {};
    u32 best_row = FULL, unsound = 0;
    for (u32 unit = first, chunk = 0; unit < units;) {
        now = next;
        bool ends = chunk + 1 == chunks;
        u32 next_unit = ends ? unit + apart : unit, next_chunk = ends ? 0 : chunk + 1;
        load(next_unit, next_chunk);
#pragma unroll
        for (u32 c = 0; c < 4; c++) {
            // Behind the last block there are zeros under a scale of zero.
            u32 block = min(chunk * 32 + c * 8 + of_group, blocks - 1);
            uint4 x[4];
#pragma unroll
            for (u32 i = 0; i < 4; i++) x[i] = left[i * blocks + block];
            Scaled own = scales[block];
#pragma unroll
            for (u32 r = 0; r < EACH; r++) {
                uint4 v = now.quants[r][c];
                int high = __float_as_int(ON_TOP), low = high;
                auto add = [&](u32 word, u32 high0, u32 high1, u32 low0, u32 low1) {
                    u32 lower = word & 0x0f0f0f0fu, upper = word >> 4 & 0x0f0f0f0fu;
                    high = __dp4a((int)high1, (int)upper, __dp4a((int)high0, (int)lower, high));
                    low = __dp4a((int)low1, (int)upper, __dp4a((int)low0, (int)lower, low));
                };
                add(v.x, x[0].x, x[1].x, x[2].x, x[3].x);
                add(v.y, x[0].y, x[1].y, x[2].y, x[3].y);
                add(v.z, x[0].z, x[1].z, x[2].z, x[3].z);
                add(v.w, x[0].w, x[1].w, x[2].w, x[3].w);
                u32 two = c < 2 ? now.scales[r].x : now.scales[r].y;
                sums[r] += whole_sum<true>(high, low, own) * (own.scale * f32_of_f16(c % 2 ? two >> 16 : two & 0xffff));
            }
        }
        if (ends) {
            float y = 0.0f;
#pragma unroll
            for (u32 r = 0; r < EACH; r++) {
                for (int other = 4; other > 0; other >>= 1) sums[r] += __shfl_xor_sync(FULL, sums[r], other);
                if (of_group == r) y = sums[r] * token.factor;
                sums[r] = 0.0f;
            }
            u32 row = unit * 4 * EACH + group + 4 * of_group;
            if (of_group < EACH && row < p.rows) {
                p.out[row] = y;
                if (!(y < INFINITE)) unsound = 1;
                if (y > best) { best = y; best_row = row; }
            }
        }
        unit = next_unit;
        chunk = next_chunk;
    }

    if (p.normed && blockIdx.x == 0)
        for (u32 i = tid; i < p.cols; i += 32 * WARPS) p.normed[i] = p.x[i] * token.factor * p.norm[i];
    float most = warp_max(best);
    best_row = __reduce_min_sync(FULL, best == most ? best_row : FULL);
    unsound = __reduce_or_sync(FULL, unsound);
    if (lane == 0) peaks[warp] = make_uint4(__float_as_uint(most), best_row, 0, unsound);
    __syncthreads();
    if (tid != 0) return;
    uint4 all = peaks[0];
    for (u32 i = 1; i < WARPS; i++) {
        uint4 other = peaks[i];
        if (__uint_as_float(other.x) > __uint_as_float(all.x)) { all.x = other.x; all.y = other.y; }
        all.w |= other.w;
    }
    s.peaks[blockIdx.x] = all;
}

/// Asks for a row, so that all of it is on its way at once. Called by a thread.
DEVICE void ask_for(const u8* row, u32 pitch) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(row), "r"(pitch) : "memory");
#endif
}

/// `out` has the products with the sketch, `[rows]`; of rows that can have the largest product their own
/// come in their place. The parts of `best` are those of blocks, without sums: they count where they have
/// any row.
KERNEL __launch_bounds__(32 * WARPS) void largest(const __grid_constant__ Product p, const __grid_constant__ Sketched s) {
    extern __shared__ __align__(128) u8 room[];
    __shared__ u32 near[32 * WARPS * LOOKED], found;
    __shared__ float known;
    __shared__ uint4 bests[WARPS];
    uint4* left = (uint4*)room;
    u32 tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
    let_next_begin();
    // Rows go to blocks by 32, for those of likely tokens may be neighbours.
    auto row_of = [&](u32 round, u32 j) { return (((round * LOOKED + j) * WARPS + warp) * gridDim.x + blockIdx.x) * 32 + lane; };
    float spread[LOOKED], product[LOOKED];
    auto load_spreads = [&](u32 round) {
#pragma unroll
        for (u32 j = 0; j < LOOKED; j++) spread[j] = row_of(round, j) < p.rows ? s.spreads[row_of(round, j)] : 0.0f;
    };
    auto load_products = [&](u32 round) {
#pragma unroll
        for (u32 j = 0; j < LOOKED; j++) product[j] = row_of(round, j) < p.rows ? p.out[row_of(round, j)] : 0.0f;
    };
    load_spreads(0);
    if (tid == 0) found = 0;
    wait_for_previous();
    float peak = -INFINITE;
    u32 top = FULL, unsound = 0;
#pragma unroll 2
    for (u32 part = tid; part < s.parts; part += 32 * WARPS) {
        uint4 of_part = s.peaks[part];
        if (__uint_as_float(of_part.x) > peak) { peak = __uint_as_float(of_part.x); top = of_part.y; }
        unsound |= of_part.w;
    }
    load_products(0);
    float most = warp_max(peak);
    top = __reduce_min_sync(FULL, peak == most ? top : FULL);
    unsound = __reduce_or_sync(FULL, unsound);
    if (lane == 0) bests[warp] = make_uint4(__float_as_uint(most), top, 0, unsound);

    Measured token = take_token(p, s.longest, [&](u32 i, float4 a) { keep_one(left, p, i, a); });
    __syncthreads();
    bool all = token.length < 0.0f;
    most = -INFINITE;
#pragma unroll
    for (u32 i = 0; i < WARPS; i++) {
        uint4 of_warp = bests[i];
        if (__uint_as_float(of_warp.x) > most) { most = __uint_as_float(of_warp.x); top = of_warp.y; }
        all = all || of_warp.w != 0;
    }
    all = all || !(most > -INFINITE);
    // What the largest product is not below: that of the row which has the highest with the sketch. One
    // warp of a block reads it, for many that read the same are slow. Tiles have no pitch here, so a row
    // begins where its tile does.
    const u8* at[ABREAST] = {p.weight + (u64)(all ? 0 : top) * p.pitch};
    if (warp == 0) {
        float product[ABREAST] = {};
        accumulate_whole<1>(product, at, p, left);
        if (lane == 0) known = product[0];
    }
    __syncthreads();
    float floor = all ? -INFINITE : known * token.factor - SLACK * (s.longest * token.length);

    float best = -INFINITE;
    u32 best_row = FULL;
    unsound = 0;
    u32 of_round = 32 * WARPS * LOOKED * gridDim.x, rounds = (p.rows + of_round - 1) / of_round;
    for (u32 round = 0; round < rounds; round++) {
        if (round > 0) {
            __syncthreads();
            if (tid == 0) found = 0;
            load_spreads(round);
            load_products(round);
            __syncthreads();
        }
#pragma unroll
        for (u32 j = 0; j < LOOKED; j++) {
            u32 row = row_of(round, j);
            // What is no number is near, and so is the row that was just read.
            bool is_near = row == top || !(product[j] + spread[j] * token.loudness < floor);
            if (row < p.rows && is_near) near[atomicAdd(&found, 1u)] = row;
        }
        __syncthreads();
        for (u32 i = warp; i < found; i += WARPS * ABREAST) {
            u32 count = (found - i + WARPS - 1) / WARPS;
            if (count > ABREAST) count = ABREAST;
            if (lane < count) ask_for(p.weight + (u64)near[i + lane * WARPS] * p.pitch, p.pitch);
#pragma unroll
            for (u32 j = 0; j < ABREAST; j++) at[j] = p.weight + (u64)near[j < count ? i + j * WARPS : i] * p.pitch;
            float whole[ABREAST] = {}, y = 0.0f;
            if (count == 1) accumulate_whole<1>(whole, at, p, left);
            else if (count == 2) accumulate_whole<2>(whole, at, p, left);
            else if (count == 3) accumulate_whole<3>(whole, at, p, left);
            else accumulate_whole<4>(whole, at, p, left);
#pragma unroll
            for (u32 j = 0; j < ABREAST; j++)
                if (lane == j) y = whole[j];
            if (lane < count) {
                u32 row = near[i + lane * WARPS];
                y *= token.factor;
                p.out[row] = y;
                if (!(y < INFINITE)) unsound = 1;
                if (y > best || (y == best && row < best_row)) { best = y; best_row = row; }
            }
            __syncwarp();
        }
    }

    if (!p.best) return;
    most = warp_max(best);
    best_row = __reduce_min_sync(FULL, best == most ? best_row : FULL);
    unsound = __reduce_or_sync(FULL, unsound);
    if (lane == 0) bests[warp] = make_uint4(__float_as_uint(most), best_row, 0, unsound);
    __syncthreads();
    if (tid != 0) return;
    best = -INFINITE; best_row = FULL; unsound = 0;
    for (u32 i = 0; i < WARPS; i++) {
        float other = __uint_as_float(bests[i].x);
        unsound |= bests[i].w;
        if (other > best || (other == best && bests[i].y < best_row)) best_row = bests[i].y;
        best = fmaxf(best, other);
    }
    ((uint4*)p.best)[blockIdx.x] = make_uint4(__float_as_uint(best), best_row, __float_as_uint(best > -INFINITE ? 1.0f : 0.0f), unsound);
}

#endif
