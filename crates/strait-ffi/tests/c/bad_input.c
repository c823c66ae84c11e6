/* Tests that every function returns a status for bad arguments, and leaves nothing behind: no memory (the address
   sanitizer checks this), no descriptor (they are counted). The caller still owns what was not sent. */

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"

static strait_channel *a, *b;
static strait_message *message;

static void inheritance(void) {
    char value[STRAIT_INHERITANCE_LEN];
    strait_channel *out;
    int fd;
    /* The other results are written also if the place of a result is missing. */
    fd = 0;
    value[0] = 'x';
    IS(STRAIT_INVALID_ARGUMENT, strait_inheritance(NULL, -1, NULL, &fd, value));
    CHECK(fd == -1 && value[0] == 0);
    IS(STRAIT_INVALID_ARGUMENT, strait_inheritance(NULL, -1, &out, NULL, value));
    IS(STRAIT_INVALID_ARGUMENT, strait_inheritance(NULL, -1, &out, &fd, NULL));
    IS(STRAIT_INVALID_ARGUMENT, strait_inheritance(NULL, 2, &out, &fd, value));
    CHECK(out == NULL && fd == -1 && value[0] == 0);
    OK(strait_inheritance(NULL, 77, &out, &fd, value));
    CHECK(strncmp(value, "77:", 3) == 0 && strlen(value) < sizeof value && fcntl(fd, F_GETFD) == FD_CLOEXEC);
    OK(strait_send(out, "early", 5, STRAIT_NOW));
    CHECK(close(fd) == 0);
    strait_channel_close(out);
}

static void reasons(void) {
    strait_channel *x, *y;
    strait_message *received;
    uint32_t reason = 7;
    OK(strait_channel_pair(NULL, &x, &y));
    received = strait_message_new();
    CHECK(!strait_channel_close_reason(NULL, &reason) && !strait_channel_close_reason(x, NULL));
    strait_channel_close_with(NULL, 1);
    strait_channel_close_with(x, 4000000000u);
    CHECK(!strait_channel_close_reason(y, &reason) && reason == 0);
    IS(STRAIT_PEER_CLOSED, strait_recv(y, received, STRAIT_NOW));
    CHECK(strait_channel_close_reason(y, &reason) && reason == 4000000000u);
    strait_message_free(received);
    strait_channel_close(y);
}

static void null_pointers(void) {
    strait_channel *out;
    strait_reservation *room;
    strait_view *view;
    strait_peer peer;
    strait_counters counters;
    strait_usage usage;
    strait_handle handle = strait_handle_from_fd(0);
    strait_event event;
    strait_wait_set *set;
    strait_listener *listener;
    strait_invitation *invitation;
    size_t count;
    char byte;
    int fd;
    pid_t pid;

    IS(STRAIT_INVALID_ARGUMENT, strait_channel_pair(NULL, NULL, NULL));
    IS(STRAIT_INVALID_ARGUMENT, strait_channel_pair(NULL, &out, NULL));
    CHECK(out == NULL);
    IS(STRAIT_INVALID_ARGUMENT, strait_channel_pair(NULL, NULL, &out));
    IS(STRAIT_INVALID_ARGUMENT, strait_channel_over(0, NULL, NULL));
    IS(STRAIT_INVALID_ARGUMENT, strait_channel_rehome(NULL, STRAIT_NOW));
    CHECK(strait_channel_ref(NULL) == NULL);
    strait_channel_unref(NULL);
    strait_channel_close(NULL);
    CHECK(!strait_channel_is_readable(NULL) && !strait_channel_is_writable(NULL) && !strait_channel_is_peer_closed(NULL));

    IS(STRAIT_INVALID_ARGUMENT, strait_send(NULL, "x", 1, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_send(a, NULL, 1, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_sendv(a, NULL, 1, NULL, 0, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_sendv(a, NULL, 0, NULL, 1, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_sendv(NULL, NULL, 0, &handle, 1, STRAIT_NOW));
    CHECK(handle.kind == STRAIT_HANDLE_FD && handle.fd == 0);
    IS(STRAIT_INVALID_ARGUMENT, strait_send_many(a, NULL, 1, NULL, STRAIT_NOW));
    OK(strait_send_many(a, NULL, 0, NULL, STRAIT_NOW));

    IS(STRAIT_INVALID_ARGUMENT, strait_recv(NULL, message, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_recv(b, NULL, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_recv_into(b, NULL, 1, &count, NULL, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_recv_into(b, &byte, 1, NULL, NULL, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_recv_many(b, NULL, 1, &count, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_recv_many(b, &message, 1, NULL, STRAIT_NOW));
    {
        strait_message *two[2];
        two[0] = message;
        two[1] = NULL;
        IS(STRAIT_INVALID_ARGUMENT, strait_recv_many(b, two, 2, &count, STRAIT_NOW));
    }
    CHECK(strait_message_bytes(NULL) == NULL && strait_message_len(NULL) == 0);
    IS(STRAIT_INVALID_ARGUMENT, strait_message_take_handles(NULL, &handle, 1, &count));
    IS(STRAIT_INVALID_ARGUMENT, strait_message_take_handles(message, NULL, 1, &count));
    IS(STRAIT_INVALID_ARGUMENT, strait_message_take_handles(message, &handle, 1, NULL));
    {
        strait_handle one;
        struct strait_message_info info;
        bool ended;
        IS(STRAIT_INVALID_ARGUMENT, strait_message_take_handle(NULL, 0, &one));
        CHECK(one.kind == STRAIT_HANDLE_NONE);
        IS(STRAIT_INVALID_ARGUMENT, strait_message_take_handle(message, 0, NULL));
        IS(STRAIT_INVALID_ARGUMENT, strait_channel_peek(NULL, &info));
        IS(STRAIT_INVALID_ARGUMENT, strait_channel_peek(b, NULL));
        IS(STRAIT_INVALID_ARGUMENT, strait_channel_disconnect(NULL, &ended));
        IS(STRAIT_INVALID_ARGUMENT, strait_channel_disconnect(NULL, NULL));
    }
    strait_message_free(NULL);

    IS(STRAIT_INVALID_ARGUMENT, strait_reserve(NULL, 1, &room, STRAIT_NOW));
    CHECK(room == NULL);
    IS(STRAIT_INVALID_ARGUMENT, strait_reserve(a, 1, NULL, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_reserve_sealed(NULL, 1, &room, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_reservation_commit(NULL, 0, NULL, 0));
    CHECK(strait_reservation_data(NULL) == NULL);
    strait_reservation_cancel(NULL);
    IS(STRAIT_INVALID_ARGUMENT, strait_recv_in_place(NULL, &view, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_recv_in_place(b, NULL, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_view_read_at(NULL, &byte, 1, 0));
    IS(STRAIT_INVALID_ARGUMENT, strait_view_take_handles(NULL, &handle, 1, &count));
    IS(STRAIT_INVALID_ARGUMENT, strait_view_forward(NULL, a, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_forward(a, NULL, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_forward(NULL, message, STRAIT_NOW));
    CHECK(strait_view_data(NULL) == NULL && strait_view_len(NULL) == 0 && !strait_view_is_sealed(NULL));
    strait_view_free(NULL);

    IS(STRAIT_INVALID_ARGUMENT, strait_wait_set_new(NULL));
    IS(STRAIT_INVALID_ARGUMENT, strait_wait_set_add(NULL, a, 0, STRAIT_READABLE, STRAIT_LEVEL));
    OK(strait_wait_set_new(&set));
    IS(STRAIT_INVALID_ARGUMENT, strait_wait_set_add(set, NULL, 0, STRAIT_READABLE, STRAIT_LEVEL));
    IS(STRAIT_INVALID_ARGUMENT, strait_wait_set_add(set, a, 0, 0, STRAIT_LEVEL));
    IS(STRAIT_INVALID_ARGUMENT, strait_wait_set_add(set, a, 0, 8, STRAIT_LEVEL));
    IS(STRAIT_INVALID_ARGUMENT, strait_wait_set_add(set, a, 0, STRAIT_READABLE, 2));
    IS(STRAIT_INVALID_ARGUMENT, strait_wait_set_wait(set, NULL, 1, &count, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_wait_set_wait(set, &event, 0, &count, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_wait_set_wait(set, &event, 1, NULL, STRAIT_NOW));
    count = 7;
    IS(STRAIT_INVALID_ARGUMENT, strait_wait_set_wait(NULL, &event, 1, &count, STRAIT_NOW));
    CHECK(count == 0);
    IS(STRAIT_NOT_IN_SET, strait_wait_set_remove(set, a));
    IS(STRAIT_NOT_IN_SET, strait_wait_set_modify(set, a, 0, STRAIT_READABLE, STRAIT_LEVEL));
    IS(STRAIT_INVALID_ARGUMENT, strait_wait_set_add_fd(set, -1, 0, STRAIT_READABLE, STRAIT_LEVEL));
    IS(STRAIT_INVALID_ARGUMENT, strait_wait_set_add_fd(NULL, 0, 0, STRAIT_READABLE, STRAIT_LEVEL));
    IS(STRAIT_INVALID_ARGUMENT, strait_wait_set_add_fd(set, 0, 0, 0, STRAIT_LEVEL));
    IS(STRAIT_INVALID_ARGUMENT, strait_wait_set_modify_fd(set, 0, 0, STRAIT_READABLE, 2));
    IS(STRAIT_NOT_IN_SET, strait_wait_set_modify_fd(set, 0, 0, STRAIT_READABLE, STRAIT_LEVEL));
    IS(STRAIT_NOT_IN_SET, strait_wait_set_remove_fd(set, 0));
    IS(STRAIT_INVALID_ARGUMENT, strait_wait_set_add_listener(set, NULL, 0, STRAIT_LEVEL));
    IS(STRAIT_INVALID_ARGUMENT, strait_wait_set_modify_listener(set, NULL, 0, STRAIT_LEVEL));
    IS(STRAIT_INVALID_ARGUMENT, strait_wait_set_remove_listener(set, NULL));
    OK(strait_wait_set_add(set, a, 0, STRAIT_READABLE, STRAIT_LEVEL));
    IS(STRAIT_IN_SET, strait_wait_set_add(set, a, 0, STRAIT_READABLE, STRAIT_LEVEL));
    OK(strait_wait_set_wait(set, &event, SIZE_MAX, &count, STRAIT_NOW));
    CHECK(count == 0 && strait_wait_set_len(set) == 1);
    CHECK(strait_wait_set_fd(NULL) == -1 && strait_wait_set_len(NULL) == 0);
    strait_wait_set_free(set);
    strait_wait_set_free(NULL);

    IS(STRAIT_INVALID_ARGUMENT, strait_channel_peer(NULL, &peer));
    IS(STRAIT_INVALID_ARGUMENT, strait_channel_peer(a, NULL));
    IS(STRAIT_INVALID_ARGUMENT, strait_channel_peer_pidfd(NULL, &fd));
    IS(STRAIT_INVALID_ARGUMENT, strait_channel_counters(NULL, &counters));
    IS(STRAIT_INVALID_ARGUMENT, strait_channel_counters(a, NULL));
    IS(STRAIT_INVALID_ARGUMENT, strait_channel_peer_usage(NULL, STRAIT_MEMORY, &usage));
    IS(STRAIT_INVALID_ARGUMENT, strait_channel_peer_usage(a, 77, &usage));
    IS(STRAIT_WOULD_BLOCK, strait_channel_peer_usage(a, STRAIT_MEMORY, &usage));
    IS(STRAIT_INVALID_ARGUMENT, strait_set_limit(77, 1, 1));

    IS(STRAIT_INVALID_ARGUMENT, strait_spawn(NULL, NULL, NULL, NULL, &out, &pid));
    IS(STRAIT_INVALID_ARGUMENT, strait_spawn("/bin/true", NULL, NULL, NULL, NULL, &pid));
    IS(STRAIT_INVALID_ARGUMENT, strait_spawn("/bin/true", NULL, NULL, NULL, &out, NULL));
    IS(STRAIT_SYSTEM, strait_spawn("/nowhere/to/be/found", NULL, NULL, NULL, &out, &pid));
    {
        strait_error error;
        strait_last_error(&error);
        CHECK(error.status == STRAIT_SYSTEM && error.os_error == ENOENT);
    }
    inheritance();
    reasons();
    IS(STRAIT_INVALID_ARGUMENT, strait_from_parent(NULL, NULL));
    IS(STRAIT_NO_PARENT, strait_from_parent(NULL, &out));
    IS(STRAIT_INVALID_ARGUMENT, strait_listener_bind(NULL, NULL, &listener));
    IS(STRAIT_INVALID_ARGUMENT, strait_listener_bind("x", NULL, NULL));
    IS(STRAIT_BAD_NAME, strait_listener_bind("no/name", NULL, &listener));
    IS(STRAIT_BAD_NAME, strait_listener_bind("\xff\xfe", NULL, &listener));
    IS(STRAIT_NOT_ACTIVATED, strait_listener_activated(NULL, NULL, &listener));
    IS(STRAIT_INVALID_ARGUMENT, strait_listener_accept(NULL, &out, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_listener_invite(NULL, 1, &invitation));
    IS(STRAIT_INVALID_ARGUMENT, strait_invitation_accept(NULL, &out, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_invitation_tell(NULL, 1));
    IS(STRAIT_INVALID_ARGUMENT, strait_connect(NULL, NULL, &out, STRAIT_NOW));
    IS(STRAIT_NOBODY_THERE, strait_connect("nobody-is-here", NULL, &out, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_names(NULL, NULL, NULL));
    CHECK(strait_listener_fd(NULL) == -1 && strait_listener_path(NULL) == NULL);
    strait_listener_free(NULL);
    strait_invitation_free(NULL);
    strait_handle_close(NULL);
    CHECK(strait_handle_take_fd(NULL) == -1 && strait_handle_take_channel(NULL) == NULL);
    strait_last_error(NULL);
}

static void zero_lengths(void) {
    struct iovec parts[3];
    struct iovec three[3];
    strait_outgoing row[2];
    size_t len = 77, sent = 77;
    memset(parts, 0, sizeof parts);
    memset(row, 0, sizeof row);

    OK(strait_send(a, NULL, 0, STRAIT_NOW));
    OK(strait_sendv(a, NULL, 0, NULL, 0, STRAIT_NOW));
    OK(strait_sendv(a, parts, 3, NULL, 0, STRAIT_NOW));
    OK(strait_send_many(a, row, 2, &sent, STRAIT_NOW));
    CHECK(sent == 2);
    for (int i = 0; i < 5; i++) {
        OK(strait_recv_into(b, NULL, 0, &len, NULL, STRAIT_NOW));
        CHECK(len == 0);
    }
    /* The wrong part is among correct parts. */
    memcpy(three, parts, sizeof three);
    three[0].iov_base = (char[]){'x', 'y'};
    three[0].iov_len = 2;
    three[2].iov_base = (char[]){'z'};
    three[2].iov_len = 1;
    OK(strait_sendv(a, three, 3, NULL, 0, STRAIT_NOW));
    OK(strait_recv(b, message, STRAIT_NOW));
    CHECK(strait_message_len(message) == 3 && memcmp(strait_message_bytes(message), "xyz", 3) == 0);
    IS(STRAIT_WOULD_BLOCK, strait_recv(b, message, STRAIT_NOW));
    CHECK(strait_message_len(message) == 0 && strait_message_bytes(message) != NULL);
    OK(strait_recv_many(b, NULL, 0, &len, STRAIT_NOW));
}

static void absurd_counts(void) {
    struct iovec huge[2];
    strait_reservation *room;
    strait_view *view;
    strait_handle handle = strait_handle_from_fd(0);
    strait_outgoing out;
    char buffer[8];
    size_t len, sent;

    IS(STRAIT_INVALID_ARGUMENT, strait_send(a, buffer, SIZE_MAX, STRAIT_NOW));
    IS(STRAIT_MESSAGE_TOO_LARGE, strait_send(a, buffer, SIZE_MAX / 2, STRAIT_NOW));
    IS(STRAIT_MESSAGE_TOO_LARGE, strait_send(a, buffer, STRAIT_MAX_MESSAGE + 1, STRAIT_NOW));
    huge[0].iov_base = huge[1].iov_base = buffer;
    huge[0].iov_len = huge[1].iov_len = SIZE_MAX / 2;
    IS(STRAIT_MESSAGE_TOO_LARGE, strait_sendv(a, huge, 2, NULL, 0, STRAIT_NOW));
    huge[1].iov_len = SIZE_MAX;
    IS(STRAIT_INVALID_ARGUMENT, strait_sendv(a, huge, 2, NULL, 0, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_sendv(a, huge, SIZE_MAX, NULL, 0, STRAIT_NOW));
    IS(STRAIT_TOO_MANY_HANDLES, strait_sendv(a, NULL, 0, &handle, SIZE_MAX, STRAIT_NOW));
    memset(&out, 0, sizeof out);
    IS(STRAIT_INVALID_ARGUMENT, strait_send_many(a, &out, SIZE_MAX, &sent, STRAIT_NOW));
    CHECK(sent == 0);
    IS(STRAIT_MESSAGE_TOO_LARGE, strait_reserve(a, SIZE_MAX, &room, STRAIT_NOW));
    IS(STRAIT_MESSAGE_TOO_LARGE, strait_reserve_sealed(a, SIZE_MAX, &room, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_recv_many(b, &message, SIZE_MAX, &len, STRAIT_NOW));
    /* A capacity of SIZE_MAX is permitted. */
    OK(strait_send(a, "12345678", 8, STRAIT_NOW));
    IS(STRAIT_BUFFER_TOO_SMALL, strait_recv_into(b, buffer, 7, &len, NULL, STRAIT_NOW));
    CHECK(len == 8);
    OK(strait_recv_into(b, buffer, 8, &len, NULL, STRAIT_NOW));
    CHECK(len == 8 && memcmp(buffer, "12345678", 8) == 0);
    /* The length may lie in the buffer. */
    {
        size_t places[3];
        OK(strait_send(a, "12345678abcdefgh", 16, STRAIT_NOW));
        OK(strait_recv_into(b, places, sizeof places, &places[1], NULL, STRAIT_NOW));
        CHECK(places[1] == 16 && memcmp(places, "12345678", 8) == 0);
    }
    /* A message whose handles were partly taken is not forwarded. */
    {
        strait_handle two[2], got[2];
        strait_message *parts = strait_message_new();
        int fds[2];
        CHECK(pipe(fds) == 0);
        two[0] = strait_handle_from_fd(fds[0]);
        two[1] = strait_handle_from_fd(fds[1]);
        OK(strait_sendv(a, NULL, 0, two, 2, STRAIT_NOW));
        OK(strait_recv_into(b, buffer, sizeof buffer, &len, parts, STRAIT_NOW));
        IS(STRAIT_INVALID_ARGUMENT, strait_forward(b, parts, STRAIT_NOW));
        OK(strait_message_take_handles(parts, two, 2, &len));
        CHECK(len == 2);
        OK(strait_sendv(a, NULL, 0, two, 2, STRAIT_NOW));
        OK(strait_recv(b, parts, STRAIT_NOW));
        OK(strait_message_take_handles(parts, got, 1, &len));
        IS(STRAIT_INVALID_ARGUMENT, strait_forward(b, parts, STRAIT_NOW));
        strait_handle_close(&got[0]);
        strait_message_free(parts);
    }
    /* A commit of more bytes than were reserved, or of fewer for a sealed message, frees the reservation and sends
       nothing. */
    OK(strait_reserve(a, 4, &room, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_reservation_commit(room, 5, NULL, 0));
    OK(strait_reserve_sealed(a, 4, &room, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_reservation_commit(room, 3, NULL, 0));
    IS(STRAIT_WOULD_BLOCK, strait_recv(b, message, STRAIT_NOW));
    OK(strait_send(a, "12345678", 8, STRAIT_NOW));
    OK(strait_recv_in_place(b, &view, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_view_read_at(view, buffer, 5, 4));
    IS(STRAIT_INVALID_ARGUMENT, strait_view_read_at(view, buffer, 2, SIZE_MAX));
    OK(strait_view_read_at(view, NULL, 0, 8));
    OK(strait_view_read_at(view, buffer, 4, 4));
    CHECK(memcmp(buffer, "5678", 4) == 0);
    strait_view_free(view);
}

static void deadlines(void) {
    const strait_deadline passed[] = {-1, INT64_MIN, 1, strait_after(0), strait_after(-SECOND), strait_after(INT64_MIN)};
    size_t count;
    strait_event event;
    strait_wait_set *set;
    OK(strait_wait_set_new(&set));
    for (size_t i = 0; i < sizeof passed / sizeof *passed; i++) {
        IS(STRAIT_TIMED_OUT, strait_recv(b, message, passed[i]));
        OK(strait_wait_set_wait(set, &event, 1, &count, passed[i]));
        CHECK(count == 0);
        /* Even after its deadline a function does everything possible without waiting. */
        OK(strait_send(a, "now", 3, passed[i]));
        OK(strait_recv(b, message, passed[i]));
    }
    CHECK(strait_after(INT64_MAX) == STRAIT_NEVER);
    strait_wait_set_free(set);
}

static void options(void) {
    strait_options options;
    strait_listener_options listening;
    strait_connect_options connecting;
    strait_channel *x, *y;
    strait_listener *listener;
    memset(&options, 0, sizeof options);
    options.wait = 3;
    IS(STRAIT_INVALID_ARGUMENT, strait_channel_pair(&options, &x, &y));
    options.wait = STRAIT_WAIT_BLOCK;
    options.reserved[2] = 1;
    IS(STRAIT_INVALID_ARGUMENT, strait_channel_pair(&options, &x, &y));
    options.reserved[2] = 0;
    options.refuse_descriptors = 2;
    IS(STRAIT_INVALID_ARGUMENT, strait_channel_pair(&options, &x, &y));
    options.refuse_descriptors = 0;
    options.max_message = 3;
    options.max_handles = STRAIT_ZERO;
    options.ring = options.ring_max = options.queue_messages = 1;
    OK(strait_channel_pair(&options, &x, &y));
    IS(STRAIT_MESSAGE_TOO_LARGE, strait_send(x, "four", 4, STRAIT_NOW));
    {
        strait_error error;
        char text[8];
        strait_handle handle = strait_handle_from_fd(0);
        strait_last_error(&error);
        CHECK(error.asked == 4 && error.limit == 3);
        /* The text is cut off at the end of the buffer. */
        CHECK(strait_last_error_text(text, sizeof text) > sizeof text && strcmp(text, "message") == 0);
        CHECK(strait_last_error_text(NULL, 100) > 20);
        // The text of a failure to meet names the listener, in the terms of C.
        strait_channel *nobody;
        char why[400];
        const strait_connect_options waits = {.wait_for_listener = 2};
        IS(STRAIT_INVALID_ARGUMENT, strait_connect("no-such-service", &waits, &nobody, STRAIT_NOW));
        const strait_connect_options elsewhere = {.directory = "/nowhere"};
        IS(STRAIT_NOBODY_THERE, strait_connect("no-such-service", &elsewhere, &nobody, STRAIT_NOW));
        strait_last_error_text(why, sizeof why);
        CHECK(strstr(why, "connecting to \"no-such-service\" at /nowhere/no-such-service: no process") == why);
        IS(STRAIT_NO_PARENT, strait_from_parent(NULL, &nobody));
        strait_last_error_text(why, sizeof why);
        CHECK(strstr(why, "strait_spawn") != NULL && strstr(why, "taking the channel to the parent: ") == why);
        IS(STRAIT_TOO_MANY_HANDLES, strait_sendv(x, NULL, 0, &handle, 1, STRAIT_NOW));
        CHECK(handle.fd == 0);
    }
    strait_channel_close(x);
    strait_channel_close(y);
    memset(&listening, 0, sizeof listening);
    listening.reserved[0] = 1;
    IS(STRAIT_INVALID_ARGUMENT, strait_listener_bind("x", &listening, &listener));
    memset(&connecting, 0, sizeof connecting);
    connecting.has_server = 2;
    IS(STRAIT_INVALID_ARGUMENT, strait_connect("x", &connecting, &x, STRAIT_NOW));
    for (int status = -1; status < 40; status++) {
        CHECK(strait_status_text(status) != NULL);
    }
}

/* Unsent handles stay unchanged, for every position of the wrong handle. */
static void handles(void) {
    strait_channel *x, *y, *spare, *other;
    strait_handle given[3], got[4];
    size_t count;
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC), closed = open("/dev/null", O_RDONLY | O_CLOEXEC);
    OK(strait_channel_pair(NULL, &x, &y));
    OK(strait_channel_pair(NULL, &spare, &other));

    given[0] = strait_handle_from_fd(null);
    given[1] = strait_handle_from_channel(spare);
    close(closed);
    for (int wrong = 0; wrong < 9; wrong++) {
        strait_status status = STRAIT_BAD_HANDLE;
        switch (wrong) {
        case 0: given[2] = strait_handle_from_fd(null); break;
        case 1: given[2] = strait_handle_from_channel(spare); break;
        case 2: given[2] = strait_handle_from_fd(-1); break;
        case 3: given[2] = strait_handle_from_channel(NULL); break;
        case 4: given[2].kind = 77; break;
        case 5: given[2].kind = STRAIT_HANDLE_NONE; break;
        case 6: given[2] = strait_handle_from_fd(closed); break;
        case 7: given[2] = strait_handle_from_channel(x); status = STRAIT_OWN_CHANNEL; break;
        default: given[2] = strait_handle_from_channel(y); status = STRAIT_OWN_CHANNEL; break;
        }
        IS(status, strait_sendv(x, NULL, 0, given, 3, STRAIT_NOW));
        CHECK(given[0].kind == STRAIT_HANDLE_FD && given[0].fd == null && fcntl(null, F_GETFD) >= 0);
        CHECK(given[1].kind == STRAIT_HANDLE_CHANNEL && given[1].object == spare);
        OK(strait_send(spare, "still here", 10, STRAIT_NOW));
        OK(strait_recv(other, message, STRAIT_NOW));
        /* The other end can be used as before, too. */
        OK(strait_send(y, "x", 1, STRAIT_NOW));
        OK(strait_recv(x, message, STRAIT_NOW));
    }

    /* An end in use is not sent. */
    {
        strait_view *view;
        strait_reservation *room;
        OK(strait_send(other, "held", 4, STRAIT_NOW));
        OK(strait_recv_in_place(spare, &view, STRAIT_NOW));
        IS(STRAIT_IN_USE, strait_sendv(x, NULL, 0, given, 2, STRAIT_NOW));
        strait_view_free(view);
        OK(strait_reserve(spare, 4, &room, STRAIT_NOW));
        IS(STRAIT_IN_USE, strait_sendv(x, NULL, 0, given, 2, STRAIT_NOW));
        strait_reservation_cancel(room);
    }

    /* An end cannot be sent over a channel whose other end is closed, but still over another channel. */
    {
        strait_channel *dead, *gone;
        strait_reservation *room;
        OK(strait_channel_pair(NULL, &dead, &gone));
        strait_channel_close(gone);
        IS(STRAIT_PEER_CLOSED, strait_sendv(dead, NULL, 0, given, 2, STRAIT_NOW));
        CHECK(given[0].fd == null && given[1].object == spare);
        IS(STRAIT_PEER_CLOSED, strait_recv(dead, message, STRAIT_NEVER));
        strait_channel_close(dead);
        OK(strait_reserve(x, 4, &room, STRAIT_NOW));
        memcpy(strait_reservation_data(room), "both", 4);
        OK(strait_reservation_commit(room, 4, given, 2));
        CHECK(given[0].kind == STRAIT_HANDLE_NONE && given[1].kind == STRAIT_HANDLE_NONE);
    }
    OK(strait_recv(y, message, STRAIT_NOW));
    OK(strait_message_take_handles(message, got, 1, &count));
    CHECK(count == 1 && got[0].kind == STRAIT_HANDLE_FD && strait_handle_take_channel(&got[0]) == NULL);
    OK(strait_message_take_handles(message, got + 1, 3, &count));
    CHECK(count == 1 && got[1].kind == STRAIT_HANDLE_CHANNEL && strait_handle_take_fd(&got[1]) == -1);
    OK(strait_message_take_handles(message, got + 2, 2, &count));
    CHECK(count == 0);
    strait_handle_close(&got[0]);
    strait_handle_close(&got[0]);
    spare = strait_handle_take_channel(&got[1]);
    OK(strait_send(other, "moved", 5, STRAIT_NOW));
    OK(strait_recv(spare, message, STRAIT_NOW));
    strait_channel_close(spare);
    strait_channel_close(other);

    /* A freed message closes the handles still inside. */
    given[0] = strait_handle_from_fd(open("/dev/null", O_RDONLY | O_CLOEXEC));
    OK(strait_sendv(x, NULL, 0, given, 1, STRAIT_NOW));
    {
        size_t len;
        OK(strait_recv_into(y, NULL, 0, &len, NULL, STRAIT_NOW));
    }
    strait_channel_close(x);
    strait_channel_close(y);
}

/* A batch reports how many messages were sent before it failed. */
static void rows(void) {
    strait_channel *x, *y;
    struct iovec part, wrong;
    strait_outgoing row[4];
    strait_message *some[4];
    strait_handle handle;
    size_t sent, received;
    OK(strait_channel_pair(NULL, &x, &y));
    part.iov_base = (char[]){'x'};
    part.iov_len = 1;
    wrong.iov_base = NULL;
    wrong.iov_len = 1;
    memset(row, 0, sizeof row);
    for (int i = 0; i < 4; i++) {
        row[i].parts = i == 3 ? &wrong : &part;
        row[i].part_count = 1;
        some[i] = strait_message_new();
    }
    handle = strait_handle_from_fd(open("/dev/null", O_RDONLY | O_CLOEXEC));
    row[1].handles = &handle;
    row[1].handle_count = 1;
    IS(STRAIT_INVALID_ARGUMENT, strait_send_many(x, row, 4, &sent, STRAIT_NOW));
    CHECK(sent == 3 && handle.kind == STRAIT_HANDLE_NONE);
    OK(strait_recv_many(y, some, 4, &received, STRAIT_NOW));
    CHECK(received == 3 && strait_message_len(some[2]) == 1 && strait_message_len(some[3]) == 0);
    IS(STRAIT_WOULD_BLOCK, strait_recv_many(y, some, 4, &received, STRAIT_NOW));
    CHECK(received == 0);
    for (int i = 0; i < 4; i++) {
        strait_message_free(some[i]);
    }
    strait_channel_close(x);
    strait_channel_close(y);
}

static void sandboxes(void) {
    int64_t numbers[2] = {-1, -1};
    CHECK(strait_system_calls(STRAIT_PHASE_RUNNING, NULL, 0) > 30 && strait_system_calls(STRAIT_PHASE_DISPENSABLE, NULL, 9) > 3);
    CHECK(strait_system_calls(STRAIT_PHASE_CONNECTING, numbers, 1) > 5 && numbers[0] >= 0 && numbers[1] == -1);
    CHECK(strait_system_calls(STRAIT_PHASE_WITH_REGIONS, numbers, 2) > 0 && strait_system_calls(4, numbers, 2) == 0);
}

static void regions(void) {
    strait_region *region, *reader, *sealed;
    void *address;
    strait_mapping *mapping;
    strait_access access;
    strait_handle handle;
    char buffer[4];
    size_t count;
    int fd;
    IS(STRAIT_INVALID_ARGUMENT, strait_region_new(1, NULL));
    IS(STRAIT_SYSTEM, strait_region_new(SIZE_MAX, &region));
    CHECK(region == NULL);
    {
        strait_region_options given;
        memset(&given, 0, sizeof given);
        given.huge_pages = 2;
        IS(STRAIT_INVALID_ARGUMENT, strait_region_create(&given, 1, &region));
        IS(STRAIT_INVALID_ARGUMENT, strait_region_create_writer(&given, 1, &mapping));
        given.huge_pages = 1;
        given.reserved[2] = 1;
        IS(STRAIT_INVALID_ARGUMENT, strait_region_create(&given, 1, &region));
        given.reserved[2] = 0;
        given.name = "\xff";
        IS(STRAIT_INVALID_ARGUMENT, strait_region_create(&given, 1, &region));
        CHECK(region == NULL && mapping == NULL);
        given.name = "frames";
        IS(STRAIT_INVALID_ARGUMENT, strait_region_create(&given, 1, NULL));
        IS(STRAIT_INVALID_ARGUMENT, strait_region_create_writer(&given, 1, NULL));
        OK(strait_region_create(&given, 1, &region));
        strait_region_free(region);
        OK(strait_region_create(NULL, 1, &region));
        strait_region_free(region);
        OK(strait_region_create_writer(NULL, 1, &mapping));
        strait_mapping_free(mapping);
    }
    IS(STRAIT_INVALID_ARGUMENT, strait_region_sealed(NULL, 1, &region));
    IS(STRAIT_NOT_A_REGION, strait_region_from_fd(-1, &region));
    fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    IS(STRAIT_NOT_A_REGION, strait_region_from_fd(fd, &region));
    CHECK(close(fd) == 0);
    IS(STRAIT_INVALID_ARGUMENT, strait_region_to_fd(NULL, &fd));
    IS(STRAIT_INVALID_ARGUMENT, strait_region_seal(NULL));
    IS(STRAIT_INVALID_ARGUMENT, strait_region_admit_no_writer(NULL));
    IS(STRAIT_INVALID_ARGUMENT, strait_region_access(NULL, &access));
    IS(STRAIT_INVALID_ARGUMENT, strait_region_reader(NULL, &reader));
    IS(STRAIT_INVALID_ARGUMENT, strait_region_map(NULL, STRAIT_MAP_READ, 0, 0, &mapping));
    CHECK(strait_region_len(NULL) == 0 && strait_region_duplicate(NULL) == NULL && strait_mapping_data(NULL) == NULL);
    CHECK(strait_mapping_len(NULL) == 0 && strait_handle_take_region(NULL) == NULL);
    strait_region_free(NULL);
    strait_mapping_free(NULL);

    OK(strait_region_new(8, &region));
    IS(STRAIT_INVALID_ARGUMENT, strait_region_map(region, 4, 0, 8, &mapping));
    IS(STRAIT_OUT_OF_RANGE, strait_region_map(region, STRAIT_MAP_READ, SIZE_MAX, 2, &mapping));
    IS(STRAIT_OUT_OF_RANGE, strait_region_map(region, STRAIT_MAP_READ, 4, 5, &mapping));
    {
        // The text of a failure of a region names the bytes and the size.
        char why[400];
        strait_last_error_text(why, sizeof why);
        CHECK(strstr(why, "mapping bytes 4..9 of a region of 8 bytes: out of range") == why);
        IS(STRAIT_NOT_SEALED, strait_region_map(region, STRAIT_MAP_SEALED, 1, 2, &mapping));
        strait_last_error_text(why, sizeof why);
        CHECK(strstr(why, "mapping bytes 1..3 of a region of 8 bytes: the region is not sealed") == why);
        CHECK(strstr(why, "STRAIT_MAP_READ") != NULL);
    }
    IS(STRAIT_OUT_OF_RANGE, strait_region_map(region, STRAIT_MAP_WRITE, 8, 1, &mapping));
    IS(STRAIT_NOT_SEALED, strait_region_map(region, STRAIT_MAP_SEALED, 0, 8, &mapping));
    IS(STRAIT_OUT_OF_RANGE, strait_region_read_at(region, buffer, 4, 5));
    IS(STRAIT_OUT_OF_RANGE, strait_region_write_at(region, "four", 4, 5));
    OK(strait_region_map(region, STRAIT_MAP_WRITE, 0, 8, &mapping));
    CHECK(strait_mapping_len(mapping) == 8);
    memcpy(strait_mapping_data(mapping), "mapped!", 8);
    OK(strait_region_reader(region, &reader));
    IS(STRAIT_READ_ONLY, strait_region_write_at(reader, "x", 1, 0));
    IS(STRAIT_STILL_MAPPED, strait_region_seal(region));
    strait_mapping_free(mapping);
    strait_region_free(reader);
    OK(strait_region_seal(region));
    OK(strait_region_access(region, &access));
    CHECK(access == STRAIT_SEALED_REGION);

    /* An unsent, a sent, and a received handle. */
    handle = strait_handle_from_region(strait_region_duplicate(region));
    IS(STRAIT_INVALID_ARGUMENT, strait_sendv(NULL, NULL, 0, &handle, 1, STRAIT_NOW));
    CHECK(handle.kind == STRAIT_HANDLE_REGION && strait_region_len(handle.object) == 8);
    OK(strait_sendv(a, NULL, 0, &handle, 1, STRAIT_NOW));
    CHECK(handle.kind == STRAIT_HANDLE_NONE);
    OK(strait_recv(b, message, STRAIT_NOW));
    OK(strait_message_take_handles(message, &handle, 1, &count));
    CHECK(count == 1 && strait_handle_take_fd(&handle) == -1);
    sealed = strait_handle_take_region(&handle);
    OK(strait_region_map(sealed, STRAIT_MAP_SEALED, 0, 8, &mapping));
    CHECK(strcmp(strait_mapping_data(mapping), "mapped!") == 0);
    strait_mapping_free(mapping);
    OK(strait_region_map(sealed, STRAIT_MAP_COPY, 0, 8, &mapping));
    *(char *)strait_mapping_data(mapping) = 'M';
    OK(strait_region_read_at(region, buffer, 4, 0));
    CHECK(memcmp(buffer, "mapp", 4) == 0);
    strait_mapping_free(mapping);
    OK(strait_region_to_fd(sealed, &fd));
    strait_region_free(sealed);
    OK(strait_region_from_fd(fd, &sealed));
    handle = strait_handle_from_region(sealed);
    strait_handle_close(&handle);
    strait_region_free(region);

    /* Memory sealed in place. */
    IS(STRAIT_INVALID_ARGUMENT, strait_region_writer(1, NULL));
    IS(STRAIT_SYSTEM, strait_region_writer(SIZE_MAX, &mapping));
    CHECK(mapping == NULL);
    IS(STRAIT_INVALID_ARGUMENT, strait_mapping_seal(NULL, &region));
    OK(strait_region_writer(7, &mapping));
    CHECK(strait_mapping_len(mapping) == 7);
    memcpy(strait_mapping_data(mapping), "filled", 7);
    address = strait_mapping_data(mapping);
    IS(STRAIT_INVALID_ARGUMENT, strait_mapping_seal(mapping, NULL));
    OK(strait_mapping_seal(mapping, &region));
    CHECK(strait_mapping_data(mapping) == address && strait_mapping_len(mapping) == 7);
    *(char *)address = 'F';
    CHECK(strcmp(address, "Filled") == 0);
    OK(strait_region_read_at(region, buffer, 4, 0));
    CHECK(memcmp(buffer, "fill", 4) == 0);
    IS(STRAIT_INVALID_ARGUMENT, strait_mapping_seal(mapping, &sealed));
    CHECK(sealed == NULL);
    strait_mapping_free(mapping);
    strait_region_free(region);

    OK(strait_region_sealed("sealed", 6, &region));
    IS(STRAIT_READ_ONLY, strait_region_write_at(region, "x", 1, 0));
    strait_region_free(region);
}

static void sockets(void) {
    int pair[2], stream[2];
    strait_channel *x, *y;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, stream) == 0 && socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
    IS(STRAIT_NOT_A_SOCKET, strait_channel_over(stream[0], NULL, &x));
    IS(STRAIT_NOT_A_SOCKET, strait_channel_over(-1, NULL, &x));
    IS(STRAIT_NOT_A_SOCKET, strait_channel_over(INT_MAX, NULL, &x));
    /* The caller still owns the socket. */
    CHECK(close(stream[0]) == 0 && close(stream[1]) == 0);
    OK(strait_channel_over(pair[0], NULL, &x));
    CHECK(fcntl(pair[0], F_GETFD) == -1);
    OK(strait_channel_over(pair[1], NULL, &y));
    OK(strait_send(x, "over", 4, STRAIT_NOW));
    OK(strait_recv(y, message, strait_after(10 * SECOND)));
    strait_channel_close(x);
    strait_channel_close(y);
}

/* Further bad arguments: null pointers in functions that were added later, offsets whose sums overflow, empty
   handles, and parts of messages that overlap. */
static void the_rest(void) {
    char text[] = "abcdef";
    struct iovec parts[4];
    strait_wait_set *set;
    strait_region *region;
    strait_channel *out;
    strait_invitation *invitation = NULL;
    strait_handle nothing[4];
    char byte[2];
    int fd;
    pid_t pid;
    OK(strait_wait_set_new(&set));
    OK(strait_region_new(4096, &region));
    IS(STRAIT_INVALID_ARGUMENT, strait_wait_set_modify(NULL, a, 0, STRAIT_READABLE, STRAIT_LEVEL));
    IS(STRAIT_INVALID_ARGUMENT, strait_wait_set_modify(set, NULL, 0, STRAIT_READABLE, STRAIT_LEVEL));
    IS(STRAIT_INVALID_ARGUMENT, strait_wait_set_remove(NULL, a));
    IS(STRAIT_INVALID_ARGUMENT, strait_wait_set_remove(set, NULL));
    IS(STRAIT_NOT_IN_SET, strait_wait_set_modify(set, a, 0, STRAIT_READABLE, STRAIT_LEVEL));
    IS(STRAIT_INVALID_ARGUMENT, strait_wait_set_await_room(NULL, a, 0));
    IS(STRAIT_INVALID_ARGUMENT, strait_wait_set_await_room(set, NULL, 0));
    IS(STRAIT_NOT_IN_SET, strait_wait_set_await_room(set, a, 0));
    CHECK(!strait_wait_set_has_more(NULL) && !strait_wait_set_has_more(set));
    IS(STRAIT_INVALID_ARGUMENT, strait_wait_set_modify_consumer(set, NULL, 0, STRAIT_LEVEL));
    IS(STRAIT_INVALID_ARGUMENT, strait_wait_set_remove_producer(set, NULL));
    IS(STRAIT_INVALID_ARGUMENT, strait_region_read_at(NULL, byte, 1, 0));
    IS(STRAIT_INVALID_ARGUMENT, strait_region_read_at(region, NULL, 1, 0));
    IS(STRAIT_INVALID_ARGUMENT, strait_region_write_at(NULL, byte, 1, 0));
    IS(STRAIT_INVALID_ARGUMENT, strait_region_write_at(region, NULL, 1, 0));
    for (size_t far = SIZE_MAX - 1; far >= 4095; far = far == 4095 ? 0 : far / 2 < 4095 ? 4095 : far / 2) {
        IS(STRAIT_OUT_OF_RANGE, strait_region_read_at(region, byte, 2, far));
        IS(STRAIT_OUT_OF_RANGE, strait_region_write_at(region, byte, 2, far));
    }
    IS(STRAIT_INVALID_ARGUMENT, strait_invited(NULL, NULL, STRAIT_NOW));
    IS(STRAIT_INVALID_ARGUMENT, strait_invitation_spawn(invitation, "true", NULL, NULL, &pid, &fd));
    CHECK(strait_set_limit((strait_resource)1000, 1, 1) == STRAIT_INVALID_ARGUMENT);
    OK(strait_set_limit(STRAIT_REGIONS, 1ull << 36, 1ull << 38));
    strait_on_bad_peer(NULL, NULL);

    nothing[0] = strait_handle_from_channel(NULL);
    nothing[1] = strait_handle_from_region(NULL);
    nothing[2] = strait_handle_from_producer(NULL);
    nothing[3] = strait_handle_from_consumer(NULL);
    for (int i = 0; i < 4; i++) {
        IS(STRAIT_BAD_HANDLE, strait_sendv(a, NULL, 0, &nothing[i], 1, STRAIT_NOW));
        strait_handle_close(&nothing[i]);
        CHECK(nothing[i].kind == STRAIT_HANDLE_NONE);
    }

    /* The same part twice, one part inside another, and one part that begins at the end of another. */
    for (int i = 0; i < 4; i++) {
        parts[i].iov_base = text + (i == 2 ? 2 : 0);
        parts[i].iov_len = i == 2 ? 4 : i == 3 ? 2 : 6;
    }
    OK(strait_sendv(a, parts, 4, NULL, 0, STRAIT_NOW));
    OK(strait_recv(b, message, STRAIT_NOW));
    CHECK(strait_message_len(message) == 18 && memcmp(strait_message_bytes(message), "abcdefabcdefcdefab", 18) == 0);
    IS(STRAIT_WOULD_BLOCK, strait_recv(b, message, STRAIT_NOW));
    CHECK(strait_channel_pair(NULL, &out, NULL) == STRAIT_INVALID_ARGUMENT && out == NULL);
    strait_region_free(region);
    strait_wait_set_free(set);
}

/* Sends a message of 4 bytes with both ends of a pipe; looks at the message, and receives the bytes. */
static void receive_two(size_t buffered) {
    struct strait_message_info info;
    struct iovec part;
    strait_handle two[2];
    char buffer[8], text[] = "four";
    size_t len;
    int fds[2];
    CHECK(pipe(fds) == 0);
    two[0] = strait_handle_from_fd(fds[0]);
    two[1] = strait_handle_from_fd(fds[1]);
    part.iov_base = text;
    part.iov_len = 4;
    IS(STRAIT_WOULD_BLOCK, strait_channel_peek(b, &info));
    OK(strait_sendv(a, &part, 1, two, 2, STRAIT_NOW));
    for (int look = 0; look < 2; look++) {
        OK(strait_channel_peek(b, &info));
        CHECK(info.len == 4 && info.handles == 2);
    }
    if (buffered) {
        OK(strait_recv_into(b, buffer, sizeof buffer, &len, message, STRAIT_NOW));
    } else {
        OK(strait_recv(b, message, STRAIT_NOW));
    }
}

/* Single handles are taken by their indices, in any order, also together with rows of handles. */
static void single_handles(void) {
    strait_handle one, other;
    size_t count;
    char byte = 0;
    for (size_t buffered = 0; buffered < 2; buffered++) {
        /* The writing end was sent second, and is taken first. */
        receive_two(buffered);
        OK(strait_message_take_handle(message, 2, &one));
        CHECK(one.kind == STRAIT_HANDLE_NONE);
        OK(strait_message_take_handle(message, SIZE_MAX, &one));
        CHECK(one.kind == STRAIT_HANDLE_NONE);
        OK(strait_message_take_handle(message, 1, &one));
        CHECK(one.kind == STRAIT_HANDLE_FD && write(one.fd, "x", 1) == 1);
        OK(strait_message_take_handles(message, &other, 1, &count));
        CHECK(count == 1 && read(other.fd, &byte, 1) == 1 && byte == 'x');
        strait_handle_close(&one);
        strait_handle_close(&other);
        OK(strait_message_take_handle(message, 0, &one));
        CHECK(one.kind == STRAIT_HANDLE_NONE);
        /* The first handle is taken in a row, and the second by its index. */
        receive_two(buffered);
        OK(strait_message_take_handles(message, &other, 1, &count));
        OK(strait_message_take_handle(message, 1, &one));
        CHECK(count == 1 && one.kind == STRAIT_HANDLE_NONE);
        OK(strait_message_take_handle(message, 0, &one));
        CHECK(one.kind == STRAIT_HANDLE_FD && write(one.fd, "y", 1) == 1 && read(other.fd, &byte, 1) == 1 && byte == 'y');
        strait_handle_close(&one);
        strait_handle_close(&other);
        /* The first handle is taken, and the second is closed with the rest of the message. */
        receive_two(buffered);
        OK(strait_message_take_handle(message, 0, &one));
        CHECK(one.kind == STRAIT_HANDLE_FD);
        strait_message_clear(message);
        CHECK(strait_message_len(message) == 0 && read(one.fd, &byte, 1) == 0);
        strait_handle_close(&one);
        OK(strait_message_take_handle(message, 0, &one));
        CHECK(one.kind == STRAIT_HANDLE_NONE);
    }
    strait_message_clear(NULL);
}

/* The wait set tells when a message has room that did not fit, and not as long as there is room for others only. */
static void rooms(void) {
    static char large[60 << 10];
    strait_wait_set *set;
    strait_event event;
    size_t count;
    OK(strait_wait_set_new(&set));
    OK(strait_wait_set_add(set, a, 1, STRAIT_READABLE, STRAIT_LEVEL));
    while (strait_send(a, large, sizeof large, STRAIT_NOW) == STRAIT_OK) {
    }
    OK(strait_wait_set_await_room(set, a, 2));
    CHECK(strait_channel_is_writable(a));
    OK(strait_wait_set_wait(set, &event, 1, &count, STRAIT_NOW));
    CHECK(count == 0);
    while (strait_recv(b, message, STRAIT_NOW) == STRAIT_OK) {
    }
    OK(strait_wait_set_wait(set, &event, 1, &count, strait_after(60 * SECOND)));
    CHECK(count == 1 && event.key == 2 && event.events == STRAIT_WRITABLE);
    OK(strait_wait_set_wait(set, &event, 1, &count, STRAIT_NOW));
    CHECK(count == 0);
    OK(strait_wait_set_remove(set, a));
    strait_wait_set_free(set);
}

/* A link is ended; both ends first receive everything sent before. Within one process there is no link to end. */
static void disconnecting(void) {
    strait_channel *x, *y;
    bool ended = true;
    int pair[2];
    OK(strait_channel_disconnect(a, &ended));
    CHECK(!ended);
    OK(strait_send(a, "still", 5, STRAIT_NOW));
    OK(strait_recv(b, message, STRAIT_NOW));
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
    OK(strait_channel_over(pair[0], NULL, &x));
    OK(strait_channel_over(pair[1], NULL, &y));
    OK(strait_send(x, "last", 4, strait_after(10 * SECOND)));
    OK(strait_send(y, "first", 5, strait_after(10 * SECOND)));
    OK(strait_recv(x, message, strait_after(10 * SECOND)));
    OK(strait_channel_disconnect(x, &ended));
    CHECK(ended);
    OK(strait_recv(y, message, strait_after(10 * SECOND)));
    CHECK(strait_message_len(message) == 4);
    IS(STRAIT_PEER_CLOSED, strait_recv(y, message, strait_after(10 * SECOND)));
    IS(STRAIT_PEER_CLOSED, strait_send(x, "no", 2, strait_after(10 * SECOND)));
    OK(strait_channel_disconnect(x, &ended));
    CHECK(!ended);
    strait_channel_close(x);
    strait_channel_close(y);
}

/* The state of an end shows what is queued, and what has come and gone. */
static void states(void) {
    strait_channel *x, *y;
    strait_channel_state state;
    OK(strait_channel_pair(NULL, &x, &y));
    OK(strait_channel_status(x, &state));
    CHECK(state.messages == 0 && state.bytes == 0 && state.arrived == 0 && state.has_room == 1 && state.peer_closed == 0);
    OK(strait_send(y, "12345", 5, STRAIT_NOW));
    OK(strait_send(y, "678", 3, STRAIT_NOW));
    OK(strait_recv(x, message, STRAIT_NOW));
    OK(strait_channel_status(x, &state));
    CHECK(state.messages == 1 && state.bytes == 3 && state.arrived == 2);
    strait_channel_close(y);
    OK(strait_channel_status(x, &state));
    CHECK(state.messages == 1 && state.peer_closed == 1);
    strait_channel_close(x);
    IS(STRAIT_INVALID_ARGUMENT, strait_channel_status(NULL, &state));
    IS(STRAIT_INVALID_ARGUMENT, strait_channel_status(a, NULL));
}

/* A report ends the channel, and the link if there is one; the text of later failures has the reason. */
static void reports(void) {
    strait_channel *x, *y;
    strait_reported reported = 77;
    char text[300], reason[32];
    int pair[2];
    IS(STRAIT_INVALID_ARGUMENT, strait_channel_report_bad(NULL, "no", &reported));
    IS(STRAIT_INVALID_ARGUMENT, strait_channel_report_bad(a, NULL, &reported));
    IS(STRAIT_INVALID_ARGUMENT, strait_channel_report_bad(a, "\xff", &reported));
    IS(STRAIT_INVALID_ARGUMENT, strait_message_report_bad(NULL, "no", &reported));
    CHECK(reported == 77);

    OK(strait_channel_pair(NULL, &x, &y));
    OK(strait_send(y, "nonsense", 8, STRAIT_NOW));
    OK(strait_recv(x, message, STRAIT_NOW));
    OK(strait_message_report_bad(message, "a request without sense", &reported));
    CHECK(reported == STRAIT_REPORTED_WITHIN);
    /* The library keeps a copy of the reason. */
    strcpy(reason, "a request without sense");
    OK(strait_channel_report_bad(x, reason, NULL));
    memset(reason, 'x', sizeof reason - 1);
    IS(STRAIT_BAD_PEER, strait_recv(x, message, STRAIT_NOW));
    strait_last_error_text(text, sizeof text);
    CHECK(strstr(text, "a request without sense") != NULL);
    strait_channel_close(x);
    strait_channel_close(y);

    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
    OK(strait_channel_over(pair[0], NULL, &x));
    OK(strait_channel_over(pair[1], NULL, &y));
    OK(strait_send(x, "hello", 5, strait_after(10 * SECOND)));
    OK(strait_send(y, "nonsense", 8, strait_after(10 * SECOND)));
    OK(strait_recv(x, message, strait_after(10 * SECOND)));
    OK(strait_message_report_bad(message, "a request without sense", &reported));
    CHECK(reported == STRAIT_REPORTED_CLOSED);
    IS(STRAIT_BAD_PEER, strait_recv(x, message, strait_after(10 * SECOND)));
    OK(strait_recv(y, message, strait_after(10 * SECOND)));
    IS(STRAIT_PEER_CLOSED, strait_recv(y, message, strait_after(10 * SECOND)));
    OK(strait_channel_report_bad(x, "again", &reported));
    CHECK(reported == STRAIT_REPORTED_GONE);
    strait_channel_close(x);
    strait_channel_close(y);
}

int main(void) {
    int before;
    message = strait_message_new();
    OK(strait_channel_pair(NULL, &a, &b));
    /* The first round opens descriptors kept by the library. */
    before = 0;
    for (int round = 0; round < 3; round++) {
        null_pointers();
        zero_lengths();
        absurd_counts();
        deadlines();
        options();
        handles();
        rows();
        sandboxes();
    regions();
        sockets();
        single_handles();
        rooms();
        states();
        the_rest();
        if (round > 0) {
            CHECK(descriptors() == before);
        }
        before = descriptors();
    }
    disconnecting();
    reports();
    strait_message_free(message);
    strait_channel_close(a);
    strait_channel_close(b);
    return 0;
}
