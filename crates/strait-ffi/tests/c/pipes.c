/* Tests of data pipes from C: streams within one process and to another, in place and copied, their ends as handles,
   waits, and bad input. */

#include "check.h"

#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>

enum { TOTAL = 1 << 20 };

static strait_deadline soon(void) {
    return strait_after(20 * SECOND);
}

static void some_and_whole(void) {
    strait_producer *producer;
    strait_consumer *consumer;
    char out[16];
    size_t count;
    OK(strait_pipe_new(8, 0, &producer, &consumer));
    CHECK(strait_producer_capacity(producer) == 8 && strait_consumer_capacity(consumer) == 8);
    CHECK(strait_producer_element(producer) == 1 && strait_consumer_element(consumer) == 1);
    IS(STRAIT_WOULD_BLOCK, strait_consumer_read(consumer, out, sizeof out, &count, STRAIT_NOW));
    IS(STRAIT_TIMED_OUT, strait_consumer_read(consumer, out, sizeof out, &count, strait_after(1000)));
    OK(strait_producer_write(producer, "0123456789", 10, &count, STRAIT_NOW));
    CHECK(count == 8);
    OK(strait_producer_room(producer, &count));
    CHECK(count == 0);
    IS(STRAIT_WOULD_BLOCK, strait_producer_write(producer, "x", 1, &count, STRAIT_NOW));
    CHECK(count == 0);
    OK(strait_consumer_available(consumer, &count));
    CHECK(count == 8);
    OK(strait_consumer_peek(consumer, out, 3, &count));
    CHECK(count == 3 && memcmp(out, "012", 3) == 0);
    OK(strait_consumer_read_whole(consumer, out, 4, STRAIT_NOW));
    CHECK(memcmp(out, "0123", 4) == 0);
    IS(STRAIT_WOULD_BLOCK, strait_producer_write_whole(producer, "abcde", 5, STRAIT_NOW));
    IS(STRAIT_OUT_OF_RANGE, strait_producer_write_whole(producer, "abcdefghi", 9, STRAIT_NOW));
    OK(strait_producer_write_whole(producer, "abcd", 4, STRAIT_NOW));
    OK(strait_consumer_discard(consumer, 5, &count));
    CHECK(count == 5);
    strait_producer_free(producer);
    IS(STRAIT_OUT_OF_RANGE, strait_consumer_read_whole(consumer, out, 4, STRAIT_NOW));
    OK(strait_consumer_read(consumer, out, sizeof out, &count, STRAIT_NOW));
    CHECK(count == 3 && memcmp(out, "bcd", 3) == 0);
    /* The end of the stream is returned at every read. */
    OK(strait_consumer_read(consumer, out, sizeof out, &count, STRAIT_NEVER));
    CHECK(count == 0);
    OK(strait_consumer_read(consumer, out, sizeof out, &count, STRAIT_NEVER));
    CHECK(count == 0);
    strait_consumer_free(consumer);

    OK(strait_pipe_new(8, 1, &producer, &consumer));
    strait_consumer_free(consumer);
    IS(STRAIT_PEER_CLOSED, strait_producer_room(producer, &count));
    strait_producer_free(producer);
}

/* Asserts that `status` is STRAIT_ABORTED with the given reason. */
static void aborted(strait_status status, uint32_t reason) {
    strait_error error;
    char text[200];
    IS(STRAIT_ABORTED, status);
    strait_last_error(&error);
    CHECK(error.status == STRAIT_ABORTED && error.asked == reason);
    CHECK(strait_last_error_text(text, sizeof text) > 0 && strstr(text, "aborted") != NULL);
}

static void aborts(void) {
    strait_producer *producer;
    strait_consumer *consumer;
    strait_channel *one, *other;
    strait_handle handle;
    char out[16];
    void *room;
    const void *bytes;
    size_t count;
    OK(strait_pipe_new(8, 1, &producer, &consumer));
    OK(strait_producer_write_whole(producer, "part", 4, STRAIT_NOW));
    strait_producer_abort(producer, 17);
    OK(strait_consumer_read(consumer, out, sizeof out, &count, soon()));
    CHECK(count == 4 && memcmp(out, "part", 4) == 0);
    aborted(strait_consumer_read(consumer, out, sizeof out, &count, soon()), 17);
    CHECK(count == 0);
    aborted(strait_consumer_begin(consumer, &bytes, &count, STRAIT_NOW), 17);
    strait_consumer_free(consumer);

    /* Held room does not keep the end alive, and the bytes are not written. */
    OK(strait_pipe_new(8, 1, &producer, &consumer));
    OK(strait_producer_begin(producer, &room, &count, STRAIT_NOW));
    strait_producer_abort(producer, 0);
    aborted(strait_consumer_read(consumer, out, sizeof out, &count, soon()), 0);
    strait_consumer_free(consumer);

    OK(strait_pipe_new(8, 1, &producer, &consumer));
    OK(strait_producer_write_whole(producer, "12345678", 8, STRAIT_NOW));
    OK(strait_consumer_begin(consumer, &bytes, &count, STRAIT_NOW));
    strait_consumer_abort(consumer, UINT32_MAX);
    aborted(strait_producer_write(producer, "9", 1, &count, soon()), UINT32_MAX);
    strait_producer_free(producer);

    /* A sent end belongs to the receiver. */
    OK(strait_pipe_new(8, 1, &producer, &consumer));
    OK(strait_channel_pair(NULL, &one, &other));
    handle = strait_handle_from_producer(producer);
    OK(strait_sendv(one, NULL, 0, &handle, 1, STRAIT_NOW));
    strait_producer_abort(NULL, 17);
    strait_consumer_abort(NULL, 17);
    IS(STRAIT_WOULD_BLOCK, strait_consumer_read(consumer, out, sizeof out, &count, STRAIT_NOW));
    strait_consumer_free(consumer);
    strait_channel_unref(one);
    strait_channel_unref(other);
}

static void elements(void) {
    strait_producer *producer;
    strait_consumer *consumer;
    strait_error error;
    char out[8];
    void *room;
    size_t count;
    OK(strait_pipe_new(10, 4, &producer, &consumer));
    CHECK(strait_producer_capacity(producer) == 12 && strait_producer_element(producer) == 4);
    IS(STRAIT_NOT_ELEMENTS, strait_producer_write(producer, "abc", 3, &count, STRAIT_NOW));
    OK(strait_producer_write(producer, "abcdefg", 7, &count, STRAIT_NOW));
    CHECK(count == 4);
    OK(strait_producer_begin(producer, &room, &count, STRAIT_NOW));
    CHECK(count == 8);
    IS(STRAIT_NOT_ELEMENTS, strait_producer_commit(producer, 3));
    IS(STRAIT_OUT_OF_RANGE, strait_producer_commit(producer, 12));
    strait_last_error(&error);
    CHECK(error.limit == 8);
    memcpy(room, "ijkl", 4);
    OK(strait_producer_commit(producer, 4));
    IS(STRAIT_NOT_ELEMENTS, strait_consumer_read(consumer, out, 3, &count, STRAIT_NOW));
    OK(strait_consumer_read(consumer, out, 8, &count, STRAIT_NOW));
    CHECK(count == 8 && memcmp(out, "abcdijkl", 8) == 0);
    strait_producer_free(producer);
    strait_consumer_free(consumer);
}

/* Held room or bytes keep other calls out and cannot be sent, and may be left without a commit. */
static void in_place(void) {
    strait_channel *a, *b;
    strait_producer *producer, *other;
    strait_consumer *consumer;
    strait_handle handle;
    const void *bytes;
    void *room, *again;
    size_t count;
    char out[4];
    OK(strait_channel_pair(NULL, &a, &b));
    OK(strait_pipe_new(8, 1, &producer, &consumer));
    IS(STRAIT_INVALID_ARGUMENT, strait_producer_commit(producer, 0));
    IS(STRAIT_INVALID_ARGUMENT, strait_consumer_consume(consumer, 0));
    OK(strait_producer_begin(producer, &room, &count, STRAIT_NEVER));
    CHECK(count == 8);
    IS(STRAIT_IN_USE, strait_producer_begin(producer, &again, &count, STRAIT_NEVER));
    CHECK(again == NULL && count == 0);
    IS(STRAIT_IN_USE, strait_producer_write(producer, "x", 1, &count, STRAIT_NEVER));
    IS(STRAIT_IN_USE, strait_producer_write_whole(producer, "x", 1, STRAIT_NEVER));
    IS(STRAIT_WOULD_BLOCK, strait_producer_room(producer, &count));
    handle = strait_handle_from_producer(producer);
    IS(STRAIT_IN_USE, strait_sendv(a, NULL, 0, &handle, 1, STRAIT_NOW));
    CHECK(handle.kind == STRAIT_HANDLE_PRODUCER && handle.object == producer);
    memcpy(room, "abcdef", 6);
    OK(strait_producer_commit(producer, 6));
    OK(strait_consumer_begin(consumer, &bytes, &count, STRAIT_NOW));
    CHECK(count == 6 && memcmp(bytes, "abcdef", 6) == 0);
    IS(STRAIT_IN_USE, strait_consumer_read(consumer, out, 4, &count, STRAIT_NEVER));
    IS(STRAIT_IN_USE, strait_consumer_peek(consumer, out, 4, &count));
    IS(STRAIT_IN_USE, strait_consumer_discard(consumer, 4, &count));
    OK(strait_consumer_consume(consumer, 4));
    OK(strait_consumer_begin(consumer, &bytes, &count, STRAIT_NOW));
    CHECK(count == 2 && memcmp(bytes, "ef", 2) == 0);
    OK(strait_consumer_consume(consumer, 0));
    /* The consumer is sent with its unread bytes; the message has taken the pointer. */
    OK(strait_sendv(a, NULL, 0, &handle, 1, soon()));
    CHECK(handle.kind == STRAIT_HANDLE_NONE);
    {
        strait_message *message = strait_message_new();
        OK(strait_recv(b, message, soon()));
        OK(strait_message_take_handles(message, &handle, 1, &count));
        CHECK(count == 1 && handle.kind == STRAIT_HANDLE_PRODUCER);
        CHECK(strait_handle_take_consumer(&handle) == NULL);
        other = strait_handle_take_producer(&handle);
        CHECK(other != NULL && handle.kind == STRAIT_HANDLE_NONE);
        strait_message_free(message);
    }
    OK(strait_producer_begin(other, &room, &count, STRAIT_NOW));
    memset(room, 'x', count);
    /* The producer is freed while room is held: nothing of it was written. */
    strait_producer_free(other);
    OK(strait_consumer_read_whole(consumer, out, 2, STRAIT_NOW));
    OK(strait_consumer_begin(consumer, &bytes, &count, STRAIT_NEVER));
    CHECK(count == 0);
    strait_consumer_free(consumer);
    strait_channel_close(b);
    /* The caller still owns the unsent ends, which still work. */
    OK(strait_pipe_new(8, 1, &producer, &consumer));
    {
        strait_handle both[2] = {strait_handle_from_producer(producer), strait_handle_from_consumer(consumer)};
        IS(STRAIT_PEER_CLOSED, strait_sendv(a, NULL, 0, both, 2, STRAIT_NOW));
        CHECK(both[0].kind == STRAIT_HANDLE_PRODUCER && both[0].object == producer && both[1].object == consumer);
    }
    OK(strait_producer_write_whole(producer, "still", 5, STRAIT_NOW));
    OK(strait_consumer_read(consumer, out, sizeof out, &count, STRAIT_NOW));
    CHECK(count == 4);
    strait_producer_free(producer);
    strait_consumer_free(consumer);
    strait_channel_close(a);
}

static void waits(void) {
    strait_producer *producer;
    strait_consumer *consumer;
    strait_wait_set *set;
    strait_event events[4];
    char out[8];
    size_t count;
    OK(strait_wait_set_new(&set));
    OK(strait_pipe_new(8, 1, &producer, &consumer));
    OK(strait_wait_set_add_consumer(set, consumer, 1, STRAIT_LEVEL));
    IS(STRAIT_IN_SET, strait_wait_set_add_consumer(set, consumer, 1, STRAIT_LEVEL));
    IS(STRAIT_INVALID_ARGUMENT, strait_wait_set_add_producer(set, producer, 1, 7));
    OK(strait_wait_set_wait(set, events, 4, &count, STRAIT_NOW));
    CHECK(count == 0);
    OK(strait_producer_write_whole(producer, "12345678", 8, STRAIT_NOW));
    OK(strait_wait_set_wait(set, events, 4, &count, soon()));
    CHECK(count == 1 && events[0].key == 1 && (events[0].events & STRAIT_READABLE));
    OK(strait_wait_set_remove_consumer(set, consumer));
    IS(STRAIT_NOT_IN_SET, strait_wait_set_remove_consumer(set, consumer));
    OK(strait_wait_set_add_producer(set, producer, 2, STRAIT_ONE_SHOT));
    OK(strait_wait_set_wait(set, events, 4, &count, STRAIT_NOW));
    CHECK(count == 0);
    OK(strait_consumer_read_whole(consumer, out, 8, STRAIT_NOW));
    OK(strait_wait_set_wait(set, events, 4, &count, soon()));
    CHECK(count == 1 && events[0].key == 2 && (events[0].events & STRAIT_WRITABLE));
    OK(strait_wait_set_wait(set, events, 4, &count, STRAIT_NOW));
    CHECK(count == 0);
    OK(strait_wait_set_modify_producer(set, producer, 2, STRAIT_ONE_SHOT));
    OK(strait_wait_set_wait(set, events, 4, &count, soon()));
    CHECK(count == 1);
    IS(STRAIT_NOT_IN_SET, strait_wait_set_modify_consumer(set, consumer, 1, STRAIT_LEVEL));
    OK(strait_wait_set_remove_producer(set, producer));
    strait_wait_set_free(set);
    strait_producer_free(producer);
    strait_consumer_free(consumer);
}

static void null_pointers(void) {
    strait_producer *producer;
    strait_consumer *consumer;
    strait_handle handle;
    strait_wait_set *set;
    const void *bytes;
    void *room;
    char out[4];
    size_t count;
    IS(STRAIT_INVALID_ARGUMENT, strait_pipe_new(8, 1, NULL, &consumer));
    CHECK(consumer == NULL);
    IS(STRAIT_INVALID_ARGUMENT, strait_pipe_new(8, 1, &producer, NULL));
    CHECK(producer == NULL);
    IS(STRAIT_NO_MEMORY, strait_pipe_new(SIZE_MAX, UINT32_MAX, &producer, &consumer));
    CHECK(producer == NULL && consumer == NULL);
    OK(strait_pipe_new(0, 1, &producer, &consumer));
    OK(strait_wait_set_new(&set));
    IS(STRAIT_INVALID_ARGUMENT, strait_producer_write(NULL, "x", 1, &count, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_producer_write(producer, NULL, 1, &count, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_producer_write(producer, "x", 1, NULL, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_producer_write_whole(NULL, "x", 1, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_producer_write_whole(producer, NULL, SIZE_MAX, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_producer_begin(NULL, &room, &count, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_producer_begin(producer, NULL, &count, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_producer_begin(producer, &room, NULL, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_producer_commit(NULL, 0));
    IS(STRAIT_INVALID_ARGUMENT, strait_producer_room(NULL, &count));
    IS(STRAIT_INVALID_ARGUMENT, strait_producer_room(producer, NULL));
    IS(STRAIT_INVALID_ARGUMENT, strait_consumer_read(NULL, out, 4, &count, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_consumer_read(consumer, NULL, 4, &count, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_consumer_read(consumer, out, 4, NULL, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_consumer_read_whole(NULL, out, 4, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_consumer_read_whole(consumer, NULL, 4, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_consumer_peek(NULL, out, 4, &count));
    IS(STRAIT_INVALID_ARGUMENT, strait_consumer_peek(consumer, out, 4, NULL));
    IS(STRAIT_INVALID_ARGUMENT, strait_consumer_discard(NULL, 4, &count));
    IS(STRAIT_INVALID_ARGUMENT, strait_consumer_discard(consumer, 4, NULL));
    IS(STRAIT_INVALID_ARGUMENT, strait_consumer_begin(NULL, &bytes, &count, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_consumer_begin(consumer, NULL, &count, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_consumer_begin(consumer, &bytes, NULL, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_consumer_consume(NULL, 0));
    IS(STRAIT_INVALID_ARGUMENT, strait_consumer_available(NULL, &count));
    IS(STRAIT_INVALID_ARGUMENT, strait_consumer_available(consumer, NULL));
    IS(STRAIT_INVALID_ARGUMENT, strait_wait_set_add_producer(NULL, producer, 0, STRAIT_LEVEL));
    IS(STRAIT_INVALID_ARGUMENT, strait_wait_set_add_producer(set, NULL, 0, STRAIT_LEVEL));
    IS(STRAIT_INVALID_ARGUMENT, strait_wait_set_add_consumer(set, NULL, 0, STRAIT_LEVEL));
    IS(STRAIT_INVALID_ARGUMENT, strait_wait_set_modify_producer(set, NULL, 0, STRAIT_LEVEL));
    IS(STRAIT_INVALID_ARGUMENT, strait_wait_set_remove_consumer(NULL, consumer));
    CHECK(strait_producer_capacity(NULL) == 0 && strait_producer_element(NULL) == 0);
    CHECK(strait_consumer_capacity(NULL) == 0 && strait_consumer_element(NULL) == 0);
    CHECK(strait_handle_take_producer(NULL) == NULL && strait_handle_take_consumer(NULL) == NULL);
    handle = strait_handle_from_producer(NULL);
    strait_handle_close(&handle);
    handle = strait_handle_from_producer(producer);
    strait_handle_close(&handle);
    handle = strait_handle_from_consumer(consumer);
    strait_handle_close(&handle);
    strait_producer_free(NULL);
    strait_consumer_free(NULL);
    strait_wait_set_free(set);
}

/* At the end of a stream nothing is held: functions may read from the end, begin to read in place, and send the end.
   The 0 bytes that are there may be consumed any number of times. */
static void the_end_of_a_stream_is_not_held(void) {
    strait_channel *a, *b;
    strait_producer *producer;
    strait_consumer *consumer;
    strait_handle handle;
    const void *bytes;
    size_t count;
    char out[4];
    OK(strait_channel_pair(NULL, &a, &b));
    OK(strait_pipe_new(8, 1, &producer, &consumer));
    OK(strait_producer_write(producer, "x", 1, &count, STRAIT_NOW));
    strait_producer_free(producer);
    OK(strait_consumer_begin(consumer, &bytes, &count, STRAIT_NOW));
    CHECK(count == 1);
    IS(STRAIT_IN_USE, strait_consumer_begin(consumer, &bytes, &count, STRAIT_NEVER));
    OK(strait_consumer_consume(consumer, 1));
    IS(STRAIT_INVALID_ARGUMENT, strait_consumer_consume(consumer, 0));
    for (int i = 0; i < 2; i++) {
        OK(strait_consumer_begin(consumer, &bytes, &count, STRAIT_NEVER));
        CHECK(count == 0);
        OK(strait_consumer_read(consumer, out, 4, &count, STRAIT_NEVER));
        CHECK(count == 0);
    }
    OK(strait_consumer_consume(consumer, 0));
    OK(strait_consumer_consume(consumer, 0));
    IS(STRAIT_INVALID_ARGUMENT, strait_consumer_consume(consumer, 1));
    OK(strait_consumer_begin(consumer, &bytes, &count, STRAIT_NEVER));
    handle = strait_handle_from_consumer(consumer);
    OK(strait_sendv(a, NULL, 0, &handle, 1, soon()));
    strait_channel_close(a);
    strait_channel_close(b);
}

static strait_consumer *shared;
static strait_producer *filled;

/* Waits for bytes without a time limit. */
static void *reader(void *status) {
    char out[4];
    size_t count;
    *(strait_status *)status = strait_consumer_read(shared, out, sizeof out, &count, STRAIT_NEVER);
    return NULL;
}

/* Waits for bytes in place without a time limit. */
static void *beginner(void *status) {
    const void *bytes;
    size_t count;
    *(strait_status *)status = strait_consumer_begin(shared, &bytes, &count, STRAIT_NEVER);
    return NULL;
}

/* Waits for room without a time limit. */
static void *writer(void *status) {
    size_t count;
    *(strait_status *)status = strait_producer_write(filled, "more", 4, &count, STRAIT_NEVER);
    return NULL;
}

/* An end is sent while another thread waits on it: only this wait ends, whether or not sending succeeds. */
static void an_end_is_sent_that_another_waits_on(void *(*call)(void *), int fails) {
    strait_channel *a, *b;
    strait_message *message = strait_message_new();
    strait_handle handle;
    strait_status status = STRAIT_OK;
    pthread_t thread;
    size_t count;
    char out[4];
    OK(strait_channel_pair(NULL, &a, &b));
    OK(strait_pipe_new(4, 1, &filled, &shared));
    if (call == writer) {
        OK(strait_producer_write_whole(filled, "full", 4, STRAIT_NOW));
        handle = strait_handle_from_producer(filled);
    } else {
        handle = strait_handle_from_consumer(shared);
    }
    CHECK(pthread_create(&thread, NULL, call, &status) == 0);
    /* Waits until the thread sleeps. */
    while ((call == writer ? strait_producer_room(filled, &count) : strait_consumer_available(shared, &count)) == STRAIT_OK) {
        sched_yield();
    }
    if (fails) {
        strait_channel_close(b);
    }
    IS(fails ? STRAIT_PEER_CLOSED : STRAIT_OK, strait_sendv(a, NULL, 0, &handle, 1, soon()));
    CHECK(pthread_join(thread, NULL) == 0);
    if (!fails) {
        /* The message has taken the pointer. */
        OK(strait_recv(b, message, soon()));
        OK(strait_message_take_handles(message, &handle, 1, &count));
        if (call == writer) {
            filled = strait_handle_take_producer(&handle);
        } else {
            shared = strait_handle_take_consumer(&handle);
        }
        strait_channel_close(b);
    }
    IS(STRAIT_MOVED, status);
    if (call != writer) {
        IS(STRAIT_TIMED_OUT, strait_consumer_read(shared, out, 4, &count, strait_after(1000)));
        OK(strait_producer_write_whole(filled, "next", 4, STRAIT_NOW));
    } else {
        IS(STRAIT_TIMED_OUT, strait_producer_write(filled, "x", 1, &count, strait_after(1000)));
    }
    OK(strait_consumer_read_whole(shared, out, 4, soon()));
    CHECK(memcmp(out, call == writer ? "full" : "next", 4) == 0);
    strait_producer_free(filled);
    strait_consumer_free(shared);
    strait_channel_close(a);
    strait_message_free(message);
}

static void *fill(void *producer) {
    unsigned char next = 0;
    size_t left = TOTAL;
    while (left > 0) {
        void *room;
        size_t len;
        OK(strait_producer_begin(producer, &room, &len, soon()));
        len = len < left ? len : left;
        for (size_t at = 0; at < len; at++) {
            ((unsigned char *)room)[at] = next++;
        }
        OK(strait_producer_commit(producer, len));
        left -= len;
    }
    strait_producer_free(producer);
    return NULL;
}

/* Reads the whole stream, and checks each byte. */
static size_t drain(strait_consumer *consumer) {
    unsigned char next = 0;
    size_t total = 0;
    for (;;) {
        const void *bytes;
        size_t len;
        OK(strait_consumer_begin(consumer, &bytes, &len, soon()));
        for (size_t at = 0; at < len; at++) {
            CHECK(((const unsigned char *)bytes)[at] == next++);
        }
        OK(strait_consumer_consume(consumer, len));
        if (len == 0) {
            return total;
        }
        total += len;
    }
}

static void a_stream(void) {
    strait_producer *producer;
    strait_consumer *consumer;
    pthread_t thread;
    OK(strait_pipe_new(5000, 1, &producer, &consumer));
    CHECK(pthread_create(&thread, NULL, fill, producer) == 0);
    CHECK(drain(consumer) == TOTAL);
    CHECK(pthread_join(thread, NULL) == 0);
    strait_consumer_free(consumer);
}

/* The consumer is sent to another process, which reports the number of bytes read. */
static void a_stream_to_another_process(const char *self) {
    const char *const arguments[] = {self, "child", NULL};
    strait_channel *channel;
    strait_producer *producer;
    strait_consumer *consumer;
    strait_handle handle;
    pid_t child;
    int ended;
    size_t total = 0, len;
    OK(strait_spawn(self, arguments, NULL, NULL, &channel, &child));
    OK(strait_pipe_new(5000, 1, &producer, &consumer));
    handle = strait_handle_from_consumer(consumer);
    OK(strait_sendv(channel, NULL, 0, &handle, 1, soon()));
    fill(producer);
    OK(strait_recv_into(channel, &total, sizeof total, &len, NULL, soon()));
    CHECK(len == sizeof total && total == TOTAL);
    strait_channel_close(channel);
    CHECK(waitpid(child, &ended, 0) == child && ended == 0);
}

static int serve(void) {
    strait_channel *channel;
    strait_message *message = strait_message_new();
    strait_handle handle;
    strait_consumer *consumer;
    size_t count;
    OK(strait_from_parent(NULL, &channel));
    OK(strait_recv(channel, message, soon()));
    OK(strait_message_take_handles(message, &handle, 1, &count));
    CHECK(count == 1 && handle.kind == STRAIT_HANDLE_CONSUMER);
    consumer = strait_handle_take_consumer(&handle);
    count = drain(consumer);
    OK(strait_send(channel, &count, sizeof count, soon()));
    strait_consumer_free(consumer);
    strait_message_free(message);
    strait_channel_close(channel);
    return 0;
}

int main(int argc, char **argv) {
    int before = 0;
    if (argc > 1) {
        return serve();
    }
    for (int round = 0; round < 5; round++) {
        some_and_whole();
        aborts();
        elements();
        in_place();
        the_end_of_a_stream_is_not_held();
        for (int fails = 0; fails < 2; fails++) {
            an_end_is_sent_that_another_waits_on(reader, fails);
            an_end_is_sent_that_another_waits_on(beginner, fails);
            an_end_is_sent_that_another_waits_on(writer, fails);
        }
        waits();
        null_pointers();
        a_stream();
        a_stream_to_another_process(argv[0]);
        before = round == 1 ? descriptors() : before;
    }
    /* The process has a single descriptor for all interruptible long waits, opened by the first such wait. */
    CHECK(descriptors() <= before + 1);
    return 0;
}
