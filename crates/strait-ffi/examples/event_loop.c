/* One thread waits for channels and sockets at once, in an event loop that does not know channels: libuv. The loop also
   polls the descriptor of a wait set.

   If channels have no descriptor, the usual solution is a thread that blocks in receiving and hands each message to the
   loop. This program has such a thread too, for comparison:

       cc -pthread -o event_loop event_loop.c $(pkg-config --cflags --libs strait libuv) && ./event_loop 5000 21

   Another process sends messages of 64 bytes to this one, which answers: 5000 times in a row by each way in turn, for 21
   turns. The program prints the medians of the turns. */

#define _GNU_SOURCE
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <uv.h>

#include <strait/strait.h>

#define SECOND 1000000000ll
#define BYTES 64
#define MOST_TURNS 1001
#define AT_A_TIME 16

static void must(strait_status status, const char *what) {
    char text[256];
    if (status != STRAIT_OK) {
        strait_last_error_text(text, sizeof text);
        fprintf(stderr, "%s: %s\n", what, text);
        exit(1);
    }
}

/* Ends the program unless a step that is no function of Strait has succeeded. */
static void check(bool done, const char *what) {
    if (!done) {
        perror(what);
        exit(1);
    }
}

/* ---- The loop ---- */

/* The state of the loop. */
static struct {
    uv_loop_t loop;
    strait_wait_set *set;
    uv_poll_t channels;
    strait_channel *direct;
    strait_message *message;
    uv_poll_t socket;
    int fd;
    long by_channel, by_socket, by_thread;
} server;

/* The wait set may have events. Handles only a number of events and messages at a time, so that the loop gets to
   everything else in between. The descriptor stays readable while something is left. */
static void on_channels(uv_poll_t *poll, int status, int events) {
    strait_event ready[16];
    size_t count;
    (void)poll, (void)status, (void)events;
    must(strait_wait_set_wait(server.set, ready, 16, &count, STRAIT_NOW), "waiting");
    for (size_t i = 0; i < count; i++) {
        /* The key says which channel is ready; there is only one here. */
        strait_status received = STRAIT_OK;
        for (int taken = 0; taken < AT_A_TIME; taken++) {
            received = strait_recv(server.direct, server.message, STRAIT_NOW);
            if (received != STRAIT_OK) {
                break;
            }
            server.by_channel++;
            must(strait_send(server.direct, strait_message_bytes(server.message), strait_message_len(server.message), STRAIT_NOW),
                 "answering");
        }
        if (received == STRAIT_PEER_CLOSED) {
            uv_stop(&server.loop);
        } else if (received != STRAIT_WOULD_BLOCK) {
            must(received, "receiving");
        }
    }
}

/* The socket may be readable. */
static void on_socket(uv_poll_t *poll, int status, int events) {
    char bytes[BYTES];
    ssize_t size = -1;
    (void)status, (void)events;
    for (int taken = 0; taken < AT_A_TIME && (size = recv(server.fd, bytes, sizeof bytes, MSG_DONTWAIT)) > 0; taken++) {
        server.by_socket++;
        check(send(server.fd, bytes, (size_t)size, MSG_NOSIGNAL) == size, "answering");
    }
    if (size == 0) {
        uv_poll_stop(poll);
    }
}

/* ---- The bridge: a thread that receives, and hands over ---- */

static struct {
    strait_channel *channel;
    uv_async_t wake;
    pthread_mutex_t lock;
    /* Messages that were handed over and are not answered yet. */
    char bytes[1024][BYTES];
    size_t first, count;
} bridge;

static void *bridge_thread(void *reference) {
    strait_channel *channel = reference;
    char bytes[BYTES];
    size_t size;
    strait_status status;
    while ((status = strait_recv_into(channel, bytes, sizeof bytes, &size, NULL, STRAIT_NEVER)) == STRAIT_OK) {
        pthread_mutex_lock(&bridge.lock);
        check(bridge.count < 1024, "more messages than the bridge has room for");
        memcpy(bridge.bytes[(bridge.first + bridge.count++) % 1024], bytes, sizeof bytes);
        pthread_mutex_unlock(&bridge.lock);
        uv_async_send(&bridge.wake);
    }
    check(status == STRAIT_PEER_CLOSED, "the bridge");
    strait_channel_unref(channel);
    return NULL;
}

static void on_bridge(uv_async_t *wake) {
    (void)wake;
    for (;;) {
        char bytes[BYTES];
        pthread_mutex_lock(&bridge.lock);
        if (bridge.count == 0) {
            pthread_mutex_unlock(&bridge.lock);
            return;
        }
        memcpy(bytes, bridge.bytes[bridge.first], sizeof bytes);
        bridge.first = (bridge.first + 1) % 1024;
        bridge.count--;
        pthread_mutex_unlock(&bridge.lock);
        server.by_thread++;
        must(strait_send(bridge.channel, bytes, sizeof bytes, STRAIT_NOW), "answering");
    }
}

/* ---- The other process ---- */

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec * 1e9 + (double)at.tv_nsec;
}

static int by_size(const void *one, const void *other) {
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

static void ask_channel(strait_channel *channel, const char *bytes, strait_message *message) {
    must(strait_send(channel, bytes, BYTES, strait_after(10 * SECOND)), "asking");
    must(strait_recv(channel, message, strait_after(10 * SECOND)), "the answer");
    check(strait_message_len(message) == BYTES, "an answer of another size");
}

static int client(long rounds, int turns) {
    static const char *names[] = {"channel, through the loop", "channel, through a thread", "socket, through the loop"};
    static double times[3][MOST_TURNS];
    strait_channel *direct, *bridged;
    strait_message *message = strait_message_new();
    strait_handle handles[2];
    size_t count;
    int fd;
    char bytes[BYTES] = "a request";
    must(strait_from_parent(NULL, &direct), "the channel to the parent");
    must(strait_recv(direct, message, strait_after(10 * SECOND)), "the other ways");
    must(strait_message_take_handles(message, handles, 2, &count), "their handles");
    check(count == 2, "two handles");
    bridged = strait_handle_take_channel(&handles[0]);
    fd = strait_handle_take_fd(&handles[1]);

    for (int turn = 0; turn < turns; turn++) {
        for (int place = 0; place < 3; place++) {
            int way = (place + turn) % 3;
            double begin = now();
            for (long i = 0; i < rounds; i++) {
                switch (way) {
                case 0: ask_channel(direct, bytes, message); break;
                case 1: ask_channel(bridged, bytes, message); break;
                default:
                    check(send(fd, bytes, BYTES, 0) == BYTES && recv(fd, bytes, BYTES, 0) == BYTES, "the socket");
                }
            }
            times[way][turn] = (now() - begin) / (double)rounds;
        }
    }
    for (int way = 0; way < 3; way++) {
        qsort(times[way], (size_t)turns, sizeof(double), by_size);
        printf("%-28s %8.2f us a round trip (%.2f to %.2f)\n", names[way], times[way][turns / 2] / 1000, times[way][turns / 4] / 1000,
               times[way][turns * 3 / 4] / 1000);
    }
    fflush(stdout);
    close(fd);
    strait_message_free(message);
    strait_channel_close(bridged);
    strait_channel_close(direct);
    return 0;
}

int main(int argc, char **argv) {
    const char *rounds = argc > 1 ? argv[1] : "2000", *turns = argc > 2 ? argv[2] : "11";
    const char *arguments[] = {argv[0], rounds, turns, "--client", NULL};
    strait_options options;
    strait_channel *theirs;
    strait_handle handles[2];
    pthread_t thread;
    pid_t pid;
    int sockets[2], ended;

    if (argc > 3) {
        int count = atoi(turns);
        return client(atol(rounds), count < 1 ? 1 : count > MOST_TURNS ? MOST_TURNS : count);
    }
    memset(&options, 0, sizeof options);
    must(strait_spawn("/proc/self/exe", arguments, NULL, &options, &server.direct, &pid), "the other process");
    must(strait_channel_pair(NULL, &bridge.channel, &theirs), "a channel");
    check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) == 0, "sockets");
    handles[0] = strait_handle_from_channel(theirs);
    handles[1] = strait_handle_from_fd(sockets[1]);
    must(strait_sendv(server.direct, NULL, 0, handles, 2, strait_after(10 * SECOND)), "the other ways");
    server.fd = sockets[0];
    server.message = strait_message_new();

    /* These three lines put channels into the loop: a set, its members, its descriptor. */
    must(strait_wait_set_new(&server.set), "a wait set");
    must(strait_wait_set_add(server.set, server.direct, 0, STRAIT_READABLE, STRAIT_LEVEL), "adding a channel");
    check(uv_loop_init(&server.loop) == 0 && uv_poll_init(&server.loop, &server.channels, strait_wait_set_fd(server.set)) == 0, "a loop");
    uv_poll_start(&server.channels, UV_READABLE, on_channels);

    check(uv_poll_init(&server.loop, &server.socket, server.fd) == 0, "a socket in the loop");
    uv_poll_start(&server.socket, UV_READABLE, on_socket);

    /* And this is all that a bridge takes. */
    pthread_mutex_init(&bridge.lock, NULL);
    check(uv_async_init(&server.loop, &bridge.wake, on_bridge) == 0, "a bridge");
    check(pthread_create(&thread, NULL, bridge_thread, strait_channel_ref(bridge.channel)) == 0, "a thread");

    uv_run(&server.loop, UV_RUN_DEFAULT);

    pthread_join(thread, NULL);
    uv_close((uv_handle_t *)&server.channels, NULL);
    uv_close((uv_handle_t *)&server.socket, NULL);
    uv_close((uv_handle_t *)&bridge.wake, NULL);
    uv_run(&server.loop, UV_RUN_DEFAULT);
    uv_loop_close(&server.loop);
    strait_wait_set_free(server.set);
    strait_message_free(server.message);
    strait_channel_close(server.direct);
    strait_channel_close(bridge.channel);
    close(server.fd);
    waitpid(pid, &ended, 0);
    printf("answered in one thread: %ld by channel, %ld by socket, %ld handed over\n", server.by_channel, server.by_socket,
           server.by_thread);
    return WIFEXITED(ended) ? WEXITSTATUS(ended) : 1;
}
