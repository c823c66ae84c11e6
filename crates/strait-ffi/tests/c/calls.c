/* Tests of calls from C: replies in another order than the requests, handles in both directions, what is known when
   there is no reply, and bad input. */

#include "check.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CALLERS = 4, CALLS = 50 };

static strait_deadline soon(void) {
    return strait_after(20 * SECOND);
}

static struct iovec part(const void *bytes, size_t len) {
    union {
        const void *theirs;
        void *any;
    } pointer = {bytes};
    struct iovec part = {pointer.any, len};
    return part;
}

static int says(const strait_message *message, const char *text) {
    return strait_message_len(message) == strlen(text) && memcmp(strait_message_bytes(message), text, strlen(text)) == 0;
}

static void ends(strait_call_end **a, strait_call_end **b) {
    strait_channel *x, *y;
    OK(strait_channel_pair(NULL, &x, &y));
    OK(strait_call_end_over(x, a));
    OK(strait_call_end_over(y, b));
}

/* Replies to each number with the number and one more bit set; of two queued requests, first to the later. */
static void *serve(void *end) {
    strait_message *requests[2] = {strait_message_new(), strait_message_new()};
    for (int left = CALLERS * CALLS; left > 0;) {
        strait_replier *repliers[2];
        int count = 1;
        OK(strait_call_next(end, requests[0], &repliers[0], soon()));
        count += strait_call_next(end, requests[1], &repliers[1], STRAIT_NOW) == STRAIT_OK;
        left -= count;
        for (int i = count - 1; i >= 0; i--) {
            uint32_t number;
            struct iovec answer = part(&number, sizeof number);
            CHECK(strait_message_len(requests[i]) == sizeof number);
            memcpy(&number, strait_message_bytes(requests[i]), sizeof number);
            number |= 1u << 31;
            CHECK(!strait_replier_is_cancelled(repliers[i]));
            OK(strait_replier_reply(repliers[i], &answer, 1, NULL, 0, soon()));
            IS(STRAIT_INVALID_ARGUMENT, strait_replier_reply(repliers[i], &answer, 1, NULL, 0, soon()));
            strait_replier_free(repliers[i]);
        }
    }
    strait_message_free(requests[0]);
    strait_message_free(requests[1]);
    return NULL;
}

struct caller {
    pthread_t thread;
    strait_call_end *end;
    uint32_t number;
};

static void *make_calls(void *of) {
    struct caller *caller = of;
    strait_message *reply = strait_message_new();
    for (uint32_t n = 0; n < CALLS; n++) {
        uint32_t number = caller->number * CALLS + n, answer;
        struct iovec request = part(&number, sizeof number);
        OK(strait_call(caller->end, &request, 1, NULL, 0, reply, soon()));
        memcpy(&answer, strait_message_bytes(reply), sizeof answer);
        CHECK(answer == (number | 1u << 31));
    }
    strait_message_free(reply);
    return NULL;
}

static void from_many_threads(void) {
    struct caller callers[CALLERS];
    strait_call_end *a, *b;
    pthread_t server;
    ends(&a, &b);
    CHECK(pthread_create(&server, NULL, serve, b) == 0);
    for (uint32_t n = 0; n < CALLERS; n++) {
        callers[n].end = a;
        callers[n].number = n;
        CHECK(pthread_create(&callers[n].thread, NULL, make_calls, &callers[n]) == 0);
    }
    for (int n = 0; n < CALLERS; n++) {
        CHECK(pthread_join(callers[n].thread, NULL) == 0);
    }
    CHECK(pthread_join(server, NULL) == 0);
    strait_call_end_free(a);
    strait_call_end_free(b);
}

static void *drop_one_and_close(void *end) {
    strait_message *request = strait_message_new();
    strait_replier *replier;
    OK(strait_call_next(end, request, &replier, soon()));
    CHECK(says(request, "drop it"));
    strait_replier_free(replier);
    OK(strait_call_next(end, request, &replier, soon()));
    if (says(request, "keep it")) {
        /* The deadline of the caller passes meanwhile; receiving the next request shows this. */
        strait_replier *next;
        OK(strait_call_next(end, request, &next, soon()));
        CHECK(says(request, "the last") && strait_replier_is_cancelled(replier));
        strait_replier_free(replier);
        strait_call_end_free(end);
        strait_replier_free(next);
    } else {
        /* The deadline had passed before the receive. */
        CHECK(says(request, "the last"));
        strait_call_end_free(end);
        strait_replier_free(replier);
    }
    strait_message_free(request);
    return NULL;
}

/* Checks the failures of calls without a reply. */
static void without_a_reply(void) {
    strait_call_end *a, *b;
    strait_handle handle;
    pthread_t server;
    strait_message *reply = strait_message_new();
    struct iovec request = part("drop it", 7);
    ends(&a, &b);
    CHECK(pthread_create(&server, NULL, drop_one_and_close, b) == 0);
    IS(STRAIT_NOT_ANSWERED, strait_call(a, &request, 1, NULL, 0, reply, soon()));
    request = part("keep it", 7);
    IS(STRAIT_OUTCOME_UNKNOWN, strait_call(a, &request, 1, NULL, 0, reply, strait_after(50000000)));
    request = part("the last", 8);
    IS(STRAIT_NOT_ANSWERED, strait_call(a, &request, 1, NULL, 0, reply, soon()));
    CHECK(pthread_join(server, NULL) == 0);
    /* The request was not sent, so the caller still owns the handle. */
    handle = strait_handle_from_fd(open("/dev/null", O_RDONLY));
    IS(STRAIT_PEER_CLOSED, strait_call(a, NULL, 0, &handle, 1, reply, soon()));
    CHECK(handle.kind == STRAIT_HANDLE_FD && fcntl(handle.fd, F_GETFD) != -1);
    strait_handle_close(&handle);
    strait_call_end_free(a);
    strait_message_free(reply);
}

static void bad_input(void) {
    strait_call_end *a, *b;
    strait_channel *x, *y;
    strait_replier *replier;
    strait_message *message = strait_message_new();
    IS(STRAIT_INVALID_ARGUMENT, strait_call_end_over(NULL, &a));
    CHECK(a == NULL);
    OK(strait_channel_pair(NULL, &x, &y));
    IS(STRAIT_INVALID_ARGUMENT, strait_call_end_over(x, NULL));
    /* The caller still owns the channel. */
    OK(strait_send(x, NULL, 0, STRAIT_NOW));
    strait_channel_close(x);
    strait_channel_close(y);
    ends(&a, &b);
    IS(STRAIT_INVALID_ARGUMENT, strait_call(NULL, NULL, 0, NULL, 0, message, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_call(a, NULL, 0, NULL, 0, NULL, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_call(a, NULL, 1, NULL, 0, message, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_call(a, NULL, 0, NULL, 1, message, STRAIT_NOW));
    IS(STRAIT_TOO_MANY_HANDLES, strait_call(a, NULL, 0, (strait_handle *)message, SIZE_MAX, message, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_call_next(NULL, message, &replier, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_call_next(b, NULL, &replier, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_call_next(b, message, NULL, STRAIT_NOW));
    IS(STRAIT_WOULD_BLOCK, strait_call_next(b, message, &replier, STRAIT_NOW));
    CHECK(replier == NULL && !strait_replier_is_cancelled(NULL));
    IS(STRAIT_INVALID_ARGUMENT, strait_replier_reply(NULL, NULL, 0, NULL, 0, STRAIT_NOW));
    IS(STRAIT_OUTCOME_UNKNOWN, strait_call(a, NULL, 0, NULL, 0, message, STRAIT_NOW));
    strait_replier_free(NULL);
    strait_call_end_free(NULL);
    strait_call_end_free(a);
    strait_call_end_free(b);
    strait_message_free(message);
}

/* Another process, which sends the received descriptor back. */
static void to_another_process(const char *self) {
    const char *const arguments[] = {self, "child", NULL};
    strait_channel *channel;
    strait_call_end *end;
    strait_handle handle = strait_handle_from_fd(open("/dev/null", O_RDONLY));
    strait_message *reply = strait_message_new();
    struct iovec request[2] = {part("there and ", 10), part("back", 4)};
    pid_t child;
    size_t count;
    int ended;
    OK(strait_spawn(self, arguments, NULL, NULL, &channel, &child));
    OK(strait_call_end_over(channel, &end));
    OK(strait_call(end, request, 2, &handle, 1, reply, soon()));
    CHECK(says(reply, "there and back") && handle.kind == STRAIT_HANDLE_NONE);
    OK(strait_message_take_handles(reply, &handle, 1, &count));
    CHECK(count == 1 && handle.kind == STRAIT_HANDLE_FD);
    strait_handle_close(&handle);
    strait_call_end_free(end);
    strait_message_free(reply);
    CHECK(waitpid(child, &ended, 0) == child && ended == 0);
}

static int be_the_other(void) {
    strait_channel *channel;
    strait_call_end *end;
    strait_replier *replier;
    strait_handle handle;
    strait_message *request = strait_message_new();
    struct iovec answer;
    size_t count;
    OK(strait_from_parent(NULL, &channel));
    OK(strait_call_end_over(channel, &end));
    OK(strait_call_next(end, request, &replier, soon()));
    OK(strait_message_take_handles(request, &handle, 1, &count));
    answer = part(strait_message_bytes(request), strait_message_len(request));
    OK(strait_replier_reply(replier, &answer, 1, &handle, 1, soon()));
    CHECK(handle.kind == STRAIT_HANDLE_NONE);
    strait_replier_free(replier);
    IS(STRAIT_PEER_CLOSED, strait_call_next(end, request, &replier, soon()));
    strait_call_end_free(end);
    strait_message_free(request);
    return 0;
}

int main(int argc, char **argv) {
    int before = 0;
    if (argc > 1) {
        return be_the_other();
    }
    for (int round = 0; round < 5; round++) {
        from_many_threads();
        without_a_reply();
        bad_input();
        to_another_process(argv[0]);
        before = round == 1 ? descriptors() : before;
    }
    /* As in c/pipes.c: a single descriptor for all long waits, opened perhaps as late as in the last round. */
    CHECK(descriptors() <= before + 1);
    return 0;
}
