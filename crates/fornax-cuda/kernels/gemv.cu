//! Products for up to 8 tokens on the tensor cores, fused with what stands before and behind them.
//!
//! A block owns tiles of 8 rows (or 8 pairs of a gate's and an up's row) and streams them through a
//! ring of shared memory, started before the launch behind it has finished. Each of 8 warps
//! multiplies its blocks of 32 columns; their sums meet in shared memory.
//!
//! A token is split into two halves of 11 (8 with BF16 weights) bits each, rows g and g + 8 of the
//! left matrix, so that the product is that of single precision. Quants are exact in half precision
//! and scaled afterwards, in single precision.

#if FORMAT != F32

#define WARPS 8
#define THREADS (32 * WARPS + 32)
#define GROUP 4
#define AHEAD 4
#define ROWS 8

#if FORMAT == Q8_0 || FORMAT == Q4_0
#define SCALED 1
#else
#define SCALED 0
#endif

DEVICE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

DEVICE void barrier_init(u32 barrier, u32 count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(count));
}
DEVICE void barrier_arrive(u32 barrier) {
    asm volatile("{ .reg .b64 t; mbarrier.arrive.shared.b64 t, [%0]; }" ::"r"(barrier) : "memory");
}
DEVICE void barrier_wait(u32 barrier, u32 parity) {
    u32 done = 0;
    while (!done)
#if __CUDA_ARCH__ >= 900
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
#else
        asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
#endif
}

/// How often the producer's lanes arrive at a full stage.
#if __CUDA_ARCH__ >= 900
#define FULL_ARRIVALS 1
#else
#define FULL_ARRIVALS 32
#endif

/// Starts the copy of a tile's rows to a stage. Called by the whole producing warp.
DEVICE void fetch(u8* stage, u32 stage_pitch, const u8* weight, u32 pitch, u32 row, u32 rows, u32 second, u32 full) {
    u32 lane = threadIdx.x % 32;
    u32 count = rows - row < ROWS ? rows - row : ROWS, both = second ? 2 * count : count;
#if __CUDA_ARCH__ >= 900
    if (lane == 0)
        asm volatile("{ .reg .b64 t; mbarrier.arrive.expect_tx.shared.b64 t, [%0], %1; }" ::"r"(full), "r"(both * pitch) : "memory");
    __syncwarp();
    if (lane < both) {
        u32 at = lane < count ? lane : ROWS + lane - count, from = lane < count ? row + lane : second + row + lane - count;
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                         shared_address(stage + at * stage_pitch)),
                     "l"(weight + (u64)from * pitch), "r"(pitch), "r"(full)
                     : "memory");
    }
#else
    for (u32 i = 0; i < both; i++) {
        u32 at = i < count ? i : ROWS + i - count, from = i < count ? row + i : second + row + i - count;
        for (u32 b = lane * 16; b < pitch; b += 512)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(stage + at * stage_pitch + b)),
                         "l"(weight + (u64)from * pitch + b) : "memory");
    }
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(full) : "memory");
#endif
}

/// This thread's 8 weights of a block of 32 columns: two steps of two words. Which columns they are
/// is what `left_index` says.
DEVICE void fragment(const u8* row, u32 padded, u32 block, u32 t, u32* b) {
#if FORMAT == BF16 || FORMAT == F16
    uint4 v = *(const uint4*)(row + block * 64 + t * 16);
    b[0] = v.x; b[1] = v.y; b[2] = v.z; b[3] = v.w;
#elif FORMAT == Q8_0
    uint2 v = *(const uint2*)(row + block * 32 + t * 8);
    u32 words[2] = {v.x ^ 0x80808080u, v.y ^ 0x80808080u};
    for (int s = 0; s < 2; s++) {
        b[2 * s] = __byte_perm(words[s], 0x64646464u, 0x4140);
        b[2 * s + 1] = __byte_perm(words[s], 0x64646464u, 0x4342);
    }
    for (int i = 0; i < 4; i++) asm("sub.f16x2 %0, %0, %1;" : "+r"(b[i]) : "r"(0x64806480u));
#elif FORMAT == Q4_0
    u32 v = *(const u32*)(row + block * 16 + t * 4);
    u32 words[2] = {v & 0x0f0f0f0fu, v >> 4 & 0x0f0f0f0fu};
    for (int s = 0; s < 2; s++) {
        b[2 * s] = __byte_perm(words[s], 0x64646464u, 0x4140);
        b[2 * s + 1] = __byte_perm(words[s], 0x64646464u, 0x4342);
    }
    for (int i = 0; i < 4; i++) asm("sub.f16x2 %0, %0, %1;" : "+r"(b[i]) : "r"(0x64086408u));
#else
    float w[8];
    decode8(row, padded, block * 32 + t * 8, w);
    for (int i = 0; i < 4; i++) b[i] = f16_pair(w[2 * i], w[2 * i + 1]);
#endif
}

DEVICE float block_scale(const u8* row, u32 padded, u32 block) {
#if FORMAT == Q8_0
    return f32_of_f16(*(const u16*)(row + padded + 2 * block));
#elif FORMAT == Q4_0
    return f32_of_f16(*(const u16*)(row + padded / 2 + 2 * block));
#else
    return 1.0f;
#endif
}

/// Which four columns of a token, counted in fours, step `s` multiplies.
DEVICE u32 left_index(u32 block, u32 t, u32 s) {
#if FORMAT == Q4_0
    return block * 8 + t + 4 * s;
#else
    return block * 8 + 2 * t + s;
#endif
}

DEVICE void multiply(float* c, const uint4& a, u32 b0, u32 b1) {
#if FORMAT == BF16
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#endif
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        // Rows g are the high halves, rows g + 8 the low ones.
        : "r"(a.x), "r"(a.z), "r"(a.y), "r"(a.w), "r"(b0), "r"(b1));
}

/// Four columns of a token as high and low halves: {high 01, high 23, low 01, low 23}.
DEVICE uint4 halves(float4 v) {
    uint4 out;
#if FORMAT == BF16
    out.x = bf16_pair(v.x, v.y);
    out.y = bf16_pair(v.z, v.w);
    out.z = bf16_pair(v.x - __uint_as_float(out.x << 16), v.y - __uint_as_float(out.x & 0xffff0000u));
    out.w = bf16_pair(v.z - __uint_as_float(out.y << 16), v.w - __uint_as_float(out.y & 0xffff0000u));
#else
    out.x = f16_pair(v.x, v.y);
    out.y = f16_pair(v.z, v.w);
    out.z = f16_pair(v.x - f32_of_f16(out.x & 0xffff), v.y - f32_of_f16(out.x >> 16));
    out.w = f16_pair(v.z - f32_of_f16(out.y & 0xffff), v.w - f32_of_f16(out.y >> 16));
#endif
    return out;
}

/// A power of two that brings `largest` near 2^8, and its inverse: half precision has a small range.
DEVICE float2 half_scale(float largest) {
#if FORMAT == BF16
    return make_float2(1.0f, 1.0f);
#else
    u32 exponent = __float_as_uint(largest) >> 23 & 255;
    exponent = exponent < 24 ? 24 : exponent > 250 ? 250 : exponent;
    return make_float2(__uint_as_float((262 - exponent) << 23), __uint_as_float((exponent - 8) << 23));
#endif
}

/// Four numbers of a row that is `cols` long, zeros behind its end.
DEVICE float4 four(const float* row, u32 i, u32 cols) {
    float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (cols % 4 == 0) {
        if (4 * i < cols) v = *(const float4*)(row + 4 * i);
        return v;
    }
    if (4 * i < cols) v.x = row[4 * i];
    if (4 * i + 1 < cols) v.y = row[4 * i + 1];
    if (4 * i + 2 < cols) v.z = row[4 * i + 2];
    if (4 * i + 3 < cols) v.w = row[4 * i + 3];
    return v;
}

struct Product {
    float* out;       // [n, stride] from a column on; not written where null
    float* residual;  // [n, stride], added to where not null
    const u8* weight; // [rows or second + rows, pitch]
    const float* bias;
    const float* x;    // [n, cols]
    const float* norm; // [cols], where x is still to be normed
    float* normed;     // [n, cols], what the norm gives; not written where null
    u32* best;         // [n, blocks, 4]: largest, where, sum of exponentials, whether unsound
    const u32* pick;   // [n], the rows of x where they are not the first ones
    float eps, alpha, limit;
    u32 n, rows, cols, padded, pitch, stride, column, second, activation, stages, stage_pitch;
};

/// Adds up COUNT tiles' products of a warp's blocks of columns.
template <u32 COUNT, u32 TILES>
DEVICE void accumulate(float (&c)[GROUP * TILES][4], const u8* const (&at)[GROUP], const Product& p, const uint4* left, u32 warp) {
    u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, fours = p.padded / 4, blocks = p.padded / 32;
    const uint4* mine = left + g * fours;
    bool there = g < p.n;
#pragma unroll 2
    for (u32 block = warp; block < blocks; block += WARPS) {
        uint4 a0 = make_uint4(0, 0, 0, 0), a1 = a0;
        if (there) {
            a0 = mine[left_index(block, t, 0)];
            a1 = mine[left_index(block, t, 1)];
        }
#pragma unroll
        for (u32 m = 0; m < COUNT * TILES; m++) {
            const u8* rows = at[m / TILES] + m % TILES * ROWS * p.stage_pitch;
            u32 b[4];
            fragment(rows + g * p.stage_pitch, p.padded, block, t, b);
#if SCALED
            float part[4] = {};
            multiply(part, a0, b[0], b[1]);
            multiply(part, a1, b[2], b[3]);
            c[m][0] += (part[0] + part[2]) * block_scale(rows + 2 * t * p.stage_pitch, p.padded, block);
            c[m][1] += (part[1] + part[3]) * block_scale(rows + (2 * t + 1) * p.stage_pitch, p.padded, block);
#else
            multiply(c[m], a0, b[0], b[1]);
            multiply(c[m], a1, b[2], b[3]);
#endif
        }
    }
}

template <bool PAIRED>
DEVICE void product(const Product& p) {
    extern __shared__ __align__(128) u8 memory[];
    __shared__ __align__(8) u64 barriers[64];
    __shared__ float totals[8][WARPS], largests[8][WARPS], inverse[8];
    // Matrices of a tile.
    constexpr u32 TILES = PAIRED ? 2 : 1;
    u32 tid = threadIdx.x, lane = tid % 32, warp = tid / 32, fours = p.padded / 4;
    u32 stage_bytes = TILES * ROWS * p.stage_pitch;
    u8* ring = memory;
    uint4* left = (uint4*)(memory + p.stages * stage_bytes);
    float* sums = (float*)(left + p.n * fours);
    u32 full = shared_address(barriers), empty = full + 8 * p.stages;
    u32 tiles = (p.rows + ROWS - 1) / ROWS;

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
            fetch(ring + stage * stage_bytes, p.stage_pitch, p.weight, p.pitch, tile * ROWS, p.rows,
                  PAIRED ? p.second : 0, full + 8 * stage);
        }
        let_next_begin();
        return;
    }

    // What the weights are multiplied by.
    u32 g = lane / 4, t = lane % 4;
    for (u32 token = 0; token < p.n; token++) {
        float total = 0.0f, largest = 0.0f;
        for (u32 start = tid; start < fours; start += 32 * WARPS * AHEAD) {
            // All loads first, so that they wait together.
            float4 v[AHEAD], w[AHEAD];
#pragma unroll
            for (u32 j = 0; j < AHEAD; j++) w[j] = p.norm ? four(p.norm, start + j * 32 * WARPS, p.cols) : make_float4(1.0f, 1.0f, 1.0f, 1.0f);
            if (token == 0 && start == tid) wait_for_previous();
            const float* from = p.x + (u64)(p.pick ? p.pick[token] : token) * p.cols;
#pragma unroll
            for (u32 j = 0; j < AHEAD; j++) v[j] = four(from, start + j * 32 * WARPS, p.cols);
#pragma unroll
            for (u32 j = 0; j < AHEAD; j++) {
                u32 i = start + j * 32 * WARPS;
                if (i >= fours) break;
                float4 a = v[j];
                total += a.x * a.x + a.y * a.y + a.z * a.z + a.w * a.w;
                a.x *= w[j].x; a.y *= w[j].y; a.z *= w[j].z; a.w *= w[j].w;
                largest = fmaxf(fmaxf(largest, fmaxf(fabsf(a.x), fabsf(a.y))), fmaxf(fabsf(a.z), fabsf(a.w)));
                *(float4*)(left + token * fours + i) = a;
            }
        }
        total = warp_sum(total);
        largest = warp_max(largest);
        if (lane == 0) { totals[token][warp] = total; largests[token][warp] = largest; }
    }
    wait_for_previous();
    asm volatile("bar.sync 1, 256;" ::: "memory");
    for (u32 token = 0; token < p.n; token++) {
        float total = 0.0f, largest = 0.0f;
#pragma unroll
        for (u32 i = 0; i < WARPS; i++) {
            total += totals[token][i];
            largest = fmaxf(largest, largests[token][i]);
        }
        float factor = p.norm ? rsqrtf(total / p.cols + p.eps) : 1.0f;
        float2 scale = half_scale(largest * factor);
        if (tid == 0) inverse[token] = scale.y;
        for (u32 i = tid; i < fours; i += 32 * WARPS) {
            float4 v = *(float4*)(left + token * fours + i);
            v.x *= factor; v.y *= factor; v.z *= factor; v.w *= factor;
            if (p.normed && blockIdx.x == 0)
                for (u32 j = 0; j < 4; j++) if (4 * i + j < p.cols) p.normed[(u64)token * p.cols + 4 * i + j] = ((float*)&v)[j];
            v.x *= scale.x; v.y *= scale.x; v.z *= scale.x; v.w *= scale.x;
            left[token * fours + i] = halves(v);
        }
    }

    // What this thread adds up in the end.
    u32 per_tile = ROWS * p.n, outs = GROUP * per_tile;
    u32 out_slot = tid / per_tile, out_token = tid % per_tile / ROWS, out_row = tid % ROWS;
    float before = 0.0f;
    u32 early = (blockIdx.x + out_slot * gridDim.x) * ROWS + out_row;
    if (p.residual && tid < outs && early < p.rows) before = p.residual[(u64)out_token * p.stride + p.column + early];
    float best = -INFINITE, exponentials = 0.0f;
    u32 best_row = 0, unsound = 0;
    asm volatile("bar.sync 1, 256;" ::: "memory");

    // Tiles go up to GROUP at a time, and leave half of the ring to be filled where it must be filled
    // again. `stage` and `round` are the ring's.
    u32 stage = 0, round = 0;
    u32 step = (tiles - blockIdx.x + gridDim.x - 1) / gridDim.x;
    if (step > p.stages) step = p.stages > 1 ? p.stages / 2 : 1;
    if (step > GROUP) step = GROUP;
    for (u32 tile = blockIdx.x, before_it = 0; tile < tiles; before_it += step) {
        u32 count = (tiles - tile + gridDim.x - 1) / gridDim.x;
        if (count > step) count = step;
        const u8* at[GROUP];
        u32 freed[GROUP];
#pragma unroll
        for (u32 j = 0; j < GROUP; j++) {
            if (j >= count) break;
            barrier_wait(full + 8 * stage, round & 1);
            at[j] = ring + stage * stage_bytes;
            freed[j] = empty + 8 * stage;
            if (++stage == p.stages) { stage = 0; round++; }
        }
        // Of every tile and half: the high and the low products of rows 2t and 2t + 1.
        float c[GROUP * TILES][4];
#pragma unroll
        for (u32 j = 0; j < GROUP * TILES; j++) c[j][0] = c[j][1] = c[j][2] = c[j][3] = 0.0f;
        if (count == 1) accumulate<1, TILES>(c, at, p, left, warp);
        else if (count == 2) accumulate<2, TILES>(c, at, p, left, warp);
        else if (count == 3) accumulate<3, TILES>(c, at, p, left, warp);
        else accumulate<4, TILES>(c, at, p, left, warp);
        __syncwarp();
#pragma unroll
        for (u32 j = 0; j < GROUP; j++) {
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
        u32 row = (tile + out_slot * gridDim.x) * ROWS + out_row;
        if (tid < outs && out_slot < count && row < p.rows) {
            float y = 0.0f, up = 0.0f;
            const float* from = sums + (out_slot * TILES * WARPS * p.n + out_token) * ROWS + out_row;
#pragma unroll
            for (u32 w = 0; w < WARPS; w++) {
                y += from[w * p.n * ROWS];
                if (PAIRED) up += from[(WARPS + w) * p.n * ROWS];
            }
            y *= inverse[out_token];
            if (PAIRED) y = gated(y, up * inverse[out_token], p.activation, p.alpha, p.limit);
            if (p.bias) y += p.bias[row];
            u64 to = (u64)out_token * p.stride + p.column + row;
            if (p.out) p.out[to] = y;
            if (p.residual) {
                if (before_it > 0) before = p.residual[to];
                p.residual[to] = before + y;
            }
            if (p.best) {
                if (!(y < INFINITE)) unsound = 1;
                if (y > best) { exponentials = exponentials * expf(best - y) + 1.0f; best = y; best_row = row; }
                else if (y > -INFINITE) exponentials += expf(y - best);
            }
        }
        tile += step * gridDim.x;
        if (tile < tiles) asm volatile("bar.sync 1, 256;" ::: "memory");
    }

    if (!p.best) return;
    asm volatile("bar.sync 1, 256;" ::: "memory");
    uint4* mine = (uint4*)sums;
    if (tid < outs) mine[tid] = make_uint4(__float_as_uint(best), best_row, __float_as_uint(exponentials), unsound);
    asm volatile("bar.sync 1, 256;" ::: "memory");
    if (tid >= p.n) return;
    best = -INFINITE; exponentials = 0.0f; best_row = FULL; unsound = 0;
    for (u32 slot = 0; slot < GROUP; slot++)
        for (u32 r = 0; r < ROWS; r++) {
            uint4 other = mine[slot * per_tile + tid * ROWS + r];
            float largest = __uint_as_float(other.x), sum = __uint_as_float(other.z);
            unsound |= other.w;
            if (sum == 0.0f) continue;
            if (largest > best) { exponentials = exponentials * expf(best - largest) + sum; }
            else exponentials += sum * expf(largest - best);
            if (largest > best || (largest == best && other.y < best_row)) best_row = other.y;
            best = fmaxf(best, largest);
        }
    ((uint4*)p.best)[(u64)tid * gridDim.x + blockIdx.x] = make_uint4(__float_as_uint(best), best_row, __float_as_uint(exponentials), unsound);
}

KERNEL __launch_bounds__(THREADS, 2) void gemv(const __grid_constant__ Product p) { product<false>(p); }
KERNEL __launch_bounds__(THREADS, 2) void gemv_pair(const __grid_constant__ Product p) { product<true>(p); }

#endif
