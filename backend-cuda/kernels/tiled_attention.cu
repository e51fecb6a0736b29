// Attention on tensor cores, for heads of up to 64 or 128 features.
//
// A block has 128 or 64 queries or keys of one head of its own, and walks over the others by tiles. The next tile is on
// its way while one is used, up to 32 rows of it at a time. Scores are in units of ln 2, so that weights are powers of two.

#define LOG2_E 1.44269504f

// A bit for each of this lane's columns of a row: whether the weight is kept. The number of column 0's is given, and
// that from one to the next.
template <int G> __device__ unsigned kept_columns(const Drop& by, i64 number, i64 step) {
    unsigned bits = 0;
#pragma unroll 1
    for (int j = 0; j < COLUMNS; j++) {
        unsigned long long at = by.first + (unsigned long long)(number + column(j) * step);
        bits |= (unsigned)(random_bits(by.key_0, by.key_1, at) >= by.threshold) << j;
    }
    return bits;
}
#define IS_KEPT(kept, r, j) ((kept)[(r) / 2] >> ((r) % 2 * COLUMNS + (j)) & 1)

// Hides the columns of a row, which begin at `start`, that lie outside of `first .. end`.
template <int ROWS, int G> __device__ void hide(Result<ROWS, G>& p, int r, int start, int first, int end) {
    int offset = start + column(0); // then the rest of a column's number is a constant
    first -= offset, end -= offset;
    EACH_COLUMN(j) {
        bool is_seen = j / 2 * 8 + j % 2 >= first & j / 2 * 8 + j % 2 < end;
        p.at(r, j) = is_seen ? p.at(r, j) : -INFINITY;
    }
}

// The keys and the values of a head, from row `first` on.
template <int WIDTH>
__device__ void load_pair(Tile<WIDTH>& k, Tile<WIDTH>& v, const T* qkv, const Head& head, int first, int context, int dim) {
    load_tile<WIDTH>(k, qkv + head.in_qkv(head.k), head.width, first, context, dim);
    load_tile<WIDTH>(v, qkv + head.in_qkv(head.v), head.width, first, context, dim);
}

// What the kernels of either width take, and the names of it.
#define NAMES seen, context, window, heads, kv_heads, dim, scale, key_0, key_1, first_weight, threshold, kept_scale
#define FORWARD_ARGS const T *qkv, T *out, float *log_sum, int past, HEAD_ARGS, DROP_ARGS
#define FORWARD_NAMES qkv, out, log_sum, past, NAMES
#define BACKWARD_ARGS \
    const T *dy, const T *qkv, const float *log_sum, const float *delta, T *d_qkv, HEAD_ARGS, DROP_ARGS
#define BACKWARD_NAMES dy, qkv, log_sum, delta, d_qkv, NAMES

// The first `past` rows of the only sample have no results.
template <int WIDTH, int ROWS> __device__ void attend(float* shared, FORWARD_ARGS) {
    const int G = STEP_GROUPS;
    Drop by = DROP;
    Tile<WIDTH> *q = (Tile<WIDTH>*)shared, *k = q + OWN_ROWS / TILE, *v = k + 2;
    int sample = blockIdx.x / heads;
    Mask mask = MASK(sample);
    Head head = HEAD(sample, blockIdx.x % heads);
    int first = past + (gridDim.y - 1 - blockIdx.y) * OWN_ROWS; // the longest rows begin first
    int row = first + warp() * ROWS * 16 + lane() / 4, last = first + (warp() + 1) * ROWS * 16 - 1;
    auto load = [&](int start, int into) { load_pair<WIDTH>(k[into], v[into], qkv, head, start, context, dim); };
    for (int m = 0; m < OWN_ROWS / TILE; m++)
        load_tile<WIDTH>(q[m], qkv + head.in_qkv(head.q), head.width, first + m * TILE, context, dim);
    int begin = mask.first_key(first), end = mask.end_key(first + OWN_ROWS - 1);
    load(begin, 0);
    // All rows of this warp see the keys from `open` to `close`, and none those from `over` on.
    int mine = first + warp() * ROWS * 16;
    int open = mask.first_key(last), close = mask.end_key(mine), over = mask.end_key(last);
    Left<WIDTH, ROWS, false> queries(q[0]);
    float unit = scale * LOG2_E, top[2 * ROWS], total[2 * ROWS] = {}; // the total of this lane's columns
    EACH_ROW(r) top[r] = LOWEST;
    Result<ROWS, GROUPS> sums = {};
    for (int tile = begin, now = 0; tile < end; tile += TILE, now ^= 1) {
        wait_for_copies();
        __syncthreads(); // the tile is there for all, and none still reads the one before
        if (tile + TILE < end) load(tile + TILE, now ^ 1);
#pragma unroll
        for (int part = 0; part < TILE / STEP; part++) {
            int start = tile + part * STEP;
            if (start >= over) break;
            unsigned kept[ROWS] = {}; // found here, where few registers are taken
            if (by.threshold) {
                int mine = here(row);
                EACH_ROW(r) {
                    i64 number = ((head.rows + mine + 8 * r) * heads + head.head) * context + start;
                    kept[r / 2] |= kept_columns<G>(by, number, 1) << r % 2 * COLUMNS;
                }
            }
            Result<ROWS, G> p = multiply<G>(queries, k[now] + part * STEP * PITCH);
            if (start < open || start + STEP > close) {
                int mine = here(row);
                EACH_ROW(r) hide(p, r, start, mask.first_key(mine + 8 * r), mask.end_key(mine + 8 * r));
            }
            // No branch from here on: each row's steps hide the latency of another's.
            float higher[2 * ROWS];
            EACH_ROW(r) {
                higher[r] = top[r];
                EACH_COLUMN(j) higher[r] = fmaxf(higher[r], p.at(r, j));
            }
            EACH_ROW(r) higher[r] = quad_max(higher[r]);
            // A top that is a little too low does as well: weights of up to 2^8 are as exact as others.
            bool is_far = false;
            EACH_ROW(r) is_far |= unit * (higher[r] - top[r]) > 8.0f;
            if (is_far) {
                EACH_ROW(r) {
                    float shrink = power_of_two(unit * (top[r] - higher[r]));
                    const int G = GROUPS;
                    EACH_COLUMN(j) sums.at(r, j) *= shrink;
                    total[r] *= shrink;
                    top[r] = higher[r];
                }
            }
            EACH_ROW(r) {
                float highest = unit * top[r];
                EACH_COLUMN(j) total[r] += p.at(r, j) = power_of_two(unit * p.at(r, j) - highest);
            }
            if (by.threshold)
                EACH_ROW(r) EACH_COLUMN(j) if (!IS_KEPT(kept, r, j)) p.at(r, j) = 0.0f;
            add_product(sums, p, v[now] + part * STEP * PITCH);
        }
    }
    float scales[2 * ROWS];
    EACH_ROW(r) {
        total[r] = quad_sum(total[r]);
        scales[r] = by.scale / total[r];
    }
    store_rows(out + head.in_result(), head.hidden, sums, scales, q[0], first - past, context - past, dim);
    EACH_ROW(r)
        if (lane() % 4 == 0 && row + 8 * r < context)
            log_sum[(head.rows + row - past + 8 * r) * heads + head.head] = scale * top[r] + logf(total[r]);
}

// The gradient of the queries: tiles of keys.
template <int WIDTH, int ROWS, bool IS_HELD> __device__ void attend_dq(float* shared, BACKWARD_ARGS) {
    const int G = STEP_GROUPS;
    Drop by = DROP;
    Tile<WIDTH> *q = (Tile<WIDTH>*)shared, *d = q + OWN_ROWS / TILE, *k = d + OWN_ROWS / TILE, *v = k + 2;
    int sample = blockIdx.x / heads;
    Mask mask = MASK(sample);
    Head head = HEAD(sample, blockIdx.x % heads);
    int first = (gridDim.y - 1 - blockIdx.y) * OWN_ROWS;
    int row = first + warp() * ROWS * 16 + lane() / 4, last = first + (warp() + 1) * ROWS * 16 - 1;
    auto load = [&](int start, int into) { load_pair<WIDTH>(k[into], v[into], qkv, head, start, context, dim); };
    for (int m = 0; m < OWN_ROWS / TILE; m++) {
        load_tile<WIDTH>(q[m], qkv + head.in_qkv(head.q), head.width, first + m * TILE, context, dim);
        load_tile<WIDTH>(d[m], dy + head.in_result(), head.hidden, first + m * TILE, context, dim);
    }
    int begin = mask.first_key(first), end = mask.end_key(first + OWN_ROWS - 1);
    load(begin, 0);
    // All rows of this warp see the keys from `open` to `close`, and none those from `over` on.
    int mine = first + warp() * ROWS * 16;
    int open = mask.first_key(last), close = mask.end_key(mine), over = mask.end_key(last);
    float unit = scale * LOG2_E, highest[2 * ROWS], deltas[2 * ROWS];
    EACH_ROW(r) {
        i64 at = (head.rows + min(row + 8 * r, context - 1)) * heads + head.head;
        highest[r] = LOG2_E * log_sum[at];
        deltas[r] = delta[at];
    }
    Left<WIDTH, ROWS, IS_HELD> queries(q[0]), dys(d[0]);
    wait_for_copies();
    __syncthreads();
    queries.hold();
    dys.hold();
    Result<ROWS, GROUPS> sums = {};
    for (int tile = begin, now = 0; tile < end; tile += TILE, now ^= 1) {
        wait_for_copies();
        __syncthreads();
        if (tile + TILE < end) load(tile + TILE, now ^ 1);
#pragma unroll
        for (int part = 0; part < TILE / STEP; part++) {
            int start = tile + part * STEP;
            const Cell *keys = k[now] + part * STEP * PITCH, *values = v[now] + part * STEP * PITCH;
            if (start >= over) break;
            unsigned kept[ROWS] = {}; // found here, where few registers are taken
            if (by.threshold) {
                int mine = here(row);
                EACH_ROW(r) {
                    i64 number = ((head.rows + mine + 8 * r) * heads + head.head) * context + start;
                    kept[r / 2] |= kept_columns<G>(by, number, 1) << r % 2 * COLUMNS;
                }
            }
            Result<ROWS, G> s = multiply<G>(queries, keys);
            if (start < open || start + STEP > close) {
                int mine = here(row);
                EACH_ROW(r) hide(s, r, start, mask.first_key(mine + 8 * r), mask.end_key(mine + 8 * r));
            }
            Result<ROWS, G> dp = multiply<G>(dys, values);
            if (by.threshold)
                EACH_ROW(r) EACH_COLUMN(j) dp.at(r, j) = IS_KEPT(kept, r, j) ? by.scale * dp.at(r, j) : 0.0f;
            EACH_ROW(r)
                EACH_COLUMN(j)
                    s.at(r, j) = power_of_two(unit * s.at(r, j) - highest[r]) * (dp.at(r, j) - deltas[r]);
            add_product(sums, s, keys);
        }
    }
    float scales[2 * ROWS];
    EACH_ROW(r) scales[r] = scale;
    store_rows(d_qkv + head.in_qkv(head.q), head.width, sums, scales, q[0], first, context, dim);
}

// The gradients of keys and values: tiles of queries, of one after another of the heads that share the keys. Scores are
// transposed: a row to a key.
template <int WIDTH, int ROWS> __device__ void attend_dkv(float* shared, BACKWARD_ARGS) {
    const int G = STEP_GROUPS;
    Drop by = DROP;
    Tile<WIDTH> *k = (Tile<WIDTH>*)shared, *v = k + OWN_ROWS / TILE, *q = v + OWN_ROWS / TILE, *d = q + 2;
    // The number of a row stands behind its features, where tiles have room: a block takes all that some chips have.
    auto place = [](const Cell* tile, int row) { return (float*)(tile + row * PITCH + WIDTH); };
    int n_sharing = heads / kv_heads, sample = blockIdx.x / kv_heads, first_head = blockIdx.x % kv_heads * n_sharing;
    Mask mask = MASK(sample);
    Head shares = HEAD(sample, first_head);
    int first = blockIdx.y * OWN_ROWS, mine = first + warp() * ROWS * 16, row = mine + lane() / 4;
    // Keys that no row sees have no gradient.
    int begin = mask.first_row(first), end = mask.end_row(first + OWN_ROWS - 1);
    int n_tiles = begin < end ? n_sharing * ((end - begin + TILE - 1) / TILE) : 0;
    auto load = [&](int nth, int start, int into) {
        Head head = HEAD(sample, nth);
        load_tile<WIDTH>(q[into], qkv + head.in_qkv(head.q), head.width, start, context, dim);
        load_tile<WIDTH>(d[into], dy + head.in_result(), head.hidden, start, context, dim);
        int i = threadIdx.x % (2 * TILE), query = start + i % TILE;
        float* number = place(i < TILE ? q[into] : d[into], i % TILE);
        i64 at = (head.rows + query) * heads + head.head;
        if (query < context) copy_async<4>(number, (i < TILE ? log_sum : delta) + at);
        else *number = 0.0f; // no key is seen from there
    };
    if (n_tiles > 0) {
        for (int m = 0; m < OWN_ROWS / TILE; m++) {
            load_pair<WIDTH>(k[m], v[m], qkv, shares, first + m * TILE, context, dim);
        }
        load(first_head, begin, 0);
    }
    // The rows from `open` to `close` see all keys of this warp, and those before `from` none.
    int open = mask.first_row(mine + ROWS * 16 - 1), close = mask.end_row(mine);
    int from = mask.first_row(mine);
    Left<WIDTH, ROWS, false> keys(k[0]), values(v[0]);
    float unit = scale * LOG2_E;
    Result<ROWS, GROUPS> dk = {}, dv = {};
    int head = first_head, tile = begin, next_head = first_head, next = begin;
    for (int left = n_tiles, now = 0; left > 0; left--, now ^= 1, head = next_head, tile = next) {
        next += TILE;
        if (next >= end) next_head++, next = begin;
        wait_for_copies();
        __syncthreads();
        if (left > 1) load(next_head, next, now ^ 1);
#pragma unroll
        for (int part = 0; part < TILE / STEP; part++) {
            int start = tile + part * STEP;
            const Cell *queries = q[now] + part * STEP * PITCH, *dys = d[now] + part * STEP * PITCH;
            if (start + STEP <= from) continue;
            unsigned kept[ROWS] = {}; // found here, where few registers are taken
            if (by.threshold) {
                int mine = here(row);
                EACH_ROW(r) {
                    i64 number = ((shares.rows + start) * heads + head) * context + mine + 8 * r;
                    kept[r / 2] |= kept_columns<G>(by, number, (i64)heads * context) << r % 2 * COLUMNS;
                }
            }
            Result<ROWS, G> p = multiply<G>(keys, queries);
            if (start < open || start + STEP > close) {
                int mine = here(row);
                EACH_ROW(r) hide(p, r, start, mask.first_row(mine + 8 * r), mask.end_row(mine + 8 * r));
            }
            EACH_COLUMN(j) {
                float highest = LOG2_E * *place(queries, column(j));
                EACH_ROW(r) p.at(r, j) = power_of_two(unit * p.at(r, j) - highest);
            }
            Result<ROWS, G> ds = multiply<G>(values, dys);
            if (by.threshold)
                EACH_ROW(r) EACH_COLUMN(j) ds.at(r, j) = IS_KEPT(kept, r, j) ? by.scale * ds.at(r, j) : 0.0f;
            EACH_COLUMN(j) {
                float mean = *place(dys, column(j));
                EACH_ROW(r) ds.at(r, j) = p.at(r, j) * (ds.at(r, j) - mean);
            }
            if (by.threshold)
                EACH_ROW(r) EACH_COLUMN(j) if (!IS_KEPT(kept, r, j)) p.at(r, j) = 0.0f;
            add_product(dv, p, dys);
            add_product(dk, ds, queries);
        }
    }
    float scales[2 * ROWS], kept_scales[2 * ROWS];
    EACH_ROW(r) scales[r] = scale, kept_scales[r] = by.scale;
    store_rows(d_qkv + shares.in_qkv(shares.k), shares.width, dk, scales, k[0], first, context, dim);
    store_rows(d_qkv + shares.in_qkv(shares.v), shares.width, dv, kept_scales, v[0], first, context, dim);
}

// The registers of a multiprocessor are for so many blocks. Sums of wide heads leave a warp fewer for rows.
#define BLOCKS(n) extern "C" __global__ void __launch_bounds__(WARPS * WARP, n)
BLOCKS(NARROW_BLOCKS) tiled_attention(FORWARD_ARGS);
BLOCKS(1) tiled_attention_dkv(BACKWARD_ARGS);
BLOCKS(2) tiled_attention_128(FORWARD_ARGS);
BLOCKS(2) tiled_attention_dq_128(BACKWARD_ARGS);
BLOCKS(2) tiled_attention_dkv_128(BACKWARD_ARGS);

#define SHARED extern __shared__ __align__(16) float shared[];
GLOBAL tiled_attention(FORWARD_ARGS) { SHARED attend<64, 2>(shared, FORWARD_NAMES); }
GLOBAL tiled_attention_dq(BACKWARD_ARGS) { SHARED attend_dq<64, NARROW_ROWS, HOLDS>(shared, BACKWARD_NAMES); }
GLOBAL tiled_attention_dkv(BACKWARD_ARGS) { SHARED attend_dkv<64, NARROW_ROWS>(shared, BACKWARD_NAMES); }
GLOBAL tiled_attention_128(FORWARD_ARGS) { SHARED attend<128, 2>(shared, FORWARD_NAMES); }
GLOBAL tiled_attention_dq_128(BACKWARD_ARGS) { SHARED attend_dq<128, 1, HOLDS>(shared, BACKWARD_NAMES); }
GLOBAL tiled_attention_dkv_128(BACKWARD_ARGS) { SHARED attend_dkv<128, 1>(shared, BACKWARD_NAMES); }
