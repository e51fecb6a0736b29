// NCCL, as far as the transport uses it, on the emulated driver: ranks are threads or processes of this machine. As
// in NCCL, calls return before they are done, groups of a communicator run one after another in the order of
// their calls, whatever their streams, and a message runs when both parties have come to it: a rank that waits for its
// first holds up those behind it. Messages of one group run side by side.

#include "queue.h"
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <fcntl.h>
#include <mutex>
#include <random>
#include <set>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

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
    // The messages of the last group: how many of such the peer has called, and which it must come to.
    std::vector<std::pair<std::atomic<uint64_t>*, uint64_t>> called;
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

// A message of a group.
struct Part {
    Way* way;
    const char* from;
    char* to;
    size_t bytes;
    Progress so_far;
    bool is_done;
};

struct Call { Communicator* communicator; void* stream; Part part; };

// The group that a thread has begun.
thread_local int depth;
thread_local std::vector<Call> begun;

int launch(Communicator* c, void* stream, std::vector<Part> parts) {
    uint64_t call;
    {
        std::lock_guard<std::mutex> held(c->lock);
        c->order.push_back(call = c->n_calls++);
        c->called.clear();
        for (Part& part : parts) {
            Way& way = *part.way;
            uint64_t number = part.from ? ++way.n_sends : ++way.n_receives;
            c->called.push_back({part.from ? &way.n_receives : &way.n_sends, number});
        }
    }
    std::function<bool()> work = [=]() mutable {
        std::lock_guard<std::mutex> held(c->lock);
        if (c->is_over) return true;
        if (c->order.front() != call) return false;
        std::set<std::pair<Way*, bool>> held_up; // by an earlier message on the same way
        for (Part& part : parts) {
            std::pair<Way*, bool> way(part.way, part.from);
            if (part.is_done || held_up.count(way)) continue;
            bool is_right = true;
            part.is_done = part.from ? send(*part.way, part.from, part.bytes, part.so_far)
                                     : take(*part.way, part.to, part.bytes, part.so_far, is_right);
            if (!is_right) c->fault = INVALID_ARGUMENT;
            if (!part.is_done) held_up.insert(way);
        }
        if (!held_up.empty()) return false;
        c->order.pop_front();
        return true;
    };
    return emulated_enqueue(stream, "messages", &work) ? UNHANDLED : IN_PROGRESS;
}

int add(Communicator* c, const void* from, void* to, size_t bytes, int type, int peer, void* stream) {
    if (type != BYTE || peer < 0 || peer >= c->n_ranks || peer == c->rank || !stream) return INVALID_ARGUMENT;
    Way* way = from ? &c->job->ways[c->rank][peer] : &c->job->ways[peer][c->rank];
    Part part{way, (const char*)from, (char*)to, bytes, {}, false};
    if (!depth) return launch(c, stream, {part});
    begun.push_back({c, stream, part});
    return SUCCESS;
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
    bool is_met = true;
    for (auto& [of_peer, number] : c->called) is_met &= *of_peer >= number;
    bool is_left = !c->has_left || (c->order.empty() && c->job->n_left == c->n_ranks);
    *result = c->fault ? int(c->fault) : all_are_here && is_met && is_left ? SUCCESS : IN_PROGRESS;
    return SUCCESS;
}

int ncclGroupStart() {
    depth++;
    return SUCCESS;
}

// One of one communicator and stream, as the transport makes them.
int ncclGroupEnd() {
    if (!depth) return INVALID_ARGUMENT;
    if (--depth) return SUCCESS;
    std::vector<Call> calls = std::move(begun);
    begun.clear();
    if (calls.empty()) return SUCCESS;
    std::vector<Part> parts;
    for (Call& call : calls) {
        if (call.communicator != calls[0].communicator || call.stream != calls[0].stream) return INVALID_ARGUMENT;
        parts.push_back(call.part);
    }
    return launch(calls[0].communicator, calls[0].stream, parts);
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
