//! Products by the tensor cores of Hopper: 64 rows with TOKENS tokens, 16 columns at a time, which go on while
//! other instructions do. Tokens lie in shared memory, 128 bytes of each side by side and swizzled, as the copy
//! engine brings them; rows do too, or are in registers. Must not know whose rows these are.

/// Columns that lie side by side in shared memory: 128 bytes of each row.
#define SLAB 64
/// Bytes of all tokens over so many columns.
#define TOKENS_OF_SLAB (TOKENS * 128)

/// A tensor as the copy engine is told of it.
struct __align__(64) TensorMap { u64 words[16]; };

#define FOUR(c, i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
// The sums of a product as operands of an instruction, their places, and the numbers of five operands behind
// them, by its tokens.
#define SUMS_16(c) FOUR(c, 0), FOUR(c, 1)
#define SUMS_32(c) SUMS_16(c), FOUR(c, 2), FOUR(c, 3)
#define SUMS_48(c) SUMS_32(c), FOUR(c, 4), FOUR(c, 5)
#define SUMS_64(c) SUMS_48(c), FOUR(c, 6), FOUR(c, 7)
#define SUMS_80(c) SUMS_64(c), FOUR(c, 8), FOUR(c, 9)
#define SUMS_96(c) SUMS_80(c), FOUR(c, 10), FOUR(c, 11)
#define SUMS_112(c) SUMS_96(c), FOUR(c, 12), FOUR(c, 13)
#define SUMS_128(c) SUMS_112(c), FOUR(c, 14), FOUR(c, 15)
#define SUMS_144(c) SUMS_128(c), FOUR(c, 16), FOUR(c, 17)
#define SUMS_160(c) SUMS_144(c), FOUR(c, 18), FOUR(c, 19)
#define SUMS_176(c) SUMS_160(c), FOUR(c, 20), FOUR(c, 21)
#define SUMS_192(c) SUMS_176(c), FOUR(c, 22), FOUR(c, 23)
#define SUMS_208(c) SUMS_192(c), FOUR(c, 24), FOUR(c, 25)
#define SUMS_224(c) SUMS_208(c), FOUR(c, 26), FOUR(c, 27)
#define SUMS_240(c) SUMS_224(c), FOUR(c, 28), FOUR(c, 29)
#define SUMS_256(c) SUMS_240(c), FOUR(c, 30), FOUR(c, 31)
#define PLACES_16 "%0,%1,%2,%3,%4,%5,%6,%7"
#define PLACES_32 PLACES_16 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define PLACES_48 PLACES_32 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define PLACES_64 PLACES_48 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define PLACES_80 PLACES_64 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define PLACES_96 PLACES_80 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define PLACES_112 PLACES_96 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define PLACES_128 PLACES_112 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define PLACES_144 PLACES_128 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define PLACES_160 PLACES_144 ",%72,%73,%74,%75,%76,%77,%78,%79"
#define PLACES_176 PLACES_160 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define PLACES_192 PLACES_176 ",%88,%89,%90,%91,%92,%93,%94,%95"
#define PLACES_208 PLACES_192 ",%96,%97,%98,%99,%100,%101,%102,%103"
#define PLACES_224 PLACES_208 ",%104,%105,%106,%107,%108,%109,%110,%111"
#define PLACES_240 PLACES_224 ",%112,%113,%114,%115,%116,%117,%118,%119"
#define PLACES_256 PLACES_240 ",%120,%121,%122,%123,%124,%125,%126,%127"
#define BEHIND_16(f) f(8, 9, 10, 11, 12)
#define BEHIND_32(f) f(16, 17, 18, 19, 20)
#define BEHIND_48(f) f(24, 25, 26, 27, 28)
#define BEHIND_64(f) f(32, 33, 34, 35, 36)
#define BEHIND_80(f) f(40, 41, 42, 43, 44)
#define BEHIND_96(f) f(48, 49, 50, 51, 52)
#define BEHIND_112(f) f(56, 57, 58, 59, 60)
#define BEHIND_128(f) f(64, 65, 66, 67, 68)
#define BEHIND_144(f) f(72, 73, 74, 75, 76)
#define BEHIND_160(f) f(80, 81, 82, 83, 84)
#define BEHIND_176(f) f(88, 89, 90, 91, 92)
#define BEHIND_192(f) f(96, 97, 98, 99, 100)
#define BEHIND_208(f) f(104, 105, 106, 107, 108)
#define BEHIND_224(f) f(112, 113, 114, 115, 116)
#define BEHIND_240(f) f(120, 121, 122, 123, 124)
#define BEHIND_256(f) f(128, 129, 130, 131, 132)
#define IN_SHARED(a, b, c, d, e) "%" #a ", %" #b ", 1, 1, 1, 0, 0;"
#define IN_REGISTERS(a, b, c, d, e) "{%" #a ",%" #b ",%" #c ",%" #d "}, %" #e ", 1, 1, 1, 0;"
#define PASTED(what, n) what##_##n
#define MULTIPLY_OF(n, places, behind) "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" places "}, " behind
// One macro more each, so that TOKENS is a number by the time it is pasted.
#define OF(what, n) PASTED(what, n)
#define MULTIPLY(n, places, behind) MULTIPLY_OF(n, places, behind)

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/// Where a matrix in shared memory is, as tensor cores are told: 16 bytes further on is one more. Who goes along
/// one adds to this, for to find it anew for each instruction takes longer than some of these do.
DEVICE u32 matrix_at(u32 address) { return 1u << 16 | (address & 0x3ffff) / 16; }
/// All that they are told of it: its rows are 128 bytes, swizzled, and 1,024 from eight of them to the next eight.
DEVICE u64 described(u32 matrix) { return (u64)(1u << 30 | 1024 / 16) << 32 | matrix; }

/// Adds the products of 64 rows with all tokens over 16 columns, of matrices in shared memory: one instruction, for with
/// two, of 128 and of 32 tokens, a step of 130 took 2 % longer.
DEVICE void multiply(float (&c)[TOKENS / 8][4], u32 rows, u32 tokens) {
    asm volatile(MULTIPLY(TOKENS, OF(PLACES, TOKENS), OF(BEHIND, TOKENS)(IN_SHARED)) : OF(SUMS, TOKENS)(c) : "l"(described(rows)), "l"(described(tokens)));
}

/// The same of rows in registers, as one `mma` of 16 rows and 16 columns a warp would have them.
DEVICE void multiply(float (&c)[TOKENS / 8][4], const u32 (&rows)[4], u32 tokens) {
    asm volatile(MULTIPLY(TOKENS, OF(PLACES, TOKENS), OF(BEHIND, TOKENS)(IN_REGISTERS)) : OF(SUMS, TOKENS)(c)
                 : "r"(rows[0]), "r"(rows[1]), "r"(rows[2]), "r"(rows[3]), "l"(described(tokens)));
}

/// Before products of what was just written, to registers or to shared memory.
DEVICE void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
/// Those since they began are a group.
DEVICE void products_end() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Waits until no more groups than the last `most` go on.
template <u32 most> DEVICE void products_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(most) : "memory"); }

/// Nothing that is computed with these registers moves over this point: the compiler does not know that
/// products are written to them later than they are asked for.
DEVICE void hold(float (&c)[TOKENS / 8][4]) {
#pragma unroll
    for (u32 i = 0; i < TOKENS / 8; i++) asm volatile("" : FOUR(c, i)::"memory");
}

/// A place in a ring of stages: which one, and which of its turns.
struct Stage {
    u32 slot, phase;
    __device__ __forceinline__ void next(u32 stages) {
        if (++slot == stages) { slot = 0; phase ^= 1; }
    }
};

/// Before anybody else meets barriers that this thread has made: the copy engine, or another block of a cluster.
DEVICE void show_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
DEVICE void expect_bytes(u32 barrier, u32 bytes) {
    asm volatile("{ .reg .b64 t; mbarrier.arrive.expect_tx.shared.b64 t, [%0], %1; }" ::"r"(barrier), "r"(bytes) : "memory");
}
/// Rows of a matrix in slabs of columns.
DEVICE void fetch(u32 to, const TensorMap& map, u32 row, u32 part, u32 slab, u32 barrier, u64 policy) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(to),
                 "l"(&map), "r"(0), "r"(row), "r"(part), "r"(slab), "r"(barrier), "l"(policy) : "memory");
}
/// Bytes as they lie.
DEVICE void fetch(u32 to, const u8* from, u32 bytes, u32 barrier, u64 policy) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to), "l"(from), "r"(bytes),
                 "r"(barrier), "l"(policy) : "memory");
}
/// Tokens from one of them on, likewise in slabs.
DEVICE void fetch(u32 to, const TensorMap& map, u32 token, u32 slab, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to), "l"(&map),
                 "r"(0), "r"(token), "r"(slab), "r"(barrier) : "memory");
}
/// Rows of a matrix to both blocks of a cluster of two, at the same place and barrier of each.
DEVICE void fetch_for_both(u32 to, const TensorMap& map, u32 row, u32 slab, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
                 "l"(&map), "r"(0), "r"(row), "r"(slab), "r"(barrier), "h"((u16)3) : "memory");
}
/// The other way, for a group of this thread's copies: tokens beyond the last one are left out.
DEVICE void put(const TensorMap& map, u32 token, u32 slab, u32 from) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(&map), "r"(0), "r"(token), "r"(slab), "r"(from)
                 : "memory");
}

/// Where our place in shared memory is in another block of the cluster.
DEVICE u32 of_peer(u32 ours, u32 rank) {
    u32 at;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(ours), "r"(rank));
    return at;
}
/// Arrives at that barrier of a block of the cluster. With `release.cluster` the compiler has a thread wait for all of its
/// memory here; `relaxed.cluster` says as little as this does, but compilers before CUDA 12.8 do not know it.
DEVICE void arrive_at(u32 ours, u32 rank) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(of_peer(ours, rank)) : "memory");
}
#endif
