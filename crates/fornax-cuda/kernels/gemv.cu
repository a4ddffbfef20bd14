//! Products for up to 8 tokens, fused with what stands before and behind them.
//!
//! A block owns tiles of 8 rows (or 8 pairs of a gate's and an up's row) and streams them through a ring of shared
//! memory, started before the launch behind it has finished. Compiled for some tokens, which tensor cores multiply, each
//! of 8 warps its blocks of 32 columns, whose sums meet in shared memory; or for a single one (ONE), which is multiplied
//! by `one_token.cu`, a row or a part of its columns by each warp, with fewer rows to a tile where these are long.

#if FORMAT != F32

#define THREADS (32 * WARPS + 32)
#define ROWS 8

/// How often the producer's lanes arrive at a full stage.
#if __CUDA_ARCH__ >= 900
#define FULL_ARRIVALS 1
#else
#define FULL_ARRIVALS 32
#endif

/// Starts the copy of a tile's rows to a stage. Called by the whole producing warp. They leave the
/// device's cache first: each is read once a token, and what is read more often should stay.
DEVICE void fetch(u8* stage, const Product& p, u32 row, u32 second, u32 full) {
    u32 lane = threadIdx.x % 32, pitch = p.pitch, stage_pitch = p.stage_pitch;
    const u8* weight = p.weight;
    u32 count = min(p.rows - row, p.tile_rows), both = second ? 2 * count : count;
#if __CUDA_ARCH__ >= 900
    if (lane == 0)
        asm volatile("{ .reg .b64 t; mbarrier.arrive.expect_tx.shared.b64 t, [%0], %1; }" ::"r"(full), "r"(both * pitch) : "memory");
    __syncwarp();
    if (lane < both) {
        u32 at = lane < count ? lane : p.tile_rows + lane - count, from = lane < count ? row + lane : second + row + lane - count;
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
                         shared_address(stage + at * stage_pitch)),
                     "l"(weight + (u64)from * pitch), "r"(pitch), "r"(full), "l"(leaves_first())
                     : "memory");
    }
#else
    for (u32 i = 0; i < both; i++) {
        u32 at = i < count ? i : p.tile_rows + i - count, from = i < count ? row + i : second + row + i - count;
        for (u32 b = lane * 16; b < pitch; b += 512)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(stage + at * stage_pitch + b)),
                         "l"(weight + (u64)from * pitch + b) : "memory");
    }
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(full) : "memory");
#endif
}

/// Asks for this block's share of some bytes, so that a launch to come finds them in the cache of
/// the device. Called by a warp.
DEVICE void bring_near(const u8* from, u32 bytes) {
#if __CUDA_ARCH__ >= 900
    u32 lanes = gridDim.x * 32, share = (bytes / 16 + lanes - 1) / lanes * 16, begin = (blockIdx.x * 32 + threadIdx.x % 32) * share;
    if (!from || begin >= bytes) return;
    u32 size = (bytes - begin < share ? bytes - begin : share) / 16 * 16;
    if (size) asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from + begin), "r"(size) : "memory");
#endif
}

#if !ONE
/// Adds up COUNT tiles' products of a warp's blocks of columns.
template <u32 COUNT, u32 TILES>
DEVICE void accumulate(float (&c)[ABREAST * TILES][4], const u8* const (&at)[ABREAST], const Product& p, const uint4* left, u32 warp) {
    u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, fours = p.padded / 4, blocks = p.padded / 32;
    bool there = g < p.n;
    auto add = [&](float (*sum)[4], u32 block) {
#if SCALED
        uint4 a = make_uint4(0, 0, 0, 0);
        Scaled own = {0.0f, 0.0f};
        if (there) {
            a = left[g * fours / 2 + block * 4 + t];
            own = ((const Scaled*)(left + p.n * fours / 2))[g * blocks + block];
        }
#else
        uint4 a0 = make_uint4(0, 0, 0, 0), a1 = a0;
        if (there) {
            a0 = left[g * fours + block * 8 + 2 * t];
            a1 = left[g * fours + block * 8 + 2 * t + 1];
        }
#endif
#pragma unroll
        for (u32 m = 0; m < COUNT * TILES; m++) {
            const u8* rows = at[m / TILES] + m % TILES * ROWS * p.stage_pitch;
            u32 b[4];
            fragment(rows + g * p.stage_pitch, p.padded, block, t, b);
#if SCALED
            const int none = __float_as_int(ON_TOP);
            int part[4] = {none, none, none, none};
            multiply(part, a, b[0], b[1]);
#pragma unroll
            for (u32 i = 0; i < 2; i++)
                sum[m][i] += whole_sum(part[i], part[2 + i], own) *
                             (own.scale * block_scale(rows + (2 * t + i) * p.stage_pitch, p.padded, block));
#else
            multiply(sum[m], a0, b[0], b[1]);
            multiply(sum[m], a1, b[2], b[3]);
#endif
        }
    };
    // Several blocks at once; with sums of their own where there are few tiles, for a product waits for
    // the one before it.
    constexpr u32 TOGETHER = COUNT * TILES == 1 ? 4 : 2, SUMS = COUNT * TILES == 1 ? 4 : COUNT * TILES == 2 ? 2 : 1;
    float sums[SUMS][COUNT * TILES][4] = {};
    u32 block = warp;
    for (; block + (TOGETHER - 1) * WARPS < blocks; block += TOGETHER * WARPS)
#pragma unroll
        for (u32 i = 0; i < TOGETHER; i++) add(sums[i % SUMS], block + i * WARPS);
    for (; block < blocks; block += WARPS) add(sums[0], block);
#pragma unroll
    for (u32 m = 0; m < COUNT * TILES; m++)
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            c[m][j] = sums[0][m][j];
#pragma unroll
            for (u32 i = 1; i < SUMS; i++) c[m][j] += sums[i][m][j];
        }
}

#endif

template <bool PAIRED>
DEVICE void product(const Product& p) {
    extern __shared__ __align__(128) u8 memory[];
    __shared__ __align__(8) u64 barriers[64];
    __shared__ float totals[8][WARPS], largests[8][WARPS], inverse[8];
    // Matrices of a tile.
    constexpr u32 TILES = PAIRED ? 2 : 1;
    u32 tid = threadIdx.x, lane = tid % 32, warp = tid / 32, fours = p.padded / 4, n = ONE ? 1 : p.n;
    const u32 tile_rows = ONE ? p.tile_rows : ROWS;
    const Lot lot = lot_of(tile_rows, warp);
    u32 stage_bytes = TILES * tile_rows * p.stage_pitch;
    u8* ring = memory;
    uint4* left = (uint4*)(memory + p.stages * stage_bytes);
    float* sums = ONE ? behind_one(left, p.padded) : (float*)(left + n * fours);
    u32 full = shared_address(barriers), empty = full + 8 * p.stages;
    u32 tiles = (p.rows + tile_rows - 1) / tile_rows;
    if (blockIdx.x >= tiles) {
        // It only keeps its place, so that no other block of the next launch comes beside the first.
        let_next_begin();
        wait_for_previous();
        if (p.best && tid < p.n) ((uint4*)p.best)[(u64)tid * gridDim.x + blockIdx.x] = make_uint4(__float_as_uint(-INFINITE), FULL, 0, 0);
        return;
    }

    if (tid < p.stages) {
        barrier_init(full + 8 * tid, FULL_ARRIVALS);
        barrier_init(empty + 8 * tid, WARPS);
    }
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    __syncthreads();

    if (warp == WARPS) {
        u32 i = 0;
        for (u32 tile = blockIdx.x; tile < tiles; tile += gridDim.x, i++) {
            if (i == p.stages) let_next_begin();
            u32 stage = i % p.stages, round = i / p.stages;
            if (round > 0) barrier_wait(empty + 8 * stage, (round - 1) & 1);
            fetch(ring + stage * stage_bytes, p, tile * tile_rows, PAIRED ? p.second : 0, full + 8 * stage);
        }
        let_next_begin();
        bring_near(p.ahead, p.ahead_bytes);
        return;
    }

    // What the weights are multiplied by; what a norm divides all of it by is known in the end.
    u32 g = lane / 4, t = lane % 4;
    for (u32 token = 0; token < n; token++) {
        float total = 0.0f, largest = 0.0f;
        for (u32 start = 0; start < fours; start += 32 * WARPS * AHEAD) {
            // All loads first, so that they wait together.
            float4 v[AHEAD], w[AHEAD];
#pragma unroll
            for (u32 j = 0; j < AHEAD; j++) w[j] = p.norm ? four(p.norm, start + tid + j * 32 * WARPS, p.cols) : make_float4(1.0f, 1.0f, 1.0f, 1.0f);
            if (token == 0 && start == 0) wait_for_previous();
            const float* from = p.x + (u64)(p.pick ? p.pick[token] : token) * p.cols;
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
                if (ONE) {
                    keep_one(left, p, i, a);
                    continue;
                }
#if SCALED
                Scaled of_block;
                uint2 split = bytes(a, of_block);
                if (i >= fours) break;
                u32 to = left_index(i);
                ((u32*)(left + token * fours / 2))[to / 2 * 4 + to % 2] = split.x;
                ((u32*)(left + token * fours / 2))[to / 2 * 4 + 2 + to % 2] = split.y;
                if (i % 8 == 0) ((Scaled*)(left + p.n * fours / 2))[token * (fours / 8) + i / 8] = of_block;
#else
                if (i >= fours) break;
                largest = fmaxf(fmaxf(largest, fmaxf(fabsf(a.x), fabsf(a.y))), fmaxf(fabsf(a.z), fabsf(a.w)));
                if (AT_ONCE) left[token * fours + i] = halves(a);
                else *(float4*)(left + token * fours + i) = a;
#endif
            }
        }
        if (p.norm) total = warp_sum(total);
        if (!AT_ONCE) largest = warp_max(largest);
        if (lane == 0) { totals[token][warp] = total; largests[token][warp] = largest; }
    }
    wait_for_previous();
    asm volatile("bar.sync 1, 256;" ::: "memory");
#if !AT_ONCE
    for (u32 token = 0; token < p.n && !ONE; token++) {
        float largest = 0.0f;
#pragma unroll
        for (u32 i = 0; i < WARPS; i++) largest = fmaxf(largest, largests[token][i]);
        float2 scale = half_scale(largest);
        if (tid == 0) inverse[token] = scale.y;
        for (u32 i = tid; i < fours; i += 32 * WARPS) {
            float4 v = *(float4*)(left + token * fours + i);
            v.x *= scale.x; v.y *= scale.x; v.z *= scale.x; v.w *= scale.x;
            left[token * fours + i] = halves(v);
        }
    }
#endif

    // What this thread adds up in the end.
    u32 per_tile = ROWS * n, outs = ABREAST * per_tile;
    u32 out_slot = tid / per_tile, out_token = tid % per_tile / ROWS, out_row = tid % ROWS;
    bool adds_up = tid < outs;
    if (ONE) { out_slot = lane; out_row = lot.row; adds_up = lane < ABREAST && lot.part == 0; }
    adds_up = adds_up && out_row < tile_rows;
    float before = 0.0f;
    u32 early = (blockIdx.x + out_slot * gridDim.x) * tile_rows + out_row;
    if (p.residual && adds_up && early < p.rows) before = p.residual[(u64)out_token * p.stride + p.column + early];
    float factor = 1.0f;
    Peak peak;
    if (!AT_ONCE && !ONE) asm volatile("bar.sync 1, 256;" ::: "memory");

    // Tiles go up to ABREAST at a time, and leave half of the ring to be filled where it must be filled
    // again. `stage` and `round` are the ring's.
    u32 stage = 0, round = 0;
    u32 step = (tiles - blockIdx.x + gridDim.x - 1) / gridDim.x;
    if (step > p.stages) step = p.stages > 1 ? p.stages / 2 : 1;
    if (step > ABREAST) step = ABREAST;
    for (u32 tile = blockIdx.x, before_it = 0; tile < tiles; before_it += step) {
        u32 count = (tiles - tile + gridDim.x - 1) / gridDim.x;
        if (count > step) count = step;
        // What sums are added to comes while they are made.
        u32 row = (tile + out_slot * gridDim.x) * tile_rows + out_row;
        u64 to = (u64)out_token * p.stride + p.column + row;
        bool ends = adds_up && out_slot < count && row < p.rows;
        if (before_it > 0 && ends && p.residual) before = p.residual[to];
        float added = ends && p.bias ? p.bias[row] : 0.0f;
        const u8* at[ABREAST];
        u32 freed[ABREAST];
#pragma unroll
        for (u32 j = 0; j < ABREAST; j++) {
            if (j >= count) break;
            barrier_wait(full + 8 * stage, round & 1);
            at[j] = ring + stage * stage_bytes;
            freed[j] = empty + 8 * stage;
            if (++stage == p.stages) { stage = 0; round++; }
        }
        float y = 0.0f, up = 0.0f;
#if ONE
        float whole[ABREAST * TILES] = {};
        if (count == 1) accumulate_one<1, TILES>(whole, at, p, left, lot);
        else if (count == 2) accumulate_one<2, TILES>(whole, at, p, left, lot);
        else if (count == 3) accumulate_one<3, TILES>(whole, at, p, left, lot);
        else accumulate_one<4, TILES>(whole, at, p, left, lot);
        __syncwarp();
#pragma unroll
        for (u32 j = 0; j < ABREAST; j++) {
            if (j < count && lane == 0) barrier_arrive(freed[j]);
            if (lane == j) { y = whole[j * TILES]; up = whole[j * TILES + TILES - 1]; }
        }
        if (lot.parts > 1) {
            if (lane < ABREAST) ((float2*)sums)[warp * ABREAST + lane] = make_float2(y, up);
            asm volatile("bar.sync 1, 256;" ::: "memory");
            for (u32 other = warp + tile_rows; adds_up && other < WARPS; other += tile_rows) {
                float2 more = ((const float2*)sums)[other * ABREAST + lane];
                y += more.x;
                up += more.y;
            }
        }
#else
        // Of every tile and half: the high and the low products of rows 2t and 2t + 1.
        float c[ABREAST * TILES][4];
        if (count == 1) accumulate<1, TILES>(c, at, p, left, warp);
        else if (count == 2) accumulate<2, TILES>(c, at, p, left, warp);
        else if (count == 3) accumulate<3, TILES>(c, at, p, left, warp);
        else accumulate<4, TILES>(c, at, p, left, warp);
        __syncwarp();
#pragma unroll
        for (u32 j = 0; j < ABREAST; j++) {
            if (j >= count) break;
            if (lane == 0) barrier_arrive(freed[j]);
            if (g >= p.n) continue;
#pragma unroll
            for (u32 half = 0; half < TILES; half++) {
                const float* sum = c[j * TILES + half];
                float* to = sums + (((j * TILES + half) * WARPS + warp) * p.n + g) * ROWS + 2 * t;
#if SCALED
                *(float2*)to = make_float2(sum[0], sum[1]);
#else
                *(float2*)to = make_float2(sum[0] + sum[2], sum[1] + sum[3]);
#endif
            }
        }
        asm volatile("bar.sync 1, 256;" ::: "memory");
#endif
        if (before_it == 0 && adds_up) {
            if (p.norm) factor = norm_factor(totals[out_token], p);
            if (!AT_ONCE && !ONE) factor *= inverse[out_token];
        }
        if (ends) {
            const float* from = sums + (out_slot * TILES * WARPS * p.n + out_token) * ROWS + out_row;
#pragma unroll
            for (u32 w = 0; w < WARPS; w++) {
                if (ONE) break;
                y += from[w * p.n * ROWS];
                if (PAIRED) up += from[(WARPS + w) * p.n * ROWS];
            }
            y *= factor;
            if (PAIRED) y = gated(y, up * factor, p.activation, p.alpha, p.limit);
            y += added;
            if (p.out) p.out[to] = y;
            if (p.residual) p.residual[to] = before + y;
            if (p.best) peak.see(y, row);
        }
        tile += step * gridDim.x;
        if (tile < tiles && (!ONE || lot.parts > 1)) asm volatile("bar.sync 1, 256;" ::: "memory");
    }

    if (p.normed && blockIdx.x == 0)
        for (u32 token = 0; token < n; token++) {
            float all = norm_factor(totals[token], p);
            for (u32 i = tid; i < p.cols; i += 32 * WARPS)
                p.normed[(u64)token * p.cols + i] = p.x[(u64)token * p.cols + i] * all * p.norm[i];
        }
    if (!p.best) return;
    asm volatile("bar.sync 1, 256;" ::: "memory");
    uint4* mine = (uint4*)sums;
    if (adds_up) mine[out_slot * per_tile + out_token * ROWS + out_row] = peak.words();
    asm volatile("bar.sync 1, 256;" ::: "memory");
    if (tid >= p.n) return;
    peak = Peak();
    for (u32 slot = 0; slot < ABREAST; slot++)
        for (u32 r = 0; r < tile_rows; r++) peak.join(peak_of(mine[slot * per_tile + tid * ROWS + r]));
    ((uint4*)p.best)[(u64)tid * gridDim.x + blockIdx.x] = peak.words();
}

KERNEL __launch_bounds__(THREADS, 2) void gemv(const __grid_constant__ Product p) { product<false>(p); }
KERNEL __launch_bounds__(THREADS, 2) void gemv_pair(const __grid_constant__ Product p) { product<true>(p); }

#endif
