/* Tests of waits that a signal ends: only under strait_signals_begin, with and without SA_RESTART. */

#include <pthread.h>
#include <signal.h>
#include <string.h>

#include "check.h"

static volatile sig_atomic_t handled;

static void handle(int number) {
    (void)number;
    handled++;
}

static void install(int number, int flags) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handle;
    action.sa_flags = flags;
    CHECK(sigaction(number, &action, NULL) == 0);
}

static strait_channel *end;
static strait_status outcome;
static int is_over;

/* Receives until a signal ends the wait. */
static void *receive(void *unused) {
    strait_message *message = strait_message_new();
    (void)unused;
    strait_signals_begin();
    strait_signals_begin();
    strait_signals_end();
    outcome = strait_recv(end, message, strait_after(60 * SECOND));
    strait_signals_end();
    strait_message_free(message);
    __atomic_store_n(&is_over, 1, __ATOMIC_RELEASE);
    return NULL;
}

int main(void) {
    strait_channel *other;
    strait_message *message = strait_message_new();
    struct timespec moment = {0, 1000000};
    int numbers[] = {SIGUSR1, SIGUSR2};

    install(SIGUSR1, 0);
    install(SIGUSR2, SA_RESTART);
    OK(strait_channel_pair(NULL, &end, &other));
    for (int i = 0; i < 2; i++) {
        pthread_t thread;
        is_over = 0;
        CHECK(pthread_create(&thread, NULL, receive, NULL) == 0);
        /* A signal that comes before the thread sleeps ends no wait, so there are several. */
        while (!__atomic_load_n(&is_over, __ATOMIC_ACQUIRE)) {
            pthread_kill(thread, numbers[i]);
            nanosleep(&moment, NULL);
        }
        CHECK(pthread_join(thread, NULL) == 0);
        IS(STRAIT_SIGNALLED, outcome);
        CHECK(handled > 0);
    }
    /* Nothing is lost. */
    strait_signals_end();
    OK(strait_send(other, "x", 1, STRAIT_NOW));
    OK(strait_recv(end, message, STRAIT_NOW));
    CHECK(strstr(strait_status_text(STRAIT_SIGNALLED), "signal") != NULL);
    strait_message_free(message);
    strait_channel_close(end);
    strait_channel_close(other);
    return 0;
}
