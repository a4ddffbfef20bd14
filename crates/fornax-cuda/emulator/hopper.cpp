//! What Hopper has beside other devices: clusters, a copy engine, and tensor cores that four warps use together and that
//! read shared memory by themselves. As the "Parallel Thread Execution ISA" describes them.
//!
//! The copy engine and tensor cores do what they were asked for at any time until somebody has waited for it: at once,
//! between turns of other threads, or as late as that. So who writes to what is still read, or reads what has not come,
//! finds it out here sooner or later.

#include <array>
#include <cstring>
#include <map>
#include <string>

#include "ptx.h"

namespace {

using Call = EmuCall;
using Does = EmuDoes;

/// What the host told of a tensor, as it lies in a map. Of words that are one behind the other no stride is told.
struct Tensor {
    char* at;
    uint32_t dimensions, word, swizzled, spare;
    uint64_t numbers[4], strides[4];
    uint32_t box[4];
};
static_assert(sizeof(Tensor) <= 128, "as long as a map");

constexpr unsigned ROW = 128; // bytes of a swizzled row

/// Where a byte of swizzled rows lies: 16 bytes of each of eight rows in other places.
uint32_t swizzled(uint32_t at) { return at ^ (at / ROW % 8 * 16); }

/// Goes through a box from `first` on, word by word, until its last dimension: calls with where each lies in the tensor,
/// null outside of it, and its place in the box.
template <class Visit> void each_row(const Tensor& tensor, const uint32_t* first, Visit visit) {
    uint32_t rows = 1;
    for (uint32_t d = 1; d < tensor.dimensions; d++) rows *= tensor.box[d];
    for (uint32_t row = 0; row < rows; row++) {
        uint32_t left = row;
        bool there = true;
        char* at = tensor.at + uint64_t(first[0]) * tensor.word;
        for (uint32_t d = 1; d < tensor.dimensions; d++) {
            uint64_t index = uint64_t(first[d]) + left % tensor.box[d];
            left /= tensor.box[d];
            there &= index < tensor.numbers[d];
            at += index * tensor.strides[d];
        }
        uint64_t inside = first[0] < tensor.numbers[0] ? tensor.numbers[0] - first[0] : 0;
        uint64_t words = inside < tensor.box[0] ? inside : tensor.box[0];
        visit(at, there ? words * tensor.word : 0, row * tensor.box[0] * tensor.word);
    }
}
uint32_t bytes_of(const Tensor& tensor) {
    uint32_t bytes = tensor.word;
    for (uint32_t d = 0; d < tensor.dimensions; d++) bytes *= tensor.box[d];
    return bytes;
}
/// The tensor of a map, and where its box begins: arguments behind the map.
Tensor tensor_of(const Call& call, unsigned map, uint32_t* first) {
    Tensor tensor;
    memcpy(&tensor, call.global(map), sizeof tensor);
    for (uint32_t d = 0; d < tensor.dimensions; d++) first[d] = call.word(map + 1 + d);
    return tensor;
}
void check(bool aligned) {
    if (!aligned) emu_fail("a copy by the engine that is not aligned");
}

/// Brings a box to a place of a block, and counts its bytes at a barrier there.
void bring_box(const Tensor& tensor, const uint32_t* first, const EmuBlock* block, uint32_t to, uint32_t barrier) {
    check(to % (tensor.swizzled ? 1024 : 128) == 0);
    const uint32_t begin[4] = {first[0], first[1], first[2], first[3]};
    emu_engine(block, [=] {
        each_row(tensor, begin, [&](const char* from, uint64_t inside, uint32_t place) {
            // By 16 bytes, which lie together everywhere; whether all of them are in the tensor or not.
            for (uint32_t i = 0, bytes = tensor.box[0] * tensor.word; i < bytes; i += 16) {
                const uint32_t at = to + place + i, here = bytes - i < 16 ? bytes - i : 16;
                const uint64_t there = inside <= i ? 0 : inside - i < here ? inside - i : here;
                char* sixteen = block->memory + (tensor.swizzled ? swizzled(at) : at);
                memcpy(sixteen, from + i, there);
                memset(sixteen + there, 0, here - there);
            }
        });
        emu_barrier_came(block->memory + barrier, int(bytes_of(tensor)));
    });
}
template <unsigned DIMENSIONS> void fetch_box(Call& call) {
    uint32_t first[4] = {};
    const Tensor tensor = tensor_of(call, 1, first);
    if (tensor.dimensions != DIMENSIONS) emu_fail("a box of other dimensions than its tensor");
    bring_box(tensor, first, emu_block_of(call.word(0)), call.word(0) & 0xffffff, call.word(2 + DIMENSIONS) & 0xffffff);
}
/// To all blocks of a cluster whose bits are set, at the same place and barrier of each.
void fetch_box_for_several(Call& call) {
    uint32_t first[4] = {};
    const Tensor tensor = tensor_of(call, 1, first);
    if (tensor.dimensions != 3) emu_fail("a box of other dimensions than its tensor");
    for (uint32_t rank = 0, blocks = call.word(6) & 0xffff; blocks > 0; rank++, blocks >>= 1)
        if (blocks & 1) bring_box(tensor, first, emu_block_of((rank + 1) << 24), call.word(0), call.word(5));
}
void put_box(Call& call) {
    uint32_t first[4] = {};
    const Tensor tensor = tensor_of(call, 0, first);
    if (tensor.dimensions != 3 || !tensor.swizzled) emu_fail("a box of other dimensions than its tensor");
    const uint32_t from = call.word(4);
    check(from % 1024 == 0);
    const char* memory = emu_now->block->memory;
    auto& stores = emu_asked().stores;
    each_row(tensor, first, [&](char* to, uint64_t inside, uint32_t place) {
        for (uint32_t i = 0; i < inside; i += 16) stores.ask({to + i, memory + swizzled(from + place + i), 16, 0});
    });
}
void commit_stores(Call&) { emu_asked().stores.commit(); }
void wait_stores(Call& call) {
    emu_linger(emu_turns());
    emu_asked().stores.wait_groups(call.word(0));
}

/// Bytes as they lie: to, from, how many, barrier. From global memory, or from our shared memory to another block's.
template <bool FROM_SHARED> void fetch(Call& call) {
    const EmuBlock* block = emu_block_of(call.word(0));
    const uint32_t to = call.word(0) & 0xffffff, bytes = call.word(2), barrier = call.word(3) & 0xffffff;
    const char* from = FROM_SHARED ? call.shared(1) : call.global(1);
    check(to % 16 == 0 && uintptr_t(from) % 16 == 0 && bytes % 16 == 0);
    if (emu_block_of(call.word(3)) != block) emu_fail("a barrier of another block than its bytes");
    emu_engine(block, [=] {
        memcpy(block->memory + to, from, bytes);
        emu_barrier_came(block->memory + barrier, int(bytes));
    });
}
/// Words to another block, and counts their bytes at a barrier there: to, words, barrier.
template <unsigned WORDS> void tell(Call& call) {
    const EmuBlock* block = emu_block_of(call.word(0));
    const uint32_t to = call.word(0) & 0xffffff, barrier = call.word(1 + WORDS) & 0xffffff;
    check(to % (4 * WORDS) == 0);
    if (emu_block_of(call.word(1 + WORDS)) != block) emu_fail("a barrier of another block than its bytes");
    std::array<uint32_t, WORDS> words;
    for (unsigned i = 0; i < WORDS; i++) words[i] = call.word(1 + i);
    emu_engine(block, [=] {
        memcpy(block->memory + to, words.data(), 4 * WORDS);
        emu_barrier_came(block->memory + barrier, 4 * WORDS);
    });
}
void write_to_block(Call& call) {
    const uint32_t word = call.word(1);
    memcpy(emu_at(call.word(0)), &word, 4);
}

// Barriers and places of a cluster.
void arrive_expecting(Call& call) { emu_barrier_arrive(call.shared(0), int(call.word(1))); }
void arrive_there(Call& call) { emu_barrier_arrive(emu_at(call.word(0)), 0); }
void map_address(Call& call) { call.put(0, (call.word(1) & 0xffffff) | (call.word(2) + 1) << 24); }
void special_register(Call& call) {
    const EmuBlock& block = *emu_now->block;
    const std::string& text = call.instruction.text;
    if (text.find("%cluster_ctarank") != std::string::npos) call.put(0, uint32_t(block.rank));
    else if (text.find("%cluster_nctarank") != std::string::npos) call.put(0, uint32_t(block.launch->cluster));
    else emu_fail(("a register that is not known: " + text).c_str());
}
void cluster_arrive(Call&) { emu_cluster_arrive(); }
void cluster_wait(Call&) { emu_cluster_wait(); }
/// What is brought near is there already, but has to be somewhere: from, how many bytes.
void bring_near(Call& call) {
    const char* from = call.global(0);
    const uint32_t bytes = call.word(1);
    check(uintptr_t(from) % 16 == 0 && bytes % 16 == 0 && bytes > 0);
    if (!emu_is_taken(from, bytes)) emu_fail("what is brought near is nobody's memory");
}
/// What changes nothing here: launches run one after the other, and every thread sees what others wrote.
void nothing(Call&) {}

/// Asks for a product of 64 rows, of which a warp has 16: sums, a matrix in memory or four words of each thread, the other
/// matrix.
void multiply(Call& call) {
    emu_together(call, [](Call* const* lanes) {
        const Call& first = *lanes[0];
        const EmuShape& shape = first.instruction.shape;
        const unsigned sums = shape.columns / 2, behind = first.count() - sums;
        EmuProduct product;
        // A matrix and three or four numbers behind it, a predicate for one of them; or words, a matrix and four numbers.
        product.in_registers = behind == 9;
        product.turned = first.word(first.count() - 1) == 1;
        product.brains = shape.brains;
        product.warp = emu_now->index.x / 32 % 4;
        product.memory = emu_now->block->memory;
        auto left = [&](const Call& lane) { return product.in_registers ? 0 : lane.wide(sums); };
        auto right = [&](const Call& lane) { return lane.wide(sums + (product.in_registers ? 4 : 1)); };
        auto fresh = [&](const Call& lane) { return shape.fresh >= 0 && lane.operands[shape.fresh].value != 0; };
        product.left = left(first), product.right = right(first), product.fresh = fresh(first);
        product.sums.reserve(32 * sums);
        for (unsigned lane = 0; lane < 32; lane++) {
            const Call& own = *lanes[lane];
            if (left(own) != product.left || right(own) != product.right || fresh(own) != product.fresh) emu_fail("a warp's threads ask for different products");
            for (unsigned i = 0; i < sums; i++) product.sums.push_back((float*)own.place(i));
            for (unsigned i = 0; i < 4; i++) product.words[lane][i] = product.in_registers ? own.word(sums + i) : 0;
        }
        // One after the other, for they add to the same sums.
        auto& products = emu_products().works;
        if (products.empty() && emu_at_once()) product.make();
        else products.push_back(std::move(product));
    });
}
/// One thread's word is the warp's, for all of it has asked.
void commit_products(Call&) {
    if (emu_now->index.x % 32 == 0) emu_products().commit();
}
/// A warp waits as one.
void wait_products(Call& call) {
    emu_linger(unsigned(emu_exchange(emu_turns())[0]));
    emu_together(call, [](Call* const* lanes) { emu_products().wait_groups(lanes[0]->word(0)); });
}

const std::map<std::string, Does>& known() {
    static const std::map<std::string, Does> all = {
        {"barrier.cluster.arrive.aligned", cluster_arrive},
        {"barrier.cluster.arrive.relaxed.aligned", cluster_arrive},
        {"barrier.cluster.wait.aligned", cluster_wait},
        {"cp.async.bulk.commit_group", commit_stores},
        {"prefetch.global.L2", nothing},
        {"cp.async.bulk.prefetch.L2.global", bring_near},
        {"cp.async.bulk.prefetch.tensor.2d.L2.global.tile", nothing},
        {"cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint", fetch<false>},
        {"cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes", fetch<true>},
        {"cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint", fetch_box<2>},
        {"cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes", fetch_box<3>},
        {"cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint", fetch_box<4>},
        {"cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster", fetch_box_for_several},
        {"cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group", put_box},
        {"cp.async.bulk.wait_group", wait_stores},
        {"cp.async.bulk.wait_group.read", wait_stores},
        {"fence.mbarrier_init.release.cluster", nothing},
        {"fence.proxy.async.shared::cta", nothing},
        {"fence.proxy.tensormap::generic.acquire.sys", nothing},
        {"griddepcontrol.launch_dependents", nothing},
        {"griddepcontrol.wait", nothing},
        {"mapa.shared::cluster.u32", map_address},
        {"mbarrier.arrive.expect_tx.shared.b64", arrive_expecting},
        {"mbarrier.arrive.shared::cluster.b64", arrive_there},
        {"mov.u32", special_register},
        {"prefetch.tensormap", nothing},
        {"setmaxnreg.dec.sync.aligned.u32", nothing},
        {"setmaxnreg.inc.sync.aligned.u32", nothing},
        {"st.async.shared::cluster.mbarrier::complete_tx::bytes.b32", tell<1>},
        {"st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32", tell<2>},
        {"st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32", tell<4>},
        {"st.shared::cluster.f32", write_to_block},
        {"wgmma.commit_group.sync.aligned", commit_products},
        {"wgmma.fence.sync.aligned", nothing},
        {"wgmma.wait_group.sync.aligned", wait_products},
    };
    return all;
}

/// A matrix in swizzled shared memory, as tensor cores are told of it: where it is, and how far apart 64 numbers of a row
/// and eight rows are.
struct Matrix {
    uint32_t at, columns, rows;

    explicit Matrix(uint64_t told) : at(uint32_t(told & 0xffff) * 16), columns(uint32_t(told >> 16 & 0x3fff) * 16), rows(uint32_t(told >> 32 & 0x3fff) * 16) {
        if (told >> 62 != 1) emu_fail("a matrix of another kind than those of swizzled rows");
        // They are told 18 bits of where it is. Matrices lie in what a launch has asked for.
        if (at < EMU_DYNAMIC) at += 1 << 18;
    }
    /// Sixteen numbers of a row, as bits.
    void row(const char* memory, uint32_t row, uint16_t* to) const {
        uint32_t from = at + row / 8 * rows + row % 8 * ROW;
        memcpy(to, memory + swizzled(from), 16);
        memcpy(to + 8, memory + swizzled(from + 16), 16);
    }
    /// The same of a matrix whose rows are columns here.
    void column(const char* memory, uint32_t column, uint16_t* to) const {
        for (uint32_t k = 0; k < 16; k++) {
            uint32_t from = at + column / 64 * columns + k / 8 * rows + k % 8 * ROW + column % 64 * 2;
            memcpy(to + k, memory + swizzled(from), 2);
        }
    }
};

double number_of(uint16_t bits, bool brain) { return brain ? emu_of_brain(bits) : emu_of_half(bits); }

} // namespace

EmuShape emu_shape(const std::string& text) {
    EmuShape shape;
    if (text.find("wgmma.mma_async.") == std::string::npos) return shape;
    shape.columns = unsigned(std::stoul(text.substr(text.find(".m64n") + 5)));
    shape.brains = text.find("bf16") != std::string::npos;
    if (size_t at = text.find("setp.eq.u32 p, %"); at != std::string::npos) shape.fresh = std::stoi(text.substr(at + 16));
    return shape;
}

/// A lane has two rows that are eight apart, and of each eight columns two; its sums come by eight columns, two of the
/// first row and two of the second.
void EmuProduct::make() const {
    constexpr unsigned ROWS = 16, INNER = 16, EIGHT = 8;
    double rows[ROWS][INNER];
    for (unsigned row = 0; row < ROWS; row++) {
        uint16_t bits[INNER];
        if (in_registers)
            for (unsigned k = 0; k < INNER; k++) bits[k] = uint16_t(words[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2] >> 16 * (k % 2));
        else Matrix(left).row(memory, warp * ROWS + row, bits);
        for (unsigned k = 0; k < INNER; k++) rows[row][k] = number_of(bits[k], brains);
    }
    const Matrix other(right);
    const size_t own = sums.size() / 32;
    for (unsigned eight = 0; eight < own / 4; eight++) {
        double columns[INNER][EIGHT], totals[ROWS][EIGHT];
        for (unsigned column = 0; column < EIGHT; column++) {
            uint16_t bits[INNER];
            if (turned) other.column(memory, eight * EIGHT + column, bits);
            else other.row(memory, eight * EIGHT + column, bits);
            for (unsigned k = 0; k < INNER; k++) columns[k][column] = number_of(bits[k], brains);
        }
        auto sum = [&](unsigned row, unsigned column) -> float& { return *sums[(row % 8 * 4 + column / 2) * own + 4 * eight + 2 * (row / 8) + column % 2]; };
        for (unsigned row = 0; row < ROWS; row++)
            for (unsigned column = 0; column < EIGHT; column++) totals[row][column] = fresh ? 0.0 : sum(row, column);
        for (unsigned row = 0; row < ROWS; row++)
            for (unsigned k = 0; k < INNER; k++)
                for (unsigned column = 0; column < EIGHT; column++) totals[row][column] += rows[row][k] * columns[k][column];
        for (unsigned row = 0; row < ROWS; row++)
            for (unsigned column = 0; column < EIGHT; column++) sum(row, column) = float(totals[row][column]);
    }
}

EmuDoes emu_of_hopper(const std::string& name) {
    if (name.rfind("wgmma.mma_async.", 0) == 0) return multiply;
    auto entry = known().find(name);
    return entry == known().end() ? nullptr : entry->second;
}

extern "C" {

/// Numbers and a box of each dimension, and how many bytes lie between two of each but the innermost.
int cuTensorMapEncodeTiled(void* map, int kind, unsigned dimensions, char* at, const uint64_t* numbers, const uint64_t* strides, const uint32_t* box,
                           const uint32_t*, int, int swizzle, int, int) {
    enum { INT64 = 5, BFLOAT16 = 9, SWIZZLE_NONE = 0, SWIZZLE_128B = 3 };
    const bool is_known = (kind == BFLOAT16 && swizzle == SWIZZLE_128B) || (kind == INT64 && swizzle == SWIZZLE_NONE);
    if (!is_known || dimensions < 2 || dimensions > 4 || uintptr_t(at) % 16 != 0) return 1;
    Tensor tensor = {at, dimensions, kind == INT64 ? 8u : 2u, swizzle == SWIZZLE_128B, 0, {}, {}, {}};
    for (unsigned d = 0; d < dimensions; d++) {
        tensor.numbers[d] = numbers[d];
        tensor.box[d] = box[d];
        if (d > 0) tensor.strides[d] = strides[d - 1];
        if (box[d] == 0 || box[d] > 256 || (d > 0 && strides[d - 1] % 16 != 0)) return 1;
    }
    if (tensor.swizzled && box[0] * tensor.word > ROW) return 1;
    memset(map, 0, 128);
    memcpy(map, &tensor, sizeof tensor);
    return 0;
}
}
