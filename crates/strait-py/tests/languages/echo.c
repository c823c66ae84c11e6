/* A program that echoes each message of its parent, with the handles.

   echo                      echoes the messages itself
   echo PROGRAM ARGUMENTS    starts PROGRAM, and echoes by way of PROGRAM */

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <strait/strait.h>

#define LIMIT strait_after(60000000000ll)

static void must(strait_status status, const char *what) {
    char text[256];
    if (status != STRAIT_OK) {
        strait_last_error_text(text, sizeof text);
        fprintf(stderr, "%s: %s\n", what, text);
        exit(1);
    }
}

/* Sends the contents of `message` over a channel. */
static void pass_on(strait_message *message, strait_channel *channel) {
    strait_handle handles[STRAIT_MAX_HANDLES];
    struct iovec part = {(void *)strait_message_bytes(message), strait_message_len(message)};
    size_t count;
    must(strait_message_take_handles(message, handles, STRAIT_MAX_HANDLES, &count), "taking the handles");
    must(strait_sendv(channel, &part, 1, handles, count, LIMIT), "sending");
}

int main(int argc, char **argv) {
    strait_channel *parent, *child = NULL;
    strait_message *message = strait_message_new();
    strait_status status;
    pid_t pid = 0;
    int ended = 0;

    must(strait_from_parent(NULL, &parent), "the channel to the parent");
    if (argc > 1) {
        must(strait_spawn(argv[1], (const char *const *)argv + 1, NULL, NULL, &child, &pid), "starting the other program");
    }
    while ((status = strait_recv(parent, message, STRAIT_NEVER)) == STRAIT_OK) {
        if (child) {
            pass_on(message, child);
            must(strait_recv(child, message, LIMIT), "receiving from the other program");
        }
        pass_on(message, parent);
    }
    strait_message_free(message);
    strait_channel_close(parent);
    if (child) {
        strait_channel_close(child);
        waitpid(pid, &ended, 0);
    }
    return status == STRAIT_PEER_CLOSED && ended == 0 ? 0 : 1;
}
