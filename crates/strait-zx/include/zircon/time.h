// Time, in nanoseconds.
#ifndef ZIRCON_TIME_H_
#define ZIRCON_TIME_H_

#include <stdint.h>

typedef int64_t zx_time_t;          // of CLOCK_MONOTONIC
typedef int64_t zx_instant_mono_t;  // the same
typedef int64_t zx_instant_boot_t;  // of CLOCK_BOOTTIME
typedef int64_t zx_duration_t;
typedef int64_t zx_duration_mono_t;

#define ZX_TIME_INFINITE INT64_MAX
#define ZX_TIME_INFINITE_PAST INT64_MIN

#define ZX_NSEC(n) ((zx_duration_t)(1LL * (n)))
#define ZX_USEC(n) ((zx_duration_t)(1000LL * (n)))
#define ZX_MSEC(n) ((zx_duration_t)(1000000LL * (n)))
#define ZX_SEC(n) ((zx_duration_t)(1000000000LL * (n)))
#define ZX_MIN(n) (ZX_SEC(n) * 60LL)
#define ZX_HOUR(n) (ZX_MIN(n) * 60LL)

#endif  // ZIRCON_TIME_H_
