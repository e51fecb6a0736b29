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

// Sums of 32 columns over a range of rows: the warps of a block take rows in turn, then add up.
__device__ float across_warps(float sum) {
    __shared__ float sums[32][WARP];
    __syncthreads();
    sums[warp()][lane()] = sum;
    __syncthreads();
    float all = 0.0f;
    for (int i = 0; i < blockDim.x / WARP; i++) all += sums[i][lane()];
    return all;
}

// Threads that take 32 columns of a row together, a chunk each, so that they move 16 bytes at a time.
#define ROW_THREADS (WARP / CHUNK)
#define MOST_ROWS (256 / ROW_THREADS)

// The sums of 32 columns over the threads of a block: the sum of column `lane()`.
__device__ float across_rows(const Chunk& mine) {
    __shared__ float sums[MOST_ROWS][WARP + 1]; // a warp's rows lie in banks of their own
    __syncthreads();
    EACH_OF_CHUNK(j) sums[threadIdx.x / ROW_THREADS][threadIdx.x % ROW_THREADS * CHUNK + j] = mine.x[j];
    __syncthreads();
    float sum = 0.0f;
    for (int i = 0; i < CHUNK; i++) sum += sums[warp() * CHUNK + i][lane()];
    return across_warps(sum);
}

// parts[range, column]: the sums of x, whose rows are `pitch` apart, over ranges of rows.
GLOBAL column_sums(const T* x, float* parts, i64 rows, int width, int pitch, int range) {
    int column = blockIdx.x * WARP, at = column + threadIdx.x % ROW_THREADS * CHUNK, m = chunk_len(at, width);
    i64 first = (i64)blockIdx.y * range;
    Chunk sums = {};
    for (i64 r = first + threadIdx.x / ROW_THREADS; r < first + range && r < rows; r += blockDim.x / ROW_THREADS) {
        Chunk c = load(x + r * pitch + at, m);
        EACH_OF_CHUNK(j) sums.x[j] += c.x[j];
    }
    float sum = across_rows(sums);
    column += lane();
    if (warp() == 0 && column < width) parts[(i64)blockIdx.y * width + column] = sum;
}

// into[column] += the sum of parts over ranges.
GLOBAL add_parts(const float* parts, float* into, int n_ranges, int width) {
    int column = blockIdx.x * WARP + lane();
    float sum = 0.0f;
    for (int i = warp(); i < n_ranges; i += blockDim.x / WARP)
        if (column < width) sum += parts[(i64)i * width + column];
    sum = across_warps(sum);
    if (warp() == 0 && column < width) into[column] += sum;
}
