/* What the service and its clients agree on. */

#ifndef SERVICE_H
#define SERVICE_H

#include <stdint.h>

#define LARGEST_REPLY (4u << 20)

/* A request: "send me so many bytes". The reply has `size` bytes, each of them the low byte of `number`. */
struct request {
    uint32_t number;
    uint32_t size; /* from 1 to LARGEST_REPLY */
};

/* Why the service has closed a channel. */
enum { WHY_STOPPING = 1, WHY_SLOW = 2, WHY_BAD = 3, WHY_FULL = 4, WHY_BUSY = 5 };

#endif
