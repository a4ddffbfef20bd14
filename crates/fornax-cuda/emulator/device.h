//! The emulated device's parts among themselves.

#pragma once
#include <immintrin.h>

#include <cstring>
#include <functional>
#include <vector>

#include "core.h"

/// The generation it is of, 8 or 9: by EMULATED_CAPABILITY.
int emu_capability();
/// Whether all of these bytes are of one piece of its memory.
bool emu_is_taken(const char* from, size_t bytes);
/// At most as many blocks run at once as are its multiprocessors' times eight. Hopper's kernels for some dozens of tokens
/// want one for each 64 rows.
inline unsigned emu_multiprocessors() { return emu_capability() == 9 ? 48 : 4; }

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

/// A half as the number that it is. By an instruction where there is one: of a half that goes on to double precision the
/// compiler makes a call of its library, which took half of the time of prompts that are attended to.
inline float emu_of_half(uint16_t bits) {
#ifdef __F16C__
    return _cvtsh_ss(bits);
#else
    _Float16 x;
    memcpy(&x, &bits, sizeof x);
    return float(x);
#endif
}

/// Whether what is asked for is made at once: one time in two.
bool emu_at_once();

/// What a thread has asked for and will wait for, in groups: it is made then, and sometimes at once.
template <class Work> struct EmuQueue {
    std::vector<Work> works;
    std::vector<size_t> groups; // how many there were when each was committed

    void ask(Work work) {
        if (emu_at_once()) work.make();
        else works.push_back(std::move(work));
    }
    void commit() { groups.push_back(works.size()); }
    /// Makes those of all groups that were committed but the last `left`.
    void wait_groups(size_t left) {
        if (groups.size() <= left) return;
        auto last = groups.end() - ptrdiff_t(left);
        size_t done = last[-1];
        for (size_t i = 0; i < done; i++) works[i].make();
        works.erase(works.begin(), works.begin() + ptrdiff_t(done));
        groups.erase(groups.begin(), last);
        for (size_t& until : groups) until -= done;
    }
    void wait_all() {
        for (const Work& work : works) work.make();
        works.clear();
        groups.clear();
    }
};

/// An asynchronous copy.
struct EmuCopy {
    char* to;
    const char* from;
    unsigned bytes, zeros;

    void make() const {
        memcpy(to, from, bytes);
        memset(to + bytes, 0, zeros);
    }
};

/// A product of four warps, as far as it is a warp's: sixteen rows of it.
struct EmuProduct {
    std::vector<float*> sums; // a lane's behind those of the lane before
    uint64_t left, right;     // as tensor cores are told of matrices in memory
    uint32_t words[32][4];    // in place of the left one: what each lane has of it
    bool in_registers, turned, brains, fresh;
    unsigned warp;
    const char* memory;

    void make() const;
};

/// Of the thread that runs.
struct EmuAsked {
    EmuQueue<EmuCopy> copies, stores; // to shared memory, and boxes of it to global memory
};
EmuAsked& emu_asked();
/// Of its warp.
EmuQueue<EmuProduct>& emu_products();
/// Waits until all lanes of the warp are here. What each of them brought, for the last that comes: the others wait on
/// until it has called `emu_release`, and get null.
const uint64_t* emu_gather(uint64_t word);
void emu_release();
/// Waits while these bits of what another thread or the copy engine changes are those.
void emu_sleep(const char* at, uint64_t bits, uint64_t are);
/// How many turns of others what is waited for takes: some, as drawn.
unsigned emu_turns();
void emu_linger(unsigned turns);
/// Has the copy engine do something, at once or later, on its own. It writes to a block's memory.
void emu_engine(const EmuBlock* block, std::function<void()> work);
/// The block that an address in shared memory is of: our own, or where it was mapped to one of the cluster, which must
/// not have ended.
EmuBlock* emu_block_of(uint32_t address);
/// What is at an address in shared memory, mapped or not.
inline char* emu_at(uint32_t address) { return emu_block_of(address)->memory + (address & 0xffffff); }
/// Barriers of a cluster.
void emu_cluster_arrive();
void emu_cluster_wait();

/// Does some work in a stream: at once, or whenever the graph is launched that it captures.
void emu_take(void* stream, std::function<void()> work);
/// Runs a kernel with all of its blocks.
void emu_launch(const EmuLaunch& launch, void (*call)(void**), void** with);
