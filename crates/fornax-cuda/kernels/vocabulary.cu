//! Products of up to 256 tokens with the head, on Hopper, and on the way what a draw is told of each 64 of its
//! rows: the largest logit and where it is, and sums of exponentials beside it. Logits are written for those
//! tokens alone whose draws read them. Compiled for TOKENS at most, and for the head in bf16 (BRAINS) or as
//! tiles of bytes, whose scales they are multiplied by in registers.
//!
//! A block has two groups of four warps, and each of these 64 rows and all tokens; then both go on to the next
//! rows, whose weights come while they still write what they have of the last ones.
//!
//! Bytes: every weight once, every logit that is written once, and all tokens once for each 128 rows from the
//! second level of the cache. Least time of 144 tokens and a head of 152 k rows in Q8_0: products take 45 µs,
//! and 165 MB are read in 36; to write all logits takes 20 more.

#define ROWS 64
#define GROUPS 2
#define GROUP 128 // threads that have the same rows
#define MOST_STAGES 8
/// Bytes of a tile over a slab of columns: rows as they are fetched, or their quants and scales.
#define OF_TILE (BRAINS ? ROWS * SLAB * 2 : TILE_BYTES)
/// Tokens whose sums meet at a time, 16 for each warp, and floats from one to the next: no two of a warp's share a bank.
#define CHUNK 64
#define PITCH (ROWS + 4)

struct Vocabulary {
    TensorMap x;       // [slabs][n][SLAB]
    TensorMap weight;  // in bf16: [slabs][rows / 32][32][SLAB]
    const u8* tiled;   // as tiles: [tiles][slabs][OF_TILE]
    float* logits;     // [n, rows]
    uint4* best;       // [n, tiles]: largest, where, sum of exponentials, whether unsound; not written where null
    float* weights;    // [n, tiles]: sums of exponentials under the temperature
    const Draw* draws; // of the first `drawn` tokens
    const Slot* slots;
    u32 n, drawn, slabs, rows, stages;
};

/// What becomes of a token's logits.
struct Use {
    float inverse; // of the temperature that their weights are wanted under, zero where they are not
    bool written, summed, located;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/// Where a block's stages and its barriers lie.
struct Block {
    u32 tokens, weights, tokens_there, weights_there, free, tiles, pairs;

    __device__ __forceinline__ Block(const Vocabulary& p, const u8* memory, const u64* barriers) {
        tokens = shared_address(memory);
        weights = tokens + p.stages * TOKENS_OF_SLAB;
        weights_there = shared_address(barriers);
        tokens_there = weights_there + 8 * MOST_STAGES;
        free = tokens_there + 8 * MOST_STAGES;
        tiles = (p.rows + ROWS - 1) / ROWS;
        pairs = (tiles + GROUPS - 1) / GROUPS;
    }
    /// The tile of a group: behind the last one that once more.
    __device__ __forceinline__ u32 tile(u32 pair, u32 group) const { return min(pair * GROUPS + group, tiles - 1); }
};

/// Asks for both sides, stage by stage. Called by one lane.
DEVICE void fetch_all(const Vocabulary& p, const Block& b) {
    u64 policy = leaves_first();
    // Of the next weights that are asked for.
    u32 pair = blockIdx.x, slab = 0;
    Stage asked = {0, 0};
    auto fetch_weights = [&]() {
        u32 barrier = b.weights_there + 8 * asked.slot, to = b.weights + asked.slot * GROUPS * OF_TILE;
        expect_bytes(barrier, GROUPS * OF_TILE);
#pragma unroll
        for (u32 group = 0; group < GROUPS; group++) {
            u32 tile = b.tile(pair, group);
#if BRAINS
            fetch(to + group * OF_TILE, p.weight, 0, tile * (ROWS / 32), slab, barrier, policy);
#else
            fetch(to + group * OF_TILE, p.tiled + ((u64)tile * p.slabs + slab) * OF_TILE, OF_TILE, barrier, policy);
#endif
        }
        asked.next(p.stages);
        if (++slab == p.slabs) { slab = 0; pair += gridDim.x; }
    };
    for (u32 i = 0; i < p.stages && pair < b.pairs; i++) fetch_weights();
    wait_for_previous();
    Stage stage = {0, 1};
    u32 behind = 0; // stages since the first
    for (u32 of_tokens = blockIdx.x; of_tokens < b.pairs; of_tokens += gridDim.x)
        for (u32 i = 0; i < p.slabs; i++) {
            if (behind >= p.stages) {
                barrier_wait(b.free + 8 * stage.slot, stage.phase);
                fetch_weights();
            } else behind++;
            u32 barrier = b.tokens_there + 8 * stage.slot;
            expect_bytes(barrier, TOKENS_OF_SLAB);
            fetch(b.tokens + stage.slot * TOKENS_OF_SLAB, p.x, 0, i, barrier);
            stage.next(p.stages);
        }
}

/// The products of a group's rows with all tokens, slab by slab.
DEVICE void multiply_all(float (&c)[TOKENS / 8][4], const Vocabulary& p, const Block& b, Stage& stage) {
    u32 group = threadIdx.x / GROUP, before = FULL;
#if !BRAINS
    u32 held[2][SLAB / 16][4];
#endif
    auto one = [&](u32 side) {
        u32 weights = b.weights + (stage.slot * GROUPS + group) * OF_TILE, tokens = b.tokens + stage.slot * TOKENS_OF_SLAB;
        barrier_wait(b.weights_there + 8 * stage.slot, stage.phase);
#if !BRAINS
        unpack(held[side], weights, scales_of(weights));
        hold(held[side]);
#endif
        barrier_wait(b.tokens_there + 8 * stage.slot, stage.phase);
        hold(c);
        products_begin();
        u32 right = matrix_at(tokens);
#if BRAINS
        u32 left = matrix_at(weights);
#pragma unroll
        for (u32 k = 0; k < SLAB / 16; k++) multiply(c, left + 2 * k, right + 2 * k);
#else
#pragma unroll
        for (u32 k = 0; k < SLAB / 16; k++) multiply(c, held[side][k], right + 2 * k);
#endif
        products_end();
        products_wait<1>();
        // The stage before this one is done with.
        if (threadIdx.x % 32 == 0 && before != FULL) barrier_arrive(b.free + 8 * before);
        before = stage.slot;
        stage.next(p.stages);
    };
    for (u32 slab = 1; slab < p.slabs; slab += 2) {
        one(0);
        one(1);
    }
    if (p.slabs % 2) {
        // With a branch between two steps the compiler would have every product end before the next.
        products_wait<0>();
        one(0);
    }
    products_wait<0>();
    hold(c);
    if (threadIdx.x % 32 == 0) barrier_arrive(b.free + 8 * before);
}

/// Puts the sums of a chunk of tokens where they meet, [token][PITCH].
DEVICE void leave_sums(const float (&c)[TOKENS / 8][4], u32 chunk, float* sums) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x % GROUP / 32;
    float* to = sums + lane % 4 * 2 * PITCH + warp * 16 + lane / 4;
    // Registers have no index: a place in the code for each.
#pragma unroll
    for (u32 first = 0; first < TOKENS / 8; first += CHUNK / 8) {
        if (first != chunk * (CHUNK / 8)) continue;
#pragma unroll
        for (u32 i = first; i < first + CHUNK / 8 && i < TOKENS / 8; i++) {
            float* of_eight = to + (i - first) * 8 * PITCH;
            of_eight[0] = c[i][0];
            of_eight[PITCH] = c[i][1];
            of_eight[8] = c[i][2];
            of_eight[PITCH + 8] = c[i][3];
        }
    }
}

DEVICE float exponential(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/// What 32 numbers give together: four by four, so that each waits for the fourth before it alone.
template <class Of, class Both> DEVICE auto together(Of of, Both both) {
    decltype(of(0)) four[4] = {of(0), of(1), of(2), of(3)};
#pragma unroll
    for (u32 i = 4; i < 32; i++) four[i % 4] = both(four[i % 4], of(i));
    return both(both(four[0], four[1]), both(four[2], four[3]));
}

/// Writes of a chunk of tokens and a tile what is wanted: logits, and what a draw is told of them. Two lanes have
/// a token, and 32 of its rows each.
DEVICE void search(const Vocabulary& p, const float* sums, u32 first, u32 tile, u32 tiles, const Use* uses) {
    u32 lane = threadIdx.x % 32, here = threadIdx.x % GROUP / 32 * 16 + lane % 16, token = first + here, row = tile * ROWS + lane / 16 * 4;
    // The same for all of a warp.
    if (token - lane % 16 >= p.n) return;
    Use use = {};
    if (token < p.n) use = uses[token];
    float v[32];
#pragma unroll
    for (u32 i = 0; i < 32; i += 4) {
        float4 four = *(const float4*)(sums + here * PITCH + lane / 16 * 4 + 2 * i);
        v[i] = four.x; v[i + 1] = four.y; v[i + 2] = four.z; v[i + 3] = four.w;
        if (use.written && row + 2 * i < p.rows) *(float4*)(p.logits + (u64)token * p.rows + row + 2 * i) = four;
    }
    if (!p.best) return;
    auto row_of = [&](u32 i) { return row + i / 4 * 8 + i % 4; };
    // Of the last tile alone is there anything to ask.
    if ((tile + 1) * ROWS > p.rows)
#pragma unroll
        for (u32 i = 0; i < 32; i++) v[i] = row_of(i) < p.rows ? v[i] : -INFINITE;
    float most = together([&](u32 i) { return v[i]; }, [](float a, float b) { return fmaxf(a, b); });
    most = fmaxf(most, __shfl_xor_sync(FULL, most, 16));
    u32 where = tile * ROWS;
    if (__any_sync(FULL, use.located)) {
        where = together([&](u32 i) { return v[i] == most ? row_of(i) : FULL; }, [](u32 a, u32 b) { return min(a, b); });
        where = min(where, __shfl_xor_sync(FULL, where, 16));
    }
    const float log2e = 1.4426950408889634f;
    float base = most > -INFINITE ? most : 0.0f;
    // Under what factor of their distance below the largest logit, in powers of two.
    auto exponentials = [&](float factor) {
        float sum = together([&](u32 i) { return exponential((v[i] - base) * factor); }, [](float a, float b) { return a + b; });
        return sum + __shfl_xor_sync(FULL, sum, 16);
    };
    float weight = 1.0f, sum = 1.0f;
    if (__any_sync(FULL, use.inverse > 0.0f)) weight = exponentials(use.inverse * log2e);
    if (__any_sync(FULL, use.summed)) sum = exponentials(log2e);
    if (lane >= 16 || token >= p.drawn) return;
    // What is infinite or no number makes a sum no number.
    float told = use.summed ? sum : weight;
    u64 to = (u64)token * tiles + tile;
    p.best[to] = make_uint4(__float_as_uint(most), where, __float_as_uint(told), told != told);
    p.weights[to] = weight;
}

/// All threads of a group.
DEVICE void meet() {
    if (threadIdx.x < GROUP) asm volatile("bar.sync 1, %0;" ::"n"(GROUP) : "memory");
    else asm volatile("bar.sync 2, %0;" ::"n"(GROUP) : "memory");
}

/// Chunk by chunk.
DEVICE void search_all(const float (&c)[TOKENS / 8][4], const Vocabulary& p, float* sums, u32 tile, u32 tiles, const Use* uses) {
#pragma unroll 1
    for (u32 chunk = 0; chunk * CHUNK < p.n; chunk++) {
        // Nobody reads the last ones any more.
        meet();
        leave_sums(c, chunk, sums);
        meet();
        if (tile < tiles) search(p, sums, chunk * CHUNK, tile, tiles, uses);
    }
}
#endif

KERNEL __launch_bounds__((GROUPS + 1) * GROUP, 1) void vocabulary(const __grid_constant__ Vocabulary p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) u8 memory[];
    __shared__ __align__(8) u64 barriers[3 * MOST_STAGES];
    __shared__ Use uses[TOKENS];
    u32 tid = threadIdx.x, group = tid / GROUP;
    Block b(p, memory, barriers);
    if (tid < MOST_STAGES) {
        barrier_init(b.weights_there + 8 * tid, 1);
        barrier_init(b.tokens_there + 8 * tid, 1);
        barrier_init(b.free + 8 * tid, GROUPS * GROUP / 32);
    }
    show_barriers();
    __syncthreads();
    let_next_begin();
    if (group == GROUPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (tid == GROUPS * GROUP) fetch_all(p, b);
        return;
    }
    // All together as many as the launch has: 168 for each thread.
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    wait_for_previous();
    // Both groups find the same; they have met before either reads it.
    for (u32 token = tid % GROUP; token < p.n; token += GROUP) {
        Use use = {0.0f, true, false, false};
        if (p.best) {
            use.written = token >= p.drawn; // for whoever reads those
            if (token < p.drawn && p.draws[token].slot != FULL) {
                Draw draw = p.draws[token];
                Slot slot = p.slots[draw.slot];
                bool drawn = slot.temperature > 0.0f;
                use = {drawn ? 1.0f / slot.temperature : 0.0f, reads_logits(slot, draw, p.rows), !drawn || draw.top != FULL, !drawn};
            }
        }
        uses[token] = use;
    }
    float* sums = (float*)(memory + p.stages * (TOKENS_OF_SLAB + GROUPS * OF_TILE)) + group * CHUNK * PITCH;
    Stage stage = {0, 0};
    for (u32 pair = blockIdx.x; pair < b.pairs; pair += gridDim.x) {
        float c[TOKENS / 8][4] = {};
        multiply_all(c, p, b, stage);
        search_all(c, p, sums, pair * GROUPS + group, b.tiles, uses);
    }
#endif
}
