//! A single token, and its products with rows in any memory: a warp has a row, or a part of its columns. Must not know
//! who brings rows.

#if FORMAT != F32

#define WARPS 8
/// Rows that a warp multiplies at once at most, or pairs of them.
#define ABREAST 4
/// Loads of a token that a thread has on their way at once.
#define AHEAD 3

/// A single token as `accumulate_one` has it: keeps the `i`th four columns, which eight neighbouring lanes have a block
/// of, all of them here.
DEVICE void keep_one(uint4* left, const Product& p, u32 i, float4 v) {
    bool there = 4 * i < p.padded;
#if SCALED
    Scaled of_block;
    uint2 split = bytes(v, of_block);
    if (!there) return;
    u32 to = left_index(i);
    ((u32*)left)[to / 2 * 4 + to % 2] = split.x;
    ((u32*)left)[to / 2 * 4 + 2 + to % 2] = split.y;
    if (i % 8 == 0) ((Scaled*)(left + p.padded / 8))[i / 8] = of_block;
#elif UNITS
    keep_four(left, p.padded, i, there, v);
#else
    if (there) ((float4*)left)[i % 2 * (p.padded / 8) + i / 2] = v;
#endif
}

/// A warp's share of tiles of some rows, a power of two, for a single token: its row of each tile, and which of as many
/// parts of the columns it has.
struct Lot { u32 row, part, parts; };
DEVICE Lot lot_of(u32 tile_rows, u32 warp) {
    u32 shift = 31 - __clz(tile_rows);
    return {warp & (tile_rows - 1), warp >> shift, WARPS >> shift};
}

/// Where what lies behind a token in shared memory begins: two bytes a number and what is known of blocks, or floats.
DEVICE float* behind_one(uint4* left, u32 padded) { return (float*)(left + (SCALED || UNITS ? padded * 5 / 32 : padded / 4)); }

/// Adds a lane's columns of COUNT tiles' products with a single token, as far as these are a warp's.
template <u32 COUNT, u32 TILES>
DEVICE void multiply_one(float (&y)[ABREAST * TILES], const u8* const (&at)[ABREAST], const Product& p, const uint4* left, const Lot& lot) {
    u32 lane = lot.part * 32 + threadIdx.x % 32, lanes = lot.parts * 32;
    auto row_of = [&](u32 m) { return at[m / TILES] + (m % TILES * p.tile_rows + lot.row) * p.stage_pitch; };
#if SCALED
    // Columns of a lane, which are 16 bytes, and words of four that it has of each half of the token.
    constexpr u32 COLUMNS = FORMAT == Q8_0 ? 16 : 32, FOURS = COLUMNS / 4;
    // So that rows that lie in memory are asked for again before the first answer: 1.7 % of a mixture's token on an H200,
    // and nothing of others'.
#pragma unroll 2
    for (u32 column = lane * COLUMNS; column < p.padded; column += lanes * COLUMNS) {
        u32 block = column / 32;
        Scaled own = ((const Scaled*)(left + p.padded / 8))[block];
        uint4 x[FOURS / 2];
#pragma unroll
        for (u32 i = 0; i < FOURS / 2; i++) x[i] = left[column / 8 + i];
#pragma unroll
        for (u32 m = 0; m < COUNT * TILES; m++) {
            const u8* row = row_of(m);
            uint4 v = *(const uint4*)(row + column * 16 / COLUMNS);
            int high = __float_as_int(ON_TOP), low = high;
            u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
#if FORMAT == Q8_0
                high = __dp4a((int)(i % 2 ? x[i / 2].y : x[i / 2].x), (int)words[i], high);
                low = __dp4a((int)(i % 2 ? x[i / 2].w : x[i / 2].z), (int)words[i], low);
#else
                u32 lower = words[i] & 0x0f0f0f0fu, upper = words[i] >> 4 & 0x0f0f0f0fu;
                high = __dp4a((int)x[i].y, (int)upper, __dp4a((int)x[i].x, (int)lower, high));
                low = __dp4a((int)x[i].w, (int)upper, __dp4a((int)x[i].z, (int)lower, low));
#endif
            }
            y[m] += whole_sum(high, low, own) * (own.scale * block_scale(row, p.padded, block));
        }
    }
#elif UNITS
    for (u32 unit = lane; unit < p.padded / 32; unit += lanes) {
        OfUnit x = of_unit(left, p.padded, unit);
#pragma unroll
        for (u32 m = 0; m < COUNT * TILES; m++) y[m] += unit_product(row_of(m), p.padded, unit, x);
    }
#else
    const float4* x = (const float4*)left;
    for (u32 column = lane * 8; column < p.padded; column += lanes * 8) {
        float4 a = x[column / 8], b = x[p.padded / 8 + column / 8];
#pragma unroll
        for (u32 m = 0; m < COUNT * TILES; m++) {
            float w[8];
            decode8(row_of(m), p.padded, column, w);
            y[m] += a.x * w[0] + a.y * w[1] + a.z * w[2] + a.w * w[3] + b.x * w[4] + b.y * w[5] + b.z * w[6] + b.w * w[7];
        }
    }
#endif
}

/// Adds up COUNT tiles' products for a single token, as far as they are a warp's. All lanes get the sums.
template <u32 COUNT, u32 TILES>
DEVICE void accumulate_one(float (&y)[ABREAST * TILES], const u8* const (&at)[ABREAST], const Product& p, const uint4* left, const Lot& lot) {
    multiply_one<COUNT, TILES>(y, at, p, left, lot);
#pragma unroll
    for (u32 m = 0; m < COUNT * TILES; m++) y[m] = warp_sum(y[m]);
}

/// Products of whole rows by one warp, of which a row begins at each `at`: part by part, as the warps of a tile have
/// them, so that sums are the same to the last bit.
template <u32 COUNT> DEVICE void accumulate_whole(float (&y)[ABREAST], const u8* const (&at)[ABREAST], const Product& p, const uint4* left) {
    u32 parts = WARPS / p.tile_rows;
    for (u32 part = 0; part < parts; part++) {
        float of_part[ABREAST] = {};
        accumulate_one<COUNT, 1>(of_part, at, p, left, {0, part, parts});
#pragma unroll
        for (u32 i = 0; i < COUNT; i++) y[i] = part == 0 ? of_part[i] : y[i] + of_part[i];
    }
}

/// What a norm multiplies a token by, out of every warp's sum of its squares.
DEVICE float norm_factor(const float* totals, const Product& p) {
    float total = 0.0f;
#pragma unroll
    for (u32 i = 0; i < WARPS; i++) total += totals[i];
    return rsqrtf(total / p.cols + p.eps);
}

#endif
