// The CUDA driver, as far as the backend uses it, on the processor and as strict as the real one at its worst.
//
// What is asked of a stream is done later: when somebody waits for it, and otherwise when draws at calls and of a
// clock say so (EMULATED_SEED; with 0 hardly before it must). So a stream runs ahead of another unless an event
// holds it. Memory can be touched only between its allocation and its release on the streams that
// order them, by kernels of its own GPU; calls need the context that the real driver needs; kernels are those
// of shim.h, that emulated NVRTC (nvrtc.cpp) compiles.

#include "queue.h"
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <chrono>
#include <csignal>
#include <deque>
#include <dlfcn.h>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace {

enum Result {
    SUCCESS, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_DEVICE = 101, INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600,
};

long setting(const char* name, long otherwise) {
    const char* value = getenv(name);
    return value ? atol(value) : otherwise;
}

// GPUs, and the bytes of each.
const int N_GPUS = setting("EMULATED_GPUS", 2);
const size_t GPU_BYTES = size_t(setting("EMULATED_MIB", 1024)) << 20;
// So many allocations are given, and no more; microseconds that a kernel takes at least.
const long ALLOCATIONS = setting("EMULATED_ALLOCATIONS", INT64_MAX), PAUSE = setting("EMULATED_PAUSE", 0);
const size_t PAGE = 4096, ARENA = size_t(1) << 42, MOST_SHARED = 227 * 1024;
const unsigned char POISON = 0xff, MARK = 0xa5;

struct Context { int ordinal; uint64_t used, peak, reserved; };
struct Stream;
struct Mark { Stream* stream; bool is_done; double at; };
struct Event { Context* context; bool keeps_time; std::shared_ptr<Mark> mark; };
struct Work { const char* name; std::function<bool()> act; };
struct Stream { Context* context; std::deque<Work> queue; };
struct Allocation { Context* context; size_t bytes; char* pages; size_t paged; bool is_pooled; };
typedef const char* Emulate(const char*, int, int, int, size_t, void**, int);
struct Module { Emulate* emulate; int (*arity)(const char*); };
struct Function { Module* module; std::string name; size_t most_shared; };

// Never destroyed: threads may be at work when the process ends.
std::mutex& lock = *new std::mutex;
std::vector<Context>& contexts = *new std::vector<Context>(N_GPUS);
std::set<Stream*>& streams = *new std::set<Stream*>;
std::map<uint64_t, Allocation>& allocations = *new std::map<uint64_t, Allocation>;
std::map<char*, size_t>& pinned = *new std::map<char*, size_t>;
std::map<std::string, Module>& modules = *new std::map<std::string, Module>;
bool has_begun;
char* arena;
size_t next_page;
long n_launches, n_allocations;
const char* at_work = "nothing";
thread_local Context* current;
std::mt19937 draws(unsigned(setting("EMULATED_SEED", 1)));
const bool IS_LAZY = setting("EMULATED_SEED", 1) == 0;

[[noreturn]] void end(const char* fault) {
    fprintf(stderr, "emulated GPU: %s: %s\n", at_work, fault);
    abort();
}

void touched(int) {
    static const char said[] = "emulated GPU: touches memory that it does not have, not yet or no more: ";
    ssize_t written = write(2, said, sizeof said - 1) + write(2, at_work, strlen(at_work)) + write(2, "\n", 1);
    (void)written;
    _exit(139);
}

double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Does what is next on a stream, and before it what that waits for; false if it cannot be done yet.
bool step(Stream& stream) {
    if (stream.queue.empty()) return false;
    Work& work = stream.queue.front();
    const char* before = at_work;
    at_work = work.name;
    bool is_done = work.act();
    at_work = before;
    if (is_done) stream.queue.pop_front();
    return is_done;
}

bool reach(Mark& mark) {
    while (!mark.is_done)
        if (!step(*mark.stream)) return false;
    return true;
}

// Some work of some stream.
void wander() {
    if (streams.empty()) return;
    auto stream = std::next(streams.begin(), draws() % streams.size());
    for (int n = draws() % 8; n > 0 && step(**stream); n--);
}

// All work is done some day, also if nobody calls.
void go_on() {
    while (true) {
        usleep(IS_LAZY ? 20'000 : 1'000);
        std::lock_guard<std::mutex> held(lock);
        wander();
    }
}

// A call: nothing else happens meanwhile, but while it waits.
struct Call {
    std::unique_lock<std::mutex> held{lock};

    Call() {
        if (!IS_LAZY && draws() % 4 == 0) wander();
    }

    // What is waited for may itself wait for a message that other streams hold up.
    template <class F> void wait(F is_done) {
        while (!is_done()) {
            bool any = false;
            for (Stream* stream : std::set<Stream*>(streams)) any |= step(*stream);
            if (any) continue;
            held.unlock();
            usleep(50);
            held.lock();
        }
    }

    void drain(Stream& stream) {
        wait([&] {
            while (step(stream));
            return stream.queue.empty();
        });
    }
};

// With what the real driver would refuse.
int enqueue(void* handle, const char* name, std::function<bool()> act) {
    Stream* stream = (Stream*)handle;
    if (!current) return INVALID_CONTEXT;
    if (!streams.count(stream) || stream->context != current) return INVALID_HANDLE;
    stream->queue.push_back({name, std::move(act)});
    return SUCCESS;
}

int enqueue_once(void* stream, const char* name, std::function<void()> act) {
    return enqueue(stream, name, [act = std::move(act)] { return act(), true; });
}

// The allocation in which an address lies; null if in none.
Allocation* holder(uint64_t address) {
    auto after = allocations.upper_bound(address);
    if (after == allocations.begin()) return nullptr;
    auto& [start, allocation] = *--after;
    return address < start + allocation.bytes ? &allocation : nullptr;
}

bool is_of_device(uint64_t address) { return address >= uint64_t(arena) && address < uint64_t(arena) + ARENA; }

bool holds(uint64_t address, size_t bytes, Context* context) {
    Allocation* first = holder(address);
    return bytes == 0 || (first && first->context == context && holder(address + bytes - 1) == first);
}

// Lets memory be touched. It ends at an unmapped page, but for what aligns its start.
void open(uint64_t start, const Allocation& made) {
    if (mprotect(made.pages, made.paged, PROT_READ | PROT_WRITE)) end("no memory on the host");
    memset(made.pages, MARK, made.paged);
    memset((char*)start, POISON, made.bytes);
}

void close(uint64_t start, const Allocation& made) {
    for (char* at = made.pages; at < made.pages + made.paged; at++) {
        bool is_inside = uint64_t(at) >= start && uint64_t(at) < start + made.bytes;
        if (!is_inside && (unsigned char)*at != MARK) end("something wrote beside an allocation");
    }
    madvise(made.pages, made.paged, MADV_DONTNEED);
    mprotect(made.pages, made.paged, PROT_NONE);
}

// Addresses are never used again.
int reserve(size_t bytes, bool is_pooled, uint64_t& start) {
    if (!current) return INVALID_CONTEXT;
    if (bytes == 0) return INVALID_VALUE;
    if (++n_allocations > ALLOCATIONS || current->used + bytes > GPU_BYTES) return OUT_OF_MEMORY;
    size_t aligned = (bytes + 255) / 256 * 256, paged = (aligned + PAGE - 1) / PAGE * PAGE;
    char* pages = arena + next_page;
    next_page += paged + PAGE;
    if (next_page > ARENA) return OUT_OF_MEMORY;
    start = uint64_t(pages + paged - aligned);
    allocations[start] = {current, bytes, pages, paged, is_pooled};
    current->used += bytes;
    current->peak = std::max(current->peak, current->used);
    current->reserved = std::max(current->reserved, current->used);
    return SUCCESS;
}

// Memory of the host from which a copy reads later; what is not pinned is read at once, as the driver may.
std::function<const char*()> source(const void* from, size_t bytes) {
    auto after = pinned.upper_bound((char*)from);
    bool is_pinned = after != pinned.begin() && (char*)from < std::prev(after)->first + std::prev(after)->second;
    if (is_pinned) return [from] { return (const char*)from; };
    auto copy = std::make_shared<std::vector<char>>((const char*)from, (const char*)from + bytes);
    return [copy] { return copy->data(); };
}

Context* context_of(int device) { return device >= 0 && device < N_GPUS ? &contexts[device] : nullptr; }

}  // namespace

extern "C" {

int emulated_enqueue(void* stream, const char* name, std::function<bool()>* work) {
    Call call;
    return enqueue(stream, name, *work);
}

int cuInit(unsigned) {
    Call call;
    if (has_begun) return SUCCESS;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    arena = (char*)mmap(nullptr, ARENA, PROT_NONE, flags, -1, 0);
    if (arena == MAP_FAILED) end("no addresses");
    for (int i = 0; i < N_GPUS; i++) contexts[i] = {i, 0, 0, 0};
    signal(SIGSEGV, touched);
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
        {NOT_READY, "device not ready"},
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
    static const std::map<int, int> known = {{75, 9}, {76, 0}, {115, 1}, {97, MOST_SHARED}};
    auto found = known.find(attribute);
    if (found == known.end() || !context_of(device)) return INVALID_VALUE;
    *value = found->second;
    return SUCCESS;
}

int cuDevicePrimaryCtxRetain(Context** context, int device) {
    *context = context_of(device);
    return *context ? SUCCESS : INVALID_DEVICE;
}
int cuDevicePrimaryCtxRelease_v2(int device) { return context_of(device) ? SUCCESS : INVALID_DEVICE; }
int cuCtxGetCurrent(Context** context) { *context = current; return SUCCESS; }
int cuCtxSetCurrent(Context* context) { current = context; return SUCCESS; }

int cuCtxSynchronize() {
    Call call;
    if (!current) return INVALID_CONTEXT;
    std::set<Stream*> all = streams;
    for (Stream* stream : all)
        if (streams.count(stream) && stream->context == current) call.drain(*stream);
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
    if (!streams.count(stream)) return INVALID_HANDLE;
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
    return SUCCESS;
}

int cuMemAlloc_v2(uint64_t* start, size_t bytes) {
    Call call;
    int result = reserve(bytes, false, *start);
    if (!result) open(*start, allocations[*start]);
    return result;
}

int cuMemFree_v2(uint64_t start) {
    Call call;
    auto found = allocations.find(start);
    if (found == allocations.end() || found->second.is_pooled) return INVALID_VALUE;
    if (!current) return INVALID_CONTEXT;
    std::set<Stream*> all = streams;
    for (Stream* stream : all)
        if (streams.count(stream) && stream->context == current) call.drain(*stream);
    close(start, found->second);
    found->second.context->used -= found->second.bytes;
    allocations.erase(found);
    return SUCCESS;
}

int cuMemAllocAsync(uint64_t* start, size_t bytes, Stream* stream) {
    Call call;
    if (!streams.count(stream) || stream->context != current) return current ? INVALID_HANDLE : INVALID_CONTEXT;
    int result = reserve(bytes, true, *start);
    if (result) return result;
    Allocation made = allocations[*start];
    return enqueue_once(stream, "an allocation", [start = *start, made] { open(start, made); });
}

int cuMemFreeAsync(uint64_t start, Stream* stream) {
    Call call;
    auto found = allocations.find(start);
    if (found == allocations.end() || !found->second.is_pooled) return INVALID_VALUE;
    if (!streams.count(stream) || found->second.context != stream->context) return INVALID_HANDLE;
    Allocation made = found->second;
    made.context->used -= made.bytes;
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

int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, Stream* stream) {
    Call call;
    if (!holds(from, bytes, current)) return INVALID_VALUE;
    return enqueue_once(stream, "a download", [=] { memcpy(to, (void*)from, bytes); });
}

int cuMemcpyPeerAsync(uint64_t to, Context* into, uint64_t from, Context* of, size_t bytes, Stream* stream) {
    Call call;
    if (!holds(to, bytes, into) || !holds(from, bytes, of)) return INVALID_VALUE;
    return enqueue_once(stream, "a copy between GPUs", [=] { memcpy((void*)to, (void*)from, bytes); });
}

int cuDeviceGetDefaultMemPool(Context** pool, int device) {
    *pool = context_of(device);
    return *pool ? SUCCESS : INVALID_DEVICE;
}

int cuMemPoolSetAttribute(Context* pool, int attribute, void* value) {
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

int cuMemPoolGetAttribute(Context* pool, int attribute, void* value) {
    Call call;
    switch (attribute) {
        case 5: *(uint64_t*)value = pool->reserved; return SUCCESS;
        case 7: *(uint64_t*)value = pool->used; return SUCCESS;
        case 8: *(uint64_t*)value = pool->peak; return SUCCESS;
    }
    return INVALID_VALUE;
}

// An image is a library with its length before it.
int cuModuleLoadData(Module** module, const char* image) {
    Call call;
    if (!current) return INVALID_CONTEXT;
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
        Module loaded{(Emulate*)dlsym(opened, "emulate"), (int (*)(const char*))dlsym(opened, "arity")};
        found = modules.emplace(library, loaded).first;
    }
    *module = &found->second;
    return SUCCESS;
}

int cuModuleGetFunction(Function** function, Module* module, const char* name) {
    Call call;
    if (module->arity(name) < 0) return NOT_FOUND;
    *function = new Function{module, name, 48 * 1024};
    return SUCCESS;
}

int cuFuncGetAttribute(int* value, int attribute, Function*) {
    *value = 0;
    return attribute == 1 ? SUCCESS : INVALID_VALUE; // static shared memory
}

int cuFuncSetAttribute(Function* function, int attribute, int value) {
    if (attribute != 8 || value < 0 || size_t(value) > MOST_SHARED) return INVALID_VALUE;
    function->most_shared = value;
    return SUCCESS;
}

int cuLaunchKernel(Function* f, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, Stream* stream, void** params, void** extra) {
    Call call;
    if (!x || !y || !bx || y > 65535 || z != 1 || by != 1 || bz != 1 || bx > 1024 || extra) return INVALID_VALUE;
    if (shared > f->most_shared) return INVALID_VALUE;
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
    return enqueue_once(stream, f->name.c_str(), [=]() mutable {
        usleep(PAUSE);
        std::vector<void*> arguments;
        for (uint64_t& value : values) arguments.push_back(&value);
        const char* fault = f->module->emulate(f->name.c_str(), x, y, bx, shared, arguments.data(), ++n_launches % 2);
        if (fault) end(fault);
    });
}

}  // extern "C"
