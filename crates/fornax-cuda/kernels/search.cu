//! Which of many items a draw hits: the one in whose weight a target lies, of all weights in the items' order.
//! Must not know what the items are, nor what they weigh.

/// Items of each of `count` shares of a row, whole turns of a warp.
DEVICE u32 share_of(u32 items, u32 count) { return ((items + count - 1) / count + 31) / 32 * 32; }

/// Where a draw still looks for `target` of all weights, what lies before there, and how it goes on.
struct Search {
    u32 begin, end;
    double before;
    double target; // below zero that part of their sum, which is not known yet

    /// Goes on in one warp's share of the items.
    template <class Weigh> __device__ void narrow(Weigh weigh) {
        __shared__ double warps[32];
        u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, count = blockDim.x / 32, share = share_of(end - begin, count);
        u32 first = begin + warp * share, last = first + share < end ? first + share : end;
        double mine = 0.0;
#pragma unroll 4
        for (u32 i = first + lane; i < last; i += 32) mine += weigh(i);
        for (int step = 16; step > 0; step >>= 1) mine += __shfl_xor_sync(FULL, mine, step);
        __syncthreads();
        if (lane == 0) warps[warp] = mine;
        __syncthreads();
        if (target < 0.0) {
            double sum = 0.0;
            for (u32 i = 0; i < count; i++) sum += warps[i];
            target *= -sum;
        }
        // Where rounding hides it, the last share with a weight.
        u32 chosen = 0;
        double behind = before;
        for (u32 i = 0; i < count; i++) {
            if (warps[i] == 0.0) continue;
            chosen = i;
            behind = before;
            if (before + warps[i] > target) break;
            before += warps[i];
        }
        before = behind;
        begin += chosen * share;
        end = begin + share < end ? begin + share : end;
    }

    /// The item itself; what lies before it is known then.
    template <class Weigh> __device__ u32 find(Weigh weigh) {
        __shared__ u32 found;
        __shared__ double before_found;
        u32 lane = threadIdx.x % 32;
        // Nobody still reads what was found before.
        __syncthreads();
        if (threadIdx.x < 32) {
            u32 item = FULL;
            double before_item = before;
            for (u32 base = begin; base < end; base += 32) {
                double weight = base + lane < end ? weigh(base + lane) : 0.0, sum = weight;
                for (int step = 1; step < 32; step <<= 1) {
                    double other = __shfl_up_sync(FULL, sum, step);
                    if (lane >= step) sum += other;
                }
                u32 over = __ballot_sync(FULL, before + sum > target && weight > 0.0), some = __ballot_sync(FULL, weight > 0.0);
                // Where rounding hides it, the last one with a weight.
                if (some) {
                    u32 at = over ? __ffs(over) - 1 : 31 - __clz(some);
                    item = base + at;
                    before_item = before + __shfl_sync(FULL, sum - weight, at);
                }
                if (over) break;
                before += __shfl_sync(FULL, sum, 31);
            }
            if (lane == 0) { found = item; before_found = before_item; }
        }
        __syncthreads();
        before = before_found;
        return found;
    }
};
