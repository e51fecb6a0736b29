// Products on tensor cores, sums in f32, of rows that a warp has of its own with tiles in shared memory. What a product
// takes is in tensor_cores_bf16.cu and tensor_cores_f32.cu.
//
// In a warp lane 4 r + c holds of each 8 columns of a result the columns 2 c and 2 c + 1, in the rows r and r + 8.

// A kernel has a WIDTH, of a tile: the most features of a head, 64 or 128. And ROWS, times 16 that a warp has of its
// own: more rows to a load, as far as registers go.
#define ACCESS 16 // bytes of the widest one
#define CELLS (ACCESS / (int)sizeof(Cell)) // of it
#define TILE (8192 / (int)sizeof(Cell) / WIDTH) // rows: as much memory for any width
#define PITCH (WIDTH + CELLS) // a row of a tile: what lanes read together lies in different banks
#define WARPS 4
#define OWN_ROWS (ROWS * WARPS * 16)
#define STEP (TILE < 32 ? TILE : 32) // columns of scores at once: fewer registers, so that more blocks share a multiprocessor
#define GROUPS (WIDTH / 8) // of 8 columns of a row of features
#define STEP_GROUPS (STEP / 8)
#define COLUMNS (2 * G) // of a row, that a lane holds

#ifndef EMULATED
// 4 or 16 bytes on their way to shared memory, where they are after `wait_for_copies` of this thread.
template <int BYTES> __device__ void copy_async(void* into, const void* from) {
    unsigned at = (unsigned)__cvta_generic_to_shared(into);
    unsigned long long there = (unsigned long long)__cvta_generic_to_global(from);
    if (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(at), "l"(there) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" : : "r"(at), "l"(there) : "memory");
}

__device__ void wait_for_copies() { asm volatile("cp.async.wait_all;" : : : "memory"); }

__device__ float power_of_two(float x) {
    asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(x));
    return x;
}

#endif

// Keeps what is made of a number where it is made: ahead of a loop it would take registers all along.
__device__ int here(int x) {
#ifndef EMULATED
    asm volatile("" : "+r"(x));
#endif
    return x;
}

// A tile in shared memory, and a result of ROWS times 16 rows and 8 G columns.
template <int WIDTH> using Tile = Cell[TILE * PITCH];
template <int ROWS, int G> struct Result {
    float x[ROWS][G][4];
    // Column `column(j)` of row 8 r of this lane's.
    __device__ float& at(int r, int j) { return x[r / 2][j / 2][r % 2 * 2 + j % 2]; }
};
#define EACH_COLUMN(j) _Pragma("unroll") for (int j = 0; j < COLUMNS; j++)
#define EACH_ROW(r) _Pragma("unroll") for (int r = 0; r < 2 * ROWS; r++)

__device__ int column(int j) { return j / 2 * 8 + lane() % 4 * 2 + j % 2; }

__device__ float quad_sum(float x) {
    x += __shfl_xor_sync(ALL_LANES, x, 1);
    return x + __shfl_xor_sync(ALL_LANES, x, 2);
}

__device__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 1));
    return fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 2));
}

// How many of `n` elements an access from `at` on has, and whether it is one.
__device__ int n_cells(i64 at, i64 n) { return at >= n ? 0 : n - at < CELLS ? (int)(n - at) : CELLS; }
__device__ bool is_access(const void* x, int n) { return n == CELLS && (unsigned long long)x % ACCESS == 0; }

// Rows first .. first + TILE of one head, with zeros where there is nothing; they may come later.
template <int WIDTH>
__device__ void load_tile(Tile<WIDTH>& into, const T* from, int row_step, int first, int context, int dim) {
    const int PARTS = WIDTH / CELLS, AT_ONCE = WARPS * WARP / PARTS; // of a row, and rows
    int row = threadIdx.x / PARTS, d = threadIdx.x % PARTS * CELLS;
    const T* x = from + (i64)(first + row) * row_step + d;
    Cell* to = into + row * PITCH + d;
    // Most tiles are whole, and a question to each of their parts would cost as much as the products.
    // Heads of 80 or 96 features are common as well: what they lack are whole parts.
    bool is_dense = dim == WIDTH || WIDTH > 64 && dim % CELLS == 0;
    if (is_dense && first + TILE <= context && row_step % CELLS == 0 && (unsigned long long)from % ACCESS == 0) {
        bool is_there = WIDTH == 64 || d < dim;
#pragma unroll
        for (int part = 0; part < TILE / AT_ONCE; part++) {
            Cell* at = to + part * AT_ONCE * PITCH;
            if (is_there) copy_async<ACCESS>(at, x + (i64)part * AT_ONCE * row_step);
            else *(uint4*)at = {};
        }
        return;
    }
    row = here(row);
#pragma unroll 1
    for (; row < TILE; row += AT_ONCE, to += AT_ONCE * PITCH, x += (i64)AT_ONCE * row_step) {
        int m = first + row < context ? n_cells(d, dim) : 0;
        if (is_access(x, m)) {
            copy_async<ACCESS>(to, x);
        } else {
#pragma unroll 1
            for (int j = 0; j < CELLS; j++) to[j] = j < m ? cell(x[j]) : 0;
        }
    }
}

// c += a b for the rows of this warp, with the k-th DEPTH columns of a in `left` and b in a tile: its
// rows are those of b, or with IS_ROWS the columns.
template <int WIDTH, bool IS_ROWS, int ROWS, int G>
__device__ void multiply_part(Result<ROWS, G>& c, const Part left[][4], const Cell* b, int k) {
    const Cell* at = right_place<PITCH, IS_ROWS>(b) + k * DEPTH * (IS_ROWS ? 1 : PITCH);
#pragma unroll
    for (int group = 0; group < G; group += 2) {
        Part right[4];
        load_right<PITCH, IS_ROWS>(right, at + group * 8 * (IS_ROWS ? PITCH : 1));
#pragma unroll
        for (int m = 0; m < ROWS; m++) {
            multiply_add(c.x[m][group], left[m], right);
            multiply_add(c.x[m][group + 1], left[m], right + 2);
        }
    }
}

// The rows of this warp in a tile, as the left side of a product: read anew for each, or held.
template <int WIDTH, int ROWS, bool IS_HELD> struct Left {
    const Cell* at;
    __device__ Left(const Cell* a) { at = left_place<PITCH>(a, warp() * ROWS * 16); }
    __device__ void hold() {}
    __device__ void get(Part left[ROWS][4], int k) const {
#pragma unroll
        for (int m = 0; m < ROWS; m++) load_left<PITCH>(left[m], at + m * 16 * PITCH + k * DEPTH);
    }
};
template <int WIDTH, int ROWS> struct Left<WIDTH, ROWS, true> {
    Left<WIDTH, ROWS, false> from;
    Part parts[WIDTH / DEPTH][ROWS][4];
    __device__ Left(const Cell* a) : from(a) {}
    __device__ void hold() {
#pragma unroll
        for (int k = 0; k < WIDTH / DEPTH; k++) from.get(parts[k], k);
    }
    __device__ void get(Part left[ROWS][4], int k) const {
#pragma unroll
        for (int m = 0; m < ROWS; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) left[m][i] = parts[k][m][i];
    }
};

// a b^T
template <int G, int WIDTH, int ROWS, bool IS_HELD>
__device__ Result<ROWS, G> multiply(const Left<WIDTH, ROWS, IS_HELD>& a, const Cell* b) {
    Result<ROWS, G> c = {};
#pragma unroll
    for (int k = 0; k < WIDTH / DEPTH; k++) {
        Part left[ROWS][4];
        a.get(left, k);
        multiply_part<WIDTH, true>(c, left, b, k);
    }
    return c;
}

// c += a b, for a that this warp holds as a result.
template <int ROWS, int N, int G>
__device__ void add_product(Result<ROWS, N>& c, const Result<ROWS, G>& a, const Cell* b) {
#pragma unroll
    for (int k = 0; k < 8 * G / DEPTH; k++) {
        Part left[ROWS][4];
#pragma unroll
        for (int m = 0; m < ROWS; m++) part_of(left[m], a.x[m], k);
        multiply_part<8 * N, false>(c, left, b, k);
    }
}

// Rows of this warp that lie before `context`, from a result, by way of the same rows of tiles that no other warp
// reads. The block's first row is given.
template <int ROWS, int G>
__device__ void store_rows(T* to, int row_step, Result<ROWS, G>& c, const float* scales, Cell* by, int first,
                           int context, int dim) {
    const int WIDTH = 8 * G, PARTS = WIDTH / CELLS, AT_ONCE = WARP / PARTS; // of a row, and rows
    int mine = warp() * ROWS * 16;
    EACH_ROW(r)
#pragma unroll
        for (int j = 0; j < COLUMNS; j += 2)
            put_pair(by + (mine + lane() / 4 + 8 * r) * PITCH + column(j), scales[r] * c.at(r, j),
                     scales[r] * c.at(r, j + 1));
    __syncwarp();
#pragma unroll
    for (int part = 0; part < ROWS * 16 / AT_ONCE; part++) {
        int row = mine + part * AT_ONCE + lane() / PARTS, d = lane() % PARTS * CELLS;
        int m = first + row < context ? n_cells(d, dim) : 0;
        T* x = to + (i64)(first + row) * row_step + d;
        const Cell* from = by + row * PITCH + d;
        if (is_access(x, m)) {
            *(uint4*)x = *(const uint4*)from;
        } else {
#pragma unroll 1
            for (int j = 0; j < m; j++) x[j] = element(from[j]);
        }
    }
}
