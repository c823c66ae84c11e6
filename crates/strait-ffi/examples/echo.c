/* Two processes talk: this program starts itself once more, sends lines to the second process, and prints what comes
   back.

   cc -o echo echo.c $(pkg-config --cflags --libs strait) && ./echo hello */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <strait/strait.h>

#define SECOND 1000000000ll

/* Ends the program with a message that says what to do, unless the function has succeeded. */
static void must(strait_status status, const char *what) {
    char text[256];
    if (status == STRAIT_OK) {
        return;
    }
    strait_last_error_text(text, sizeof text);
    fprintf(stderr, "%s: %s\n", what, text);
    exit(1);
}

/* Answers every message with the same bytes, until the parent closes its end. */
static int child(void) {
    strait_channel *channel;
    strait_message *message = strait_message_new();
    strait_status status;
    must(strait_from_parent(NULL, &channel), "the channel to the parent");
    while ((status = strait_recv(channel, message, STRAIT_NEVER)) == STRAIT_OK) {
        must(strait_send(channel, strait_message_bytes(message), strait_message_len(message), strait_after(10 * SECOND)),
             "sending back");
    }
    strait_message_free(message);
    strait_channel_close(channel);
    return status == STRAIT_PEER_CLOSED ? 0 : 1;
}

int main(int argc, char **argv) {
    const char *arguments[] = {argv[0], "--child", NULL};
    strait_channel *channel;
    strait_message *message;
    pid_t pid;
    int ended;

    if (argc == 2 && strcmp(argv[1], "--child") == 0) {
        return child();
    }
    must(strait_spawn("/proc/self/exe", arguments, NULL, NULL, &channel, &pid), "starting the other process");
    message = strait_message_new();
    for (int i = 1; i < argc; i++) {
        must(strait_send(channel, argv[i], strlen(argv[i]), strait_after(10 * SECOND)), "sending");
        must(strait_recv(channel, message, strait_after(10 * SECOND)), "receiving");
        printf("%.*s\n", (int)strait_message_len(message), (const char *)strait_message_bytes(message));
    }
    strait_message_free(message);
    /* Closes the end. The other process sees this, and exits. */
    strait_channel_close(channel);
    if (waitpid(pid, &ended, 0) != pid || !WIFEXITED(ended)) {
        return 1;
    }
    return WEXITSTATUS(ended);
}
