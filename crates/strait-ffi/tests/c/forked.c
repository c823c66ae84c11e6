/* Tests of objects in the child of a fork, which does not have their memory: each function returns NULL, 0 or
   STRAIT_FORKED, and none aborts the child or writes to its standard error. */

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define DEADLINE strait_after(60 * SECOND)
#define LARGE (1 << 20)

static strait_channel *a, *b, *x, *y, *other;
static strait_message *sealed;
static strait_view *views[3];
static strait_mapping *writer, *kept;
static strait_reservation *rooms[4];
static strait_sender *sender;
static strait_receiver *receiver;

/* Sends a sealed message from `a`. */
static void send_sealed(void) {
    strait_reservation *room;
    OK(strait_reserve_sealed(a, LARGE, &room, DEADLINE));
    memset(strait_reservation_data(room), 's', LARGE);
    OK(strait_reservation_commit(room, LARGE, NULL, 0));
}

static void make_all(void) {
    static const char large[LARGE];
    strait_channel *one;
    strait_region *region;
    OK(strait_channel_pair(NULL, &a, &b));
    sealed = strait_message_new();
    send_sealed();
    OK(strait_recv(b, sealed, DEADLINE));
    CHECK(strait_message_len(sealed) == LARGE && *(const char *)strait_message_bytes(sealed) == 's');

    send_sealed();
    OK(strait_recv_in_place(b, &views[0], DEADLINE));
    CHECK(strait_view_is_sealed(views[0]));
    OK(strait_send(a, large, sizeof large, DEADLINE));
    OK(strait_recv_in_place(b, &views[1], DEADLINE));
    OK(strait_send(a, "small", 5, DEADLINE));
    OK(strait_recv_in_place(b, &views[2], DEADLINE));

    OK(strait_region_writer(100, &writer));
    OK(strait_region_writer(100, &kept));
    OK(strait_mapping_seal(kept, &region));
    strait_region_free(region);

    OK(strait_channel_pair(NULL, &x, &y));
    OK(strait_reserve(x, 100, &rooms[0], DEADLINE));
    OK(strait_reserve_sealed(y, 100, &rooms[1], DEADLINE));
    OK(strait_channel_pair(NULL, &one, &other));
    OK(strait_channel_split(one, &sender, &receiver));
    OK(strait_sender_reserve_sealed(sender, 100, &rooms[2], DEADLINE));
    OK(strait_reserve(other, LARGE, &rooms[3], DEADLINE));
}

/* Returns the exit code of the child. */
static int in_child(void) {
    char byte;
    size_t i;
    CHECK(strait_message_bytes(sealed) == NULL && strait_message_len(sealed) == 0);
    IS(STRAIT_FORKED, strait_forward(a, sealed, STRAIT_NOW));
    for (i = 0; i < 3; i++) {
        CHECK(strait_view_data(views[i]) == NULL && !strait_view_is_sealed(views[i]));
        CHECK(strait_view_len(views[i]) > 0);
        IS(STRAIT_FORKED, strait_view_read_at(views[i], &byte, 1, 0));
        IS(STRAIT_FORKED, strait_view_forward(views[i], a, STRAIT_NOW));
        strait_view_free(views[i]);
    }
    CHECK(strait_mapping_data(writer) == NULL && strait_mapping_len(writer) == 0);
    /* A private copy of sealed memory is there. */
    CHECK(strait_mapping_data(kept) != NULL && strait_mapping_len(kept) == 100);
    for (i = 0; i < 4; i++) {
        CHECK(strait_reservation_data(rooms[i]) == NULL);
        IS(STRAIT_FORKED, strait_reservation_commit(rooms[i], i == 3 ? LARGE : 100, NULL, 0));
    }
    strait_message_free(sealed);
    strait_mapping_free(writer);
    strait_mapping_free(kept);
    return 0;
}

int main(void) {
    int pipes[2], status;
    char text[200];
    ssize_t len;
    pid_t child;
    make_all();
    CHECK(pipe(pipes) == 0);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(dup2(pipes[1], 2) == 2 && close(pipes[0]) == 0 && close(pipes[1]) == 0);
        _exit(in_child());
    }
    CHECK(close(pipes[1]) == 0 && waitpid(child, &status, 0) == child);
    len = read(pipes[0], text, sizeof text);
    if (len != 0 || status != 0) {
        fprintf(stderr, "the child ended with %d, and wrote: %.*s\n", status, len > 0 ? (int)len : 0, text);
        return 1;
    }
    close(pipes[0]);
    /* The parent still has everything. */
    CHECK(strait_message_len(sealed) == LARGE && strait_view_data(views[0]) != NULL);
    for (size_t i = 0; i < 4; i++) {
        OK(strait_reservation_commit(rooms[i], i == 3 ? LARGE : 100, NULL, 0));
    }
    for (size_t i = 0; i < 3; i++) {
        strait_view_free(views[i]);
    }
    strait_message_free(sealed);
    strait_mapping_free(writer);
    strait_mapping_free(kept);
    strait_sender_free(sender);
    strait_receiver_free(receiver);
    strait_channel_close(a);
    strait_channel_close(b);
    strait_channel_close(x);
    strait_channel_close(y);
    strait_channel_close(other);
    return 0;
}
