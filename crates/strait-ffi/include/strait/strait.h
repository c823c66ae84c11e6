// Strait: message channels between processes on one Linux machine.
//
// * Functions return a status. A failed function has changed nothing unless its comment says otherwise: the caller still
//   owns the arguments, and each output is NULL, -1 or 0. strait_last_error_text says what to do about the last failure in
//   this thread.
// * The caller owns each object that a function gives out, and frees it with the function named after the type of the
//   object (strait_channel_close, strait_message_free, ...).
// * Each function that may wait takes a deadline, and waits no longer.
// * There is nothing to initialise. Any number of threads may call the library at once; the comment of each type says how
//   many threads may use one object at once.
// * In the child of a fork without exec, functions fail with STRAIT_FORKED on objects that the parent made.
//
// This file is made from the sources of the library: see docs/reference/c-and-cpp.md.

#ifndef STRAIT_H
#define STRAIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

// The version of this header.
#define STRAIT_VERSION_MAJOR 0
#define STRAIT_VERSION_MINOR 1
#define STRAIT_VERSION_PATCH 0

// The value of an option that is to be 0, since 0 stands for the default.
#define STRAIT_ZERO 18446744073709551615ull

// Maximum number of parts of a message.
#define STRAIT_MAX_PARTS 65536

// Maximum number of messages in one call of `strait_send_many` or `strait_recv_many`.
#define STRAIT_MAX_MESSAGES 1048576

// Maximum number of handles in a message.
#define STRAIT_MAX_HANDLES 64

// Maximum number of bytes in a message.
#define STRAIT_MAX_MESSAGE 268435456

// Maximum number of bytes of the value of `STRAIT_PARENT`, including the zero at the end.
#define STRAIT_INHERITANCE_LEN 40

// The result of a function: `STRAIT_OK`, or the reason of the failure. `strait_last_error_text` has advice.
//
// A failed function has changed nothing, unless its comment says otherwise: the caller still owns the arguments.
enum strait_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // The function succeeded.
    STRAIT_OK = 0,
    // The function would have to wait, and the deadline was `STRAIT_NOW`.
    STRAIT_WOULD_BLOCK = 1,
    // The deadline passed before the function could complete.
    STRAIT_TIMED_OUT = 2,
    // The other end was closed, or its process died. A receiving function returns this status only after every message
    // sent by the other end was received.
    STRAIT_PEER_CLOSED = 3,
    // The message is longer than `strait_options.max_message` of this end.
    STRAIT_MESSAGE_TOO_LARGE = 4,
    // The message has more handles than `strait_options.max_handles` of this end.
    STRAIT_TOO_MANY_HANDLES = 5,
    // The buffer is too small for the next message. The message stays there for the next receive.
    STRAIT_BUFFER_TOO_SMALL = 6,
    // A handle to be sent is not an open descriptor, is given twice, or is of no known kind.
    STRAIT_BAD_HANDLE = 7,
    // A handle is an end of the channel over which the message would be sent.
    STRAIT_OWN_CHANNEL = 8,
    // The channel is in a wait set already. A channel can be in one wait set at a time.
    STRAIT_IN_SET = 9,
    // The channel is not in the wait set.
    STRAIT_NOT_IN_SET = 10,
    // Some descriptors of the message did not arrive; the bytes arrived.
    STRAIT_HANDLES_LOST = 11,
    // This process has no free descriptor.
    STRAIT_NO_DESCRIPTORS = 12,
    // The kernel has not enough memory for the function.
    STRAIT_NO_MEMORY = 13,
    // This process holds as much for the peer as allowed: see `strait_set_limit`.
    STRAIT_LIMIT_REACHED = 14,
    // The peer broke the protocol, and the channel has ended.
    STRAIT_BAD_PEER = 15,
    // One side refused the connection.
    STRAIT_REFUSED = 16,
    // This process is the child of a `fork` without `exec`; the object belongs to the parent.
    STRAIT_FORKED = 17,
    // The descriptor is not a connected `SOCK_SEQPACKET` Unix socket.
    STRAIT_NOT_A_SOCKET = 18,
    // The name is not valid. A name has 1 to 64 letters, digits, dots, dashes and underscores, and does not begin with
    // a dot. An absolute path ends with such a name.
    STRAIT_BAD_NAME = 19,
    // The name belongs to a listener of another process or of this process.
    STRAIT_NAME_TAKEN = 20,
    // There is no listener with this name.
    STRAIT_NOBODY_THERE = 21,
    // Other users could change the contents of the name directory.
    STRAIT_UNSAFE_DIRECTORY = 22,
    // The listening process runs as another user than expected.
    STRAIT_WRONG_SERVER = 23,
    // There was no invitation on standard input.
    STRAIT_NO_INVITATION = 24,
    // The service manager has passed no listening socket of this name to this process.
    STRAIT_NOT_ACTIVATED = 25,
    // This process was not started with a channel to a parent.
    STRAIT_NO_PARENT = 26,
    // The channel to the parent was taken before.
    STRAIT_PARENT_TAKEN = 27,
    // The kernel refused a system call; `strait_last_error` has its `errno`.
    STRAIT_SYSTEM = 28,
    // The end was closed through another reference, or the listener was stopped.
    STRAIT_CLOSED = 29,
    // The end was sent, or is being sent, through another reference. Also returned by a function call interrupted by
    // an attempt to send the end, even if the attempt failed.
    STRAIT_MOVED = 30,
    // The end to be sent is in use. For a channel: a view or a reservation of the end is still held, or the end and
    // the end over which it would be sent are being sent over each other. For a data pipe: room or bytes are held that
    // a function has begun with.
    STRAIT_IN_USE = 31,
    // An argument is invalid: a null pointer, a number out of range, or nonzero bytes where zeroes are required.
    STRAIT_INVALID_ARGUMENT = 32,
    // A defect of Strait, caught at the border of the library. How much the function did before is not known.
    STRAIT_PANICKED = 33,
    // An error without a number in this version of the C library. `strait_last_error_text` has the text.
    STRAIT_OTHER = 34,
    // The region, or the given handle of the region, is not writable.
    STRAIT_READ_ONLY = 35,
    // The region is not sealed, so the content could change while being read.
    STRAIT_NOT_SEALED = 36,
    // The region is mapped for writing, here or elsewhere, so it cannot be sealed.
    STRAIT_STILL_MAPPED = 37,
    // The object has fewer bytes than the function was to read or write.
    STRAIT_OUT_OF_RANGE = 38,
    // The descriptor cannot become a region.
    STRAIT_NOT_A_REGION = 39,
    // The number of bytes is not a multiple of the element size of the data pipe.
    STRAIT_NOT_ELEMENTS = 40,
    // The request of `strait_call` was sent, and there will be no reply: the deadline has passed, or the peer is gone.
    // Whether the request was carried out is unknown.
    STRAIT_OUTCOME_UNKNOWN = 41,
    // The other end dropped the request of `strait_call` without a reply.
    STRAIT_NOT_ANSWERED = 42,
    // A signal has ended the wait, after `strait_signals_begin`. The function has done nothing and may be called
    // again.
    STRAIT_SIGNALLED = 43,
    // The other end of the data pipe was closed with a reason, by `strait_producer_abort` or `strait_consumer_abort`;
    // the stream is incomplete. `strait_last_error` has the reason.
    STRAIT_ABORTED = 44,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum strait_status strait_status;
#else
typedef int32_t strait_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// An end of a channel for calls in both directions. Any number of threads may use the end at once. Free the end when
// no thread uses it any more.
typedef struct strait_call_end strait_call_end;

// One end of a channel: a bidirectional, ordered stream of messages between two processes, or within one process.
//
// A pointer to an end is a reference. One thread at a time uses a reference; `strait_channel_ref` makes one for
// another thread. When the last reference is released, the end is closed.
typedef struct strait_channel strait_channel;

// The reading end of a data pipe. Any number of threads may use the end at once; they take turns. Free the end when no
// thread uses it any more. When the end is sent in a message, calls in progress on it fail with `STRAIT_MOVED`.
typedef struct strait_consumer strait_consumer;

// An invitation: a one-time token with which one process can connect. Any number of threads may use the invitation at
// once. Free the invitation when no thread uses it any more.
typedef struct strait_invitation strait_invitation;

// A listener, to which other processes connect under a name. Any number of threads may use the listener at once. Free
// the listener when no thread uses it any more.
//
// A listener has no thread of its own: the threads that accept also handle the pending connections.
typedef struct strait_listener strait_listener;

// A mapped part of a region. It stays when the region is freed or sent.
typedef struct strait_mapping strait_mapping;

// A received message: the handles, and the bytes in private memory of this process. The next receive into the message
// reuses the memory, and closes the handles still in the message. One thread at a time uses a message.
typedef struct strait_message strait_message;

// The writing end of a data pipe. Any number of threads may use the end at once; they take turns. Free the end when no
// thread uses it any more. When the end is sent in a message, calls in progress on it fail with `STRAIT_MOVED`.
typedef struct strait_producer strait_producer;

// The receiving half of an end, for one thread at a time: see `strait_channel_split`.
typedef struct strait_receiver strait_receiver;

// Shared memory of a fixed size, which can be sent in messages. Any number of threads may use a region at once. Free
// it when no thread uses it any more. Mappings stay when the region is freed or sent.
typedef struct strait_region strait_region;

// The object for the reply to one request, used by one thread at a time.
typedef struct strait_replier strait_replier;

// Room for a message, to be filled in the memory where the peer will read it. One thread at a time uses a reservation.
// While the reservation is held, no other thread sends from this end, and the end stays open.
typedef struct strait_reservation strait_reservation;

// The sending half of an end, for one thread at a time: see `strait_channel_split`.
typedef struct strait_sender strait_sender;

// A received message in the memory where the peer wrote it. One thread at a time uses a view. While the view is held,
// the end stays open; while a view of a small message is held, no other thread receives from the end.
typedef struct strait_view strait_view;

// A wait set, which waits for any number of channels, data-pipe ends, listeners and other descriptors at once: in a
// thread, or through one descriptor in any event loop. Any number of threads may use a set at once. Free it when no
// thread uses it any more.
typedef struct strait_wait_set strait_wait_set;

// Numbers about the last failure in the thread.
typedef struct strait_error {
    // The status returned by the failed function; `STRAIT_OK` before the first failure in this thread.
    strait_status status;
    // The `errno` of a failure with `STRAIT_SYSTEM`; otherwise 0.
    int os_error;
    // The number that did not fit the limit; 0 if there is none. By `status`:
    //
    // * `STRAIT_MESSAGE_TOO_LARGE`: bytes of the message.
    // * `STRAIT_BUFFER_TOO_SMALL`: required bytes of the buffer.
    // * `STRAIT_TOO_MANY_HANDLES`: handles of the message.
    // * `STRAIT_HANDLES_LOST`: descriptors sent with the message.
    // * `STRAIT_WRONG_SERVER`: the uid of the user that listens in place of the expected user.
    // * `STRAIT_ABORTED`: the reason; 2^32 − 1 if a panic of a Rust program dropped the producer.
    uint64_t asked;
    // The limit; otherwise 0. By `status`:
    //
    // * `STRAIT_MESSAGE_TOO_LARGE`: the largest permitted number of bytes.
    // * `STRAIT_TOO_MANY_HANDLES`: the largest permitted number of handles.
    // * `STRAIT_HANDLES_LOST`: arrived descriptors.
    // * `STRAIT_OUT_OF_RANGE`: bytes of the object.
    uint64_t limit;
} strait_error;

// How long a function may block: a time of `CLOCK_MONOTONIC` in nanoseconds, `STRAIT_NOW` or `STRAIT_NEVER`. If the
// deadline has passed, a function still succeeds if it need not wait.
typedef int64_t strait_deadline;

// How functions on an end wait.
typedef uint32_t strait_wait;

// Options of one end of a channel: wait strategy and limits. Zero means the default of each option, so set only the
// options with other values: `(strait_options){.max_message = 4096}`. Functions with options also accept `NULL` for
// the defaults.
typedef struct strait_options {
    // The wait strategy of functions on this end: `STRAIT_WAIT_ADAPTIVE` by default.
    strait_wait wait;
    // 1 if the process at the other end may not send descriptors: the kernel drops the descriptors before they reach
    // this process.
    uint32_t refuse_descriptors;
    // How long an adaptive wait spins, in nanoseconds, at most 20 ms. The default is 50 µs, or what the environment
    // variable STRAIT_SPIN says (microseconds, or off).
    uint64_t spin;
    // Size in bytes of the first ring through which this end sends: 8 KiB by default for the first channel of a link,
    // 256 B for others.
    uint64_t ring;
    // Size in bytes up to which the sending ring grows: 1 MiB by default.
    uint64_t ring_max;
    // Size in bytes of the largest message that goes through the ring: 64 KiB by default.
    uint64_t inline_max;
    // Bytes of large messages allowed in flight from this end: 256 MiB by default.
    uint64_t queue_bytes;
    // Number of messages allowed in flight from this end: by default, the number that fits into the ring.
    uint64_t queue_messages;
    // Size in bytes of the longest message that this end sends: 256 MiB by default, also the maximum.
    uint64_t max_message;
    // Number of handles allowed in a message from this end: 64 by default, also the maximum.
    uint64_t max_handles;
    // Bytes of memory kept by this end for reuse by large messages: by default only the process has a limit, 256 MiB.
    uint64_t pool;
    // Bytes of the peer's memory mapped at most by this process for the link of this end: 1 GiB by default.
    uint64_t peer_memory;
    // Number of descriptors allowed in flight from this end: 256 by default.
    uint64_t queue_handles;
    // Reserved; must be zero.
    uint64_t reserved[3];
} strait_options;

// The kind of a `strait_handle`.
typedef uint32_t strait_handle_kind;

// An object that a message can carry: a file descriptor, an end of a channel or of a data pipe, or a region.
//
// A handle owns its object. A function that sends the handle takes the object on success, and sets `kind` to
// `STRAIT_HANDLE_NONE`. If the function fails, the handle is unchanged. The caller owns a received handle: take the
// object out, or close it with `strait_handle_close`.
typedef struct strait_handle {
    // The kind, `STRAIT_HANDLE_*`.
    strait_handle_kind kind;
    // The file descriptor, if the handle is a file descriptor; otherwise -1.
    int fd;
    // The object, if the handle is an object; otherwise `NULL`.
    void *object;
} strait_handle;

// Options of a region. Zero means the default of each option.
typedef struct strait_region_options {
    // The name of the region for debugging, which `/proc/*/maps` shows: at most 249 bytes of UTF-8. `NULL` for the
    // default name. Copied.
    const char *name;
    // 1 to ask the kernel for huge pages when this process maps the region; otherwise 0. Whether shared memory can
    // have huge pages depends on `/sys/kernel/mm/transparent_hugepage/shmem_enabled`.
    uint32_t huge_pages;
    // Reserved; must be zero.
    uint32_t reserved_flags;
    // Reserved; must be zero.
    uint64_t reserved[3];
} strait_region_options;

// The access allowed to the holder of a region, enforced by the kernel.
typedef uint32_t strait_access;

// The way of mapping a region.
typedef uint32_t strait_map;

// A message of `strait_send_many`, with the fields of `strait_sendv`.
typedef struct strait_outgoing {
    // The bytes of the message, in parts.
    const struct iovec *parts;
    // The number of parts.
    size_t part_count;
    // The handles of the message. If the message is sent, they are taken.
    struct strait_handle *handles;
    // The number of handles.
    size_t handle_count;
} strait_outgoing;

// The sizes of the next message of an end, before it is received.
typedef struct strait_message_info {
    // Number of bytes in the message.
    size_t len;
    // Number of handles sent with the message.
    size_t handles;
    // Reserved; always zero.
    uint64_t reserved[2];
} strait_message_info;

// Events of a channel or of a data-pipe end: a combination of `STRAIT_READABLE` and the constants that follow.
typedef uint32_t strait_events;

// How often a registration reports an event.
typedef uint32_t strait_mode;

// An event of a member of a wait set.
typedef struct strait_event {
    // The key given to `strait_wait_set_add`.
    uint64_t key;
    // A combination of `STRAIT_READABLE`, `STRAIT_WRITABLE` and `STRAIT_HAS_MOVED`.
    strait_events events;
    // Always zero.
    uint32_t reserved;
} strait_event;

// The process at the other end. All fields come from the kernel, none from the process. Numbers are as seen from the
// namespaces of this process.
typedef struct strait_peer {
    // The process number; 0 if the process is in a PID namespace that this process does not see. The kernel may reuse
    // the number after the process has died; the pidfd of `strait_channel_peer_pidfd` stays unambiguous.
    pid_t pid;
    // The uid of the process.
    uint32_t uid;
    // The gid of the process.
    uint32_t gid;
    // 1 if the process was alive when this value was made, as far as could be found out; otherwise 0.
    uint32_t is_alive;
} strait_peer;

// A function that decides whether a listener accepts a process: return true to accept. `peer` describes the process;
// all fields come from the kernel.
typedef bool (*strait_policy)(const struct strait_peer *peer, void *context);

// A function called for each refused process. `peer` describes the process as known to the kernel, or is `NULL` if the
// process kept the kernel from answering. `why` is the reason; `strait_last_error_text` gives details.
typedef void (*strait_tell_refused)(const struct strait_peer *peer, strait_status why, void *context);

// Options of a listener. Zero means the default of each option.
typedef struct strait_listener_options {
    // The directory for the name; `NULL` for the directory of this user. Copied.
    const char *directory;
    // The permissions of the name, at most 0777: 0600 by default.
    uint32_t mode;
    // 1 to accept only processes that connect with the token of an invitation.
    uint32_t invited_only;
    // Limit on pending connections of a user: 32 by default.
    uint32_t waiting_of_a_user;
    // Limit on pending connections of all users: 128 by default.
    uint32_t waiting_of_all;
    // The function that decides which processes the listener accepts; with `NULL` the listener accepts every process
    // of this user. Called without a lock, in the accepting thread. The function must not use the listener.
    strait_policy policy;
    // The function that is called for each refused process; `NULL` for none. Called as `policy` is.
    strait_tell_refused on_refused;
    // The argument `context` of both functions. Must stay valid as long as the listener and its invitations.
    void *context;
    // Options of the channels that the listener makes; `NULL` for the defaults. Copied.
    const struct strait_options *channel;
    // Reserved; must be zero.
    uint64_t reserved[4];
} strait_listener_options;

// Options of a connection. Zero means the default of each option.
typedef struct strait_connect_options {
    // The directory of the name; `NULL` for this user's name directory.
    const char *directory;
    // Options of the channel; `NULL` for the defaults.
    const struct strait_options *channel;
    // The required uid of the server, if `has_server` is 1. Otherwise the server must have the uid of this process.
    uint32_t server;
    // 1 if `server` is set; otherwise 0.
    uint32_t has_server;
    // 1 to wait until the deadline for a listener of this name, if there is none yet; otherwise 0.
    uint32_t wait_for_listener;
    // Reserved; must be zero.
    uint32_t reserved_flags;
    // Reserved; must be zero.
    uint64_t reserved[3];
} strait_connect_options;

// A name with a present or past listener. Valid only during the call of the function that receives the structure.
typedef struct strait_listening {
    // The name of the listener.
    const char *name;
    // The time in seconds since 1970 at which the listener took the name.
    int64_t since;
    // The uid of the user of the name.
    uint32_t uid;
    // The listening process. 0 if there is no listening process any more, or if its PID namespace is invisible to this
    // process.
    pid_t pid;
    // 1 if a process listens; otherwise 0.
    uint32_t is_live;
    // Always zero.
    uint32_t reserved;
} strait_listening;

// A function called for each name.
typedef void (*strait_tell_name)(const struct strait_listening *name, void *context);

// The queued messages of an end, and whether there is room to send.
typedef struct strait_channel_state {
    // Number of messages ready to be received.
    uint64_t messages;
    // Number of bytes in the messages ready to be received.
    uint64_t bytes;
    // Number of messages that have arrived at this end in this process, received or not. The number only grows, so two
    // calls show whether a message arrived in between.
    uint64_t arrived;
    // 1 if a small message with one descriptor can be sent now without blocking, or if a send would fail at once.
    uint32_t has_room;
    // 1 if nothing more will come: the other end is closed, or its process is dead or a bad peer. Messages that were
    // sent before can still be received.
    uint32_t peer_closed;
    // Reserved; always zero.
    uint64_t reserved[4];
} strait_channel_state;

// The result of reporting a bad peer: the fate of the link.
typedef uint32_t strait_reported;

// Counters of one end of a channel since the end was made.
typedef struct strait_counters {
    // Number of messages sent by this end.
    uint64_t messages_sent;
    // Number of payload bytes in the messages sent by this end.
    uint64_t bytes_sent;
    // Number of messages received by this end.
    uint64_t messages_received;
    // Number of payload bytes in the messages received by this end.
    uint64_t bytes_received;
    // How often this end made a system call to wake the other end.
    uint64_t wake_ups;
    // How often a waiting thread of this end went to sleep.
    uint64_t sleeps;
    // Number of messages sent out of line, that is in memory outside the ring.
    uint64_t out_of_line;
    // Number of messages sent out of line in memory of the pool that was already mapped.
    uint64_t pool_hits;
    // How often a larger ring replaced this end's outgoing ring.
    uint64_t grown;
    // How often a send on this end had to wait for room.
    uint64_t stalls;
    // How often a receive on this end failed at a limit on the resources held for the peer.
    uint64_t limits_reached;
    // Number of messages sent out of line in memory for a single use, because no more memory can be kept: raise
    // `strait_set_pool_limit` or `strait_options.pool`.
    uint64_t used_once;
    // Reserved; always zero.
    uint64_t reserved[4];
} strait_counters;

// A resource held by this process for peers, up to a limit.
typedef uint32_t strait_resource;

// The held amount of a resource, and the limit.
typedef struct strait_level {
    // The amount held now.
    uint64_t held;
    // The limit in force now.
    uint64_t limit;
    // How often a request was refused because the limit would have been exceeded.
    uint64_t reached;
} strait_level;

// The amounts of a resource held by this process for the process at the other end of a channel, and for all peer
// processes of the peer's user.
typedef struct strait_usage {
    // The amount for the peer process, over all links to it.
    struct strait_level peer;
    // The amount for all peer processes of the peer's user.
    struct strait_level user;
    // Number of processes of the peer's user with an account in this process.
    uint64_t processes;
    // Number of idle wake-ups: how often the peer woke this process, and there was nothing to do.
    uint64_t idle_wake_ups;
    // How often the peer was throttled: this process ignored the peer for a millisecond, because the peer caused too
    // many idle wake-ups.
    uint64_t pauses;
    // The uid of the peer's user, if `has_uid` is 1.
    uint32_t uid;
    // 1 if `uid` is set; 0 for peers whose user the kernel does not name.
    uint32_t has_uid;
} strait_usage;

// A peer process that broke the protocol.
typedef struct strait_bad_peer {
    // The peer, as the kernel describes it; `NULL` if the kernel does not say.
    const struct strait_peer *peer;
    // A text about how the peer broke the protocol.
    const char *reason;
    // 1 if the link to the peer is lost, together with every channel over the link; 0 if only one channel has ended.
    uint32_t link_lost;
    // 1 if another process has introduced the link to the peer. The introducer may have kept a copy of the link's
    // socket, so the breach may be the introducer's. 0 otherwise.
    uint32_t introduced;
} strait_bad_peer;

// A function called for each peer that broke the protocol. `bad`, and the memory behind its pointers, are valid only
// during the call.
typedef void (*strait_tell_bad_peer)(const struct strait_bad_peer *bad, void *context);

// The activity of a process after its sandbox is active, for `strait_system_calls`.
typedef uint32_t strait_phase;

// Do not block: a function that would have to wait fails with `STRAIT_WOULD_BLOCK`.
#define STRAIT_NOW 0

// Block without a time limit.
#define STRAIT_NEVER 9223372036854775807

// `STRAIT_WAIT_ADAPTIVE`: spin for a short time if the peer runs on another CPU, then sleep.
#define STRAIT_WAIT_ADAPTIVE 0

// `STRAIT_WAIT_SPIN`: never sleep. The lowest latency, at the cost of a whole core.
#define STRAIT_WAIT_SPIN 1

// `STRAIT_WAIT_BLOCK`: sleep at once. The least CPU time.
#define STRAIT_WAIT_BLOCK 2

// The handle is empty.
#define STRAIT_HANDLE_NONE 0

// The handle is a file descriptor, in `fd`.
#define STRAIT_HANDLE_FD 1

// The handle is an end of a channel: `object` is a `strait_channel *`.
#define STRAIT_HANDLE_CHANNEL 2

// The handle is a region: `object` is a `strait_region *`.
#define STRAIT_HANDLE_REGION 3

// The handle is the writing end of a data pipe: `object` is a `strait_producer *`.
#define STRAIT_HANDLE_PRODUCER 4

// The handle is the reading end of a data pipe: `object` is a `strait_consumer *`.
#define STRAIT_HANDLE_CONSUMER 5

// A handle of a kind unknown to this version: the sender has a newer library. The handle can be sent on, or closed
// with `strait_handle_close`.
#define STRAIT_HANDLE_OTHER 255

// The holder can read and write the region.
#define STRAIT_WRITABLE_REGION 0

// The holder can read the region; other processes may still write to the region.
#define STRAIT_READ_ONLY_REGION 1

// The holder can read the region, and no process can change it any more.
#define STRAIT_SEALED_REGION 2

// Map for reading memory that others may be writing: read each byte once, and decide on the copy.
#define STRAIT_MAP_READ 0

// Map for reading and writing; others may read and write at the same time.
#define STRAIT_MAP_WRITE 1

// Map for reading memory that no process can change: only for a sealed region.
#define STRAIT_MAP_SEALED 2

// Map as private memory, with a copy of each page at the first write: only for a sealed region.
#define STRAIT_MAP_COPY 3

// Receiving returns at once: a message is there, or the channel has ended.
#define STRAIT_READABLE 1

// Sending a small message returns at once: there is room, or sending fails. A large message, or one with several
// handles, may have no room all the same: after such a send has failed, use `strait_wait_set_await_room`.
#define STRAIT_WRITABLE 2

// The end was sent away in a message and so left the set. Reported only, never requested; the last event of the
// registration.
#define STRAIT_HAS_MOVED 4

// `STRAIT_LEVEL`: every `strait_wait_set_wait` reports the event, as long as the member is ready.
#define STRAIT_LEVEL 0

// `STRAIT_ONE_SHOT`: the event is reported once, to one thread, and not again before `strait_wait_set_modify`.
#define STRAIT_ONE_SHOT 1

// The report closed the link to the process, and with the link every channel over it, on both sides.
#define STRAIT_REPORTED_CLOSED 0

// The report closed no link: it had been closed before, or there is no such process.
#define STRAIT_REPORTED_GONE 1

// The report closed no link, because the message was sent from within this process: close the channel.
#define STRAIT_REPORTED_WITHIN 2

// The report closed no link, because the message was in the backlog of an end that was sent to this process: the
// writer of the message and the sender of the end are different processes. Close the channel.
#define STRAIT_REPORTED_BROUGHT 3

// Bytes of the peer's memory mapped in this process.
#define STRAIT_MEMORY 0

// Mappings of the peer's memory.
#define STRAIT_MAPPINGS 1

// Descriptors from the peer that the program has not taken yet, and sockets to processes introduced by the peer.
#define STRAIT_DESCRIPTORS 2

// Lanes (the shared memory of one channel over one link) announced by the peer to this process.
#define STRAIT_LANES 3

// Bytes of unreceived messages that were taken out of shared memory by the move of an end.
#define STRAIT_QUEUED_BYTES 4

// Unreceived messages that were taken out of shared memory by the move of an end.
#define STRAIT_QUEUED_MESSAGES 5

// Bytes of regions from the peer. Each region counts whole, until the region and its mappings are freed.
#define STRAIT_REGIONS 6

// Messages, waiting, and channels over existing links or over a socket of the program. Every process needs the calls
// of this list.
#define STRAIT_PHASE_RUNNING 0

// Regions: calls needed in addition.
#define STRAIT_PHASE_WITH_REGIONS 1

// Listening, connecting, and taking a channel from the parent: these system calls in addition.
#define STRAIT_PHASE_CONNECTING 2

// System calls that the library tries, and can do without. A filter that kills the process for a forbidden call must
// let these calls fail with `EPERM`, or allow all of them. If a call is in the list of another phase too, the filter
// must allow the call in that phase.
#define STRAIT_PHASE_DISPENSABLE 3

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns the version of the library, such as `0.1.0`. The text is valid for the life of the process.
const char *strait_version(void);

// Returns a short description of a status. Never `NULL`; the text is valid for the life of the process.
const char *strait_status_text(int32_t status);

// Writes the numbers of the last failure in this thread to `out`. If no function has failed in this thread yet, the
// status is `STRAIT_OK`. `out` must not be `NULL`.
void strait_last_error(struct strait_error *out);

// Writes into `buffer` what happened in the last failed function of this thread, and what to do. The text in the
// buffer always ends with a zero byte, and is cut off at the capacity. Returns the number of bytes of the whole text
// without the zero. With `capacity` 0, `buffer` may be `NULL`.
size_t strait_last_error_text(char *buffer,
                              size_t capacity);

// Returns the deadline in `nanoseconds` from now. For a negative number the deadline has passed; for a number above
// the range the deadline never passes.
strait_deadline strait_after(int64_t nanoseconds);

// From now on, a signal that interrupts a sleep of the calling thread ends the wait: the function fails with
// `STRAIT_SIGNALLED`, has done nothing, and may be called again. Without this call, functions go on waiting after a
// signal handler has run. Holds until `strait_signals_end`; such pairs of calls may be nested.
//
// Only a signal whose handler runs in this thread counts, with or without `SA_RESTART`. A signal whose handler runs
// before the thread sleeps does not end the sleep that follows; docs/reference/c-and-cpp.md says how to miss none.
// Functions that spin and do not sleep (`STRAIT_WAIT_SPIN`) go on. Makes no system call. Not for use in a signal
// handler.
void strait_signals_begin(void);

// Takes back one call of `strait_signals_begin` in the calling thread. Does nothing if there was none.
void strait_signals_end(void);

// Makes a channel with both ends in this process, without a descriptor or shared memory.
//
// `options` apply to both ends; `NULL` means the defaults. `a` and `b` receive the ends, which the caller owns, or
// `NULL` on failure. Does not block.
strait_status strait_channel_pair(const struct strait_options *options,
                                  struct strait_channel **a,
                                  struct strait_channel **b);

// Makes a channel over a connected `SOCK_SEQPACKET` Unix socket. The process with the other end of the socket calls
// this function too. This way a channel reaches a process that the caller starts by its own means. The caller must not
// send or receive anything else on the socket.
//
// If the function succeeds, Strait owns `socket` and sets close-on-exec; otherwise the caller still owns it. `options`
// may be `NULL`. `channel` receives the end, which the caller owns, or `NULL` on failure. Does not block: messages
// sent before the peer has opened its side wait for the peer.
strait_status strait_channel_over(int socket,
                                  const struct strait_options *options,
                                  struct strait_channel **channel);

// Makes another reference to an end, for another thread. Returns the same pointer, which must be released once more.
// Returns `NULL` for `NULL`.
//
// From then on each function call on this end costs a few nanoseconds more, since calls in progress are counted. In
// return, one thread may close or send the end while another thread is in a function call on it.
struct strait_channel *strait_channel_ref(struct strait_channel *channel);

// Releases a reference. The last release closes the end. Ignores `NULL`. Does not block.
void strait_channel_unref(struct strait_channel *channel);

// Closes an end, and releases the caller's reference. Ignores `NULL`. Does not block.
//
// The peer receives everything sent before, and then `STRAIT_PEER_CLOSED`. Messages that this end has not received are
// dropped, with their handles. From now on calls through other references fail with `STRAIT_CLOSED`; waiting calls
// fail at once. If a view or a reservation of the end is held, the end stays open until the view or reservation is
// freed.
void strait_channel_close(struct strait_channel *channel);

// Closes an end as `strait_channel_close` does, and tells the peer the reason: once the peer has received everything
// sent before, its `strait_channel_close_reason` returns `reason`.
void strait_channel_close_with(struct strait_channel *channel,
                               uint32_t reason);

// Returns whether the other end was closed with a reason (`strait_channel_close_with`), and writes the reason to
// `reason`. Returns false until a receive from this end has failed with `STRAIT_PEER_CLOSED`, and if `channel` or
// `reason` is `NULL`. Does not block.
bool strait_channel_close_reason(const struct strait_channel *channel,
                                 uint32_t *reason);

// Returns whether receiving would return at once: a message is there, or the channel has ended. Returns false if the
// end is closed or moved, or `channel` is `NULL`. Does not block.
bool strait_channel_is_readable(const struct strait_channel *channel);

// Returns whether a small message with one descriptor could be sent now without waiting. Returns false if the end is
// closed or moved, or `channel` is `NULL`. Does not block.
bool strait_channel_is_writable(const struct strait_channel *channel);

// Returns whether the other end is gone: closed, or its process died. Messages sent before may still wait to be
// received. Returns false if this end is closed or moved, or `channel` is `NULL`. Does not block. Asks the kernel,
// which takes longer than a receive: one system call, and at most once in 10 ms five more.
bool strait_channel_is_peer_closed(const struct strait_channel *channel);

// Ends the link to the process at the other end, and every channel over the link, without a report of a bad peer. Does
// nothing within one process. Does not block.
//
// Both sides first receive the messages sent before, and then `STRAIT_PEER_CLOSED` on each of these channels. The end
// still has to be closed. `ended` receives whether there was a link to end; `ended` may be `NULL`. Fails with
// `STRAIT_WOULD_BLOCK` if other threads wait on this end in both directions.
strait_status strait_channel_disconnect(const struct strait_channel *channel,
                                        bool *ended);

// Moves the channel into new memory, private to this process and the process of the other end. Use this function for
// an end that an untrusted process has sent. No message is lost or reordered, and the other end notices nothing. Waits
// until the deadline.
//
// Fails with `STRAIT_WOULD_BLOCK` or `STRAIT_TIMED_OUT` while the other end is being sent to another process, or while
// the other process has not opened its side. Then the channel is unchanged.
strait_status strait_channel_rehome(const struct strait_channel *channel,
                                    strait_deadline deadline);

// Makes a data pipe, a one-way stream of bytes with sendable ends.
//
// The buffer has `capacity` bytes, rounded up to whole elements of `element` bytes each (0 counts as 1). Only whole
// elements are written and read. `producer` and `consumer` receive the ends, which the caller owns, or `NULL` on
// failure. Does not block.
strait_status strait_pipe_new(size_t capacity,
                              uint32_t element,
                              struct strait_producer **producer,
                              struct strait_consumer **consumer);

// Ends the stream, and frees its writing end. The consumer reads everything written before, and then the end of the
// stream. Room from `strait_producer_begin` becomes invalid, and its bytes are not written. Ignores `NULL`. Does not
// block.
void strait_producer_free(struct strait_producer *producer);

// Aborts the stream, and frees its writing end. The consumer reads everything written before; then its reading
// functions fail with `STRAIT_ABORTED`, and `strait_last_error` has `reason`. The program defines the meaning of the
// number. Room from `strait_producer_begin` becomes invalid, and its bytes are not written. Ignores `NULL`. Does not
// block.
void strait_producer_abort(struct strait_producer *producer,
                           uint32_t reason);

// Writes as many bytes as there is room for, at least one element; waits for room until the deadline. `written`
// receives the number of bytes: less than `len` if there was not enough room for all.
//
// Fails with `STRAIT_PEER_CLOSED` if the consumer is gone, with `STRAIT_ABORTED` if it was closed with a reason, with
// `STRAIT_NOT_ELEMENTS` if `len` is less than an element, and with `STRAIT_IN_USE` while room from
// `strait_producer_begin` is held.
strait_status strait_producer_write(const struct strait_producer *producer,
                                    const void *bytes,
                                    size_t len,
                                    size_t *written,
                                    strait_deadline deadline);

// Writes all `len` bytes at once, or nothing; waits for room for all of them until the deadline.
//
// Fails with `STRAIT_OUT_OF_RANGE` if `len` is more than the capacity, and with `STRAIT_NOT_ELEMENTS` if it is no
// multiple of the element size; otherwise like `strait_producer_write`.
strait_status strait_producer_write_whole(const struct strait_producer *producer,
                                          const void *bytes,
                                          size_t len,
                                          strait_deadline deadline);

// Begins to write in place; waits until the deadline for room for at least one element. `room` receives the address,
// and `len` the number of bytes that are free there. Room beyond the end of the buffer comes with the next call. On
// failure `room` is `NULL` and `len` is 0.
//
// Write to the room, but do not read from the room: the peer may change its bytes. The room is valid until
// `strait_producer_commit`. Until then other writing functions fail with `STRAIT_IN_USE`, and so does sending the end.
strait_status strait_producer_begin(const struct strait_producer *producer,
                                    void **room,
                                    size_t *len,
                                    strait_deadline deadline);

// Ends writing in place: the first `len` bytes of the room were written. With 0, nothing is written. The room is not
// valid any more.
//
// Fails with `STRAIT_OUT_OF_RANGE` if there was less room, and with `STRAIT_NOT_ELEMENTS` if `len` is no multiple of
// the element size; then the room is still held. Fails with `STRAIT_INVALID_ARGUMENT` if no room is held.
strait_status strait_producer_commit(const struct strait_producer *producer,
                                     size_t len);

// Writes to `room` how many bytes could be written now without waiting. Fails with `STRAIT_PEER_CLOSED` if the
// consumer is known to be gone, and with `STRAIT_WOULD_BLOCK` while another thread waits on this end or holds room.
// Does not block.
strait_status strait_producer_room(const struct strait_producer *producer,
                                   size_t *room);

// Returns the size of the buffer in bytes, a multiple of the element size; 0 for `NULL`.
size_t strait_producer_capacity(const struct strait_producer *producer);

// Returns the size of an element in bytes; 0 for `NULL`.
size_t strait_producer_element(const struct strait_producer *producer);

// Frees a reading end; unread bytes are lost. Bytes from `strait_consumer_begin` become invalid. Ignores `NULL`. Does
// not block.
void strait_consumer_free(struct strait_consumer *consumer);

// Frees a reading end and tells the producer the reason: its writing functions fail with `STRAIT_ABORTED`, where they
// would fail with `STRAIT_PEER_CLOSED` after `strait_consumer_free`, and `strait_last_error` has `reason`. The program
// defines the meaning of the number. Bytes from `strait_consumer_begin` become invalid. Ignores `NULL`. Does not
// block.
void strait_consumer_abort(struct strait_consumer *consumer,
                           uint32_t reason);

// Reads the available bytes, at least one element; waits for an element until the deadline. `count` receives the
// number of bytes: 0 at the end of the stream.
//
// If everything written was read, fails with `STRAIT_ABORTED` if the producer has aborted the stream, and with
// `STRAIT_PEER_CLOSED` if the producer's process died. Fails with `STRAIT_NOT_ELEMENTS` if the buffer is shorter than
// an element, and with `STRAIT_IN_USE` while bytes from `strait_consumer_begin` are held.
strait_status strait_consumer_read(const struct strait_consumer *consumer,
                                   void *buffer,
                                   size_t capacity,
                                   size_t *count,
                                   strait_deadline deadline);

// Fills all `len` bytes of the buffer, or reads nothing; waits for that many bytes until the deadline.
//
// Fails with `STRAIT_OUT_OF_RANGE` if `len` is more than the capacity, or if the stream has ended and has fewer bytes
// left, which can still be read. Otherwise like `strait_consumer_read`.
strait_status strait_consumer_read_whole(const struct strait_consumer *consumer,
                                         void *buffer,
                                         size_t len,
                                         strait_deadline deadline);

// Copies the readable bytes without consuming them: the next reading function returns the same bytes again. Otherwise
// like `strait_consumer_read` with `STRAIT_NOW`.
strait_status strait_consumer_peek(const struct strait_consumer *consumer,
                                   void *buffer,
                                   size_t capacity,
                                   size_t *count);

// Drops up to `most` bytes that are there now, in whole elements. `count` receives the number of bytes dropped. Does
// not block.
strait_status strait_consumer_discard(const struct strait_consumer *consumer,
                                      size_t most,
                                      size_t *count);

// Begins to read in place; waits until the deadline for at least one element. `bytes` receives the address, and `len`
// the number of bytes that are there. Bytes beyond the end of the buffer come with the next call. At the end of the
// stream `len` receives 0, and nothing is held. On failure `bytes` is `NULL` and `len` is 0.
//
// The producer can change the bytes while this process reads them: copy the bytes on which a decision depends, once,
// and decide on the copy. The bytes are valid until `strait_consumer_consume`. Until then other reading functions fail
// with `STRAIT_IN_USE`, and so does sending the end.
strait_status strait_consumer_begin(const struct strait_consumer *consumer,
                                    const void **bytes,
                                    size_t *len,
                                    strait_deadline deadline);

// Ends reading in place: the first `len` bytes were read, and the rest stays unread. The bytes are not valid any more.
//
// Fails with `STRAIT_OUT_OF_RANGE` if there were fewer bytes, and with `STRAIT_NOT_ELEMENTS` if `len` is no multiple
// of the element size; then the bytes are still held. Fails with `STRAIT_INVALID_ARGUMENT` if nothing was begun. At
// the end of the stream, 0 bytes may be consumed any number of times.
strait_status strait_consumer_consume(const struct strait_consumer *consumer,
                                      size_t len);

// Writes to `count` how many bytes could be read now. Fails with `STRAIT_WOULD_BLOCK` while another thread waits on
// this end or holds bytes. Does not block.
strait_status strait_consumer_available(const struct strait_consumer *consumer,
                                        size_t *count);

// Returns the size of the buffer in bytes, a multiple of the element size; 0 for `NULL`.
size_t strait_consumer_capacity(const struct strait_consumer *consumer);

// Returns the size of an element in bytes; 0 for `NULL`.
size_t strait_consumer_element(const struct strait_consumer *consumer);

// Returns a handle with the file descriptor `fd`, owned by the handle from now on.
struct strait_handle strait_handle_from_fd(int fd);

// Returns a handle for an end of a channel. The handle owns the caller's reference from now on.
struct strait_handle strait_handle_from_channel(struct strait_channel *channel);

// Returns a handle with the region, owned by the handle from now on.
struct strait_handle strait_handle_from_region(struct strait_region *region);

// Returns a handle that owns the writing end of a data pipe from now on.
struct strait_handle strait_handle_from_producer(struct strait_producer *producer);

// Returns a handle that owns the reading end of a data pipe from now on.
struct strait_handle strait_handle_from_consumer(struct strait_consumer *consumer);

// Takes the file descriptor out of a handle. The caller owns the descriptor, and the handle is empty. Returns -1, and
// changes nothing, if the handle is no file descriptor.
int strait_handle_take_fd(struct strait_handle *handle);

// Takes the end of a channel out of a handle. The caller owns the end, and the handle is empty. Returns `NULL`, and
// changes nothing, if the handle is no end of a channel.
struct strait_channel *strait_handle_take_channel(struct strait_handle *handle);

// Takes the region out of a handle. The caller owns the region, and the handle is empty. Returns `NULL`, and changes
// nothing, if the handle is no region.
struct strait_region *strait_handle_take_region(struct strait_handle *handle);

// Takes the writing end of a data pipe out of a handle. The caller owns the end, and the handle is empty. Returns
// `NULL`, and changes nothing, if the handle is no writing end.
struct strait_producer *strait_handle_take_producer(struct strait_handle *handle);

// Takes the reading end of a data pipe out of a handle. The caller owns the end, and the handle is empty. Returns
// `NULL`, and changes nothing, if the handle is no reading end.
struct strait_consumer *strait_handle_take_consumer(struct strait_handle *handle);

// Closes or frees the object of a handle, and empties the handle. Ignores `NULL` and empty handles.
//
// Closes a descriptor in the calling thread, as `close` does: that blocks as long as the descriptor's maker likes, for
// example with a file of a FUSE file system. To drop a descriptor of a peer that is not trusted, do not take it out of
// its message: `strait_message_clear`, `strait_message_free` and the next receive into the message close it without
// blocking. Closing a handle of another kind does not wait for the peer.
void strait_handle_close(struct strait_handle *handle);

// Makes a writable region of `len` zero bytes. `region` receives the region, which the caller owns, or `NULL` on
// failure.
strait_status strait_region_new(size_t len,
                                struct strait_region **region);

// Makes a writable region of `len` zero bytes with `options`, which may be `NULL`. `region` receives the region, or
// `NULL` on failure; the caller owns the region.
strait_status strait_region_create(const struct strait_region_options *options,
                                   size_t len,
                                   struct strait_region **region);

// Makes a sealed region with a copy of `len` bytes. No process can ever change it. `region` receives the region, which
// the caller owns, or `NULL` on failure.
strait_status strait_region_sealed(const void *bytes,
                                   size_t len,
                                   struct strait_region **region);

// Makes a region from a memfd, with the access that the descriptor allows. If the function succeeds, the region owns
// `fd`; otherwise the caller still does. `region` receives the region, which the caller owns, or `NULL` on failure.
// Fails with `STRAIT_WOULD_BLOCK` if the size is not sealed yet, and another process blocks the sealing for a second.
strait_status strait_region_from_fd(int fd,
                                    struct strait_region **region);

// Makes a new descriptor for the memory of a region, for other programs. `fd` receives the descriptor, which the
// caller has to close, or -1 on failure.
strait_status strait_region_to_fd(const struct strait_region *region,
                                  int *fd);

// Frees a region object. The memory stays until every process has freed it. Ignores `NULL`.
void strait_region_free(struct strait_region *region);

// Returns another region object for the same memory, with the same access, which can be sent to one more process. The
// new object costs no descriptor in this process. The caller owns the new object. Returns `NULL` for `NULL`.
struct strait_region *strait_region_duplicate(const struct strait_region *region);

// Returns the size of a region in bytes, which never changes; 0 for `NULL`.
size_t strait_region_len(const struct strait_region *region);

// Writes the current access of a region to `access`. Other processes with write access can take access away; no
// process can restore access.
strait_status strait_region_access(const struct strait_region *region,
                                   strait_access *access);

// Seals a region: no process can ever change it again. Fails with `STRAIT_STILL_MAPPED` as long as any process has the
// region mapped for writing. Fails with `STRAIT_WOULD_BLOCK` if another process blocks the call for a second, in a
// write to the region that does not end; the region is then sealed when that write ends.
strait_status strait_region_seal(const struct strait_region *region);

// Admits no new writer to a region. Processes that have it mapped for writing go on writing; no other mapping or
// process can ever write. Fails with `STRAIT_WOULD_BLOCK` as `strait_region_seal` does.
strait_status strait_region_admit_no_writer(const struct strait_region *region);

// Makes a read-only object of a region that other holders go on writing. `reader` receives the object, which the
// caller owns, or `NULL` on failure. A process of the same user that has `/proc` can still gain write access; against
// such a process only sealing helps.
strait_status strait_region_reader(const struct strait_region *region,
                                   struct strait_region **reader);

// Copies `len` bytes of a region, from `offset` on, to `out`, without mapping the region. The arguments have the order
// of those of `pread`. Fails with `STRAIT_OUT_OF_RANGE` if the region has fewer bytes.
strait_status strait_region_read_at(const struct strait_region *region,
                                    void *out,
                                    size_t len,
                                    size_t offset);

// Copies `len` bytes into a region at `offset`: without a mapping as long as no other process can have the region.
// The arguments have the order of those of `pwrite`. Fails with `STRAIT_OUT_OF_RANGE` if the bytes do not fit, and
// with `STRAIT_WOULD_BLOCK` while another process seals the region.
strait_status strait_region_write_at(const struct strait_region *region,
                                     const void *bytes,
                                     size_t len,
                                     size_t offset);

// Maps `len` bytes of a region from `offset` on; `how` is `STRAIT_MAP_*`.
//
// `mapping` receives the mapping, which the caller owns, or `NULL` on failure. Fails with `STRAIT_READ_ONLY`,
// `STRAIT_NOT_SEALED` or `STRAIT_OUT_OF_RANGE`.
strait_status strait_region_map(const struct strait_region *region,
                                strait_map how,
                                size_t offset,
                                size_t len,
                                struct strait_mapping **mapping);

// Makes `len` zero bytes of memory that no other process has, to be filled and then sealed with `strait_mapping_seal`.
// A child of `fork` does not have the memory.
//
// `mapping` receives the memory, or `NULL` on failure; the caller owns the mapping.
strait_status strait_region_writer(size_t len,
                                   struct strait_mapping **mapping);

// Makes memory like `strait_region_writer`, with `options`, which may be `NULL`.
strait_status strait_region_create_writer(const struct strait_region_options *options,
                                          size_t len,
                                          struct strait_mapping **mapping);

// Seals the memory of `strait_region_writer` or `strait_region_create_writer` without a copy. `region` receives a
// region that no process can ever change. The mapping keeps its address, as private memory for further reading and
// writing.
//
// No other thread may use the mapping during the call. On failure `region` receives `NULL` and the memory can be
// sealed later. The function fails with `STRAIT_INVALID_ARGUMENT` for any other mapping, and for one that was sealed
// before.
strait_status strait_mapping_seal(struct strait_mapping *mapping,
                                  struct strait_region **region);

// Returns the address of the mapped bytes, valid until the mapping is freed. Write to them only if the mapping was
// made for writing (`STRAIT_MAP_WRITE`, `STRAIT_MAP_COPY`, `strait_region_writer`). Returns `NULL` for `NULL`, and in
// the child of a `fork` for memory of `strait_region_writer` that is not sealed.
void *strait_mapping_data(struct strait_mapping *mapping);

// Returns the number of mapped bytes; 0 if `strait_mapping_data` returns `NULL`.
size_t strait_mapping_len(const struct strait_mapping *mapping);

// Unmaps the memory, and frees the mapping. Ignores `NULL`.
void strait_mapping_free(struct strait_mapping *mapping);

// Sends a message of `len` bytes; waits for room until the deadline. With `STRAIT_NOW`, sends only if there is room at
// once.
//
// The bytes are copied directly into shared memory. With `len` 0, `bytes` may be `NULL`: an empty message is a message
// too.
strait_status strait_send(const struct strait_channel *channel,
                          const void *bytes,
                          size_t len,
                          strait_deadline deadline);

// Sends a message of several parts, one after the other, with handles; waits for room until the deadline.
//
// The `part_count` parts, at most `STRAIT_MAX_PARTS`, are gathered directly into shared memory. A message may have no
// part. If the function succeeds, it takes the `handle_count` handles; otherwise the caller still owns them.
//
// If a handle is an end, function calls of other threads on the end fail with `STRAIT_MOVED`; waiting calls fail at
// once. This function continues when the other calls have returned. If sending then fails, the end is as before. Fails
// with `STRAIT_CLOSED` or `STRAIT_MOVED` if another thread has closed or sent the end. Fails with `STRAIT_IN_USE` if a
// view or a reservation of the end, or room or bytes of a data pipe, are held; also if another thread is sending
// `channel` itself while in a call on the end.
strait_status strait_sendv(const struct strait_channel *channel,
                           const struct iovec *parts,
                           size_t part_count,
                           struct strait_handle *handles,
                           size_t handle_count,
                           strait_deadline deadline);

// Sends a batch of `count` messages, at most `STRAIT_MAX_MESSAGES`. As many as fit appear at the peer at once, with
// one wake-up; for the others the function waits for room until the deadline. Messages with handles are sent one by
// one.
//
// `sent` receives the number of messages sent, also if the function fails; it may be `NULL`. A failure concerns the
// first unsent message. The unsent messages keep their handles.
strait_status strait_send_many(const struct strait_channel *channel,
                               const struct strait_outgoing *messages,
                               size_t count,
                               size_t *sent,
                               strait_deadline deadline);

// Makes an empty message, to receive into. The caller owns the message. Returns `NULL` on failure.
struct strait_message *strait_message_new(void);

// Frees a message, and closes the handles that were not taken. Ignores `NULL`.
void strait_message_free(struct strait_message *message);

// Empties a message: closes the handles that were not taken, and drops the bytes. The message keeps its memory for the
// next receive. Ignores `NULL`.
//
// The handles are closed without blocking: a thread of the library closes a descriptor whose close may take long. So
// to drop descriptors of an untrusted peer, leave the descriptors in the message and call this function, rather than
// take them and call `strait_handle_close`.
void strait_message_clear(struct strait_message *message);

// Returns the bytes of a message, valid until the message is received into again, cleared or freed. Returns `NULL`
// only if `message` is `NULL`, and in the child of a `fork` for bytes that the sender has sealed.
const void *strait_message_bytes(const struct strait_message *message);

// Returns the number of bytes of a message; 0 if `strait_message_bytes` returns `NULL`.
size_t strait_message_len(const struct strait_message *message);

// Takes the next handles out of a message, at most `capacity`, in the order of sending.
//
// `handles` receives the handles, and the caller owns them. `count` receives the number of handles: 0 when all handles
// were taken. Handles that do not fit stay for the next call; `STRAIT_MAX_HANDLES` are always enough. Fails with
// `STRAIT_HANDLES_LOST` if not all handles have arrived; then the handles that arrived were closed, and the bytes are
// intact.
strait_status strait_message_take_handles(struct strait_message *message,
                                          struct strait_handle *handles,
                                          size_t capacity,
                                          size_t *count);

// Takes the handle with this index out of a message, and leaves the other handles in the message.
//
// `index` counts the handles still in the message, from 0: each taken handle lowers the indices of the later handles
// by one. `handle` receives the handle, owned by the caller; the kind is `STRAIT_HANDLE_NONE` if there is no handle
// with this index. Fails with `STRAIT_HANDLES_LOST` like `strait_message_take_handles`.
strait_status strait_message_take_handle(struct strait_message *message,
                                         size_t index,
                                         struct strait_handle *handle);

// Writes the sizes of the next message to `info`, and leaves the message there. Does not block.
//
// The next receive gets the same message, unless another thread receives first. An untrusted peer may still change the
// message, so that `strait_recv_into` with a buffer of the reported size fails with `STRAIT_BUFFER_TOO_SMALL`. Fails
// with `STRAIT_WOULD_BLOCK` if no message is queued, and while another thread waits for a message or holds a view.
// Fails with `STRAIT_PEER_CLOSED` once everything sent by the peer was received.
strait_status strait_channel_peek(const struct strait_channel *channel,
                                  struct strait_message_info *info);

// Waits for the next message until the deadline, and receives it into `message`. With `STRAIT_NOW`, receives only a
// message that is already queued.
//
// The previous contents of `message` are lost in any case; after a failure the message is empty. A steady flow of
// messages allocates no memory. Fails with `STRAIT_PEER_CLOSED` once everything that the peer sent was received.
strait_status strait_recv(const struct strait_channel *channel,
                          struct strait_message *message,
                          strait_deadline deadline);

// Receives the next message into the front of a buffer of the caller's; waits for it until the deadline.
//
// `len` receives the number of bytes of the message. If `capacity` is less, the function fails with
// `STRAIT_BUFFER_TOO_SMALL`, `len` receives the needed capacity, and the message stays the next message. The handles
// of the message go into `handles`; take them with `strait_message_take_handles`. If `handles` is `NULL`, the handles
// are closed. The previous contents of `handles` are lost in any case.
strait_status strait_recv_into(const struct strait_channel *channel,
                               void *buffer,
                               size_t capacity,
                               size_t *len,
                               struct strait_message *handles,
                               strait_deadline deadline);

// Receives the queued messages, at most `count` and at least one; waits for the first message until the deadline.
//
// `messages` are `count` pointers to different messages. `received` receives the number of pointers, from the first,
// that hold a new message. The previous contents of all `count` messages are lost. A failure concerns the first
// message; the failure of a later message is returned by the next call.
strait_status strait_recv_many(const struct strait_channel *channel,
                               struct strait_message *const *messages,
                               size_t count,
                               size_t *received,
                               strait_deadline deadline);

// Forwards a received message with its handles; waits for room until the deadline. On success `message` is empty, and
// can be received into again. If the function fails, the message is unchanged.
//
// If the sender of a large message has sealed it (`strait_reserve_sealed`), the memory is passed on, at a cost
// independent of the size. Any other message is copied. A receiver of sealed memory can see that other processes have
// the same memory. Fails with `STRAIT_HANDLES_LOST` if the message did not arrive whole. Fails with
// `STRAIT_INVALID_ARGUMENT` if some of its handles were taken and others were not, or if its bytes are in a buffer of
// `strait_recv_into`.
strait_status strait_forward(const struct strait_channel *channel,
                             struct strait_message *message,
                             strait_deadline deadline);

// Makes room for a message of `len` bytes, to be filled in place and sent without a copy. Waits for room until the
// deadline, which also applies to `strait_reservation_commit`.
//
// `reservation` receives the reservation, or `NULL` on failure; the caller owns the reservation. If the caller leaves
// bytes unwritten, the peer reads the previous content of the memory: zeroes, or bytes of earlier messages to the same
// peer.
strait_status strait_reserve(const struct strait_channel *channel,
                             size_t len,
                             struct strait_reservation **reservation,
                             strait_deadline deadline);

// Makes fresh memory for a message of `len` bytes that is *sealed* when sent. From then on no process can change the
// message, and the receiver can read it in place without trusting this process (`strait_view_is_sealed`). The bytes
// are zeroes at first.
//
// `reservation` receives the reservation, or `NULL` on failure; the caller owns the reservation. The deadline applies
// to `strait_reservation_commit`. Costs fresh pages for each message: use this function for receivers that have to
// check the message and must not copy the bytes.
strait_status strait_reserve_sealed(const struct strait_channel *channel,
                                    size_t len,
                                    struct strait_reservation **reservation,
                                    strait_deadline deadline);

// Returns the memory of a reservation, with as many bytes as were reserved. Write to the memory, but do not read from
// it: the peer may be able to change the bytes. Valid until the reservation is committed or cancelled. Returns `NULL`
// for `NULL`, and in the child of a `fork`.
void *strait_reservation_data(struct strait_reservation *reservation);

// Sends the first `len` bytes of the reserved memory as a message, with handles.
//
// The reservation is freed in any case. If the function succeeds, it takes the handles; otherwise the caller still
// owns the handles, and the bytes of the message are lost. A sealed message is sent whole: `len` must be the number of
// bytes reserved.
//
// Waits until the deadline that was given for the reservation. With `STRAIT_NOW`, a small message without handles
// finds its room. A large or a sealed message, and a message with handles, may still fail with `STRAIT_WOULD_BLOCK`:
// they need room in the ring or in the socket that `strait_reserve` has not reserved. So may any message if the other
// end was sent to another process meanwhile. Reserve with a later deadline, or keep what is needed to write the
// message again.
strait_status strait_reservation_commit(struct strait_reservation *reservation,
                                        size_t len,
                                        struct strait_handle *handles,
                                        size_t handle_count);

// Frees a reservation without sending a message. Ignores `NULL`.
void strait_reservation_cancel(struct strait_reservation *reservation);

// Receives the next message without copying it, to be read in the memory where the peer wrote it; waits for the
// message until the deadline.
//
// `view` receives the message, or `NULL` on failure; the caller owns the view. Free the view soon, since the message
// occupies the sender's room.
strait_status strait_recv_in_place(const struct strait_channel *channel,
                                   struct strait_view **view,
                                   strait_deadline deadline);

// Returns the number of bytes of the message, which does not change; 0 for `NULL`.
size_t strait_view_len(const struct strait_view *view);

// Returns the bytes of the message, valid until the view is freed. **Unless the message is sealed, the peer can change
// the bytes while this process reads them**: copy the bytes on which a decision depends with `strait_view_read_at`,
// and decide on the copy. Returns `NULL` for `NULL`, and in the child of a `fork`.
const void *strait_view_data(const struct strait_view *view);

// Returns whether the bytes are sealed: no process can change the bytes any more. `false` in the child of a `fork`.
bool strait_view_is_sealed(const struct strait_view *view);

// Copies `len` bytes of the message, from `offset` on, to `out`. The arguments have the order of those of `pread`.
// Fails with `STRAIT_INVALID_ARGUMENT` if the message has fewer bytes.
strait_status strait_view_read_at(struct strait_view *view,
                                  void *out,
                                  size_t len,
                                  size_t offset);

// Takes the next handles out of the message, as `strait_message_take_handles` does.
strait_status strait_view_take_handles(struct strait_view *view,
                                       struct strait_handle *handles,
                                       size_t capacity,
                                       size_t *count);

// Forwards the message with its handles over another channel without reading the bytes; waits for room until the
// deadline. For a large message that is not sealed, `strait_forward` makes two copies, and this function one.
//
// If the function succeeds, the handles are gone. The view stays; free it to make room for the sender. If the function
// fails, the view is as it was. The bytes seen in the view are certain to be the bytes sent only if the message is
// sealed. To check a message before forwarding it, receive it and call `strait_forward`. Fails with
// `STRAIT_INVALID_ARGUMENT` if some of the handles were taken and others were not.
strait_status strait_view_forward(struct strait_view *view,
                                  const struct strait_channel *channel,
                                  strait_deadline deadline);

// Frees a view, which makes room for the sender, and closes the handles still in the message without blocking. Ignores
// `NULL`.
void strait_view_free(struct strait_view *view);

// Turns an end of a channel into a call end. The other end must be turned into one, too. From then on nothing
// else may be sent or received on the channel.
//
// If the function succeeds, it takes `channel`, the caller's reference; otherwise the caller still owns the reference.
// Function calls of other threads on the channel fail with `STRAIT_MOVED`; waiting calls fail at once. Fails with
// `STRAIT_IN_USE` if a view or a reservation of the channel is held. `end` receives the call end, which the caller
// owns, or `NULL` on failure. Does not block.
strait_status strait_call_end_over(struct strait_channel *channel,
                                   struct strait_call_end **end);

// Frees a call end. The channel closes once the repliers of all received requests are freed, too. Ignores
// `NULL`. Does not block.
void strait_call_end_free(struct strait_call_end *end);

// Sends a request to the other end, and waits for its reply until the deadline, which also applies to sending. Any
// number of threads may call at once.
//
// Parts and handles are as in `strait_sendv`. `reply` receives the reply; its previous contents are lost in any case.
//
// * `STRAIT_OUTCOME_UNKNOWN`: the request was sent, and there will be no reply: the deadline has passed, or the peer
//   is gone.
// * `STRAIT_NOT_ANSWERED`: the other end dropped the request without a reply.
// * Any other failure: the request was not sent, and the caller still owns the handles.
strait_status strait_call(const struct strait_call_end *end,
                          const struct iovec *parts,
                          size_t part_count,
                          struct strait_handle *handles,
                          size_t handle_count,
                          struct strait_message *reply,
                          strait_deadline deadline);

// Receives the next request of the other end; waits for it until the deadline.
//
// `request` receives the request; the previous contents are lost in any case. `replier` receives the object for the
// reply, or `NULL` on failure; the caller owns the object.
strait_status strait_call_next(const struct strait_call_end *end,
                               struct strait_message *request,
                               struct strait_replier **replier,
                               strait_deadline deadline);

// Returns whether the caller has stopped waiting for the reply, as far as this process knows. Returns false for
// `NULL`. Does not block.
bool strait_replier_is_cancelled(const struct strait_replier *replier);

// Replies to a request, once; waits for room until the deadline. Parts and handles are as in `strait_sendv`. The
// caller still owns the replier, and has to free it. After a failure, the replier can be used again.
strait_status strait_replier_reply(struct strait_replier *replier,
                                   const struct iovec *parts,
                                   size_t part_count,
                                   struct strait_handle *handles,
                                   size_t handle_count,
                                   strait_deadline deadline);

// Frees a replier. If it has sent no reply, the caller of the request gets `STRAIT_NOT_ANSWERED`. Ignores `NULL`. Does
// not block.
void strait_replier_free(struct strait_replier *replier);

// Makes a wait set without members. A set has two descriptors, however many members it has.
//
// `set` receives the set, or `NULL` on failure; the caller owns the set.
strait_status strait_wait_set_new(struct strait_wait_set **set);

// Frees a wait set, after removing all members. Ignores `NULL`.
void strait_wait_set_free(struct strait_wait_set *set);

// Adds a channel, whose events carry `key`; keys need not differ. If the channel is ready now, that counts as an
// event. Does not block.
//
// `interest` is `STRAIT_READABLE`, `STRAIT_WRITABLE` or both. The caller still owns the channel. A channel is in one
// set at a time, and leaves the set when it is closed or sent.
strait_status strait_wait_set_add(const struct strait_wait_set *set,
                                  const struct strait_channel *channel,
                                  uint64_t key,
                                  strait_events interest,
                                  strait_mode mode);

// Replaces the key, the interest and the mode of a channel in the set, and arms its registration. With the values of
// `strait_wait_set_add`, arms a one-shot registration again. If the channel is ready now, that counts as an event.
// Does not block.
strait_status strait_wait_set_modify(const struct strait_wait_set *set,
                                     const struct strait_channel *channel,
                                     uint64_t key,
                                     strait_events interest,
                                     strait_mode mode);

// Arms a channel of the set for one event: the send that has just failed with `STRAIT_WOULD_BLOCK` in this thread may
// succeed now. Does not block.
//
// Call this right after a send with `STRAIT_NOW` from `channel`. The event is `STRAIT_WRITABLE`, and comes when what
// that send lacked may be there: room for this message, however large, and not only for a small one. The event also
// comes if a send would fail at once, and may come early. Then send again; if that fails with `STRAIT_WOULD_BLOCK`,
// call this function again. Until then the set reports nothing else for the channel, and no arriving messages either:
// `strait_wait_set_modify` ends the wait for room and sets another interest.
strait_status strait_wait_set_await_room(const struct strait_wait_set *set,
                                         const struct strait_channel *channel,
                                         uint64_t key);

// Removes a channel. Later calls of `strait_wait_set_wait` report no event of the channel. Does not block.
strait_status strait_wait_set_remove(const struct strait_wait_set *set,
                                     const struct strait_channel *channel);

// Adds the writing end of a data pipe, as `strait_wait_set_add` adds a channel. Its event is `STRAIT_WRITABLE`: there
// is room for an element, or the consumer is gone.
strait_status strait_wait_set_add_producer(const struct strait_wait_set *set,
                                           const struct strait_producer *producer,
                                           uint64_t key,
                                           strait_mode mode);

// Replaces the key and the mode of an end of a data pipe in the set, and arms its registration, as
// `strait_wait_set_modify` does for a channel.
strait_status strait_wait_set_modify_producer(const struct strait_wait_set *set,
                                              const struct strait_producer *producer,
                                              uint64_t key,
                                              strait_mode mode);

// Removes an end of a data pipe, as `strait_wait_set_remove` removes a channel.
strait_status strait_wait_set_remove_producer(const struct strait_wait_set *set,
                                              const struct strait_producer *producer);

// Adds the reading end of a data pipe, as `strait_wait_set_add` adds a channel. Its event is `STRAIT_READABLE`: there
// is an element, or the stream has ended.
strait_status strait_wait_set_add_consumer(const struct strait_wait_set *set,
                                           const struct strait_consumer *consumer,
                                           uint64_t key,
                                           strait_mode mode);

// Replaces the key and the mode of an end of a data pipe in the set, and arms its registration, as
// `strait_wait_set_modify` does for a channel.
strait_status strait_wait_set_modify_consumer(const struct strait_wait_set *set,
                                              const struct strait_consumer *consumer,
                                              uint64_t key,
                                              strait_mode mode);

// Removes an end of a data pipe, as `strait_wait_set_remove` removes a channel.
strait_status strait_wait_set_remove_consumer(const struct strait_wait_set *set,
                                              const struct strait_consumer *consumer);

// Adds a listener, as `strait_wait_set_add` adds a channel. Its event is `STRAIT_READABLE`: `strait_listener_accept`
// has something to do, though not always something to return. The listener leaves the set when it is freed.
strait_status strait_wait_set_add_listener(const struct strait_wait_set *set,
                                           const struct strait_listener *listener,
                                           uint64_t key,
                                           strait_mode mode);

// Replaces the key and the mode of a listener in the set, and arms its registration, as `strait_wait_set_modify` does
// for a channel.
strait_status strait_wait_set_modify_listener(const struct strait_wait_set *set,
                                              const struct strait_listener *listener,
                                              uint64_t key,
                                              strait_mode mode);

// Removes a listener, as `strait_wait_set_remove` removes a channel.
strait_status strait_wait_set_remove_listener(const struct strait_wait_set *set,
                                              const struct strait_listener *listener);

// Adds any other descriptor, such as a socket, a timer or an eventfd, as `strait_wait_set_add` adds a channel. The
// events are the events of `poll`; an error or a hang-up counts as both events.
//
// A file can make the kernel wait for another process in this call and in each wait of the set, for any time: an epoll
// instance that another process uses too, or a file of a file system in user space. Do not add a descriptor of a
// process that you do not trust, unless the kind of the file is known to be harmless.
//
// The set watches a duplicate, so the caller still owns `fd`. Remove `fd` from the set before closing `fd`:
// afterwards, another file may have the number. Fails with `STRAIT_IN_SET` if a descriptor with the same number is in
// the set.
strait_status strait_wait_set_add_fd(const struct strait_wait_set *set,
                                     int fd,
                                     uint64_t key,
                                     strait_events interest,
                                     strait_mode mode);

// Replaces the key, the interest and the mode of a descriptor in the set, and arms its registration, as
// `strait_wait_set_modify` does for a channel.
strait_status strait_wait_set_modify_fd(const struct strait_wait_set *set,
                                        int fd,
                                        uint64_t key,
                                        strait_events interest,
                                        strait_mode mode);

// Removes a descriptor, as `strait_wait_set_remove` removes a channel.
strait_status strait_wait_set_remove_fd(const struct strait_wait_set *set, int fd);

// Waits until a member is ready, or until the deadline.
//
// `events` receives the events, at most `capacity` and at least one. `count` receives the number of events: 0 if the
// deadline has passed, which is a success. A call reports a member at most once. A level registration that stays ready
// is reported by the next call again, and members take turns. An event may be out of date: handling an earlier event
// may have closed the channel of a later event, so look up the key rather than follow a pointer to a freed object.
strait_status strait_wait_set_wait(const struct strait_wait_set *set,
                                   struct strait_event *events,
                                   size_t capacity,
                                   size_t *count,
                                   strait_deadline deadline);

// Returns a descriptor for `poll`, `epoll` or any event loop. It is readable whenever `strait_wait_set_wait` may have
// events. Then call `strait_wait_set_wait` with `STRAIT_NOW` once, handle the events, and poll the descriptor again:
// it stays readable as long as there may be more. The call that returns no event makes the descriptor unreadable.
//
// Watch the descriptor level-triggered, without `EPOLLET`. An edge-triggered loop gets no further wake-up for
// remaining events: such a loop has to call `strait_wait_set_wait` until the call returns no event and
// `strait_wait_set_has_more` is false, and busy clients can prolong the loop for ever. The set owns the descriptor: do
// not read from the descriptor or close it. Returns -1 if `set` is `NULL`.
int strait_wait_set_fd(const struct strait_wait_set *set);

// Returns whether the set has more work although `strait_wait_set_wait` with `STRAIT_NOW` has returned no event. For
// edge-triggered event loops (`EPOLLET`). Returns false for `NULL`.
bool strait_wait_set_has_more(const struct strait_wait_set *set);

// Returns the number of members of a set; 0 for `NULL`.
size_t strait_wait_set_len(const struct strait_wait_set *set);

// Makes room for a message of `len` bytes over a sender, as `strait_reserve` does for an end. The thread that uses the
// sender commits or cancels the reservation; until then other functions fail with `STRAIT_IN_USE` for the sender.
strait_status strait_sender_reserve(struct strait_sender *sender,
                                    size_t len,
                                    struct strait_reservation **reservation,
                                    strait_deadline deadline);

// Makes memory for a message of `len` bytes that is sealed when sent, over a sender, as `strait_reserve_sealed` does
// for an end. The thread that uses the sender commits or cancels the reservation; until then other functions fail with
// `STRAIT_IN_USE` for the sender.
strait_status strait_sender_reserve_sealed(struct strait_sender *sender,
                                           size_t len,
                                           struct strait_reservation **reservation,
                                           strait_deadline deadline);

// Splits an end into a sender and a receiver, for two threads: one only sends, the other only receives. Calls on a
// half need no lock, because only one thread at a time uses the half. So the calls are faster than on an end.
//
// If the function succeeds, it takes this reference to the end; other references fail with `STRAIT_MOVED` from then
// on. `sender` and `receiver` receive the halves, which the caller owns, or `NULL` on failure. The end is closed when
// both halves are freed; `strait_sender_join` makes the end again, for example to send it. Fails as `strait_sendv`
// does for an end that is sent: with `STRAIT_CLOSED`, `STRAIT_MOVED` or `STRAIT_IN_USE`. Does not block.
strait_status strait_channel_split(struct strait_channel *channel,
                                   struct strait_sender **sender,
                                   struct strait_receiver **receiver);

// Joins the two halves of an end to the end that was split. If the function succeeds, it takes both halves, and
// `channel` receives the end, which the caller owns. Fails with `STRAIT_INVALID_ARGUMENT` if the halves belong to
// different ends; then the caller still owns them, and `channel` receives `NULL`. Does not block.
strait_status strait_sender_join(struct strait_sender *sender,
                                 struct strait_receiver *receiver,
                                 struct strait_channel **channel);

// Sends a message of `len` bytes, as `strait_send` does.
strait_status strait_sender_send(struct strait_sender *sender,
                                 const void *bytes,
                                 size_t len,
                                 strait_deadline deadline);

// Sends a message of several parts with handles, as `strait_sendv` does.
strait_status strait_sender_sendv(struct strait_sender *sender,
                                  const struct iovec *parts,
                                  size_t part_count,
                                  struct strait_handle *handles,
                                  size_t handle_count,
                                  strait_deadline deadline);

// Sends a batch of `count` messages, as `strait_send_many` does.
strait_status strait_sender_send_many(struct strait_sender *sender,
                                      const struct strait_outgoing *messages,
                                      size_t count,
                                      size_t *sent,
                                      strait_deadline deadline);

// Receives the next message into `message`, as `strait_recv` does.
strait_status strait_receiver_recv(struct strait_receiver *receiver,
                                   struct strait_message *message,
                                   strait_deadline deadline);

// Receives the next message into the front of a buffer of the caller's, as `strait_recv_into` does.
strait_status strait_receiver_recv_into(struct strait_receiver *receiver,
                                        void *buffer,
                                        size_t capacity,
                                        size_t *len,
                                        struct strait_message *handles,
                                        strait_deadline deadline);

// Receives the queued messages, at most `count` and at least one, as `strait_recv_many` does.
strait_status strait_receiver_recv_many(struct strait_receiver *receiver,
                                        struct strait_message *const *messages,
                                        size_t count,
                                        size_t *received,
                                        strait_deadline deadline);

// Frees a sender. The end is closed once its receiver is freed too. Ignores `NULL`.
void strait_sender_free(struct strait_sender *sender);

// Frees a receiver. The end is closed once its sender is freed too. Ignores `NULL`.
void strait_receiver_free(struct strait_receiver *receiver);

// Adds a receiver, as `strait_wait_set_add` adds an end. Its event is `STRAIT_READABLE`. The thread that uses the
// receiver calls this function. From then on the calls of both halves take a lock, as the calls of an end do. The
// receiver leaves the set when both halves are freed.
strait_status strait_wait_set_add_receiver(const struct strait_wait_set *set,
                                           struct strait_receiver *receiver,
                                           uint64_t key,
                                           strait_mode mode);

// Replaces the key and the mode of a receiver in the set, and arms its registration, as `strait_wait_set_modify` does
// for an end.
strait_status strait_wait_set_modify_receiver(const struct strait_wait_set *set,
                                              struct strait_receiver *receiver,
                                              uint64_t key,
                                              strait_mode mode);

// Removes a receiver, as `strait_wait_set_remove` removes an end.
strait_status strait_wait_set_remove_receiver(const struct strait_wait_set *set,
                                              struct strait_receiver *receiver);

// Adds a sender, as `strait_wait_set_add` adds an end. Its event is `STRAIT_WRITABLE`. The thread that uses the
// sender calls this function. From then on the calls of both halves take a lock, as the calls of an end do. The
// sender leaves the set when both halves are freed.
strait_status strait_wait_set_add_sender(const struct strait_wait_set *set,
                                         struct strait_sender *sender,
                                         uint64_t key,
                                         strait_mode mode);

// Replaces the key and the mode of a sender in the set, and arms its registration, as `strait_wait_set_modify` does
// for an end.
strait_status strait_wait_set_modify_sender(const struct strait_wait_set *set,
                                            struct strait_sender *sender,
                                            uint64_t key,
                                            strait_mode mode);

// Arms a sender of the set for one event: the send that has just failed with `STRAIT_WOULD_BLOCK` in this thread may
// succeed now. Like `strait_wait_set_await_room` for an end. `strait_wait_set_modify_sender` ends the wait for room.
strait_status strait_wait_set_await_room_sender(const struct strait_wait_set *set,
                                                struct strait_sender *sender,
                                                uint64_t key);

// Removes a sender, as `strait_wait_set_remove` removes an end.
strait_status strait_wait_set_remove_sender(const struct strait_wait_set *set,
                                            struct strait_sender *sender);

// Returns the number with which the other end was closed, as `strait_channel_close_reason` does.
bool strait_receiver_close_reason(struct strait_receiver *receiver, uint32_t *reason);

// Starts a program with a channel. The program takes its end with `strait_from_parent`.
//
// `program` is searched in `PATH` if the text has no slash. `argv` are the arguments: the first is the program's own
// name, and the last is `NULL`. `envp` is the environment, also with `NULL` at the end; if `envp` is `NULL`, the
// program gets the environment of this process. `options` apply to this end, and may be `NULL`. The caller keeps all
// of these. `channel` receives this end, owned by the caller. `pid` receives the process number; the caller has to
// wait for the process as for any child.
//
// The program inherits a single descriptor of Strait. Messages sent before the program takes its end wait for the
// program. If the program exits without taking its end, this end gets `STRAIT_PEER_CLOSED`. Does not block, except for
// starting the program.
strait_status strait_spawn(const char *program,
                           const char *const *argv,
                           const char *const *envp,
                           const struct strait_options *options,
                           struct strait_channel **channel,
                           pid_t *pid);

// Makes a channel to a program that the caller starts in another way than with `strait_spawn`.
//
// `options` apply to this end, and may be `NULL`. `channel` receives this end, owned by the caller. `fd` receives the
// descriptor for the program. The program has to inherit the descriptor under the number `number`, which must be above
// 2; -1 means the present number of the descriptor. The descriptor is closed on `exec`, and the caller has to close it
// once the program has started. `value` receives a text for the program's environment, as the variable
// `STRAIT_PARENT`; there must be room for `STRAIT_INHERITANCE_LEN` bytes. On failure the function writes `NULL`, -1
// and an empty text.
strait_status strait_inheritance(const struct strait_options *options,
                                 int number,
                                 struct strait_channel **channel,
                                 int *fd,
                                 char *value);

// Takes the channel to the parent process, which started this process with `strait_spawn`, or with the corresponding
// function of another language. Works once in the life of a process. Does not block.
//
// `options` may be `NULL`. `channel` receives the end, which the caller owns, or `NULL` on failure.
strait_status strait_from_parent(const struct strait_options *options,
                                 struct strait_channel **channel);

// Listens under a name. Blocks only while another process of this user takes the same name, or another thread of this
// process takes any name.
//
// `name` may be an absolute path: the last part is then the name, and the rest its directory. `options` may be `NULL`.
// `listener` receives the listener, which the caller owns, or `NULL` on failure. Fails with
// `STRAIT_NAME_TAKEN` if another process, or another listener of this process, listens under the name. The name of a
// process that is gone is taken over.
strait_status strait_listener_bind(const char *name,
                                   const struct strait_listener_options *options,
                                   struct strait_listener **listener);

// Listens on a socket that a service manager made. `name` is the name of the socket in the unit
// (`FileDescriptorName=`); `NULL` takes the only socket. Each socket can be taken once. Otherwise like
// `strait_listener_bind`.
strait_status strait_listener_activated(const char *name,
                                        const struct strait_listener_options *options,
                                        struct strait_listener **listener);

// Stops listening, and frees the listener. Its invitations are refused from now on. Ignores `NULL`.
void strait_listener_free(struct strait_listener *listener);

// Waits for the next process until the deadline, and accepts the process. Refused processes do not end the wait.
//
// `channel` receives this end of the new channel, or `NULL` on failure; the caller owns the end.
strait_status strait_listener_accept(const struct strait_listener *listener,
                                     struct strait_channel **channel,
                                     strait_deadline deadline);

// Ends all waits in `strait_listener_accept` and `strait_invitation_accept`, those in progress and all later ones.
// The waits fail with `STRAIT_CLOSED`. To stop a service, call this function from another thread, and free the
// listener once no thread uses it. Does not block. Ignores `NULL`.
void strait_listener_stop(const struct strait_listener *listener);

// Returns a descriptor for event loops. It is readable when `strait_listener_accept` with `STRAIT_NOW` has work to do,
// though that function does not always return a channel then. The listener owns the descriptor. Returns -1 if
// `listener` is `NULL`.
int strait_listener_fd(const struct strait_listener *listener);

// Returns the path of the listener's socket. Valid until the listener is freed. Returns `NULL` if `listener` is
// `NULL`.
const char *strait_listener_path(const struct strait_listener *listener);

// Connects to the process that listens under a name; waits until the deadline for the server to accept.
//
// `name` may be an absolute path: the last part is then the name, and the rest its directory. `options` may be `NULL`.
// `channel` receives this end of the new channel, which the caller owns, or `NULL` on failure. Fails with
// `STRAIT_NOBODY_THERE`, `STRAIT_REFUSED` or `STRAIT_WRONG_SERVER`.
strait_status strait_connect(const char *name,
                             const struct strait_connect_options *options,
                             struct strait_channel **channel,
                             strait_deadline deadline);

// Makes an invitation for one process, valid for `nanoseconds`.
//
// `invitation` receives the invitation, which the caller owns, or `NULL` on failure. The invitation may outlive the
// listener, but then no process is let in.
strait_status strait_listener_invite(const struct strait_listener *listener,
                                     uint64_t nanoseconds,
                                     struct strait_invitation **invitation);

// Revokes an invitation, and frees the object. Ignores `NULL`.
void strait_invitation_free(struct strait_invitation *invitation);

// Starts a program as `strait_spawn` does, and writes the invitation to the program's standard input. The program
// takes its end with `strait_invited`.
//
// `pid` receives the process number; the caller has to wait for the process as for any child. `stdin_fd` receives the
// writing end of the program's standard input, which the caller has to close; if `stdin_fd` is `NULL`, that end is
// closed at once.
strait_status strait_invitation_spawn(const struct strait_invitation *invitation,
                                      const char *program,
                                      const char *const *argv,
                                      const char *const *envp,
                                      pid_t *pid,
                                      int *stdin_fd);

// Writes the invitation line to `fd`, connected to the standard input of the invited process. Use this function for a
// process started by the caller's own means. Any process that reads the line can use the invitation. The caller still
// owns `fd`. Blocks as long as the write to `fd` blocks.
strait_status strait_invitation_tell(const struct strait_invitation *invitation,
                                     int fd);

// Accepts the invited process; waits for the process until the deadline.
//
// `channel` receives this end of the new channel, or `NULL` on failure; the caller owns the end.
strait_status strait_invitation_accept(const struct strait_invitation *invitation,
                                       struct strait_channel **channel,
                                       strait_deadline deadline);

// Connects to the process that sent an invitation over the standard input of this process; waits until the deadline to
// be accepted. Reads one line of standard input, and no byte more.
//
// `options` may be `NULL`. `channel` receives this end of the new channel, or `NULL` on failure; the caller owns the
// end.
strait_status strait_invited(const struct strait_options *options,
                             struct strait_channel **channel,
                             strait_deadline deadline);

// Calls `tell` with each name in a directory, sorted. `directory` may be `NULL` for the directory of this user. The
// function connects to each name to find out whether a process listens there; the listener does not notice. A
// directory that does not exist has no names.
strait_status strait_names(const char *directory,
                           strait_tell_name tell,
                           void *context);

// Writes the process at the other end to `peer`; for a channel within one process, this process. Fails with
// `STRAIT_WOULD_BLOCK` before the peer has opened its side. Does not block.
strait_status strait_channel_peer(const struct strait_channel *channel,
                                  struct strait_peer *peer);

// Makes a pidfd for the process at the other end. It keeps meaning that process after the process number is reused,
// and can be polled for the death of the process.
//
// `pidfd` receives the descriptor, or -1 on failure; the caller has to close the descriptor. Fails with
// `STRAIT_WOULD_BLOCK` before the peer has opened its side.
strait_status strait_channel_peer_pidfd(const struct strait_channel *channel,
                                        int *pidfd);

// Writes the state of an end to `state`: how much is queued to be received, whether there is room to send, and whether
// the other end is closed. Receives nothing and does not block.
//
// Fails with `STRAIT_WOULD_BLOCK` if another thread waits for a message or for room, or holds a view or a reservation;
// and with `STRAIT_LIMIT_REACHED` or `STRAIT_NO_MEMORY` if the messages in a ring that was just replaced cannot be
// stored: receive, then ask again.
strait_status strait_channel_status(const struct strait_channel *channel,
                                    struct strait_channel_state *state);

// Reports the process at the other end as a bad peer, for the given reason: an invalid message, for example. Closes
// the link to that process and every channel over the link, as if the peer had broken the library's own protocol; this
// end always ends. Later functions on it fail with `STRAIT_BAD_PEER`, and their text names `reason`. The function of
// `strait_on_bad_peer` is called; the peer gets `STRAIT_PEER_CLOSED`.
//
// `reported` receives the fate of the link; it may be `NULL`. `reason` is a text in UTF-8. The library keeps a copy of
// each text for the life of the process, so give only a few different texts: from the 1,025th different text on, a
// standard text replaces the reason. Does not block.
strait_status strait_channel_report_bad(const struct strait_channel *channel,
                                        const char *reason,
                                        strait_reported *reported);

// Reports that the sender of a received message is a bad peer, as `strait_channel_report_bad` does, for a part of a
// program that has the message and not the channel. Closes the link over which the message came. `reported` may be
// `NULL`.
strait_status strait_message_report_bad(const struct strait_message *message,
                                        const char *reason,
                                        strait_reported *reported);

// Writes the counters of an end to `counters`. Does not block.
strait_status strait_channel_counters(const struct strait_channel *channel,
                                      struct strait_counters *counters);

// Sets the limits of a resource in this process: `peer` for one peer process, over all links to it, and `user` for all
// peer processes of one user together. The limits apply to later requests; this process keeps the resources already
// held. Does not block.
strait_status strait_set_limit(strait_resource resource,
                               uint64_t peer,
                               uint64_t user);

// Sets the limit on the bytes of memory that this process keeps for outgoing large messages, over all channels.
// Default: 256 MiB. If the memory already kept exceeds a lower limit, the excess is given back as by `strait_trim`.
//
// The memory of a message is kept once the message was received, so that the next message finds warm memory. A message
// for which no memory can be kept uses fresh memory once. Memory that was not used for 10 seconds is given back.
void strait_set_pool_limit(size_t bytes);

// Returns the number of bytes set by `strait_set_pool_limit`, or the default.
size_t strait_pool_limit(void);

// Returns the number of bytes of memory currently kept by this process for outgoing large messages, including messages
// in flight.
size_t strait_pool_held(void);

// Gives back the unused part of the memory kept for outgoing large messages. Returns the number of bytes given back.
// Takes some 0.2 ms for each MiB. A thread of the library gives back memory that a peer has. The call waits for the
// thread, for at most 1 second and 1 ms for each MiB; what is not given back by then counts as kept until the thread
// has given it back.
size_t strait_trim(void);

// Writes to `usage` how much of a resource this process holds for the process at the other end, and for that process's
// user. Fails with `STRAIT_WOULD_BLOCK` before the peer has opened its side, and on a channel within one process. Does
// not block.
strait_status strait_channel_peer_usage(const struct strait_channel *channel,
                                        strait_resource resource,
                                        struct strait_usage *usage);

// Registers a function to be called for each peer process that breaks the protocol. The new function replaces the
// previous function; `NULL` registers no function. The library writes no logs.
//
// The registered function runs in a thread that is in a call of this library, while the library holds no lock, so the
// function may call any function. The function receives `context`, which must stay valid for the life of the process.
void strait_on_bad_peer(strait_tell_bad_peer tell,
                        void *context);

// Writes the numbers of the system calls of a phase, one of `STRAIT_PHASE_*`, to `numbers`, as many as `capacity` has
// room for. They are the calls of the library and of the allocator below it, on the architecture for which the library
// was built. Returns how many the phase has; 0 for an unknown phase. `numbers` may be `NULL` if `capacity` is 0.
//
// A process takes its channel first, then activates the filter, and then looks at messages of its peers.
size_t strait_system_calls(strait_phase phase,
                           int64_t *numbers,
                           size_t capacity);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* STRAIT_H */
