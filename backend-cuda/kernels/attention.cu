// Attention that never writes the matrix of scores (Dao et al., 2022, FlashAttention): any size of heads
// up to 256 features, on any chip.
//
// A block has OWN rows of one head, in shared memory, and walks over the others by tiles of 32. Each warp has
// MINE of the OWN rows; each of its lanes has one row of the tile for scores, and every 32nd feature for sums.

#define OWN 16
#define MINE 4
#define FEATURES 8

// Rows first .. first + n of one head, as floats, rows `stride` apart; zeros beyond `context`.
__device__ void load_rows(float* into, int stride, const T* from, i64 row_step, int first, int n, int context,
                          int dim, float scale) {
    for (int i = threadIdx.x; i < n * dim; i += blockDim.x) {
        int row = i / dim, d = i % dim;
        bool is_there = first + row < context;
        into[row * stride + d] = is_there ? scale * get(from, (first + row) * row_step + d) : 0.0f;
    }
}

// scores[j] = mine[j] . other, for this lane's row of a tile.
__device__ void dots(float* scores, const float* mine, const float* other, int dim) {
    for (int j = 0; j < MINE; j++) scores[j] = 0.0f;
    for (int d = 0; d < dim; d++)
        for (int j = 0; j < MINE; j++) scores[j] += mine[j * dim + d] * other[d];
}

// sums[j] += the rows of a tile, each times weights[j] of its lane.
__device__ void add_weighted(float sums[MINE][FEATURES], const float* weights, const float* tile, int stride,
                             int dim) {
    for (int row = 0; row < WARP; row++)
        for (int j = 0; j < MINE; j++) {
            float weight = __shfl_sync(ALL_LANES, weights[j], row);
#pragma unroll
            for (int c = 0; c < FEATURES; c++)
                if (c * WARP + lane() < dim) sums[j][c] += weight * tile[row * stride + c * WARP + lane()];
        }
}

__device__ void store_rows(T* to, i64 row_step, const float sums[MINE][FEATURES], const float* scales, int first,
                           int context, int dim) {
    for (int j = 0; j < MINE; j++)
#pragma unroll
        for (int c = 0; c < FEATURES; c++)
            if (first + j < context && c * WARP + lane() < dim)
                put(to, (first + j) * row_step + c * WARP + lane(), scales[j] * sums[j][c]);
}

// Which weights of the softmax are dropped, as a function of their numbers (`random_word` in pointwise.cu); none
// with a threshold of 0.
struct Drop {
    unsigned key_0, key_1, threshold;
    unsigned long long first;
    float scale;
};
#define DROP_ARGS unsigned key_0, unsigned key_1, i64 first_weight, unsigned threshold, float kept_scale
#define DROP Drop{key_0, key_1, threshold, (unsigned long long)first_weight, kept_scale}

// What the weight of a row's head for a key of its sample is multiplied by.
__device__ float factor(const Drop& by, i64 row_and_head, int context, int key) {
    if (by.threshold == 0) return 1.0f;
    unsigned long long weight = by.first + (unsigned long long)(row_and_head * context + key);
    return random_word(by.key_0, by.key_1, weight) < by.threshold ? 0.0f : by.scale;
}

// How many keys a row sees, from the first of its sample: given for the sample, or up to itself.
__device__ int n_keys(const unsigned* lengths, int sample, int row) {
    return lengths ? (int)lengths[sample] : row + 1;
}

GLOBAL attention(const T* qkv, T* out, float* log_sum, const unsigned* lengths, int context, int heads, int dim,
                 float scale, DROP_ARGS) {
    Drop by = DROP;
    extern __shared__ __align__(16) float shared[];
    int hidden = heads * dim, stride = dim + 1;
    float *q = shared, *k = q + OWN * dim, *v = k + WARP * stride;
    int sample = blockIdx.x / heads, head = blockIdx.x % heads;
    const T* from = qkv + (i64)sample * context * 3 * hidden + head * dim;
    int first = (gridDim.y - 1 - blockIdx.y) * OWN; // the longest rows begin first
    int mine = first + warp() * MINE;
    load_rows(q, dim, from, 3 * hidden, first, OWN, context, dim, scale);
    int end = min(n_keys(lengths, sample, first + OWN - 1), context);
    float sums[MINE][FEATURES] = {}, top[MINE], total[MINE] = {};
    for (int j = 0; j < MINE; j++) top[j] = -INFINITY;
    for (int start = 0; start < end; start += WARP) {
        __syncthreads();
        load_rows(k, stride, from + hidden, 3 * hidden, start, WARP, context, dim, 1.0f);
        load_rows(v, stride, from + 2 * hidden, 3 * hidden, start, WARP, context, dim, 1.0f);
        __syncthreads();
        float p[MINE];
        dots(p, q + warp() * MINE * dim, k + lane() * stride, dim);
        int key = start + lane();
        for (int j = 0; j < MINE; j++) {
            bool is_seen = key < context && key < n_keys(lengths, sample, mine + j);
            // Every row sees the first key of every tile it comes to.
            float higher = fmaxf(top[j], warp_max(is_seen ? p[j] : -INFINITY));
            float shrink = expf(top[j] - higher);
            p[j] = is_seen ? expf(p[j] - higher) : 0.0f;
            top[j] = higher;
            total[j] = total[j] * shrink + warp_sum(p[j]);
            p[j] *= factor(by, ((i64)sample * context + mine + j) * heads + head, context, key);
            for (int c = 0; c < FEATURES; c++) sums[j][c] *= shrink;
        }
        add_weighted(sums, p, v, stride, dim);
    }
    float scales[MINE];
    for (int j = 0; j < MINE; j++) scales[j] = 1.0f / total[j];
    T* to = out + (i64)sample * context * hidden + head * dim;
    store_rows(to, hidden, sums, scales, mine, context, dim);
    for (int j = 0; j < MINE; j++)
        if (lane() == j && mine + j < context)
            log_sum[((i64)sample * context + mine + j) * heads + head] = top[j] + logf(total[j]);
}

// delta[row, head] = dy . out, a warp to each.
GLOBAL attention_delta(const T* dy, const T* out, float* delta, i64 n, int dim) {
    i64 at = (i64)blockIdx.x * (blockDim.x / WARP) + warp();
    if (at >= n) return;
    float sum = 0.0f;
    for (int d = lane(); d < dim; d += WARP) sum += get(dy, at * dim + d) * get(out, at * dim + d);
    sum = warp_sum(sum);
    if (lane() == 0) delta[at] = sum;
}

// The gradient of the queries: OWN queries, tiles of keys.
GLOBAL attention_dq(const T* dy, const T* qkv, const float* log_sum, const float* delta, T* d_qkv,
                    const unsigned* lengths, int context, int heads, int dim, float scale, DROP_ARGS) {
    Drop by = DROP;
    extern __shared__ __align__(16) float shared[];
    int hidden = heads * dim, stride = dim + 1;
    float *q = shared, *d = q + OWN * dim, *k = d + OWN * dim, *v = k + WARP * stride;
    int sample = blockIdx.x / heads, head = blockIdx.x % heads;
    i64 rows = (i64)sample * context;
    const T* from = qkv + rows * 3 * hidden + head * dim;
    int first = (gridDim.y - 1 - blockIdx.y) * OWN, mine = first + warp() * MINE;
    load_rows(q, dim, from, 3 * hidden, first, OWN, context, dim, scale);
    load_rows(d, dim, dy + rows * hidden + head * dim, hidden, first, OWN, context, dim, 1.0f);
    int end = min(n_keys(lengths, sample, first + OWN - 1), context);
    float sums[MINE][FEATURES] = {};
    for (int start = 0; start < end; start += WARP) {
        __syncthreads();
        load_rows(k, stride, from + hidden, 3 * hidden, start, WARP, context, dim, 1.0f);
        load_rows(v, stride, from + 2 * hidden, 3 * hidden, start, WARP, context, dim, 1.0f);
        __syncthreads();
        float s[MINE], dp[MINE];
        dots(s, q + warp() * MINE * dim, k + lane() * stride, dim);
        dots(dp, d + warp() * MINE * dim, v + lane() * stride, dim);
        int key = start + lane();
        for (int j = 0; j < MINE; j++) {
            bool is_seen = key < context && key < n_keys(lengths, sample, mine + j) && mine + j < context;
            i64 at = (rows + mine + j) * heads + head;
            dp[j] *= factor(by, at, context, key);
            s[j] = is_seen ? expf(s[j] - log_sum[at]) * (dp[j] - delta[at]) : 0.0f;
        }
        add_weighted(sums, s, k, stride, dim);
    }
    float scales[MINE];
    for (int j = 0; j < MINE; j++) scales[j] = scale;
    store_rows(d_qkv + rows * 3 * hidden + head * dim, 3 * hidden, sums, scales, mine, context, dim);
}

// The gradients of keys and values: OWN keys, tiles of queries.
GLOBAL attention_dkv(const T* dy, const T* qkv, const float* log_sum, const float* delta, T* d_qkv,
                     const unsigned* lengths, int context, int heads, int dim, float scale, DROP_ARGS) {
    Drop by = DROP;
    extern __shared__ __align__(16) float shared[];
    int hidden = heads * dim, stride = dim + 1;
    float *k = shared, *v = k + OWN * dim, *q = v + OWN * dim, *d = q + WARP * stride;
    int sample = blockIdx.x / heads, head = blockIdx.x % heads;
    i64 rows = (i64)sample * context;
    const T* from = qkv + rows * 3 * hidden + head * dim;
    int first = blockIdx.y * OWN, mine = first + warp() * MINE;
    load_rows(k, dim, from + hidden, 3 * hidden, first, OWN, context, dim, 1.0f);
    load_rows(v, dim, from + 2 * hidden, 3 * hidden, first, OWN, context, dim, 1.0f);
    float dk[MINE][FEATURES] = {}, dv[MINE][FEATURES] = {};
    // Keys that no row sees have no gradient; without lengths earlier rows see none of these.
    int end = lengths && first >= (int)lengths[sample] ? 0 : context;
    for (int start = lengths ? 0 : first / WARP * WARP; start < end; start += WARP) {
        __syncthreads();
        load_rows(q, stride, from, 3 * hidden, start, WARP, context, dim, scale);
        load_rows(d, stride, dy + rows * hidden + head * dim, hidden, start, WARP, context, dim, 1.0f);
        __syncthreads();
        float p[MINE], ds[MINE];
        dots(p, k + warp() * MINE * dim, q + lane() * stride, dim);
        dots(ds, v + warp() * MINE * dim, d + lane() * stride, dim);
        int query = start + lane();
        i64 at = (rows + query) * heads + head;
        for (int j = 0; j < MINE; j++) {
            bool is_seen = query < context && mine + j < n_keys(lengths, sample, query);
            p[j] = is_seen ? expf(p[j] - log_sum[at]) : 0.0f;
            float kept = factor(by, at, context, mine + j);
            ds[j] = is_seen ? p[j] * (kept * ds[j] - delta[at]) : 0.0f;
            p[j] *= kept;
        }
        add_weighted(dk, ds, q, stride, dim);
        add_weighted(dv, p, d, stride, dim);
    }
    float scales[MINE];
    for (int j = 0; j < MINE; j++) scales[j] = 1.0f; // the queries in the tile carry the scale
    T* to = d_qkv + rows * 3 * hidden + head * dim;
    store_rows(to + hidden, 3 * hidden, dk, scales, mine, context, dim);
    store_rows(to + 2 * hidden, 3 * hidden, dv, scales, mine, context, dim);
}
