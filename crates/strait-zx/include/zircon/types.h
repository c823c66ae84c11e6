// The types of the functions, and constants.
#ifndef ZIRCON_TYPES_H_
#define ZIRCON_TYPES_H_

#include <stddef.h>
#include <stdint.h>

#include <zircon/compiler.h>
#include <zircon/errors.h>
#include <zircon/rights.h>
#include <zircon/time.h>

__BEGIN_CDECLS

typedef uint32_t zx_handle_t;
typedef int32_t zx_status_t;
typedef uint64_t zx_koid_t;
typedef uint32_t zx_signals_t;
typedef uint32_t zx_obj_type_t;
// The type of the first four bytes of a request or of an answer in a call.
typedef uint32_t zx_txid_t;

#define ZX_HANDLE_INVALID ((zx_handle_t)0)
// The bits that are set in every valid handle.
#define ZX_HANDLE_FIXED_BITS_MASK ((zx_handle_t)3u)

#define ZX_KOID_INVALID ((zx_koid_t)0)
#define ZX_KOID_KERNEL ((zx_koid_t)1)
#define ZX_KOID_FIRST ((zx_koid_t)1024)

// Types of objects.
#define ZX_OBJ_TYPE_NONE ((zx_obj_type_t)0u)
#define ZX_OBJ_TYPE_PROCESS ((zx_obj_type_t)1u)
#define ZX_OBJ_TYPE_THREAD ((zx_obj_type_t)2u)
#define ZX_OBJ_TYPE_VMO ((zx_obj_type_t)3u)
#define ZX_OBJ_TYPE_CHANNEL ((zx_obj_type_t)4u)
#define ZX_OBJ_TYPE_EVENT ((zx_obj_type_t)5u)
#define ZX_OBJ_TYPE_PORT ((zx_obj_type_t)6u)
#define ZX_OBJ_TYPE_SOCKET ((zx_obj_type_t)14u)
#define ZX_OBJ_TYPE_EVENTPAIR ((zx_obj_type_t)16u)
#define ZX_OBJ_TYPE_FIFO ((zx_obj_type_t)19u)
#define ZX_OBJ_TYPE_TIMER ((zx_obj_type_t)22u)
#define ZX_OBJ_TYPE_CLOCK ((zx_obj_type_t)30u)
#define ZX_OBJ_TYPE_STREAM ((zx_obj_type_t)31u)
#define ZX_OBJ_TYPE_IOB ((zx_obj_type_t)33u)
#define ZX_OBJ_TYPE_COUNTER ((zx_obj_type_t)34u)

// Signals of objects.
#define ZX_SIGNAL_NONE ((zx_signals_t)0u)
#define ZX_OBJECT_READABLE ((zx_signals_t)1u << 0)
#define ZX_OBJECT_WRITABLE ((zx_signals_t)1u << 1)
#define ZX_OBJECT_PEER_CLOSED ((zx_signals_t)1u << 2)
#define ZX_OBJECT_SIGNALED ((zx_signals_t)1u << 3)
#define ZX_OBJECT_HANDLE_CLOSED ((zx_signals_t)1u << 23)
#define ZX_SIGNAL_HANDLE_CLOSED ZX_OBJECT_HANDLE_CLOSED
#define ZX_USER_SIGNAL_0 ((zx_signals_t)1u << 24)
#define ZX_USER_SIGNAL_1 ((zx_signals_t)1u << 25)
#define ZX_USER_SIGNAL_2 ((zx_signals_t)1u << 26)
#define ZX_USER_SIGNAL_3 ((zx_signals_t)1u << 27)
#define ZX_USER_SIGNAL_4 ((zx_signals_t)1u << 28)
#define ZX_USER_SIGNAL_5 ((zx_signals_t)1u << 29)
#define ZX_USER_SIGNAL_6 ((zx_signals_t)1u << 30)
#define ZX_USER_SIGNAL_7 ((zx_signals_t)1u << 31)
#define ZX_USER_SIGNAL_ALL ((zx_signals_t)0xffu << 24)

#define ZX_CHANNEL_READABLE ZX_OBJECT_READABLE
#define ZX_CHANNEL_WRITABLE ZX_OBJECT_WRITABLE
#define ZX_CHANNEL_PEER_CLOSED ZX_OBJECT_PEER_CLOSED
#define ZX_EVENT_SIGNALED ZX_OBJECT_SIGNALED
#define ZX_EVENTPAIR_SIGNALED ZX_OBJECT_SIGNALED
#define ZX_EVENTPAIR_PEER_CLOSED ZX_OBJECT_PEER_CLOSED

// Channels.
#define ZX_CHANNEL_READ_MAY_DISCARD ((uint32_t)1u)
#define ZX_CHANNEL_WRITE_USE_IOVEC ((uint32_t)2u)
#define ZX_CHANNEL_MAX_MSG_BYTES ((uint32_t)65536u)
#define ZX_CHANNEL_MAX_MSG_HANDLES ((uint32_t)64u)
#define ZX_CHANNEL_MAX_MSG_IOVECS ((uint32_t)8192u)

typedef struct zx_channel_iovec {
  const void* buffer;
  uint32_t capacity;
  uint32_t reserved;  // 0
} zx_channel_iovec_t;

typedef uint32_t zx_handle_op_t;
#define ZX_HANDLE_OP_MOVE ((zx_handle_op_t)0u)
#define ZX_HANDLE_OP_DUPLICATE ((zx_handle_op_t)1u)

typedef struct zx_handle_disposition {
  zx_handle_op_t operation;
  zx_handle_t handle;
  zx_obj_type_t type;
  zx_rights_t rights;
  zx_status_t result;  // written only if it is wrong
} zx_handle_disposition_t;

typedef struct zx_handle_info {
  zx_handle_t handle;
  zx_obj_type_t type;
  zx_rights_t rights;
  uint32_t unused;
} zx_handle_info_t;

typedef struct zx_channel_call_args {
  const void* wr_bytes;
  const zx_handle_t* wr_handles;
  void* rd_bytes;
  zx_handle_t* rd_handles;
  uint32_t wr_num_bytes;
  uint32_t wr_num_handles;
  uint32_t rd_num_bytes;
  uint32_t rd_num_handles;
} zx_channel_call_args_t;

typedef struct zx_channel_call_etc_args {
  const void* wr_bytes;
  zx_handle_disposition_t* wr_handles;
  void* rd_bytes;
  zx_handle_info_t* rd_handles;
  uint32_t wr_num_bytes;
  uint32_t wr_num_handles;
  uint32_t rd_num_bytes;
  uint32_t rd_num_handles;
} zx_channel_call_etc_args_t;

// Waiting.
#define ZX_WAIT_MANY_MAX_ITEMS ((size_t)64)

typedef struct zx_wait_item {
  zx_handle_t handle;
  zx_signals_t waitfor;
  zx_signals_t pending;
} zx_wait_item_t;

#define ZX_WAIT_ASYNC_ONCE ((uint32_t)0u)
#define ZX_WAIT_ASYNC_TIMESTAMP ((uint32_t)1u)
#define ZX_WAIT_ASYNC_EDGE ((uint32_t)2u)
#define ZX_WAIT_ASYNC_BOOT_TIMESTAMP ((uint32_t)4u)

// Memory.
#define ZX_VMO_RESIZABLE ((uint32_t)1u << 1)

__END_CDECLS

#endif  // ZIRCON_TYPES_H_
