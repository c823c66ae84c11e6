/*
 * Why a named pipe takes longer than an unnamed one: one process writes SIZE bytes into a pipe and reads them again, so that
 * no thread is woken and nothing is switched. Both make the same two system calls; what differs is what the kernel does
 * with the inode.
 *
 *   pipe      pipe()
 *   fifo      a named pipe in DIRECTORY, opened for reading and for writing
 *   noatime   as fifo, with O_NOATIME: reading does not look at the time of the last access
 *   rdwr      as fifo, but opened once for both
 *
 * Prints processor time for each message. cc -O2 -o pipes pipes.c; ./pipes HOW DIRECTORY SIZE COUNT
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static void must(int done, const char *what) {
    if (!done) {
        perror(what);
        exit(1);
    }
}

static double used(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

int main(int argc, char **argv) {
    must(argc == 5, "HOW DIRECTORY SIZE COUNT");
    size_t size = strtoul(argv[3], NULL, 10);
    long count = atol(argv[4]);
    char path[4096], bytes[4096] = {0};
    must(size <= sizeof bytes, "SIZE");
    int fds[2];
    if (strcmp(argv[1], "pipe") == 0) {
        must(pipe(fds) == 0, "pipe");
    } else {
        int flags = strcmp(argv[1], "noatime") == 0 ? O_NOATIME : 0;
        snprintf(path, sizeof path, "%s/pipes-%d", argv[2], (int)getpid());
        must(mkfifo(path, 0600) == 0, "mkfifo");
        if (strcmp(argv[1], "rdwr") == 0) {
            fds[0] = fds[1] = open(path, O_RDWR);
        } else {
            fds[0] = open(path, O_RDONLY | O_NONBLOCK | flags);
            fds[1] = open(path, O_WRONLY);
        }
        unlink(path);
        must(fds[0] >= 0 && fds[1] >= 0, "open");
    }
    for (int round = 0; round < 2; round++) {
        double begin = used();
        for (long at = 0; at < count; at++) {
            must(write(fds[1], bytes, size) == (ssize_t)size, "write");
            must(read(fds[0], bytes, size) == (ssize_t)size, "read");
        }
        if (round) {
            printf("%.0f\n", (used() - begin) / (double)count);
        }
    }
    return 0;
}
