// Layer norm: a warp to a row, read again from the cache rather than kept.

GLOBAL layer_norm(const T* x, const float* gain, const float* bias, T* y, float* stats, i64 rows, int width,
                  float epsilon) {
    i64 row = (i64)blockIdx.x * (blockDim.x / WARP) + warp();
    if (row >= rows) return;
    x += row * width;
    y += row * width;
    float sum = 0.0f;
    for (int i = lane(); i < width; i += WARP) sum += get(x, i);
    float mean = warp_sum(sum) / width;
    // The mean's own rounding, which far from zero is not small.
    float rest = 0.0f;
    for (int i = lane(); i < width; i += WARP) rest += get(x, i) - mean;
    mean += warp_sum(rest) / width;
    float squares = 0.0f;
    for (int i = lane(); i < width; i += WARP) {
        float centred = get(x, i) - mean;
        squares += centred * centred;
    }
    float scale = 1.0f / sqrtf(warp_sum(squares) / width + epsilon);
    for (int i = lane(); i < width; i += WARP)
        put(y, i, (get(x, i) - mean) * scale * gain[i] + bias[i]);
    if (lane() == 0) {
        stats[2 * row] = mean;
        stats[2 * row + 1] = scale;
    }
}

GLOBAL layer_norm_dx(const T* dy, const T* x, const float* stats, const float* gain, const T* residual, T* dx,
                     i64 rows, int width) {
    i64 row = (i64)blockIdx.x * (blockDim.x / WARP) + warp();
    if (row >= rows) return;
    float mean = stats[2 * row], scale = stats[2 * row + 1];
    i64 at = row * width;
    float sum = 0.0f, sum_normed = 0.0f;
    for (int i = lane(); i < width; i += WARP) {
        float d = get(dy, at + i) * gain[i];
        sum += d;
        sum_normed += d * (get(x, at + i) - mean) * scale;
    }
    sum = warp_sum(sum) / width;
    sum_normed = warp_sum(sum_normed) / width;
    for (int i = lane(); i < width; i += WARP) {
        float normed = (get(x, at + i) - mean) * scale;
        float d = scale * (get(dy, at + i) * gain[i] - sum - normed * sum_normed);
        if (residual) d += get(residual, at + i);
        put(dx, at + i, d);
    }
}

// d_gain[range, column] and d_bias[range, column]: sums over ranges of rows, see column_sums.
GLOBAL layer_norm_dw(const T* dy, const T* x, const float* stats, float* d_gain, float* d_bias, i64 rows,
                     int width, int range) {
    int column = blockIdx.x * WARP + lane();
    i64 first = (i64)blockIdx.y * range;
    float gain = 0.0f, bias = 0.0f;
    for (i64 r = first + warp(); r < first + range && r < rows; r += blockDim.x / WARP) {
        if (column >= width) continue;
        float d = get(dy, r * width + column);
        gain += d * (get(x, r * width + column) - stats[2 * r]) * stats[2 * r + 1];
        bias += d;
    }
    gain = across_warps(gain);
    bias = across_warps(bias);
    if (warp() != 0 || column >= width) return;
    d_gain[(i64)blockIdx.y * width + column] = gain;
    d_bias[(i64)blockIdx.y * width + column] = bias;
}
