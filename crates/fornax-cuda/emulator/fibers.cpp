//! Threads of a launch as fibers of one thread of the host: each runs until it waits for others. In which order they
//! do, and when copies are made that nobody waited for yet, is drawn from one seed, so that most of what lacks a
//! barrier or a wait goes wrong somewhere, and always there. Between two meetings a thread is alone: what must be atomic
//! and is not goes unseen.

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <vector>

#include "device.h"

#ifndef __x86_64__
#error "fibers are switched by instructions of x86-64"
#endif

/// Leaves on the stack what a call must keep, and where that ends in `*left`; goes on with what was left at `other`.
extern "C" void emu_switch(void** left, void* other);
asm(R"(
.text
.globl emu_switch
.type emu_switch, @function
emu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");

thread_local EmuThread* emu_now = nullptr;

namespace {

constexpr size_t STACK = 64 << 10;
/// The last word of a stack, which nobody has come to.
constexpr uint64_t UNTOUCHED = 0x5afe5afe5afe5afe;
/// From a stack to the next: not a multiple of anything large, for caches have little room for what lies so apart.
constexpr size_t APART = STACK + (4 << 10) + 320;
/// Meetings of a warp in a row before others have their turn.
constexpr unsigned TURNS = 1024;
constexpr unsigned LANES = 32;
/// Rounds of a block in a row, at most, before others have theirs. Few threads at a time stay in the cache.
constexpr unsigned ROUNDS = 64;
/// One time in so many a cluster begins though others get further, and of so many launches all of one's begin at once. Odd,
/// so that every second of these begins with its last block, as every second launch does.
constexpr unsigned EARLY = 7;
/// Turns in which nobody gets further, after which nobody will.
constexpr unsigned PATIENCE = 1 << 22;

/// Where some wait for one another: how many are here, and how often all have been.
struct Meeting { unsigned here = 0; uint64_t past = 0; };

struct Warp : Meeting {
    unsigned lanes = LANES; // that have not ended
    bool gathers = false;   // whether the last to come has something to do
    EmuQueue<EmuProduct> products;
    uint64_t words[2][LANES]; // of this turn and of the one before, which some still read
};

struct Block;

struct Unmap {
    size_t bytes = 0;
    void operator()(char* stacks) const { munmap(stacks, bytes); }
};
typedef std::unique_ptr<char, Unmap> Stacks;

/// What a switch looks at comes first, in one line of the cache.
struct alignas(64) Fiber {
    // What it waits for: that these bits are no longer those. Null where it only lets others go on.
    const uint64_t* past = nullptr;
    uint64_t bits = 0, turn = 0;
    void* left = nullptr; // where on its stack it was left
    bool ended = true;
    EmuThread thread;
    Block* block;
    Warp* warp;
    char* stack;
    uint64_t of_cluster = 0; // the turn of its cluster in which it arrived
    EmuAsked asked;
};

/// Blocks that run together.
struct Cluster : Meeting {
    std::vector<EmuBlock*> blocks;
    unsigned alive = 0; // threads of all of them
};

struct Block {
    EmuBlock shown;
    Cluster* cluster;
    std::vector<char> memory;
    std::vector<Fiber> fibers;
    Stacks stacks; // of the fibers
    std::vector<Warp> warps;
    Meeting barriers[16];
    unsigned alive = 0;
    unsigned asleep = 0; // rounds until it begins: blocks of a cluster are not in step
};

/// Blocks that no launch has, with their memory and stacks: threads of the host that launch come and go, and what each
/// would ask of the system, and give back when it ends, took a tenth of all time.
std::mutex of_spare;
std::vector<std::unique_ptr<Block>> spare;

thread_local Fiber* running = nullptr;
thread_local void* host = nullptr;
thread_local void (*kernel)(void**) = nullptr;
thread_local void** arguments = nullptr;
thread_local std::minstd_rand chance; // begins anew with each launch
thread_local unsigned launches = 0;

/// What the copy engine has still to do, and whose memory it writes to.
struct Task { const EmuBlock* block; std::function<void()> work; };
thread_local std::vector<Task> tasks;

/// Has the copy engine do some of that; says whether it did any.
bool run_engine() {
    bool any = false;
    for (size_t i = tasks.size(); i-- > 0;) {
        if (chance() % 2) continue;
        std::function<void()> work = std::move(tasks[i].work);
        tasks.erase(tasks.begin() + ptrdiff_t(i));
        work();
        any = true;
    }
    return any;
}

/// Numbers from 0 to `count` in some order: from one of them on, upwards or downwards.
struct Order {
    unsigned count = 0, next = 0, step = 0;

    Order() = default;
    explicit Order(unsigned count) : count(count), next(unsigned(chance() % count)), step(chance() % 2 ? 1 : count - 1) {}
    unsigned take() {
        const unsigned taken = next;
        next += step;
        if (next >= count) next -= count;
        return taken;
    }
};

/// A warp's turn: its lanes one after the other, each until it waits.
struct Turn {
    Fiber* lanes = nullptr;
    Order order;
    unsigned left = 0;
    bool met = false; // whether one came to a meeting or ended, so that others may go on
    bool looked = false; // whether one looks for what another block may have to write first

    /// The next of them that does not wait, null behind the last.
    Fiber* next() {
        while (left > 0) {
            left--;
            Fiber& fiber = lanes[order.take()];
            if (!fiber.ended && !(fiber.past && (*fiber.past & fiber.bits) == fiber.turn)) return &fiber;
        }
        return nullptr;
    }
};
thread_local Turn turn;

/// Leaves what is here at `*here`, for a lane to go on.
void go_on(void** here, Fiber& lane) {
    running = &lane;
    emu_now = &lane.thread;
    emu_switch(here, lane.left);
}

/// Lets the next lane go on, or the host where none is left.
void leave() {
    void** here = &running->left;
    turn.met |= running->ended || running->past;
    if (Fiber* lane = turn.next()) go_on(here, *lane);
    else emu_switch(here, host);
}

void release(Meeting& meeting) {
    meeting.here = 0;
    meeting.past++;
}

/// Waits while these bits are those.
void wait_while(const uint64_t* past, uint64_t bits, uint64_t turn) {
    running->past = past;
    running->bits = bits;
    running->turn = turn;
    while ((*(const volatile uint64_t*)past & bits) == turn) leave();
    running->past = nullptr;
}
void wait_for(const Meeting& meeting, uint64_t turn) { wait_while(&meeting.past, ~uint64_t(0), turn); }

/// Waits with others, of whom there are so many with this one.
void wait_with(Meeting& meeting, unsigned all) {
    if (++meeting.here == all) release(meeting);
    else wait_for(meeting, meeting.past);
}

/// Lets those go on who waited for one that has ended, and for nobody else.
void without_one(Meeting& meeting, unsigned left) {
    if (meeting.here > 0 && meeting.here == left) release(meeting);
}

void run_thread() {
    kernel(arguments);
    running->asked.copies.wait_all();
    if (!running->asked.stores.works.empty()) emu_fail("a thread has ended whose memory is still to be read");
    Block& block = *running->block;
    Warp& warp = *running->warp;
    running->ended = true;
    without_one(block.barriers[0], --block.alive);
    if (warp.gathers) emu_fail("a thread has ended whose warp does something together");
    without_one(warp, --warp.lanes);
    if (warp.lanes == 0 && !warp.products.works.empty()) emu_fail("a warp has ended before its products");
    without_one(*block.cluster, --block.cluster->alive);
    block.shown.ended = block.alive == 0;
    for (const Task& task : tasks)
        if (task.block->ended) emu_fail("a block has ended that the copy engine still writes to");
    leave();
}

/// Has a block have so many threads.
void grow(Block& block, size_t threads) {
    if (block.fibers.size() >= threads) return;
    const size_t bytes = threads * APART;
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) emu_fail("no memory for threads' stacks");
    block.stacks = Stacks((char*)memory, Unmap{bytes});
    block.fibers.resize(threads);
    for (size_t i = 0; i < threads; i++) {
        block.fibers[i].stack = (char*)memory + i * APART;
        memcpy(block.fibers[i].stack, &UNTOUCHED, sizeof UNTOUCHED);
    }
}

/// Ends the program where a thread's stack went beyond its end.
void check_stacks(const Block& block) {
    for (const Fiber& fiber : block.fibers)
        if (memcmp(fiber.stack, &UNTOUCHED, sizeof UNTOUCHED) != 0) emu_fail("a thread's stack is too small");
}

/// Makes a stack on which `emu_switch` finds where to begin.
void prepare(Fiber& fiber) {
    void** top = (void**)(fiber.stack + STACK) - 8;
    *--top = nullptr; // as if it had been called
    *--top = (void*)run_thread;
    for (int kept = 0; kept < 6; kept++) *--top = nullptr;
    fiber.left = top;
    fiber.ended = false;
    fiber.past = nullptr;
}

/// Runs the lanes of a warp until each waits. Says whether one came to a meeting or ended, so that others may go on.
bool run_warp(Fiber* lanes) {
    turn = {lanes, Order(LANES), LANES};
    if (Fiber* lane = turn.next()) go_on(&host, *lane);
    return turn.met;
}

/// Runs a block until all of its threads wait; says whether any got further.
bool run_block(Block& block) {
    bool got_further = false;
    Order order(unsigned(block.warps.size()));
    for (unsigned i = 0; i < order.count; i++) {
        Fiber* lanes = &block.fibers[LANES * order.take()];
        for (unsigned count = 0; count < TURNS; count++) {
            const bool met = run_warp(lanes);
            got_further |= met;
            if (!met || turn.looked) break;
        }
    }
    return got_further;
}

/// Begins the block of this index; what was in its memory is no number.
void begin(Block& block, const EmuLaunch& launch, EmuThree index, Cluster& cluster, unsigned rank) {
    block.shown = {&launch, index, nullptr, cluster.blocks.data(), rank, false};
    block.cluster = &cluster;
    block.memory.assign(EMU_DYNAMIC + launch.dynamic + 1024, char(0xff));
    block.shown.memory = (char*)((uintptr_t(block.memory.data()) + 1023) / 1024 * 1024);
    block.warps.assign(launch.threads.x / LANES, Warp());
    for (Meeting& barrier : block.barriers) barrier = Meeting();
    block.alive = launch.threads.x;
    block.asleep = launch.cluster > 1 ? unsigned(chance() % 16) : 0;
    grow(block, block.alive);
    for (unsigned i = 0; i < block.alive; i++) {
        block.fibers[i].thread = {{i, 0, 0}, &block.shown};
        block.fibers[i].block = &block;
        block.fibers[i].warp = &block.warps[i / LANES];
        prepare(block.fibers[i]);
    }
}

} // namespace

EmuAsked& emu_asked() { return running->asked; }
EmuQueue<EmuProduct>& emu_products() { return running->warp->products; }
bool emu_at_once() { return chance() % 2; }
unsigned emu_turns() {
    unsigned turns = 0;
    while (chance() % 4 > 0) turns++;
    return turns;
}
void emu_linger(unsigned turns) {
    for (unsigned turn = 0; turn < turns; turn++) leave();
}
void emu_engine(const EmuBlock* block, std::function<void()> work) {
    if (emu_at_once()) work();
    else tasks.push_back({block, std::move(work)});
}

EmuBlock* emu_block_of(uint32_t address) {
    Block& own = *running->block;
    if (address >> 24 == 0) return &own.shown;
    const unsigned rank = (address >> 24) - 1;
    if (rank >= own.cluster->blocks.size()) emu_fail("an address in a block that is not of the cluster");
    EmuBlock* block = own.cluster->blocks[rank];
    if (block->ended) emu_fail("an address in a block that has ended");
    return block;
}
void emu_cluster_arrive() {
    Cluster& cluster = *running->block->cluster;
    running->of_cluster = cluster.past;
    if (++cluster.here == cluster.alive) release(cluster);
}
void emu_cluster_wait() {
    wait_for(*running->block->cluster, running->of_cluster);
}

void emu_yield() {
    turn.looked = true;
    leave();
}

const uint64_t* emu_exchange(uint64_t word) {
    Warp& warp = *running->warp;
    if (warp.gathers) emu_fail("lanes of a warp do different things together");
    uint64_t* words = warp.words[warp.past % 2];
    words[running->thread.index.x % LANES] = word;
    wait_with(warp, warp.lanes);
    return words;
}
const uint64_t* emu_gather(uint64_t word) {
    Warp& warp = *running->warp;
    uint64_t* words = warp.words[warp.past % 2];
    words[running->thread.index.x % LANES] = word;
    if (warp.lanes != LANES) emu_fail("a warp does something together of which a thread has ended");
    if (warp.here > 0 && !warp.gathers) emu_fail("lanes of a warp do different things together");
    warp.gathers = true;
    if (++warp.here == LANES) return words;
    wait_for(warp, warp.past);
    return nullptr;
}
void emu_release() {
    Warp& warp = *running->warp;
    warp.gathers = false;
    release(warp);
}
void emu_sleep(const char* at, uint64_t bits, uint64_t are) { wait_while((const uint64_t*)at, bits, are); }

void emu_meet(unsigned number, unsigned threads) {
    Block& block = *running->block;
    // Whoever has ended is not waited for where the whole block meets.
    bool whole = number == 0 && threads == block.shown.launch->threads.x;
    wait_with(block.barriers[number], whole ? block.alive : threads);
}

void emu_fail(const char* why) {
    fprintf(stderr, "the emulated device: %s\n", why);
    abort();
}

void emu_launch(const EmuLaunch& launch, void (*call)(void**), void** with) {
    std::vector<std::unique_ptr<Block>> blocks;
    if (launch.threads.x % LANES != 0) emu_fail("a block of parts of warps");
    const EmuThree grid = launch.grid;
    const uint64_t count = uint64_t(grid.x) * grid.y * grid.z;
    const unsigned together = launch.cluster;
    if (grid.x % together != 0) emu_fail("a grid of parts of clusters");
    chance.seed();
    kernel = call;
    arguments = with;
    // Blocks that run at once, at most: no kernel has more of those who wait for one another.
    const size_t most = 8 * emu_multiprocessors() / together * together, resident = size_t(count < most ? count : most);
    {
        std::lock_guard lock(of_spare);
        while (blocks.size() < resident && !spare.empty()) {
            blocks.push_back(std::move(spare.back()));
            spare.pop_back();
        }
    }
    while (blocks.size() < resident) blocks.push_back(std::make_unique<Block>());
    std::vector<Cluster> clusters(resident / together);
    uint64_t next = 0;
    // Every second launch begins with the last of its blocks, so that none may rely on those before it.
    const bool backwards = launches++ % 2 == 1 && count <= resident;
    auto begin_next = [&](size_t which) {
        Cluster& cluster = clusters[which];
        cluster = Cluster();
        cluster.alive = together * launch.threads.x;
        for (unsigned rank = 0; rank < together; rank++) cluster.blocks.push_back(&blocks[which * together + rank]->shown);
        const uint64_t first = backwards ? count - together - next : next;
        next += together;
        for (unsigned rank = 0; rank < together; rank++) {
            const uint64_t at = first + rank;
            begin(*blocks[which * together + rank], launch, {unsigned(at % grid.x), unsigned(at / grid.x % grid.y), unsigned(at / grid.x / grid.y)}, cluster, rank);
        }
    };
    // A cluster begins when all that have begun wait, and now and then before: few at a time stay in the cache. In some
    // launches all of them do at once.
    const bool at_once = launches % EARLY == 0;
    size_t begun = 0, alive = 0;
    unsigned idle = 0;
    while (alive > 0 || next < count) {
        bool got_further = false;
        for (size_t i = 0; i < begun; i++) {
            if (clusters[i].alive == 0) continue;
            for (unsigned rank = 0; rank < together; rank++) {
                Block& block = *blocks[i * together + rank];
                if (block.asleep > 0) got_further |= block.asleep-- > 0;
                else for (unsigned round = 1 + chance() % ROUNDS; round-- > 0 && block.alive > 0 && run_block(block);) got_further = true;
            }
            got_further |= run_engine();
            if (clusters[i].alive > 0) continue;
            if (next < count) begin_next(i);
            else alive--;
        }
        bool wanted = !got_further || chance() % EARLY == 0;
        while (begun < clusters.size() && next < count && (wanted || at_once)) {
            begin_next(begun++);
            alive++;
            got_further = true;
            wanted = false;
        }
        idle = got_further ? 0 : idle + 1;
        if (idle > PATIENCE) emu_fail("a launch waits for what never comes");
    }
    // What went beyond its end stays written. To look each time took a seventh of a launch's time.
    if (at_once)
        for (const std::unique_ptr<Block>& block : blocks) check_stacks(*block);
    // Those that have begun on top, for the next launch.
    std::lock_guard lock(of_spare);
    while (!blocks.empty()) {
        spare.push_back(std::move(blocks.back()));
        blocks.pop_back();
    }
}
