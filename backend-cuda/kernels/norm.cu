// Layer norm and RMS norm: a warp to a row, read again from the cache rather than kept. Layer norm alone centres rows
// and adds a bias.

// The chunks of a row that a lane has, from element i on, m of them.
#define EACH_CHUNK(i, m, width) \
    for (int i = lane() * CHUNK, m; (m = min((width) - i, CHUNK)) > 0; i += WARP * CHUNK)

// What a row was centred by and multiplied by; without centring only the latter is kept.
struct Stats {
    float mean, scale;
};

__device__ Stats stats_of(const float* stats, i64 row, bool is_centred) {
    return is_centred ? Stats{stats[2 * row], stats[2 * row + 1]} : Stats{0.0f, stats[row]};
}

__device__ float row_mean(const T* x, int width) {
    float sum = 0.0f;
    EACH_CHUNK(i, m, width) {
        Chunk c = load(x + i, m);
        EACH_OF_CHUNK(j) sum += c.x[j];
    }
    float mean = warp_sum(sum) / width;
    // The mean's own rounding, which far from zero is not small.
    float rest = 0.0f;
    EACH_CHUNK(i, m, width) {
        Chunk c = load(x + i, m);
        EACH_OF_CHUNK(j) if (j < m) rest += c.x[j] - mean;
    }
    return mean + warp_sum(rest) / width;
}

// Without a bias it is RMS norm.
GLOBAL row_norm(const T* x, const float* gain, const float* bias, T* y, float* stats, i64 rows, int width,
            float epsilon) {
    i64 row = (i64)blockIdx.x * (blockDim.x / WARP) + warp();
    if (row >= rows) return;
    x += row * width;
    y += row * width;
    float mean = bias ? row_mean(x, width) : 0.0f;
    float squares = 0.0f;
    EACH_CHUNK(i, m, width) {
        Chunk c = load(x + i, m);
        EACH_OF_CHUNK(j) if (j < m) squares += (c.x[j] - mean) * (c.x[j] - mean);
    }
    float scale = 1.0f / sqrtf(warp_sum(squares) / width + epsilon);
    EACH_CHUNK(i, m, width) {
        Chunk c = load(x + i, m), g = load(gain + i, m), b = {};
        if (bias) b = load(bias + i, m);
        EACH_OF_CHUNK(j) c.x[j] = (c.x[j] - mean) * scale * g.x[j] + b.x[j];
        store(y + i, c, m);
    }
    if (lane() != 0) return;
    if (bias) stats[2 * row] = mean;
    stats[bias ? 2 * row + 1 : row] = scale;
}

GLOBAL row_norm_dx(const T* dy, const T* x, const float* stats, const float* gain, const T* residual, T* dx, i64 rows,
               int width, int is_centred) {
    i64 row = (i64)blockIdx.x * (blockDim.x / WARP) + warp();
    if (row >= rows) return;
    auto [mean, scale] = stats_of(stats, row, is_centred);
    i64 at = row * width;
    float sum = 0.0f, sum_normed = 0.0f;
    EACH_CHUNK(i, m, width) {
        Chunk d = load(dy + at + i, m), g = load(gain + i, m), c = load(x + at + i, m);
        EACH_OF_CHUNK(j) {
            float product = __fmul_rn(d.x[j], g.x[j]);
            sum += product;
            sum_normed += product * (c.x[j] - mean) * scale;
        }
    }
    sum = is_centred ? warp_sum(sum) / width : 0.0f;
    sum_normed = warp_sum(sum_normed) / width;
    EACH_CHUNK(i, m, width) {
        Chunk d = load(dy + at + i, m), g = load(gain + i, m), c = load(x + at + i, m);
        EACH_OF_CHUNK(j) {
            // Rounded as in the sum, so that it vanishes against that of a row of one.
            float product = __fmul_rn(d.x[j], g.x[j]), normed = (c.x[j] - mean) * scale;
            d.x[j] = scale * (product - sum - normed * sum_normed);
        }
        if (residual) {
            Chunk r = load(residual + at + i, m);
            EACH_OF_CHUNK(j) d.x[j] += r.x[j];
        }
        store(dx + at + i, d, m);
    }
}

// d_gain[column] and d_bias[column] grow by sums over ranges of rows, see sums.cu. Without d_bias it is RMS norm.
GLOBAL row_norm_dw(const T* dy, const T* x, const float* stats, float* parts, unsigned* arrived, float* d_gain,
                   float* d_bias, i64 rows, int width, int range) {
    int at = blockIdx.x * SUMMED + threadIdx.x % ROW_THREADS * CHUNK, m = chunk_len(at, width);
    i64 first = (i64)blockIdx.y * range;
    Chunk gains = {}, biases = {};
#pragma unroll 4
    for (i64 r = first + threadIdx.x / ROW_THREADS; r < first + range && r < rows; r += blockDim.x / ROW_THREADS) {
        Chunk d = load(dy + r * width + at, m), c = load(x + r * width + at, m);
        auto [mean, scale] = stats_of(stats, r, d_bias);
        EACH_OF_CHUNK(j) {
            gains.x[j] += d.x[j] * (c.x[j] - mean) * scale;
            biases.x[j] += d.x[j];
        }
    }
    Ranges of_gain = {parts, arrived, width}, of_bias = {parts + (i64)gridDim.y * width, arrived, width};
    of_gain.keep(across_rows(gains));
    if (d_bias) of_bias.keep(across_rows(biases));
    if (!of_gain.is_last()) return;
    float gain = of_gain.total(), bias = d_bias ? of_bias.total() : 0.0f;
    if (!of_gain.is_mine()) return;
    d_gain[summed_column()] += gain;
    if (d_bias) d_bias[summed_column()] += bias;
}
