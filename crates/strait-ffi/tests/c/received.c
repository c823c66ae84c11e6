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

int main(void) {
    OK(strait_channel_pair(NULL, &a, &b));
    views_with_slow_descriptors();
    strait_channel_close(a);
    strait_channel_close(b);
    return 0;
}
