// Information about objects.
#ifndef ZIRCON_SYSCALLS_OBJECT_H_
#define ZIRCON_SYSCALLS_OBJECT_H_

#include <stdint.h>

#include <zircon/types.h>

typedef uint32_t zx_object_info_topic_t;

#define ZX_INFO_NONE ((zx_object_info_topic_t)0u)
#define ZX_INFO_HANDLE_VALID ((zx_object_info_topic_t)1u)
#define ZX_INFO_HANDLE_BASIC ((zx_object_info_topic_t)(2u | (1u << 28)))
#define ZX_INFO_HANDLE_COUNT ((zx_object_info_topic_t)19u)

typedef struct zx_info_handle_basic {
  zx_koid_t koid;
  zx_rights_t rights;
  zx_obj_type_t type;
  zx_koid_t related_koid;
  uint32_t reserved;
  uint8_t padding1[4];
} zx_info_handle_basic_t;

// The number of handles of an object in this process.
typedef struct zx_info_handle_count {
  uint32_t handle_count;
} zx_info_handle_count_t;

#endif  // ZIRCON_SYSCALLS_OBJECT_H_
