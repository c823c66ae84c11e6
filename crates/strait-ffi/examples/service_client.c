/* Clients of service.c, good ones and bad ones:

       service_client NAME ask COUNT SIZE     asks for COUNT replies of SIZE bytes, up to 8 at a time, and checks them
       service_client NAME flood SIZE         asks for replies of SIZE bytes, and reads none
       service_client NAME long               sends a request that is too long
       service_client NAME stay               stays connected until the service closes the channel

   Each prints what it got; if the service closes the channel, also the reason. */

#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <strait/strait.h>

#include "service.h"

#define LIMIT strait_after(60000000000) /* a minute */
#define AHEAD 8

static strait_channel *service;
static char reply[LARGEST_REPLY];

/* A call has failed: prints why. Messages that the service sent before it closed the channel come first, then the
   reason is known. */
static int closed(strait_status status) {
    char text[512];
    uint32_t reason;
    size_t len;
    strait_last_error_text(text, sizeof text);
    if (status == STRAIT_PEER_CLOSED) {
        while (strait_recv_into(service, reply, sizeof reply, &len, NULL, LIMIT) == STRAIT_OK) {
        }
        if (strait_channel_close_reason(service, &reason)) {
            printf("closed: reason %u\n", reason);
            return 0;
        }
    }
    printf("%s\n", text);
    return 1;
}

static strait_status ask(uint32_t number, uint32_t size) {
    struct request request = {number, size};
    return strait_send(service, &request, sizeof request, LIMIT);
}

static strait_status receive(uint32_t number, uint32_t size) {
    size_t len;
    strait_status status = strait_recv_into(service, reply, sizeof reply, &len, NULL, LIMIT);
    if (status == STRAIT_OK &&
        (len != size || (len > 0 && (reply[0] != (char)(number & 255) || reply[len - 1] != reply[0])))) {
        printf("a wrong reply\n");
        exit(1);
    }
    return status;
}

int main(int argc, char **argv) {
    const strait_connect_options options = {.wait_for_listener = 1};
    const char *mode = argc > 2 ? argv[2] : "";
    strait_status status;

    if (argc < 3) {
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    status = strait_connect(argv[1], &options, &service, LIMIT);
    if (status != STRAIT_OK) {
        return closed(status);
    }
    if (strcmp(mode, "ask") == 0 && argc == 5) {
        uint32_t count = (uint32_t)atoi(argv[3]), size = (uint32_t)atoi(argv[4]), asked = 0, got = 0;
        while (got < count) {
            while (asked < count && asked - got < AHEAD) {
                if ((status = ask(asked, size)) != STRAIT_OK) {
                    return closed(status);
                }
                asked++;
            }
            if ((status = receive(got, size)) != STRAIT_OK) {
                return closed(status);
            }
            got++;
        }
        printf("%u replies\n", got);
    } else if (strcmp(mode, "flood") == 0 && argc == 4) {
        uint32_t number = 0;
        while ((status = ask(number, (uint32_t)atoi(argv[3]))) == STRAIT_OK) {
            number++;
        }
        return closed(status);
    } else if (strcmp(mode, "long") == 0) {
        static char request[1000];
        if ((status = strait_send(service, request, sizeof request, LIMIT)) != STRAIT_OK ||
            (status = receive(0, 0)) != STRAIT_OK) {
            return closed(status);
        }
    } else if (strcmp(mode, "stay") == 0) {
        if ((status = ask(0, 1)) != STRAIT_OK || (status = receive(0, 1)) != STRAIT_OK) {
            return closed(status);
        }
        printf("connected\n");
        return closed(receive(1, 1));
    }
    strait_channel_close(service);
    return 0;
}
