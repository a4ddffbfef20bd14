//! How weights lie in device memory, by the number of their type in the file (`FORMAT`).
//!
//! A row is `padded` numbers long, a multiple of 32, zeros behind the last. Q8_0, Q4_0, IQ4_NL, MXFP4 and Q6_K
//! have one field of all of their blocks behind the other, quants first and scales last, so that each is aligned;
//! all other types lie as in the file.

#define F32 0
#define F16 1
#define Q4_0 2
#define Q8_0 8
#define BF16 30
#define Q4_1 3
#define Q5_0 6
#define Q5_1 7
#define Q2_K 10
#define Q3_K 11
#define Q4_K 12
#define Q5_K 13
#define Q6_K 14
#define IQ2_XXS 16
#define IQ4_NL 20
#define IQ4_XS 23
#define MXFP4 39

/// A half that may lie at any even address.
DEVICE float half_at(const u8* p) { return f32_of_f16((u16)(p[0] | p[1] << 8)); }

#if FORMAT == IQ4_NL || FORMAT == IQ4_XS
static __constant__ __align__(16) signed char LEVELS[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
#elif FORMAT == MXFP4
static __constant__ __align__(16) signed char LEVELS[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
#elif FORMAT == IQ2_XXS
/// Which of three magnitudes each of eight values has, two bits each.
static __constant__ u16 PATTERNS[256] = {
    0x0000, 0x0002, 0x0005, 0x0008, 0x000a, 0x0011, 0x0014, 0x0020, 0x0022, 0x0028, 0x002a, 0x0041, 0x0044, 0x0050, 0x0058, 0x0061,
    0x0064, 0x0080, 0x0082, 0x008a, 0x00a2, 0x0101, 0x0104, 0x0110, 0x0115, 0x0140, 0x0184, 0x0198, 0x0200, 0x0202, 0x0222, 0x0282,
    0x0401, 0x0404, 0x0410, 0x0421, 0x0424, 0x0440, 0x0442, 0x0448, 0x0460, 0x0481, 0x0484, 0x0490, 0x04a4, 0x0500, 0x0502, 0x0508,
    0x0520, 0x0546, 0x0569, 0x0580, 0x0591, 0x0609, 0x0610, 0x0640, 0x0684, 0x06a4, 0x0800, 0x0805, 0x0808, 0x0814, 0x0828, 0x0841,
    0x0844, 0x0850, 0x0852, 0x0888, 0x0904, 0x0940, 0x0a02, 0x0a14, 0x1001, 0x1004, 0x1010, 0x1021, 0x1040, 0x1060, 0x1084, 0x1090,
    0x1095, 0x1100, 0x1108, 0x1120, 0x1150, 0x115a, 0x1180, 0x1224, 0x1245, 0x1400, 0x1408, 0x1420, 0x1425, 0x1449, 0x1480, 0x1518,
    0x1562, 0x1600, 0x1616, 0x1801, 0x1804, 0x1810, 0x1840, 0x1881, 0x1900, 0x1905, 0x19a0, 0x1a51, 0x2000, 0x2002, 0x200a, 0x2044,
    0x2061, 0x2080, 0x2082, 0x2129, 0x2148, 0x2200, 0x2202, 0x2401, 0x2404, 0x2410, 0x2440, 0x2456, 0x2500, 0x2541, 0x2564, 0x2690,
    0x2808, 0x2820, 0x2894, 0x2a44, 0x4001, 0x4004, 0x4010, 0x4018, 0x4021, 0x4024, 0x4040, 0x4048, 0x4056, 0x4060, 0x4081, 0x4084,
    0x4090, 0x4100, 0x4120, 0x4161, 0x4180, 0x4185, 0x4201, 0x4210, 0x4248, 0x4256, 0x4268, 0x4400, 0x4408, 0x4420, 0x4480, 0x4499,
    0x4512, 0x4524, 0x4600, 0x4801, 0x4804, 0x4810, 0x4840, 0x4845, 0x4900, 0x4958, 0x4961, 0x4982, 0x4a45, 0x4a90, 0x5000, 0x5008,
    0x5011, 0x5019, 0x5020, 0x5080, 0x5088, 0x5104, 0x5142, 0x51a4, 0x5291, 0x5490, 0x5492, 0x550a, 0x5601, 0x5654, 0x5800, 0x5811,
    0x5819, 0x5864, 0x5940, 0x5a08, 0x6004, 0x6010, 0x6040, 0x6068, 0x6100, 0x6155, 0x6218, 0x6260, 0x6400, 0x6405, 0x6510, 0x6512,
    0x6584, 0x6842, 0x8000, 0x8002, 0x800a, 0x8041, 0x8082, 0x8104, 0x8118, 0x8140, 0x8211, 0x8401, 0x8404, 0x8410, 0x8415, 0x8440,
    0x8460, 0x8500, 0x8546, 0x8594, 0x8609, 0x8640, 0x8660, 0x8802, 0x8904, 0x8a11, 0x9004, 0x9010, 0x9024, 0x9040, 0x90a1, 0x9116,
    0x9180, 0x9245, 0x9400, 0x9422, 0x9444, 0x9551, 0x9881, 0x9920, 0xa002, 0xa050, 0xa085, 0xa109, 0xa200, 0xa418, 0xa850, 0xa904};
#endif

#if FORMAT == Q4_K || FORMAT == Q5_K
/// Scale and minimum of one of 8 groups, 6 bits each in 12 bytes.
DEVICE void six_bits(const u8* p, u32 group, u32& scale, u32& minimum) {
    if (group < 4) {
        scale = p[group] & 63;
        minimum = p[group + 4] & 63;
    } else {
        scale = (p[group + 4] & 15) | (p[group - 4] >> 6) << 4;
        minimum = p[group + 4] >> 4 | (p[group] >> 6) << 4;
    }
}
#endif

#if FORMAT == Q6_K
/// Where the fields of a row lie: lower four bits and upper two of its quants, scales of 16 and steps of 256.
struct Fields { const u8 *low, *high; const signed char* scales; const u16* steps; };
DEVICE Fields fields_of(const u8* row, u32 padded) {
    const u8 *high = row + padded / 2, *scales = high + padded / 4;
    return {row, high, (const signed char*)scales, (const u16*)(scales + padded / 16)};
}
#elif FORMAT == IQ4_NL || FORMAT == MXFP4
/// What the levels of a block are multiplied by.
DEVICE float scale_of_levels(const u8* row, u32 padded, u32 block) {
#if FORMAT == IQ4_NL
    return f32_of_f16(((const u16*)(row + padded / 2))[block]);
#else
    u32 exponent = row[padded / 2 + block];
    return __uint_as_float(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23);
#endif
}
#endif

/// Eight consecutive weights of a row, from a multiple of 8.
DEVICE void decode8(const u8* row, u32 padded, u32 k, float* out) {
#if FORMAT == F32
    const float4* p = (const float4*)(row + 4 * k);
    float4 a = p[0], b = p[1];
    out[0] = a.x; out[1] = a.y; out[2] = a.z; out[3] = a.w;
    out[4] = b.x; out[5] = b.y; out[6] = b.z; out[7] = b.w;
#elif FORMAT == F16 || FORMAT == BF16
    widen_eight<FORMAT == BF16>(*(const uint4*)(row + 2 * k), out);
#elif FORMAT == Q8_0
    float scale = f32_of_f16(*(const u16*)(row + padded + k / 32 * 2));
    const signed char* q = (const signed char*)(row + k);
    for (int i = 0; i < 8; i++) out[i] = scale * q[i];
#elif FORMAT == Q4_0
    float scale = f32_of_f16(*(const u16*)(row + padded / 2 + k / 32 * 2));
    const u8* q = row + k / 32 * 16 + k % 16;
    u32 shift = k % 32 < 16 ? 0 : 4;
    for (int i = 0; i < 8; i++) out[i] = scale * (float)((int)(q[i] >> shift & 15) - 8);
#elif FORMAT == IQ4_NL || FORMAT == MXFP4
    float scale = scale_of_levels(row, padded, k / 32);
    const u8* low = row + k / 32 * 16 + k % 16;
    u32 shift = k % 32 < 16 ? 0 : 4;
    for (int j = 0; j < 8; j++) out[j] = scale * LEVELS[low[j] >> shift & 15];
#elif FORMAT == Q4_1 || FORMAT == Q5_0 || FORMAT == Q5_1
    const u32 bytes = FORMAT == Q4_1 ? 20 : FORMAT == Q5_0 ? 22 : 24;
    const u8* block = row + k / 32 * bytes;
    u32 i = k % 32, shift = i < 16 ? 0 : 4;
    const u8* low = block + bytes - 16 + i % 16;
#if FORMAT == Q4_1
    float scale = half_at(block), minimum = half_at(block + 2);
    for (int j = 0; j < 8; j++) out[j] = scale * (float)(low[j] >> shift & 15) + minimum;
#else
    float scale = half_at(block);
    u32 fifth = block[bytes - 20 + i / 8];
    for (int j = 0; j < 8; j++) {
        int q = (low[j] >> shift & 15) | (fifth >> j & 1) << 4;
        out[j] = FORMAT == Q5_0 ? scale * (float)(q - 16) : scale * (float)q + half_at(block + 2);
    }
#endif
#elif FORMAT == Q4_K || FORMAT == Q5_K
    const u32 bytes = FORMAT == Q4_K ? 144 : 176;
    const u8* block = row + k / 256 * bytes;
    u32 group = k % 256 / 32, i = k % 32, s, m;
    six_bits(block + 4, group, s, m);
    float scale = half_at(block) * (float)s, minimum = half_at(block + 2) * (float)m;
    const u8* low = block + bytes - 128 + group / 2 * 32 + i;
    for (int j = 0; j < 8; j++) {
        u32 q = low[j] >> (group % 2 * 4) & 15;
        if (FORMAT == Q5_K) q |= (block[16 + i + j] >> group & 1) << 4;
        out[j] = scale * (float)q - minimum;
    }
#elif FORMAT == Q6_K
    const Fields of = fields_of(row, padded);
    u32 at = k % 256, h = at / 128, part = at % 128 / 32, i = at % 32;
    float scale = f32_of_f16(of.steps[k / 256]) * (float)of.scales[k / 16];
    const u8 *low = of.low + k / 256 * 128 + 64 * h + 32 * (part % 2) + i, *high = of.high + k / 256 * 64 + 32 * h + i;
    for (int j = 0; j < 8; j++) {
        int q = (low[j] >> (part / 2 * 4) & 15) | (high[j] >> (2 * part) & 3) << 4;
        out[j] = scale * (float)(q - 32);
    }
#elif FORMAT == Q2_K
    const u8* block = row + k / 256 * 84;
    u32 at = k % 256, packed = block[at / 16];
    float scale = half_at(block + 80) * (float)(packed & 15), minimum = half_at(block + 82) * (float)(packed >> 4);
    const u8* quants = block + 16 + at / 128 * 32 + at % 32;
    for (int j = 0; j < 8; j++) out[j] = scale * (float)(quants[j] >> (at % 128 / 32 * 2) & 3) - minimum;
#elif FORMAT == Q3_K
    const u8* block = row + k / 256 * 110;
    u32 at = k % 256, group = at / 16;
    const u8* scales = block + 96;
    int s = (scales[group % 8] >> (group / 8 * 4) & 15) | (scales[8 + group % 4] >> (group / 4 * 2) & 3) << 4;
    float scale = half_at(block + 108) * (float)(s - 32);
    const u8* low = block + 32 + at / 128 * 32 + at % 32;
    for (int j = 0; j < 8; j++) {
        int q = (low[j] >> (at % 128 / 32 * 2) & 3) | (block[at % 32 + j] >> (at / 32) & 1) << 2;
        out[j] = scale * (float)(q - 4);
    }
#elif FORMAT == IQ4_XS
    const u8* block = row + k / 256 * 136;
    u32 group = k % 256 / 32, i = k % 32;
    u32 high = block[2] | block[3] << 8;
    int s = (block[4 + group / 2] >> (group % 2 * 4) & 15) | (high >> (2 * group) & 3) << 4;
    float scale = half_at(block) * (float)(s - 32);
    const u8* low = block + 8 + group * 16 + i % 16;
    for (int j = 0; j < 8; j++) out[j] = scale * LEVELS[low[j] >> (i < 16 ? 0 : 4) & 15];
#elif FORMAT == IQ2_XXS
    const u8* block = row + k / 256 * 66;
    const u8* group = block + 2 + k % 256 / 32 * 8;
    u32 octet = k % 32 / 8, tail = group[4] | group[5] << 8 | group[6] << 16 | (u32)group[7] << 24;
    u32 signs = tail >> (7 * octet) & 127, pattern = PATTERNS[group[octet]];
    signs |= (__popc(signs) & 1) << 7;
    float scale = half_at(block) * (0.5f + (float)(tail >> 28)) * 0.25f;
    for (int j = 0; j < 8; j++) {
        u32 choice = pattern >> (2 * j) & 3;
        float magnitude = choice == 0 ? 8.0f : choice == 1 ? 25.0f : 43.0f;
        out[j] = scale * (signs >> j & 1 ? -magnitude : magnitude);
    }
#else
#error "no decoder for this format"
#endif
}
