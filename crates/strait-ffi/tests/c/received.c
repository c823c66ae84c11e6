/* Tests of received messages: what becomes of the contents and of the handles that the program does not take. */

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

#define DEADLINE strait_after(60 * SECOND)
/* How long the last close of a socket of `slow_to_close` blocks. */
#define LINGER 60

static strait_channel *a, *b;
static char text[] = "old";

static time_t now(void) {
    struct timespec time;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &time) == 0);
    return time.tv_sec;
}

/* Makes a connection. The last close of the returned socket blocks until `*other`, its other side, is closed. */
static int slow_to_close(int *other) {
    static char bytes[65536];
    struct sockaddr_in address;
    socklen_t len = sizeof address;
    struct linger linger = {1, LINGER};
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), slow = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(bind(listener, (struct sockaddr *)&address, len) == 0 && listen(listener, 1) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&address, &len) == 0);
    CHECK(connect(slow, (struct sockaddr *)&address, len) == 0);
    *other = accept(listener, NULL, NULL);
    CHECK(*other >= 0 && close(listener) == 0);
    while (send(slow, bytes, sizeof bytes, MSG_DONTWAIT) > 0) {
    }
    CHECK(setsockopt(slow, SOL_SOCKET, SO_LINGER, &linger, sizeof linger) == 0);
    return slow;
}

/* A view of which some handles were taken closes the others without blocking. */
static void views_with_slow_descriptors(void) {
    strait_view *view;
    strait_handle handles[2], one;
    size_t count;
    int other;
    time_t begin;
    handles[0] = strait_handle_from_fd(dup(0));
    handles[1] = strait_handle_from_fd(slow_to_close(&other));
    OK(strait_sendv(a, NULL, 0, handles, 2, DEADLINE));
    OK(strait_recv_in_place(b, &view, DEADLINE));
    OK(strait_view_take_handles(view, &one, 1, &count));
    CHECK(count == 1);
    strait_handle_close(&one);
    begin = now();
    strait_view_free(view);
    CHECK(now() - begin < LINGER / 4);
    close(other);
}

/* Makes `message` hold a message of 3 bytes and a descriptor, which `reader`, the other end of a pipe, tells from a
   closed one. */
static void fill(strait_message *message, int *reader) {
    strait_channel *x, *y;
    strait_handle handle;
    struct iovec part;
    int ends[2];
    part.iov_base = text;
    part.iov_len = 3;
    CHECK(pipe2(ends, O_CLOEXEC) == 0);
    handle = strait_handle_from_fd(ends[1]);
    OK(strait_channel_pair(NULL, &x, &y));
    OK(strait_sendv(x, &part, 1, &handle, 1, DEADLINE));
    OK(strait_recv(y, message, DEADLINE));
    CHECK(strait_message_len(message) == 3);
    strait_channel_close(x);
    strait_channel_close(y);
    *reader = ends[0];
}

/* Checks that a message has lost its bytes, and its descriptor is closed. */
static void check_empty(const strait_message *message, int reader) {
    char byte;
    CHECK(strait_message_len(message) == 0);
    CHECK(read(reader, &byte, 1) == 0);
    CHECK(close(reader) == 0);
}

/* A receive that fails loses the contents of its messages, whatever the reason. */
static void failed_receives(void) {
    strait_channel *moved, *other;
    strait_sender *sender;
    strait_receiver *receiver;
    strait_message *messages[4];
    strait_replier *replier;
    char buffer[8];
    size_t len, i, count;
    int readers[4];
    for (i = 0; i < 4; i++) {
        messages[i] = strait_message_new();
    }
    OK(strait_channel_pair(NULL, &moved, &other));
    strait_channel_ref(moved);
    OK(strait_channel_split(moved, &sender, &receiver));

    fill(messages[0], &readers[0]);
    IS(STRAIT_MOVED, strait_recv(moved, messages[0], STRAIT_NOW));
    check_empty(messages[0], readers[0]);
    fill(messages[0], &readers[0]);
    IS(STRAIT_INVALID_ARGUMENT, strait_recv(NULL, messages[0], STRAIT_NOW));
    check_empty(messages[0], readers[0]);
    fill(messages[0], &readers[0]);
    IS(STRAIT_WOULD_BLOCK, strait_receiver_recv(receiver, messages[0], STRAIT_NOW));
    check_empty(messages[0], readers[0]);

    fill(messages[0], &readers[0]);
    IS(STRAIT_MOVED, strait_recv_into(moved, buffer, sizeof buffer, &len, messages[0], STRAIT_NOW));
    check_empty(messages[0], readers[0]);
    fill(messages[0], &readers[0]);
    IS(STRAIT_INVALID_ARGUMENT, strait_receiver_recv_into(NULL, NULL, 1, NULL, messages[0], STRAIT_NOW));
    check_empty(messages[0], readers[0]);

    for (i = 0; i < 4; i++) {
        fill(messages[i], &readers[i]);
    }
    IS(STRAIT_MOVED, strait_recv_many(moved, messages, 4, &count, STRAIT_NOW));
    CHECK(count == 0);
    for (i = 0; i < 4; i++) {
        check_empty(messages[i], readers[i]);
        fill(messages[i], &readers[i]);
    }
    /* One of four is received. */
    OK(strait_send(other, "new", 3, DEADLINE));
    OK(strait_receiver_recv_many(receiver, messages, 4, &count, DEADLINE));
    CHECK(count == 1 && strait_message_len(messages[0]) == 3);
    CHECK(close(readers[0]) == 0);
    for (i = 1; i < 4; i++) {
        check_empty(messages[i], readers[i]);
    }

    fill(messages[0], &readers[0]);
    IS(STRAIT_INVALID_ARGUMENT, strait_call_next(NULL, messages[0], &replier, STRAIT_NOW));
    check_empty(messages[0], readers[0]);
    fill(messages[0], &readers[0]);
    IS(STRAIT_INVALID_ARGUMENT, strait_call(NULL, NULL, 0, NULL, 0, messages[0], STRAIT_NOW));
    check_empty(messages[0], readers[0]);

    strait_channel_unref(moved);
    strait_sender_free(sender);
    strait_receiver_free(receiver);
    strait_channel_close(other);
    for (i = 0; i < 4; i++) {
        strait_message_free(messages[i]);
    }
}

int main(void) {
    OK(strait_channel_pair(NULL, &a, &b));
    failed_receives();
    views_with_slow_descriptors();
    strait_channel_close(a);
    strait_channel_close(b);
    return 0;
}
