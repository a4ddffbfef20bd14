//! The emulated device's parts among themselves.

#pragma once
#include <cstring>
#include <functional>

#include "core.h"

/// As many blocks as run at once are its multiprocessors' times eight.
constexpr unsigned EMU_MULTIPROCESSORS = 4;

/// A brain float and the number that it is.
inline float emu_of_brain(uint16_t bits) {
    uint32_t word = uint32_t(bits) << 16;
    float x;
    memcpy(&x, &word, sizeof x);
    return x;
}
inline uint16_t emu_brain(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return x != x ? 0x7fff : uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/// An asynchronous copy that was asked for: it is made when somebody waits for it, and sometimes at once.
struct EmuCopy {
    char* to;
    const char* from;
    unsigned bytes, zeros;

    void make() const {
        memcpy(to, from, bytes);
        memset(to + bytes, 0, zeros);
    }
};
/// Asks for a copy, in the group that is not committed yet.
void emu_ask(const EmuCopy& copy);
void emu_commit();
/// Makes the copies of all groups that were committed but the last `left`.
void emu_wait_groups(size_t left);
/// Makes all copies that were asked for.
void emu_wait_copies();

/// Does some work in a stream: at once, or whenever the graph is launched that it captures.
void emu_take(void* stream, std::function<void()> work);
/// Runs a kernel with all of its blocks.
void emu_launch(const EmuLaunch& launch, void (*call)(void**), void** with);
