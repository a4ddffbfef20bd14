//! What products share that stream their weights through shared memory: their parameters, and the
//! barriers of a stage. Must not know who fetches, nor which rows are whose.

DEVICE void barrier_init(u32 barrier, u32 count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(count));
}
DEVICE void barrier_arrive(u32 barrier) {
    asm volatile("{ .reg .b64 t; mbarrier.arrive.shared.b64 t, [%0]; }" ::"r"(barrier) : "memory");
}
DEVICE void barrier_wait(u32 barrier, u32 parity) {
    u32 done = 0;
    while (!done)
#if __CUDA_ARCH__ >= 900
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
#else
        asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
#endif
}

/// Four numbers of a row that is `cols` long, zeros behind its end.
DEVICE float4 four(const float* row, u32 i, u32 cols) {
    float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (cols % 4 == 0) {
        if (4 * i < cols) v = *(const float4*)(row + 4 * i);
        return v;
    }
    if (4 * i < cols) v.x = row[4 * i];
    if (4 * i + 1 < cols) v.y = row[4 * i + 1];
    if (4 * i + 2 < cols) v.z = row[4 * i + 2];
    if (4 * i + 3 < cols) v.w = row[4 * i + 3];
    return v;
}

struct Product {
    float* out;       // [n, stride] from a column on; not written where null
    float* residual;  // [n, stride], added to where not null
    const u8* weight; // [rows or second + rows, pitch]
    const float* bias;
    const float* x;    // [n, cols]
    const float* norm; // [cols], where x is still to be normed
    float* normed;     // [n, cols], what the norm gives; not written where null
    u32* best;         // [n, blocks, 4]: largest, where, sum of exponentials, whether unsound
    const u32* pick;   // [n], the rows of x where they are not the first ones
    const u8* ahead;   // weights of a launch to come, which are brought near
    float eps, alpha, limit;
    u32 n, rows, cols, padded, pitch, stride, column, second, activation, stages, stage_pitch, ahead_bytes;
    u32 tile_rows; // that are streamed together: 1, 2, 4 or 8
};
