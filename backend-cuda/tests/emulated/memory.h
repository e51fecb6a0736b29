// Memory of the emulated driver. Device memory can be touched only between its allocation and its release, as the
// streams that order them come to these; each allocation ends at a page that is never there.

#pragma once
#include "streams.h"
#include <csignal>
#include <map>
#include <sys/mman.h>
#include <vector>

namespace {

// Bytes of each GPU. So many allocations are given, and no more.
const size_t GPU_BYTES = size_t(setting("EMULATED_MIB", 1024)) << 20;
const long ALLOCATIONS = setting("EMULATED_ALLOCATIONS", INT64_MAX);
const size_t PAGE = 4096, ARENA = size_t(1) << 42;
const unsigned char POISON = 0xff, MARK = 0xa5;

// Memory that its owner keeps, with the bytes in use, the most there were, and those that it has; the GPUs that may
// reach it beside its own; and whether it goes when nothing of it is in use any more.
struct Pool { Context* context; uint64_t used, peak, reserved; std::set<Context*> open_to; bool is_left; };
struct Allocation { Context* context; size_t bytes; char* pages; size_t paged; Pool* pool; };

std::set<Pool*>& pools = *new std::set<Pool*>;

std::map<uint64_t, Allocation>& allocations = *new std::map<uint64_t, Allocation>;
std::map<char*, size_t>& pinned = *new std::map<char*, size_t>;
char* arena;
size_t next_page;
long n_allocations;

void touched(int) {
    static const char said[] = "emulated GPU: touches memory that it does not have, not yet or no more: ";
    ssize_t written = write(2, said, sizeof said - 1) + write(2, at_work, strlen(at_work)) + write(2, "\n", 1);
    (void)written;
    _exit(139);
}

// Sets addresses aside, of which no memory is there.
void begin() {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    arena = (char*)mmap(nullptr, ARENA, PROT_NONE, flags, -1, 0);
    if (arena == MAP_FAILED) end("no addresses");
    signal(SIGSEGV, touched);
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
int reserve(size_t bytes, Pool* pool, uint64_t& start) {
    if (!current) return INVALID_CONTEXT;
    if (bytes == 0) return INVALID_VALUE;
    if (++n_allocations > ALLOCATIONS || current->used + bytes > GPU_BYTES) return OUT_OF_MEMORY;
    size_t aligned = (bytes + 255) / 256 * 256, paged = (aligned + PAGE - 1) / PAGE * PAGE;
    char* pages = arena + next_page;
    next_page += paged + PAGE;
    if (next_page > ARENA) return OUT_OF_MEMORY;
    start = uint64_t(pages + paged - aligned);
    allocations[start] = {current, bytes, pages, paged, pool};
    current->used += bytes;
    if (!pool) return SUCCESS;
    pool->used += bytes;
    pool->peak = std::max(pool->peak, pool->used);
    pool->reserved = std::max(pool->reserved, pool->used);
    return SUCCESS;
}

// The reverse, when its stream is told to.
void release(const Allocation& made) {
    made.context->used -= made.bytes;
    if (!made.pool) return;
    made.pool->used -= made.bytes;
    if (made.pool->is_left && !made.pool->used) pools.erase(made.pool);
}

bool is_pinned(const void* at) {
    auto after = pinned.upper_bound((char*)at);
    return after != pinned.begin() && (char*)at < std::prev(after)->first + std::prev(after)->second;
}

// Memory of the host from which a copy reads later; what is not pinned is read at once, as the driver may.
std::function<const char*()> source(const void* from, size_t bytes) {
    if (is_pinned(from)) return [from] { return (const char*)from; };
    auto copy = std::make_shared<std::vector<char>>((const char*)from, (const char*)from + bytes);
    return [copy] { return copy->data(); };
}

}  // namespace
