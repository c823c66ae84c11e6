/*
 * Where the time of a System V message queue goes: by the size of the queue, the size of its messages, and the number of
 * messages that wait in it.
 *
 *   alone   one process sends a message and receives the first one, while WAITING others stay in the queue
 *   typed   as alone, but receives by type, the message that it sent last: the kernel looks at all that wait
 *   two     a process sends and another receives, each on a processor of its own, as fast as they can; at most as many
 *           messages wait as the queue has room for
 *
 * Prints processor time for each message (all processes, user and system), system calls, and how often a process slept.
 * Processor time, unlike the time on the wall, says the same on a machine with other work.
 *
 * cc -O2 -o queues queues.c; ./queues HOW QUEUE_BYTES SIZE WAITING COUNT
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int queue = -1;

static void removed(void) {
    msgctl(queue, IPC_RMID, NULL);
}

static void must(int done, const char *what) {
    if (!done) {
        perror(what);
        exit(1);
    }
}

static double seconds(struct timeval t) {
    return (double)t.tv_sec + (double)t.tv_usec / 1e6;
}

static double wall(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    must(sched_setaffinity(0, sizeof set, &set) == 0, "sched_setaffinity");
}

int main(int argc, char **argv) {
    must(argc == 6, "HOW QUEUE_BYTES SIZE WAITING COUNT");
    const char *how = argv[1];
    size_t size = strtoul(argv[3], NULL, 10);
    long waiting = atol(argv[4]), count = atol(argv[5]);
    int typed = strcmp(how, "typed") == 0, two = strcmp(how, "two") == 0;

    struct { long type; char bytes[1 << 16]; } *letter = calloc(1, sizeof *letter), *got = calloc(1, sizeof *got);
    must(letter && got && size <= sizeof letter->bytes, "memory");
    queue = msgget(IPC_PRIVATE, 0600);
    must(queue >= 0, "msgget");
    struct msqid_ds state;
    must(msgctl(queue, IPC_STAT, &state) == 0, "msgctl");
    state.msg_qbytes = strtoul(argv[2], NULL, 10);
    must(msgctl(queue, IPC_SET, &state) == 0, "msgctl (a queue of more than /proc/sys/kernel/msgmnb takes CAP_SYS_RESOURCE)");

    letter->type = 1;
    for (long at = 0; at < waiting; at++) {
        if (msgsnd(queue, letter, size, IPC_NOWAIT) != 0) {
            removed();
            printf("-\n");
            return 0;
        }
    }
    pid_t other = 0;
    double begin = wall();
    struct rusage before, after, child = {0};
    getrusage(RUSAGE_SELF, &before);
    if (two) {
        other = fork();
        must(other >= 0, "fork");
        pin(other ? 0 : 1);
        for (long at = 0; at < count; at++) {
            if (other) {
                must(msgsnd(queue, letter, size, 0) == 0, "msgsnd");
            } else {
                must(msgrcv(queue, got, size, 0, 0) >= 0, "msgrcv");
            }
        }
        if (!other) {
            _exit(0);
        }
        must(wait4(other, NULL, 0, &child) == other, "wait4");
    } else {
        letter->type = typed ? 2 : 1;
        for (long at = 0; at < count; at++) {
            must(msgsnd(queue, letter, size, 0) == 0, "msgsnd");
            must(msgrcv(queue, got, size, typed ? 2 : 0, 0) >= 0, "msgrcv");
        }
    }
    getrusage(RUSAGE_SELF, &after);
    double took = wall() - begin;
    removed();
    double user = seconds(after.ru_utime) - seconds(before.ru_utime) + seconds(child.ru_utime);
    double sys = seconds(after.ru_stime) - seconds(before.ru_stime) + seconds(child.ru_stime);
    long slept = after.ru_nvcsw - before.ru_nvcsw + child.ru_nvcsw;
    /* One call sends a message and one receives it, whatever the size. */
    printf("%.0f ns of processor time (%.0f in the kernel), %.0f ns, 2 system calls, %.3f sleeps\n",
           (user + sys) * 1e9 / (double)count, sys * 1e9 / (double)count, took * 1e9 / (double)count,
           (double)slept / (double)count);
    return 0;
}
