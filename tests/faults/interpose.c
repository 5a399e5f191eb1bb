/* Makes one call on a file fail. Loaded into a process by LD_PRELOAD; see tests/faults/server.py.

   faults_arm(root, log, op, path, number, how) starts it, in one process and in those it forks. Each call on a file
   below `root` is a line of `log`: the operation, the path below the root and the result. Call `number` (from 1) of
   operation `op` on `path` fails: `how` is an errno, or one of the constants below. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { SHORT = -1, FULL = -2, KILL = -3 }; /* half of a write, then ENOSPC; ENOSPC from now on; the process ends */

struct shared { int seen, failed, half; }; /* shared by the processes that are forked later */
static struct shared *state;
static char root[PATH_MAX], wanted_op[16], wanted_path[PATH_MAX];
static size_t root_length;
static int wanted_number, how, log_fd;

#define REAL(name) ({ static __typeof__(&name) real_; if (!real_) real_ = dlsym(RTLD_NEXT, #name); real_; })

int faults_arm(const char *root_, const char *log, const char *op, const char *path, int number, int how_) {
    void *memory = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int fd = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (memory == MAP_FAILED || fd < 0) return -1;
    log_fd = fd, wanted_number = number, how = how_;
    snprintf(root, sizeof root, "%s", root_);
    root_length = strlen(root);
    snprintf(wanted_op, sizeof wanted_op, "%s", op);
    snprintf(wanted_path, sizeof wanted_path, "%s", path);
    state = memory;
    return 0;
}

/* The path below the root, or NULL. `out` has PATH_MAX bytes. */
static const char *below_root(const char *path, char *out) {
    if (strncmp(path, root, root_length) != 0 || (path[root_length] != '/' && path[root_length] != 0)) return NULL;
    const char *rest = path + root_length;
    while (*rest == '/') rest++;
    snprintf(out, PATH_MAX, "%s", *rest ? rest : ".");
    return out;
}

static const char *of_fd(int fd, char *out) {
    char link[64], full[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = syscall(SYS_readlinkat, AT_FDCWD, link, full, sizeof full - 1);
    if (n <= 0) return NULL;
    full[n] = 0;
    return below_root(full, out);
}

static const char *of_path(int folder, const char *path, char *out) {
    if (path[0] == '/') return below_root(path, out);
    char full[2 * PATH_MAX], link[64], base[PATH_MAX];
    snprintf(link, sizeof link, folder == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", folder);
    ssize_t n = syscall(SYS_readlinkat, AT_FDCWD, link, base, sizeof base - 1);
    if (n <= 0) return NULL;
    base[n] = 0;
    snprintf(full, sizeof full, "%s/%s", base, path);
    return below_root(full, out);
}

static void note(const char *op, const char *path, int error) {
    char line[PATH_MAX + 64];
    int n = snprintf(line, sizeof line, "%s\t%s\t%d\n", op, path, error);
    syscall(SYS_write, log_fd, line, n);
}

static int changes(const char *op) {
    return strcmp(op, "read") && strcmp(op, "open-read") && strcmp(op, "opendir") && strcmp(op, "stat") &&
           strcmp(op, "unlink") && strcmp(op, "lock") && strcmp(op, "close");
}

/* The errno with which this call is to fail, 0 to let it go on, or SHORT. */
static int verdict(const char *op, const char *path) {
    int is_wanted = strcmp(op, wanted_op) == 0 && strcmp(path, wanted_path) == 0;
    if (is_wanted && state->half) {
        state->half = 0;
        return ENOSPC;
    }
    if (state->failed) return how == FULL && changes(op) ? ENOSPC : 0;
    if (!is_wanted || __sync_add_and_fetch(&state->seen, 1) != wanted_number) return 0;
    state->failed = 1;
    if (how == KILL) _exit(137);
    if (how == SHORT) state->half = 1;
    return how == FULL ? ENOSPC : how;
}

/* Runs `call` unless this call is to fail. */
#define GUARD(type, op, where, call)                            \
    do {                                                        \
        char buffer_[PATH_MAX];                                 \
        const char *path_ = state ? (where) : NULL;             \
        if (!path_) return call;                                \
        int error_ = verdict(op, path_);                        \
        if (error_ > 0) {                                       \
            note(op, path_, error_);                            \
            errno = error_;                                     \
            return (type)-1;                                    \
        }                                                       \
        type result_ = call;                                    \
        int kept_ = errno;                                      \
        note(op, path_, result_ == (type)-1 ? kept_ : 0);       \
        errno = kept_;                                          \
        return result_;                                         \
    } while (0)

#define FD(fd) of_fd(fd, buffer_)
#define AT(folder, path) of_path(folder, path, buffer_)

static const char *opening(int flags) { return flags & (O_WRONLY | O_RDWR | O_CREAT) ? "open-write" : "open-read"; }

#define MODE                                                     \
    mode_t mode = 0;                                             \
    if (flags & (O_CREAT | __O_TMPFILE)) {                       \
        va_list more;                                            \
        va_start(more, flags);                                   \
        mode = va_arg(more, mode_t);                             \
        va_end(more);                                            \
    }

int open(const char *path, int flags, ...) {
    MODE GUARD(int, opening(flags), AT(AT_FDCWD, path), REAL(open)(path, flags, mode));
}
int open64(const char *path, int flags, ...) {
    MODE GUARD(int, opening(flags), AT(AT_FDCWD, path), REAL(open64)(path, flags, mode));
}
int openat(int folder, const char *path, int flags, ...) {
    MODE GUARD(int, opening(flags), AT(folder, path), REAL(openat)(folder, path, flags, mode));
}
int openat64(int folder, const char *path, int flags, ...) {
    MODE GUARD(int, opening(flags), AT(folder, path), REAL(openat64)(folder, path, flags, mode));
}
int __open_2(const char *path, int flags) { return open(path, flags); }
int __open64_2(const char *path, int flags) { return open64(path, flags); }
int __openat_2(int folder, const char *path, int flags) { return openat(folder, path, flags); }
int __openat64_2(int folder, const char *path, int flags) { return openat64(folder, path, flags); }
int creat(const char *path, mode_t mode) { return open(path, O_WRONLY | O_CREAT | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return open64(path, O_WRONLY | O_CREAT | O_TRUNC, mode); }

FILE *fopen_as(FILE *(*real)(const char *, const char *), const char *path, const char *mode) {
    char buffer_[PATH_MAX];
    const char *op = strpbrk(mode, "wa+") ? "open-write" : "open-read", *where = state ? AT(AT_FDCWD, path) : NULL;
    if (!where) return real(path, mode);
    int error = verdict(op, where);
    note(op, where, error);
    errno = error;
    return error > 0 ? NULL : real(path, mode);
}
FILE *fopen(const char *path, const char *mode) { return fopen_as(REAL(fopen), path, mode); }
FILE *fopen64(const char *path, const char *mode) { return fopen_as(REAL(fopen64), path, mode); }

DIR *opendir(const char *path) {
    char buffer_[PATH_MAX];
    const char *where = state ? AT(AT_FDCWD, path) : NULL;
    if (!where) return REAL(opendir)(path);
    int error = verdict("opendir", where);
    note("opendir", where, error);
    errno = error;
    return error > 0 ? NULL : REAL(opendir)(path);
}

/* A write of `size` bytes: `all` writes them, `part` the first half. */
#define WRITE(fd, size, all, part)                                \
    do {                                                         \
        char buffer_[PATH_MAX];                                  \
        const char *path_ = state ? FD(fd) : NULL;               \
        if (!path_) return all;                                  \
        int error_ = verdict("write", path_);                    \
        if (error_ > 0 || (error_ == SHORT && (size) < 2)) {     \
            state->half = 0;                                     \
            errno = error_ > 0 ? error_ : ENOSPC;                \
            note("write", path_, errno);                         \
            return -1;                                           \
        }                                                        \
        ssize_t result_ = error_ == SHORT ? (part) : (all) ;     \
        int kept_ = errno;                                       \
        note("write", path_, result_ < 0 ? kept_ : 0);           \
        errno = kept_;                                           \
        return result_;                                          \
    } while (0)

ssize_t write(int fd, const void *data, size_t size) {
    WRITE(fd, size, REAL(write)(fd, data, size), REAL(write)(fd, data, size / 2));
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    WRITE(fd, size, REAL(pwrite)(fd, data, size, at), REAL(pwrite)(fd, data, size / 2, at));
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    WRITE(fd, size, REAL(pwrite64)(fd, data, size, at), REAL(pwrite64)(fd, data, size / 2, at));
}
ssize_t writev(int fd, const struct iovec *parts, int count) {
    WRITE(fd, parts[0].iov_len, REAL(writev)(fd, parts, count),
          REAL(write)(fd, parts[0].iov_base, parts[0].iov_len / 2));
}

ssize_t read(int fd, void *data, size_t size) { GUARD(ssize_t, "read", FD(fd), REAL(read)(fd, data, size)); }
ssize_t pread(int fd, void *data, size_t size, off_t at) {
    GUARD(ssize_t, "read", FD(fd), REAL(pread)(fd, data, size, at));
}
ssize_t pread64(int fd, void *data, size_t size, off64_t at) {
    GUARD(ssize_t, "read", FD(fd), REAL(pread64)(fd, data, size, at));
}
/* Nothing is passed on to the disk: no machine loses its power here. */
int fsync(int fd) { GUARD(int, "fsync", FD(fd), 0); }
int fdatasync(int fd) { GUARD(int, "fsync", FD(fd), 0); }
int ftruncate(int fd, off_t size) { GUARD(int, "ftruncate", FD(fd), REAL(ftruncate)(fd, size)); }
int ftruncate64(int fd, off64_t size) { GUARD(int, "ftruncate", FD(fd), REAL(ftruncate64)(fd, size)); }
int posix_fallocate(int fd, off_t at, off_t size) { /* returns the errno */
    char buffer_[PATH_MAX];
    const char *where = state ? FD(fd) : NULL;
    int error = where ? verdict("ftruncate", where) : 0;
    if (where) note("ftruncate", where, error);
    return error > 0 ? error : REAL(posix_fallocate)(fd, at, size);
}
int rename(const char *from, const char *to) { GUARD(int, "rename", AT(AT_FDCWD, to), REAL(rename)(from, to)); }
int renameat(int a, const char *from, int b, const char *to) {
    GUARD(int, "rename", AT(b, to), REAL(renameat)(a, from, b, to));
}
int mkdir(const char *path, mode_t mode) { GUARD(int, "mkdir", AT(AT_FDCWD, path), REAL(mkdir)(path, mode)); }
int mkdirat(int folder, const char *path, mode_t mode) {
    GUARD(int, "mkdir", AT(folder, path), REAL(mkdirat)(folder, path, mode));
}
int unlink(const char *path) { GUARD(int, "unlink", AT(AT_FDCWD, path), REAL(unlink)(path)); }
int unlinkat(int folder, const char *path, int flags) {
    GUARD(int, "unlink", AT(folder, path), REAL(unlinkat)(folder, path, flags));
}
int rmdir(const char *path) { GUARD(int, "unlink", AT(AT_FDCWD, path), REAL(rmdir)(path)); }
int close(int fd) { /* the file is closed in any case, as by Linux */
    char buffer_[PATH_MAX];
    const char *where = state ? FD(fd) : NULL;
    int error = where ? verdict("close", where) : 0, result = REAL(close)(fd);
    if (!where) return result;
    note("close", where, error);
    errno = error;
    return error > 0 ? -1 : result;
}
#define STAT(name, kind) \
    int name(const char *path, struct kind *found) { \
        GUARD(int, "stat", AT(AT_FDCWD, path), REAL(name)(path, found)); \
    }
STAT(stat, stat)
STAT(stat64, stat64)
STAT(lstat, stat)
STAT(lstat64, stat64)
int fstat(int fd, struct stat *found) { GUARD(int, "stat", FD(fd), REAL(fstat)(fd, found)); }
int fstat64(int fd, struct stat64 *found) { GUARD(int, "stat", FD(fd), REAL(fstat64)(fd, found)); }
int fstatat(int folder, const char *path, struct stat *found, int flags) {
    GUARD(int, "stat", AT(folder, path), REAL(fstatat)(folder, path, found, flags));
}
int fstatat64(int folder, const char *path, struct stat64 *found, int flags) {
    GUARD(int, "stat", AT(folder, path), REAL(fstatat64)(folder, path, found, flags));
}
int flock(int fd, int operation) { GUARD(int, "lock", FD(fd), REAL(flock)(fd, operation)); }
int lockf(int fd, int command, off_t size) { GUARD(int, "lock", FD(fd), REAL(lockf)(fd, command, size)); }
int lockf64(int fd, int command, off64_t size) { GUARD(int, "lock", FD(fd), REAL(lockf64)(fd, command, size)); }

static int locks(int command) {
    return command == F_SETLK || command == F_SETLKW || command == F_OFD_SETLK || command == F_OFD_SETLKW;
}
#define FCNTL(name)                                                                             \
    int name(int fd, int command, ...) {                                                        \
        va_list more;                                                                           \
        va_start(more, command);                                                                \
        void *argument = va_arg(more, void *);                                                  \
        va_end(more);                                                                           \
        if (!locks(command)) return REAL(name)(fd, command, argument);                          \
        GUARD(int, "lock", FD(fd), REAL(name)(fd, command, argument));                          \
    }
FCNTL(fcntl)
FCNTL(fcntl64)
