// cuBLASLt, as far as the backend uses it, on the emulated driver (cuda.cpp): products in f64, rounded once. What an
// algorithm was asked for is what it can be used for.

#include "queue.h"
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

enum Result { SUCCESS, NOT_INITIALIZED = 1, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };
enum { F32 = 0, BF16 = 14, COMPUTE_32F = 68, COMPUTE_TF32 = 77 };

enum Attribute { TRANS_A = 3, TRANS_B = 4, EPILOGUE = 7, BIAS_POINTER = 8 };
enum Preferred { WORKSPACE_BYTES = 1, REDUCTIONS = 3, ALIGNED_A = 5, ALIGNED_D = 8 };
enum { NO_EPILOGUE = 1, ADD_BIAS = 4, IN_COMPUTE_TYPE = 2 };

struct Product {
    int compute, is_turned[2] = {}, epilogue = NO_EPILOGUE;
    const void* bias = nullptr;
};

struct Layout { int type; uint64_t rows, columns; int64_t stride; };

struct Preference {
    size_t workspace_bytes = 0;
    unsigned reductions = ~0u, aligned[4] = {256, 256, 256, 256};
};

// The first words of an algorithm: a product's mark, and on which boundaries its matrices lie.
struct Algorithm { uint64_t words[8]; };
struct Found { Algorithm algorithm; size_t workspace_bytes; int state; float waves; int reserved[4]; };
const size_t SCRATCH_BYTES = 1 << 20;

uint64_t mark(const Product& p, const Layout* const* layouts) {
    uint64_t all = 1469598103934665603u;
    auto add = [&](uint64_t word) { all = (all ^ word) * 1099511628211u; };
    for (int turned : p.is_turned) add(turned);
    add(p.epilogue);
    add(p.compute);
    for (int i = 0; i < 4; i++)
        for (uint64_t word : {uint64_t(layouts[i]->type), layouts[i]->rows, layouts[i]->columns, uint64_t(layouts[i]->stride)})
            add(word);
    return all;
}

float wide(uint16_t bits) {
    uint32_t word = uint32_t(bits) << 16;
    float x;
    memcpy(&x, &word, 4);
    return x;
}

// To the nearest, ties to even.
uint16_t narrow(float x) {
    uint32_t word;
    memcpy(&word, &x, 4);
    if (x != x) return 0x7fc0;
    return (word + 0x7fff + ((word >> 16) & 1)) >> 16;
}

struct Matrix {
    char* start;
    int element;
    size_t stride;

    size_t bytes() const { return element == F32 ? 4 : 2; }
    char* at(size_t i, size_t j) const { return start + (i + j * stride) * bytes(); }
    float get(size_t i, size_t j) const { return element == F32 ? *(float*)at(i, j) : wide(*(uint16_t*)at(i, j)); }
    void put(size_t i, size_t j, float x) const {
        if (element == F32) *(float*)at(i, j) = x;
        else *(uint16_t*)at(i, j) = narrow(x);
    }
};

// Of TF32: 11 bits of the 24, to the nearest.
float operand(bool is_rounded, float x) {
    uint32_t word;
    memcpy(&word, &x, 4);
    if (is_rounded && x == x) word = (word + 0xfff + ((word >> 13) & 1)) & ~0x1fffu;
    memcpy(&x, &word, 4);
    return x;
}

// D = op(A) op(B) + bias, or that beside what C holds; matrices are column-major.
void multiply(bool is_rounded, const int* is_turned, size_t m, size_t n, size_t k, Matrix a, Matrix b, bool adds, Matrix c, const void* bias,
              Matrix d) {
    std::vector<float> left(m * k);
    for (size_t l = 0; l < k; l++)
        for (size_t i = 0; i < m; i++) left[i + l * m] = operand(is_rounded, is_turned[0] ? a.get(l, i) : a.get(i, l));
    Matrix biases{(char*)bias, d.element, m};
    std::vector<double> column(m);
    for (size_t j = 0; j < n; j++) {
        for (size_t i = 0; i < m; i++) column[i] = (adds ? c.get(i, j) : 0) + (bias ? biases.get(i, 0) : 0);
        for (size_t l = 0; l < k; l++) {
            double by = operand(is_rounded, is_turned[1] ? b.get(j, l) : b.get(l, j));
            for (size_t i = 0; i < m; i++) column[i] += by * left[i + l * m];
        }
        for (size_t i = 0; i < m; i++) d.put(i, j, float(column[i]));
    }
}

template <class V> int read(V& into, const void* from, size_t bytes) {
    if (bytes != sizeof into) return INVALID_VALUE;
    memcpy(&into, from, bytes);
    return SUCCESS;
}

}  // namespace

extern "C" {

int cublasLtGetProperty(int property, int* value) {
    const char* set = getenv("EMULATED_CUDA");
    *value = property != 0 ? 0 : set ? atoi(set) : 13;
    return SUCCESS;
}

int cublasLtCreate(void** handle) { return *handle = new char, SUCCESS; }
int cublasLtDestroy(void* handle) { return delete (char*)handle, SUCCESS; }

int cublasLtMatmulDescCreate(Product** product, int compute, int scale) {
    if ((compute != COMPUTE_32F && compute != COMPUTE_TF32) || scale != F32) return NOT_SUPPORTED;
    return *product = new Product{compute}, SUCCESS;
}

int cublasLtMatmulDescDestroy(Product* product) { return delete product, SUCCESS; }

int cublasLtMatmulDescSetAttribute(Product* product, int attribute, const void* value, size_t bytes) {
    switch (attribute) {
        case TRANS_A: case TRANS_B: return read(product->is_turned[attribute - TRANS_A], value, bytes);
        case EPILOGUE: return read(product->epilogue, value, bytes);
        case BIAS_POINTER: return read(product->bias, value, bytes);
        default: return NOT_SUPPORTED;
    }
}

int cublasLtMatrixLayoutCreate(Layout** layout, int type, uint64_t rows, uint64_t columns, int64_t stride) {
    if (rows == 0 || columns == 0 || stride < int64_t(rows)) return INVALID_VALUE;
    return *layout = new Layout{type, rows, columns, stride}, SUCCESS;
}

int cublasLtMatrixLayoutDestroy(Layout* layout) { return delete layout, SUCCESS; }

int cublasLtMatmulPreferenceCreate(Preference** preference) { return *preference = new Preference, SUCCESS; }
int cublasLtMatmulPreferenceDestroy(Preference* preference) { return delete preference, SUCCESS; }

int cublasLtMatmulPreferenceSetAttribute(Preference* preference, int attribute, const void* value, size_t bytes) {
    if (attribute == WORKSPACE_BYTES) return read(preference->workspace_bytes, value, bytes);
    if (attribute == REDUCTIONS) return read(preference->reductions, value, bytes);
    if (attribute < ALIGNED_A || attribute > ALIGNED_D) return NOT_SUPPORTED;
    return read(preference->aligned[attribute - ALIGNED_A], value, bytes);
}

int cublasLtMatmulAlgoGetHeuristic(void*, const Product* product, const Layout* a, const Layout* b, const Layout* c,
                                   const Layout* d, const Preference* preference, int n_asked, Found* found, int* n) {
    auto is_known = [](int type) { return type == F32 || type == BF16; };
    bool is_supported = a->type == b->type && is_known(a->type) && (d->type == F32 || d->type == a->type);
    bool fits = c->type == d->type && c->rows == d->rows && c->columns == d->columns;
    const int* turned = product->is_turned;
    uint64_t m = turned[0] ? a->columns : a->rows, k = turned[0] ? a->rows : a->columns;
    uint64_t inner = turned[1] ? b->columns : b->rows, width = turned[1] ? b->rows : b->columns;
    if (!fits || m != d->rows || width != d->columns || inner != k) return INVALID_VALUE;
    // Sums are not to be of bf16.
    if (!is_supported || n_asked < 1 || preference->reductions != IN_COMPUTE_TYPE) return NOT_SUPPORTED;
    if (preference->workspace_bytes < SCRATCH_BYTES) return NOT_SUPPORTED;
    const Layout* layouts[] = {a, b, c, d};
    *found = {{{mark(*product, layouts)}}, SCRATCH_BYTES, SUCCESS, 1.0f, {}};
    for (int i = 0; i < 4; i++) found->algorithm.words[1 + i] = preference->aligned[i];
    *n = 1;
    return SUCCESS;
}

int cublasLtMatmul(void*, const Product* product, const float* alpha, const void* a, const Layout* of_a, const void* b,
                   const Layout* of_b, const float* beta, const void* c, const Layout* of_c, void* d, const Layout* of_d,
                   const Algorithm* algorithm, void* workspace, size_t workspace_bytes, void* stream) {
    const Layout* layouts[] = {of_a, of_b, of_c, of_d};
    const void* places[] = {a, b, c, d};
    if (algorithm->words[0] != mark(*product, layouts)) return INVALID_VALUE;
    for (int i = 0; i < 4; i++)
        if (uintptr_t(places[i]) % algorithm->words[1 + i]) return INVALID_VALUE;
    if (!workspace || uintptr_t(workspace) % 256 || workspace_bytes < SCRATCH_BYTES) return INVALID_VALUE;
    if (*alpha != 1 || (*beta != 0 && *beta != 1)) return NOT_SUPPORTED;
    bool has_bias = product->epilogue == ADD_BIAS, adds = *beta == 1;
    if (has_bias && !product->bias) return INVALID_VALUE;
    auto matrix = [](const void* start, const Layout* by) { return Matrix{(char*)start, by->type, size_t(by->stride)}; };
    Matrix left = matrix(a, of_a), right = matrix(b, of_b), added = matrix(c, of_c), into = matrix(d, of_d);
    Product by = *product;
    size_t m = of_d->rows, n = of_d->columns, k = by.is_turned[0] ? of_a->rows : of_a->columns;
    const void* bias = has_bias ? by.bias : nullptr;
    std::function<bool()> work = [=] {
        return multiply(by.compute == COMPUTE_TF32, by.is_turned, m, n, k, left, right, adds, added, bias, into), true;
    };
    return emulated_enqueue(stream, "a matrix product", &work) ? NOT_INITIALIZED : SUCCESS;
}

}  // extern "C"
