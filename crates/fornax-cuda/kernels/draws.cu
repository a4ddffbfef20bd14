//! What the host says of draws, and what they read. Must not know how one is made.

/// Sampling parameters of a slot.
struct Slot {
    float temperature, typical, top_p, min_p, repetition, presence, frequency;
    u32 top_k, seed_low, seed_high, penalised, biases;
    const uint2* bias; // token and bits of what is added, each token once
};
/// A draw: slot, position as two words, how many of the most likely to name; FULL where not even the
/// probability of what is drawn is wanted.
struct Draw { u32 slot, low, high, top; };

/// Whether only some of the tokens are left for a draw.
DEVICE bool has_filters(const Slot& slot, u32 vocabulary) {
    return (slot.top_k > 0 && slot.top_k < vocabulary) || slot.typical < 1.0f || slot.top_p < 1.0f || slot.min_p > 0.0f;
}
/// Whether a draw reads logits all over the row. If not, it is enough to know what each part of the row weighs,
/// and the logits of one part.
DEVICE bool reads_logits(const Slot& slot, const Draw& draw, u32 vocabulary) {
    return slot.penalised || slot.biases || has_filters(slot, vocabulary) || (draw.top > 0 && draw.top != FULL);
}
