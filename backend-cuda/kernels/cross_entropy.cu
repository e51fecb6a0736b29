// Softmax cross-entropy: a block to a row, which reads its logits once for maximum and sum together, and
// once more to write the gradient into their place. Rows are `pitch` apart.

// The target of a row that counts for nothing.
#define IGNORED 0xffffffffu

GLOBAL cross_entropy(T* logits, const unsigned* targets, double* losses, int classes, int pitch, float scale) {
    T* row = logits + (i64)blockIdx.x * pitch;
    float top = -INFINITY, sum = 0.0f;
    for (int i = threadIdx.x * CHUNK; i < classes; i += blockDim.x * CHUNK) {
        Chunk c = load(row + i, min(classes - i, CHUNK));
        float higher = top;
        EACH_OF_CHUNK(j) {
            if (i + j >= classes) c.x[j] = -INFINITY;
            higher = fmaxf(higher, c.x[j]);
        }
        if (higher > top) {
            sum *= expf(top - higher);
            top = higher;
        }
        // What is not a number never is above the top, and must not vanish.
        EACH_OF_CHUNK(j) sum += expf(c.x[j] - (c.x[j] == c.x[j] ? top : c.x[j]));
    }
    float all = block_max(top);
    // A thread without classes has no top to compare.
    sum = (float)block_sum(top > -INFINITY ? (double)sum * expf(top - all) : (double)sum);
    unsigned target = targets[blockIdx.x];
    bool counts = target != IGNORED;
    if (threadIdx.x == 0) losses[blockIdx.x] = counts ? (double)all - get(row, target) + logf(sum) : 0.0;
    __syncthreads(); // the target's logit is read before it is overwritten
    float share = 1.0f / sum;
    for (int i = threadIdx.x * CHUNK; i < classes; i += blockDim.x * CHUNK) {
        int m = min(classes - i, CHUNK);
        Chunk c = load(row + i, m);
        EACH_OF_CHUNK(j) {
            float p = share * expf(c.x[j] - all);
            c.x[j] = counts ? scale * (i + j == target ? p - 1.0f : p) : 0.0f;
        }
        store(row + i, c, m);
    }
}
