//! The emulated device's parts among themselves.

#pragma once
#include <cstring>
#include <functional>

#include "core.h"

/// As many blocks as run at once are its multiprocessors' times eight.
constexpr unsigned EMU_MULTIPROCESSORS = 4;

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
