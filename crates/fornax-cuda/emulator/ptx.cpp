//! PTX instructions, by their text: as the "Parallel Thread Execution ISA" describes them.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "ptx.h"

namespace {

using Call = EmuCall;
using Does = EmuDoes;

uint16_t half(float x) { return Call::as<uint16_t>(_Float16(x)); }
float flushed(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? copysignf(0.0f, x) : x; }

/// Loads N numbers from shared or from global memory, after others had their turn where it may be them who are waited for.
template <unsigned N, class T, bool SHARED, bool YIELDS> void load(Call& call) {
    if (YIELDS) emu_yield();
    const char* from = SHARED ? call.shared(N) : call.global(N);
    if (uintptr_t(from) % (N * sizeof(T)) != 0) emu_fail("a load that is not aligned");
    for (unsigned i = 0; i < N; i++) {
        T value;
        memcpy(&value, from + i * sizeof(T), sizeof value);
        call.put(i, value);
    }
}
template <unsigned N, class T, bool SHARED> void store(Call& call) {
    char* to = SHARED ? call.shared(0) : call.global(0);
    if (uintptr_t(to) % (N * sizeof(T)) != 0) emu_fail("a store that is not aligned");
    for (unsigned i = 0; i < N; i++) {
        T value = T(call.wide(1 + i));
        memcpy(to + i * sizeof(T), &value, sizeof value);
    }
}
void add_wide(Call& call) {
    uint64_t sum;
    memcpy(&sum, call.global(0), 8);
    sum += call.wide(1);
    memcpy(call.global(0), &sum, 8);
}

// Asynchronous copies of 16 bytes, the last of which are zeros where fewer are said to be there.
void check_copy(const Call& call) {
    if (uintptr_t(call.global(1)) % 16 != 0 || call.word(0) % 16 != 0) emu_fail("a copy of 16 bytes that is not aligned");
}
void copy(Call& call) {
    unsigned all = call.word(2), bytes = call.count() > 3 ? call.word(3) : all;
    check_copy(call);
    emu_asked().copies.ask({call.shared(0), call.global(1), bytes, all - bytes});
}
void copy_under_policy(Call& call) {
    check_copy(call);
    emu_asked().copies.ask({call.shared(0), call.global(1), 16, 0});
}
void commit(Call&) { emu_asked().copies.commit(); }
void wait_groups(Call& call) { emu_asked().copies.wait_groups(call.word(0)); }
void wait_all(Call&) { emu_asked().copies.wait_all(); }

// Barriers of a block, and those in memory.
void meet(Call& call) { emu_meet(call.word(0), call.count() > 1 ? call.word(1) : emu_now->block->launch->threads.x); }
/// The phase is the lowest bit, which `barrier_wait` sleeps on.
struct InMemory { uint32_t phase : 1, missing : 15, all : 15, spare : 1; int32_t bytes; };
void change(char* at, unsigned arrivals, int bytes) {
    InMemory barrier;
    memcpy(&barrier, at, 8);
    if (arrivals > barrier.missing) emu_fail("more arrivals at a barrier than it waits for");
    barrier.missing -= arrivals;
    barrier.bytes += bytes;
    if (barrier.missing == 0 && barrier.bytes == 0) {
        barrier.missing = barrier.all;
        barrier.phase ^= 1;
    }
    memcpy(at, &barrier, 8);
}
void barrier_init(Call& call) {
    const unsigned count = call.word(1) & 0x7fff;
    InMemory barrier = {0, count, count, 0, 0};
    memcpy(call.shared(0), &barrier, 8);
}
void barrier_arrive(Call& call) { change(call.shared(0), 1, 0); }
void arrive_behind_copies(Call& call) {
    emu_asked().copies.wait_all();
    change(call.shared(0), 1, 0);
}
/// Sleeps until the phase is over, for kernels ask until they are told so. Now and then the answer is no, for who does
/// not ask again.
void barrier_wait(Call& call) {
    InMemory barrier;
    memcpy(&barrier, call.shared(0), 8);
    const uint32_t over = barrier.phase != call.word(1) || emu_at_once();
    if (over) emu_sleep(call.shared(0), 1, call.word(1));
    else emu_yield();
    memcpy(call.operands[0].to, &over, sizeof over);
}

// What a warp does together.

/// A product of [16, 8 * IN_WORD] with [8 * IN_WORD, 8], of which words have IN_WORD numbers each. Arguments, as the text
/// has them: d[4], a[4], b[2], c[4].
template <unsigned IN_WORD, class Sum, class Result, auto NUMBER> void multiply(Call& call) {
    emu_together(call, [](Call* const* lanes) {
        constexpr unsigned ROWS = 16, COLUMNS = 8, INNER = 8 * IN_WORD;
        Sum left[ROWS][INNER], right[INNER][COLUMNS], sums[ROWS][COLUMNS];
        // Of a row of the left matrix, and of a column of the right one, four lanes have numbers.
        for (unsigned row = 0; row < ROWS; row++)
            for (unsigned k = 0; k < INNER; k++)
                left[row][k] = NUMBER(lanes[row % 8 * 4 + k / IN_WORD % 4]->word(4 + row / 8 + k / (INNER / 2) * 2), k % IN_WORD);
        for (unsigned column = 0; column < COLUMNS; column++)
            for (unsigned k = 0; k < INNER; k++)
                right[k][column] = NUMBER(lanes[column * 4 + k / IN_WORD % 4]->word(8 + k / (INNER / 2)), k % IN_WORD);
        auto owned = [&](auto visit) {
            for (unsigned lane = 0; lane < 32; lane++)
                for (unsigned e = 0; e < 4; e++) visit(*lanes[lane], e, sums[lane / 4 + e / 2 * 8][lane % 4 * 2 + e % 2]);
        };
        owned([](Call& lane, unsigned e, Sum& sum) { sum = Call::as<Result>(lane.word(10 + e)); });
        for (unsigned row = 0; row < ROWS; row++)
            for (unsigned k = 0; k < INNER; k++)
                for (unsigned column = 0; column < COLUMNS; column++) sums[row][column] += left[row][k] * right[k][column];
        owned([](Call& lane, unsigned e, Sum& sum) { lane.put(e, Result(sum)); });
    });
}
float half_in(uint32_t word, unsigned which) { return emu_of_half(uint16_t(word >> 16 * which)); }
float brain_in(uint32_t word, unsigned which) { return emu_of_brain(uint16_t(word >> 16 * which)); }
int byte_in(uint32_t word, unsigned which) { return int8_t(word >> 8 * which); }

/// Four matrices of eight rows of eight halves, whose addresses the lanes have in turn.
template <bool TURNED> void load_matrices(Call& call) {
    emu_together(call, [](Call* const* lanes) {
        for (unsigned m = 0; m < 4; m++) {
            uint16_t rows[8][8];
            for (unsigned row = 0; row < 8; row++) {
                const uint32_t at = lanes[8 * m + row]->word(4);
                if (at % 16 != 0) emu_fail("a row of a matrix that is not aligned");
                memcpy(rows[row], emu_now->block->memory + at, sizeof rows[row]);
            }
            for (unsigned lane = 0; lane < 32; lane++) {
                const unsigned one = lane / 4, two = lane % 4 * 2;
                const uint16_t lower = TURNED ? rows[two][one] : rows[one][two], upper = TURNED ? rows[two + 1][one] : rows[one][two + 1];
                lanes[lane]->put(m, uint32_t(lower | uint32_t(upper) << 16));
            }
        }
    });
}
void turn_matrix(Call& call) {
    emu_together(call, [](Call* const* lanes) {
        for (unsigned lane = 0; lane < 32; lane++) {
            uint32_t out = 0;
            for (unsigned i = 0; i < 2; i++) {
                unsigned row = lane % 4 * 2 + i, column = lane / 4;
                out |= (lanes[row * 4 + column / 2]->word(1) >> 16 * (column % 2) & 0xffff) << 16 * i;
            }
            lanes[lane]->put(0, out);
        }
    });
}

// Numbers.
void power(Call& call) { call.put(0, flushed(exp2f(flushed(call.number(1))))); }
template <class Join> void of_halves(Call& call, Join join) {
    uint32_t a = call.word(1), b = call.word(2);
    uint32_t lower = half(join(emu_of_half(uint16_t(a)), emu_of_half(uint16_t(b)))), upper = half(join(emu_of_half(uint16_t(a >> 16)), emu_of_half(uint16_t(b >> 16))));
    call.put(0, uint32_t(lower | upper << 16));
}
void subtract_halves(Call& call) { of_halves(call, [](float a, float b) { return a - b; }); }
void multiply_halves(Call& call) { of_halves(call, [](float a, float b) { return a * b; }); }
template <uint16_t (*NARROW)(float)> void pair(Call& call) { call.put(0, uint32_t(uint32_t(NARROW(call.number(1))) << 16 | NARROW(call.number(2)))); }
template <uint16_t (*NARROW)(float)> void narrow(Call& call) { call.put(0, NARROW(call.number(1))); }
void widen(Call& call) { call.put(0, emu_of_half(uint16_t(call.word(1)))); }
void no_policy(Call& call) { call.put(0, uint64_t(0)); }
void trap(Call&) { emu_fail("a kernel gave up"); }

const std::map<std::string, Does>& known() {
    static const std::map<std::string, Does> all = {
        {"bar.sync", meet},
        {"cp.async.cg.shared.global", copy},
        {"cp.async.cg.shared.global.L2::cache_hint", copy_under_policy},
        {"cp.async.commit_group", commit},
        {"cp.async.wait_group", wait_groups},
        {"cp.async.wait_all", wait_all},
        {"cp.async.mbarrier.arrive.noinc.shared.b64", arrive_behind_copies},
        {"createpolicy.fractional.L2::evict_first.b64", no_policy},
        {"createpolicy.fractional.L2::evict_normal.b64", no_policy},
        {"mbarrier.init.shared.b64", barrier_init},
        {"mbarrier.arrive.shared.b64", barrier_arrive},
        {"mbarrier.test_wait.parity.shared.b64", barrier_wait},
        {"mbarrier.try_wait.parity.shared.b64", barrier_wait},
        {"ld.shared.u16", load<1, uint16_t, true, false>},
        {"ld.shared.u32", load<1, uint32_t, true, false>},
        {"ld.shared.v2.u64", load<2, uint64_t, true, false>},
        {"ld.shared.v4.u32", load<4, uint32_t, true, false>},
        {"st.shared.u16", store<1, uint16_t, true>},
        {"st.shared.u32", store<1, uint32_t, true>},
        {"st.shared.v2.u64", store<2, uint64_t, true>},
        {"st.shared.v4.u32", store<4, uint32_t, true>},
        {"ld.global.L1::no_allocate.L2::cache_hint.v4.u32", load<4, uint32_t, false, false>},
        {"ld.relaxed.gpu.global.u32", load<1, uint32_t, false, true>},
        {"ld.relaxed.gpu.global.u64", load<1, uint64_t, false, true>},
        {"ld.relaxed.gpu.global.v2.u32", load<2, uint32_t, false, true>},
        {"ld.relaxed.gpu.global.v2.u64", load<2, uint64_t, false, true>},
        {"ld.relaxed.gpu.global.v4.u32", load<4, uint32_t, false, true>},
        {"st.relaxed.gpu.global.u32", store<1, uint32_t, false>},
        {"st.relaxed.gpu.global.u64", store<1, uint64_t, false>},
        {"st.relaxed.gpu.global.v2.u32", store<2, uint32_t, false>},
        {"st.relaxed.gpu.global.v4.u32", store<4, uint32_t, false>},
        {"red.relaxed.gpu.global.add.u64", add_wide},
        {"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", multiply<2, double, float, half_in>},
        {"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", multiply<2, double, float, brain_in>},
        {"mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32", multiply<4, int, int, byte_in>},
        {"ldmatrix.sync.aligned.m8n8.x4.shared.b16", load_matrices<false>},
        {"ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", load_matrices<true>},
        {"movmatrix.sync.aligned.m8n8.trans.b16", turn_matrix},
        {"ex2.approx.ftz.f32", power},
        {"sub.rn.f16x2", subtract_halves},
        {"mul.rn.f16x2", multiply_halves},
        {"cvt.rn.f16x2.f32", pair<half>},
        {"cvt.rn.bf16x2.f32", pair<emu_brain>},
        {"cvt.rn.f16.f32", narrow<half>},
        {"cvt.rn.bf16.f32", narrow<emu_brain>},
        {"cvt.f32.f16", widen},
        {"trap", trap},
    };
    return all;
}

/// The instruction without its semicolon; of several in braces the one that does something.
std::string only(const std::string& text) {
    size_t begin = text[0] != '{' ? 0 : std::min(text.find("mbarrier"), text.find("wgmma"));
    if (begin == std::string::npos) emu_fail(("instructions that are not known: " + text).c_str());
    return text.substr(begin, text.find(';', begin) - begin);
}

} // namespace

void emu_barrier_arrive(char* at, int expected) { change(at, 1, expected); }
void emu_barrier_came(char* at, int bytes) { change(at, 0, -bytes); }

const EmuInstruction* emu_find(const char* text) {
    static std::mutex lock;
    static std::map<std::string, EmuInstruction*> found;
    std::lock_guard<std::mutex> held(lock);
    EmuInstruction*& instruction = found[text];
    if (instruction) return instruction;
    const std::string whole = only(text), name = whole.substr(0, whole.find(' '));
    auto entry = known().find(name);
    const Does does = entry != known().end() ? entry->second : emu_of_hopper(name);
    if (!does) emu_fail(("an instruction that is not known: " + whole).c_str());
    instruction = new EmuInstruction{does, text, {}, emu_shape(text)};
    for (size_t at = name.size(); at < whole.size(); at++) {
        bool operand = whole[at] == '%';
        at += operand;
        if (!isdigit((unsigned char)whole[at])) continue;
        size_t length = 0;
        unsigned number = unsigned(std::stoul(whole.substr(at), &length));
        at += length - 1;
        instruction->arguments.push_back({operand, number});
    }
    return instruction;
}

void emu_run(const EmuInstruction* instruction, EmuOperand* operands) {
    Call call{*instruction, operands};
    instruction->does(call);
}
