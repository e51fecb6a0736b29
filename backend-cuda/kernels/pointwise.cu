// Elements on their own.

GLOBAL to_activation(const float* x, T* y, i64 n) {
    EACH(i, n) put(y, i, x[i]);
}

GLOBAL from_activation(const T* x, float* y, i64 n) {
    EACH(i, n) y[i] = get(x, i);
}

GLOBAL accumulate(float* into, const float* x, i64 n) {
    EACH(i, n) into[i] += x[i];
}

GLOBAL accumulate_activation(T* into, const T* x, i64 n) {
    EACH(i, n) put(into, i, get(into, i) + get(x, i));
}

// y += bias[column] + residual; either may be missing.
GLOBAL add_bias_residual(T* y, const float* bias, const T* residual, i64 n, int width) {
    EACH(i, n) {
        float sum = get(y, i);
        if (bias) sum += bias[i % width];
        if (residual) sum += get(residual, i);
        put(y, i, sum);
    }
}

// The functions of Activation, in its order.
enum { GELU_TANH, GELU, TANH };

struct Activated {
    float value, slope;
};

__device__ float logistic(float x) { return 1.0f / (1.0f + expf(-x)); }

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
    // (1 + tanh u)/2 is a logistic function of 2u, whose parts do not cancel.
    float u = 1.5957691216f * (x + 0.044715f * x * x * x), s = logistic(u), rest = logistic(-u);
    float du = 1.5957691216f * (1.0f + 3.0f * 0.044715f * x * x);
    return {x * s, rest > 0.0f ? s + x * s * rest * du : 1.0f};
}

GLOBAL activation(const T* x, T* y, i64 n, int f) {
    EACH(i, n) put(y, i, activated(get(x, i), f).value);
}

GLOBAL activation_dx(const T* dy, const T* x, T* dx, T* y, i64 n, int f) {
    EACH(i, n) {
        Activated a = activated(get(x, i), f);
        put(dx, i, get(dy, i) * a.slope);
        put(y, i, a.value);
    }
}

__device__ unsigned rotate(unsigned x, int by) { return (x << by) | (x >> (32 - by)); }

// The first word of block `counter` of the stream (key_0, key_1): Threefry-2x32, 20 rounds.
__device__ unsigned threefry(unsigned key_0, unsigned key_1, unsigned long long counter) {
    const int rotations[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
    unsigned keys[3] = {key_0, key_1, 0x1BD11BDAu ^ key_0 ^ key_1};
    unsigned a = (unsigned)counter + keys[0], b = (unsigned)(counter >> 32) + keys[1];
#pragma unroll
    for (int four = 0; four < 5; four++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            a += b;
            b = rotate(b, rotations[four % 2][i]) ^ a;
        }
        a += keys[(four + 1) % 3];
        b += keys[(four + 2) % 3] + four + 1;
    }
    return a;
}

// Keeps the elements whose word is not below the threshold, scaled; residual may be missing.
GLOBAL dropout(const T* x, const T* residual, T* y, i64 n, unsigned key_0, unsigned key_1, i64 first,
               unsigned threshold, float scale) {
    EACH(i, n) {
        bool is_kept = threefry(key_0, key_1, (unsigned long long)first + i) >= threshold;
        float kept = is_kept ? scale * get(x, i) : 0.0f;
        put(y, i, residual ? kept + get(residual, i) : kept);
    }
}
