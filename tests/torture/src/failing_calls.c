// A library to preload: one call on files below a folder fails, or is the last. The environment says which:
//
//   FAIL_UNDER  the folder, absolute
//   FAIL_CALLS  letters of the calls that count: o open to write, w write, f fsync, r rename, s stat, m mkdir, u unlink, l link
//   FAIL_AT     the number of the call among those that count, from 1; 0 for none
//   FAIL_FOR    how many calls fail from there on; 0 for all
//   FAIL_ERROR  errno of the failure; 0 kills the process instead
//   FAIL_LOG    a file that gets the letter of every call below the folder, and `!` for each that fails
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static const char *under, *calls;
static long at, count_of_failures, n_seen;
static int error, log_fd = -1;

static long number(const char *name) {
    const char *value = getenv(name);
    return value ? atol(value) : 0;
}

__attribute__((constructor)) static void start(void) {
    calls = getenv("FAIL_CALLS");
    at = number("FAIL_AT");
    count_of_failures = number("FAIL_FOR");
    error = (int)number("FAIL_ERROR");
    const char *log = getenv("FAIL_LOG");
    if (log) log_fd = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    under = getenv("FAIL_UNDER");
}

static void note(char letter) {
    if (log_fd >= 0) syscall(SYS_write, log_fd, &letter, (size_t)1);
}

// Returns true if this call is to fail.
static int fails(char call, const char *path) {
    if (!under || !path || strncmp(path, under, strlen(under)) != 0) return 0;
    note(call);
    if (!calls || !strchr(calls, call)) return 0;
    long n = __sync_add_and_fetch(&n_seen, 1);
    if (at == 0 || n < at || (count_of_failures != 0 && n >= at + count_of_failures)) return 0;
    note('!');
    if (error == 0) syscall(SYS_kill, getpid(), SIGKILL);
    errno = error;
    return 1;
}

static const char *of_fd(int fd, char *buffer) {
    char link[40];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = syscall(SYS_readlinkat, AT_FDCWD, link, buffer, (size_t)PATH_MAX - 1);
    if (n < 0) return NULL;
    buffer[n] = 0;
    return buffer;
}

// The absolute path of one that is relative to a folder that is open, or to the working directory.
static const char *absolute(int fd, const char *path, char *buffer) {
    if (!path || path[0] == '/') return path;
    if (fd != AT_FDCWD ? !of_fd(fd, buffer) : syscall(SYS_getcwd, buffer, (size_t)PATH_MAX) < 0) return NULL;
    size_t n = strlen(buffer);
    snprintf(buffer + n, 2 * PATH_MAX - n, "/%s", path);
    return buffer;
}

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)
#define ON_FD(call, fd) do { char b[PATH_MAX]; if (under && fails(call, of_fd(fd, b))) return -1; } while (0)
#define ON_PATH(call, fd, path) \
    do { char b[2 * PATH_MAX]; if (under && fails(call, absolute(fd, path, b))) return -1; } while (0)

int fsync(int fd) { REAL(int, fsync, int); ON_FD('f', fd); return real(fd); }
int fdatasync(int fd) { REAL(int, fdatasync, int); ON_FD('f', fd); return real(fd); }
ssize_t write(int fd, const void *from, size_t n) {
    REAL(ssize_t, write, int, const void *, size_t); ON_FD('w', fd); return real(fd, from, n);
}
ssize_t writev(int fd, const struct iovec *from, int n) {
    REAL(ssize_t, writev, int, const struct iovec *, int); ON_FD('w', fd); return real(fd, from, n);
}
ssize_t pwrite64(int fd, const void *from, size_t n, off64_t to) {
    REAL(ssize_t, pwrite64, int, const void *, size_t, off64_t); ON_FD('w', fd); return real(fd, from, n, to);
}
int rename(const char *from, const char *to) {
    REAL(int, rename, const char *, const char *); ON_PATH('r', AT_FDCWD, to); return real(from, to);
}
int mkdir(const char *path, mode_t mode) {
    REAL(int, mkdir, const char *, mode_t); ON_PATH('m', AT_FDCWD, path); return real(path, mode);
}
int unlink(const char *path) { REAL(int, unlink, const char *); ON_PATH('u', AT_FDCWD, path); return real(path); }
int unlinkat(int fd, const char *path, int flags) {
    REAL(int, unlinkat, int, const char *, int); ON_PATH('u', fd, path); return real(fd, path, flags);
}
int rmdir(const char *path) { REAL(int, rmdir, const char *); ON_PATH('u', AT_FDCWD, path); return real(path); }
int link(const char *from, const char *to) {
    REAL(int, link, const char *, const char *); ON_PATH('l', AT_FDCWD, to); return real(from, to);
}
int linkat(int fd, const char *from, int other, const char *to, int flags) {
    REAL(int, linkat, int, const char *, int, const char *, int); ON_PATH('l', other, to); return real(fd, from, other, to, flags);
}
int statx(int fd, const char *path, int flags, unsigned mask, struct statx *into) {
    REAL(int, statx, int, const char *, int, unsigned, struct statx *);
    const char *volatile given = path; // glibc says that it is never null, but Rust asks with null whether statx is there
    if (given && *given) ON_PATH('s', fd, given);
    return real(fd, given, flags, mask, into);
}

// A file is opened to write, or its mode is given.
#define WRITES(flags) ((flags) & (O_WRONLY | O_RDWR | O_CREAT))
#define MODE(flags, mode) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { va_list list; va_start(list, flags); mode = va_arg(list, mode_t); va_end(list); }
#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        MODE(flags, mode) REAL(int, name, const char *, int, ...); \
        if (WRITES(flags)) ON_PATH('o', AT_FDCWD, path); \
        return real(path, flags, mode); \
    }
#define OPENAT(name) \
    int name(int fd, const char *path, int flags, ...) { \
        MODE(flags, mode) REAL(int, name, int, const char *, int, ...); \
        if (WRITES(flags)) ON_PATH('o', fd, path); \
        return real(fd, path, flags, mode); \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
