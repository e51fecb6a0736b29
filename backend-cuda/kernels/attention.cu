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

// Which weights of the softmax are dropped, as a function of their numbers (`random_bits` in pointwise.cu); none
// with a threshold of 0.
struct Drop {
    unsigned key_0, key_1, threshold;
    unsigned long long first;
    float scale;
};
#define DROP_ARGS unsigned key_0, unsigned key_1, i64 first_weight, unsigned threshold, float kept_scale
#define DROP Drop{key_0, key_1, threshold, (unsigned long long)first_weight, kept_scale}

// The score of no key, as of a row that sees none of its first tile: finite, so that differences are numbers.
#define LOWEST -1e38f

// What the weight of a row's head for a key of its sample is multiplied by.
__device__ float factor(const Drop& by, i64 row_and_head, int context, int key) {
    if (by.threshold == 0) return 1.0f;
    unsigned long long weight = by.first + (unsigned long long)(row_and_head * context + key);
    return random_bits(by.key_0, by.key_1, weight) < by.threshold ? 0.0f : by.scale;
}

// Which rows of a sample see each other: as many up to themselves as a window has, or as listed, in numbers that are
// read where they are needed: registers are scarcer.
struct Mask {
    int context, window;
    const int4* seen; // of the sample's rows: first key, end of keys, first row that sees it, end of rows; or null

    __device__ int4 of(int row) const { return seen[min(row, context - 1)]; }

    // The keys that a row sees.
    __device__ int first_key(int row) const { return seen ? of(row).x : max(row + 1 - window, 0); }
    __device__ int end_key(int row) const { return seen ? of(row).y : min(row + 1, context); }

    // The rows that see a key.
    __device__ int first_row(int key) const { return seen ? of(key).z : key; }
    __device__ int end_row(int key) const { return seen ? of(key).w : min(key + window, context); }
};

// One head of queries of one sample, and where it and the head of keys and values that it attends to lie in a row.
struct Head {
    i64 rows; // before the sample
    int hidden, width; // of a row of a result, and of queries, keys and values
    int head, q, k, v;

    // The first row of a part in `qkv`, and of the head in a result.
    __device__ i64 in_qkv(int part) const { return rows * width + part; }
    __device__ i64 in_result() const { return rows * hidden + q; }
};

#define HEAD_ARGS const int4* seen, int context, int window, int heads, int kv_heads, int dim, float scale
#define MASK(sample) Mask{context, window, seen ? seen + (i64)(sample) * context : nullptr}
#define HEAD(sample, head) head_of(sample, head, context, heads, kv_heads, dim)

__device__ Head head_of(int sample, int head, int context, int heads, int kv_heads, int dim) {
    int hidden = heads * dim, kv_hidden = kv_heads * dim, k = hidden + head / (heads / kv_heads) * dim;
    return {(i64)sample * context, hidden, hidden + 2 * kv_hidden, head, head * dim, k, k + kv_hidden};
}

// The first `past` rows of the only sample have no results.
GLOBAL attention(const T* qkv, T* out, float* log_sum, int past, HEAD_ARGS, DROP_ARGS) {
    Drop by = DROP;
    extern __shared__ __align__(16) float shared[];
    int stride = dim + 1;
    float *q = shared, *k = q + OWN * dim, *v = k + WARP * stride;
    int sample = blockIdx.x / heads;
    Mask mask = MASK(sample);
    Head head = HEAD(sample, blockIdx.x % heads);
    int first = past + (gridDim.y - 1 - blockIdx.y) * OWN; // the longest rows begin first
    int mine = first + warp() * MINE;
    load_rows(q, dim, qkv + head.in_qkv(head.q), head.width, first, OWN, context, dim, scale);
    int end = mask.end_key(first + OWN - 1);
    float sums[MINE][FEATURES] = {}, top[MINE], total[MINE] = {};
    for (int j = 0; j < MINE; j++) top[j] = LOWEST;
    for (int start = mask.first_key(first); start < end; start += WARP) {
        __syncthreads();
        load_rows(k, stride, qkv + head.in_qkv(head.k), head.width, start, WARP, context, dim, 1.0f);
        load_rows(v, stride, qkv + head.in_qkv(head.v), head.width, start, WARP, context, dim, 1.0f);
        __syncthreads();
        float p[MINE];
        dots(p, q + warp() * MINE * dim, k + lane() * stride, dim);
        int key = start + lane();
        for (int j = 0; j < MINE; j++) {
            bool is_seen = key >= mask.first_key(mine + j) && key < mask.end_key(mine + j);
            float higher = fmaxf(top[j], warp_max(is_seen ? p[j] : LOWEST));
            float shrink = expf(top[j] - higher);
            p[j] = is_seen ? expf(p[j] - higher) : 0.0f;
            top[j] = higher;
            total[j] = total[j] * shrink + warp_sum(p[j]);
            p[j] *= factor(by, (head.rows + mine + j) * heads + head.head, context, key);
            for (int c = 0; c < FEATURES; c++) sums[j][c] *= shrink;
        }
        add_weighted(sums, p, v, stride, dim);
    }
    float scales[MINE];
    for (int j = 0; j < MINE; j++) scales[j] = 1.0f / total[j];
    store_rows(out + head.in_result(), head.hidden, sums, scales, mine - past, context - past, dim);
    for (int j = 0; j < MINE; j++)
        if (lane() == j && mine + j < context)
            log_sum[(head.rows + mine - past + j) * heads + head.head] = top[j] + logf(total[j]);
}

// delta[row, head] = dy . out, eight lanes to each.
GLOBAL attention_delta(const T* dy, const T* out, float* delta, i64 n, int dim) {
    const int LANES = 8;
    i64 at = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / LANES;
    float sum = 0.0f;
    for (int d = threadIdx.x % LANES * CHUNK; at < n && d < dim; d += LANES * CHUNK) {
        int m = chunk_len(d, dim);
        Chunk x = load(dy + at * dim + d, m), y = load(out + at * dim + d, m);
        EACH_OF_CHUNK(j) sum += x.x[j] * y.x[j];
    }
    for (int step = LANES / 2; step; step /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, step);
    if (at < n && threadIdx.x % LANES == 0) delta[at] = sum;
}

// The gradient of the queries: OWN queries, tiles of keys.
GLOBAL attention_dq(const T* dy, const T* qkv, const float* log_sum, const float* delta, T* d_qkv, HEAD_ARGS,
                    DROP_ARGS) {
    Drop by = DROP;
    extern __shared__ __align__(16) float shared[];
    int stride = dim + 1;
    float *q = shared, *d = q + OWN * dim, *k = d + OWN * dim, *v = k + WARP * stride;
    int sample = blockIdx.x / heads;
    Mask mask = MASK(sample);
    Head head = HEAD(sample, blockIdx.x % heads);
    int first = (gridDim.y - 1 - blockIdx.y) * OWN, mine = first + warp() * MINE;
    load_rows(q, dim, qkv + head.in_qkv(head.q), head.width, first, OWN, context, dim, scale);
    load_rows(d, dim, dy + head.in_result(), head.hidden, first, OWN, context, dim, 1.0f);
    int end = mask.end_key(first + OWN - 1);
    float sums[MINE][FEATURES] = {};
    for (int start = mask.first_key(first); start < end; start += WARP) {
        __syncthreads();
        load_rows(k, stride, qkv + head.in_qkv(head.k), head.width, start, WARP, context, dim, 1.0f);
        load_rows(v, stride, qkv + head.in_qkv(head.v), head.width, start, WARP, context, dim, 1.0f);
        __syncthreads();
        float s[MINE], dp[MINE];
        dots(s, q + warp() * MINE * dim, k + lane() * stride, dim);
        dots(dp, d + warp() * MINE * dim, v + lane() * stride, dim);
        int key = start + lane();
        for (int j = 0; j < MINE; j++) {
            bool is_seen = key >= mask.first_key(mine + j) && key < mask.end_key(mine + j) && mine + j < context;
            i64 at = (head.rows + mine + j) * heads + head.head;
            dp[j] *= factor(by, at, context, key);
            s[j] = is_seen ? expf(s[j] - log_sum[at]) * (dp[j] - delta[at]) : 0.0f;
        }
        add_weighted(sums, s, k, stride, dim);
    }
    float scales[MINE];
    for (int j = 0; j < MINE; j++) scales[j] = scale;
    store_rows(d_qkv + head.in_qkv(head.q), head.width, sums, scales, mine, context, dim);
}

// The gradients of keys and values: OWN keys, tiles of queries, of all heads that share the keys.
GLOBAL attention_dkv(const T* dy, const T* qkv, const float* log_sum, const float* delta, T* d_qkv, HEAD_ARGS,
                     DROP_ARGS) {
    Drop by = DROP;
    extern __shared__ __align__(16) float shared[];
    int stride = dim + 1, n_sharing = heads / kv_heads;
    float *k = shared, *v = k + OWN * dim, *q = v + OWN * dim, *d = q + WARP * stride;
    int sample = blockIdx.x / kv_heads, first_head = blockIdx.x % kv_heads * n_sharing;
    Mask mask = MASK(sample);
    Head shares = HEAD(sample, first_head);
    int first = blockIdx.y * OWN, mine = first + warp() * MINE;
    load_rows(k, dim, qkv + shares.in_qkv(shares.k), shares.width, first, OWN, context, dim, 1.0f);
    load_rows(v, dim, qkv + shares.in_qkv(shares.v), shares.width, first, OWN, context, dim, 1.0f);
    float dk[MINE][FEATURES] = {}, dv[MINE][FEATURES] = {};
    int begin = mask.first_row(first), end = mask.end_row(first + OWN - 1);
    for (int nth = 0; nth < n_sharing; nth++) {
        Head head = HEAD(sample, first_head + nth);
        for (int start = begin; start < end; start += WARP) {
            __syncthreads();
            load_rows(q, stride, qkv + head.in_qkv(head.q), head.width, start, WARP, context, dim, scale);
            load_rows(d, stride, dy + head.in_result(), head.hidden, start, WARP, context, dim, 1.0f);
            __syncthreads();
            float p[MINE], ds[MINE];
            dots(p, k + warp() * MINE * dim, q + lane() * stride, dim);
            dots(ds, v + warp() * MINE * dim, d + lane() * stride, dim);
            int query = start + lane();
            i64 at = (head.rows + query) * heads + head.head;
            for (int j = 0; j < MINE; j++) {
                bool is_seen = query >= mask.first_row(mine + j) && query < mask.end_row(mine + j);
                p[j] = is_seen ? expf(p[j] - log_sum[at]) : 0.0f;
                float kept = factor(by, at, context, mine + j);
                ds[j] = is_seen ? p[j] * (kept * ds[j] - delta[at]) : 0.0f;
                p[j] *= kept;
            }
            add_weighted(dk, ds, q, stride, dim);
            add_weighted(dv, p, d, stride, dim);
        }
    }
    float scales[MINE];
    for (int j = 0; j < MINE; j++) scales[j] = 1.0f; // the queries in the tile carry the scale
    store_rows(d_qkv + shares.in_qkv(shares.k), shares.width, dk, scales, mine, context, dim);
    store_rows(d_qkv + shares.in_qkv(shares.v), shares.width, dv, scales, mine, context, dim);
}
