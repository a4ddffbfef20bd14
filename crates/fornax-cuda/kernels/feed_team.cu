//! The second half of a layer: norm, gate and up, and down again, for a share of the units in each
//! cluster, so that nothing of it but the last product's parts leaves a cluster. Must not know the other
//! team.
//!
//! Bytes: a cluster's share of the weights.

/// Rows of a gate, and as many of its up, are one tile.
#define UNITS_OF_TILE (TILE_ROWS / 2)

DEVICE void feed_layer(const Layers& c, Shared& s, Thread& t, const u8* ring) {
    const Layer& l = s.layers[t.layer % 2];
    u32 tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
    if (tid < sizeof(Layer) / 8 && t.layer + 1 < c.count) t.ahead = ((const u64*)(c.layers + t.layer + 1))[tid];
    float4 weights = norm_of_slice(c, t, l.feed_norm);
    float4 own = gather_slice(c, s, t, c.attended, c.kv_heads, t.layer);
    share_token(c, s, t, own, weights);

    u32 blocks = blocks_of(c, t.cluster), units = 32 * blocks, panels = (c.hidden + PANEL - 1) / PANEL;
    u32 tiles = dealt(units / UNITS_OF_TILE, t.rank);
    auto sums = multiply_tiles(s, t, ring, of_rows(c.gate_up_pitch, c.hidden), tiles, s.normed, c.hidden);
    keep_ahead(s, t);
    float factor = norm_factor(c, s, c.feed_eps);
    for (u32 i = lane; i < tiles * UNITS_OF_TILE; i += 32) {
        u32 tile = i / UNITS_OF_TILE, unit = i % UNITS_OF_TILE, row = tile * TILE_ROWS + unit;
        float gate = sum_of(sums, row, panels) * factor, up = sum_of(sums, row + UNITS_OF_TILE, panels) * factor;
        tell_peer(s.units + (t.rank + tile * TEAM) * UNITS_OF_TILE + unit, warp, s.received + UNITS, gated(gate, up, c.activation, c.alpha, c.limit));
    }
    receive(s, t, UNITS, 4 * units);

    tiles = dealt(c.hidden / TILE_ROWS, t.rank);
    sums = multiply_tiles(s, t, ring, of_slices(first_block_of(c, t.cluster), blocks), tiles, s.units, units);
    tell_team(c, s, t, c.fed, c.feeders, sums, (units + PANEL - 1) / PANEL, tiles, l.down_bias);
}
