//! The emulated device's inside, as kernels see it: its threads, who are fibers, and how they meet.

#pragma once
#include <cstddef>
#include <cstdint>

struct EmuThree { unsigned x, y, z; };

struct EmuLaunch {
    EmuThree grid, threads;
    size_t dynamic;   // bytes of shared memory that the launch asks for
    unsigned cluster; // blocks that run together and reach one another's memory
};

/// Where in a block's shared memory what the launch asks for begins, behind what kernels declare.
constexpr size_t EMU_DYNAMIC = 64 << 10;

struct EmuBlock {
    const EmuLaunch* launch;
    EmuThree index;
    char* memory; // shared: what kernels reserve, then what the launch asks for
    EmuBlock** peers; // of its cluster, itself among them
    unsigned rank;    // which of them it is
    bool ended;
};

struct EmuThread {
    EmuThree index;
    EmuBlock* block;
};

struct EmuOperand {
    void* to;       // where a result goes, null for what is only read
    uint64_t value; // what was there before
};

struct EmuInstruction;

extern "C" {
extern thread_local EmuThread* emu_now;
/// Lets all others go on.
void emu_yield();
/// Waits until all lanes of the warp are here; what each of them brought.
const uint64_t* emu_exchange(uint64_t word);
/// Waits until so many threads of the block are at this barrier.
void emu_meet(unsigned barrier, unsigned threads);
/// An instruction by its text, which ends the program where it is not known.
const EmuInstruction* emu_find(const char* text);
void emu_run(const EmuInstruction* instruction, EmuOperand* operands);
/// Ends the program.
[[noreturn]] void emu_fail(const char* why);
}
