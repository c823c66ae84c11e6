/* Helpers of the C tests: checks that print the line of a failure, and the number of open descriptors. */

#ifndef CHECK_H
#define CHECK_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

#include <strait/strait.h>

#define SECOND 1000000000ll

#define CHECK(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what); \
            exit(1); \
        } \
    } while (0)

/* Checks that a function returns the given status. */
#define IS(status, call) \
    do { \
        strait_status is_ = (call); \
        if (is_ != (status)) { \
            char text_[256]; \
            strait_last_error_text(text_, sizeof text_); \
            fprintf(stderr, "%s:%d: %s is %d (%s) and not %d\n", __FILE__, __LINE__, #call, (int)is_, \
                    is_ == STRAIT_OK ? "done" : text_, (int)(status)); \
            exit(1); \
        } \
    } while (0)

#define OK(call) IS(STRAIT_OK, call)

/* Returns the number of open descriptors. */
static inline int descriptors(void) {
    int count = 0;
    DIR *here = opendir("/proc/self/fd");
    CHECK(here != NULL);
    while (readdir(here) != NULL) {
        count++;
    }
    closedir(here);
    return count;
}

#endif
