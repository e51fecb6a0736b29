// cuBLAS, as far as the backend uses it, on the emulated driver (cuda.cpp): products in f64, rounded once.

#include "queue.h"
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

enum Result { SUCCESS, NOT_INITIALIZED = 1, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };
enum { F32 = 0, BF16 = 14, COMPUTE_32F = 68 };

struct Handle { void* stream; bool has_workspace; };

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

// C = op(A) op(B), or that beside what C holds; matrices are column-major.
void multiply(bool ta, bool tb, size_t m, size_t n, size_t k, Matrix a, Matrix b, bool add, Matrix c) {
    std::vector<float> left(m * k);
    for (size_t l = 0; l < k; l++)
        for (size_t i = 0; i < m; i++) left[i + l * m] = ta ? a.get(l, i) : a.get(i, l);
    std::vector<double> column(m);
    for (size_t j = 0; j < n; j++) {
        for (size_t i = 0; i < m; i++) column[i] = add ? c.get(i, j) : 0;
        for (size_t l = 0; l < k; l++) {
            double by = tb ? b.get(j, l) : b.get(l, j);
            for (size_t i = 0; i < m; i++) column[i] += by * left[i + l * m];
        }
        for (size_t i = 0; i < m; i++) c.put(i, j, float(column[i]));
    }
}

}  // namespace

extern "C" {

int cublasGetProperty(int property, int* value) {
    const char* set = getenv("EMULATED_CUDA");
    *value = property != 0 ? 0 : set ? atoi(set) : 13;
    return SUCCESS;
}

int cublasCreate_v2(Handle** handle) {
    *handle = new Handle{nullptr, false};
    return SUCCESS;
}

int cublasDestroy_v2(Handle* handle) {
    delete handle;
    return SUCCESS;
}

// It brings back the workspace that all streams share.
int cublasSetStream_v2(Handle* handle, void* stream) {
    *handle = {stream, false};
    return SUCCESS;
}

int cublasSetWorkspace_v2(Handle* handle, void* workspace, size_t bytes) {
    if (!workspace || uintptr_t(workspace) % 256 || bytes == 0) return INVALID_VALUE;
    handle->has_workspace = true;
    return SUCCESS;
}

int cublasSetMathMode(Handle*, int) { return SUCCESS; }

int cublasGemmEx(Handle* handle, int ta, int tb, int m, int n, int k, const float* alpha, const void* a, int a_type,
                 int lda, const void* b, int b_type, int ldb, const float* beta, void* c, int c_type, int ldc,
                 int compute, int) {
    auto is_known = [](int type) { return type == F32 || type == BF16; };
    bool is_supported = a_type == b_type && is_known(a_type) && (c_type == F32 || c_type == a_type);
    if (!handle->has_workspace || compute != COMPUTE_32F || !is_supported) return NOT_SUPPORTED;
    if (m < 0 || n < 0 || k < 0 || lda < (ta ? k : m) || ldb < (tb ? n : k) || ldc < m) return INVALID_VALUE;
    if (*alpha != 1 || (*beta != 0 && *beta != 1)) return NOT_SUPPORTED;
    Matrix left{(char*)a, a_type, size_t(lda)}, right{(char*)b, b_type, size_t(ldb)}, into{(char*)c, c_type, size_t(ldc)};
    bool add = *beta == 1;
    std::function<bool()> work = [=] { return multiply(ta, tb, m, n, k, left, right, add, into), true; };
    return emulated_enqueue(handle->stream, "a matrix product", &work) ? NOT_INITIALIZED : SUCCESS;
}

}  // extern "C"
