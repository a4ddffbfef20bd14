//! How a matrix lies as tiles of bytes: 64 rows and 64 columns, in two halves of 32 rows, so that a block may have
//! gates of one tile and ups of another. A half has what each thread of a product has beside one another, and then
//! each row's two scales. Must not know who makes them, nor who multiplies.

#define HALF_ROWS 32
#define HALF_QUANTS (HALF_ROWS * 64)
/// Quants, which stand 128 too high, and two scales a row in half precision.
#define HALF_TILE (HALF_QUANTS + HALF_ROWS * 4)
#define TILE_ROWS (2 * HALF_ROWS)
#define TILE_BYTES (2 * HALF_TILE)

/// Where in a tile the 16 quants begin that a thread in 128 has of a block of 32 columns.
DEVICE u32 quants_at(u32 thread, u32 block) { return thread / 64 * HALF_TILE + block * (HALF_QUANTS / 2) + thread % 64 * 16; }
/// Where in a tile a row's two scales lie.
DEVICE u32 scales_at(u32 row) { return row / HALF_ROWS * HALF_TILE + HALF_QUANTS + row % HALF_ROWS * 4; }
