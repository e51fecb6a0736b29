// What tensor cores take of bf16: products of 16 x 8 x 16, with two elements in a register.

// An element in shared memory, what a register has of an operand, and the columns of `a` that a product sums over.
typedef unsigned short Cell;
typedef unsigned Part;
#define DEPTH 16
// As far as registers go: blocks of the narrow forward for a multiprocessor, rows of a warp in the narrow backward, times
// 16, and whether the gradient of queries holds its own.
#define NARROW_BLOCKS 3
#define NARROW_ROWS 2
#define HOLDS true

__device__ Cell cell(T x) { return x.bits; }
__device__ T element(Cell x) { return {x}; }

#ifndef EMULATED
// c += a b
__device__ void mma_bf16(float* c, const unsigned* a, const unsigned* b) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Four matrices of 8 x 8, whose rows the lanes name in turn. Lane 4 r + c gets of each the elements 2 c and
// 2 c + 1 of row r; transposed, of column r.
template <bool IS_TRANSPOSED> __device__ void load_matrices(unsigned* into, const Cell* row) {
    unsigned at = (unsigned)__cvta_generic_to_shared(row);
    if (IS_TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(into[0]), "=r"(into[1]), "=r"(into[2]), "=r"(into[3])
                     : "r"(at)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(into[0]), "=r"(into[1]), "=r"(into[2]), "=r"(into[3])
                     : "r"(at)
                     : "memory");
}
#endif

__device__ void multiply_add(float* c, const Part* a, const Part* b) { mma_bf16(c, a, b); }

// The part of 16 rows of `a`, from `row` on, that a lane has.
template <int PITCH> __device__ const Cell* left_place(const Cell* a, int row) {
    return a + (row + lane() % 16) * PITCH + lane() / 16 * 8;
}
template <int PITCH> __device__ void load_left(Part* left, const Cell* at) { load_matrices<false>(left, at); }

// Those of two groups of 8 columns of `b`, whose rows are columns if IS_ROWS.
template <int PITCH, bool IS_ROWS> __device__ const Cell* right_place(const Cell* b) {
    int row = lane() % 8, near = lane() / 8 % 2 * 8, far = lane() / 16 * 8;
    return IS_ROWS ? b + (far + row) * PITCH + near : b + (near + row) * PITCH + far;
}
template <int PITCH, bool IS_ROWS> __device__ void load_right(Part* right, const Cell* at) {
    load_matrices<!IS_ROWS>(right, at);
}

// The k-th part of an operand, of the groups of 8 columns of 16 rows that a result has.
__device__ void part_of(Part* left, const float groups[][4], int k) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float* pair = groups[2 * k + i / 2] + i % 2 * 2;
        left[i] = pack(pair[0], pair[1]);
    }
}

__device__ void put_pair(Cell* to, float low, float high) { *(unsigned*)to = pack(low, high); }
