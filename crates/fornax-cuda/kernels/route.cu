//! Which experts a token goes to, by what a router gives for each of them. Must not know how that is computed, nor what experts do.

struct Route {
    u32* ids;            // [n, used]
    float* weights;      // [n, used]
    const float* logits; // [n, experts]
    const float* bias;   // [experts], added to scores for the choice alone, or null
    float scale;
    u32 experts, used, scoring, normalise;
    u32 groups, open, summed; // of experts side by side: how many, how many of them are open, by how many scores each
};

/// Floats that a choice needs: two for each expert and one for each group.
#define SCORES(r) (2 * (r).experts + (r).groups)

/// Leaves only experts of groups whose highest ranks sum to most, ties by lower index: all others rank lowest.
DEVICE void open_groups(const Route& r, float* ranks, float* sums) {
    u32 size = r.experts / r.groups;
    for (u32 group = 0; group < r.groups; group++) {
        float total = 0.0f, below = INFINITE;
        u32 behind = 0, taken = 0;
        while (taken < r.summed) {
            float next = -INFINITE;
            for (u32 i = 0; i < size; i++) {
                float rank = ranks[group * size + i];
                if (rank < below && rank > next) next = rank;
            }
            for (u32 i = 0; i < size && taken < r.summed; i++)
                if (ranks[group * size + i] == next) { total += next; taken++; }
            below = next;
            if (++behind > size) break;
        }
        sums[group] = total;
    }
    for (u32 rest = r.groups; rest > r.open; rest--) {
        u32 worst = FULL;
        for (u32 group = 0; group < r.groups; group++)
            if (sums[group] < INFINITE && (worst == FULL || sums[group] <= sums[worst])) worst = group;
        sums[worst] = INFINITE;
        for (u32 i = 0; i < size; i++) ranks[worst * size + i] = -INFINITE;
    }
}

/// Chooses experts for a token. Called by a warp, with SCORES floats of shared memory. It runs once while others wait for
/// it, so that it waits for most of its instructions to come: no loop is unrolled, and there is one reciprocal in place
/// of divisions. moe-1b in Q8_0, four of 32 experts: 714 to 678 µs a token on an H200.
DEVICE void choose(u32* ids, float* weights, const float* logits, const Route& r, float* scores) {
    float *ranks = scores + r.experts, *sums = ranks + r.experts;
    u32 lane = threadIdx.x % 32;
    float largest = -INFINITE, sum = 0.0f;
#pragma unroll 1
    for (u32 i = lane; i < r.experts; i += 32) largest = fmaxf(largest, logits[i]);
    largest = warp_max(largest);
#pragma unroll 1
    for (u32 i = lane; i < r.experts; i += 32) {
        float power = expf(r.scoring == 0 ? logits[i] - largest : -logits[i]);
        scores[i] = r.scoring == 0 ? power : 1.0f / (1.0f + power);
        sum += power;
    }
    float inverse = r.scoring == 0 ? 1.0f / warp_sum(sum) : 1.0f;
#pragma unroll 1
    for (u32 i = lane; i < r.experts; i += 32) {
        float score = scores[i] * inverse;
        scores[i] = score;
        ranks[i] = score + (r.bias ? r.bias[i] : 0.0f);
    }
    __syncwarp();
    if (r.groups && lane == 0) open_groups(r, ranks, sums);
    __syncwarp();
    float chosen = 0.0f;
#pragma unroll 1
    for (u32 e = 0; e < r.used; e++) {
        float best = -INFINITE;
        u32 where = FULL;
#pragma unroll 1
        for (u32 i = lane; i < r.experts; i += 32)
            if (ranks[i] > best || where == FULL) { best = ranks[i]; where = i; }
        u32 bits = __float_as_uint(best), key = where == FULL ? 0 : bits ^ (bits >> 31 ? FULL : 1u << 31);
        where = __reduce_min_sync(FULL, key == __reduce_max_sync(FULL, key) ? where : FULL);
        float score = scores[where];
        if (lane == 0) {
            ids[e] = where;
            weights[e] = score;
            ranks[where] = -INFINITE;
        }
        chosen += score;
        __syncwarp();
    }
    float scale = r.normalise ? r.scale / chosen : r.scale;
#pragma unroll 1
    for (u32 e = lane; e < r.used; e += 32) weights[e] *= scale;
}
