// What candle takes of CUDA beside the driver, on the emulated one: its kernels, as far as a regression in f32 launches
// them, by their names and arguments in the crate candle-kernels; cuBLAS's one product; handles of cuRAND.

#include "queue.h"
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace {

// Where element `at` lies by extents and, behind them, strides; null says that all lie one behind the other.
size_t place(size_t at, size_t n_dims, const size_t* dims, const size_t* strides) {
    if (!dims) return at;
    size_t place = 0;
    for (size_t d = n_dims; d-- > 0; at /= dims[d]) place += at % dims[d] * strides[d];
    return place;
}

struct Arguments {
    void** at;
    template <class V> V next() { return *(V*)*at++; }
};

// Element by element: `of` gives what `x` becomes.
template <class F> void map(Arguments args, F of) {
    auto n = args.next<size_t>(), n_dims = args.next<size_t>();
    auto dims = args.next<const size_t*>();
    auto from = args.next<const float*>();
    auto into = args.next<float*>();
    for (size_t i = 0; i < n; i++) into[i] = of(from[place(i, n_dims, dims, dims + n_dims)]);
}

template <class F> void join(Arguments args, F of) {
    auto n = args.next<size_t>(), n_dims = args.next<size_t>();
    auto dims = args.next<const size_t*>();
    auto left = args.next<const float*>(), right = args.next<const float*>();
    auto into = args.next<float*>();
    for (size_t i = 0; i < n; i++)
        into[i] = of(left[place(i, n_dims, dims, dims + n_dims)], right[place(i, n_dims, dims, dims + 2 * n_dims)]);
}

void affine(Arguments args) {
    Arguments factors{args.at + 5};
    auto by = factors.next<float>(), plus = factors.next<float>();
    map(args, [=](float x) { return x * by + plus; });
}

void set(Arguments args) {
    auto n = args.next<size_t>(), n_dims = args.next<size_t>();
    auto dims = args.next<const size_t*>();
    auto value = args.next<float>();
    auto into = args.next<float*>();
    for (size_t i = 0; i < n; i++) into[place(i, n_dims, dims, dims + n_dims)] = value;
}

// Each result is the sum of so many elements that follow each other; `count` is of the results, or of all elements.
void sum(Arguments args, bool is_of_results) {
    auto count = args.next<size_t>(), n = args.next<size_t>(), n_dims = args.next<size_t>();
    auto dims = args.next<const size_t*>();
    auto from = args.next<const float*>();
    auto into = args.next<float*>();
    for (size_t i = 0; i < (is_of_results ? count : count / n); i++) {
        double sum = 0;
        for (size_t j = 0; j < n; j++) sum += from[place(i * n + j, n_dims, dims, dims + n_dims)];
        into[i] = sum;
    }
}

void copy_rows(Arguments args) {
    auto from = args.next<const float*>();
    auto into = args.next<float*>();
    auto rows = args.next<uint32_t>(), columns = args.next<uint32_t>(), stride = args.next<uint32_t>(), pitch = args.next<uint32_t>();
    for (uint32_t i = 0; i < rows; i++) memcpy(into + i * pitch, from + i * stride, columns * sizeof(float));
}

struct Kernel { const char* name; int arity; void (*run)(Arguments); };

const Kernel KERNELS[] = {
    {"ucopy_f32", 5, [](Arguments args) { map(args, [](float x) { return x; }); }},
    {"usqr_f32", 5, [](Arguments args) { map(args, [](float x) { return x * x; }); }},
    {"utanh_f32", 5, [](Arguments args) { map(args, [](float x) { return std::tanh(x); }); }},
    {"uneg_f32", 5, [](Arguments args) { map(args, [](float x) { return -x; }); }},
    {"badd_f32", 6, [](Arguments args) { join(args, [](float x, float y) { return x + y; }); }},
    {"bsub_f32", 6, [](Arguments args) { join(args, [](float x, float y) { return x - y; }); }},
    {"bmul_f32", 6, [](Arguments args) { join(args, [](float x, float y) { return x * y; }); }},
    {"affine_f32", 7, affine},
    {"const_set_f32", 5, set},
    {"fast_sum_f32", 6, [](Arguments args) { sum(args, false); }},
    {"fast_sum_small_f32", 6, [](Arguments args) { sum(args, true); }},
    {"copy2d_f32", 6, copy_rows},
};

const Kernel* kernel(const char* name) {
    for (const Kernel& kernel : KERNELS)
        if (!strcmp(kernel.name, name)) return &kernel;
    return nullptr;
}

struct Handle { void* stream; };

}  // namespace

extern "C" {

// For the emulated driver, which knows no PTX.
int ptx_arity(const char* name) { return kernel(name) ? kernel(name)->arity : -1; }

const char* ptx_emulate(const char* name, int, int, int, size_t, void** arguments, int) {
    kernel(name)->run({arguments});
    return nullptr;
}

int cublasCreate_v2(Handle** handle) { return *handle = new Handle{}, 0; }
int cublasSetStream_v2(Handle* handle, void* stream) { return handle->stream = stream, 0; }
int cublasDestroy_v2(Handle* handle) { return delete handle, 0; }

// C = op(A) op(B) of column-major matrices, each product of the batch `stride` elements behind the one before.
int cublasGemmStridedBatchedEx(Handle* handle, int turns_a, int turns_b, int m, int n, int k, const float* alpha, const float* a, int,
                               int lda, long long stride_a, const float* b, int, int ldb, long long stride_b, const float* beta,
                               float* c, int type, int ldc, long long stride_c, int batch, int, int) {
    const int F32 = 0, NOT_SUPPORTED = 15;
    if (*alpha != 1 || *beta != 0 || type != F32) return NOT_SUPPORTED;
    std::function<bool()> work = [=] {
        for (int p = 0; p < batch; p++)
            for (int i = 0; i < m; i++)
                for (int j = 0; j < n; j++) {
                    double sum = 0;
                    for (int l = 0; l < k; l++)
                        sum += double(a[p * stride_a + (turns_a ? l + i * lda : i + l * lda)]) *
                               b[p * stride_b + (turns_b ? j + l * ldb : l + j * ldb)];
                    c[p * stride_c + i + j * ldc] = sum;
                }
        return true;
    };
    return emulated_enqueue(handle->stream, "a product of candle's", &work) ? 1 : 0;
}

int curandCreateGenerator(Handle** generator, int) { return *generator = new Handle{}, 0; }
int curandSetStream(Handle* generator, void* stream) { return generator->stream = stream, 0; }
int curandSetPseudoRandomGeneratorSeed(Handle*, unsigned long long) { return 0; }
int curandDestroyGenerator(Handle* generator) { return delete generator, 0; }

}  // extern "C"
