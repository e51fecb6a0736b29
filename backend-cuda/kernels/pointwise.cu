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

// GELU's tanh is a logistic function: (1 + tanh u)/2 = 1/(1 + exp(-2u)), which does not cancel.
__device__ float twice_u(float x) { return 1.5957691216f * (x + 0.044715f * x * x * x); }

__device__ float logistic(float x) { return 1.0f / (1.0f + expf(-x)); }

GLOBAL gelu(const T* x, T* y, i64 n) {
    EACH(i, n) {
        float a = get(x, i);
        put(y, i, a * logistic(twice_u(a)));
    }
}

GLOBAL gelu_dx(const T* dy, const T* x, T* dx, T* y, i64 n) {
    EACH(i, n) {
        float a = get(x, i), u = twice_u(a);
        float s = logistic(u), rest = logistic(-u);
        float du = 1.5957691216f * (1.0f + 3.0f * 0.044715f * a * a);
        float slope = rest > 0.0f ? s + a * s * rest * du : 1.0f;
        put(dx, i, get(dy, i) * slope);
        put(y, i, a * s);
    }
}
