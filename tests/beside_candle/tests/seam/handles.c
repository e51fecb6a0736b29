// cuBLAS and cuRAND, as far as candle asks for them when it opens a GPU: handles of which nothing is asked.

static int HANDLE;

int cublasCreate_v2(void** handle) { return *handle = &HANDLE, 0; }
int cublasSetStream_v2(void* handle, void* stream) { return 0; }
int cublasDestroy_v2(void* handle) { return 0; }

int curandCreateGenerator(void** generator, int kind) { return *generator = &HANDLE, 0; }
int curandSetStream(void* generator, void* stream) { return 0; }
int curandSetPseudoRandomGeneratorSeed(void* generator, unsigned long long seed) { return 0; }
int curandDestroyGenerator(void* generator) { return 0; }
