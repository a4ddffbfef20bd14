//! What every kernel needs: number formats, reductions, the order of launches. Includes no header,
//! so that the compiler library alone is enough to build it.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define DEVICE static __device__ __forceinline__
#define KERNEL extern "C" __global__
#define INFINITE __int_as_float(0x7f800000)
#define FULL 0xffffffffu

DEVICE float f32_of_f16(u16 h) { float f; asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h)); return f; }
DEVICE u16 f16_of_f32(float f) { u16 h; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f)); return h; }
DEVICE float f32_of_bf16(u16 h) { return __uint_as_float((u32)h << 16); }
DEVICE u16 bf16_of_f32(float f) { u16 h; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(f)); return h; }

/// Two halves in one word, the first in its lower part.
DEVICE u32 f16_pair(float a, float b) { u32 w; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(b), "f"(a)); return w; }
DEVICE u32 bf16_pair(float a, float b) { u32 w; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(b), "f"(a)); return w; }

/// Back from such words.
DEVICE float2 f32_of_f16_pair(u32 w) { return make_float2(f32_of_f16(w & 0xffff), f32_of_f16(w >> 16)); }
DEVICE float2 f32_of_bf16_pair(u32 w) { return make_float2(__uint_as_float(w << 16), __uint_as_float(w & 0xffff0000u)); }

/// Four numbers in bf16, and `apart` numbers on, unless that is zero, what is left of them.
DEVICE void store_brains(u16* to, u64 apart, float4 v) {
    u32 first = bf16_pair(v.x, v.y), second = bf16_pair(v.z, v.w);
    *(uint2*)to = make_uint2(first, second);
    if (apart == 0) return;
    float2 a = f32_of_bf16_pair(first), b = f32_of_bf16_pair(second);
    *(uint2*)(to + apart) = make_uint2(bf16_pair(v.x - a.x, v.y - a.y), bf16_pair(v.z - b.x, v.w - b.y));
}
/// The same of one.
DEVICE void store_brain(u16* to, u64 apart, float v) {
    u16 first = bf16_of_f32(v);
    *to = first;
    if (apart > 0) to[apart] = bf16_of_f32(v - f32_of_bf16(first));
}

/// Eight numbers of 16 bits each.
template <bool BRAIN> DEVICE void widen_eight(uint4 v, float* out) {
    u32 words[4] = {v.x, v.y, v.z, v.w};
    for (int i = 0; i < 4; i++) {
        float2 two = BRAIN ? f32_of_bf16_pair(words[i]) : f32_of_f16_pair(words[i]);
        out[2 * i] = two.x;
        out[2 * i + 1] = two.y;
    }
}

/// As instructions on shared memory want it.
DEVICE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

/// Starts a copy of 16 bytes to shared memory; of the last of them zeros are made where there are fewer.
DEVICE void copy16(u32 to, const u8* from, u32 bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
DEVICE void copy16(u32 to, const u8* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

/// 16 bytes of shared memory.
DEVICE uint4 shared16(u32 from) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(from) : "memory");
    return v;
}

/// How the second-level cache treats what nobody reads again soon: it leaves before anything else.
DEVICE u64 leaves_first() {
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
DEVICE void copy16_under(u64 policy, u32 to, const u8* from) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "l"(policy) : "memory");
}

/// Blocks until the launch before this one has finished and its memory can be read. Every kernel
/// calls it, so that one launch behind implies all launches behind.
DEVICE void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Lets the next launch begin with what needs none of our results.
DEVICE void let_next_begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Blocks of a cluster, where the device has them; else each is alone.
DEVICE u32 cluster_rank() {
    u32 rank = 0;
#if __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
    return rank;
}
DEVICE u32 cluster_size() {
    u32 size = 1;
#if __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
#endif
    return size;
}
DEVICE void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
#endif
}
DEVICE void cluster_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
}
/// Writes to another block of the cluster, at the place of ours.
DEVICE void send(float* ours, u32 rank, float value) {
#if __CUDA_ARCH__ >= 900
    u32 at;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"((u32)__cvta_generic_to_shared(ours)), "r"(rank));
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(at), "f"(value) : "memory");
#else
    *ours = value;
#endif
}

DEVICE float warp_sum(float x) {
    for (int lane = 16; lane > 0; lane >>= 1) x += __shfl_xor_sync(FULL, x, lane);
    return x;
}
DEVICE float warp_max(float x) {
    for (int lane = 16; lane > 0; lane >>= 1) x = fmaxf(x, __shfl_xor_sync(FULL, x, lane));
    return x;
}

/// The sum over a block of whole warps, in every thread. `shared` holds 33 floats.
DEVICE float block_sum(float x, float* shared) {
    u32 warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    x = warp_sum(x);
    if (lane == 0) shared[warp] = x;
    __syncthreads();
    float all = lane < warps ? shared[lane] : 0.0f;
    all = warp_sum(all);
    __syncthreads();
    return all;
}

// Activations are numbered as the host numbers them.
#define SILU 0
#define GELU_TANH 1
#define CLAMPED_SWIGLU 2

DEVICE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

DEVICE float gated(float gate, float up, u32 activation, float alpha, float limit) {
    if (activation == SILU) return gate * sigmoid(gate) * up;
    if (activation == GELU_TANH) {
        float inner = 0.7978845608028654f * (gate + 0.044715f * gate * gate * gate);
        return 0.5f * gate * (1.0f + tanhf(inner)) * up;
    }
    gate = fminf(gate, limit);
    return gate * sigmoid(alpha * gate) * (fminf(fmaxf(up, -limit), limit) + 1.0f);
}

/// The same where nothing but bf16 is kept of it, by the approximations that instructions give, whose errors are a
/// thousandth of what rounding leaves.
template <u32 ACTIVATION> DEVICE float gated_about(float gate, float up, float alpha, float limit) {
    auto sigmoid = [](float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); };
    if (ACTIVATION == SILU) return gate * sigmoid(gate) * up;
    // (1 + tanh(x)) / 2 = sigmoid(2 x)
    if (ACTIVATION == GELU_TANH) return gate * sigmoid(1.5957691216057308f * (gate + 0.044715f * gate * gate * gate)) * up;
    gate = fminf(gate, limit);
    return gate * sigmoid(alpha * gate) * (fminf(fmaxf(up, -limit), limit) + 1.0f);
}

// Element types of the cache, numbered as the host numbers them.
#define KV_F32 0
#define KV_F16 1
#define KV_BF16 2
#define KV_Q8_0 3

/// The scales of a cache in Q8_0, one for each 32 numbers: they lie behind all of its `elements`.
DEVICE u16* kv_scales(const u8* base, u64 elements) { return (u16*)(base + elements); }

DEVICE float load_element(const u8* base, u64 index, u32 type, u64 elements) {
    if (type == KV_F32) return ((const float*)base)[index];
    if (type == KV_Q8_0) return (float)(signed char)base[index] * f32_of_f16(kv_scales(base, elements)[index / 32]);
    u16 half = ((const u16*)base)[index];
    return type == KV_F16 ? f32_of_f16(half) : f32_of_bf16(half);
}

/// A number in signed bytes under the scale of a block with this largest magnitude, as `fornax_gguf::quant::Q8_0`
/// has it.
DEVICE int quantise_under(float x, float largest, u16& scale) {
    float d = __fdiv_rn(largest, 127.0f), inverse = d == 0.0f ? 0.0f : __fdiv_rn(1.0f, d);
    scale = f16_of_f32(d);
    return (int)roundf(x * inverse);
}
/// One number of each lane, which are a block.
DEVICE int quantise(float x, u16& scale) { return quantise_under(x, warp_max(fabsf(x)), scale); }

/// A head to its place from element `at` on. Called by a warp; heads in Q8_0 are whole blocks of 32.
DEVICE void store_head(u8* base, u64 at, u32 type, u64 elements, const float* head, u32 dim) {
    u32 lane = threadIdx.x % 32;
    for (u32 i = lane; i < dim; i += 32) {
        if (type == KV_Q8_0) {
            u16 scale;
            base[at + i] = (u8)quantise(head[i], scale);
            if (lane == 0) kv_scales(base, elements)[(at + i) / 32] = scale;
        } else if (type == KV_F32) ((float*)base)[at + i] = head[i];
        else ((u16*)base)[at + i] = type == KV_F16 ? f16_of_f32(head[i]) : bf16_of_f32(head[i]);
    }
}

/// What the host writes about a new token.
struct Token { u32 id, position, row, from; };
/// Where a row's new tokens lie.
struct Row { u32 start, len, cached, table; };
/// The first position that one sees, of a window's last ones where there is one.
DEVICE u32 first_seen(u32 position, u32 window) { return window && position + 1 > window ? position + 1 - window : 0; }
