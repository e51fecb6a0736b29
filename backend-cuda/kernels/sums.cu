// Sums of all elements and of columns, each in an order that the shape alone decides.

struct Summed {
    const float* x;
    i64 n, first, n_blocks;
};

// The sum of squares of each block's share, in f64: it must not overflow before its elements do.
GLOBAL squares(const Summed* all, int n_all, double* parts) {
    Summed s = row_of_block(all, n_all);
    double sum = 0.0;
    for (i64 i = (blockIdx.x - s.first) * blockDim.x + threadIdx.x; i < s.n; i += s.n_blocks * blockDim.x)
        sum += (double)s.x[i] * (double)s.x[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

// What the blocks of each tensor have, by one block for each.
GLOBAL totals(const Summed* all, const double* parts, float* sums) {
    Summed s = all[blockIdx.x];
    double sum = 0.0;
    for (i64 i = threadIdx.x; i < s.n_blocks; i += blockDim.x) sum += parts[s.first + i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) sums[blockIdx.x] = (float)sum;
}

// scale times the sum of n numbers, by one block.
GLOBAL total(const double* x, float* sum, int n, double scale) {
    double all = 0.0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) all += x[i];
    all = block_sum(all);
    if (threadIdx.x == 0) *sum = (float)(scale * all);
}

// Columns that a block sums up, by a chunk of each row to a thread.
#define SUMMED 32
#define ROW_THREADS (SUMMED / CHUNK)
#define ROWS_AT_ONCE (256 / ROW_THREADS)

__device__ int summed_column() { return blockIdx.x * SUMMED + threadIdx.x % SUMMED; }

// The sum of what the threads of a block have of the same column.
__device__ float across_threads(float mine) {
    __shared__ float sums[256 / SUMMED][SUMMED];
    __syncthreads();
    sums[threadIdx.x / SUMMED][threadIdx.x % SUMMED] = mine;
    __syncthreads();
    float sum = 0.0f;
    for (int i = 0; i < blockDim.x / SUMMED; i++) sum += sums[i][threadIdx.x % SUMMED];
    return sum;
}

// The sums of a block's chunks of rows, of which each thread gets that of its column.
__device__ float across_rows(const Chunk& mine) {
    __shared__ float sums[ROWS_AT_ONCE][SUMMED + 1]; // a warp's rows lie in banks of their own
    __syncthreads();
    EACH_OF_CHUNK(j) sums[threadIdx.x / ROW_THREADS][threadIdx.x % ROW_THREADS * CHUNK + j] = mine.x[j];
    __syncthreads();
    float sum = 0.0f;
    for (int i = threadIdx.x / SUMMED; i < ROWS_AT_ONCE; i += blockDim.x / SUMMED) sum += sums[i][threadIdx.x % SUMMED];
    return across_threads(sum);
}

// What the ranges of rows come to: the sum of a column over this block's range is kept in parts[range, column], and the
// block that comes last adds up all of them, in their order.
struct Ranges {
    float* parts;
    unsigned* arrived; // a number for the blocks of each column: 0 before and after
    int width;

    __device__ bool is_mine() const { return threadIdx.x < SUMMED && summed_column() < width; }

    __device__ void keep(float sum) const {
        if (is_mine()) parts[(i64)blockIdx.y * width + summed_column()] = sum;
    }

    __device__ float total() const {
        float sum = 0.0f;
        for (int i = threadIdx.x / SUMMED; i < gridDim.y; i += blockDim.x / SUMMED)
            if (summed_column() < width) sum += __ldcg(parts + (i64)i * width + summed_column());
        return across_threads(sum);
    }

    // Whether this is the last block; if so, what the others kept can be read.
    __device__ bool is_last() const {
        __shared__ bool is_last;
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) is_last = atomicInc(arrived + blockIdx.x, gridDim.y - 1) == gridDim.y - 1;
        __syncthreads();
        if (is_last) __threadfence();
        return is_last;
    }
};

// into[column] += the sum of x, whose rows are `pitch` apart, over ranges of rows.
GLOBAL add_columns(const T* x, float* parts, unsigned* arrived, float* into, i64 rows, int width, int pitch, int range) {
    int at = blockIdx.x * SUMMED + threadIdx.x % ROW_THREADS * CHUNK, m = chunk_len(at, width);
    i64 first = (i64)blockIdx.y * range;
    Chunk sums = {};
#pragma unroll 4
    for (i64 r = first + threadIdx.x / ROW_THREADS; r < first + range && r < rows; r += blockDim.x / ROW_THREADS) {
        Chunk c = load(x + r * pitch + at, m);
        EACH_OF_CHUNK(j) sums.x[j] += c.x[j];
    }
    Ranges ranges = {parts, arrived, width};
    ranges.keep(across_rows(sums));
    if (!ranges.is_last()) return;
    float sum = ranges.total();
    if (ranges.is_mine()) into[summed_column()] += sum;
}
