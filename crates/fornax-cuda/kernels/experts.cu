//! The experts of a single token, with weights of one format: gates and ups of all that it chose in one launch, and in
//! another all that they add to it. Must not know who chose them.
//!
//! Every block cuts the token anew, and its warps read rows where they lie: which experts those are of is
//! known too late to have them come to shared memory before. Bytes: the chosen experts' weights, once. Least time: those
//! over the bandwidth of the device's memory.

#if FORMAT != F32

/// Of gates and ups `rows` is how many pairs of them there are.
struct Experts {
    float* out;           // [used, rows], or [rows]; not written where null
    float* residual;      // [rows], added to where not null
    const u8* weight;     // [experts, rows or twice as many, pitch]
    const float* bias;    // [experts, rows or twice as many], or null
    const float* x;       // [cols], or [used, cols]
    const float* weights; // [used], of the answers
    const u32* ids;       // [used]
    u64 expert_bytes;
    float alpha, limit;
    u32 used, rows, cols, padded, pitch, activation;
};

/// Rows of one expert each, where they lie.
DEVICE Product rows_that_lie(const Experts& e) {
    Product p = {};
    p.padded = e.padded;
    return p;
}
constexpr Lot WHOLE_ROWS = {0, 0, 1};

/// Keeps a token times a number as it is multiplied. Called by all warps.
DEVICE void keep_token(uint4* left, const Product& p, const float* x, u32 cols, float scale) {
    u32 tid = threadIdx.x, fours = p.padded / 4;
    for (u32 start = 0; start < fours; start += 32 * WARPS * AHEAD) {
        // All loads first, so that they wait together.
        float4 v[AHEAD];
#pragma unroll
        for (u32 j = 0; j < AHEAD; j++) v[j] = four(x, start + tid + j * 32 * WARPS, cols);
#pragma unroll
        for (u32 j = 0; j < AHEAD; j++) {
            // The same for a warp, but for the last.
            if (start + j * 32 * WARPS + tid / 32 * 32 >= fours) break;
            keep_one(left, p, start + tid + j * 32 * WARPS, make_float4(v[j].x * scale, v[j].y * scale, v[j].z * scale, v[j].w * scale));
        }
    }
}

/// Has bytes come to the device's cache. Called by a warp.
DEVICE void ask_for(const u8* from, u32 bytes) {
    for (u32 at = threadIdx.x % 32 * 128; at < bytes; at += 32 * 128) asm volatile("prefetch.global.L2 [%0];" ::"l"(from + at));
}

/// `out[e, r] = activation(x · gate[ids[e], r]) · (x · up[ids[e], r])`: a warp has two of these at a time.
KERNEL __launch_bounds__(32 * WARPS, 2) void experts_gated(const __grid_constant__ Experts e) {
    extern __shared__ __align__(16) uint4 left[];
    let_next_begin();
    wait_for_previous();
    const Product p = rows_that_lie(e);
    u32 lane = threadIdx.x % 32, all = e.used * e.rows, first = 2 * (blockIdx.x * WARPS + threadIdx.x / 32);
    const u8* at[ABREAST];
    auto find = [&](u32 begin) {
#pragma unroll
        for (u32 j = 0; j < 2; j++) {
            u32 one = min(begin + j, all - 1);
            at[2 * j] = e.weight + e.ids[one / e.rows] * e.expert_bytes + (u64)(one % e.rows) * e.pitch;
            at[2 * j + 1] = at[2 * j] + (u64)e.rows * e.pitch;
        }
    };
    find(first);
    if (first < all)
#pragma unroll
        for (u32 j = 0; j < ABREAST; j++) ask_for(at[j], e.pitch);
    keep_token(left, p, e.x, e.cols, 1.0f);
    __syncthreads();
    for (; first < all; first += 2 * WARPS * gridDim.x) {
        float y[ABREAST] = {};
        accumulate_one<ABREAST, 1>(y, at, p, left, WHOLE_ROWS);
        u32 one = first + lane;
        if (lane < 2 && one < all) {
            float gate = lane ? y[2] : y[0], up = lane ? y[3] : y[1];
            if (e.bias) {
                const float* bias = e.bias + (u64)e.ids[one / e.rows] * 2 * e.rows + one % e.rows;
                gate += bias[0];
                up += bias[e.rows];
            }
            e.out[one] = gated(gate, up, e.activation, e.alpha, e.limit);
        }
        __syncwarp();
        find(first + 2 * WARPS * gridDim.x);
    }
}

/// COUNT rows of all experts, one behind the other, as if the token's columns were those of all of them, which lie so
/// many words apart.
template <u32 COUNT> DEVICE void add_rows(const Experts& e, const Product& p, const uint4* left, u32 apart, u32 first) {
    float y[ABREAST] = {};
    const u8* at[ABREAST];
    for (u32 i = 0; i < e.used; i++) {
#pragma unroll
        for (u32 j = 0; j < COUNT; j++) at[j] = e.weight + e.ids[i] * e.expert_bytes + (u64)min(first + j, e.rows - 1) * e.pitch;
        multiply_one<COUNT, 1>(y, at, p, left + i * apart, WHOLE_ROWS);
    }
#pragma unroll
    for (u32 j = 0; j < COUNT; j++) y[j] = warp_sum(y[j]);
    u32 lane = threadIdx.x % 32, row = first + lane;
    if (lane >= COUNT || row >= e.rows) return;
    float sum = COUNT > 1 && lane ? y[1] : y[0];
    if (e.bias)
        for (u32 i = 0; i < e.used; i++) sum += e.weights[i] * e.bias[(u64)e.ids[i] * e.rows + row];
    if (e.out) e.out[row] = sum;
    if (e.residual) e.residual[row] += sum;
}

/// `out[r] = sum over e of weights[e] · (x[e] · down[ids[e], r])`: a warp has a row, or two at a time where there are more.
KERNEL __launch_bounds__(32 * WARPS, 2) void experts_down(const __grid_constant__ Experts e) {
    extern __shared__ __align__(16) uint4 left[];
    let_next_begin();
    wait_for_previous();
    const Product p = rows_that_lie(e);
    u32 apart = (u32)(behind_one(left, e.padded) - (float*)left) / 4, warp = threadIdx.x / 32;
    bool one_each = e.rows <= WARPS * gridDim.x;
    u32 each = one_each ? 1 : 2, first = each * (blockIdx.x * WARPS + warp);
    if (first < e.rows)
        for (u32 i = 0; i < e.used; i++) ask_for(e.weight + e.ids[i] * e.expert_bytes + (u64)first * e.pitch, min(each, e.rows - first) * e.pitch);
    for (u32 i = 0; i < e.used; i++) keep_token(left + i * apart, p, e.x + (u64)i * e.cols, e.cols, e.weights[i]);
    __syncthreads();
    for (; first < e.rows; first += each * WARPS * gridDim.x) {
        if (one_each) add_rows<1>(e, p, left, apart, first);
        else add_rows<2>(e, p, left, apart, first);
    }
}

#endif
