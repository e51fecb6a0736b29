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

// To the nearest, ties to even; what is not a number stays none.
__device__ void put(T* x, i64 at, float value) {
    unsigned bits = __float_as_uint(value);
    bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    x[at].bits = (unsigned short)(is_nan ? 0x7fc0u : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
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

// Elements of a block in kernels that treat each on its own: a few for each thread.
#define EACH(i, n) \
    for (i64 i = (i64)blockIdx.x * blockDim.x * 4 + threadIdx.x, end_ = i + blockDim.x * 4; \
         i < end_ && i < (n); i += blockDim.x)
