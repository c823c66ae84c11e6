/* A service in one thread: an epoll loop with a wait set (which has the listener and all clients), a timer and signals.

       cc -o service service.c $(pkg-config --cflags --libs strait) && ./service example

   docs/guides/c-service.md explains it. service_client.c has clients for it, good ones and bad ones. */

#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include <strait/strait.h>

#include "service.h"

#define MAX_CLIENTS 64
#define OF_A_PROCESS 4
#define AT_A_TIME 16           /* requests of one client before the others get their turn */
#define MAX_HELD (64u << 20)   /* bytes of replies that did not fit yet, of all clients */
#define SLOW 2000              /* milliseconds after which a client that does not read is closed */
#define GRACE 1000             /* milliseconds for unsent replies at the end */
#define TICK 250
#define LISTENER 0             /* the listener's key in the wait set */

struct client {
    strait_channel *channel; /* NULL: this place is free */
    uint32_t generation;     /* how many clients had this place before */
    pid_t pid;
    char *held; /* the reply that did not fit; NULL: requests may be read */
    size_t held_len;
    int64_t held_since;
};

static struct client clients[MAX_CLIENTS];
static size_t live, held;
static strait_wait_set *set;
static strait_listener *listener; /* NULL once the service stops */
static bool listens;              /* whether the listener is in the wait set */
static int timer, signals;
static int64_t ends_at = INT64_MAX; /* when the service ends, whatever is unsent then */
static char reply[LARGEST_REPLY];

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

static const char *why(void) {
    static char text[512];
    strait_last_error_text(text, sizeof text);
    return text;
}

static void must(strait_status status, const char *what) {
    if (status != STRAIT_OK) {
        fprintf(stderr, "%s: %s\n", what, why());
        exit(1);
    }
}

static void check(bool done, const char *what) {
    if (!done) {
        perror(what);
        exit(1);
    }
}

/* ---- Clients ---- */

/* A key names a client, and not only its place: an event that was found for an earlier client of the place is ignored. */
static uint64_t key_of(const struct client *client) {
    return (uint64_t)client->generation << 32 | (uint64_t)(client - clients + 1);
}

/* Closes a client's channel, which leaves the wait set. The client first receives what was sent, then the reason. */
static void drop(struct client *client, uint32_t reason, const char *text) {
    printf("client of process %ld: %s\n", (long)client->pid, text);
    strait_channel_close_with(client->channel, reason);
    held -= client->held_len;
    free(client->held);
    *client = (struct client){.generation = client->generation + 1};
    live--;
}

/* Sends a reply, or keeps it for later. Returns whether the next request may be read. */
static bool answer(struct client *client, const char *bytes, size_t len) {
    switch (strait_send(client->channel, bytes, len, STRAIT_NOW)) {
    case STRAIT_OK:
        return true;
    case STRAIT_WOULD_BLOCK:
        break;
    case STRAIT_NO_DESCRIPTORS:
    case STRAIT_NO_MEMORY:
        drop(client, WHY_BUSY, why()); /* no event tells when there are resources again */
        return false;
    default:
        drop(client, 0, why()); /* it is gone, or broke the protocol */
        return false;
    }
    /* From here on the wait set reports the client when this reply may fit, and no requests until then. */
    must(strait_wait_set_await_room(set, client->channel, key_of(client)), "waiting for room");
    client->held = held + len <= MAX_HELD ? malloc(len) : NULL;
    if (client->held == NULL) {
        drop(client, WHY_SLOW, "no memory for its reply");
        return false;
    }
    memcpy(client->held, bytes, len);
    client->held_len = len;
    client->held_since = now();
    held += len;
    return false;
}

/* Tries again to send the reply that did not fit. */
static void answer_again(struct client *client) {
    strait_status status = strait_send(client->channel, client->held, client->held_len, STRAIT_NOW);
    if (status == STRAIT_WOULD_BLOCK) {
        must(strait_wait_set_await_room(set, client->channel, key_of(client)), "waiting for room");
    } else if (status != STRAIT_OK) {
        drop(client, WHY_BUSY, why());
    } else if (listener == NULL) {
        drop(client, WHY_STOPPING, "has its last reply");
    } else {
        held -= client->held_len;
        free(client->held);
        client->held = NULL;
        client->held_len = 0;
        if (strait_wait_set_modify(set, client->channel, key_of(client), STRAIT_READABLE, STRAIT_LEVEL) != STRAIT_OK) {
            drop(client, WHY_BUSY, why());
        }
    }
}

/* Answers some requests. What is left makes the wait set report the client again. */
static void serve(struct client *client) {
    for (int i = 0; i < AT_A_TIME; i++) {
        struct request request;
        size_t len;
        switch (strait_recv_into(client->channel, &request, sizeof request, &len, NULL, STRAIT_NOW)) {
        case STRAIT_OK:
            break;
        case STRAIT_WOULD_BLOCK:    /* nothing is left */
        case STRAIT_NO_DESCRIPTORS: /* nothing was lost; while that lasts, the wait set reports it every 100 ms */
        case STRAIT_NO_MEMORY:
            return;
        case STRAIT_PEER_CLOSED: /* the client, or its process, has ended, and everything that it sent was received */
            drop(client, 0, "gone");
            return;
        default: /* longer than a request (STRAIT_BUFFER_TOO_SMALL), over a limit, or against Strait's protocol */
            drop(client, WHY_BAD, why());
            return;
        }
        if (len != sizeof request || request.size == 0 || request.size > LARGEST_REPLY) {
            drop(client, WHY_BAD, "no request of this service");
            return;
        }
        memset(reply, (int)(request.number & 255), request.size);
        if (!answer(client, reply, request.size)) {
            return;
        }
    }
}

/* ---- The listener ---- */

static bool admits(const struct strait_peer *peer, void *context) {
    int same = 0;
    (void)context;
    for (size_t i = 0; i < MAX_CLIENTS; i++) {
        same += clients[i].channel != NULL && clients[i].pid == peer->pid;
    }
    return peer->uid == geteuid() && live < MAX_CLIENTS && same < OF_A_PROCESS;
}

static void listen_again(void) {
    listens = strait_wait_set_add_listener(set, listener, LISTENER, STRAIT_LEVEL) == STRAIT_OK;
}

static void accept_some(void) {
    for (int i = 0; i < AT_A_TIME; i++) {
        strait_channel *channel;
        strait_peer peer = {0};
        size_t at = 0;
        strait_status status = strait_listener_accept(listener, &channel, STRAIT_NOW);
        if (status == STRAIT_WOULD_BLOCK) {
            return;
        }
        if (status != STRAIT_OK) {
            /* Without free descriptors the listener would be ready again at once: leave it alone until the next tick. */
            fprintf(stderr, "accept: %s\n", why());
            strait_wait_set_remove_listener(set, listener);
            listens = false;
            return;
        }
        while (at < MAX_CLIENTS && clients[at].channel != NULL) {
            at++;
        }
        if (at == MAX_CLIENTS) {
            strait_channel_close_with(channel, WHY_FULL);
            continue;
        }
        strait_channel_peer(channel, &peer);
        clients[at].channel = channel;
        clients[at].pid = peer.pid;
        live++;
        if (strait_wait_set_add(set, channel, key_of(&clients[at]), STRAIT_READABLE, STRAIT_LEVEL) != STRAIT_OK) {
            drop(&clients[at], WHY_BUSY, why());
        }
    }
}

/* ---- The loop ---- */

/* The wait set's descriptor is readable. Waits once: if more events are left, the descriptor stays readable, and the
   loop gets to its other descriptors in between. */
static void on_set(void) {
    strait_event events[32];
    size_t count, i;
    must(strait_wait_set_wait(set, events, 32, &count, STRAIT_NOW), "waiting");
    for (i = 0; i < count; i++) {
        size_t at = (uint32_t)events[i].key - 1;
        if (events[i].key == LISTENER) {
            if (listener != NULL) {
                accept_some();
            }
        } else if (clients[at].channel != NULL && key_of(&clients[at]) == events[i].key) {
            if (clients[at].held != NULL) {
                answer_again(&clients[at]);
            } else {
                serve(&clients[at]);
            }
        }
    }
}

static void on_tick(void) {
    uint64_t ticks;
    if (read(timer, &ticks, sizeof ticks) < 0) {
        return;
    }
    for (size_t i = 0; i < MAX_CLIENTS; i++) {
        if (clients[i].held != NULL && now() - clients[i].held_since > SLOW) {
            drop(&clients[i], WHY_SLOW, "does not read");
        }
    }
    if (listener != NULL && !listens) {
        listen_again();
    }
}

/* Stops: no new clients, no more requests. Clients whose reply did not fit have until the end of the grace period. */
static void on_signal(void) {
    struct signalfd_siginfo info;
    if (read(signals, &info, sizeof info) != (ssize_t)sizeof info || listener == NULL) {
        return;
    }
    strait_listener_free(listener); /* leaves the wait set */
    listener = NULL;
    ends_at = now() + GRACE;
    for (size_t i = 0; i < MAX_CLIENTS; i++) {
        if (clients[i].channel != NULL && clients[i].held == NULL) {
            drop(&clients[i], WHY_STOPPING, "the service stops");
        }
    }
}

static void watch(int loop, int fd) {
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    check(epoll_ctl(loop, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
}

int main(int argc, char **argv) {
    const strait_options channel = {
        .refuse_descriptors = 1,          /* the kernel drops descriptors that a client sends */
        .ring_max = 64 << 10,             /* bytes of replies in a client's ring */
        .queue_bytes = 2 * LARGEST_REPLY, /* bytes of large replies that a client has not read */
        .pool = LARGEST_REPLY,            /* bytes kept for the next large replies */
        .max_message = LARGEST_REPLY,     /* of what the service sends */
        .peer_memory = 4 << 20,           /* bytes of a client's memory that this process maps */
    };
    const strait_listener_options options = {.policy = admits, .channel = &channel, .waiting_of_a_user = MAX_CLIENTS};
    const struct itimerspec period = {{0, TICK * 1000000}, {0, TICK * 1000000}};
    sigset_t mask;
    int loop;

    if (argc != 2) {
        fprintf(stderr, "usage: service NAME\n");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    sigemptyset(&mask);
    sigaddset(&mask, SIGTERM);
    sigaddset(&mask, SIGINT);
    sigprocmask(SIG_BLOCK, &mask, NULL); /* before any thread starts */
    signals = signalfd(-1, &mask, SFD_NONBLOCK | SFD_CLOEXEC);
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    loop = epoll_create1(EPOLL_CLOEXEC);
    check(signals >= 0 && timer >= 0 && loop >= 0, "descriptors");
    check(timerfd_settime(timer, 0, &period, NULL) == 0, "timer");

    /* What all links to one process, and to all processes of one user, may make this process hold. */
    must(strait_set_limit(STRAIT_MEMORY, 8 << 20, (uint64_t)MAX_CLIENTS * (8 << 20)), "limit");
    must(strait_set_limit(STRAIT_MAPPINGS, 64, 64 * MAX_CLIENTS), "limit");
    must(strait_set_limit(STRAIT_LANES, 64, 64 * MAX_CLIENTS), "limit");
    must(strait_set_limit(STRAIT_QUEUED_BYTES, 1 << 20, 16 << 20), "limit");
    must(strait_set_limit(STRAIT_QUEUED_MESSAGES, 64, 1024), "limit");

    must(strait_listener_bind(argv[1], &options, &listener), argv[1]);
    must(strait_wait_set_new(&set), "wait set");
    listen_again();
    watch(loop, strait_wait_set_fd(set));
    watch(loop, timer);
    watch(loop, signals);
    printf("listening\n");

    while (listener != NULL || (live > 0 && now() < ends_at)) {
        struct epoll_event ready[8];
        int count = epoll_wait(loop, ready, 8, -1); /* the timer ends the wait at the latest */
        for (int i = 0; i < count; i++) {
            if (ready[i].data.fd == timer) {
                on_tick();
            } else if (ready[i].data.fd == signals) {
                on_signal();
            } else {
                on_set();
            }
        }
    }
    for (size_t i = 0; i < MAX_CLIENTS; i++) {
        if (clients[i].channel != NULL) {
            drop(&clients[i], WHY_STOPPING, "has not read its last reply");
        }
    }
    strait_wait_set_free(set);
    close(loop);
    close(timer);
    close(signals);
    printf("stopped\n");
    return 0;
}
