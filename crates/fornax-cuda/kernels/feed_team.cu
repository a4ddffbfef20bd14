//! The second half of a layer: norm, gate and up, and down again, for a share of the units in each
//! cluster, so that nothing of it but the last product's parts leaves a cluster. Must not know the other
//! team.
//!
//! Bytes: a cluster's share of the weights.

/// Rows of a gate, and as many of its up, are one tile.
#define UNITS_OF_TILE (TILE_ROWS / 2)

/// Gated units of a block, of 32 of which each warp makes one ready to be multiplied and tells it two
/// blocks of the cluster.
DEVICE void tell_units(const Layers& c, Shared& s, const Thread& t, Sums sums, u32 panels, u32 blocks, float factor) {
    constexpr u32 WORDS = BYTES_OF_BLOCK / 4;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, own = warp % 2, peer = warp / 2 * 2, block = t.rank + own * TEAM;
    if (own >= blocks) return;
    u32 row = (own * 4 + lane / UNITS_OF_TILE) * TILE_ROWS + lane % UNITS_OF_TILE;
    float gate = sum_of(sums, row, panels) * factor, up = sum_of(sums, row + UNITS_OF_TILE, panels) * factor;
    u8* stage = s.stage[warp];
    float2 scale = part_block(gated(gate, up, c.activation, c.alpha, c.limit), stage);
    __syncwarp();
    const u64* message = s.received + UNITS + t.row;
#pragma unroll
    for (u32 i = lane; i < 2 * WORDS; i += 32)
        tell_peer(s.units[t.row].bytes[block][0] + 4 * (i % WORDS), peer + i / WORDS, message, ((const u32*)stage)[i % WORDS]);
    if (SCALED && lane < 2) tell_peer(s.units[t.row].scales + block, peer + lane, message, scale);
}

DEVICE void feed_layer(const Layers& c, Shared& s, Thread& t, const u8* ring) {
    const Layer& l = s.layers[t.layer % 2];
    load_ahead(c, t);
    float4 norm = own_four(c, l.feed_norm);
    Run units = units_of(c, t.cluster);
    u32 blocks = dealt(units.count, t.rank), panels = (c.hidden + PANEL - 1) / PANEL;
    Weights held[HELD];
    Share in(c.hidden, 4 * blocks);
    Pitch rows = of_rows(c.gate_up_pitch, c.hidden);
    hold_tiles(held, s, t.next, ring, rows, in);
    Share out(32 * units.count, dealt(c.hidden / TILE_ROWS, t.rank));
    Pitch slices = of_slices(units.first, most_units_of(c));
#if HOLDS_BOTH
    static_assert(HELD == MOST_TILES, "no tile of the first product is left in the ring");
    Weights after[HELD_FOR_UNITS];
    hold_tiles(after, s, t.next + in.tiles, ring, slices, out);
#endif
    keep_token(c, s, gather_token(c, s, t.row, c.attended, c.kv_heads), norm);
    float factor = norm_factor(c, s, c.feed_eps);

    Sums sums = multiply_tiles(held, s, t, ring, rows, in, s.token);
    keep_ahead(s, t);
    tell_units(c, s, t, sums, panels, blocks, factor);
#if !HOLDS_BOTH
    // In the registers that the first product leaves.
    auto& after = (Weights (&)[HELD_FOR_UNITS])held;
    hold_tiles(after, s, t.next, ring, slices, out);
#endif
    receive(s, t, UNITS + t.row, units.count * OPERAND_OF_BLOCK);

    sums = multiply_tiles(after, s, t, ring, slices, out, s.units[t.row]);
    tell_team(c, s, t, c.fed, sums, (out.cols + PANEL - 1) / PANEL, out.tiles, l.down_bias);
}
