//! `byte_panels.cu` for weights in bf16: the same names, with tokens in bf16 as well, as two numbers each
//! that add up to nearly that of single precision.
//!
//! A panel takes 256 bytes of a row, in four reads of 64. Whole rows lie a multiple of 128 bytes apart, so
//! that neighbours would share banks: odd rows read the second of two blocks when even ones read the first.
//! Both meet their own columns in one product, for the right side has them in either order.

#define PANEL 128
#define MOST_PANELS 8
#define MOST_BLOCKS (MOST_PANELS * PANEL / 32)
#define TILE_ROWS 16

#define SCALED false
#define BLOCK_BYTES 64
#define READS 4
#define PART_BYTES 64
#define HELD 6
#define HELD_FOR_UNITS 4
#define HOLDS_BOTH 0
#define HELD_FOR_HEADS 4
#define HELD_MEANWHILE 2
#define BEYOND 2

struct __align__(16) Operand {
    u8 bytes[MOST_BLOCKS][2][PART_BYTES]; // of 32 numbers each: them rounded, and what that leaves
    float2 scales[1];                     // none
};

/// Four numbers of a block.
struct FourParts { uint2 high, low; float2 scale; };

/// What rounding leaves of two numbers.
DEVICE u32 left_of(float a, float b, u32 rounded) {
    float2 taken = f32_of_bf16_pair(rounded);
    return bf16_pair(a - taken.x, b - taken.y);
}
DEVICE FourParts parts_of(float4 v) {
    uint2 high = make_uint2(bf16_pair(v.x, v.y), bf16_pair(v.z, v.w));
    return {high, make_uint2(left_of(v.x, v.y, high.x), left_of(v.z, v.w, high.y)), {}};
}
/// Keeps such parts in a block's bytes, as the `four`th of them.
DEVICE void keep_part(u8* bytes, u32 four, uint2 part) { ((uint2*)bytes)[four] = part; }
/// A block of which each lane has a number, to `bytes`, rounded ones first. There is no scale to give.
DEVICE float2 part_block(float x, u8* bytes) {
    u16* to = (u16*)bytes + threadIdx.x % 32;
    u32 rounded = bf16_pair(x, 0.0f);
    to[0] = (u16)rounded;
    to[32] = (u16)left_of(x, 0.0f, rounded);
    return {};
}

/// The right side of a panel. Columns 0 and 1 are both parts as even rows read blocks, 2 and 3 as odd rows
/// do; columns 4 to 7 are the same again, and nobody's.
struct Panel { uint4 right[READS]; };

DEVICE Panel panel_of(const Operand& token, u32 panel) {
    u32 lane = threadIdx.x % 32, n = lane / 4, j = lane % 4;
    Panel p;
#pragma unroll
    for (u32 i = 0; i < READS; i++) p.right[i] = *(const uint4*)(token.bytes[panel * 4 + (i ^ n / 2 % 2)][n % 2] + 16 * j);
    return p;
}

/// A warp's weights of a tile, blocks in the order of their row.
struct Weights { uint4 upper[READS], lower[READS]; }; // of rows g and g + 8

DEVICE void load_weights(Weights& w, const u8* rows, u32 pitch, const u8*, u32, u32 panel, u32 cols) {
    u32 lane = threadIdx.x % 32, g = lane / 4, j = lane % 4, blocks = cols / 32 - panel * 4;
    const u8 *upper = rows + g * pitch + panel * 4 * BLOCK_BYTES + 16 * j, *lower = upper + 8 * pitch;
#pragma unroll
    for (u32 i = 0; i < READS; i++) {
        // What lies behind the last block may be no number, which not even zeros make zero.
        u32 block = i ^ g % 2, at = block < blocks ? block * BLOCK_BYTES : 0;
        w.upper[i] = *(const uint4*)(upper + at);
        w.lower[i] = *(const uint4*)(lower + at);
    }
}

DEVICE void multiply_brains(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/// Products of rows g and g + 8 with a panel, by both parts of the token: the lane that `leave` asks has
/// them.
DEVICE float2 multiply_panel(const Panel& p, const Weights& w) {
    float c[2][4] = {};
#pragma unroll
    for (u32 i = 0; i < READS; i++) {
        uint4 a = w.upper[i], b = w.lower[i];
        multiply_brains(c[0], a.x, b.x, a.y, b.y, p.right[i].x, p.right[i].y);
        multiply_brains(c[1], a.z, b.z, a.w, b.w, p.right[i].z, p.right[i].w);
    }
    return make_float2((c[0][0] + c[1][0]) + (c[0][1] + c[1][1]), (c[0][2] + c[1][2]) + (c[0][3] + c[1][3]));
}
/// Writes a tile's sums, if it is one, where its first row's belongs.
DEVICE void leave(float2 y, float* sums, bool is_one) {
    u32 lane = threadIdx.x % 32, g = lane / 4;
    if (lane % 4 == g % 2 && is_one) { sums[g] = y.x; sums[g + 8] = y.y; }
}

/// Bytes from a row to the next in the ring, so that those which a warp reads at once share no bank.
DEVICE u32 apart(u32 bytes) { return (bytes + 127) / 128 * 128; }
