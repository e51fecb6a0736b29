// Embedding: a block to a row; and back, a block to a row of a table, which sums in order of the tokens.

GLOBAL embedding(const unsigned* ids, const float* tokens, const float* positions, T* y, int context,
                 int hidden) {
    i64 row = blockIdx.x, id = ids[row], position = row % context;
    for (int i = threadIdx.x; i < hidden; i += blockDim.x)
        put(y, row * hidden + i, tokens[id * hidden + i] + positions[position * hidden + i]);
}

// order: the rows by id, in their order; block b has those from starts[b] on.
GLOBAL embedding_tokens(const unsigned* ids, const unsigned* order, const unsigned* starts, const T* dy,
                        float* d_tokens, int hidden) {
    unsigned first = starts[blockIdx.x], end = starts[blockIdx.x + 1];
    i64 id = ids[order[first]];
    for (int i = threadIdx.x; i < hidden; i += blockDim.x) {
        float sum = 0.0f;
        for (unsigned at = first; at < end; at++) sum += get(dy, (i64)order[at] * hidden + i);
        d_tokens[id * hidden + i] += sum;
    }
}

GLOBAL embedding_positions(const T* dy, float* d_positions, i64 rows, int context, int hidden) {
    i64 position = blockIdx.x;
    for (int i = threadIdx.x; i < hidden; i += blockDim.x) {
        float sum = 0.0f;
        for (i64 row = position; row < rows; row += context) sum += get(dy, row * hidden + i);
        d_positions[position * hidden + i] += sum;
    }
}
