//! A matrix in four bits beside the matrix itself: every value is rounded at random to one of the two
//! multiples of its block's step beside it, and of every row there is how far that can bring a product.
//!
//! A row has the quants of its blocks, 16 bytes each, and then their scales, 64 bytes for each 32 blocks:
//! those of eight blocks are 8 bytes apart, so that who has one block of every eight reads four at once.
//!
//! Owns the rounding on the device, by the rules of `sketch.rs` in `fornax-backend`, which says what it is
//! good for. Must not know who multiplies.

/// A number from 0 to less than 1, as if thrown, for each place.
DEVICE float dice(u32 place) {
    u32 word = place * 0x9E3779B9u;
    word ^= word >> 16;
    word *= 0x7FEB352Du;
    word ^= word >> 15;
    word *= 0x846CA68Bu;
    word ^= word >> 16;
    return (float)(word >> 8) * (1.0f / 16777216.0f);
}

/// Rows in four bits, each one's spread, and the square of the longest one's length,
/// which is no number or infinite where one of them cannot be rounded. A warp for each row. `deviations` is
/// half of how many a product's error is believed to be at most.
KERNEL __launch_bounds__(256) void sketch(u8* to, u64 to_pitch, float* spreads, u32* longest, const u8* weight, u64 pitch,
                                          u32 padded, u32 rows, u32 cols, float deviations) {
    let_next_begin();
    wait_for_previous();
    u32 lane = threadIdx.x % 32, warps = blockDim.x / 32;
    for (u32 r = blockIdx.x * warps + threadIdx.x / 32; r < rows; r += gridDim.x * warps) {
        float fourth_powers = 0.0f, squares = 0.0f;
        for (u32 first = 0; first < padded; first += 256) {
            // Four lanes have a block.
            u32 k = first + lane * 8;
            float w[8] = {};
            if (k < padded) decode8(weight + r * pitch, padded, k, w);
            float lowest = 0.0f, highest = 0.0f;
            for (u32 i = 0; i < 8; i++) {
                lowest = fminf(lowest, w[i]);
                highest = fmaxf(highest, w[i]);
                squares += w[i] * w[i];
            }
            for (int other = 2; other > 0; other >>= 1) {
                lowest = fminf(lowest, __shfl_xor_sync(FULL, lowest, other));
                highest = fmaxf(highest, __shfl_xor_sync(FULL, highest, other));
            }
            // Steps reach from -8 to 7; the scale's sign turns the longer end to where there is more of them.
            float upright = fmaxf(highest / 7.0f, lowest / -8.0f), turned = fmaxf(lowest / -7.0f, highest / 8.0f);
            float wanted = fminf(upright, turned);
            u16 half = f16_of_f32(wanted);
            if (f32_of_f16(half) < wanted) half++;
            float step = f32_of_f16(half), scale = turned < upright ? -step : step;
            float inverse = step == 0.0f ? 0.0f : 1.0f / scale;
            if (!(step < INFINITE)) squares = INFINITE;
            u32 quants[2] = {};
            for (u32 i = 0; i < 8; i++) {
                int quant = (int)(w[i] * inverse + 8.0f + dice(r * cols + k + i));
                quants[i / 4] |= (u32)min(max(quant, 0), 15) << i % 4 * 8;
            }
            // A byte has the values that are 16 apart, the first in its lower part.
            u32 upper[2];
            for (u32 i = 0; i < 2; i++) upper[i] = __shfl_down_sync(FULL, quants[i], 2);
            if (k >= padded) continue;
            u8* row = to + r * to_pitch;
            if (lane % 4 < 2) *(uint2*)(row + k / 32 * 16 + k % 32) = make_uint2(quants[0] | upper[0] << 4, quants[1] | upper[1] << 4);
            if (lane % 4 == 0) {
                u32 block = k / 32;
                *(u16*)(row + padded / 2 + block / 32 * 64 + block % 8 * 8 + block % 32 / 8 * 2) = scale < 0.0f ? half | 0x8000 : half;
                fourth_powers += step * step * (step * step);
            }
        }
        fourth_powers = warp_sum(fourth_powers);
        squares = warp_sum(squares);
        if (lane != 0) continue;
        spreads[r] = deviations * sqrtf(sqrtf(fourth_powers));
        // As whole numbers, so that what is no number is the largest.
        atomicMax(longest, __float_as_uint(squares));
    }
}
