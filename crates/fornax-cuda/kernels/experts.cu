//! The experts of a single token, with weights of one format: gates and ups of all that it chose in one launch, and in
//! another all that they add to it. The first may choose them as well, and do the norm before.
//!
//! Every block cuts the token anew, and its warps read rows where they lie: which experts those are of is
//! known too late to have them come to shared memory before. Least time: the chosen experts' weights, once, over the
//! bandwidth of the device's memory; where they are chosen, all of the router for each cluster out of the cache, too.

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

DEVICE float4 times(float4 v, float by) { return make_float4(v.x * by, v.y * by, v.z * by, v.w * by); }

/// Keeps some tokens as they are multiplied, so many words apart, four columns after four as `of` has them: LOADS of
/// these on their way at once.
template <u32 LOADS, class Of> DEVICE void keep_by(uint4* left, u32 apart, u32 tokens, const Product& p, Of of) {
    u32 fours = p.padded / 4, all = tokens * fours;
#pragma unroll 1
    for (u32 start = threadIdx.x; start / 32 * 32 < all; start += 32 * WARPS * LOADS) {
        float4 v[LOADS];
        u32 token[LOADS], at[LOADS];
#pragma unroll
        for (u32 j = 0; j < LOADS; j++) {
            u32 i = start + j * 32 * WARPS;
            // Behind the last token are columns of it that are not there.
            token[j] = tokens > 1 ? min(i / fours, tokens - 1) : 0;
            at[j] = i - token[j] * fours;
            v[j] = of(token[j], at[j]);
        }
#pragma unroll
        for (u32 j = 0; j < LOADS; j++) {
            // The same for a warp.
            if ((start + j * 32 * WARPS) / 32 * 32 >= all) break;
            keep_one(left + token[j] * apart, p, at[j], v[j]);
        }
    }
}

/// The same by one load a thread where that is all, in less code. Called by all warps.
template <class Of> DEVICE void keep_tokens(uint4* left, u32 apart, u32 tokens, const Product& p, Of of) {
    if (tokens * p.padded / 4 <= 32 * WARPS) keep_by<1>(left, apart, tokens, p, of);
    else keep_by<AHEAD>(left, apart, tokens, p, of);
}

/// Has bytes come to the device's cache. Called by a warp.
DEVICE void ask_for(const u8* from, u32 bytes) {
    for (u32 at = threadIdx.x % 32 * 128; at < bytes; at += 32 * 128) asm volatile("prefetch.global.L2 [%0];" ::"l"(from + at));
}

/// Where the rows of two pairs of a gate and an up begin, from one of all chosen experts' pairs on.
DEVICE void find_pairs(const u8* (&at)[ABREAST], const Experts& e, const u32* ids, u32 first) {
#pragma unroll
    for (u32 j = 0; j < 2; j++) {
        u32 one = min(first + j, e.used * e.rows - 1);
        at[2 * j] = e.weight + ids[one / e.rows] * e.expert_bytes + (u64)(one % e.rows) * e.pitch;
        at[2 * j + 1] = at[2 * j] + (u64)e.rows * e.pitch;
    }
}

/// The first pair of a warp, which has two at a time.
DEVICE u32 first_pair() { return 2 * (blockIdx.x * WARPS + threadIdx.x / 32); }

/// `out[e, r] = activation(x · gate[ids[e], r]) · (x · up[ids[e], r])`
DEVICE void multiply_gates(const Experts& e, const Product& p, const uint4* left, const u32* ids) {
    u32 lane = threadIdx.x % 32, all = e.used * e.rows;
    for (u32 first = first_pair(); first < all; first += 2 * WARPS * gridDim.x) {
        const u8* at[ABREAST];
        find_pairs(at, e, ids, first);
        float y[ABREAST] = {};
        accumulate_one<ABREAST, 1>(y, at, p, left, WHOLE_ROWS);
        u32 one = first + lane;
        if (lane < 2 && one < all) {
            float gate = lane ? y[2] : y[0], up = lane ? y[3] : y[1];
            if (e.bias) {
                const float* bias = e.bias + (u64)ids[one / e.rows] * 2 * e.rows + one % e.rows;
                gate += bias[0];
                up += bias[e.rows];
            }
            e.out[one] = gated(gate, up, e.activation, e.alpha, e.limit);
        }
        __syncwarp();
    }
}

/// Gates and ups of experts that were chosen.
KERNEL __launch_bounds__(32 * WARPS, 2) void experts_gated(const __grid_constant__ Experts e) {
    extern __shared__ __align__(16) uint4 left[];
    let_next_begin();
    wait_for_previous();
    const Product p = rows_that_lie(e);
    if (first_pair() < e.used * e.rows) {
        const u8* at[ABREAST];
        find_pairs(at, e, e.ids, first_pair());
#pragma unroll
        for (u32 j = 0; j < ABREAST; j++) ask_for(at[j], e.pitch);
    }
    keep_tokens(left, 0, 1, p, [&](u32, u32 i) { return four(e.x, i, e.cols); });
    __syncthreads();
    multiply_gates(e, p, left, e.ids);
}

/// What chooses experts: a norm of x, products of it with the router's rows, and a choice by these.
struct Router {
    const float* x;    // [cols]
    const u8* weight;  // [experts, pitch] in single precision
    const float* bias; // [experts], or null
    const float* norm; // [cols]
    float* normed;     // [cols]; not written where null
    Route route;       // its logits are written nowhere
    float eps;
    u32 pitch;
};
/// Rows of a router that a block multiplies at once.
#define ROUTED 8

/// Four numbers of a row, zeros behind its end. Not `four`: the host sees to it that rows are whole fours, and its code for
/// others, which never runs, made a launch 1.3 µs longer on an H200.
DEVICE float4 own_four(const float* row, u32 i, u32 cols) { return 4 * i < cols ? ((const float4*)row)[i] : make_float4(0.0f, 0.0f, 0.0f, 0.0f); }
/// A token's four columns, which are still to be divided for the norm.
DEVICE float4 weighted(const Router& r, u32 i, u32 cols) {
    float4 v = own_four(r.x, i, cols), norm = own_four(r.norm, i, cols);
    return make_float4(v.x * norm.x, v.y * norm.y, v.z * norm.z, v.w * norm.w);
}

/// Products of what is weighted with some rows of the router, and the sum of the token's squares: what each warp has of
/// them, `[end - begin][WARPS]` and `[WARPS]`.
DEVICE void multiply_router(const Router& r, u32 cols, u32 begin, u32 end, float* sums, float* totals) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float squares = 0.0f;
#pragma unroll 1
    for (u32 first = begin; first < end || first == begin; first += ROUTED) {
        float y[ROUTED] = {};
#pragma unroll 1
        for (u32 i = threadIdx.x; 4 * i < cols; i += 32 * WARPS) {
            float4 x = weighted(r, i, cols), w[ROUTED];
#pragma unroll
            for (u32 j = 0; j < ROUTED; j++)
                if (first + j < end) w[j] = ((const float4*)(r.weight + (u64)(first + j) * r.pitch))[i];
#pragma unroll
            for (u32 j = 0; j < ROUTED; j++)
                if (first + j < end) y[j] += x.x * w[j].x + x.y * w[j].y + x.z * w[j].z + x.w * w[j].w;
            if (first > begin) continue;
            float4 v = own_four(r.x, i, cols);
            squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
        }
#pragma unroll
        for (u32 j = 0; j < ROUTED; j++) {
            float sum = warp_sum(y[j]);
            if (lane == j && first + j < end) sums[(first - begin + j) * WARPS + warp] = sum;
        }
    }
    squares = warp_sum(squares);
    if (lane == 0) totals[warp] = squares;
}

/// Gates and ups of experts that are chosen here: by each cluster for itself, of which a block multiplies its share of the
/// router's rows and tells all others what these give.
KERNEL __launch_bounds__(32 * WARPS, 2) void experts_routed(const __grid_constant__ Experts e, const __grid_constant__ Router r) {
    extern __shared__ __align__(16) uint4 left[];
    u32 tid = threadIdx.x, warp = tid / 32, blocks = cluster_size(), experts = r.route.experts;
    u32 each = (experts + blocks - 1) / blocks, begin = min(cluster_rank() * each, experts), end = min(begin + each, experts);
    float *logits = behind_one(left, e.padded), *scores = logits + experts, *sums = scores + SCORES(r.route);
    float *totals = sums + each * WARPS, *weights = totals + WARPS;
    u32* ids = (u32*)(weights + e.used);
    // Nobody is told anything before it has begun.
    cluster_arrive();
    for (u32 row = begin + warp; row < end; row += WARPS) ask_for(r.weight + (u64)row * r.pitch, r.pitch);
    let_next_begin();
    Product p = rows_that_lie(e);
    p.cols = e.cols;
    p.eps = r.eps;
    wait_for_previous();
    multiply_router(r, e.cols, begin, end, sums, totals);
    __syncthreads();
    float factor = norm_factor(totals, p);
    cluster_wait();
    for (u32 i = tid; i < (end - begin) * blocks; i += 32 * WARPS) {
        u32 row = i / blocks;
        float sum = 0.0f;
#pragma unroll
        for (u32 j = 0; j < WARPS; j++) sum += sums[row * WARPS + j];
        send(logits + begin + row, i % blocks, sum * factor + (r.bias ? r.bias[begin + row] : 0.0f));
    }
    cluster_arrive();
    keep_tokens(left, 0, 1, p, [&](u32, u32 i) { return times(weighted(r, i, e.cols), factor); });
    if (r.normed && blockIdx.x == 0)
        for (u32 i = tid; 4 * i < e.cols; i += 32 * WARPS) ((float4*)r.normed)[i] = times(weighted(r, i, e.cols), factor);
    cluster_wait();
    if (warp == 0) choose(ids, weights, logits, r.route, scores);
    __syncthreads();
    if (blockIdx.x == 0)
        for (u32 i = tid; i < e.used; i += 32 * WARPS) {
            r.route.ids[i] = ids[i];
            r.route.weights[i] = weights[i];
        }
    multiply_gates(e, p, left, ids);
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
    keep_tokens(left, apart, e.used, p, [&](u32 i, u32 at) { return times(four(e.x + (u64)i * e.cols, at, e.cols), e.weights[i]); });
    __syncthreads();
    for (; first < e.rows; first += each * WARPS * gridDim.x) {
        if (one_each) add_rows<1>(e, p, left, apart, first);
        else add_rows<2>(e, p, left, apart, first);
    }
}

#endif
