// Streams of the emulated driver, and when their work is done: later than it is asked for. Somebody waits for it, or
// draws at calls and of a clock say so (EMULATED_SEED; with 0 hardly before it must), so that a stream runs ahead of
// another unless an event holds it.

#pragma once
#include "queue.h"
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <unistd.h>

namespace {

enum Result {
    SUCCESS, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_DEVICE = 101, INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, NOT_SUPPORTED = 801,
};

long setting(const char* name, long otherwise) {
    const char* value = getenv(name);
    return value ? atol(value) : otherwise;
}

// Whether the driver is to act as if the program had made this mistake (EMULATED_MISTAKE): tests see that it is found.
bool is_mistaken(const char* mistake) {
    const char* name = getenv("EMULATED_MISTAKE");
    return name && !strcmp(name, mistake);
}

// Of a GPU, with the bytes that all allocations take.
struct Context { int ordinal; uint64_t used; };
struct Stream;
struct Mark { Stream* stream; bool is_done; double at; };
struct Work { const char* name; std::function<bool()> act; };
struct Stream { Context* context; std::deque<Work> queue; };

// Never destroyed: threads may be at work when the process ends.
std::mutex& lock = *new std::mutex;
std::set<Stream*>& streams = *new std::set<Stream*>;
const char* at_work = "nothing";
thread_local Context* current;
const bool IS_LAZY = setting("EMULATED_SEED", 1) == 0;
std::mt19937 draws(unsigned(setting("EMULATED_SEED", 1)));

[[noreturn]] void end(const char* fault) {
    fprintf(stderr, "emulated GPU: %s: %s\n", at_work, fault);
    abort();
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

    // All streams of the context.
    void drain() {
        for (Stream* stream : std::set<Stream*>(streams))
            if (streams.count(stream) && stream->context == current) drain(*stream);
    }
};

// The stream of a handle; by one name, CU_STREAM_PER_THREAD, each thread has its own in each context.
Stream* stream_of(void* handle) {
    static thread_local std::map<Context*, Stream*> own;
    if (handle != (void*)2 || !current) return (Stream*)handle;
    Stream*& stream = own[current];
    if (!stream) streams.insert(stream = new Stream{current, {}});
    return stream;
}

// With what the real driver would refuse.
int enqueue(void* handle, const char* name, std::function<bool()> act) {
    Stream* stream = stream_of(handle);
    if (!current) return INVALID_CONTEXT;
    if (!streams.count(stream) || stream->context != current) return INVALID_HANDLE;
    stream->queue.push_back({name, std::move(act)});
    return SUCCESS;
}

int enqueue_once(void* stream, const char* name, std::function<void()> act) {
    return enqueue(stream, name, [act = std::move(act)] { return act(), true; });
}

}  // namespace
