// Attention on tensor cores, for bf16 and heads of up to 64 features: products of 16 x 8 x 16, sums in f32.
//
// A block has 128 queries or 64 keys of one head of its own, and walks over the others by tiles of 64. The next tile is
// on its way while one is used.
//
// In a warp lane 4 r + c holds of each 8 columns of a result the columns 2 c and 2 c + 1, in the rows r and r + 8.
// Scores are in units of ln 2, so that weights are powers of two.

typedef unsigned short u16;

#define TILE 64
#define PITCH 72 // a row of a tile: what lanes read together lies in different banks
#define GROUPS 8 // of 8 columns
#define COLUMNS 16 // of a row, that a lane holds
#define WARPS 4
#define QUERIES 2 // times 16 that a warp has of its own: more rows to a load, as far as registers go
#define KEYS 1
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

// A tile in shared memory, and a result of M times 16 rows and 64 columns.
typedef u16 Tile[TILE * PITCH];
template <int M> struct Result {
    float x[M][GROUPS][4];
    // Column `column(j)` of row 8 r of this lane's.
    __device__ float& at(int r, int j) { return x[r / 2][j / 2][r % 2 * 2 + j % 2]; }
};
#define EACH_COLUMN(j) _Pragma("unroll") for (int j = 0; j < COLUMNS; j++)
#define EACH_ROW(r) _Pragma("unroll") for (int r = 0; r < 2 * M; r++)

__device__ int column(int j) { return j / 2 * 8 + lane() % 4 * 2 + j % 2; }

__device__ float quad_sum(float x) {
    x += __shfl_xor_sync(ALL_LANES, x, 1);
    return x + __shfl_xor_sync(ALL_LANES, x, 2);
}

__device__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 1));
    return fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 2));
}

// Rows first .. first + TILE of one head, with zeros where there is nothing; they may come later.
__device__ void load_tile(u16* into, const T* from, int row_step, int first, int context, int dim) {
#pragma unroll
    for (int part = 0; part < TILE * TILE / CHUNK / (WARPS * WARP); part++) {
        int i = part * WARPS * WARP + threadIdx.x;
        int row = i / (TILE / CHUNK), d = i % (TILE / CHUNK) * CHUNK;
        int m = first + row < context ? chunk_len(d, dim) : 0;
        const T* x = from + (i64)(first + row) * row_step + d;
        u16* to = into + row * PITCH + d;
        if (is_whole(x, m)) {
            copy_async<16>(to, x);
        } else {
#pragma unroll 1
            for (int j = 0; j < CHUNK; j++) to[j] = j < m ? x[j].bits : 0;
        }
    }
}

// c += a b for the rows of this warp, with the columns 16 k .. 16 k + 16 of a in `left` and b in a tile: its
// rows are those of b, or with IS_ROWS the columns.
template <bool IS_ROWS, int M>
__device__ void multiply_part(Result<M>& c, const unsigned left[M][4], const u16* b, int k) {
    int row = lane() % 8, near = lane() / 8 % 2 * 8, far = lane() / 16 * 8;
    const u16* at = IS_ROWS ? b + (far + row) * PITCH + k * 16 + near : b + (k * 16 + near + row) * PITCH + far;
#pragma unroll
    for (int group = 0; group < GROUPS; group += 2) {
        unsigned right[4];
        load_matrices<!IS_ROWS>(right, at + group * 8 * (IS_ROWS ? PITCH : 1));
#pragma unroll
        for (int m = 0; m < M; m++) {
            mma(c.x[m][group], left[m], right);
            mma(c.x[m][group + 1], left[m], right + 2);
        }
    }
}

// a b^T, for the rows of this warp in a.
template <int M> __device__ Result<M> multiply(const u16* a, const u16* b) {
    Result<M> c = {};
    const u16* at = a + (warp() * M * 16 + lane() % 16) * PITCH + lane() / 16 * 8;
#pragma unroll
    for (int k = 0; k < TILE / 16; k++) {
        unsigned left[M][4];
#pragma unroll
        for (int m = 0; m < M; m++) load_matrices<false>(left[m], at + m * 16 * PITCH + k * 16);
        multiply_part<true, M>(c, left, b, k);
    }
    return c;
}

// c += a b, for a that this warp holds as a result.
template <int M> __device__ void add_product(Result<M>& c, const Result<M>& a, const u16* b) {
#pragma unroll
    for (int k = 0; k < TILE / 16; k++) {
        unsigned left[M][4];
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float* pair = a.x[m][2 * k + i / 2] + i % 2 * 2;
                left[m][i] = pack(pair[0], pair[1]);
            }
        multiply_part<false, M>(c, left, b, k);
    }
}

// Rows of this warp that lie before `context`, from a result, by way of the same rows of tiles that no other warp reads.
// The block's first row is given.
template <int M>
__device__ void store_rows(T* to, int row_step, Result<M>& c, const float* scales, u16* by, int first, int context,
                           int dim) {
    int mine = warp() * M * 16;
    EACH_ROW(r)
#pragma unroll
        for (int j = 0; j < COLUMNS; j += 2)
            *(unsigned*)(by + (mine + lane() / 4 + 8 * r) * PITCH + column(j)) =
                pack(scales[r] * c.at(r, j), scales[r] * c.at(r, j + 1));
    __syncwarp();
#pragma unroll
    for (int part = 0; part < M * 4; part++) {
        int row = mine + part * 4 + lane() / 8, d = lane() % 8 * CHUNK;
        int m = first + row < context ? chunk_len(d, dim) : 0;
        T* x = to + (i64)(first + row) * row_step + d;
        const u16* from = by + row * PITCH + d;
        if (is_whole(x, m)) {
            *(uint4*)x = *(const uint4*)from;
        } else {
#pragma unroll 1
            for (int j = 0; j < m; j++) x[j].bits = from[j];
        }
    }
}

// A bit for each of this lane's columns of a row: whether the weight is kept. The number of column 0's is given, and
// that from one to the next.
__device__ unsigned kept_columns(const Drop& by, i64 number, i64 step) {
    unsigned bits = 0;
#pragma unroll 1
    for (int j = 0; j < COLUMNS; j++) {
        unsigned long long at = by.first + (unsigned long long)(number + column(j) * step);
        bits |= (unsigned)(random_bits(by.key_0, by.key_1, at) >= by.threshold) << j;
    }
    return bits;
}
#define IS_KEPT(bits, j) ((bits) >> (j) & 1)

// Hides the columns of a row, which begin at `start`, that lie outside of `first .. end`.
template <int M> __device__ void hide(Result<M>& p, int r, int start, int first, int end) {
    if (start >= first && start + TILE <= end) return;
    EACH_COLUMN(j) {
        int at = start + column(j);
        if (at < first || at >= end) p.at(r, j) = -INFINITY;
    }
}

// The first `past` rows of the only sample have no results.
GLOBAL tiled_attention(const T* qkv, T* out, float* log_sum, int past, HEAD_ARGS, DROP_ARGS) {
    const int M = QUERIES, N_OWN = M * TILE;
    Drop by = DROP;
    extern __shared__ __align__(16) float shared[];
    Tile *q = (Tile*)shared, *k = q + M, *v = k + 2;
    int sample = blockIdx.x / heads;
    Mask mask = MASK(sample);
    Head head = HEAD(sample, blockIdx.x % heads);
    int first = past + (gridDim.y - 1 - blockIdx.y) * N_OWN; // the longest rows begin first
    int row = first + warp() * M * 16 + lane() / 4, last = first + (warp() + 1) * M * 16 - 1;
    auto load = [&](int start, int into) {
        load_tile(k[into], qkv + head.in_qkv(head.k), head.width, start, context, dim);
        load_tile(v[into], qkv + head.in_qkv(head.v), head.width, start, context, dim);
    };
    for (int m = 0; m < M; m++) load_tile(q[m], qkv + head.in_qkv(head.q), head.width, first + m * TILE, context, dim);
    int begin = mask.first_key(first), end = mask.end_key(first + N_OWN - 1);
    load(begin, 0);
    float unit = scale * LOG2_E, top[2 * M], total[2 * M] = {};
    EACH_ROW(r) top[r] = LOWEST;
    Result<M> sums = {};
    for (int start = begin, now = 0; start < end; start += TILE, now ^= 1) {
        wait_for_copies();
        __syncthreads(); // the tile is there for all, and none still reads the one before
        if (start + TILE < end) load(start + TILE, now ^ 1);
        if (start >= mask.end_key(last)) continue;
        Result<M> p = multiply<M>(q[0], k[now]);
        EACH_ROW(r) {
            hide(p, r, start, mask.first_key(row + 8 * r), mask.end_key(row + 8 * r));
            float higher = top[r], sum = 0.0f;
            EACH_COLUMN(j) higher = fmaxf(higher, p.at(r, j));
            higher = quad_max(higher);
            float shrink = power_of_two(unit * (top[r] - higher)), highest = unit * higher;
            EACH_COLUMN(j) {
                sum += p.at(r, j) = power_of_two(unit * p.at(r, j) - highest);
                sums.at(r, j) *= shrink;
            }
            top[r] = higher;
            total[r] = total[r] * shrink + quad_sum(sum);
            if (by.threshold == 0) continue;
            unsigned kept = kept_columns(by, ((head.rows + row + 8 * r) * heads + head.head) * context + start, 1);
            EACH_COLUMN(j) if (!IS_KEPT(kept, j)) p.at(r, j) = 0.0f;
        }
        add_product(sums, p, v[now]);
    }
    float scales[2 * M];
    EACH_ROW(r) scales[r] = by.scale / total[r];
    store_rows(out + head.in_result(), head.hidden, sums, scales, q[0], first - past, context - past, dim);
    EACH_ROW(r)
        if (lane() % 4 == 0 && row + 8 * r < context)
            log_sum[(head.rows + row - past + 8 * r) * heads + head.head] = scale * top[r] + logf(total[r]);
}

// The gradient of the queries: tiles of keys.
GLOBAL tiled_attention_dq(const T* dy, const T* qkv, const float* log_sum, const float* delta, T* d_qkv, HEAD_ARGS,
                          DROP_ARGS) {
    const int M = QUERIES, N_OWN = M * TILE;
    Drop by = DROP;
    extern __shared__ __align__(16) float shared[];
    Tile *q = (Tile*)shared, *d = q + M, *k = d + M, *v = k + 2;
    int sample = blockIdx.x / heads;
    Mask mask = MASK(sample);
    Head head = HEAD(sample, blockIdx.x % heads);
    int first = (gridDim.y - 1 - blockIdx.y) * N_OWN;
    int row = first + warp() * M * 16 + lane() / 4, last = first + (warp() + 1) * M * 16 - 1;
    auto load = [&](int start, int into) {
        load_tile(k[into], qkv + head.in_qkv(head.k), head.width, start, context, dim);
        load_tile(v[into], qkv + head.in_qkv(head.v), head.width, start, context, dim);
    };
    for (int m = 0; m < M; m++) {
        load_tile(q[m], qkv + head.in_qkv(head.q), head.width, first + m * TILE, context, dim);
        load_tile(d[m], dy + head.in_result(), head.hidden, first + m * TILE, context, dim);
    }
    int begin = mask.first_key(first), end = mask.end_key(first + N_OWN - 1);
    load(begin, 0);
    float unit = scale * LOG2_E, highest[2 * M], deltas[2 * M];
    EACH_ROW(r) {
        i64 at = (head.rows + min(row + 8 * r, context - 1)) * heads + head.head;
        highest[r] = LOG2_E * log_sum[at];
        deltas[r] = delta[at];
    }
    Result<M> sums = {};
    for (int start = begin, now = 0; start < end; start += TILE, now ^= 1) {
        wait_for_copies();
        __syncthreads();
        if (start + TILE < end) load(start + TILE, now ^ 1);
        if (start >= mask.end_key(last)) continue;
        Result<M> s = multiply<M>(q[0], k[now]), dp = multiply<M>(d[0], v[now]);
        EACH_ROW(r) {
            hide(s, r, start, mask.first_key(row + 8 * r), mask.end_key(row + 8 * r));
            if (by.threshold) {
                unsigned kept = kept_columns(by, ((head.rows + row + 8 * r) * heads + head.head) * context + start, 1);
                EACH_COLUMN(j) dp.at(r, j) = IS_KEPT(kept, j) ? by.scale * dp.at(r, j) : 0.0f;
            }
            EACH_COLUMN(j)
                s.at(r, j) = power_of_two(unit * s.at(r, j) - highest[r]) * (dp.at(r, j) - deltas[r]);
        }
        add_product(sums, s, k[now]);
    }
    float scales[2 * M];
    EACH_ROW(r) scales[r] = scale;
    store_rows(d_qkv + head.in_qkv(head.q), head.width, sums, scales, q[0], first, context, dim);
}

// The gradients of keys and values: tiles of queries, of one after another of the heads that share the keys. Scores are
// transposed: a row to a key.
GLOBAL tiled_attention_dkv(const T* dy, const T* qkv, const float* log_sum, const float* delta, T* d_qkv, HEAD_ARGS,
                           DROP_ARGS) {
    const int M = KEYS, N_OWN = M * TILE;
    Drop by = DROP;
    extern __shared__ __align__(16) float shared[];
    Tile *k = (Tile*)shared, *v = k + M, *q = v + M, *d = q + 2;
    float *log_sums = (float*)(d + 2), *deltas = log_sums + 2 * TILE;
    int n_sharing = heads / kv_heads, sample = blockIdx.x / kv_heads, first_head = blockIdx.x % kv_heads * n_sharing;
    Mask mask = MASK(sample);
    Head shares = HEAD(sample, first_head);
    int first = blockIdx.y * N_OWN, row = first + warp() * M * 16 + lane() / 4;
    // Keys that no row sees have no gradient.
    int begin = mask.first_row(first), end = mask.end_row(first + N_OWN - 1);
    int n_tiles = begin < end ? (end - begin + TILE - 1) / TILE : 0;
    auto load = [&](int tile, int into) {
        Head head = HEAD(sample, first_head + tile / n_tiles);
        int start = begin + tile % n_tiles * TILE;
        load_tile(q[into], qkv + head.in_qkv(head.q), head.width, start, context, dim);
        load_tile(d[into], dy + head.in_result(), head.hidden, start, context, dim);
        int query = start + threadIdx.x % TILE, to = into * TILE + threadIdx.x % TILE;
        bool is_delta = threadIdx.x >= TILE;
        float* number = (is_delta ? deltas : log_sums) + to;
        i64 at = (head.rows + query) * heads + head.head;
        if (query < context) copy_async<4>(number, (is_delta ? delta : log_sum) + at);
        else *number = 0.0f; // no key is seen from there
    };
    if (n_tiles > 0) {
        for (int m = 0; m < M; m++) {
            load_tile(k[m], qkv + shares.in_qkv(shares.k), shares.width, first + m * TILE, context, dim);
            load_tile(v[m], qkv + shares.in_qkv(shares.v), shares.width, first + m * TILE, context, dim);
        }
        load(0, 0);
    }
    float unit = scale * LOG2_E;
    Result<M> dk = {}, dv = {};
    for (int tile = 0, now = 0; tile < n_sharing * n_tiles; tile++, now ^= 1) {
        wait_for_copies();
        __syncthreads();
        if (tile + 1 < n_sharing * n_tiles) load(tile + 1, now ^ 1);
        int head = first_head + tile / n_tiles, start = begin + tile % n_tiles * TILE;
        Result<M> p = multiply<M>(k[0], q[now]), ds = multiply<M>(v[0], d[now]);
        EACH_ROW(r) {
            int key = row + 8 * r;
            hide(p, r, start, mask.first_row(key), mask.end_row(key));
            unsigned kept = ~0u;
            if (by.threshold) {
                kept = kept_columns(by, ((shares.rows + start) * heads + head) * context + key, (i64)heads * context);
                EACH_COLUMN(j) ds.at(r, j) = IS_KEPT(kept, j) ? by.scale * ds.at(r, j) : 0.0f;
            }
            EACH_COLUMN(j) {
                int query = now * TILE + column(j);
                p.at(r, j) = power_of_two(unit * p.at(r, j) - LOG2_E * log_sums[query]);
                ds.at(r, j) = p.at(r, j) * (ds.at(r, j) - deltas[query]);
            }
            if (by.threshold) EACH_COLUMN(j) if (!IS_KEPT(kept, j)) p.at(r, j) = 0.0f;
        }
        add_product(dk, ds, q[now]);
        add_product(dv, p, d[now]);
    }
    float scales[2 * M], kept_scales[2 * M];
    EACH_ROW(r) {
        scales[r] = scale;
        kept_scales[r] = by.scale;
    }
    store_rows(d_qkv + shares.in_qkv(shares.k), shares.width, dk, scales, k[0], first, context, dim);
    store_rows(d_qkv + shares.in_qkv(shares.v), shares.width, dv, kept_scales, v[0], first, context, dim);
}
