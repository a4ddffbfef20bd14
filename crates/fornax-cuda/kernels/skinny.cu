//! Products of up to 256 tokens with a matrix in bf16, on Hopper. Compiled for TOKENS at most, each of which has PARTS
//! rows: one, or two halves where the result is to be that of single precision. Then the matrix may be tiles of bytes
//! too (TILED).
//!
//! The matrix stands on the left: a block has 64 of its rows and all tokens, so that every weight is read
//! once, and the blocks of a cluster have a share of the columns each, whose sums they hand to one another.
//! A warp asks the copy engine for both sides, for weights before the launch before this one has ended,
//! and the tensor cores read them from shared memory by themselves. Quants become bf16 in registers, as they are, and
//! sums over the 32 columns of a scale are multiplied by it.
//!
//! A norm between two of them is no launch of its own. The first leaves its sums in bf16, in PARTS, times the norm's
//! weights, and of each block's rows and token the sum of their squares; a warp of the second adds these up while
//! the others multiply, who then multiply their sums by what a token was still to be divided by.
//!
//! Bytes: every weight once from memory, and all tokens once for each block from the second level of the
//! cache. Least time: until a launch begins, that cache answers and sums have gone through the cluster, 3 µs;
//! 64 columns of 144 tokens are multiplied in 288 cycles and come in as many, 8 KiB of weights and 18 of tokens.

/// Slabs that are asked for at once.
#define PIECE (TILED ? 2 : TOKENS <= 64 ? 4 : TOKENS <= 128 ? 2 : 1)
#define ROWS 64
#define THREADS 128 // that multiply
#define WEIGHTS_OF_SLAB (TILED ? TILE_BYTES : ROWS * 128)
#define MOST_STAGES 8
/// Tokens that 16 threads end at once. Up to 32 tokens are few for each of six blocks that share the columns, and what
/// is unrolled for more is code that runs once a launch: it takes longer to come than to run.
#define ENDED (PARTS > 1 || TOKENS <= 32 ? 1 : TOKENS <= 64 ? 2 : 4)
/// Floats from a token to the next where sums meet: no two of a warp's share a bank.
#define PITCH (ROWS + 4)
/// Whether it may do half of a norm. Those of more tokens leave it to a launch of its own, and are faster
/// without what is not asked of them.
#define HALVES (TOKENS <= 64)
/// With the warp that asks for both sides, and with one that finds what tokens are still to be multiplied by.
#define ALL_THREADS (THREADS + (HALVES ? 64 : 32))

// What becomes of a sum.
#define STORED 0 // in single precision
#define ADDED 1  // to what is there
#define NARROW 2 // in bf16
#define GATED 3  // of gates and ups, the first and the second 32 rows of a block, one number in bf16, in PARTS

/// K and V that the attention behind it begins rows with, which come near while memory is idle: of each head of
/// each row as many positions, so that no block of it has more left than others where all products bring their part.
/// That is some heads each, by whole pages: what is asked for keeps the launch behind it waiting by how often it is
/// asked more than by how much that is.
struct Near {
    const u8 *keys, *values;
    const Token* tokens;
    const Row* rows;
    const u32* tables;
    u32 kv_heads, page_size, row_bytes, window;
    u32 positions; // from the first page that is seen on; may be none
    u32 part, parts; // every `parts`-th of all rows' heads, from `part` on
};

struct Skinny {
    TensorMap weight; // [slabs][rows / 32][32][SLAB], or of gates and ups [slabs][2][rows][SLAB]
    TensorMap x;      // [slabs][PARTS * n][SLAB]
    const u8* tiled;  // in place of the matrix: [tiles][slabs][TILE_BYTES]
    void* out;        // [n, stride], of parts [PARTS, n, stride]
    // The norm behind it of what it adds to, where that is not null; all rows of the matrix are its width.
    u16* normed;       // [PARTS, n, stride]: times the norm's weights, and still to be divided
    float* squares;    // [rows / ROWS, n]: their sums by tile
    const float* norm; // [rows], the norm's weights
    // The norm before it, where that is not null: by what x is still to be divided.
    const float* squares_of_x; // [slabs, n]: a tile has as many rows as a slab columns
    float eps;                 // of that norm
    float alpha, limit;
    u32 n, slabs, stages, stride, kind, activation;
    u32 received; // bytes of shared memory before what they send one another
    Near near;
};

/// Which tokens' sums a block ends, of those that have the same rows.
struct Share { u32 first, count; };
DEVICE Share share_of(u32 n, u32 splits, u32 rank) {
    u32 each = (n + splits - 1) / splits, first = rank * each < n ? rank * each : n;
    return {first, n - first < each ? n - first : each};
}

/// Four neighbouring sums of a token of a share, of all its parts: this block's and those that others sent.
template <u32 SPLITS> DEVICE float4 sum_of(const float* own, const float* received, u32 n, Share share, u32 token, u32 row) {
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (u32 part = 0; part < PARTS; part++)
#pragma unroll
        for (u32 i = 0; i < SPLITS; i++) {
            const float* from = i == 0 ? own + (part * n + share.first + token) * PITCH : received + (((i - 1) * PARTS + part) * share.count + token) * PITCH;
            float4 v = *(const float4*)(from + row);
            sum.x += v.x; sum.y += v.y; sum.z += v.z; sum.w += v.w;
        }
    return sum;
}

/// By what the sums of a share's tokens are multiplied for the norm of x, a lane's each. Called by a warp that has
/// nothing else to do: those that multiply would wait for the cache before they do. Squares are asked for with no
/// branch between them, so that they come together: beyond the last token or tile the last one once more.
DEVICE void find_factors(const Skinny& p, Share share, float* factors) {
    constexpr u32 OWN = (TOKENS + 31) / 32, AT_ONCE = 16;
    float sums[OWN] = {};
    for (u32 base = 0; base < p.slabs; base += AT_ONCE) {
        float squares[AT_ONCE][OWN];
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++)
#pragma unroll
            for (u32 r = 0; r < OWN; r++) {
                u32 token = share.first + threadIdx.x % 32 + 32 * r;
                squares[i][r] = p.squares_of_x[min(base + i, p.slabs - 1) * p.n + min(token, p.n - 1)];
            }
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++)
#pragma unroll
            for (u32 r = 0; r < OWN; r++) sums[r] += base + i < p.slabs ? squares[i][r] : 0.0f;
    }
#pragma unroll
    for (u32 r = 0; r < OWN; r++) {
        u32 token = threadIdx.x % 32 + 32 * r;
        if (token < share.count) factors[token] = rsqrtf(sums[r] / (p.slabs * SLAB) + p.eps);
    }
}

/// Sums of a token by its factor. One of 0 is that of a token whose squares are too large for a number:
/// a norm makes zeros of it, which infinite sums would not become.
DEVICE float4 scaled(float4 v, float factor) {
    if (factor == 0.0f) return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    return make_float4(v.x * factor, v.y * factor, v.z * factor, v.w * factor);
}

/// The sum of four squares. An infinite number makes it no number, as a norm does with its row; finite ones
/// whose squares are too large make it infinite.
DEVICE float squares_of(float4 v) {
    float sum = v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    return sum < INFINITE ? sum : sum + (v.x - v.x) + (v.y - v.y) + (v.z - v.z) + (v.w - v.w);
}

/// A number of a gate and an up, exact where more than bf16 is kept of it.
template <u32 ACTIVATION> DEVICE float number_of(float gate, float up, float alpha, float limit) {
    return PARTS > 1 ? gated(gate, up, ACTIVATION, alpha, limit) : gated_about<ACTIVATION>(gate, up, alpha, limit);
}

/// Ends gates and ups of a share of the tokens, each of which eight threads have. With the activation chosen
/// in the loop a step of 130 tokens took 3 % longer, with the loop unrolled by two 2 %.
template <u32 SPLITS, u32 ACTIVATION>
DEVICE void end_gated(const Skinny& p, const float* own, const float* received, Share share, const float* factors) {
    u32 row = threadIdx.x % 8 * 4;
#pragma unroll 1
    for (u32 token = threadIdx.x / 8; token < share.count; token += THREADS / 8) {
        float4 g = sum_of<SPLITS>(own, received, p.n, share, token, row), u = sum_of<SPLITS>(own, received, p.n, share, token, row + 32);
        if (HALVES && p.squares_of_x) { g = scaled(g, factors[token]); u = scaled(u, factors[token]); }
        auto number = [&](float gate, float up) { return number_of<ACTIVATION>(gate, up, p.alpha, p.limit); };
        u16* to = (u16*)p.out + (u64)(share.first + token) * p.stride + blockIdx.y * 32 + row;
        store_brains(to, PARTS == 1 ? 0 : (u64)p.n * p.stride, make_float4(number(g.x, u.x), number(g.y, u.y), number(g.z, u.z), number(g.w, u.w)));
    }
}

/// Ends the sums of a share of the tokens, each of which 16 threads have.
template <u32 SPLITS> DEVICE void end(const Skinny& p, const float* own, const float* received, Share share, const float4 (&before)[ENDED], float4 norm,
                                      const float* factors) {
    u32 tid = threadIdx.x, tile = blockIdx.y;
    bool scales = HALVES && p.squares_of_x, norms = HALVES && p.normed;
    if (p.kind == GATED) {
        if (p.activation == SILU) end_gated<SPLITS, SILU>(p, own, received, share, factors);
        else if (p.activation == GELU_TANH) end_gated<SPLITS, GELU_TANH>(p, own, received, share, factors);
        else end_gated<SPLITS, CLAMPED_SWIGLU>(p, own, received, share, factors);
        return;
    }
    u32 row = tid % 16 * 4, place = tile * ROWS + row;
    u64 to = (u64)share.first * p.stride + place;
    for (u32 first = 0; first < share.count; first += ENDED * (THREADS / 16)) {
        float squares[ENDED];
#pragma unroll
        for (u32 i = 0; i < ENDED; i++) {
            u32 token = first + i * (THREADS / 16) + tid / 16;
            squares[i] = 0.0f;
            if (token >= share.count) continue;
            float4 v = sum_of<SPLITS>(own, received, p.n, share, token, row);
            if (scales) v = scaled(v, factors[token]);
            u64 at = to + (u64)token * p.stride;
            if (p.kind == NARROW) {
                *(uint2*)((u16*)p.out + at) = make_uint2(bf16_pair(v.x, v.y), bf16_pair(v.z, v.w));
                continue;
            }
            float4* out = (float4*)((float*)p.out + at);
            if (p.kind == ADDED) {
                float4 w = first == 0 ? before[i] : *out;
                v.x += w.x; v.y += w.y; v.z += w.z; v.w += w.w;
            }
            *out = v;
            if (!norms) continue;
            store_brains(p.normed + at, PARTS == 1 ? 0 : (u64)p.n * p.stride, make_float4(v.x * norm.x, v.y * norm.y, v.z * norm.z, v.w * norm.w));
            squares[i] = squares_of(v);
        }
        if (!norms) continue;
#pragma unroll
        for (u32 i = 0; i < ENDED; i++) {
            u32 token = first + i * (THREADS / 16) + tid / 16;
            for (u32 step = 8; step > 0; step >>= 1) squares[i] += __shfl_xor_sync(FULL, squares[i], step);
            if (tid % 16 == 0 && token < share.count) p.squares[tile * p.n + share.first + token] = squares[i];
        }
    }
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/// A block: which of those that share the columns it is, its pieces of them, and its barriers.
struct Block {
    u32 splits, rank, first, last;
    u32 tokens, weights, weights_there, tokens_there, free, received, factors_there;

    __device__ __forceinline__ Block(const Skinny& p, const u8* memory, const u64* barriers) {
        splits = cluster_size();
        rank = cluster_rank();
        // Behind the last column there are zeros.
        u32 pieces = (p.slabs + PIECE - 1) / PIECE, each = (pieces + splits - 1) / splits;
        first = rank * each;
        last = first + each < pieces ? first + each : pieces;
        tokens = shared_address(memory);
        weights = tokens + p.stages * PIECE * TOKENS_OF_SLAB;
        weights_there = shared_address(barriers);
        tokens_there = weights_there + 8 * MOST_STAGES;
        free = tokens_there + 8 * MOST_STAGES;
        received = free + 8 * MOST_STAGES;
        factors_there = received + 8;
    }
};

/// Brings a block's share of `near` into the cache, a page of a head by each lane. Called by a warp.
DEVICE void bring_near(const Near& near, u32 n) {
    if (near.positions == 0) return;
    u32 block = blockIdx.y * gridDim.x + blockIdx.x, blocks = gridDim.x * gridDim.y;
    u32 heads = n * near.kv_heads, pages = (near.positions + near.page_size - 1) / near.page_size;
    for (u32 i = block + blocks * (threadIdx.x % 32); i < (heads + near.parts - 1) / near.parts * pages; i += 32 * blocks) {
        u32 head = near.part + i / pages * near.parts, from = i % pages * near.page_size;
        if (head >= heads) continue;
        Token token = near.tokens[head / near.kv_heads];
        if (token.row == FULL) continue;
        u32 first = first_seen(token.position, near.window) / near.page_size, position = first * near.page_size + from;
        if (position > token.position) continue;
        u32 page = near.tables[near.rows[token.row].table + first + i % pages];
        u32 bytes = min(min(near.positions - from, near.page_size), token.position - position + 1) * near.row_bytes;
        u64 at = ((u64)page * near.kv_heads + head % near.kv_heads) * near.page_size * near.row_bytes;
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(near.keys + at), "r"(bytes) : "memory");
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(near.values + at), "r"(bytes) : "memory");
    }
}

#if TILED
/// Asks for a piece of a block's rows from a slab on, as far as there are columns.
DEVICE void fetch_tiles(const Skinny& p, u32 to, u32 slab, u32 barrier, u64 policy) {
    u32 count = min(PIECE, p.slabs - slab);
    expect_bytes(barrier, count * TILE_BYTES);
    if (p.kind != GATED) {
        fetch(to, p.tiled + ((u64)blockIdx.y * p.slabs + slab) * TILE_BYTES, count * TILE_BYTES, barrier, policy);
        return;
    }
    // Gates are the matrix's first rows, and ups as many behind them.
    for (u32 i = 0; i < 2 * count; i++) {
        u32 half = blockIdx.y + i % 2 * gridDim.y;
        fetch(to + i * HALF_TILE, p.tiled + ((u64)(half / 2) * p.slabs + slab + i / 2) * TILE_BYTES + half % 2 * HALF_TILE, HALF_TILE, barrier, policy);
    }
}
#endif

DEVICE void cluster_goes_on() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }

/// Asks for both sides, stage by stage. Called by a warp, of which one lane asks.
DEVICE void fetch_all(const Skinny& p, const Block& b, u32 received_bytes) {
    bool asks = threadIdx.x % 32 == 0;
    u32 piece_asked = b.first;
    Stage asked = {0, 0}, stage = {0, 1};
    // Every weight is read once, and leaves the cache to what is brought near.
    u64 policy = leaves_first();
    auto fetch_weights = [&]() {
        u32 barrier = b.weights_there + 8 * asked.slot, to = b.weights + asked.slot * PIECE * WEIGHTS_OF_SLAB;
#if TILED
        fetch_tiles(p, to, piece_asked * PIECE, barrier, policy);
#else
        expect_bytes(barrier, PIECE * WEIGHTS_OF_SLAB);
        fetch(to, p.weight, p.kind == GATED ? blockIdx.y * 32 : 0, p.kind == GATED ? 0 : blockIdx.y * 2, piece_asked * PIECE, barrier, policy);
#endif
        piece_asked++;
        asked.next(p.stages);
    };
    if (asks) {
        for (u32 i = 0; i < p.stages && piece_asked < b.last; i++) fetch_weights();
        expect_bytes(b.received, received_bytes);
    }
    __syncwarp();
    cluster_wait();
    wait_for_previous();
    for (u32 piece = b.first; asks && piece < b.last; piece++) {
        if (piece >= b.first + p.stages) {
            barrier_wait(b.free + 8 * stage.slot, stage.phase);
            fetch_weights();
        }
        u32 barrier = b.tokens_there + 8 * stage.slot;
        expect_bytes(barrier, PIECE * TOKENS_OF_SLAB);
        fetch(b.tokens + stage.slot * PIECE * TOKENS_OF_SLAB, p.x, 0, piece * PIECE, barrier);
        stage.next(p.stages);
    }
    __syncwarp();
    bring_near(p.near, p.n);
}

#if TILED
/// Adds the products of this block's columns: of each 32 of them by themselves, and then by their scale.
DEVICE void multiply_all(float (&c)[TOKENS / 8][4], const Skinny& p, const Block& b) {
    Stage stage = {0, 0};
    for (u32 piece = b.first; piece < b.last; piece++) {
        u32 weights = b.weights + stage.slot * PIECE * TILE_BYTES, tokens = matrix_at(b.tokens + stage.slot * PIECE * TOKENS_OF_SLAB);
        u32 held[PIECE * SLAB / 16][4];
        Scales scales[PIECE];
        barrier_wait(b.weights_there + 8 * stage.slot, stage.phase);
#pragma unroll
        for (u32 i = 0; i < PIECE; i++) {
            unpack(&held[i * SLAB / 16], weights + i * TILE_BYTES, {{1.0f, 1.0f}, {1.0f, 1.0f}});
            scales[i] = {};
            // Behind the last column nothing was fetched.
            if (piece * PIECE + i < p.slabs) scales[i] = scales_of(weights + i * TILE_BYTES);
        }
        hold(held);
        float sums[2 * PIECE][TOKENS / 8][4] = {};
        barrier_wait(b.tokens_there + 8 * stage.slot, stage.phase);
#pragma unroll
        for (u32 block = 0; block < 2 * PIECE; block++) hold(sums[block]);
        products_begin();
#pragma unroll
        for (u32 i = 0; i < PIECE; i++)
#pragma unroll
            for (u32 k = 0; k < SLAB / 16; k++)
                multiply(sums[2 * i + k / 2], held[i * (SLAB / 16) + k], tokens + (i * TOKENS_OF_SLAB + 32 * k) / 16);
        products_end();
        products_wait<0>();
#pragma unroll
        for (u32 block = 0; block < 2 * PIECE; block++) {
            hold(sums[block]);
            const Scales& of = scales[block / 2];
            float upper = block % 2 == 0 ? of.upper.x : of.upper.y, lower = block % 2 == 0 ? of.lower.x : of.lower.y;
#pragma unroll
            for (u32 i = 0; i < TOKENS / 8; i++) {
                c[i][0] += sums[block][i][0] * upper;
                c[i][1] += sums[block][i][1] * upper;
                c[i][2] += sums[block][i][2] * lower;
                c[i][3] += sums[block][i][3] * lower;
            }
        }
        if (threadIdx.x % 32 == 0) barrier_arrive(b.free + 8 * stage.slot);
        stage.next(p.stages);
    }
}
#else
/// Adds the products of this block's columns.
DEVICE void multiply_all(float (&c)[TOKENS / 8][4], const Skinny& p, const Block& b) {
    Stage stage = {0, 0};
    for (u32 piece = b.first; piece < b.last; piece++) {
        barrier_wait(b.weights_there + 8 * stage.slot, stage.phase);
        barrier_wait(b.tokens_there + 8 * stage.slot, stage.phase);
        hold(c);
        products_begin();
        u32 weights = matrix_at(b.weights + stage.slot * PIECE * WEIGHTS_OF_SLAB), tokens = matrix_at(b.tokens + stage.slot * PIECE * TOKENS_OF_SLAB);
#pragma unroll
        for (u32 i = 0; i < PIECE; i++)
#pragma unroll
            for (u32 k = 0; k < SLAB / 16; k++)
                multiply(c, weights + (i * WEIGHTS_OF_SLAB + 32 * k) / 16, tokens + (i * TOKENS_OF_SLAB + 32 * k) / 16);
        products_end();
        products_wait<1>();
        // The piece before this one is done with.
        if (threadIdx.x % 32 == 0 && piece > b.first) barrier_arrive(b.free + 8 * (stage.slot > 0 ? stage.slot - 1 : p.stages - 1));
        stage.next(p.stages);
    }
    products_wait<0>();
    hold(c);
}
#endif

/// Hands sums, which lie where the stages were, to the blocks that end them: all others that have the same
/// rows.
DEVICE void send_sums(const Skinny& p, const Block& b, const float* sums) {
    if (threadIdx.x > 0) return;
#pragma unroll 1
    for (u32 i = 1; i < b.splits; i++) {
        u32 peer = (b.rank + i) % b.splits;
        Share share = share_of(p.n, b.splits, peer);
        if (share.count == 0) continue;
        u32 bytes = share.count * PITCH * 4, to = of_peer(b.tokens + p.received + (b.rank - (b.rank > peer)) * PARTS * bytes, peer);
#pragma unroll
        for (u32 part = 0; part < PARTS; part++)
            asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to + part * bytes),
                         "r"(shared_address(sums + (part * p.n + share.first) * PITCH)), "r"(bytes), "r"(of_peer(b.received, peer)) : "memory");
    }
}

DEVICE void meet() { asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory"); }

/// Puts sums where the stages were, [token][PITCH], for who ends them and for who sends them.
DEVICE void leave_sums(const float (&c)[TOKENS / 8][4], float* sums) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float* to = sums + lane % 4 * 2 * PITCH + warp * 16 + lane / 4;
#pragma unroll
    for (u32 i = 0; i < TOKENS / 8; i++, to += 8 * PITCH) {
        to[0] = c[i][0];
        to[PITCH] = c[i][1];
        to[8] = c[i][2];
        to[PITCH + 8] = c[i][3];
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
#endif

KERNEL __launch_bounds__(ALL_THREADS, 1) void skinny(const __grid_constant__ Skinny p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) u8 memory[];
    __shared__ __align__(8) u64 barriers[3 * MOST_STAGES + 2];
    u32 tid = threadIdx.x;
    Block b(p, memory, barriers);
    Share share = share_of(p.n, b.splits, b.rank);
    // Behind what others send. A variable of the kernel's own has an address that says which block of its cluster
    // this is, and the compiler would ask for that wherever one is read.
    float* factors = (float*)(memory + p.received) + (b.splits - 1) * PARTS * ((p.n + b.splits - 1) / b.splits) * PITCH;
    if (tid < MOST_STAGES) {
        barrier_init(b.weights_there + 8 * tid, 1);
        barrier_init(b.tokens_there + 8 * tid, 1);
        barrier_init(b.free + 8 * tid, THREADS / 32);
    }
    if (tid == MOST_STAGES) {
        barrier_init(b.received, 1);
        barrier_init(b.factors_there, 1);
    }
    if (tid == THREADS) {
#if !TILED
        asm volatile("prefetch.tensormap [%0];" ::"l"(&p.weight));
#endif
        asm volatile("prefetch.tensormap [%0];" ::"l"(&p.x));
    }
    show_barriers();
    __syncthreads();
    // No block sends before another one's barriers are ready.
    cluster_goes_on();
    let_next_begin();
    if (tid >= THREADS) {
        if (tid < THREADS + 32) fetch_all(p, b, (b.splits - 1) * PARTS * share.count * PITCH * 4);
        else {
            cluster_wait();
            wait_for_previous();
            if (HALVES && p.squares_of_x) find_factors(p, share, factors);
            __syncwarp();
            if (tid == THREADS + 32) barrier_arrive(b.factors_there);
        }
        __syncwarp();
        cluster_goes_on();
        cluster_wait();
        return;
    }

    cluster_wait();
    float4 norm = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (HALVES && p.normed) norm = *(const float4*)(p.norm + blockIdx.y * ROWS + tid % 16 * 4);
    wait_for_previous();
    // What sums are added to comes while they are made.
    float4 before[ENDED];
    if (p.kind == ADDED)
#pragma unroll
        for (u32 i = 0; i < ENDED; i++) {
            u32 token = i * (THREADS / 16) + tid / 16;
            if (token < share.count) before[i] = *(const float4*)((const float*)p.out + (u64)(share.first + token) * p.stride + blockIdx.y * ROWS + tid % 16 * 4);
        }
    // As zeros, for what the first product would find undefined keeps some compilers from asking for another
    // before one has ended.
    float c[TOKENS / 8][4] = {};
    multiply_all(c, p, b);

    float* sums = (float*)memory;
    meet();
    leave_sums(c, sums);
    meet();
    send_sums(p, b, sums);
    __syncwarp();
    barrier_wait(b.received, 0);
    __syncwarp();
    // Whoever has received lets the others go, whose memory that came from.
    cluster_goes_on();
    if (HALVES && p.squares_of_x) barrier_wait(b.factors_there, 0);
    const float* sent = (const float*)(memory + p.received);
    if (b.splits == 1) end<1>(p, sums, sent, share, before, norm, factors);
    else if (b.splits == 2) end<2>(p, sums, sent, share, before, norm, factors);
    else if (b.splits == 4) end<4>(p, sums, sent, share, before, norm, factors);
    else end<6>(p, sums, sent, share, before, norm, factors);
    __syncwarp();
    cluster_wait();
#endif
}
