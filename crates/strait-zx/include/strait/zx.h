// What Zircon does not have: file descriptors as handles, and how two processes get their first channel.
#ifndef STRAIT_ZX_H_
#define STRAIT_ZX_H_

#include <sys/types.h>

#include <zircon/types.h>

__BEGIN_CDECLS

// The type of a handle that was made of a file descriptor.
#define STRAIT_ZX_OBJ_TYPE_FD ((zx_obj_type_t)63u)
#define STRAIT_ZX_DEFAULT_FD_RIGHTS ((ZX_RIGHTS_BASIC & (~ZX_RIGHT_WAIT)) | ZX_RIGHTS_IO)

// Makes a handle of a file descriptor, which is the library's from then on; on failure it stays the caller's.
zx_status_t strait_zx_handle_from_fd(int fd, zx_handle_t* out);

// Makes a file descriptor of a handle, which is gone whatever comes of it: of one that was made of a descriptor, or of a VMO.
zx_status_t strait_zx_handle_to_fd(zx_handle_t handle, int* out);

// Makes a channel over a connected SOCK_SEQPACKET Unix socket, whose other end is used in the same way. The socket is the
// library's from then on; on failure it stays the caller's.
zx_status_t strait_zx_channel_from_socket(int fd, zx_handle_t* out);

// Starts a program with a channel to it. argv ends with a null pointer. pid may be null.
zx_status_t strait_zx_spawn(const char* const* argv, pid_t* pid, zx_handle_t* out);

// The channel to the process that started this one by strait_zx_spawn. Once.
zx_status_t strait_zx_channel_from_parent(zx_handle_t* out);

__END_CDECLS

#endif  // STRAIT_ZX_H_
