// Functions that Zircon does not have: file descriptors as handles, and the first channel between two processes.
#ifndef STRAIT_ZX_H_
#define STRAIT_ZX_H_

#include <sys/types.h>

#include <zircon/types.h>

__BEGIN_CDECLS

// The type of a handle that was made from a file descriptor.
#define STRAIT_ZX_OBJ_TYPE_FD ((zx_obj_type_t)63u)
#define STRAIT_ZX_DEFAULT_FD_RIGHTS ((ZX_RIGHTS_BASIC & (~ZX_RIGHT_WAIT)) | ZX_RIGHTS_IO)

// Makes a handle of a file descriptor. If this succeeds, the library owns the descriptor; otherwise the caller still
// does.
zx_status_t strait_zx_handle_from_fd(int fd, zx_handle_t* out);

// Makes a file descriptor from a handle, which is closed in any case. The handle must be that of a descriptor or of a
// VMO.
zx_status_t strait_zx_handle_to_fd(zx_handle_t handle, int* out);

// Makes a channel over a connected SOCK_SEQPACKET Unix socket; the process with the other end does the same. If this
// succeeds, the library owns the socket; otherwise the caller still does.
zx_status_t strait_zx_channel_from_socket(int fd, zx_handle_t* out);

// Starts a program with a channel to it. argv ends with a null pointer. pid may be null.
zx_status_t strait_zx_spawn(const char* const* argv, pid_t* pid, zx_handle_t* out);

// Takes the channel to the parent process, which started this process with strait_zx_spawn. Works once.
zx_status_t strait_zx_channel_from_parent(zx_handle_t* out);

__END_CDECLS

#endif  // STRAIT_ZX_H_
