//! From a row of logits to a token: the chain that the host's sampler defines, a block for each row.
//!
//! Sums of weights are whole numbers of 2^-40, so that a draw does not depend on the order in which
//! threads meet. What a stage drops is said by a limit in its own order, found digit by digit.

#define SAMPLE_WORDS 42
#define BLOCK 1024
#define PARTS 32 // of a row, of which each block of a search has one
#define ONE 1099511627776.0

struct Sampling {
    u32* samples;        // [n, SAMPLE_WORDS]
    const float* logits; // [n, vocabulary]
    float* changed;      // [n, vocabulary], scratch
    const Slot* slots;
    u32* counts; // [slots, vocabulary]: 1 + how often the answer has it, 0 where nobody has
    const Draw* draws;
    const uint4* best; // [n, parts]: largest, where, sum of exponentials, whether unsound
    const float* weights; // [n, parts] where these are neighbouring ids: sums of weights relative to the largest
    u32 parts, vocabulary;
    Head head; // that found the parts, where only those rows' logits are there that a draw reads all over
};

/// A row's parts, each of neighbouring ids.
struct Parts { const uint4* best; const float* weights; u32 count; };

struct Best { float largest; u32 where; double sum; u32 unsound; };

DEVICE u64 mix(u64 w) {
    w = (w ^ (w >> 30)) * 0xBF58476D1CE4E5B9ull;
    w = (w ^ (w >> 27)) * 0x94D049BB133111EBull;
    return w ^ (w >> 31);
}
DEVICE float uniform(u64 seed, u64 position) {
    const u64 gamma = 0x9E3779B97F4A7C15ull;
    u64 word = mix(mix(seed + gamma) + (position + 1) * gamma);
    return (float)(u32)(word >> 40) * (1.0f / 16777216.0f);
}

/// Bits that order floats as whole numbers, the largest float first; −0 counts as 0.
DEVICE u32 descending(float x) {
    u32 bits = __float_as_uint(x == 0.0f ? 0.0f : x);
    return bits >> 31 ? bits : ~(bits | 0x80000000u);
}
/// The same of doubles, the smallest first; none is negative.
DEVICE u64 ascending(double x) { return (u64)__double_as_longlong(x == 0.0 ? 0.0 : x); }

/// Merges every lane's part; all lanes get the whole. Parts without a sum count for nothing.
DEVICE Best warp_best(Best mine) {
    bool any = mine.sum > 0.0;
    float most = warp_max(any ? mine.largest : -INFINITE);
    u32 where = __reduce_min_sync(FULL, any && mine.largest == most ? mine.where : FULL);
    double sum = any ? mine.sum * exp((double)mine.largest - (double)most) : 0.0;
    for (int step = 16; step > 0; step >>= 1) sum += __shfl_xor_sync(FULL, sum, step);
    return {most, where, sum, __any_sync(FULL, mine.unsound) != 0};
}

/// The same for every thread of a block.
DEVICE Best block_best(Best mine) {
    __shared__ Best all[BLOCK / 32];
    mine = warp_best(mine);
    __syncthreads();
    if (threadIdx.x % 32 == 0) all[threadIdx.x / 32] = mine;
    __syncthreads();
    return warp_best(all[threadIdx.x % 32]);
}

/// What is known of some logits: the largest, where it first is, the sums of exponentials of all relative
/// to it, as they are and under a temperature, and whether one is no number.
struct Scan { float largest; u32 where; float sum, weight; u32 unsound; };

/// That of all lanes of a warp, in each of them.
DEVICE Scan warp_scan(Scan mine, float inverse) {
    float most = warp_max(mine.largest), less = mine.largest - most;
    bool any = mine.largest > -INFINITE;
    return {most, __reduce_min_sync(FULL, any && less == 0.0f ? mine.where : FULL), warp_sum(any ? mine.sum * expf(less) : 0.0f),
            warp_sum(any && inverse > 0.0f ? mine.weight * expf(less * inverse) : 0.0f), __any_sync(FULL, mine.unsound) != 0};
}

/// That of some ids, by a block; all of its threads get it. `inverse` is one over the temperature, or
/// zero where nobody asks for the sum under it.
DEVICE Scan scan(const float* logits, u32 begin, u32 end, float inverse) {
    __shared__ Scan all[BLOCK / 32];
    Scan mine = {-INFINITE, FULL, 0.0f, 0.0f, 0};
    auto take = [&](const float* x, u32 count, u32 id) {
        float most = x[0];
#pragma unroll
        for (u32 i = 0; i < count; i++) {
            if (!(x[i] < INFINITE)) mine.unsound = 1;
            most = fmaxf(most, x[i]);
        }
        if (most > mine.largest) {
            float less = mine.largest - most;
            mine.sum *= expf(less);
            if (inverse > 0.0f) mine.weight *= expf(less * inverse);
            mine.largest = most;
#pragma unroll
            for (u32 i = count; i-- > 0;) if (x[i] == most) mine.where = id + i;
        }
        if (!(mine.largest > -INFINITE)) return;
#pragma unroll
        for (u32 i = 0; i < count; i++) mine.sum += expf(x[i] - mine.largest);
        if (inverse > 0.0f)
#pragma unroll
            for (u32 i = 0; i < count; i++) mine.weight += expf((x[i] - mine.largest) * inverse);
    };
    u32 at = begin;
    if (((u64)(logits + begin) & 15) == 0) {
        at += (end - begin) / 4 * 4;
#pragma unroll 4
        for (u32 i = begin + 4 * threadIdx.x; i < at; i += 4 * blockDim.x) {
            float4 v = *(const float4*)(logits + i);
            float x[4] = {v.x, v.y, v.z, v.w};
            take(x, 4, i);
        }
    }
    for (u32 i = at + threadIdx.x; i < end; i += blockDim.x) take(logits + i, 1, i);
    mine = warp_scan(mine, inverse);
    __syncthreads();
    if (threadIdx.x % 32 == 0) all[threadIdx.x / 32] = mine;
    __syncthreads();
    Scan none = {-INFINITE, FULL, 0.0f, 0.0f, 0};
    return warp_scan(threadIdx.x % 32 < blockDim.x / 32 ? all[threadIdx.x % 32] : none, inverse);
}

/// The PARTS parts of every row, for products that found none on the way, and what their weights sum to
/// where the row is drawn at a temperature. `best` is `[n, PARTS]`, `weights` too. Reads every logit once:
/// 0.6 MB a row of 152 k, at 4.4 TB/s 0.14 µs.
KERNEL __launch_bounds__(256) void scan_logits(uint4* best, float* weights, const float* logits, u32 vocabulary,
                                               const Draw* draws, const Slot* slots) {
    let_next_begin();
    u32 slot = draws[blockIdx.y].slot;
    float temperature = slot == FULL ? 0.0f : slots[slot].temperature;
    u32 share = share_of(vocabulary, PARTS), begin = blockIdx.x * share;
    if (begin > vocabulary) begin = vocabulary;
    u32 end = begin + share < vocabulary ? begin + share : vocabulary;
    wait_for_previous();
    Scan all = scan(logits + (u64)blockIdx.y * vocabulary, begin, end, temperature > 0.0f ? 1.0f / temperature : 0.0f);
    if (threadIdx.x != 0) return;
    u32 to = blockIdx.y * PARTS + blockIdx.x;
    best[to] = make_uint4(__float_as_uint(all.largest), all.where, __float_as_uint(all.sum), all.unsound);
    weights[to] = all.weight;
}

DEVICE u64 block_total(u64 mine) {
    __shared__ u64 all[BLOCK / 32];
    for (int step = 16; step > 0; step >>= 1) mine += __shfl_xor_sync(FULL, mine, step);
    __syncthreads();
    if (threadIdx.x % 32 == 0) all[threadIdx.x / 32] = mine;
    __syncthreads();
    u64 total = 0;
    for (u32 i = 0; i < blockDim.x / 32; i++) total += all[i];
    return total;
}

/// What the stages so far leave: by descending logit up to a limit, by distance from the entropy up
/// to a limit, by weight from a floor on.
struct Left {
    const float* logits;
    u32 vocabulary;
    float max, floor;
    double surprise_base, entropy; // surprise = surprise_base - logit
    u64 logit_limit, typical_limit;
    u32 logit_last, typical_last; // the last id at the limit itself
    bool by_typical;

    __device__ float weight(float logit) const { return expf(logit - max); }
    __device__ u64 distance(float logit) const { return ascending(fabs(surprise_base - (double)logit - entropy)); }
    __device__ bool has(u32 id, float logit) const {
        if (!(logit > -INFINITE)) return false;
        u64 key = descending(logit);
        if (key > logit_limit || (key == logit_limit && id > logit_last)) return false;
        if (by_typical) {
            u64 far = distance(logit);
            if (far > typical_limit || (far == typical_limit && id > typical_last)) return false;
        }
        return weight(logit) >= floor;
    }
};

DEVICE u64 fixed(float weight) { return (u64)((double)weight * ONE); }

/// The limit at which what is left, taken in order of `key` and then of id, first reaches `target`,
/// counting tokens or adding weights. The limit is all there is where they never reach it.
template <bool COUNTED, bool TYPICAL>
DEVICE void limit(const Left& left, u64 target, u64& limit, u32& last) {
    __shared__ u64 bins[256];
    __shared__ u64 found_prefix, found_missing;
    u64 prefix = 0, missing = target;
    const int bits = TYPICAL ? 64 : 32;
    // The key's digits, then the id's.
    for (int shift = bits - 8; shift >= -32; shift -= 8) {
        bool ids = shift < 0;
        __syncthreads();
        for (u32 i = threadIdx.x; i < 256; i += blockDim.x) bins[i] = 0;
        __syncthreads();
        for (u32 i = threadIdx.x; i < left.vocabulary; i += blockDim.x) {
            float logit = left.logits[i];
            if (!left.has(i, logit)) continue;
            u64 key = TYPICAL ? left.distance(logit) : descending(logit);
            u32 digit;
            if (!ids) {
                if (shift + 8 < bits && key >> (shift + 8) != prefix) continue;
                digit = key >> shift & 255;
            } else {
                if (key != limit || (shift + 40 < 32 && (u64)i >> (shift + 40) != prefix)) continue;
                digit = i >> (shift + 32) & 255;
            }
            atomicAdd(&bins[digit], COUNTED ? 1ull : fixed(left.weight(logit)));
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            u32 digit = 0, any = 0;
            for (u32 i = 0; i < 256; i++) {
                if (bins[i] == 0) continue;
                any = i;
                if (bins[i] >= missing) { digit = i; break; }
                missing -= bins[i];
                digit = FULL;
            }
            // Rounding may leave a little missing behind the last one.
            if (digit == FULL) { digit = any; missing += bins[any]; }
            found_prefix = prefix << 8 | digit;
            found_missing = missing;
        }
        __syncthreads();
        prefix = found_prefix;
        missing = found_missing;
        if (shift == 0) { limit = prefix; prefix = 0; }
    }
    last = (u32)prefix;
}

/// The token at `uniform` of the weights of what is left, in the order of ids. What a row's parts weigh, of
/// neighbouring ids each, may be known, and the logits of the one that has the token be still to be made by
/// the `head`, in `of_part`.
DEVICE u32 draw(const Left& left, bool all, float max, float temperature, float uniform, const Parts* parts, const Head* head, float* of_part) {
    u32 made_from = 0;
    float base = max;
    auto of_id = [&](u32 i) -> double {
        float logit = head ? of_part[i - made_from] : left.logits[i];
        return all || left.has(i, logit) ? expf((logit - base) / temperature) : 0.0f;
    };
    Search search = {0, left.vocabulary, 0.0, -(double)uniform};
    if (parts) {
        auto weight_of = [&](u32 i) -> double {
            float largest = __uint_as_float(parts->best[i].x);
            double weight = largest > -INFINITE ? (double)parts->weights[i] * exp(((double)largest - (double)max) / (double)temperature) : 0.0;
            // A part whose ids all weigh nothing in single precision has none that could be drawn.
            return weight < 1e-37 ? 0.0 : weight;
        };
        search.end = parts->count;
        search.narrow(weight_of);
        u32 part = search.find(weight_of), ids = share_of(left.vocabulary, parts->count);
        search.begin = part * ids;
        search.end = search.begin + ids < left.vocabulary ? search.begin + ids : left.vocabulary;
        if (part == FULL) return FULL;
        if (head) {
            made_from = search.begin;
            tile_logits(*head, blockIdx.x, part, of_part);
            __syncthreads();
            // Added up in another order than before, they are a little off, which is much at a low temperature: what
            // counts is where in the part the target lies, and what its ids weigh among themselves.
            u32 lane = threadIdx.x % 32, count = search.end - search.begin;
            float first = lane < count ? of_part[lane] : -INFINITE, second = lane + 32 < count ? of_part[lane + 32] : -INFINITE;
            base = warp_max(fmaxf(first, second));
            double sum = warp_sum(expf((first - base) / temperature) + expf((second - base) / temperature));
            search.target = (search.target - search.before) / weight_of(part) * sum;
            search.before = 0.0;
        }
    } else search.narrow(of_id);
    // A few ids one warp sees as soon.
    if (search.end - search.begin > 256) search.narrow(of_id);
    return search.find(of_id);
}

KERNEL __launch_bounds__(BLOCK) void sample(const __grid_constant__ Sampling p) {
    let_next_begin();
    wait_for_previous();
    Draw row = p.draws[blockIdx.x];
    if (row.slot == FULL) return;
    Slot slot = p.slots[row.slot];
    u32* answer = p.samples + (u64)blockIdx.x * SAMPLE_WORDS;
    const float* logits = p.logits + (u64)blockIdx.x * p.vocabulary;
    for (u32 i = threadIdx.x; i < SAMPLE_WORDS; i += blockDim.x) answer[i] = FULL;

    Parts parts = {p.best + (u64)blockIdx.x * p.parts, p.weights + (u64)blockIdx.x * p.parts, p.parts};
    Best mine = {-INFINITE, FULL, 0.0, 0};
    for (u32 i = threadIdx.x; i < p.parts; i += blockDim.x) {
        uint4 part = parts.best[i];
        float largest = __uint_as_float(part.x), most = fmaxf(mine.largest, largest);
        double sum = __uint_as_float(part.z);
        if (largest > mine.largest) mine.where = part.y;
        if (most > -INFINITE) mine.sum = mine.sum * exp((double)mine.largest - (double)most) + sum * exp((double)largest - (double)most);
        mine.largest = most;
        mine.unsound |= part.w;
    }
    Best model = block_best(mine);
    if (model.unsound || !(model.largest > -INFINITE)) return;
    double log_sum = log(model.sum);
    auto logprob = [&](float logit) { return (float)((double)logit - (double)model.largest - log_sum); };
    bool apart = p.head.x && !reads_logits(slot, row, p.vocabulary);

    // The most likely ones, one after the other.
    u64 behind = 0;
    for (u32 i = 0; row.top != FULL && i < row.top; i++) {
        u64 key = ~0ull;
        for (u32 id = threadIdx.x; id < p.vocabulary; id += blockDim.x) {
            float logit = logits[id];
            u64 its = (u64)descending(logit) << 32 | id;
            if (logit > -INFINITE && (i == 0 || its > behind) && its < key) key = its;
        }
        __shared__ u64 least[BLOCK / 32];
        for (int step = 16; step > 0; step >>= 1) {
            u64 other = __shfl_xor_sync(FULL, key, step);
            key = other < key ? other : key;
        }
        __syncthreads();
        if (threadIdx.x % 32 == 0) least[threadIdx.x / 32] = key;
        __syncthreads();
        for (u32 w = 0; w < blockDim.x / 32; w++) key = least[w] < key ? least[w] : key;
        if (key == ~0ull) break;
        behind = key;
        if (threadIdx.x == 0) {
            answer[2 + 2 * i] = (u32)key;
            answer[3 + 2 * i] = __float_as_uint(logprob(logits[(u32)key]));
        }
    }

    // Biases and penalties.
    const float* changed = logits;
    Best best = model;
    u32* counts = p.counts + (u64)row.slot * p.vocabulary;
    if (slot.penalised || slot.biases) {
        float* to = p.changed + (u64)blockIdx.x * p.vocabulary;
        auto change = [&](u32 id, float logit) {
            u32 seen = slot.penalised ? counts[id] : 0;
            if (seen) {
                logit = logit > 0.0f ? __fdiv_rn(logit, slot.repetition) : logit * slot.repetition;
                if (seen > 1) logit -= __fadd_rn(slot.presence, __fmul_rn(slot.frequency, (float)(seen - 1)));
            }
            to[id] = logit;
        };
        for (u32 id = threadIdx.x; id < p.vocabulary; id += blockDim.x) change(id, logits[id]);
        __syncthreads();
        for (u32 i = threadIdx.x; i < slot.biases; i += blockDim.x)
            change(slot.bias[i].x, logits[slot.bias[i].x] + __uint_as_float(slot.bias[i].y));
        __syncthreads();
        changed = to;
        Scan all = scan(changed, 0, p.vocabulary, 0.0f);
        best = {all.largest, all.where, (double)all.sum, all.unsound};
        if (best.unsound || !(best.largest > -INFINITE)) return;
    }

    u32 token;
    __shared__ float of_tile[TILE_ROWS];
    bool filters = has_filters(slot, p.vocabulary);
    float random = uniform((u64)slot.seed_high << 32 | slot.seed_low, (u64)row.high << 32 | row.low);
    Left left = {changed, p.vocabulary, best.largest, -1.0f, 0.0, 0.0, ~0ull, ~0ull, FULL, FULL, false};
    if (slot.temperature == 0.0f && slot.typical >= 1.0f) {
        token = best.where;
    } else if (!filters) {
        token = draw(left, true, best.largest, slot.temperature, random, p.weights && changed == logits ? &parts : nullptr, apart ? &p.head : nullptr, of_tile);
    } else {
        u64 total = 0;
        auto weigh = [&]() {
            u64 sum = 0;
            for (u32 id = threadIdx.x; id < p.vocabulary; id += blockDim.x)
                if (left.has(id, changed[id])) sum += fixed(left.weight(changed[id]));
            return block_total(sum);
        };
        if (slot.top_k > 0 && slot.top_k < p.vocabulary) limit<true, false>(left, slot.top_k, left.logit_limit, left.logit_last);
        total = weigh();
        if (slot.typical < 1.0f) {
            double base = log((double)total / ONE) + (double)best.largest, entropy = 0.0;
            __shared__ double parts[BLOCK / 32];
            for (u32 id = threadIdx.x; id < p.vocabulary; id += blockDim.x)
                if (left.has(id, changed[id])) entropy += (double)left.weight(changed[id]) * (base - (double)changed[id]);
            for (int step = 16; step > 0; step >>= 1) entropy += __shfl_xor_sync(FULL, entropy, step);
            __syncthreads();
            if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = entropy;
            __syncthreads();
            entropy = 0.0;
            for (u32 w = 0; w < blockDim.x / 32; w++) entropy += parts[w];
            left.surprise_base = base;
            left.entropy = entropy / ((double)total / ONE);
            u64 at = ~0ull;
            u32 last = FULL;
            limit<false, true>(left, (u64)((double)slot.typical * (double)total), at, last);
            left.typical_limit = at;
            left.typical_last = last;
            left.by_typical = true;
            total = weigh();
        }
        if (slot.top_p < 1.0f) {
            u64 at = left.logit_limit;
            u32 last = left.logit_last;
            limit<false, false>(left, (u64)((double)slot.top_p * (double)total), at, last);
            left.logit_limit = at;
            left.logit_last = last;
        }
        Best most = {-INFINITE, FULL, 0.0, 0};
        for (u32 id = threadIdx.x; id < p.vocabulary; id += blockDim.x) {
            float logit = changed[id];
            if (left.has(id, logit) && logit > most.largest) { most.largest = logit; most.where = id; most.sum = 1.0; }
        }
        most = block_best(most);
        if (slot.min_p > 0.0f) left.floor = slot.min_p * left.weight(most.largest);
        token = slot.temperature == 0.0f ? most.where : draw(left, false, most.largest, slot.temperature, random, nullptr, nullptr, nullptr);
    }
    // None has a weight.
    if (threadIdx.x != 0 || token == FULL) return;
    answer[0] = token;
    float logit = !apart ? logits[token] : slot.temperature == 0.0f ? best.largest : of_tile[token % TILE_ROWS];
    // One that was made once more may be a little larger than the largest was before.
    answer[1] = __float_as_uint(fminf(logprob(logit), 0.0f));
    if (slot.penalised) counts[token] = counts[token] == 0 ? 2 : counts[token] + 1;
}

/// Starts the counts of a slot: `tokens` of which the first `prompt` are prompt.
KERNEL void count_tokens(u32* counts, const u32* tokens, u32 n, u32 prompt) {
    let_next_begin();
    wait_for_previous();
    // What is seen counts once, and what is answered once each time.
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) atomicMax(&counts[tokens[i]], 1u);
    __syncthreads();
    for (u32 i = prompt + threadIdx.x; i < n; i += blockDim.x) atomicAdd(&counts[tokens[i]], 1u);
}
