//! A single token as the tensor cores multiply it, each number in full: in parts, which are columns of
//! the right side; and its products with sixteen rows of weights at a time, which a warp may have in its
//! registers before the token is there. For formats of quants; `brain_panels.cu` has the same for bf16.
//! Must not know where rows lie, nor whose columns these are.
//!
//! A warp has a panel: 128 columns. It reads 64 bytes of each row at once, 16 a lane: lane `4g + j` has
//! those from 16j on, of rows g and g + 8. Which columns of the product those are is all the same, so long
//! as both sides mean the same ones. Rows that are 64 bytes apart, but for whole times 128, share no bank.

#define PANEL 128
#define MOST_PANELS 8
#define MOST_BLOCKS (MOST_PANELS * PANEL / 32)
#define TILE_ROWS 16

/// Whether blocks of weights and of a token have scales.
#define SCALED true
/// Bytes of 32 weights without their scale, and reads of 64 bytes that a panel of a row takes.
#if FORMAT == Q8_0
#define BLOCK_BYTES 32
#elif FORMAT == Q4_0
#define BLOCK_BYTES 16
#else
#error "no panels of this format"
#endif
#define READS (BLOCK_BYTES / 16)
/// Bytes of a part of 32 numbers.
#define PART_BYTES 32
/// Tiles that a warp has in registers before what they are multiplied with is there: of gates and ups, of
/// the way down, of Q, K and V, of the attention's output while it attends; and how many it takes at a
/// time of those beyond. As many as are fastest on an H200, without a spill: with more of the way down
/// Q8_0 is slower behind long contexts.
#define HELD 8
#define HELD_FOR_UNITS (FORMAT == Q4_0 ? 4 : 2)
#define HOLDS_BOTH 1 // of the feed-forward part's products
#define HELD_FOR_HEADS 4
#define HELD_MEANWHILE 2
#define BEYOND 2

/// Two signed bytes a number, 16 bits in all, under a scale for each block of 32 columns: quants are
/// multiplied as they are, and only whole sums are rounded.
struct __align__(16) Operand {
    u8 bytes[MOST_BLOCKS][2][PART_BYTES]; // high and low ones
    float2 scales[MOST_BLOCKS];           // and what quants of Q4_0, which stand 8 too high, add to a sum
};

/// Four numbers of a block that eight neighbouring lanes have.
struct FourParts { u32 high, low; float2 scale; };

DEVICE int whole_of(float x, float inverse, int& sum) {
    int whole = __float2int_rn(x * inverse);
    sum += whole;
    return whole;
}
/// What a block's numbers are multiplied with, where that is its largest, as a whole number so that what
/// is no number is larger than all. 127 · 256: the high byte is never rounded to 128.
DEVICE float inverse_of(u32 largest, float2& scale) {
    const float most = 32512.0f;
    float magnitude = __uint_as_float(largest);
    scale.x = magnitude * (1.0f / most);
    return magnitude > 1e-30f ? __fdividef(most, magnitude) : 0.0f;
}
DEVICE u32 low_bytes(u32 a, u32 b, u32 c, u32 d) { return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410); }

DEVICE FourParts parts_of(float4 v) {
    u32 largest = max(max(__float_as_uint(fabsf(v.x)), __float_as_uint(fabsf(v.y))), max(__float_as_uint(fabsf(v.z)), __float_as_uint(fabsf(v.w))));
#pragma unroll
    for (u32 step = 1; step < 8; step *= 2) largest = max(largest, __shfl_xor_sync(FULL, largest, step));
    FourParts p;
    float inverse = inverse_of(largest, p.scale);
    int sum = 0, a = whole_of(v.x, inverse, sum), b = whole_of(v.y, inverse, sum), c = whole_of(v.z, inverse, sum), d = whole_of(v.w, inverse, sum);
    // The low byte is what is left below the high one: the lowest byte of the whole number.
    p.low = low_bytes(a, b, c, d);
    p.high = low_bytes(a + 128 >> 8, b + 128 >> 8, c + 128 >> 8, d + 128 >> 8);
    if (FORMAT == Q4_0)
#pragma unroll
        for (u32 step = 1; step < 8; step *= 2) sum += __shfl_xor_sync(FULL, sum, step);
    p.scale.y = FORMAT == Q4_0 ? (float)(8 * sum) : 0.0f;
    return p;
}
/// Keeps such parts in a block's bytes, as the `four`th of them.
DEVICE void keep_part(u8* bytes, u32 four, u32 part) { ((u32*)bytes)[four] = part; }
/// A block of which each lane has a number, to `bytes`, high ones first. Gives its scale.
DEVICE float2 part_block(float x, u8* bytes) {
    float2 scale;
    float inverse = inverse_of(__reduce_max_sync(FULL, __float_as_uint(fabsf(x))), scale);
    int sum = 0, whole = whole_of(x, inverse, sum);
    bytes[threadIdx.x % 32] = (u8)(whole + 128 >> 8);
    bytes[32 + threadIdx.x % 32] = (u8)whole;
    scale.y = FORMAT == Q4_0 ? (float)(8 * __reduce_add_sync(FULL, sum)) : 0.0f;
    return scale;
}

/// The right side of a panel. High bytes of block b are its column 2b and low ones 2b + 1, zeros at other
/// blocks' places, so that one pass gives sums of four blocks, each in its own lanes.
struct Panel {
    u32 right[2][4]; // of each 64 bytes of a row, or with four bits of low and of high ones
    float2 scale;    // of block j
};

DEVICE Panel panel_of(const Operand& token, u32 panel) {
    u32 lane = threadIdx.x % 32, n = lane / 4, j = lane % 4;
    const u8* from = token.bytes[panel * 4 + n / 2][n % 2];
    Panel p;
#pragma unroll
    for (u32 part = 0; part < 2; part++) {
        bool own = FORMAT == Q8_0 ? n / 4 == part && n / 2 % 2 == j / 2 : n / 2 == j;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (own) v = *(const uint4*)(from + 16 * (FORMAT == Q8_0 ? j % 2 : part));
        p.right[part][0] = v.x; p.right[part][1] = v.y; p.right[part][2] = v.z; p.right[part][3] = v.w;
    }
    p.scale = token.scales[panel * 4 + j];
    return p;
}

/// A warp's weights of a tile.
struct Weights {
    uint4 upper[READS], lower[READS]; // of rows g and g + 8
    u32 scales;                       // of block j in both
};

DEVICE void load_weights(Weights& w, const u8* rows, u32 pitch, const u8* scales, u32 scale_pitch, u32 panel, u32 cols) {
    u32 lane = threadIdx.x % 32, g = lane / 4, j = lane % 4, block = panel * 4 + j;
    const u8 *upper = rows + g * pitch + panel * 4 * BLOCK_BYTES + 16 * j, *lower = upper + 8 * pitch;
#pragma unroll
    for (u32 i = 0; i < READS; i++) { w.upper[i] = *(const uint4*)(upper + 64 * i); w.lower[i] = *(const uint4*)(lower + 64 * i); }
    // What lies behind the last block is no scale.
    const u8* of_row = scales + g * scale_pitch + 2 * block;
    w.scales = block * 32 < cols ? *(const u16*)of_row | (u32)*(const u16*)(of_row + 8 * scale_pitch) << 16 : 0;
}

/// Products of rows g and g + 8 with a panel: of each lane those with block j.
DEVICE float2 multiply_panel(const Panel& p, const Weights& w) {
    int c[4] = {};
#pragma unroll
    for (u32 part = 0; part < 2; part++) {
        uint4 a = w.upper[FORMAT == Q8_0 ? part : 0], b = w.lower[FORMAT == Q8_0 ? part : 0];
        if (FORMAT == Q4_0) {
            u32 shift = 4 * part, mask = 0x0f0f0f0fu;
            a = make_uint4(a.x >> shift & mask, a.y >> shift & mask, a.z >> shift & mask, a.w >> shift & mask);
            b = make_uint4(b.x >> shift & mask, b.y >> shift & mask, b.z >> shift & mask, b.w >> shift & mask);
        }
        multiply_bytes(c, a.x, b.x, a.y, b.y, p.right[part][0], p.right[part][1]);
        multiply_bytes(c, a.z, b.z, a.w, b.w, p.right[part][2], p.right[part][3]);
    }
    float2 scale = f32_of_f16_pair(w.scales);
    return make_float2(((float)(256 * c[0] + c[1]) - p.scale.y) * (p.scale.x * scale.x), ((float)(256 * c[2] + c[3]) - p.scale.y) * (p.scale.x * scale.y));
}
/// Adds up four neighbouring lanes' parts of a tile's sums, if it is one, and writes them where its first
/// row's belongs.
DEVICE void leave(float2 y, float* sums, bool is_one) {
    u32 lane = threadIdx.x % 32;
    bool odd = lane % 2;
    float sum = (odd ? y.y : y.x) + __shfl_xor_sync(FULL, odd ? y.x : y.y, 1);
    sum += __shfl_xor_sync(FULL, sum, 2);
    if (lane % 4 < 2 && is_one) sums[lane / 4 + lane % 4 * 8] = sum;
}

/// Bytes from a row to the next in the ring, so that those which a warp reads at once share no bank.
DEVICE u32 apart(u32 bytes) { return (bytes + 63) / 128 * 128 + 64; }
