//! An instruction as its text has it, and a call of it.

#pragma once
#include <cstring>
#include <string>
#include <vector>

#include "device.h"

/// An argument where it stands in the text: an operand's number, or a number itself.
struct EmuArgument { bool is_operand; unsigned number; };

struct EmuCall;
using EmuDoes = void (*)(EmuCall&);

/// What the text of a product of four warps says of it: how many columns, of which numbers, and which operand, if any,
/// is not zero where nothing is added to.
struct EmuShape { unsigned columns = 0; bool brains = false; int fresh = -1; };

struct EmuInstruction {
    EmuDoes does;
    std::string text;
    std::vector<EmuArgument> arguments;
    EmuShape shape;
};

struct EmuCall {
    const EmuInstruction& instruction;
    EmuOperand* operands;

    unsigned count() const { return unsigned(instruction.arguments.size()); }
    uint64_t wide(unsigned i) const {
        EmuArgument argument = instruction.arguments[i];
        return argument.is_operand ? operands[argument.number].value : argument.number;
    }
    uint32_t word(unsigned i) const { return uint32_t(wide(i)); }
    float number(unsigned i) const { return as<float>(word(i)); }
    void* place(unsigned i) const { return operands[instruction.arguments[i].number].to; }
    template <class T> void put(unsigned i, T value) { memcpy(place(i), &value, sizeof value); }
    template <class To, class From> static To as(From from) {
        To to;
        memcpy(&to, &from, sizeof to);
        return to;
    }
    char* shared(unsigned i) const { return emu_now->block->memory + word(i); }
    char* global(unsigned i) const { return (char*)wide(i); }
};

/// What a warp does together: each lane shows its call, and the last to come does the work of all.
template <class Work> void emu_together(EmuCall& call, Work work) {
    const uint64_t* words = emu_gather(uint64_t(uintptr_t(&call)));
    if (!words) return;
    EmuCall* lanes[32];
    for (unsigned lane = 0; lane < 32; lane++) {
        lanes[lane] = (EmuCall*)uintptr_t(words[lane]);
        if (&lanes[lane]->instruction != &call.instruction) emu_fail("lanes of a warp are at different instructions");
    }
    work(lanes);
    emu_release();
}

/// Barriers in memory: arrivals that are missing in this phase, and bytes that are expected and did not come.
void emu_barrier_arrive(char* at, int expected);
void emu_barrier_came(char* at, int bytes);

/// What only Hopper has: by its name, or null.
EmuDoes emu_of_hopper(const std::string& name);
/// The shape of a product of four warps; of nothing else.
EmuShape emu_shape(const std::string& text);
