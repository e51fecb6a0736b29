// Attention on tensor cores, for bf16 and heads of up to 64 features: products of 16 x 8 x 16, sums in f32.
//
// A block has 64 rows of one head, 16 to a warp, and walks over the others by tiles of 64.
//
// In a warp lane 4 r + c holds of each 8 columns of a result the columns 2 c and 2 c + 1, in the rows r and r + 8.
// Scores are in units of ln 2, so that weights are powers of two.

typedef unsigned short u16;

#define TILE 64
#define PITCH 72 // a row of a tile: what lanes read together lies in different banks
#define GROUPS 8 // of 8 columns
#define LOG2_E 1.44269504f

#ifndef EMULATED
// c += a b
__device__ void mma(float* c, const unsigned* a, const unsigned* b) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Four matrices of 8 x 8, whose rows the lanes name in turn. Lane 4 r + c gets of each the elements 2 c and
// 2 c + 1 of row r; transposed, of column r.
template <bool IS_TRANSPOSED> __device__ void load_matrices(unsigned* into, const u16* row) {
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

__device__ float quad_sum(float x) {
    x += __shfl_xor_sync(ALL_LANES, x, 1);
    return x + __shfl_xor_sync(ALL_LANES, x, 2);
}

__device__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 1));
    return fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 2));
}

// Rows first .. first + TILE of one head; zeros where there is nothing.
__device__ void load_tile(u16* into, const T* from, i64 row_step, int first, int context, int dim) {
    for (int i = threadIdx.x; i < TILE * TILE / CHUNK; i += blockDim.x) {
        int row = i / (TILE / CHUNK), d = i % (TILE / CHUNK) * CHUNK;
        int m = first + row < context ? chunk_len(d, dim) : 0;
        const T* x = from + (first + row) * row_step + d;
        uint4* to = (uint4*)(into + row * PITCH + d);
        if (is_whole(x, m)) {
            *to = *(const uint4*)x;
        } else {
            Chunk c;
            EACH_OF_CHUNK(j) c.x[j] = j < m ? get(x, j) : 0.0f;
            store((T*)to, c, CHUNK);
        }
    }
}

// c += a b for the 16 rows of this warp, with the columns 16 k .. 16 k + 16 of a in `left` and b in a tile: its
// rows are those of b, or with IS_ROWS the columns.
template <bool IS_ROWS>
__device__ void multiply_part(float c[GROUPS][4], const unsigned* left, const u16* b, int k) {
    int row = lane() % 8, near = lane() / 8 % 2 * 8, far = lane() / 16 * 8;
    const u16* at = IS_ROWS ? b + (far + row) * PITCH + k * 16 + near : b + (k * 16 + near + row) * PITCH + far;
#pragma unroll
    for (int group = 0; group < GROUPS; group += 2) {
        unsigned right[4];
        load_matrices<!IS_ROWS>(right, at + group * 8 * (IS_ROWS ? PITCH : 1));
        mma(c[group], left, right);
        mma(c[group + 1], left, right + 2);
    }
}

// c = a b^T, for the 16 rows of this warp in a.
__device__ void multiply(float c[GROUPS][4], const u16* a, const u16* b) {
#pragma unroll
    for (int group = 0; group < GROUPS; group++)
        for (int i = 0; i < 4; i++) c[group][i] = 0.0f;
    const u16* at = a + (warp() * 16 + lane() % 16) * PITCH + lane() / 16 * 8;
#pragma unroll
    for (int k = 0; k < TILE / 16; k++) {
        unsigned left[4];
        load_matrices<false>(left, at + k * 16);
        multiply_part<true>(c, left, b, k);
    }
}

// c += a b, for a that this warp holds as a result.
__device__ void add_product(float c[GROUPS][4], const float a[GROUPS][4], const u16* b) {
#pragma unroll
    for (int k = 0; k < TILE / 16; k++) {
        const float *first = a[2 * k], *second = a[2 * k + 1];
        unsigned left[4] = {pack(first[0], first[1]), pack(first[2], first[3]), pack(second[0], second[1]),
                            pack(second[2], second[3])};
        multiply_part<false>(c, left, b, k);
    }
}

// The rows of this warp that lie before `context`, from a result.
__device__ void store_tile(T* to, i64 row_step, const float c[GROUPS][4], const float* scales, int row, int context,
                           int dim) {
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int group = 0; group < GROUPS; group++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int d = group * 8 + lane() % 4 * 2 + i;
                if (row + 8 * half < context && d < dim)
                    put(to, (row + 8 * half) * row_step + d, scales[half] * c[group][2 * half + i]);
            }
}

GLOBAL tiled_attention(const T* qkv, T* out, float* log_sum, const unsigned* lengths, int context, int heads,
                       int dim, float scale, DROP_ARGS) {
    Drop by = DROP;
    extern __shared__ __align__(16) float shared[];
    u16 *q = (u16*)shared, *k = q + TILE * PITCH, *v = k + TILE * PITCH;
    int hidden = heads * dim, sample = blockIdx.x / heads, head = blockIdx.x % heads;
    i64 rows = (i64)sample * context;
    const T* from = qkv + rows * 3 * hidden + head * dim;
    int first = (gridDim.y - 1 - blockIdx.y) * TILE; // the longest rows begin first
    int row = first + warp() * 16 + lane() / 4;
    load_tile(q, from, 3 * hidden, first, context, dim);
    int end = min(n_keys(lengths, sample, first + TILE - 1), context);
    float sums[GROUPS][4] = {}, top[2] = {-INFINITY, -INFINITY}, total[2] = {};
    for (int start = 0; start < end; start += TILE) {
        __syncthreads();
        load_tile(k, from + hidden, 3 * hidden, start, context, dim);
        load_tile(v, from + 2 * hidden, 3 * hidden, start, context, dim);
        __syncthreads();
        float p[GROUPS][4];
        multiply(p, q, k);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int n = min(n_keys(lengths, sample, row + 8 * half), context);
            // Every row sees the first key of every tile it comes to.
            float higher = top[half], sum = 0.0f;
#pragma unroll
            for (int group = 0; group < GROUPS; group++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    bool is_seen = start + group * 8 + lane() % 4 * 2 + i < n;
                    float* x = &p[group][2 * half + i];
                    *x = is_seen ? scale * LOG2_E * *x : -INFINITY;
                    higher = fmaxf(higher, *x);
                }
            higher = quad_max(higher);
            float shrink = exp2f(top[half] - higher);
#pragma unroll
            for (int group = 0; group < GROUPS; group++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float* x = &p[group][2 * half + i];
                    sum += *x = exp2f(*x - higher);
                    sums[group][2 * half + i] *= shrink;
                }
            top[half] = higher;
            total[half] = total[half] * shrink + quad_sum(sum);
            i64 at = (rows + row + 8 * half) * heads + head;
#pragma unroll
            for (int group = 0; group < GROUPS; group++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    p[group][2 * half + i] *= factor(by, at, context, start + group * 8 + lane() % 4 * 2 + i);
        }
        add_product(sums, p, v);
    }
    float scales[2] = {1.0f / total[0], 1.0f / total[1]};
    store_tile(out + rows * hidden + head * dim, hidden, sums, scales, row, context, dim);
    for (int half = 0; half < 2; half++)
        if (lane() % 4 == 0 && row + 8 * half < context)
            log_sum[(rows + row + 8 * half) * heads + head] = top[half] / LOG2_E + logf(total[half]);
}

// The gradient of the queries: 64 queries, tiles of keys.
GLOBAL tiled_attention_dq(const T* dy, const T* qkv, const float* log_sum, const float* delta, T* d_qkv,
                          const unsigned* lengths, int context, int heads, int dim, float scale, DROP_ARGS) {
    Drop by = DROP;
    extern __shared__ __align__(16) float shared[];
    u16 *q = (u16*)shared, *d = q + TILE * PITCH, *k = d + TILE * PITCH, *v = k + TILE * PITCH;
    int hidden = heads * dim, sample = blockIdx.x / heads, head = blockIdx.x % heads;
    i64 rows = (i64)sample * context;
    const T* from = qkv + rows * 3 * hidden + head * dim;
    int first = (gridDim.y - 1 - blockIdx.y) * TILE, row = first + warp() * 16 + lane() / 4;
    load_tile(q, from, 3 * hidden, first, context, dim);
    load_tile(d, dy + rows * hidden + head * dim, hidden, first, context, dim);
    int end = min(n_keys(lengths, sample, first + TILE - 1), context);
    float sums[GROUPS][4] = {};
    for (int start = 0; start < end; start += TILE) {
        __syncthreads();
        load_tile(k, from + hidden, 3 * hidden, start, context, dim);
        load_tile(v, from + 2 * hidden, 3 * hidden, start, context, dim);
        __syncthreads();
        float s[GROUPS][4], dp[GROUPS][4];
        multiply(s, q, k);
        multiply(dp, d, v);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int query = row + 8 * half;
            int n = query < context ? min(n_keys(lengths, sample, query), context) : 0;
            i64 at = (rows + min(query, context - 1)) * heads + head;
#pragma unroll
            for (int group = 0; group < GROUPS; group++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    int key = start + group * 8 + lane() % 4 * 2 + i;
                    float *x = &s[group][2 * half + i], dx = dp[group][2 * half + i] * factor(by, at, context, key);
                    *x = key < n ? exp2f(scale * LOG2_E * *x - log_sum[at] * LOG2_E) * (dx - delta[at]) : 0.0f;
                }
        }
        add_product(sums, s, k);
    }
    float scales[2] = {scale, scale};
    store_tile(d_qkv + rows * 3 * hidden + head * dim, 3 * hidden, sums, scales, row, context, dim);
}

// The gradients of keys and values: 64 keys, tiles of queries. Scores are transposed: a row to a key.
GLOBAL tiled_attention_dkv(const T* dy, const T* qkv, const float* log_sum, const float* delta, T* d_qkv,
                           const unsigned* lengths, int context, int heads, int dim, float scale, DROP_ARGS) {
    Drop by = DROP;
    extern __shared__ __align__(16) float shared[];
    u16 *k = (u16*)shared, *v = k + TILE * PITCH, *q = v + TILE * PITCH, *d = q + TILE * PITCH;
    int hidden = heads * dim, sample = blockIdx.x / heads, head = blockIdx.x % heads;
    i64 rows = (i64)sample * context;
    const T *from = qkv + rows * 3 * hidden + head * dim, *dy_from = dy + rows * hidden + head * dim;
    int first = blockIdx.y * TILE, row = first + warp() * 16 + lane() / 4;
    load_tile(k, from + hidden, 3 * hidden, first, context, dim);
    load_tile(v, from + 2 * hidden, 3 * hidden, first, context, dim);
    float dk[GROUPS][4] = {}, dv[GROUPS][4] = {};
    // Keys that no row sees have no gradient; without lengths earlier rows see none of these.
    int end = lengths && first >= (int)lengths[sample] ? 0 : context;
    for (int start = lengths ? 0 : first; start < end; start += TILE) {
        __syncthreads();
        load_tile(q, from, 3 * hidden, start, context, dim);
        load_tile(d, dy_from, hidden, start, context, dim);
        __syncthreads();
        float p[GROUPS][4], ds[GROUPS][4];
        multiply(p, k, q);
        multiply(ds, v, d);
#pragma unroll
        for (int group = 0; group < GROUPS; group++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int query = start + group * 8 + lane() % 4 * 2 + i;
                i64 at = (rows + min(query, context - 1)) * heads + head;
                int n = query < context ? n_keys(lengths, sample, query) : 0;
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    float *x = &p[group][2 * half + i], *dx = &ds[group][2 * half + i];
                    *x = row + 8 * half < n ? exp2f(scale * LOG2_E * *x - log_sum[at] * LOG2_E) : 0.0f;
                    float kept = factor(by, at, context, row + 8 * half);
                    *dx = *x > 0.0f ? *x * (kept * *dx - delta[at]) : 0.0f;
                    *x *= kept;
                }
            }
        add_product(dk, ds, q);
        add_product(dv, p, d);
    }
    float scales[2] = {scale, scale}, ones[2] = {1.0f, 1.0f};
    T* to = d_qkv + rows * 3 * hidden + head * dim;
    store_tile(to + hidden, 3 * hidden, dk, scales, row, context, dim);
    store_tile(to + 2 * hidden, 3 * hidden, dv, ones, row, context, dim);
}
