//! cuBLASLt's functions that Fornax calls: products of brain floats, added up in single precision by plain loops.
//! Matrices count columns first.

#include <cstdint>
#include <cstring>
#include <vector>

#include "device.h"

namespace {

enum Status { SUCCESS = 0, NOT_SUPPORTED = 15 };
enum Kind { SINGLE = 0, BRAIN = 14 };

struct Layout { int kind; uint64_t rows, cols; int64_t stride; };
/// `cublasLtMatmulHeuristicResult_t`
struct Found { uint64_t algorithm[8]; size_t workspace; int state; float waves; int reserved[4]; };

std::vector<float> numbers(const Layout& layout, const uint16_t* from) {
    std::vector<float> out(layout.rows * layout.cols);
    for (uint64_t col = 0; col < layout.cols; col++)
        for (uint64_t row = 0; row < layout.rows; row++) out[col * layout.rows + row] = emu_of_brain(from[int64_t(col) * layout.stride + int64_t(row)]);
    return out;
}

/// `out` = left, turned, times right, and `before` times what is there.
void multiply(const Layout& left, const uint16_t* a, const Layout& right, const uint16_t* b, const Layout& out, void* to, float before) {
    const std::vector<float> weights = numbers(left, a), x = numbers(right, b);
    for (uint64_t col = 0; col < out.cols; col++)
        for (uint64_t row = 0; row < out.rows; row++) {
            float sum = 0.0f;
            const float *one = &weights[row * left.rows], *other = &x[col * right.rows];
            for (uint64_t k = 0; k < left.rows; k++) sum += one[k] * other[k];
            int64_t at = int64_t(col) * out.stride + int64_t(row);
            if (out.kind == BRAIN) {
                uint16_t& place = ((uint16_t*)to)[at];
                place = emu_brain(before == 0.0f ? sum : sum + before * emu_of_brain(place));
            } else {
                float& place = ((float*)to)[at];
                place = before == 0.0f ? sum : sum + before * place;
            }
        }
}

} // namespace

extern "C" {

int cublasLtCreate(void** handle) { *handle = (void*)multiply; return SUCCESS; }
int cublasLtDestroy(void*) { return SUCCESS; }
int cublasLtMatmulDescCreate(void** operation, int, int) { *operation = (void*)multiply; return SUCCESS; }
int cublasLtMatmulDescDestroy(void*) { return SUCCESS; }
int cublasLtMatmulDescSetAttribute(void*, int, const void*, size_t) { return SUCCESS; }
int cublasLtMatmulPreferenceCreate(void** preference) { *preference = (void*)multiply; return SUCCESS; }
int cublasLtMatmulPreferenceDestroy(void*) { return SUCCESS; }
int cublasLtMatmulPreferenceSetAttribute(void*, int, const void*, size_t) { return SUCCESS; }
int cublasLtMatrixLayoutCreate(Layout** layout, int kind, uint64_t rows, uint64_t cols, int64_t stride) {
    *layout = new Layout{kind, rows, cols, stride};
    return SUCCESS;
}
int cublasLtMatrixLayoutDestroy(Layout* layout) { delete layout; return SUCCESS; }
int cublasLtMatmulAlgoGetHeuristic(void*, void*, const Layout* left, const Layout* right, const Layout*, const Layout* out, void*, int, Found* found, int* count) {
    if (left->kind != BRAIN || right->kind != BRAIN || (out->kind != SINGLE && out->kind != BRAIN)) return NOT_SUPPORTED;
    *found = {};
    *count = 1;
    return SUCCESS;
}
int cublasLtMatmulAlgoCheck(void*, void*, const Layout*, const Layout*, const Layout*, const Layout*, const void*, Found* found) { *found = {}; return SUCCESS; }
int cublasLtMatmulAlgoConfigGetAttribute(const void*, int, void* value, size_t bytes, size_t*) { memset(value, 0, bytes); return SUCCESS; }
int cublasLtMatmul(void*, void*, const float*, const uint16_t* a, const Layout* left, const uint16_t* b, const Layout* right, const float* before, const void*,
                   const Layout*, void* to, const Layout* out, const void*, void*, size_t, void* stream) {
    emu_take(stream, [=, left = *left, right = *right, out = *out, before = *before] { multiply(left, a, right, b, out, to, before); });
    return SUCCESS;
}
}
