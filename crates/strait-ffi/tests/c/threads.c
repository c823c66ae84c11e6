/* Tests of an end that one thread closes or sends while others are in function calls on it: those return a status,
   and nothing is left behind. */

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <string.h>

#include "check.h"

#define ROUNDS 300

static strait_channel *end;
static pthread_barrier_t start;

/* Uses the end in one way until the end is closed or sent. */
static void *user(void *way) {
    strait_message *message = strait_message_new();
    strait_status status;
    pthread_barrier_wait(&start);
    do {
        switch (*(int *)way) {
        case 0: status = strait_recv(end, message, STRAIT_NEVER); break;
        case 1: status = strait_send(end, "x", 1, STRAIT_NEVER); break;
        case 2: status = strait_recv(end, message, STRAIT_NOW); break;
        case 3: {
            strait_view *view;
            status = strait_recv_in_place(end, &view, strait_after(SECOND / 1000));
            strait_view_free(view);
            break;
        }
        default: {
            strait_reservation *room;
            status = strait_reserve(end, 100, &room, STRAIT_NOW);
            if (status == STRAIT_OK) {
                memset(strait_reservation_data(room), 1, 100);
                status = strait_reservation_commit(room, 100, NULL, 0);
            }
        }
        }
    } while (status == STRAIT_OK || status == STRAIT_WOULD_BLOCK || status == STRAIT_TIMED_OUT);
    CHECK(status == STRAIT_CLOSED || status == STRAIT_MOVED);
    strait_message_free(message);
    strait_channel_unref(end);
    return NULL;
}

/* Several threads use an end, while the main thread closes the end or sends it away. */
static void round_of(int number) {
    strait_channel *other, *over, *far;
    pthread_t threads[2];
    int ways[2];
    int sent = 0;
    ways[0] = number % 5;
    ways[1] = (number / 5) % 5;
    OK(strait_channel_pair(NULL, &end, &other));
    OK(strait_channel_pair(NULL, &over, &far));
    CHECK(pthread_barrier_init(&start, NULL, 3) == 0);
    for (int i = 0; i < 2; i++) {
        strait_channel_ref(end);
        CHECK(pthread_create(&threads[i], NULL, user, &ways[i]) == 0);
    }
    strait_channel_ref(end);
    pthread_barrier_wait(&start);
    for (int i = 0; i < number % 7; i++) {
        OK(strait_send(other, "work", 4, STRAIT_NOW));
    }
    if (number % 3 == 0) {
        strait_handle handle = strait_handle_from_channel(end);
        strait_status status = strait_sendv(over, NULL, 0, &handle, 1, STRAIT_NOW);
        /* Only a held view or reservation keeps the end from being sent; then it is closed instead. */
        CHECK(status == STRAIT_OK || (status == STRAIT_IN_USE && (ways[0] > 2 || ways[1] > 2)));
        sent = status == STRAIT_OK;
        strait_handle_close(&handle);
    } else {
        strait_channel_close(end);
    }
    for (int i = 0; i < 2; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    {
        strait_message *message = strait_message_new();
        strait_status status = strait_recv(end, message, STRAIT_NOW);
        CHECK(status == (sent ? STRAIT_MOVED : STRAIT_CLOSED));
        /* The last thread that was in a call has closed the end, although a reference is left. */
        while (!sent && (status = strait_recv(other, message, strait_after(20 * SECOND))) == STRAIT_OK) {
        }
        CHECK(sent || status == STRAIT_PEER_CLOSED);
        strait_message_free(message);
    }
    strait_channel_unref(end);
    pthread_barrier_destroy(&start);
    strait_channel_close(over);
    strait_channel_close(far);
    strait_channel_close(other);
}

/* Waits for a message without a time limit. */
static void *waiter(void *status) {
    strait_message *message = strait_message_new();
    *(strait_status *)status = strait_recv(end, message, STRAIT_NEVER);
    strait_message_free(message);
    strait_channel_unref(end);
    return NULL;
}

/* An end is sent while another thread sleeps on it: only this wait ends, whether or not sending succeeds. */
static void an_end_is_sent_that_another_waits_on(int fails) {
    strait_channel *other, *over, *far;
    strait_message *message = strait_message_new();
    strait_handle handle;
    strait_status status = STRAIT_OK;
    pthread_t thread;
    strait_counters counters;
    OK(strait_channel_pair(NULL, &end, &other));
    OK(strait_channel_pair(NULL, &over, &far));
    strait_channel_ref(end);
    CHECK(pthread_create(&thread, NULL, waiter, &status) == 0);
    do {
        sched_yield();
        OK(strait_channel_counters(end, &counters));
    } while (counters.sleeps == 0);
    if (fails) {
        strait_channel_close(far);
    }
    handle = strait_handle_from_channel(end);
    IS(fails ? STRAIT_PEER_CLOSED : STRAIT_OK, strait_sendv(over, NULL, 0, &handle, 1, STRAIT_NOW));
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(status == STRAIT_MOVED);
    if (!fails) {
        size_t count;
        OK(strait_recv(far, message, STRAIT_NOW));
        OK(strait_message_take_handles(message, &handle, 1, &count));
        end = handle.object;
        strait_channel_close(far);
    }
    IS(STRAIT_TIMED_OUT, strait_recv(end, message, strait_after(SECOND / 1000)));
    OK(strait_send(other, "as before", 9, STRAIT_NOW));
    OK(strait_recv(end, message, STRAIT_NEVER));
    strait_channel_close(end);
    strait_channel_close(over);
    strait_channel_close(other);
    strait_message_free(message);
}

static strait_channel *both[2];

/* Sends one of two ends over the other. */
static void *crosses(void *which) {
    int mine = *(int *)which;
    strait_handle handle = strait_handle_from_channel(strait_channel_ref(both[mine]));
    strait_status status;
    pthread_barrier_wait(&start);
    status = strait_sendv(both[!mine], NULL, 0, &handle, 1, STRAIT_NOW);
    CHECK(status == STRAIT_OK || status == STRAIT_IN_USE || status == STRAIT_MOVED);
    if (status != STRAIT_OK) {
        strait_channel_unref(strait_handle_take_channel(&handle));
    }
    return NULL;
}

/* Two threads send two ends over each other: neither thread waits for the other without end. */
static void ends_are_sent_over_each_other(void) {
    strait_channel *far[2];
    pthread_t threads[2];
    int which[2] = {0, 1};
    OK(strait_channel_pair(NULL, &both[0], &far[0]));
    OK(strait_channel_pair(NULL, &both[1], &far[1]));
    strait_channel_ref(both[0]);
    strait_channel_ref(both[1]);
    CHECK(pthread_barrier_init(&start, NULL, 2) == 0);
    for (int i = 0; i < 2; i++) {
        CHECK(pthread_create(&threads[i], NULL, crosses, &which[i]) == 0);
    }
    for (int i = 0; i < 2; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    pthread_barrier_destroy(&start);
    for (int i = 0; i < 2; i++) {
        strait_channel_close(both[i]);
        strait_channel_unref(both[i]);
        strait_channel_close(far[i]);
    }
}

/* Returns how often the current thread has slept. */
static long sleeps(void) {
    struct rusage usage;
    CHECK(getrusage(RUSAGE_THREAD, &usage) == 0);
    return usage.ru_nvcsw;
}

/* A thread that waits on a shared end does not wake up from time to time to look whether the end was closed. */
static void a_wait_has_no_wake_ups(void) {
    strait_channel *other;
    strait_message *message = strait_message_new();
    long before;
    OK(strait_channel_pair(NULL, &end, &other));
    strait_channel_ref(end);
    before = sleeps();
    CHECK(strait_recv(end, message, strait_after(SECOND)) == STRAIT_TIMED_OUT);
    CHECK(sleeps() - before <= 5);
    strait_message_free(message);
    strait_channel_unref(end);
    strait_channel_close(end);
    strait_channel_close(other);
}

int main(void) {
    int before = 0;
    for (int number = 0; number < ROUNDS; number++) {
        round_of(number);
        if (number == 0) {
            before = descriptors();
        }
    }
    for (int number = 0; number < ROUNDS; number++) {
        an_end_is_sent_that_another_waits_on(number % 2);
        ends_are_sent_over_each_other();
    }
    CHECK(descriptors() == before);
    a_wait_has_no_wake_ups();
    return 0;
}
