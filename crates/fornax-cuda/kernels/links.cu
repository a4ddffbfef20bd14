//! A chain's links, and what a block and its threads keep from one to the next. Must not know how a link
//! computes.

#define WARPS 8
#define THREADS (32 * WARPS + 32)
/// Rows of a tile at most, and of what is dealt to blocks: 32 bytes of a result.
#define ROWS 8
/// Tiles that are multiplied together, or twice as many as pairs of them.
#define BATCH 8
/// Tiles in the ring at most.
#define SLOTS 64
#define TOGETHER 2
#define STRIDE (SIDE * TOGETHER)
/// Warps that have one query head, and positions that they see at once.
#define OF_HEAD (WARPS / GROUP)
#define TURN (OF_HEAD * STRIDE)
/// Copies of every word: who looks for one asks for it again and again, and all blocks at one place would
/// wait for one another there.
#define COPIES 8
/// Blocks that share a row of attention at most.
#define MOST_SPLITS 16

/// Beside numbers of formats.
#define ATTENTION 0xffffffffu

/// One product or one attention. As the host lays it out.
struct Link {
    u32 kind;                  // ATTENTION, or the format of a product's weights
    u32 tag, stride;           // of its results: which of the writes to their place in a launch, of how many
    u32 from_tag, from_stride; // of its input
    u32 batch;                 // tiles that are multiplied together
    u32 parts;                 // of the search for the largest logit
    u32 of_each;               // eights of rows of every block, and one more of `one_more` blocks from `first` on
    u32 one_more;
    u32 from_apart, to_apart;  // words from a copy to the next
    u32 first;                 // the block that has a product's first eight rows
    const u32* from;           // its input as tagged words; null where that was there before the launch
    u32* to;                   // where its results go as such; null where no link reads them
    u64* pieces;               // of attention: what blocks that share a row tell one another
    u64* totals;
    union { Product product; Attend attend; };
};

/// What a block's threads share beside the ring, the token and what attention gathers. Full and
/// then empty barriers of the ring's tiles, and where these begin; links by turns, two of them to come;
/// sums of a tile's rows by parts of their columns, which two links or two batches use by turns.
struct Shared {
    u64 barriers[2 * SLOTS];
    u32 begins[SLOTS];
    Link links[4];
    float totals[2][WARPS], sums[2][BATCH][ROWS][WARPS];
    uint4 best[ROWS * BATCH];
    float2 turns[HEAD / 2];
    float norms[GROUP + 1][HEAD];
};

/// Only those that compute.
DEVICE void meet() {
    __syncwarp();
    asm volatile("bar.sync 1, 256;" ::: "memory");
}

/// Which eight rows of a product this block has first; every so many more are its own, as there are blocks. Tiles of
/// fewer rows are parts of these: a number that products add to one after the other is always the same block's, and
/// those beside it in 32 bytes, for nobody else sees what a block writes there before the launch ends.
DEVICE u32 first_eight(u32 first_block) { return blockIdx.x < first_block ? blockIdx.x + gridDim.x - first_block : blockIdx.x - first_block; }

/// What a thread knows of the positions that its warp sees of the row, which the next layer's are alike: blocks that share
/// them, those of this block, whether the newest is among them; pages of those that it sees first, and of the newest.
struct Span {
    const u32* tables = nullptr; // whose these are
    u32 window, log_splits, begin, end, pages[TOGETHER], newest_page;
    bool owner;
};

/// What a thread of a block keeps from link to link.
struct Thread {
    u32 next = 0;    // tiles that were multiplied
    u32 batches = 0; // of them
    u32 position;    // of the token
    u32 table;       // where its pages begin in each group's tables
    // Of attention: blocks of a row, which of them this one is, and how many of those there are; its heads.
    u32 parts, part, rank, kv_head, subgroup, subgroups;
    u32 epoch;      // launches before this one
    u32 link = 0;
    u64 ahead;      // a word of a link to come
    Span span;
    const float* turned_by = nullptr; // what the known sines and cosines are of

    __device__ __forceinline__ u32 tag_of(u32 tag, u32 stride) const { return (epoch * stride + tag) & 15; }
};

/// Keeps the link after the next, which was loaded meanwhile. Its place is not read any more: who comes
/// here has met all others since.
DEVICE void keep_ahead(Shared& s, const Thread& t) {
    if (threadIdx.x < sizeof(Link) / 8) ((u64*)&s.links[(t.link + 2) % 4])[threadIdx.x] = t.ahead;
}
