// Softmax cross-entropy: a block to a row, which reads its logits once for maximum and sum together, and
// once more to write the gradient into their place.

GLOBAL cross_entropy(T* logits, const unsigned* targets, double* losses, int classes, float scale) {
    i64 at = (i64)blockIdx.x * classes;
    float top = -INFINITY, sum = 0.0f;
    for (int i = threadIdx.x; i < classes; i += blockDim.x) {
        float x = get(logits, at + i);
        if (x > top) {
            sum *= expf(top - x);
            top = x;
        }
        // What is not a number never is above the top, and must not vanish.
        sum += expf(x - (x == x ? top : x));
    }
    float all = block_max(top);
    // A thread without classes has no top to compare.
    sum = (float)block_sum(top > -INFINITY ? (double)sum * expf(top - all) : (double)sum);
    int target = targets[blockIdx.x];
    if (threadIdx.x == 0) losses[blockIdx.x] = (double)all - get(logits, at + target) + logf(sum);
    __syncthreads(); // the target's logit is read before it is overwritten
    for (int i = threadIdx.x; i < classes; i += blockDim.x) {
        float p = expf(get(logits, at + i) - all) / sum;
        put(logits, at + i, scale * (i == target ? p - 1.0f : p));
    }
}
