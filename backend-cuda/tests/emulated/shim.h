// Runs CUDA C on the processor, put before the kernels' text: blocks one after another, each thread of a
// block a fiber that runs until a barrier or a shuffle, and each warp as far ahead of the next as barriers let it. Every
// other launch takes blocks, warps and threads backwards, so that a result that hangs on their order differs from call to
// call. Shared memory holds what is no number when a block begins.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <tuple>
#include <ucontext.h>
#include <utility>
#include <vector>

struct Extent { int x, y, z; };
static Extent gridDim, blockDim, blockIdx, threadIdx;

#define EMULATED
#define __global__
#define __device__ inline
#define __shared__ static __attribute__((section("shared_memory")))
#define __launch_bounds__(...)
using std::max;
using std::min;

static float __uint_as_float(unsigned bits) { float x; memcpy(&x, &bits, 4); return x; }
static unsigned __float_as_uint(float x) { unsigned bits; memcpy(&bits, &x, 4); return bits; }

struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };

// To the nearest, ties to even; what is not a number stays none.
static unsigned bf16_bits(float value) {
    unsigned bits = __float_as_uint(value);
    bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    return is_nan ? 0x7fc0u : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}
static unsigned pack(float low, float high) { return bf16_bits(low) | bf16_bits(high) << 16; }

namespace emulation {

enum State { RUNS, AT_BLOCK, AT_WARP, DONE };

// Where a fiber goes on: the compiler's own jumps save no more than they must, and there are many.
typedef void* Place[5];
[[noreturn]] static __attribute__((noipa)) void jump(Place& to) { __builtin_longjmp(to, 1); }

// Kept from block to block: a new context costs system calls.
struct Fiber {
    ucontext_t context;
    Place resume;
    bool has_begun;
    char* stack; // never freed: launches may be under way at the end
};

const int WARP_SIZE = 32, MAX_THREADS = 1024, STACK = 64 * 1024;
static Fiber fibers[MAX_THREADS];
static State states[MAX_THREADS];
static Place scheduler;
static int running;
// What lanes of a warp give each other, in two places by turns: who is ahead writes the other one, and cannot come round to
// the first before all have come to the wait between, and so have read it.
static double slots[2][MAX_THREADS];
static bool turn[MAX_THREADS];
static void (*body)(void**);
static void** arguments;
static const char* fault;

static __attribute__((noipa)) void wait(State state) {
    states[running] = state;
    if (!__builtin_setjmp(fibers[running].resume)) jump(scheduler);
}

static void enter() {
    while (true) {
        body(arguments);
        wait(DONE); // for the next block
    }
}

static void begin(Fiber& fiber) {
    if (!fiber.stack) fiber.stack = (char*)malloc(STACK);
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack;
    fiber.context.uc_stack.ss_size = STACK - running * 192 % 16384; // they share no lines of a cache
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, enter, 0);
    fiber.has_begun = true;
    setcontext(&fiber.context);
}

static __attribute__((noipa)) void resume(int thread) {
    Fiber& fiber = fibers[thread];
    running = thread;
    threadIdx = {thread, 0, 0};
    if (__builtin_setjmp(scheduler)) return;
    if (fiber.has_begun) jump(fiber.resume);
    begin(fiber);
}

// Lets the n threads from `first` on run again if all wait for the same, and says whether they do.
static bool release(int first, int n, State state) {
    for (int i = first; i < first + n; i++)
        if (states[i] != state) return false;
    for (int i = first; i < first + n; i++) states[i] = RUNS;
    return true;
}

// As far as a warp comes without the others.
static void run_warp(int first, bool is_backwards) {
    do {
        for (int i = 0; i < WARP_SIZE; i++) {
            int thread = first + (is_backwards ? WARP_SIZE - 1 - i : i);
            if (states[thread] == RUNS) resume(thread);
        }
    } while (release(first, WARP_SIZE, AT_WARP));
}

// Copies that a thread has begun. Each is done when its thread waits, no earlier; until then its place holds what is no
// number.
struct Copy { void* into; const void* from; size_t bytes; };
static std::vector<Copy> copies[MAX_THREADS];

static bool run_block(bool is_backwards) {
    int n = blockDim.x;
    for (int i = 0; i < n; i++) states[i] = RUNS;
    do {
        for (int i = 0; i < n; i += WARP_SIZE) run_warp(is_backwards ? n - WARP_SIZE - i : i, is_backwards);
    } while (release(0, n, AT_BLOCK));
    for (int i = 0; i < n; i++)
        if (states[i] != DONE) {
            for (Fiber& fiber : fibers) fiber.has_begun = false; // it is in the middle of something
            fault = "some threads of a block wait at a barrier or a shuffle that others do not come to";
            return false;
        }
    for (int i = 0; i < n; i++)
        if (!copies[i].empty()) {
            copies[i].clear();
            fault = "a block ends before copies that it began";
            return false;
        }
    return true;
}

// The value that lane `from` of this warp gives.
template <class V> static V exchange(V value, int from) {
    int thread = running;
    auto& given = slots[turn[thread] ^= true];
    memcpy(&given[thread], &value, sizeof value);
    wait(AT_WARP);
    memcpy(&value, &given[thread / WARP_SIZE * WARP_SIZE + from], sizeof value);
    return value;
}

struct Kernel { void (*body)(void**); int arity; };
static std::map<std::string, Kernel>& kernels() {
    static auto& all = *new std::map<std::string, Kernel>; // never destroyed either
    return all;
}

template <auto F, class... A, size_t... I>
static void apply(void (*)(A...), void** args, std::index_sequence<I...>) { F(*(A*)args[I]...); }
template <class... A> static auto count(void (*)(A...)) { return std::index_sequence_for<A...>(); }
template <auto F> static void call(void** args) { apply<F>(F, args, count(F)); }

template <class... A> static int arity(void (*)(A...)) { return sizeof...(A); }
template <auto F> static bool add(const char* name) { return kernels().emplace(name, Kernel{call<F>, arity(F)}).second; }

}  // namespace emulation

extern "C" char __start_shared_memory, __stop_shared_memory;

static void __syncthreads() { emulation::wait(emulation::AT_BLOCK); }
// Blocks run one after another.
static void __threadfence() {}
static unsigned atomicInc(unsigned* at, unsigned last) {
    unsigned before = *at;
    *at = before >= last ? 0 : before + 1;
    return before;
}
static float __ldcg(const float* x) { return *x; }
static float __fmul_rn(float a, float b) { return a * b; }
static void __syncwarp() { emulation::wait(emulation::AT_WARP); }
template <class V> static V __shfl_xor_sync(unsigned, V value, int mask) {
    return emulation::exchange(value, (threadIdx.x % emulation::WARP_SIZE) ^ mask);
}
template <class V> static V __shfl_sync(unsigned, V value, int from) { return emulation::exchange(value, from); }

// The warp's product: the lanes' parts are put together and each takes its own of the result.
template <class F> static void product(float* c, const unsigned* a, const unsigned* b, int depth, F element) {
    using namespace emulation;
    static unsigned lefts[2][MAX_THREADS][4], rights[2][MAX_THREADS][2];
    int thread = running, first = thread / WARP_SIZE * WARP_SIZE, lane = thread % WARP_SIZE;
    int in_lane = depth / 8; // elements of a register
    bool place = turn[thread] ^= true;
    auto& left = lefts[place];
    auto& right = rights[place];
    memcpy(left[thread], a, sizeof left[thread]);
    memcpy(right[thread], b, sizeof right[thread]);
    wait(AT_WARP);
    for (int i = 0; i < 4; i++) {
        int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        for (int k = 0; k < depth; k++) {
            int other = k / in_lane % 4, far = k / in_lane / 4;
            float x = element(left[first + row % 8 * 4 + other][row / 8 + far * 2], k % in_lane);
            c[i] += x * element(right[first + column * 4 + other][far], k % in_lane);
        }
    }
}

static void mma_bf16(float* c, const unsigned* a, const unsigned* b) {
    product(c, a, b, 16, [](unsigned pair, int which) {
        return __uint_as_float(which ? pair & 0xffff0000u : pair << 16);
    });
}
// Tensor cores leave all but 11 bits out.
static void mma_tf32(float* c, const unsigned* a, const unsigned* b) {
    product(c, a, b, 8, [](unsigned bits, int) { return __uint_as_float(bits & 0xffffe000u); });
}
// To the nearest, away from zero if there are two.
static unsigned tf32(float value) {
    unsigned bits = __float_as_uint(value);
    return (bits & 0x7f800000u) == 0x7f800000u ? bits : (bits + 0x1000u) & 0xffffe000u;
}

// The lanes' rows are put together and each takes its own elements.
template <bool IS_TRANSPOSED> static void load_matrices(unsigned* into, const unsigned short* row) {
    using namespace emulation;
    static const unsigned short* rows[MAX_THREADS];
    int thread = running, first = thread / WARP_SIZE * WARP_SIZE, r = thread % WARP_SIZE / 4, c = thread % 4 * 2;
    if (uintptr_t(row) % 16) {
        fprintf(stderr, "a row of a matrix of 8 x 8 lies on no boundary of 16 bytes\n");
        abort();
    }
    rows[thread] = row;
    wait(AT_WARP);
    for (int i = 0; i < 4; i++) {
        const unsigned short** matrix = rows + first + 8 * i;
        into[i] = IS_TRANSPOSED ? matrix[c][r] | matrix[c + 1][r] << 16 : matrix[r][c] | matrix[r][c + 1] << 16;
    }
    wait(AT_WARP);
}

template <int BYTES> static void copy_async(void* into, const void* from) {
    if ((uintptr_t(into) | uintptr_t(from)) % BYTES) {
        fprintf(stderr, "a copy of %d bytes lies on no such boundary\n", BYTES);
        abort();
    }
    memset(into, 0xff, BYTES);
    emulation::copies[emulation::running].push_back({into, from, BYTES});
}
static void wait_for_copies() {
    auto& mine = emulation::copies[emulation::running];
    for (auto& copy : mine) memcpy(copy.into, copy.from, copy.bytes);
    mine.clear();
}
static float power_of_two(float x) { return exp2f(x); }

// Dynamic shared memory: the largest that a block of a GPU can have, but 16 KiB for the rest.
static char dynamic_shared[211 * 1024] __attribute__((aligned(128)));

// How many arguments a kernel takes; -1 if there is none of this name.
extern "C" int arity(const char* name) {
    auto found = emulation::kernels().find(name);
    return found == emulation::kernels().end() ? -1 : found->second.arity;
}

// Static shared memory of a block: that of all kernels here, of which each has its part.
extern "C" size_t static_shared() { return &__stop_shared_memory - &__start_shared_memory; }

// Runs a kernel; null, or what went wrong.
extern "C" const char* emulate(const char* name, int across, int down, int block, size_t shared, void** args,
                               int is_backwards) {
    using namespace emulation;
    auto found = kernels().find(name);
    if (found == kernels().end()) return "there is no such kernel";
    if (block % WARP_SIZE || block > MAX_THREADS) return "blocks are whole warps, at most 1024 threads";
    if (shared > sizeof dynamic_shared) return "more shared memory than a block can have";
    body = found->second.body;
    arguments = args;
    gridDim = {across, down, 1};
    blockDim = {block, 1, 1};
    for (int i = 0; i < across * down; i++) {
        int number = is_backwards ? across * down - 1 - i : i;
        blockIdx = {number % across, number / across, 0};
        memset(&__start_shared_memory, 0xff, &__stop_shared_memory - &__start_shared_memory);
        memset(dynamic_shared, 0xff, shared);
        if (!run_block(is_backwards)) return fault;
    }
    return nullptr;
}
