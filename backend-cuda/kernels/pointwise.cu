// Elements on their own.

// n elements of x, and zeros behind them up to n_all.
GLOBAL to_activation(const float* x, T* y, i64 n, i64 n_all) {
    i64 at = chunk_start();
    store(y + at, load(x + at, chunk_len(at, n)), chunk_len(at, n_all));
}

GLOBAL from_activation(const T* x, float* y, i64 n) {
    i64 at = chunk_start();
    int m = chunk_len(at, n);
    store(y + at, load(x + at, m), m);
}

GLOBAL accumulate(float* into, const float* x, i64 n) {
    EACH(i, n) into[i] += x[i];
}

GLOBAL accumulate_activation(T* into, const T* x, i64 n) {
    i64 at = chunk_start();
    int m = chunk_len(at, n);
    Chunk sum = load(into + at, m), c = load(x + at, m);
    EACH_OF_CHUNK(j) sum.x[j] += c.x[j];
    store(into + at, sum, m);
}

struct Joined {
    const float* x;
    i64 n, first, at;
};

// y[at..] = x for each of some tensors.
GLOBAL join(const Joined* all, int n_all, float* y) {
    Joined part = row_of_block(all, n_all);
    EACH_OF_BLOCK(i, part.n, blockIdx.x - part.first) y[part.at + i] = part.x[i];
}

// y[row] = x[row], whose rows are `pitch` apart.
GLOBAL pack_rows(const T* x, T* y, int width, int pitch) {
    i64 row = blockIdx.x;
    for (int i = threadIdx.x; i < width; i += blockDim.x) y[row * width + i] = x[row * pitch + i];
}

// The chunk of a row that a thread has, where rows are cut into chunks of their own.
struct RowChunk {
    i64 row;
    int column, n;
};

__device__ RowChunk row_chunk(int width) {
    unsigned per_row = (width + CHUNK - 1) / CHUNK, number = blockIdx.x * blockDim.x + threadIdx.x;
    int column = number % per_row * CHUNK;
    return {number / per_row, column, chunk_len(column, width)};
}

// The functions of Activation, in its order.
enum { GELU_TANH, GELU, TANH, SILU };

struct Activated {
    float value, slope;
};

__device__ Activated activated(float x, int f) {
    if (f == TANH) {
        // 1 - tanh^2, from the exponential that is not large: it does not cancel.
        float small = expf(-2.0f * fabsf(x)), sum = 1.0f + small;
        return {tanhf(x), 4.0f * small / (sum * sum)};
    }
    if (f == GELU) {
        float below = 0.5f * erfcf(-0.70710678f * x);
        return {x * below, below + x * 0.39894228f * expf(-0.5f * x * x)};
    }
    // SiLU is x times the logistic function of x; (1 + tanh u)/2 is that of 2u. It and its rest come from the exponential
    // that is not large, so that they do not cancel.
    float u = f == SILU ? x : 1.5957691216f * (x + 0.044715f * x * x * x);
    float small = expf(-fabsf(u)), most = 1.0f / (1.0f + small);
    float s = u < 0.0f ? small * most : most, rest = u < 0.0f ? most : small * most;
    float du = f == SILU ? 1.0f : 1.5957691216f * (1.0f + 3.0f * 0.044715f * x * x);
    // Where either vanishes the slope is 0 or 1, and du may be too large.
    return {x * s, s * rest > 0.0f ? s + x * s * rest * du : s};
}

GLOBAL activation(const T* x, T* y, i64 n, int f) {
    i64 at = chunk_start();
    int m = chunk_len(at, n);
    Chunk c = load(x + at, m);
    EACH_OF_CHUNK(j) c.x[j] = activated(c.x[j], f).value;
    store(y + at, c, m);
}

GLOBAL activation_dx(const T* dy, const T* x, T* dx, T* y, i64 n, int f) {
    i64 at = chunk_start();
    int m = chunk_len(at, n);
    Chunk d = load(dy + at, m), c = load(x + at, m);
    EACH_OF_CHUNK(j) {
        Activated a = activated(c.x[j], f);
        d.x[j] *= a.slope;
        c.x[j] = a.value;
    }
    store(dx + at, d, m);
    store(y + at, c, m);
}

// y = f(gate) up, from rows of gate and up side by side, `width` features each.
GLOBAL gated(const T* x, T* y, int rows, int width, int f) {
    auto [row, column, m] = row_chunk(width);
    if (row >= rows) return;
    x += row * 2 * width + column;
    Chunk c = load(x, m), up = load(x + width, m);
    EACH_OF_CHUNK(j) c.x[j] = activated(c.x[j], f).value * up.x[j];
    store(y + row * width + column, c, m);
}

GLOBAL gated_dx(const T* dy, const T* x, T* dx, T* y, int rows, int width, int f) {
    auto [row, column, m] = row_chunk(width);
    if (row >= rows) return;
    i64 at = row * width + column, gate_at = at + row * width;
    Chunk d = load(dy + at, m), gate = load(x + gate_at, m), up = load(x + gate_at + width, m), d_up;
    EACH_OF_CHUNK(j) {
        Activated a = activated(gate.x[j], f);
        d_up.x[j] = d.x[j] * a.value;
        d.x[j] *= a.slope * up.x[j];
        up.x[j] *= a.value;
    }
    store(dx + gate_at, d, m);
    store(dx + gate_at + width, d_up, m);
    store(y + at, up, m);
}

// Rotary positions, a block to a row: features i and i + dim / 2 of each head among the first `turned` features are turned
// by the angle whose cosine and sine the table has for the row's position; a sign of -1 turns a gradient back.
GLOBAL rotary(const T* x, const float* table, T* y, int width, int context, int turned, int dim, float sign) {
    i64 row = blockIdx.x;
    x += row * width;
    y += row * width;
    table += row % context * dim;
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        float own = get(x, i);
        if (i < turned) {
            int half = dim / 2, feature = i % dim;
            bool is_first = feature < half;
            float other = get(x, is_first ? i + half : i - half), sine = sign * table[feature % half + half];
            own = table[feature % half] * own + (is_first ? -sine : sine) * other;
        }
        put(y, i, own);
    }
}

__device__ unsigned rotate(unsigned x, int by) { return (x << by) | (x >> (32 - by)); }

// 64 random bits: those of four neighbours, the first of which has a number that four divides.
struct Block {
    unsigned low, high;

    __device__ unsigned of(unsigned long long element) const {
        unsigned word = element & 2 ? high : low;
        return element & 1 ? word >> 16 : word & 0xFFFFu;
    }
};

// Block `counter` of the stream (key_0, key_1): Threefry-2x32, 13 rounds.
__device__ Block threefry(unsigned key_0, unsigned key_1, unsigned long long counter) {
    const int rotations[8] = {13, 15, 26, 6, 17, 29, 16, 24};
    unsigned keys[3] = {key_0, key_1, 0x1BD11BDAu ^ key_0 ^ key_1};
    unsigned a = (unsigned)counter + keys[0], b = (unsigned)(counter >> 32) + keys[1];
#pragma unroll
    for (int round = 1; round <= 13; round++) {
        a += b;
        b = rotate(b, rotations[(round - 1) % 8]) ^ a;
        if (round % 4 == 0) {
            a += keys[round / 4 % 3];
            b += keys[(round / 4 + 1) % 3] + round / 4;
        }
    }
    return {a, b};
}

// The random bits of an element, 16.
__device__ unsigned random_bits(unsigned key_0, unsigned key_1, unsigned long long element) {
    return threefry(key_0, key_1, element >> 2).of(element);
}

// Keeps the elements whose bits are not below the threshold, scaled; residual may be missing.
GLOBAL dropout(const T* x, const T* residual, T* y, i64 n, unsigned key_0, unsigned key_1, i64 first,
               unsigned threshold, float scale) {
    i64 at = chunk_start();
    int m = chunk_len(at, n);
    Chunk c = load(x + at, m);
    Block block = {};
    EACH_OF_CHUNK(j) {
        unsigned long long element = (unsigned long long)first + at + j;
        if (j == 0 || !(element & 3)) block = threefry(key_0, key_1, element >> 2);
        c.x[j] = block.of(element) >= threshold ? scale * c.x[j] : 0.0f;
    }
    if (residual) {
        Chunk r = load(residual + at, m);
        EACH_OF_CHUNK(j) c.x[j] += r.x[j];
    }
    store(y + at, c, m);
}
