//! Operations on rows and heads: norms, rotation, activations, sums, what goes into the cache and
//! what comes out of a step.

/// `residual += x` where there is one, then `out = residual / rms * weight`, where it is not null. A
/// block for each row. Also writes bf16, `padded` numbers a row, where `dense` is not null, and `apart` numbers on,
/// unless that is zero, what is left of them.
KERNEL void rms_norm(float* out, float* residual, const float* x, const float* weight, float eps, u32 width,
                     u16* dense, u32 padded, u32 apart) {
    __shared__ float shared[33];
    let_next_begin();
    wait_for_previous();
    u64 row = (u64)blockIdx.x * width;
    float squares = 0.0f;
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) {
        float v = x[row + i];
        if (residual) residual[row + i] = v = residual[row + i] + v;
        squares += v * v;
    }
    float factor = rsqrtf(block_sum(squares, shared) / width + eps);
    const float* from = residual ? residual : x;
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) {
        float v = from[row + i] * factor * weight[i];
        if (out) out[row + i] = v;
        if (dense) store_brain(dense + (u64)blockIdx.x * padded + i, apart, v);
    }
    if (dense) for (u32 i = width + threadIdx.x; i < padded; i += blockDim.x) dense[(u64)blockIdx.x * padded + i] = 0;
}

/// The same with four numbers of a row for each thread, which keeps them: a row is read once.
KERNEL void rms_norm_four(float* out, float* residual, const float* x, const float* weight, float eps, u32 width,
                          u16* dense, u32 padded, u32 apart) {
    __shared__ float shared[33];
    let_next_begin();
    u32 i = 4 * threadIdx.x;
    u64 row = (u64)blockIdx.x * width + i;
    bool mine = i < width;
    float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f), scale = mine ? *(const float4*)(weight + i) : zero;
    wait_for_previous();
    float4 v = mine ? *(const float4*)(x + row) : zero;
    if (residual && mine) {
        float4 before = *(const float4*)(residual + row);
        v = make_float4(before.x + v.x, before.y + v.y, before.z + v.z, before.w + v.w);
        *(float4*)(residual + row) = v;
    }
    float factor = rsqrtf(block_sum(v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w, shared) / width + eps);
    v = make_float4(v.x * factor * scale.x, v.y * factor * scale.y, v.z * factor * scale.z, v.w * factor * scale.w);
    if (out && mine) *(float4*)(out + row) = v;
    if (dense && i < padded) store_brains(dense + (u64)blockIdx.x * padded + i, apart, v);
}

/// Rows of single precision to bf16, `padded` numbers a row.
KERNEL void round_rows(u16* dense, const float* x, u32 width, u32 padded) {
    let_next_begin();
    wait_for_previous();
    for (u32 i = threadIdx.x; i < padded; i += blockDim.x)
        dense[(u64)blockIdx.x * padded + i] = i < width ? bf16_of_f32(x[(u64)blockIdx.x * width + i]) : 0;
}

/// Rows of bf16 to `dense`, and what each number leaves behind them. Four numbers a thread at a time.
KERNEL void split_rows(u16* dense, const float* x, u32 width) {
    let_next_begin();
    wait_for_previous();
    u64 row = (u64)blockIdx.x * width, apart = (u64)gridDim.x * width;
    for (u32 i = 4 * threadIdx.x; i < width; i += 4 * blockDim.x) store_brains(dense + row + i, apart, *(const float4*)(x + row + i));
}

/// Norm of each head in place: a warp for each.
KERNEL void head_norm(float* x, u32 stride, u32 offset, u32 count, u32 dim, const float* weight, float eps, u32 n) {
    let_next_begin();
    wait_for_previous();
    u32 head = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (head >= n * count) return;
    float* at = x + (u64)(head / count) * stride + offset + head % count * dim;
    float squares = 0.0f;
    for (u32 i = lane; i < dim; i += 32) squares += at[i] * at[i];
    float factor = rsqrtf(warp_sum(squares) / dim + eps);
    for (u32 i = lane; i < dim; i += 32) at[i] *= factor * weight[i];
}

/// Rotation of each head in place: a warp for each.
KERNEL void rope(float* x, u32 stride, u32 offset, u32 count, u32 dim, const float* frequencies, u32 rotary,
                 u32 style, float magnitude, const Token* tokens, u32 n) {
    let_next_begin();
    wait_for_previous();
    u32 head = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (head >= n * count) return;
    float* at = x + (u64)(head / count) * stride + offset + head % count * dim;
    float position = (float)tokens[head / count].position;
    for (u32 pair = lane; pair < rotary / 2; pair += 32) {
        u32 first = style == 0 ? pair : 2 * pair, second = style == 0 ? pair + rotary / 2 : 2 * pair + 1;
        float sine, cosine;
        sincosf(__fmul_rn(position, frequencies[pair]), &sine, &cosine);
        sine *= magnitude;
        cosine *= magnitude;
        float a = at[first], b = at[second];
        at[first] = a * cosine - b * sine;
        at[second] = a * sine + b * cosine;
    }
}

/// K and V of new tokens to their pages: a warp for each head.
KERNEL void store_kv(u8* keys, u8* values, u32 type, u64 slots, u32 page_size, const float* x, u32 stride, u32 k_offset,
                     u32 k_dim, u32 v_offset, u32 v_dim, u32 kv_heads, const Token* tokens, const Row* rows,
                     const u32* tables, u32 n) {
    let_next_begin();
    wait_for_previous();
    u32 index = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (index >= n * kv_heads) return;
    Token token = tokens[index / kv_heads];
    if (token.row == FULL) return;
    u32 head = index % kv_heads;
    const float* row = x + (u64)(index / kv_heads) * stride;
    u64 k = place(token, rows, tables, page_size, kv_heads, head, k_dim);
    u64 v = place(token, rows, tables, page_size, kv_heads, head, v_dim);
    store_head(keys, k, type, slots * k_dim, row + k_offset + head * k_dim, k_dim);
    store_head(values, v, type, slots * v_dim, row + v_offset + head * v_dim, v_dim);
}

/// The first tokens of a page to another: a block for each head, of `width` bytes a token.
KERNEL void copy_kv(u8* cache, u32 width, u32 page_size, u32 kv_heads, u32 source, u32 destination, u32 tokens) {
    let_next_begin();
    wait_for_previous();
    u64 page = (u64)page_size * width;
    const u8* from = cache + (source * (u64)kv_heads + blockIdx.x) * page;
    u8* to = cache + (destination * (u64)kv_heads + blockIdx.x) * page;
    for (u32 i = threadIdx.x; i < tokens * width; i += blockDim.x) to[i] = from[i];
}

/// `out = activation(gate) * up`; where `dense` is not null bf16 with `padded` numbers a row in its stead.
KERNEL void glu(float* out, const float* gate_up, u32 width, u32 activation, float alpha, float limit, u16* dense, u32 padded) {
    let_next_begin();
    wait_for_previous();
    const float* row = gate_up + (u64)blockIdx.x * 2 * width;
    for (u32 i = threadIdx.x; i < (dense ? padded : width); i += blockDim.x) {
        float y = i < width ? gated(row[i], row[width + i], activation, alpha, limit) : 0.0f;
        if (dense) dense[(u64)blockIdx.x * padded + i] = bf16_of_f32(y);
        else out[(u64)blockIdx.x * width + i] = y;
    }
}

/// As `glu`, from bf16 to bf16, eight numbers for each thread. Moves 6 bytes a number: 151 MB for 8,192
/// tokens of 3,072, 34 µs at 4.4 TB/s.
KERNEL void glu_dense(uint4* out, const uint4* gate_up, u32 width, u32 activation, float alpha, float limit) {
    let_next_begin();
    u32 i = blockIdx.y * blockDim.x + threadIdx.x, eights = width / 8;
    wait_for_previous();
    if (i >= eights) return;
    const uint4* row = gate_up + (u64)blockIdx.x * 2 * eights;
    float gate[8], up[8];
    uint4 first = row[i], second = row[eights + i];
    widen_eight<true>(first, gate);
    widen_eight<true>(second, up);
    // What the approximations leave out is nothing beside what rounding does.
    if (activation == SILU)
#pragma unroll
        for (u32 e = 0; e < 8; e++) up[e] *= __fdividef(gate[e], 1.0f + __expf(-gate[e]));
    else
#pragma unroll
        for (u32 e = 0; e < 8; e++) up[e] = gated(gate[e], up[e], activation, alpha, limit);
    out[(u64)blockIdx.x * eights + i] = make_uint4(bf16_pair(up[0], up[1]), bf16_pair(up[2], up[3]), bf16_pair(up[4], up[5]), bf16_pair(up[6], up[7]));
}

KERNEL void add(float* out, const float* x, u64 count) {
    let_next_begin();
    wait_for_previous();
    for (u64 i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) out[i] += x[i];
}

/// `out[t] += sigmoid(gate[t]) * x[t]`
KERNEL void add_gated(float* out, const float* x, const float* gate, u32 width) {
    let_next_begin();
    wait_for_previous();
    float factor = sigmoid(gate[blockIdx.x]);
    u64 row = (u64)blockIdx.x * width;
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) out[row + i] += factor * x[row + i];
}

/// Adds a bias to rows of `rows` numbers.
KERNEL void add_bias(float* out, u32 stride, u32 column, const float* bias, u32 rows) {
    let_next_begin();
    wait_for_previous();
    for (u32 i = threadIdx.x; i < rows; i += blockDim.x) out[(u64)blockIdx.x * stride + column + i] += bias[i];
}

/// Each token's weighted sum over the answers of its experts.
KERNEL void expert_sum(float* out, const float* answers, const float* weights, u32 used, u32 width) {
    let_next_begin();
    wait_for_previous();
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) {
        float sum = 0.0f;
        for (u32 e = 0; e < used; e++) {
            u64 pair = (u64)blockIdx.x * used + e;
            sum += weights[pair] * answers[pair * width + i];
        }
        out[(u64)blockIdx.x * width + i] = sum;
    }
}

/// Which pairs of a token and an expert each expert has, `order [pairs]` expert by expert, and tiles of
/// at most `most` pairs of one: expert, first of them in that order, how many; of the `room` tiles those
/// behind the last have none. One block; shared memory holds two numbers for each expert. Where an
/// expert's pairs lie among one another may differ from run to run: nothing that is computed does.
KERNEL void group_pairs(u32* order, uint4* tiles, const u32* ids, u32 pairs, u32 experts, u32 most, u32 room) {
    extern __shared__ u32 counts[];
    u32* nexts = counts + experts;
    __shared__ u32 used;
    let_next_begin();
    for (u32 i = threadIdx.x; i < experts; i += blockDim.x) counts[i] = 0;
    __syncthreads();
    wait_for_previous();
    for (u32 i = threadIdx.x; i < pairs; i += blockDim.x) atomicAdd(&counts[ids[i]], 1);
    __syncthreads();
    if (threadIdx.x < 32) {
        u32 lane = threadIdx.x, first = 0, tile = 0;
        for (u32 base = 0; base < experts; base += 32) {
            u32 expert = base + lane, count = expert < experts ? counts[expert] : 0, own = (count + most - 1) / most;
            u32 pairs_to = count, tiles_to = own;
            for (u32 step = 1; step < 32; step <<= 1) {
                u32 a = __shfl_up_sync(FULL, pairs_to, step), b = __shfl_up_sync(FULL, tiles_to, step);
                if (lane >= step) { pairs_to += a; tiles_to += b; }
            }
            u32 begin = first + pairs_to - count, at = tile + tiles_to - own;
            if (expert < experts) nexts[expert] = begin;
            for (u32 i = 0; i < own; i++)
                tiles[at + i] = make_uint4(expert, begin + i * most, count - i * most < most ? count - i * most : most, 0);
            first += __shfl_sync(FULL, pairs_to, 31);
            tile += __shfl_sync(FULL, tiles_to, 31);
        }
        if (lane == 0) used = tile;
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < pairs; i += blockDim.x) order[atomicAdd(&nexts[ids[i]], 1)] = i;
    for (u32 i = used + threadIdx.x; i < room; i += blockDim.x) tiles[i] = make_uint4(0, 0, 0, 0);
}

/// Chooses experts for each token, a warp for each of these. Shared memory is as `choose` wants it.
KERNEL void route(const __grid_constant__ Route r) {
    extern __shared__ float scores[];
    let_next_begin();
    wait_for_previous();
    u64 from = (u64)blockIdx.x * r.used;
    choose(r.ids + from, r.weights + from, r.logits + (u64)blockIdx.x * r.experts, r, scores);
}

/// The rows of `x` that the step names.
KERNEL void gather(float* out, const float* x, u32 width, const u32* outputs, u16* dense, u32 padded) {
    let_next_begin();
    wait_for_previous();
    const float* from = x + (u64)outputs[blockIdx.x] * width;
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) {
        out[(u64)blockIdx.x * width + i] = from[i];
        if (dense) dense[(u64)blockIdx.x * padded + i] = bf16_of_f32(from[i]);
    }
    if (dense) for (u32 i = width + threadIdx.x; i < padded; i += blockDim.x) dense[(u64)blockIdx.x * padded + i] = 0;
}

/// One vector for each pooled row; `kind` 0 is the mean, 1 the last one.
KERNEL void pool(float* out, const float* x, u32 width, const Row* rows, const uint2* pooled) {
    let_next_begin();
    wait_for_previous();
    uint2 which = pooled[blockIdx.x];
    Row row = rows[which.x];
    u32 first = which.y == 0 ? row.start : row.start + row.len - 1, end = row.start + row.len;
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) {
        float sum = 0.0f;
        for (u32 token = first; token < end; token++) sum += x[(u64)token * width + i];
        out[(u64)blockIdx.x * width + i] = sum / (end - first);
    }
}

/// Ids that only the device knows, out of the samples of the step before.
KERNEL void feed(Token* tokens, const u32* samples, u32 sample_words, u32 n) {
    let_next_begin();
    wait_for_previous();
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        u32 from = tokens[i].from;
        if (!from) continue;
        u32 id = samples[(u64)(from - 1) * sample_words];
        tokens[i].id = id == FULL ? 0 : id;
    }
}
