// What tensor cores take of f32: products of 16 x 8 x 8, whose operands they read as tf32, which has 11 bits.

// An element in shared memory, what a register has of an operand, and the columns of `a` that a product sums over.
typedef float Cell;
typedef float Part;
#define DEPTH 8
// As far as registers go: blocks of the narrow forward for a multiprocessor, rows of a warp in the narrow backward, times
// 16, and whether the gradient of queries holds its own.
#define NARROW_BLOCKS 2
#define NARROW_ROWS 1
#define HOLDS false

__device__ Cell cell(T x) { return x; }
__device__ T element(Cell x) { return x; }

#ifndef EMULATED
// c += a b
__device__ void mma_tf32(float* c, const unsigned* a, const unsigned* b) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ unsigned tf32(float x) {
    unsigned rounded;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(x));
    return rounded;
}
#endif

#ifdef TF32
// c += a b, of operands rounded to 11 bits.
__device__ void multiply_add(float* c, const Part* a, const Part* b) {
    unsigned left[4], right[2];
#pragma unroll
    for (int i = 0; i < 4; i++) left[i] = tf32(a[i]);
#pragma unroll
    for (int i = 0; i < 2; i++) right[i] = tf32(b[i]);
    mma_tf32(c, left, right);
}
#else
// A number as the sum of two of 11 bits. What is no number may be one in `first`, but not in `rest`.
__device__ void split(float x, unsigned& first, unsigned& rest) {
    first = (__float_as_uint(x) + 0x1000u) & 0xffffe000u; // as `tf32`, for which a multiprocessor has few units
    rest = __float_as_uint(x - __uint_as_float(first));
}

// c += a b. Of the four products of two sums the last one is less than what f32 rounds off.
__device__ void multiply_add(float* c, const Part* a, const Part* b) {
    unsigned left[4], left_rest[4], right[2], right_rest[2];
#pragma unroll
    for (int i = 0; i < 4; i++) split(a[i], left[i], left_rest[i]);
#pragma unroll
    for (int i = 0; i < 2; i++) split(b[i], right[i], right_rest[i]);
    mma_tf32(c, left_rest, right);
    mma_tf32(c, left, right_rest);
    mma_tf32(c, left, right);
}
#endif

// The part of 16 rows of `a`, from `row` on, that a lane has: rows r and r + 8, columns c and c + 4.
template <int PITCH> __device__ const Cell* left_place(const Cell* a, int row) {
    return a + (row + lane() / 4) * PITCH + lane() % 4;
}
template <int PITCH> __device__ void load_left(Part* left, const Cell* at) {
#pragma unroll
    for (int i = 0; i < 4; i++) left[i] = at[i % 2 * 8 * PITCH + i / 2 * 4];
}

// Those of two groups of 8 columns of `b`. If its rows are columns, then as in `a`; else rows 2 c and 2 c + 1, since a
// lane has these columns of a result. Either way lanes read from different banks.
template <int PITCH, bool IS_ROWS> __device__ const Cell* right_place(const Cell* b) {
    int row = lane() / 4, near = lane() % 4;
    return IS_ROWS ? b + row * PITCH + near : b + 2 * near * PITCH + row;
}
template <int PITCH, bool IS_ROWS> __device__ void load_right(Part* right, const Cell* at) {
#pragma unroll
    for (int i = 0; i < 4; i++)
        right[i] = IS_ROWS ? at[i / 2 * 8 * PITCH + i % 2 * 4] : at[i % 2 * PITCH + i / 2 * 8];
}

// The k-th part of an operand, of the groups of 8 columns of 16 rows that a result has.
__device__ void part_of(Part* left, const float groups[][4], int k) {
#pragma unroll
    for (int i = 0; i < 4; i++) left[i] = groups[k][i % 2 * 2 + i / 2];
}

__device__ void put_pair(Cell* to, float low, float high) { *(float2*)to = {low, high}; }
