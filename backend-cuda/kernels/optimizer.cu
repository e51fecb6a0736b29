// Updates of weights, in place.

struct Moments {
    float beta1, rest1, beta2, rest2, unbias1, root_unbias2, eps, grad_scale; // rest: 1 - beta
};

// Adam's direction, after both moments took the gradient in.
__device__ float direction(float* m, float* v, float g, const Moments& by) {
    g *= by.grad_scale;
    *m = by.beta1 * *m + by.rest1 * g;
    *v = by.beta2 * *v + by.rest2 * g * g;
    return *m * by.unbias1 / (sqrtf(*v) * by.root_unbias2 + by.eps);
}

struct Updated {
    float* w;
    const float* g;
    float *m, *v;
    i64 n, first;
};

GLOBAL adamw(const Updated* all, int n_all, float beta1, float rest1, float beta2, float rest2, float unbias1,
             float root_unbias2, float eps, float grad_scale, float lr, float keep) {
    Moments by = {beta1, rest1, beta2, rest2, unbias1, root_unbias2, eps, grad_scale};
    Updated x = row_of_block(all, n_all);
    EACH_OF_BLOCK(i, x.n, blockIdx.x - x.first)
        x.w[i] = keep * x.w[i] - lr * direction(x.m + i, x.v + i, x.g[i], by);
}

// LAMB's direction, and each block's share of its square and of the weights'.
GLOBAL lamb_direction(const float* w, const float* g, float* m, float* v, float* d, double* w_squares,
                      double* d_squares, i64 n, float beta1, float rest1, float beta2, float rest2, float unbias1,
                      float root_unbias2, float eps, float grad_scale, float weight_decay) {
    Moments by = {beta1, rest1, beta2, rest2, unbias1, root_unbias2, eps, grad_scale};
    double w_sum = 0.0, d_sum = 0.0;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x) {
        d[i] = direction(m + i, v + i, g[i], by) + weight_decay * w[i];
        w_sum += (double)w[i] * w[i];
        d_sum += (double)d[i] * d[i];
    }
    w_sum = block_sum(w_sum);
    d_sum = block_sum(d_sum);
    if (threadIdx.x == 0) {
        w_squares[blockIdx.x] = w_sum;
        d_squares[blockIdx.x] = d_sum;
    }
}

// w -= lr |w|/|d| d, where the squared norms may be zero.
GLOBAL lamb_step(float* w, const float* d, const float* w_square, const float* d_square, i64 n, float lr) {
    float ratio = *w_square > 0.0f && *d_square > 0.0f ? sqrtf(*w_square) / sqrtf(*d_square) : 1.0f;
    EACH(i, n) w[i] -= lr * ratio * d[i];
}

struct WithMomentum {
    float* w;
    const float* g;
    float* m;
    i64 n, first;
};

GLOBAL sgd(const WithMomentum* all, int n_all, float momentum, float grad_scale, float lr, float keep) {
    WithMomentum x = row_of_block(all, n_all);
    EACH_OF_BLOCK(i, x.n, blockIdx.x - x.first) {
        x.m[i] = momentum * x.m[i] + x.g[i] * grad_scale;
        x.w[i] = keep * x.w[i] - lr * x.m[i];
    }
}
