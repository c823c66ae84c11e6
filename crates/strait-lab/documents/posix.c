/*
 * The methods of "unix-ipc-benchmarks", implemented anew from its description, to run in turn with those of the
 * laboratory on one machine.
 *
 * Two processes play ping-pong with messages of one size. Each round trip is timed by itself, and the program prints
 * round trips per second. No message is checked unless the method requires it, and no method is better than described:
 *
 *   pipe    two pipes and fork; blocking read and write
 *   fifo    two named pipes, each opened for reading and writing by both
 *   queue   two System V message queues
 *   socket  a Unix stream socket that is bound to a path
 *   shm     POSIX shared memory, one ring of 4096 messages in each direction. The receiver compares the whole message
 *           with the expected one, again and again, without any ordering; all messages are made before.
 *
 * cc -O2 -o posix posix.c; ./posix METHOD SIZE ITERATIONS
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SLOTS 4096

static size_t size;
static long iterations;
static char *message;

static void must(int done, const char *what) {
    if (!done) {
        perror(what);
        exit(1);
    }
}

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void put(int fd) {
    for (size_t done = 0; done < size;) {
        ssize_t n = write(fd, message + done, size - done);
        must(n > 0, "write");
        done += (size_t)n;
    }
}

static void get(int fd) {
    for (size_t done = 0; done < size;) {
        ssize_t n = read(fd, message + done, size - done);
        must(n > 0, "read");
        done += (size_t)n;
    }
}

/* The descriptors to write to and to read from. */
static int out, in;

static void fd_ping(long i) { (void)i, put(out), get(in); }
static void fd_pong(long i) { (void)i, get(in), put(out); }

static int queues[2];

struct letter {
    long type;
    char bytes[];
};

static struct letter *letter;

static void queue_ping(long i) {
    (void)i;
    must(msgsnd(queues[0], letter, size, 0) == 0, "msgsnd");
    must(msgrcv(queues[1], letter, size, 0, 0) == (ssize_t)size, "msgrcv");
}

static void queue_pong(long i) {
    (void)i;
    must(msgrcv(queues[0], letter, size, 0, 0) == (ssize_t)size, "msgrcv");
    must(msgsnd(queues[1], letter, size, 0) == 0, "msgsnd");
}

static char *rings[2], *due;

static char *slot(int ring, long i) { return rings[ring] + (size_t)(i % SLOTS) * size; }

static void await(int ring, long i) {
    /* The memory is not volatile, as in the original; the call keeps the comparison in the loop. */
    while (memcmp(slot(ring, i), due + (size_t)i * size, size) != 0)
        __asm__ volatile("" ::: "memory");
}

static void shm_ping(long i) {
    memcpy(slot(0, i), due + (size_t)i * size, size);
    await(1, i);
}

static void shm_pong(long i) {
    await(0, i);
    memcpy(slot(1, i), due + (size_t)i * size, size);
}

static int by_time(const void *one, const void *other) {
    uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;
    return (a > b) - (a < b);
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "posix pipe|fifo|queue|socket|shm SIZE ITERATIONS\n");
        return 2;
    }
    const char *method = argv[1];
    size = strtoul(argv[2], NULL, 10);
    iterations = strtol(argv[3], NULL, 10);
    must(size >= 8 && iterations > 0, "a size of at least 8 and some iterations");
    message = calloc(1, size);
    letter = calloc(1, sizeof *letter + size);
    letter->type = 1;

    char directory[] = "/tmp/posix-ipc-XXXXXX", names[2][64];
    must(mkdtemp(directory) != NULL, "mkdtemp");
    snprintf(names[0], sizeof names[0], "%s/0", directory);
    snprintf(names[1], sizeof names[1], "%s/1", directory);

    int there[2] = {-1, -1}, back[2] = {-1, -1}, listener = -1;
    void (*ping)(long) = fd_ping, (*pong)(long) = fd_pong;
    if (!strcmp(method, "pipe")) {
        must(pipe(there) == 0 && pipe(back) == 0, "pipe");
    } else if (!strcmp(method, "fifo")) {
        must(mkfifo(names[0], 0600) == 0 && mkfifo(names[1], 0600) == 0, "mkfifo");
        there[0] = there[1] = open(names[0], O_RDWR);
        back[0] = back[1] = open(names[1], O_RDWR);
        must(there[0] >= 0 && back[0] >= 0, "open");
    } else if (!strcmp(method, "socket")) {
        struct sockaddr_un name = {.sun_family = AF_UNIX};
        strcpy(name.sun_path, names[0]);
        listener = socket(AF_UNIX, SOCK_STREAM, 0);
        must(bind(listener, (struct sockaddr *)&name, sizeof name) == 0 && listen(listener, 1) == 0, "bind");
    } else if (!strcmp(method, "queue")) {
        for (int i = 0; i < 2; i++)
            must((queues[i] = msgget(IPC_PRIVATE, IPC_CREAT | 0600)) >= 0, "msgget");
        ping = queue_ping, pong = queue_pong;
    } else if (!strcmp(method, "shm")) {
        char name[64];
        for (int i = 0; i < 2; i++) {
            snprintf(name, sizeof name, "/posix-ipc-%d-%d", (int)getpid(), i);
            int fd = shm_open(name, O_CREAT | O_RDWR, 0600);
            must(fd >= 0 && ftruncate(fd, (off_t)(SLOTS * size)) == 0, "shm_open");
            rings[i] = mmap(NULL, SLOTS * size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            must(rings[i] != MAP_FAILED, "mmap");
            shm_unlink(name);
        }
        due = malloc((size_t)iterations * size);
        for (long i = 0; i < iterations; i++) {
            memset(due + (size_t)i * size, 'a' + (int)(i % 26), size);
            memcpy(due + (size_t)i * size, &(long){i + 1}, sizeof(long));
        }
        ping = shm_ping, pong = shm_pong;
    } else {
        fprintf(stderr, "no such method\n");
        return 2;
    }

    pid_t child = fork();
    must(child >= 0, "fork");
    if (child == 0) {
        out = back[1], in = there[0];
        if (listener >= 0) {
            struct sockaddr_un name = {.sun_family = AF_UNIX};
            strcpy(name.sun_path, names[0]);
            out = in = socket(AF_UNIX, SOCK_STREAM, 0);
            must(connect(in, (struct sockaddr *)&name, sizeof name) == 0, "connect");
        }
        for (long i = 0; i < iterations; i++)
            pong(i);
        _exit(0);
    }
    out = there[1], in = back[0];
    if (listener >= 0)
        must((out = in = accept(listener, NULL, NULL)) >= 0, "accept");
    uint64_t *times = malloc((size_t)iterations * sizeof *times), begin = now();
    for (long i = 0; i < iterations; i++) {
        uint64_t then = now();
        ping(i);
        times[i] = now() - then;
    }
    double seconds = (double)(now() - begin) / 1e9;
    int status;
    must(waitpid(child, &status, 0) == child && status == 0, "the other process");
    for (int i = 0; i < 2; i++) {
        unlink(names[i]);
        if (ping == queue_ping)
            msgctl(queues[i], IPC_RMID, NULL);
    }
    rmdir(directory);
    qsort(times, (size_t)iterations, sizeof *times, by_time);
    printf("%.0f round trips a second, median %lu ns\n", (double)iterations / seconds,
           (unsigned long)times[iterations / 2]);
    return 0;
}
