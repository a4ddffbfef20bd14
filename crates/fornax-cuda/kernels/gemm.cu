//! Products of up to 64 tokens at once on the tensor cores, in bf16: weights in the file's format,
//! unpacked in registers; fused with what stands before and behind them. Also of tokens that are in
//! the order of the experts which they chose.
//!
//! `out [n, rows] = x [n, cols] · weight [rows, cols]ᵀ`. A block has a tile of 64 rows (or 32 pairs of a
//! gate's and an up's row) and all tokens of a tile; where there are few tiles, the blocks of a cluster
//! split their columns and add up in each other's shared memory. Bytes: every weight once, and the
//! tokens once for each tile of rows, out of the device's cache; the ceiling is the memory's speed for
//! the weights. With 1024 columns and 4096 rows of Q8_0 that is 4.5 MB, 1 µs.

#if FORMAT != F32

#define GEMM_WARPS 8
#define TILE_ROWS 64
// Blocks of 32 columns of the left side that are in shared memory at once.
#define CHUNK 32
// Floats from one token's sums to the next one's, such that a warp's words share no bank.
#define SUM_PITCH (TILE_ROWS + 8)
#define MOST_SPLITS 8

struct Gemm {
    void* out;         // [n, stride] from a column on, of bf16 where `narrow`, then with zeros behind `rows`
    float* residual;   // [n, stride], added to in the stead of out where not null
    const u8* weight;  // [experts, rows or second + rows, pitch]
    const float* bias; // [experts, bias_stride], null where there is none
    const void* x;     // [n / share, cols] of whole fours, or bf16 [n / share, padded] where `rounded`
    const float* norm; // [cols], where x is still to be normed
    const u32* order;  // rows of out, expert by expert; null where there are no experts
    const uint4* tiles; // expert, first of its rows in order, how many: none where there is no such tile
    u64 expert_bytes;
    float eps, alpha, limit;
    u32 n, rows, cols, padded, pitch, stride, column, second, bias_stride, activation, share, rounded, narrow;
};

/// Sixteen bytes to shared memory, not waited for.
DEVICE void copy_behind(u32 to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

/// Bytes from one token to the next of a left side of so many blocks: such that eight lanes which
/// read 16 bytes of two tokens share no bank.
DEVICE u32 left_pitch(u32 blocks) { return blocks % 2 ? blocks * 64 : blocks * 64 + 64; }

/// Brings blocks of columns of tokens to shared memory in bf16, under a norm's weights where there are
/// some, and adds up their squares then.
template <u32 SIXTEENS>
DEVICE void fill_left(const Gemm& p, u8* left, const float* norm, float* squares, const u32* from_rows, u32 count, u32 first_block, u32 blocks) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, pitch = left_pitch(blocks);
    if (p.rounded) {
        for (u32 token = warp; token < count; token += GEMM_WARPS) {
            const u16* from = (const u16*)p.x + (u64)from_rows[token] * p.padded + first_block * 32;
            for (u32 i = lane; i < blocks * 4; i += 32) copy_behind(shared_address(left + token * pitch + i * 16), from + i * 8);
        }
        asm volatile("cp.async.wait_all;" ::: "memory");
        return;
    }
    // Eight loads that wait together: TOKENS of this warp's tokens, FOURS of a lane's columns.
    constexpr u32 TOKENS = SIXTEENS < 4 ? 2 * SIXTEENS : 4, FOURS = 8 / TOKENS;
    for (u32 start = lane; start - lane < blocks * 8; start += 32 * FOURS) {
        auto there = [&](u32 i) { return start + 32 * i < blocks * 8 && (first_block * 8 + start + 32 * i) * 4 < p.cols; };
        for (u32 first = warp; first < count; first += TOKENS * GEMM_WARPS) {
            float4 v[TOKENS][FOURS];
#pragma unroll
            for (u32 j = 0; j < TOKENS; j++) {
                u32 token = first + j * GEMM_WARPS;
                const float4* from = (const float4*)((const float*)p.x + (u64)from_rows[token < count ? token : first] * p.cols) + first_block * 8 + start;
#pragma unroll
                for (u32 i = 0; i < FOURS; i++) v[j][i] = there(i) ? from[32 * i] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            }
            float sums[TOKENS] = {};
#pragma unroll
            for (u32 i = 0; i < FOURS; i++) {
                u32 at = start + 32 * i;
                float4 w = p.norm && there(i) ? ((const float4*)norm)[at] : make_float4(1.0f, 1.0f, 1.0f, 1.0f);
#pragma unroll
                for (u32 j = 0; j < TOKENS; j++) {
                    u32 token = first + j * GEMM_WARPS;
                    float4 a = v[j][i];
                    sums[j] += a.x * a.x + a.y * a.y + a.z * a.z + a.w * a.w;
                    if (token < count && at < blocks * 8)
                        *(uint2*)(left + token * pitch + at * 8) = make_uint2(bf16_pair(a.x * w.x, a.y * w.y), bf16_pair(a.z * w.z, a.w * w.w));
                }
            }
            if (!p.norm) continue;
#pragma unroll
            for (u32 j = 0; j < TOKENS; j++) {
                u32 token = first + j * GEMM_WARPS;
                float sum = warp_sum(sums[j]);
                if (lane == 0 && token < count) squares[token] += sum;
            }
        }
    }
}

/// For 16 SIXTEENS tokens; a warp has 8 EIGHTS rows of the tile and every EIGHTS-th block of columns.
template <u32 SIXTEENS, u32 EIGHTS>
DEVICE void gemm(const Gemm& p) {
    constexpr u32 TOKENS_AT_ONCE = 16 * SIXTEENS, SLICES = EIGHTS, DEPTH = sizeof(Packed) > 12 ? 8 / EIGHTS : 16 / EIGHTS;
    // The left side, then sums [SLICES, tokens, SUM_PITCH] in its place; behind it what the blocks of
    // the cluster sent, [splits, tokens, rows of ours].
    extern __shared__ __align__(128) u8 left[];
    __shared__ float squares[TOKENS_AT_ONCE], sent_squares[MOST_SPLITS][TOKENS_AT_ONCE];
    __shared__ __align__(16) float norm[32 * CHUNK];
    __shared__ u32 from_rows[TOKENS_AT_ONCE], to_rows[TOKENS_AT_ONCE];
    u32 tid = threadIdx.x, lane = tid % 32, warp = tid / 32, g = lane / 4, t = lane % 4;
    u32 slice = warp % SLICES, warp_row = warp / SLICES * 8 * EIGHTS;
    u32 rank = cluster_rank(), splits = cluster_size();
    let_next_begin();
    u32 expert = 0, first = 0, count = p.n;
    if (p.tiles) {
        wait_for_previous();
        uint4 tile = p.tiles[blockIdx.z];
        expert = tile.x;
        first = tile.y;
        count = tile.z;
        if (count == 0) return;
    }
    if (splits > 1) cluster_arrive();

    u32 blocks = p.padded / 32, each = (blocks + splits - 1) / splits, begin = rank * each, end = begin + each < blocks ? begin + each : blocks;
    u32 tile_outs = p.second ? TILE_ROWS / 2 : TILE_ROWS, tile_row = blockIdx.y * tile_outs;
    const u8* rows[EIGHTS];
#pragma unroll
    for (u32 j = 0; j < EIGHTS; j++) {
        u32 at = warp_row + j * 8 + g, row = tile_row + at % tile_outs;
        // Behind the end any row will do.
        row = (row < p.rows ? row : p.rows - 1) + (at < tile_outs ? 0 : p.second);
        rows[j] = p.weight + expert * p.expert_bytes + (u64)row * p.pitch;
    }
    Packed packed[DEPTH][EIGHTS];
    auto load = [&](u32 depth, u32 block) {
        if (block >= end) return;
#pragma unroll
        for (u32 j = 0; j < EIGHTS; j++) packed[depth][j] = load_packed(rows[j], p.padded, block, t);
    };
#pragma unroll
    for (u32 depth = 0; depth < DEPTH; depth++) load(depth, begin + slice + SLICES * depth);
    auto fill_norm = [&](u32 chunk) {
        for (u32 i = tid; p.norm && i < 32 * CHUNK && chunk * 32 + i < p.cols; i += 32 * GEMM_WARPS) norm[i] = p.norm[chunk * 32 + i];
    };
    fill_norm(begin);
    if (!p.tiles) wait_for_previous();
    if (tid < count) {
        to_rows[tid] = p.order ? p.order[first + tid] : first + tid;
        from_rows[tid] = to_rows[tid] / p.share;
        squares[tid] = 0.0f;
    }
    __syncthreads();
    // Each block of the cluster ends a share of the rows, or of the pairs: a power of two of them.
    u32 halvings = 31 - __clz(splits), own = TILE_ROWS >> halvings, outs = tile_outs >> halvings, out_bits = 31 - __clz(outs);
    u32 most = p.narrow ? p.stride : p.rows;
    auto place = [&](u32 i) { return (u64)to_rows[i >> out_bits] * p.stride + p.column + tile_row + rank * outs + (i & (outs - 1)); };
    // What the first two results are added to comes while we multiply.
    auto early = [&](u32 i) { return p.residual && i < count * outs && tile_row + rank * outs + (i & (outs - 1)) < most ? p.residual[place(i)] : 0.0f; };
    float before = early(tid), before_next = early(tid + 32 * GEMM_WARPS);

    float c[SIXTEENS][EIGHTS][4] = {};
    for (u32 chunk = begin; chunk < end; chunk += CHUNK) {
        u32 chunk_end = chunk + CHUNK < end ? chunk + CHUNK : end, pitch = left_pitch(chunk_end - chunk);
        if (chunk > begin) { __syncthreads(); fill_norm(chunk); __syncthreads(); }
        fill_left<SIXTEENS>(p, left, norm, squares, from_rows, count, chunk, chunk_end - chunk);
        __syncthreads();
        for (u32 block = chunk + slice; block < chunk_end; block += SLICES * DEPTH)
#pragma unroll
            for (u32 depth = 0; depth < DEPTH; depth++) {
                u32 now = block + SLICES * depth;
                if (now >= chunk_end) break;
                uint4 a[SIXTEENS][2];
#pragma unroll
                for (u32 m = 0; m < SIXTEENS; m++) {
                    const u8* from = left + (m * 16 + g) * pitch + (now - chunk) * 64 + t * 16;
                    a[m][0] = *(const uint4*)from;
                    a[m][1] = *(const uint4*)(from + 8 * pitch);
                }
#pragma unroll
                for (u32 j = 0; j < EIGHTS; j++) {
                    u32 b[4];
                    unpack(packed[depth][j], now, t, b);
#pragma unroll
                    for (u32 m = 0; m < SIXTEENS; m++) {
                        multiply_halves<true>(c[m][j], make_uint4(a[m][0].x, a[m][0].y, a[m][1].x, a[m][1].y), b[0], b[1]);
                        multiply_halves<true>(c[m][j], make_uint4(a[m][0].z, a[m][0].w, a[m][1].z, a[m][1].w), b[2], b[3]);
                    }
                }
                load(depth, now + SLICES * DEPTH);
            }
    }
    __syncthreads();
    float* sums = (float*)left;
#pragma unroll
    for (u32 m = 0; m < SIXTEENS; m++)
#pragma unroll
        for (u32 j = 0; j < EIGHTS; j++) {
            float* to = sums + (slice * TOKENS_AT_ONCE + m * 16 + g) * SUM_PITCH + warp_row + j * 8 + 2 * t;
            *(float2*)to = make_float2(c[m][j][0], c[m][j][1]);
            *(float2*)(to + 8 * SUM_PITCH) = make_float2(c[m][j][2], c[m][j][3]);
        }
    __syncthreads();

    auto of_slices = [&](u32 token, u32 row) {
        float sum = 0.0f;
#pragma unroll
        for (u32 s = 0; s < SLICES; s++) sum += sums[(s * TOKENS_AT_ONCE + token) * SUM_PITCH + row];
        return sum;
    };
    // Others may send while we still multiply.
    u32 left_bytes = TOKENS_AT_ONCE * left_pitch(each < CHUNK ? each : CHUNK), sum_bytes = 4 * SLICES * TOKENS_AT_ONCE * SUM_PITCH;
    float* sent = (float*)(left + (left_bytes > sum_bytes ? left_bytes : sum_bytes));
    if (splits > 1) {
        cluster_wait();
        for (u32 i = tid; i < count * TILE_ROWS; i += 32 * GEMM_WARPS) {
            u32 token = i / TILE_ROWS, row = i % TILE_ROWS, of_half = row & (tile_outs - 1);
            u32 slot = (row == of_half ? 0 : outs) + (of_half & (outs - 1));
            send(&sent[(rank * TOKENS_AT_ONCE + token) * own + slot], of_half >> out_bits, of_slices(token, row));
        }
        for (u32 i = tid; p.norm && i < count * splits; i += 32 * GEMM_WARPS) send(&sent_squares[rank][i >> halvings], i & (splits - 1), squares[i >> halvings]);
        cluster_arrive();
        cluster_wait();
    }
    auto total = [&](u32 token, u32 slot) {
        if (splits == 1) return of_slices(token, slot);
        float sum = 0.0f;
        for (u32 r = 0; r < splits; r++) sum += sent[(r * TOKENS_AT_ONCE + token) * own + slot];
        return sum;
    };
    for (u32 i = tid; i < count * outs; i += 32 * GEMM_WARPS) {
        u32 token = i >> out_bits, slot = i & (outs - 1), row = tile_row + rank * outs + slot;
        if (row >= most) continue;
        float y = total(token, slot), up = p.second ? total(token, outs + slot) : 0.0f;
        if (p.norm) {
            float sum = splits == 1 ? squares[token] : 0.0f;
            for (u32 r = 0; r < splits && splits > 1; r++) sum += sent_squares[r][token];
            float factor = rsqrtf(sum / p.cols + p.eps);
            y *= factor;
            up *= factor;
        }
        if (p.bias && row < p.rows) {
            const float* bias = p.bias + (u64)expert * p.bias_stride;
            y += bias[row];
            if (p.second) up += bias[p.second + row];
        }
        if (p.second) y = gated(y, up, p.activation, p.alpha, p.limit);
        u64 to = place(i);
        if (p.residual) p.residual[to] = (i == tid ? before : i == tid + 32 * GEMM_WARPS ? before_next : p.residual[to]) + y;
        else if (p.narrow) ((u16*)p.out)[to] = row < p.rows ? bf16_of_f32(y) : 0;
        else ((float*)p.out)[to] = y;
    }
}

KERNEL __launch_bounds__(32 * GEMM_WARPS, 2) void gemm_16(const __grid_constant__ Gemm p) { gemm<1, 4>(p); }
KERNEL __launch_bounds__(32 * GEMM_WARPS, 2) void gemm_32(const __grid_constant__ Gemm p) { gemm<2, 4>(p); }
KERNEL __launch_bounds__(32 * GEMM_WARPS, 2) void gemm_64(const __grid_constant__ Gemm p) { gemm<4, 2>(p); }

#endif
