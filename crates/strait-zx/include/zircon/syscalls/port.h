// Packets of ports.
#ifndef ZIRCON_SYSCALLS_PORT_H_
#define ZIRCON_SYSCALLS_PORT_H_

#include <stdint.h>

#include <zircon/types.h>

#define ZX_PORT_BIND_TO_INTERRUPT ((uint32_t)1u)

typedef uint32_t zx_packet_type_t;
#define ZX_PKT_TYPE_USER ((zx_packet_type_t)0u)
#define ZX_PKT_TYPE_SIGNAL_ONE ((zx_packet_type_t)1u)
#define ZX_PKT_IS_USER(type) ((type) == ZX_PKT_TYPE_USER)
#define ZX_PKT_IS_SIGNAL_ONE(type) ((type) == ZX_PKT_TYPE_SIGNAL_ONE)

typedef union zx_packet_user {
  uint64_t u64[4];
  uint32_t u32[8];
  uint16_t u16[16];
  uint8_t c8[32];
} zx_packet_user_t;

typedef struct zx_packet_signal {
  zx_signals_t trigger;
  zx_signals_t observed;
  uint64_t count;
  zx_time_t timestamp;
  uint64_t reserved1;
} zx_packet_signal_t;

typedef struct zx_port_packet {
  uint64_t key;
  zx_packet_type_t type;
  zx_status_t status;
  union {
    zx_packet_user_t user;
    zx_packet_signal_t signal;
  };
} zx_port_packet_t;

#endif  // ZIRCON_SYSCALLS_PORT_H_
