//! What a search finds of a row's logits, in threads, warps and blocks. Must not know who made them.

/// Of some logits: the largest and the first place where it is, what the exponentials of all weigh beside it, and whether
/// no draw can be made of them: one is infinite, or no number.
struct Peak {
    float largest = -INFINITE;
    u32 where = FULL;
    float sum = 0.0f;
    u32 unsound = 0;

    __device__ __forceinline__ void see(float logit, u32 place) {
        if (!(logit < INFINITE)) unsound = 1;
        if (logit > largest) {
            sum = sum * expf(largest - logit) + 1.0f;
            largest = logit;
            where = place;
        } else if (logit > -INFINITE) sum += expf(logit - largest);
    }
    __device__ __forceinline__ void join(const Peak& other) {
        unsound |= other.unsound;
        if (other.sum == 0.0f) return;
        if (other.largest > largest) {
            sum = sum * expf(largest - other.largest) + other.sum;
            largest = other.largest;
            where = other.where;
        } else {
            sum += other.sum * expf(other.largest - largest);
            if (other.largest == largest) where = min(where, other.where);
        }
    }
    /// What all lanes of a warp have seen.
    __device__ __forceinline__ void join_warp() {
        float most = warp_max(largest);
        sum = warp_sum(sum == 0.0f ? 0.0f : sum * expf(largest - most));
        where = __reduce_min_sync(FULL, largest == most ? where : FULL);
        unsound = __reduce_or_sync(FULL, unsound);
        largest = most;
    }
    __device__ __forceinline__ uint4 words() const { return make_uint4(__float_as_uint(largest), where, __float_as_uint(sum), unsound); }
};
DEVICE Peak peak_of(uint4 words) { return {__uint_as_float(words.x), words.y, __uint_as_float(words.z), words.w}; }
