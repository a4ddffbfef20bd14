//! Products with weights of one format, for any sizes: right first, and what the faster kernels are
//! measured against.

/// `out[token] = scale * table[id]`. Feeds ids that only the device knows.
KERNEL void embed(float* out, const u8* table, u64 pitch, u32 padded, u32 width, float scale,
                  Token* tokens, const u32* samples, u32 sample_words) {
    let_next_begin();
    wait_for_previous();
    Token token = tokens[blockIdx.x];
    if (samples && token.from) {
        token.id = samples[(u64)(token.from - 1) * sample_words];
        if (token.id == FULL) token.id = 0;
        __syncthreads();
        if (threadIdx.x == 0) tokens[blockIdx.x].id = token.id;
    }
    const u8* row = table + token.id * pitch;
    float* to = out + (u64)blockIdx.x * width;
    for (u32 k = threadIdx.x * 8; k < width; k += blockDim.x * 8) {
        float w[8];
        decode8(row, padded, k, w);
        for (u32 i = 0; i < 8 && k + i < width; i++) to[k + i] = w[i] * scale;
    }
}

/// Tokens that one block multiplies.
#define TOKENS 8

/// `out[t, column + r] = x[t] · weight[r] + bias[r]`: a warp for each row and 8 tokens.
KERNEL void linear(float* out, u32 stride, u32 column, const u8* weight, u64 pitch, u32 padded,
                   const float* bias, const float* x, u32 n, u32 rows, u32 cols) {
    let_next_begin();
    wait_for_previous();
    u32 lane = threadIdx.x % 32, r = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    u32 first = blockIdx.y * TOKENS, count = n - first < TOKENS ? n - first : TOKENS;
    if (r >= rows) return;
    const u8* row = weight + r * pitch;
    float sums[TOKENS] = {};
    for (u32 k = lane * 8; k < cols; k += 256) {
        float w[8];
        decode8(row, padded, k, w);
        for (u32 t = 0; t < TOKENS; t++) {
            if (t >= count) break;
            const float* from = x + (u64)(first + t) * cols + k;
            for (u32 i = 0; i < 8; i++)
                if (k + i < cols) sums[t] += w[i] * from[i];
        }
    }
    for (u32 t = 0; t < TOKENS; t++) {
        float sum = warp_sum(sums[t]);
        if (t < count && lane == 0) out[(u64)(first + t) * stride + column + r] = sum + (bias ? bias[r] : 0.0f);
    }
}

/// One expert's product for each pair of a token and an expert it chose: a warp for each row.
/// `x` has a row for each `share` pairs, `bias` `stride` numbers for each expert.
KERNEL void expert_linear(float* out, u32 stride, u32 column, const u8* weight, u64 expert_bytes, u64 pitch,
                          u32 padded, const float* bias, const float* x, u32 share, const u32* ids, u32 rows, u32 cols) {
    let_next_begin();
    wait_for_previous();
    u32 lane = threadIdx.x % 32, r = blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32, pair = blockIdx.x;
    if (r >= rows) return;
    const u8* row = weight + ids[pair] * expert_bytes + r * pitch;
    const float* from = x + (u64)(pair / share) * cols;
    float sum = 0.0f;
    for (u32 k = lane * 8; k < cols; k += 256) {
        float w[8];
        decode8(row, padded, k, w);
        for (u32 i = 0; i < 8; i++)
            if (k + i < cols) sum += w[i] * from[k + i];
    }
    sum = warp_sum(sum);
    if (bias) sum += bias[(u64)ids[pair] * stride + column + r];
    if (lane == 0) out[(u64)pair * stride + column + r] = sum;
}

/// Each head through a matrix of its own, but for what passes: a warp for each number that comes out.
KERNEL void head_linear(float* out, const u8* weight, u64 head_bytes, u64 pitch, u32 padded, const float* x,
                        u32 heads, u32 passed, u32 inputs, u32 outputs) {
    let_next_begin();
    wait_for_previous();
    u32 lane = threadIdx.x % 32, r = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    const float* from = x + (u64)blockIdx.y * (passed + inputs);
    float* to = out + (u64)blockIdx.y * (passed + outputs);
    if (blockIdx.x == 0) for (u32 i = threadIdx.x; i < passed; i += blockDim.x) to[i] = from[i];
    if (r >= outputs) return;
    const u8* row = weight + blockIdx.y % heads * head_bytes + r * pitch;
    float sum = 0.0f;
    for (u32 k = lane * 8; k < inputs; k += 256) {
        float w[8];
        decode8(row, padded, k, w);
        for (u32 i = 0; i < 8; i++)
            if (k + i < inputs) sum += w[i] * from[passed + k + i];
    }
    sum = warp_sum(sum);
    if (lane == 0) to[passed + r] = sum;
}

/// Decodes rows to bf16, `padded` numbers each.
KERNEL void to_bf16(u16* out, const u8* weight, u64 pitch, u32 padded, u32 rows) {
    let_next_begin();
    wait_for_previous();
    for (u32 r = blockIdx.x; r < rows; r += gridDim.x)
        for (u32 k = threadIdx.x * 8; k < padded; k += blockDim.x * 8) {
            float w[8];
            decode8(weight + r * pitch, padded, k, w);
            uint4 packed = {bf16_pair(w[0], w[1]), bf16_pair(w[2], w[3]), bf16_pair(w[4], w[5]), bf16_pair(w[6], w[7])};
            *(uint4*)(out + (u64)r * padded + k) = packed;
        }
}
