// NCCL, as far as the transport uses it, on the emulated driver: ranks are threads or processes of this machine. As
// in NCCL, calls return before they are done, messages of a communicator run one after another in the order of
// their calls, whatever their streams, and one runs when both parties have come to it: a rank that waits for its
// first holds up those behind it.

#include "queue.h"
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <fcntl.h>
#include <mutex>
#include <random>
#include <sys/mman.h>
#include <unistd.h>

namespace {

enum Result { SUCCESS, UNHANDLED = 1, INVALID_ARGUMENT = 4, IN_PROGRESS = 7 };
enum { BYTE = 0, MOST_RANKS = 16, PIECE = 64 << 10 };

struct Id { char name[128]; };

// From one rank to another: a piece at a time, which lies here from when it is sent until it is taken.
struct Way {
    std::atomic<uint64_t> n_sends, n_receives; // that were called
    std::atomic<uint64_t> n_sent, n_taken;     // pieces
    size_t message_bytes, piece_bytes;
    char piece[PIECE];
};

// Shared memory, which begins as zeros.
struct Job {
    std::atomic<int> n_here, n_left;
    Way ways[MOST_RANKS][MOST_RANKS];
};

struct Communicator {
    Job* job;
    int rank, n_ranks;
    Id id;
    std::mutex lock;
    std::deque<uint64_t> order; // what is under way, first first
    uint64_t n_calls;
    bool has_left;
    std::atomic<bool> is_over;
    std::atomic<int> fault;
    // The last message that was called, and which of its way's it is.
    std::atomic<uint64_t>* of_peer;
    uint64_t number;
};

// What of a message has been sent or taken so far.
struct Progress { size_t done; bool has_begun; };

bool send(Way& way, const char* from, size_t bytes, Progress& so_far) {
    while (!so_far.has_begun || so_far.done < bytes) {
        if (way.n_sent != way.n_taken) return false;
        way.message_bytes = bytes;
        way.piece_bytes = std::min<size_t>(PIECE, bytes - so_far.done);
        memcpy(way.piece, from + so_far.done, way.piece_bytes);
        so_far = {so_far.done + way.piece_bytes, true};
        way.n_sent++;
    }
    return way.n_sent == way.n_taken;
}

// False, or with whether it is as long as was said.
bool take(Way& way, char* to, size_t bytes, Progress& so_far, bool& is_right) {
    while (!so_far.has_begun || so_far.done < bytes) {
        if (way.n_sent == way.n_taken) return false;
        is_right = way.message_bytes == bytes;
        if (!is_right) return true;
        memcpy(to + so_far.done, way.piece, way.piece_bytes);
        so_far = {so_far.done + way.piece_bytes, true};
        way.n_taken++;
    }
    return true;
}

int add(Communicator* c, const void* from, void* to, size_t bytes, int type, int peer, void* stream) {
    if (type != BYTE || peer < 0 || peer >= c->n_ranks || peer == c->rank || !stream) return INVALID_ARGUMENT;
    Way& way = from ? c->job->ways[c->rank][peer] : c->job->ways[peer][c->rank];
    uint64_t call;
    {
        std::lock_guard<std::mutex> held(c->lock);
        c->order.push_back(call = c->n_calls++);
        c->number = from ? ++way.n_sends : ++way.n_receives;
        c->of_peer = from ? &way.n_receives : &way.n_sends;
    }
    std::function<bool()> work = [=, &way, so_far = Progress{0, false}]() mutable {
        std::lock_guard<std::mutex> held(c->lock);
        if (c->is_over) return true;
        if (c->order.front() != call) return false;
        bool is_right = true;
        bool is_done = from ? send(way, (const char*)from, bytes, so_far) : take(way, (char*)to, bytes, so_far, is_right);
        if (!is_right) c->fault = INVALID_ARGUMENT;
        if (is_done) c->order.pop_front();
        return is_done;
    };
    return emulated_enqueue(stream, "a message", &work) ? UNHANDLED : IN_PROGRESS;
}

}  // namespace

extern "C" {

int ncclGetVersion(int* version) {
    *version = 23099;
    return SUCCESS;
}

const char* ncclGetErrorString(int result) { return result == INVALID_ARGUMENT ? "invalid argument" : "failed"; }
const char* ncclGetLastError(Communicator* c) { return c ? "an emulated communicator" : ""; }

int ncclGetUniqueId(Id* id) {
    memset(id, 0, sizeof *id);
    std::random_device random;
    snprintf(id->name, sizeof id->name, "/emulated-nccl-%08x%08x", random(), random());
    return SUCCESS;
}

int ncclCommInitRankConfig(Communicator** out, int n_ranks, Id id, int rank, unsigned* config) {
    if (n_ranks > MOST_RANKS || rank >= n_ranks || config[2] != 0xcafebeef || config[4] != 0) return INVALID_ARGUMENT;
    int file = shm_open(id.name, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, sizeof(Job))) return UNHANDLED;
    Job* job = (Job*)mmap(nullptr, sizeof(Job), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (job == MAP_FAILED) return UNHANDLED;
    job->n_here++;
    *out = new Communicator{};
    (*out)->job = job;
    (*out)->rank = rank;
    (*out)->n_ranks = n_ranks;
    (*out)->id = id;
    return IN_PROGRESS;
}

int ncclCommGetAsyncError(Communicator* c, int* result) {
    std::lock_guard<std::mutex> held(c->lock);
    bool all_are_here = c->job->n_here == c->n_ranks;
    if (all_are_here) shm_unlink(c->id.name); // others have done so, or it is still there
    bool is_met = !c->of_peer || *c->of_peer >= c->number;
    bool is_left = !c->has_left || (c->order.empty() && c->job->n_left == c->n_ranks);
    *result = c->fault ? int(c->fault) : all_are_here && is_met && is_left ? SUCCESS : IN_PROGRESS;
    return SUCCESS;
}

int ncclSend(const void* from, size_t bytes, int type, int peer, Communicator* c, void* stream) {
    return add(c, from, nullptr, bytes, type, peer, stream);
}

int ncclRecv(void* to, size_t bytes, int type, int peer, Communicator* c, void* stream) {
    return add(c, nullptr, to, bytes, type, peer, stream);
}

int ncclCommFinalize(Communicator* c) {
    std::lock_guard<std::mutex> held(c->lock);
    c->has_left = true;
    c->job->n_left++;
    return IN_PROGRESS;
}

int ncclCommDestroy(Communicator*) { return SUCCESS; }

// What it has under way ends. Work of a stream may still look at it, so it is never freed.
int ncclCommAbort(Communicator* c) {
    c->is_over = true;
    if (c->job->n_here < c->n_ranks) shm_unlink(c->id.name);
    return SUCCESS;
}

}  // extern "C"
