// The CUDA driver, as far as the backend uses it, on the processor and as strict as the real one at its worst: when
// work is done is said in streams.h, when memory is there in memory.h. Calls need the context that CUDA's need,
// kernels take memory of their own GPU alone, and are those of shim.h that emulated NVRTC (nvrtc.cpp) compiles.

#include "memory.h"
#include "queue.h"
#include <dlfcn.h>
#include <string>

namespace {

const int N_GPUS = setting("EMULATED_GPUS", 2);
// Microseconds that a kernel takes at least.
const long PAUSE = setting("EMULATED_PAUSE", 0);
const size_t MOST_SHARED = 227 * 1024;
// Compute capability, and whether there are memory pools and GPUs that reach each other's memory.
const int CAPABILITY = setting("EMULATED_CAPABILITY", 90);
const bool HAS_POOLS = setting("EMULATED_POOLS", 1), HAS_PEERS = setting("EMULATED_PEERS", 1);
// Whether kernels must be loaded at once (1), or must not (0).
const long EAGER = setting("EMULATED_EAGER", -1);

struct Event { Context* context; bool keeps_time; std::shared_ptr<Mark> mark; };
typedef const char* Emulate(const char*, int, int, int, size_t, void**, int);
struct Module { Emulate* emulate; int (*arity)(const char*); size_t static_shared; };
struct Function { Module* module; std::string name; size_t most_shared; };

std::vector<Context>& contexts = *new std::vector<Context>(N_GPUS);
// Of each GPU, for whoever asks for no pool. What it keeps is nobody's to count.
std::vector<Pool>& default_pools = *new std::vector<Pool>(N_GPUS);
std::map<std::string, Module>& modules = *new std::map<std::string, Module>;
bool has_begun;
long n_launches;

Context* context_of(int device) { return device >= 0 && device < N_GPUS ? &contexts[device] : nullptr; }

// Memory of a pool, which is there when the stream comes to it.
int allocate(uint64_t& start, size_t bytes, Pool& pool, Stream* stream) {
    if (pool.context != current) return INVALID_VALUE;
    int result = reserve(bytes, &pool, start);
    if (result) return result;
    Allocation made = allocations[start];
    result = enqueue_once(stream, "an allocation", [start, made] { open(start, made); });
    if (result) release(made), allocations.erase(start);
    return result;
}

}  // namespace

extern "C" {

void emulated_note(char sign, const char* name) {
    static FILE* notes = getenv("EMULATED_NOTES") ? fopen(getenv("EMULATED_NOTES"), "a") : nullptr;
    if (!notes) return;
    fprintf(notes, "%d %c %s\n", gettid(), sign, name);
    fflush(notes);
}

int emulated_enqueue(void* stream, const char* name, std::function<bool()>* work) {
    Call call;
    emulated_note('.', name);
    return enqueue(stream, name, *work);
}

int cuInit(unsigned) {
    Call call;
    if (has_begun) return SUCCESS;
    begin();
    const char* loading = getenv("CUDA_MODULE_LOADING");
    bool is_eager = loading && !strcmp(loading, "EAGER");
    if (EAGER >= 0 && EAGER != is_eager) end(is_eager ? "kernels are loaded at once" : "kernels are loaded when used");
    for (int i = 0; i < N_GPUS; i++) contexts[i] = {i, 0}, default_pools[i].context = &contexts[i];
    std::thread(go_on).detach();
    has_begun = true;
    return SUCCESS;
}

int cuGetErrorString(int result, const char** text) {
    static const std::map<int, const char*> said = {
        {SUCCESS, "no error"}, {INVALID_VALUE, "invalid argument"}, {OUT_OF_MEMORY, "out of memory"},
        {NOT_INITIALIZED, "initialization error"}, {INVALID_DEVICE, "invalid device ordinal"},
        {INVALID_IMAGE, "device kernel image is invalid"}, {INVALID_CONTEXT, "invalid device context"},
        {INVALID_HANDLE, "invalid resource handle"}, {NOT_FOUND, "named symbol not found"},
        {NOT_READY, "device not ready"}, {NOT_SUPPORTED, "operation not supported"},
    };
    auto found = said.find(result);
    *text = found == said.end() ? nullptr : found->second;
    return found == said.end() ? INVALID_VALUE : SUCCESS;
}

int cuDeviceGetCount(int* n) { *n = N_GPUS; return has_begun ? SUCCESS : NOT_INITIALIZED; }

int cuDeviceGet(int* device, int ordinal) {
    *device = ordinal;
    return !has_begun ? NOT_INITIALIZED : context_of(ordinal) ? SUCCESS : INVALID_DEVICE;
}

int cuDeviceGetName(char* name, int bytes, int device) {
    snprintf(name, bytes, "emulated GPU");
    return context_of(device) ? SUCCESS : INVALID_DEVICE;
}

int cuDeviceTotalMem_v2(size_t* bytes, int device) {
    *bytes = GPU_BYTES;
    return context_of(device) ? SUCCESS : INVALID_DEVICE;
}

int cuDeviceGetAttribute(int* value, int attribute, int device) {
    // Compute capability, pools, and the most shared memory of a block.
    static const std::map<int, int> known = {
        {75, CAPABILITY / 10}, {76, CAPABILITY % 10}, {115, HAS_POOLS}, {97, MOST_SHARED}};
    auto found = known.find(attribute);
    if (found == known.end() || !context_of(device)) return INVALID_VALUE;
    *value = found->second;
    return SUCCESS;
}

int cuDeviceCanAccessPeer(int* can, int device, int peer) {
    *can = HAS_PEERS && device != peer;
    return context_of(device) && context_of(peer) ? SUCCESS : INVALID_DEVICE;
}

int cuDevicePrimaryCtxRetain(Context** context, int device) {
    *context = context_of(device);
    return *context ? SUCCESS : INVALID_DEVICE;
}
int cuDevicePrimaryCtxRelease_v2(int device) { return context_of(device) ? SUCCESS : INVALID_DEVICE; }
int cuCtxGetCurrent(Context** context) { *context = current; return SUCCESS; }
int cuCtxSetCurrent(Context* context) {
    if (!is_mistaken("no-context")) current = context;
    return SUCCESS;
}

int cuCtxSynchronize() {
    Call call;
    if (!current) return INVALID_CONTEXT;
    call.drain();
    return SUCCESS;
}

int cuStreamCreate(Stream** stream, unsigned) {
    Call call;
    if (!current) return INVALID_CONTEXT;
    *stream = new Stream{current, {}};
    streams.insert(*stream);
    return SUCCESS;
}

int cuStreamDestroy_v2(Stream* stream) {
    Call call;
    if (!streams.count(stream)) return INVALID_HANDLE;
    call.drain(*stream);
    streams.erase(stream);
    return SUCCESS; // marks that were left on it are done, and know its address
}

int cuStreamSynchronize(Stream* stream) {
    Call call;
    stream = stream_of(stream);
    if (!streams.count(stream)) return INVALID_HANDLE;
    call.drain(*stream);
    return SUCCESS;
}

int cuEventCreate(Event** event, unsigned flags) {
    Call call;
    if (!current) return INVALID_CONTEXT;
    *event = new Event{current, !(flags & 2), nullptr};
    return SUCCESS;
}

int cuEventRecord(Event* event, Stream* stream) {
    Call call;
    stream = stream_of(stream);
    if (!streams.count(stream) || event->context != stream->context) return INVALID_HANDLE;
    auto mark = std::make_shared<Mark>(Mark{stream, false, 0});
    stream->queue.push_back({"an event", [mark] {
        mark->at = now();
        return mark->is_done = true;
    }});
    event->mark = mark;
    return SUCCESS;
}

int cuStreamWaitEvent(Stream* stream, Event* event, unsigned) {
    Call call;
    stream = stream_of(stream);
    if (!streams.count(stream)) return INVALID_HANDLE;
    if (is_mistaken("no-wait")) return SUCCESS;
    if (auto mark = event->mark) stream->queue.push_back({"a wait", [mark] { return reach(*mark); }});
    return SUCCESS;
}

int cuEventQuery(Event* event) {
    Call call;
    auto mark = event->mark;
    if (mark && !mark->is_done) step(*mark->stream); // who asks again and again hears of it some day
    return !mark || mark->is_done ? SUCCESS : NOT_READY;
}

int cuEventSynchronize(Event* event) {
    Call call;
    if (auto mark = event->mark) call.wait([&] { return reach(*mark); });
    return SUCCESS;
}

int cuEventElapsedTime_v2(float* ms, Event* from, Event* to) {
    Call call;
    if (!from->keeps_time || !to->keeps_time || !from->mark || !to->mark) return INVALID_HANDLE;
    if (from->context != to->context) return INVALID_HANDLE;
    if (!from->mark->is_done || !to->mark->is_done) return NOT_READY;
    *ms = (to->mark->at - from->mark->at) * 1e3;
    return SUCCESS;
}

int cuEventDestroy_v2(Event* event) {
    Call call;
    delete event;
    return SUCCESS;
}

int cuMemGetInfo_v2(size_t* free, size_t* total) {
    Call call;
    if (!current) return INVALID_CONTEXT;
    *total = GPU_BYTES;
    *free = GPU_BYTES - current->used;
    for (Pool* pool : pools)
        if (pool->context == current) *free -= pool->reserved - pool->used;
    return SUCCESS;
}

int cuMemAlloc_v2(uint64_t* start, size_t bytes) {
    Call call;
    int result = reserve(bytes, nullptr, *start);
    if (!result) open(*start, allocations[*start]);
    return result;
}

int cuMemFree_v2(uint64_t start) {
    Call call;
    auto found = allocations.find(start);
    if (found == allocations.end() || found->second.pool) return INVALID_VALUE;
    if (!current) return INVALID_CONTEXT;
    call.drain();
    close(start, found->second);
    release(found->second);
    allocations.erase(found);
    return SUCCESS;
}

int cuMemAllocFromPoolAsync(uint64_t* start, size_t bytes, Pool* pool, Stream* stream) {
    Call call;
    if (!pools.count(pool)) return INVALID_VALUE;
    return allocate(*start, bytes, *pool, stream);
}

int cuMemAllocAsync(uint64_t* start, size_t bytes, Stream* stream) {
    Call call;
    if (!HAS_POOLS) return NOT_SUPPORTED;
    return current ? allocate(*start, bytes, default_pools[current->ordinal], stream) : INVALID_CONTEXT;
}

int cuMemFreeAsync(uint64_t start, Stream* stream) {
    Call call;
    stream = stream_of(stream);
    auto found = allocations.find(start);
    if (found == allocations.end() || !found->second.pool) return INVALID_VALUE;
    if (!streams.count(stream) || found->second.context != stream->context) return INVALID_HANDLE;
    Allocation made = found->second;
    release(made);
    if (is_mistaken("other-stream")) {  // of which nothing is to be waited for
        close(start, made);
        allocations.erase(found);
        return SUCCESS;
    }
    int result = enqueue_once(stream, "a release", [start, made] { close(start, made); });
    if (!result) allocations.erase(found);
    return result;
}

int cuMemHostAlloc(void** start, size_t bytes, unsigned) {
    Call call;
    if (!current) return INVALID_CONTEXT;
    *start = aligned_alloc(PAGE, (bytes + PAGE - 1) / PAGE * PAGE);
    pinned[(char*)*start] = bytes;
    return SUCCESS;
}

int cuMemFreeHost(void* start) {
    Call call;
    auto found = pinned.find((char*)start);
    if (found == pinned.end()) return INVALID_VALUE;
    memset(start, POISON, found->second);
    free(start);
    pinned.erase(found);
    return SUCCESS;
}

int cuMemsetD8Async(uint64_t to, unsigned char byte, size_t bytes, Stream* stream) {
    Call call;
    if (!holds(to, bytes, current)) return INVALID_VALUE;
    return enqueue_once(stream, "a fill", [=] { memset((void*)to, byte, bytes); });
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, Stream* stream) {
    Call call;
    if (!holds(to, bytes, current)) return INVALID_VALUE;
    auto read = source(from, bytes);
    return enqueue_once(stream, "an upload", [=] { memcpy((void*)to, read(), bytes); });
}

// To memory that is not pinned the call returns when the copy is done.
int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, Stream* stream) {
    Call call;
    if (!holds(from, bytes, current)) return INVALID_VALUE;
    int result = enqueue_once(stream, "a download", [=] { memcpy(to, (void*)from, bytes); });
    if (!result && !is_pinned(to)) call.drain(*stream_of(stream));
    return result;
}

int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, Stream* stream) {
    Call call;
    if (!holds(to, bytes, current) || !holds(from, bytes, current)) return INVALID_VALUE;
    return enqueue_once(stream, "a copy", [=] { memcpy((void*)to, (void*)from, bytes); });
}

int cuMemcpyPeerAsync(uint64_t to, Context* into, uint64_t from, Context* of, size_t bytes, Stream* stream) {
    Call call;
    if (is_mistaken("swapped-contexts")) std::swap(into, of);
    if (!holds(to, bytes, into) || !holds(from, bytes, of)) return INVALID_VALUE;
    if (is_mistaken("no-copy")) return SUCCESS;
    Pool* pool = bytes ? holder(from)->pool : nullptr;
    // It would be right, and slow. Memory of a default pool is another library's, which may do so.
    if (HAS_PEERS && pools.count(pool) && !pool->open_to.count(into)) end("a copy between GPUs goes through the host");
    // It names both contexts, and takes a stream of one that is not the current one: cudarc relies on it.
    if (!current || !streams.count(stream_of(stream))) return current ? INVALID_HANDLE : INVALID_CONTEXT;
    stream_of(stream)->queue.push_back({"a copy between GPUs", [=] { return memcpy((void*)to, (void*)from, bytes), true; }});
    return SUCCESS;
}

// The pools that a program has made and not destroyed.
int emulated_n_pools() {
    Call call;
    return pools.size();
}

int cuMemPoolCreate(Pool** pool, const int* properties) {
    Call call;
    if (!HAS_POOLS) return NOT_SUPPORTED;
    const int PINNED = 1, NO_HANDLE = 0, ON_DEVICE = 1;
    bool is_known = properties[0] == PINNED && properties[1] == NO_HANDLE && properties[2] == ON_DEVICE;
    if (!is_known || !context_of(properties[3])) return INVALID_VALUE;
    *pool = new Pool{context_of(properties[3]), 0, 0, 0, {}, false};
    pools.insert(*pool);
    return SUCCESS;
}

int cuMemPoolDestroy(Pool* pool) {
    Call call;
    if (!pools.count(pool) || pool->is_left) return INVALID_VALUE;
    pool->is_left = true;
    if (!pool->used) pools.erase(pool);
    return SUCCESS;
}

int cuMemPoolTrimTo(Pool* pool, size_t least) {
    Call call;
    pool->reserved = std::max<uint64_t>(pool->used, std::min<uint64_t>(least, pool->reserved));
    return SUCCESS;
}

int cuMemPoolSetAccess(Pool* pool, const int* access, size_t n) {
    Call call;
    const int ON_DEVICE = 1, READ_AND_WRITE = 3;
    Context* other = context_of(access[1]);
    if (n != 1 || access[0] != ON_DEVICE || access[2] != READ_AND_WRITE || !other) return INVALID_VALUE;
    if (!HAS_PEERS) return INVALID_DEVICE;
    if (!is_mistaken("no-access")) pool->open_to.insert(other);
    return SUCCESS;
}

int cuMemPoolSetAttribute(Pool* pool, int attribute, void* value) {
    Call call;
    switch (attribute) {
        case 3: // whether a stream waits for another to get memory, which it never does here
            return *(int*)value ? INVALID_VALUE : SUCCESS;
        case 4: // how much it keeps: all
            return *(uint64_t*)value == UINT64_MAX ? SUCCESS : INVALID_VALUE;
        case 8: // the most in use
            pool->peak = pool->used;
            return *(uint64_t*)value ? INVALID_VALUE : SUCCESS;
    }
    return INVALID_VALUE;
}

int cuMemPoolGetAttribute(Pool* pool, int attribute, void* value) {
    Call call;
    switch (attribute) {
        case 5: *(uint64_t*)value = pool->reserved; return SUCCESS;
        case 7: *(uint64_t*)value = pool->used; return SUCCESS;
        case 8: *(uint64_t*)value = pool->peak; return SUCCESS;
    }
    return INVALID_VALUE;
}

// An image is a library with its length before it. PTX is another library's than the backend's: a program may bring the
// kernels as functions of its own, of which one says how many arguments each has.
int cuModuleLoadData(Module** module, const char* image) {
    Call call;
    if (!current) return INVALID_CONTEXT;
    if (!memcmp(image, "//", 2)) {
        static Module ptx{(Emulate*)dlsym(RTLD_DEFAULT, "ptx_emulate"), (int (*)(const char*))dlsym(RTLD_DEFAULT, "ptx_arity"), 0};
        *module = &ptx;
        return ptx.emulate && ptx.arity ? SUCCESS : INVALID_IMAGE;
    }
    uint64_t bytes;
    if (memcmp(image, "EMULATED", 8)) return INVALID_IMAGE;
    memcpy(&bytes, image + 8, 8);
    std::string library(image + 16, bytes);
    auto found = modules.find(library);
    if (found == modules.end()) {
        int file = memfd_create("kernels", 0);
        if (file < 0 || write(file, library.data(), bytes) != ssize_t(bytes)) return OUT_OF_MEMORY;
        std::string path = "/proc/self/fd/" + std::to_string(file);
        void* opened = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (!opened) return INVALID_IMAGE;
        auto static_shared = (size_t (*)())dlsym(opened, "static_shared");
        Module loaded{(Emulate*)dlsym(opened, "emulate"), (int (*)(const char*))dlsym(opened, "arity"), static_shared()};
        found = modules.emplace(library, loaded).first;
    }
    *module = &found->second;
    return SUCCESS;
}

int cuModuleUnload(Module*) { return SUCCESS; }  // the program may load it once more

int cuModuleGetFunction(Function** function, Module* module, const char* name) {
    Call call;
    if (module->arity(name) < 0) {
        fprintf(stderr, "emulated GPU: there is no kernel %s\n", name);
        return NOT_FOUND;
    }
    *function = new Function{module, name, 48 * 1024};
    return SUCCESS;
}

int cuFuncGetAttribute(int* value, int attribute, Function* function) {
    *value = function->module->static_shared;
    return attribute == 1 ? SUCCESS : INVALID_VALUE;
}

int cuFuncSetAttribute(Function* function, int attribute, int value) {
    if (attribute != 8 || value < 0 || size_t(value) + function->module->static_shared > MOST_SHARED) return INVALID_VALUE;
    function->most_shared = value;
    return SUCCESS;
}

int cuLaunchKernel(Function* f, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, Stream* stream, void** params, void** extra) {
    Call call;
    if (!x || !y || !bx || y > 65535 || z != 1 || by != 1 || bz != 1 || bx > 1024 || extra) return INVALID_VALUE;
    if (shared > f->most_shared || shared + f->module->static_shared > MOST_SHARED) return INVALID_VALUE;
    std::vector<uint64_t> values(f->module->arity(f->name.c_str()));
    for (size_t i = 0; i < values.size(); i++) {
        memcpy(&values[i], params[i], 8);
        if (!is_of_device(values[i])) continue;
        // A tensor of no elements may lie at the end of its memory.
        Allocation* there = holder(values[i]) ? holder(values[i]) : holder(values[i] - 1);
        if (!there || there->context != current) {
            fprintf(stderr, "emulated GPU: argument %zu of %s is not of this GPU\n", i, f->name.c_str());
            return INVALID_VALUE;
        }
    }
    emulated_note('.', f->name.c_str());
    return enqueue_once(stream, f->name.c_str(), [=]() mutable {
        usleep(PAUSE);
        std::vector<void*> arguments;
        for (uint64_t& value : values) arguments.push_back(&value);
        const char* fault = f->module->emulate(f->name.c_str(), x, y, bx, shared, arguments.data(), ++n_launches % 2);
        if (fault) end(fault);
    });
}

}  // extern "C"
