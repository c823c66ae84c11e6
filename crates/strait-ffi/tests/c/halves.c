/* Tests of the halves of an end: two threads use them at once, they are joined and sent, and wrong use is a status. */

#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

#define MESSAGES 100000u
#define DEADLINE strait_after(120 * SECOND)

static void *send_numbers(void *given) {
    strait_sender *sender = given;
    unsigned number;
    for (number = 0; number < MESSAGES; number++) {
        OK(strait_sender_send(sender, &number, sizeof number, DEADLINE));
    }
    return sender;
}

/* The two ends send to each other, each with one thread for each half. */
static void both_directions_at_once(void) {
    strait_channel *ends[2];
    strait_sender *senders[2];
    strait_receiver *receivers[2];
    pthread_t threads[2];
    strait_message *message = strait_message_new();
    unsigned side, number, got;
    size_t len;
    OK(strait_channel_pair(NULL, &ends[0], &ends[1]));
    for (side = 0; side < 2; side++) {
        OK(strait_channel_split(ends[side], &senders[side], &receivers[side]));
        CHECK(pthread_create(&threads[side], NULL, send_numbers, senders[side]) == 0);
    }
    for (number = 0; number < MESSAGES; number++) {
        OK(strait_receiver_recv_into(receivers[0], &got, sizeof got, &len, NULL, DEADLINE));
        CHECK(len == sizeof got && got == number);
        OK(strait_receiver_recv(receivers[1], message, DEADLINE));
        CHECK(strait_message_len(message) == sizeof got && memcmp(strait_message_bytes(message), &number, sizeof number) == 0);
    }
    for (side = 0; side < 2; side++) {
        CHECK(pthread_join(threads[side], NULL) == 0);
    }
    IS(STRAIT_WOULD_BLOCK, strait_receiver_recv(receivers[0], message, STRAIT_NOW));
    IS(STRAIT_TIMED_OUT, strait_receiver_recv(receivers[0], message, strait_after(1000000)));

    /* An end is closed once both halves are. */
    strait_sender_free(senders[0]);
    IS(STRAIT_WOULD_BLOCK, strait_receiver_recv(receivers[1], message, STRAIT_NOW));
    strait_receiver_free(receivers[0]);
    IS(STRAIT_PEER_CLOSED, strait_receiver_recv(receivers[1], message, DEADLINE));
    IS(STRAIT_PEER_CLOSED, strait_sender_send(senders[1], "x", 1, DEADLINE));
    strait_sender_free(senders[1]);
    strait_receiver_free(receivers[1]);
    strait_message_free(message);
}

/* Joined halves are the end again, which can be sent with the unread messages. */
static void joined_ends_travel(void) {
    strait_channel *a, *b, *c, *d, *joined, *arrived;
    strait_sender *sender, *other_sender;
    strait_receiver *receiver, *other_receiver;
    strait_handle handle;
    strait_message *message = strait_message_new();
    uint32_t reason = 0;
    size_t len;
    char byte;
    OK(strait_channel_pair(NULL, &a, &b));
    OK(strait_channel_pair(NULL, &c, &d));
    OK(strait_channel_split(a, &sender, &receiver));
    OK(strait_channel_split(c, &other_sender, &other_receiver));
    OK(strait_send(b, "kept", 4, STRAIT_NOW));

    joined = b;
    IS(STRAIT_INVALID_ARGUMENT, strait_sender_join(sender, other_receiver, &joined));
    CHECK(joined == NULL);
    IS(STRAIT_INVALID_ARGUMENT, strait_sender_join(sender, NULL, &joined));
    IS(STRAIT_INVALID_ARGUMENT, strait_sender_join(NULL, receiver, &joined));

    OK(strait_sender_join(sender, receiver, &joined));
    handle = strait_handle_from_channel(joined);
    /* A half takes handles like an end, and gives the handles back if sending fails. */
    IS(STRAIT_INVALID_ARGUMENT, strait_sender_sendv(NULL, NULL, 0, &handle, 1, DEADLINE));
    CHECK(handle.kind == STRAIT_HANDLE_CHANNEL);
    OK(strait_sender_sendv(other_sender, NULL, 0, &handle, 1, DEADLINE));
    CHECK(handle.kind == STRAIT_HANDLE_NONE);
    OK(strait_recv(d, message, DEADLINE));
    OK(strait_message_take_handle(message, 0, &handle));
    arrived = strait_handle_take_channel(&handle);
    IS(STRAIT_BUFFER_TOO_SMALL, strait_recv_into(arrived, &byte, 1, &len, NULL, DEADLINE));
    CHECK(len == 4);
    strait_channel_close(arrived);

    strait_channel_close_with(d, 7);
    IS(STRAIT_PEER_CLOSED, strait_receiver_recv(other_receiver, message, DEADLINE));
    CHECK(strait_receiver_close_reason(other_receiver, &reason) && reason == 7);
    strait_sender_free(other_sender);
    strait_receiver_free(other_receiver);
    strait_channel_close(b);
    strait_message_free(message);
}

/* A batch of messages: sending takes the handles; a wrong message ends the batch. */
static void batches(void) {
    strait_channel *a, *b;
    strait_sender *sender, *far_sender;
    strait_receiver *receiver, *far_receiver;
    strait_handle handle;
    strait_message *messages[4], *none[1] = {NULL};
    struct iovec parts[3] = {{"one", 3}, {"two", 3}, {NULL, 5}};
    strait_outgoing batch[4];
    size_t sent = 77, received = 77, at = 0, index;
    memset(batch, 0, sizeof batch);
    OK(strait_channel_pair(NULL, &a, &b));
    OK(strait_channel_split(a, &sender, &receiver));
    OK(strait_channel_split(b, &far_sender, &far_receiver));
    handle = strait_handle_from_fd(dup(0));
    batch[0].parts = &parts[0];
    batch[0].part_count = 1;
    batch[1].parts = &parts[1];
    batch[1].part_count = 1;
    batch[1].handles = &handle;
    batch[1].handle_count = 1;
    batch[3].parts = &parts[2];
    batch[3].part_count = 1;
    IS(STRAIT_INVALID_ARGUMENT, strait_sender_send_many(sender, batch, 4, &sent, DEADLINE));
    CHECK(sent == 3 && handle.kind == STRAIT_HANDLE_NONE);
    IS(STRAIT_INVALID_ARGUMENT, strait_sender_send_many(NULL, batch, 1, &sent, DEADLINE));
    CHECK(sent == 0);
    IS(STRAIT_INVALID_ARGUMENT, strait_sender_send_many(sender, NULL, 1, NULL, DEADLINE));

    for (index = 0; index < 4; index++) {
        messages[index] = strait_message_new();
    }
    while (at < 3) {
        OK(strait_receiver_recv_many(far_receiver, messages + at, 4 - at, &received, DEADLINE));
        CHECK(received >= 1 && at + received <= 3);
        at += received;
    }
    CHECK(strait_message_len(messages[0]) == 3 && memcmp(strait_message_bytes(messages[0]), "one", 3) == 0);
    CHECK(strait_message_len(messages[1]) == 3 && memcmp(strait_message_bytes(messages[1]), "two", 3) == 0);
    CHECK(strait_message_len(messages[2]) == 0);
    OK(strait_message_take_handle(messages[1], 0, &handle));
    CHECK(handle.kind == STRAIT_HANDLE_FD);
    strait_handle_close(&handle);
    IS(STRAIT_WOULD_BLOCK, strait_receiver_recv_many(far_receiver, messages, 4, &received, STRAIT_NOW));
    CHECK(received == 0);
    IS(STRAIT_INVALID_ARGUMENT, strait_receiver_recv_many(NULL, messages, 4, &received, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_receiver_recv_many(far_receiver, none, 1, &received, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_receiver_recv_many(far_receiver, messages, 4, NULL, STRAIT_NOW));
    strait_sender_free(sender);
    strait_receiver_free(receiver);
    IS(STRAIT_PEER_CLOSED, strait_receiver_recv_many(far_receiver, messages, 4, &received, DEADLINE));
    strait_sender_free(far_sender);
    strait_receiver_free(far_receiver);
    for (index = 0; index < 4; index++) {
        strait_message_free(messages[index]);
    }
}

/* The memory for large messages is kept up to a limit, and given back on demand. */
static void memory_for_large_messages(void) {
    strait_channel *a, *b;
    strait_message *message = strait_message_new();
    static char bytes[1 << 20];
    size_t limit = strait_pool_limit(), held;
    CHECK(limit == (size_t)256 << 20);
    OK(strait_channel_pair(NULL, &a, &b));
    OK(strait_send(a, bytes, sizeof bytes, DEADLINE));
    OK(strait_recv(b, message, DEADLINE));
    held = strait_pool_held();
    CHECK(held >= sizeof bytes && strait_trim() >= sizeof bytes && strait_pool_held() <= held - sizeof bytes);
    strait_set_pool_limit(1 << 10);
    CHECK(strait_pool_limit() == 1 << 10);
    OK(strait_send(a, bytes, sizeof bytes, DEADLINE));
    OK(strait_recv(b, message, DEADLINE));
    CHECK(strait_pool_held() <= 1 << 10);
    strait_set_pool_limit(limit);
    strait_channel_close(a);
    strait_channel_close(b);
    strait_message_free(message);
}

/* An end that cannot be split stays unchanged. After a split, other references fail. */
static void ends_in_use(void) {
    strait_channel *a, *b, *other;
    strait_reservation *room;
    strait_sender *sender;
    strait_receiver *receiver;
    OK(strait_channel_pair(NULL, &a, &b));
    OK(strait_reserve(a, 100, &room, DEADLINE));
    IS(STRAIT_IN_USE, strait_channel_split(a, &sender, &receiver));
    CHECK(sender == NULL && receiver == NULL);
    strait_reservation_cancel(room);
    OK(strait_send(a, "still", 5, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_channel_split(NULL, &sender, &receiver));
    /* A result is NULL also if the place of the other result is missing. */
    receiver = (strait_receiver *)b;
    IS(STRAIT_INVALID_ARGUMENT, strait_channel_split(a, NULL, &receiver));
    CHECK(receiver == NULL);
    sender = (strait_sender *)b;
    IS(STRAIT_INVALID_ARGUMENT, strait_channel_split(a, &sender, NULL));
    CHECK(sender == NULL);

    other = strait_channel_ref(a);
    OK(strait_channel_split(a, &sender, &receiver));
    IS(STRAIT_MOVED, strait_send(other, "x", 1, STRAIT_NOW));
    strait_channel_unref(other);
    OK(strait_sender_send(sender, "end", 3, STRAIT_NOW));
    strait_sender_free(sender);
    strait_receiver_free(receiver);
    strait_sender_free(NULL);
    strait_receiver_free(NULL);
    strait_channel_close(b);
}

/* A sender makes reservations. Until the end of a reservation the sender cannot be used, and stays although it is freed. */
static void reserved_rooms(void) {
    static const size_t sizes[] = {0, 5, 300, 100000, 2 << 20};
    strait_channel *a, *b;
    strait_sender *sender;
    strait_receiver *receiver;
    strait_reservation *room;
    strait_message *message = strait_message_new();
    strait_handle handle;
    size_t i, count;
    int sealed;
    OK(strait_channel_pair(NULL, &a, &b));
    OK(strait_channel_split(a, &sender, &receiver));
    for (i = 0; i < 2 * sizeof sizes / sizeof *sizes; i++) {
        const size_t size = sizes[i / 2];
        sealed = i % 2 == 1;
        OK(sealed ? strait_sender_reserve_sealed(sender, size, &room, DEADLINE) : strait_sender_reserve(sender, size, &room, DEADLINE));
        CHECK(size == 0 || strait_reservation_data(room) != NULL);
        memset(strait_reservation_data(room), 'r', size);
        IS(STRAIT_IN_USE, strait_sender_send(sender, "x", 1, STRAIT_NOW));
        handle = strait_handle_from_fd(dup(0));
        OK(strait_reservation_commit(room, size, &handle, 1));
        CHECK(handle.kind == STRAIT_HANDLE_NONE);
        OK(strait_sender_send(sender, "next", 4, DEADLINE));
        OK(strait_recv(b, message, DEADLINE));
        CHECK(strait_message_len(message) == size && (size == 0 || ((const char *)strait_message_bytes(message))[size - 1] == 'r'));
        OK(strait_message_take_handles(message, &handle, 1, &count));
        CHECK(count == 1);
        strait_handle_close(&handle);
        OK(strait_recv(b, message, DEADLINE));
    }
    IS(STRAIT_INVALID_ARGUMENT, strait_sender_reserve(NULL, 5, &room, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_sender_reserve(sender, 5, NULL, STRAIT_NOW));
    strait_sender_free(sender);
    strait_receiver_free(receiver);
    strait_message_free(message);
    strait_channel_close(b);
}

/* Cancelling a reservation sends nothing, and frees a sender that was freed meanwhile. */
static void ended_reservations(void) {
    strait_channel *a, *b, *joined;
    strait_sender *sender;
    strait_receiver *receiver;
    strait_reservation *room, *second;
    strait_message *message = strait_message_new();
    OK(strait_channel_pair(NULL, &a, &b));
    OK(strait_channel_split(a, &sender, &receiver));
    OK(strait_sender_reserve(sender, 5, &room, STRAIT_NOW));
    IS(STRAIT_IN_USE, strait_sender_reserve(sender, 5, &second, STRAIT_NOW));
    CHECK(second == NULL);
    IS(STRAIT_IN_USE, strait_sender_join(sender, receiver, &joined));
    CHECK(joined == NULL);
    strait_reservation_cancel(room);
    OK(strait_sender_send(sender, "one", 3, STRAIT_NOW));
    OK(strait_sender_join(sender, receiver, &joined));
    OK(strait_recv(b, message, STRAIT_NOW));
    CHECK(strait_message_len(message) == 3);
    OK(strait_channel_split(joined, &sender, &receiver));
    strait_receiver_free(receiver);
    OK(strait_sender_reserve(sender, 5, &room, STRAIT_NOW));
    memcpy(strait_reservation_data(room), "after", 5);
    strait_sender_free(sender);
    OK(strait_reservation_commit(room, 5, NULL, 0));
    OK(strait_recv(b, message, STRAIT_NOW));
    CHECK(strait_message_len(message) == 5);
    IS(STRAIT_PEER_CLOSED, strait_recv(b, message, DEADLINE));
    strait_channel_close(b);

    /* A commit that fails ends the reservation before the borrow of the sender. */
    OK(strait_channel_pair(NULL, &a, &b));
    OK(strait_channel_split(a, &sender, &receiver));
    OK(strait_sender_reserve(sender, 5, &room, STRAIT_NOW));
    strait_receiver_free(receiver);
    strait_sender_free(sender);
    IS(STRAIT_INVALID_ARGUMENT, strait_reservation_commit(room, 6, NULL, 0));
    IS(STRAIT_PEER_CLOSED, strait_recv(b, message, DEADLINE));
    strait_message_free(message);
    strait_channel_close(b);
}

/* Halves are members of a wait set. */
static void in_a_wait_set(void) {
    static char large[60 << 10];
    strait_channel *a, *b;
    strait_sender *sender;
    strait_receiver *receiver;
    strait_wait_set *set;
    strait_event events[4];
    size_t count;
    strait_message *message = strait_message_new();
    OK(strait_channel_pair(NULL, &a, &b));
    OK(strait_channel_split(a, &sender, &receiver));
    OK(strait_wait_set_new(&set));
    OK(strait_wait_set_add_receiver(set, receiver, 5, STRAIT_LEVEL));
    OK(strait_wait_set_wait(set, events, 4, &count, STRAIT_NOW));
    CHECK(count == 0);
    OK(strait_send(b, "hello", 5, STRAIT_NOW));
    OK(strait_wait_set_wait(set, events, 4, &count, DEADLINE));
    CHECK(count == 1 && events[0].key == 5 && (events[0].events & STRAIT_READABLE) != 0);
    OK(strait_receiver_recv(receiver, message, STRAIT_NOW));
    OK(strait_sender_send(sender, "answer", 6, STRAIT_NOW));
    OK(strait_recv(b, message, DEADLINE));
    OK(strait_wait_set_modify_receiver(set, receiver, 6, STRAIT_ONE_SHOT));
    OK(strait_wait_set_remove_receiver(set, receiver));
    IS(STRAIT_NOT_IN_SET, strait_wait_set_remove_receiver(set, receiver));
    OK(strait_wait_set_add_sender(set, sender, 7, STRAIT_LEVEL));
    OK(strait_wait_set_wait(set, events, 4, &count, DEADLINE));
    CHECK(count == 1 && events[0].key == 7 && (events[0].events & STRAIT_WRITABLE) != 0);
    OK(strait_wait_set_modify_sender(set, sender, 8, STRAIT_LEVEL));
    /* A sender in a set has room for a small message, and waits for room for a large one. */
    while (strait_sender_send(sender, large, sizeof large, STRAIT_NOW) == STRAIT_OK) {
    }
    OK(strait_wait_set_await_room_sender(set, sender, 9));
    OK(strait_wait_set_wait(set, events, 4, &count, STRAIT_NOW));
    CHECK(count == 0);
    while (strait_recv(b, message, STRAIT_NOW) == STRAIT_OK) {
    }
    OK(strait_wait_set_wait(set, events, 4, &count, DEADLINE));
    CHECK(count == 1 && events[0].key == 9 && events[0].events == STRAIT_WRITABLE);
    OK(strait_sender_send(sender, large, sizeof large, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_wait_set_await_room_sender(set, NULL, 9));
    OK(strait_wait_set_remove_sender(set, sender));
    IS(STRAIT_NOT_IN_SET, strait_wait_set_await_room_sender(set, sender, 9));
    strait_sender_free(sender);
    strait_receiver_free(receiver);
    CHECK(strait_wait_set_len(set) == 0);
    strait_wait_set_free(set);
    strait_channel_close(b);
    strait_message_free(message);
}

int main(void) {
    int before;
    ends_in_use();
    before = descriptors();
    both_directions_at_once();
    joined_ends_travel();
    batches();
    memory_for_large_messages();
    ends_in_use();
    reserved_rooms();
    ended_reservations();
    in_a_wait_set();
    CHECK(descriptors() == before);
    return 0;
}
