// What the layers share. Every file here is plain CUDA C in one text: NVRTC compiles it for a GPU, and the
// tests compile it for the processor behind tests/emulated/shim.h.
//
// T is the element of activations. Sums, statistics, weights and their gradients are floats. Blocks are
// one-dimensional and made of whole warps. No result depends on which block or warp comes first.

typedef long long i64;

#ifndef INFINITY // NVRTC has no headers
#define INFINITY __uint_as_float(0x7f800000u)
#endif
#define WARP 32
#define ALL_LANES 0xffffffffu
#define GLOBAL extern "C" __global__ void

#ifdef BF16
struct T { unsigned short bits; };

__device__ float get(const T* x, i64 at) { return __uint_as_float((unsigned)x[at].bits << 16); }

#ifndef EMULATED
// Two numbers to the nearest, ties to even; what is not a number stays none.
__device__ unsigned pack(float low, float high) {
    unsigned both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
#endif

__device__ void put(T* x, i64 at, float value) { x[at].bits = (unsigned short)pack(value, 0.0f); }
#else
typedef float T;
__device__ float get(const T* x, i64 at) { return x[at]; }
__device__ void put(T* x, i64 at, float value) { x[at] = value; }
#endif

__device__ int lane() { return threadIdx.x % WARP; }
__device__ int warp() { return threadIdx.x / WARP; }

__device__ float warp_sum(float x) {
    for (int step = WARP / 2; step; step /= 2) x += __shfl_xor_sync(ALL_LANES, x, step);
    return x;
}

__device__ double warp_sum(double x) {
    for (int step = WARP / 2; step; step /= 2) x += __shfl_xor_sync(ALL_LANES, x, step);
    return x;
}

__device__ float warp_max(float x) {
    for (int step = WARP / 2; step; step /= 2) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, step));
    return x;
}

// The sum over all threads of a block, for all of them.
__device__ double block_sum(double x) {
    __shared__ double sums[WARP];
    x = warp_sum(x);
    __syncthreads();
    if (lane() == 0) sums[warp()] = x;
    __syncthreads();
    x = 0.0;
    for (int i = 0; i < blockDim.x / WARP; i++) x += sums[i];
    return x;
}

__device__ float block_max(float x) {
    __shared__ float tops[WARP];
    x = warp_max(x);
    __syncthreads();
    if (lane() == 0) tops[warp()] = x;
    __syncthreads();
    for (int i = 0; i < blockDim.x / WARP; i++) x = fmaxf(x, tops[i]);
    return x;
}

// Elements of a thread in kernels that treat each on its own.
#define CHUNK 8
#define EACH(i, n) EACH_OF_BLOCK(i, n, (i64)blockIdx.x)
#define EACH_OF_BLOCK(i, n, block) \
    for (i64 i = (block) * blockDim.x * CHUNK + threadIdx.x, end_ = i + blockDim.x * CHUNK; \
         i < end_ && i < (n); i += blockDim.x)

// Of a table of tensors, each of which has blocks of its own from `first` on, the one that this block is of.
template <class Row> __device__ Row row_of_block(const Row* rows, int n) {
    int found = 0;
    for (int after = n; after - found > 1;) {
        int middle = (found + after) / 2;
        if (rows[middle].first <= blockIdx.x) found = middle;
        else after = middle;
    }
    return rows[found];
}

// So many that lie together, which a thread moves in accesses of 16 bytes where they are all there and lie on
// such a boundary. It has read all before it writes, so a result may take the place of an operand.
struct Chunk {
    float x[CHUNK];
};
#define EACH_OF_CHUNK(j) _Pragma("unroll") for (int j = 0; j < CHUNK; j++)

__device__ i64 chunk_start() { return ((i64)blockIdx.x * blockDim.x + threadIdx.x) * CHUNK; }

// How many of `n` are left from `at` on, for a chunk.
__device__ int chunk_len(i64 at, i64 n) { return at >= n ? 0 : n - at < CHUNK ? (int)(n - at) : CHUNK; }

__device__ bool is_whole(const void* x, int n) { return n == CHUNK && (unsigned long long)x % 16 == 0; }

// The first n elements at x, then zeros.
__device__ Chunk load(const float* x, int n) {
    Chunk c;
    if (is_whole(x, n)) {
        float4 low = ((const float4*)x)[0], high = ((const float4*)x)[1];
        return {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
    }
    EACH_OF_CHUNK(j) c.x[j] = j < n ? x[j] : 0.0f;
    return c;
}

__device__ void store(float* x, const Chunk& c, int n) {
    if (is_whole(x, n)) {
        ((float4*)x)[0] = {c.x[0], c.x[1], c.x[2], c.x[3]};
        ((float4*)x)[1] = {c.x[4], c.x[5], c.x[6], c.x[7]};
        return;
    }
    EACH_OF_CHUNK(j) if (j < n) x[j] = c.x[j];
}

#ifdef BF16
__device__ Chunk load(const T* x, int n) {
    Chunk c;
    if (is_whole(x, n)) {
        uint4 all = *(const uint4*)x;
        unsigned pairs[CHUNK / 2] = {all.x, all.y, all.z, all.w};
        EACH_OF_CHUNK(j) c.x[j] = __uint_as_float(j % 2 ? pairs[j / 2] & 0xffff0000u : pairs[j / 2] << 16);
        return c;
    }
    EACH_OF_CHUNK(j) c.x[j] = j < n ? get(x, j) : 0.0f;
    return c;
}

__device__ void store(T* x, const Chunk& c, int n) {
    if (is_whole(x, n)) {
        *(uint4*)x = {pack(c.x[0], c.x[1]), pack(c.x[2], c.x[3]), pack(c.x[4], c.x[5]), pack(c.x[6], c.x[7])};
        return;
    }
    EACH_OF_CHUNK(j) if (j < n) put(x, j, c.x[j]);
}
#endif
