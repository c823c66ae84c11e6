// Strait: message channels between processes on one Linux machine.
//
// * A call returns a status. On failure it has changed nothing unless it says otherwise: what it was given is still the caller's, and what
//   it would have given is NULL, -1 or 0. strait_last_error_text says what to do about the last failure of this thread.
// * What a call gives is the caller's, to be freed by the call named after it (strait_channel_close, strait_message_free, ...).
// * A call that may wait takes a deadline, and waits no longer.
// * There is nothing to set up. Threads may use the library at once; one object only as it says.
// * In the child of a fork without exec, calls on what its parent made fail with STRAIT_FORKED.
//
// This file is made from the sources of the library: see docs/c-and-cpp.md.

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

// For an option where 0 is meant, since 0 stands for the default.
#define STRAIT_ZERO 18446744073709551615ull

// The most parts that one message may be given in.
#define STRAIT_MAX_PARTS 65536

// The most messages in one call.
#define STRAIT_MAX_MESSAGES 1048576

// The most handles that a message has.
#define STRAIT_MAX_HANDLES 64

// The most bytes that a message has.
#define STRAIT_MAX_MESSAGE 268435456

// What a call returns: `STRAIT_OK`, or why it failed. `strait_last_error_text` says what to do about it.
//
// A failed call has changed nothing, unless it says otherwise: what it was given is still the caller's.
enum strait_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Done.
    STRAIT_OK = 0,
    // It would have to wait, and the deadline was `STRAIT_NOW`.
    STRAIT_WOULD_BLOCK = 1,
    // The deadline passed first.
    STRAIT_TIMED_OUT = 2,
    // The other end was closed or its process died. When receiving: and everything it had sent was received.
    STRAIT_PEER_CLOSED = 3,
    // The message is longer than this end's limit.
    STRAIT_MESSAGE_TOO_LARGE = 4,
    // More handles in one message than this end's limit.
    STRAIT_TOO_MANY_HANDLES = 5,
    // The buffer is too small for the next message, which stays the next one.
    STRAIT_BUFFER_TOO_SMALL = 6,
    // A handle to be sent is not an open descriptor, is there twice, or is of no known kind.
    STRAIT_BAD_HANDLE = 7,
    // An end of a channel cannot be sent over that channel.
    STRAIT_OWN_CHANNEL = 8,
    // The channel is in a wait set already.
    STRAIT_IN_SET = 9,
    // The channel is not in this wait set.
    STRAIT_NOT_IN_SET = 10,
    // Descriptors of this message did not arrive; its bytes did.
    STRAIT_HANDLES_LOST = 11,
    // This process has no free descriptor.
    STRAIT_NO_DESCRIPTORS = 12,
    // The kernel has no memory for it.
    STRAIT_NO_MEMORY = 13,
    // As much is held for the peer as may be: see `strait_set_limit`.
    STRAIT_LIMIT_REACHED = 14,
    // The peer broke the protocol; the channel is at an end.
    STRAIT_BAD_PEER = 15,
    // One of the two sides does not want the other.
    STRAIT_REFUSED = 16,
    // This process is the child of a `fork` without `exec`; the channel belongs to its parent.
    STRAIT_FORKED = 17,
    // Not a connected `SOCK_SEQPACKET` Unix socket.
    STRAIT_NOT_A_SOCKET = 18,
    // Not a name: 1 to 64 letters, digits, dots, dashes and underscores, the first of them no dot.
    STRAIT_BAD_NAME = 19,
    // Somebody listens under this name.
    STRAIT_NAME_TAKEN = 20,
    // Nobody listens under this name.
    STRAIT_NOBODY_THERE = 21,
    // Others could change what is in the directory of names.
    STRAIT_UNSAFE_DIRECTORY = 22,
    // Whoever listens under this name is another user than the one expected.
    STRAIT_WRONG_SERVER = 23,
    // There was no invitation on standard input.
    STRAIT_NO_INVITATION = 24,
    // The service manager passed no such listening socket.
    STRAIT_NOT_ACTIVATED = 25,
    // This process was not started with a channel.
    STRAIT_NO_PARENT = 26,
    // The channel to the parent was taken before.
    STRAIT_PARENT_TAKEN = 27,
    // A system call was refused; `strait_last_error` has its `errno`.
    STRAIT_SYSTEM = 28,
    // This end was closed, through another reference to it.
    STRAIT_CLOSED = 29,
    // This end was sent away in a message, or is just being sent, through another reference to it; or was about to, which ended the call.
    STRAIT_MOVED = 30,
    // The end to be sent is in use: a view or a reservation of it is still held, or it and the end that it is to be sent over are just
    // being sent over each other. Of a data pipe: room or bytes are held that a call has begun with.
    STRAIT_IN_USE = 31,
    // An argument that cannot be meant: a null pointer, a number out of range, bytes that are not zero where they must be.
    STRAIT_INVALID_ARGUMENT = 32,
    // A defect of Strait, which was caught at the border of the library. What the call did until then is not known.
    STRAIT_PANICKED = 33,
    // An error that this build of the C library has no number for; it has a text.
    STRAIT_OTHER = 34,
    // The region, or this handle of it, cannot be written to.
    STRAIT_READ_ONLY = 35,
    // The region is not sealed, so it could change while it is read.
    STRAIT_NOT_SEALED = 36,
    // The region is mapped for writing, here or elsewhere, so it cannot be sealed.
    STRAIT_STILL_MAPPED = 37,
    // There are fewer bytes than that.
    STRAIT_OUT_OF_RANGE = 38,
    // The descriptor is no region.
    STRAIT_NOT_A_REGION = 39,
    // Not whole elements of the data pipe.
    STRAIT_NOT_ELEMENTS = 40,
    // A call was sent, and there will be no reply: the deadline has passed, or the peer is gone. Whether it was carried out is unknown.
    STRAIT_OUTCOME_UNKNOWN = 41,
    // A call was dropped by the other end without an answer.
    STRAIT_NOT_ANSWERED = 42,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum strait_status strait_status;
#else
typedef int32_t strait_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// An end of a channel for calls, both ways. Any number of threads may use it at once; it is freed when none does any more.
typedef struct strait_call_end strait_call_end;

// One end of a channel: a bidirectional, ordered stream of messages between two processes, or within one.
//
// A pointer to one is a reference, which one thread uses at a time. For another thread make one with `strait_channel_ref`. When
// the last reference is released, the end is closed.
typedef struct strait_channel strait_channel;

// The reading end of a data pipe. Any number of threads may use it at once; they take turns. It is freed when none does any more, and
// sent when none will: calls that are under way then end with `STRAIT_MOVED`.
typedef struct strait_consumer strait_consumer;

// Lets one process in, once: whoever is told of it. Any number of threads may use it at once; free it when none does any more.
typedef struct strait_invitation strait_invitation;

// Lets other processes connect, under a name. Any number of threads may use it at once; free it when none does any more.
//
// No thread is started: visitors are dealt with by whoever accepts.
typedef struct strait_listener strait_listener;

// A part of a region that is mapped. It stays when the region is freed or sent.
typedef struct strait_mapping strait_mapping;

// A received message: its bytes in memory of this process, which nobody else can change, and its handles. Receiving into it again
// uses its memory again, and closes the handles that were not taken. One thread uses it at a time.
typedef struct strait_message strait_message;

// The writing end of a data pipe. Any number of threads may use it at once; they take turns. It is freed when none does any more, and
// sent when none will: calls that are under way then end with `STRAIT_MOVED`.
typedef struct strait_producer strait_producer;

// Shared memory of a fixed size, which can be sent in messages. Any number of threads may use it at once; free it when none does any
// more. What is mapped stays when it is freed or sent.
typedef struct strait_region strait_region;

// What answers a request. One thread uses it at a time.
typedef struct strait_replier strait_replier;

// Room for a message, to be filled where the peer will read it. One thread uses it at a time. Other threads do not send from this
// end while it is held, and the end stays open.
typedef struct strait_reservation strait_reservation;

// A received message, where the peer wrote it. One thread uses it at a time. The end stays open while it is held; a small message
// keeps other threads from receiving from it.
typedef struct strait_view strait_view;

// Waits for any number of channels at once, in a thread or through one descriptor in any event loop. Any number of threads may use it
// at once; free it when none does any more.
typedef struct strait_wait_set strait_wait_set;

// Figures that go with the last failure of this thread.
typedef struct strait_error {
    // What the call returned.
    strait_status status;
    // The `errno` of `STRAIT_SYSTEM`; otherwise 0.
    int os_error;
    // What was asked for: the bytes of a message that is too large, or that the buffer has to have room for; the handles that
    // are too many, or that were sent with a message that lost some; the user that listens in place of the one expected.
    // Otherwise 0.
    uint64_t asked;
    // The limit that it is over: bytes, or handles; of lost handles, how many arrived; of what is out
    // of range, how many bytes there are. Otherwise 0.
    uint64_t limit;
} strait_error;

// Until when a call may block: nanoseconds of `CLOCK_MONOTONIC`, or `STRAIT_NOW`, or `STRAIT_NEVER`. A call whose deadline has
// passed still does what it can do at once.
typedef int64_t strait_deadline;

// How a call waits when it has to.
typedef uint32_t strait_wait;

// Options of one end of a channel. All zeroes are the defaults, so name only what you want:
// `(strait_options){.max_message = 4096}`. Where a call takes options, `NULL` is the defaults too.
typedef struct strait_options {
    // How calls on this end wait: `STRAIT_WAIT_ADAPTIVE` by default.
    strait_wait wait;
    // 1 if the process at the other end may not send descriptors: the kernel drops them before they are this process's.
    uint32_t refuse_descriptors;
    // Nanoseconds that an adaptive wait spins, at most 20 ms: 50 µs by default.
    uint64_t spin;
    // Bytes of the ring that this end sends through at first: 8 KiB for the first channel of a link, 256 B for others.
    uint64_t ring;
    // Bytes up to which that ring grows: 1 MiB by default.
    uint64_t ring_max;
    // Bytes up to which a message goes through the ring: 64 KiB by default.
    uint64_t inline_max;
    // Bytes in large messages that may be under way from this end: 256 MiB by default.
    uint64_t queue_bytes;
    // Messages that may be under way from this end: as many as the ring takes by default.
    uint64_t queue_messages;
    // Bytes in the longest message that this end sends: 256 MiB by default, and at most.
    uint64_t max_message;
    // Handles in one message that this end sends: 64 by default, and at most.
    uint64_t max_handles;
    // Bytes that this end keeps mapped and warm for large messages: 64 MiB by default.
    uint64_t pool;
    // Bytes of the peer's memory that this end is willing to have mapped: 1 GiB by default.
    uint64_t peer_memory;
    // For later; zeroes.
    uint64_t reserved[4];
} strait_options;

// What a `strait_handle` is.
typedef uint32_t strait_handle_kind;

// Something that travels in a message: a file descriptor, an end of a channel or of a data pipe, or a region.
//
// It owns what it names. A call that sends it takes that over if it succeeds, and sets `kind` to `STRAIT_HANDLE_NONE`; if the
// call fails, everything stays as it was. A handle that was received is the caller's: keep what it names, or close it with
// `strait_handle_close`.
typedef struct strait_handle {
    // What it is.
    strait_handle_kind kind;
    // The descriptor, if it is one; otherwise -1.
    int fd;
    // The object, if it is one; otherwise `NULL`.
    void *object;
} strait_handle;

// What a region lets whoever holds it do. The kernel holds them to it.
typedef uint32_t strait_access;

// How a region is mapped.
typedef uint32_t strait_map;

// One of the messages of `strait_send_many`; as in `strait_sendv`.
typedef struct strait_outgoing {
    // Its bytes, in parts.
    const struct iovec *parts;
    // How many parts.
    size_t part_count;
    // Handles that go with it; taken if the message was sent.
    struct strait_handle *handles;
    // How many handles.
    size_t handle_count;
} strait_outgoing;

// What a channel is waited for, and what was found: an or of `STRAIT_READABLE` and the like.
typedef uint32_t strait_events;

// How often a registration tells.
typedef uint32_t strait_mode;

// What `strait_wait_set_wait` tells of a channel.
typedef struct strait_event {
    // The number that was given to `strait_wait_set_add`.
    uint64_t key;
    // What was found.
    strait_events events;
    // Zero.
    uint32_t reserved;
} strait_event;

// The process at the other end, as the kernel describes it: never as it describes itself. Numbers are as seen from this process's
// namespaces.
typedef struct strait_peer {
    // Its process number; 0 if it is in a process namespace that this one does not see. A number may be used again after its process
    // has died; what `strait_channel_peer_pidfd` gives may not.
    pid_t pid;
    // Its user.
    uint32_t uid;
    // Its group.
    uint32_t gid;
    // 1 if it lived when it was asked for, as far as could be found out; otherwise 0.
    uint32_t is_alive;
} strait_peer;

// Says whether a process is let in, by what the kernel says of it.
typedef bool (*strait_policy)(const struct strait_peer *peer, void *context);

// Is told of a process that was not let in: who it was, or `NULL` if it kept the kernel from saying so, and why;
// `strait_last_error_text` says more.
typedef void (*strait_tell_refused)(const struct strait_peer *peer, strait_status why, void *context);

// How to listen. All zeroes are the defaults.
typedef struct strait_listener_options {
    // The directory in which the name is to be; `NULL` for that of this user. Copied.
    const char *directory;
    // The permissions of the name: 0600 by default.
    uint32_t mode;
    // 1 to let in only those that come with the token of an invitation.
    uint32_t invited_only;
    // Connections of one user that may wait to be let in: 32 by default.
    uint32_t waiting_of_a_user;
    // The same of all users: 128 by default.
    uint32_t waiting_of_all;
    // Who is let in; `NULL` for every process of this user. Called without a lock, in whichever thread accepts; it must not use the
    // listener.
    strait_policy policy;
    // Who is told of those that are not; `NULL` for nobody. Called as `policy` is.
    strait_tell_refused on_refused;
    // Handed to both; to be good as long as the listener and its invitations.
    void *context;
    // Options of the channels that it makes; `NULL` for the defaults. Copied.
    const struct strait_options *channel;
    // For later; zeroes.
    uint64_t reserved[4];
} strait_listener_options;

// How to connect. All zeroes are the defaults.
typedef struct strait_connect_options {
    // The directory in which the name is; `NULL` for that of this user.
    const char *directory;
    // Options of the channel; `NULL` for the defaults.
    const struct strait_options *channel;
    // The user as whom the server is to run, if `has_server` is 1; otherwise this one.
    uint32_t server;
    // Whether `server` is meant.
    uint32_t has_server;
    // For later; zeroes.
    uint64_t reserved[4];
} strait_connect_options;

// A name under which somebody listens, or did. What it points to is valid during the call that is told of it.
typedef struct strait_listening {
    // The name.
    const char *name;
    // When it was taken, in seconds since 1970.
    int64_t since;
    // The user whose it is.
    uint32_t uid;
    // The process that listens; 0 if nobody does any more, or if it is in a process namespace that this one does not see.
    pid_t pid;
    // 1 if anybody listens, otherwise 0.
    uint32_t is_live;
    // Zero.
    uint32_t reserved;
} strait_listening;

// Is told of a name.
typedef void (*strait_tell_name)(const struct strait_listening *name, void *context);

// What an end of a channel has done since it was made.
typedef struct strait_counters {
    // Messages sent.
    uint64_t messages_sent;
    // Bytes in them.
    uint64_t bytes_sent;
    // Messages received.
    uint64_t messages_received;
    // Bytes in them.
    uint64_t bytes_received;
    // How often this end had to wake the other, by a system call.
    uint64_t wake_ups;
    // How often this end went to sleep.
    uint64_t sleeps;
    // Messages sent outside the ring.
    uint64_t out_of_line;
    // Of those, how many found warm memory in the pool.
    uint64_t pool_hits;
    // How often the ring this end sends through was replaced by a larger one.
    uint64_t grown;
    // How often sending had to wait for room.
    uint64_t stalls;
    // How often receiving failed since this process holds as much for the peer as it may.
    uint64_t limits_reached;
    // For later; zeroes.
    uint64_t reserved[5];
} strait_counters;

// What this process holds for a peer, and limits.
typedef uint32_t strait_resource;

// How much of a resource is held, and how much may be.
typedef struct strait_level {
    // Held now.
    uint64_t held;
    // The limit that is set now.
    uint64_t limit;
    // How often something was refused, since more would have been held than may be.
    uint64_t reached;
} strait_level;

// What this process holds for the process at the other end of a channel, and for all peers of that one's user.
typedef struct strait_usage {
    // For the process, over all links to it.
    struct strait_level peer;
    // For all processes of its user.
    struct strait_level user;
    // How many processes of the user something is held for.
    uint64_t processes;
    // How often the process has woken this one and there was nothing.
    uint64_t idle_wake_ups;
    // How many of those were too many, so that the peer was not listened to for a millisecond.
    uint64_t pauses;
    // The user, if `has_uid` is 1.
    uint32_t uid;
    // 0 for peers of which the kernel knows no user.
    uint32_t has_uid;
} strait_usage;

// A peer that broke the protocol.
typedef struct strait_bad_peer {
    // Who it is, as the kernel says; `NULL` if it does not.
    const struct strait_peer *peer;
    // What it did.
    const char *reason;
    // 1 if its link is lost, and with it every channel over that link; 0 if it is one channel that has ended.
    uint32_t link_lost;
    // Zero.
    uint32_t reserved;
} strait_bad_peer;

// Who is told of a peer that broke the protocol. What it points to is valid during the call.
typedef void (*strait_tell_bad_peer)(const struct strait_bad_peer *bad, void *context);

// Do not block at all: a call that would have to fails with `STRAIT_WOULD_BLOCK`.
#define STRAIT_NOW 0

// Block for as long as it takes.
#define STRAIT_NEVER 9223372036854775807

// Spin for a while if the peer runs on another CPU, then sleep.
#define STRAIT_WAIT_ADAPTIVE 0

// Never sleep: the lowest latency, at the cost of a whole core.
#define STRAIT_WAIT_SPIN 1

// Sleep at once: the least CPU time.
#define STRAIT_WAIT_BLOCK 2

// Nothing.
#define STRAIT_HANDLE_NONE 0

// A file descriptor, in `fd`.
#define STRAIT_HANDLE_FD 1

// An end of a channel, a `strait_channel *` in `object`.
#define STRAIT_HANDLE_CHANNEL 2

// A region, a `strait_region *` in `object`.
#define STRAIT_HANDLE_REGION 3

// The writing end of a data pipe, a `strait_producer *` in `object`.
#define STRAIT_HANDLE_PRODUCER 4

// The reading end of a data pipe, a `strait_consumer *` in `object`.
#define STRAIT_HANDLE_CONSUMER 5

// Something that came from a newer library and has no kind here. It can be sent on, or closed by `strait_handle_close`.
#define STRAIT_HANDLE_OTHER 255

// Read and write.
#define STRAIT_WRITABLE_REGION 0

// Read; others may write still.
#define STRAIT_READ_ONLY_REGION 1

// Read, and it never changes again.
#define STRAIT_SEALED_REGION 2

// For reading what others may be writing: look at each byte once, and decide on the copy.
#define STRAIT_MAP_READ 0

// For reading and writing, as others may do at the same time.
#define STRAIT_MAP_WRITE 1

// For reading what nobody can change: only for a region that is sealed.
#define STRAIT_MAP_SEALED 2

// As private memory, in which pages are copied as they are written to: only for a region that is sealed.
#define STRAIT_MAP_COPY 3

// A message can be received; or an error, as the channel is at an end.
#define STRAIT_READABLE 1

// A small message can be sent; or that fails at once.
#define STRAIT_WRITABLE 2

// Only found: the end was sent away in a message and so left the set. The last event of this registration.
#define STRAIT_HAS_MOVED 4

// In every call, as long as it is so.
#define STRAIT_LEVEL 0

// Once, to one thread; then not before `strait_wait_set_rearm`.
#define STRAIT_ONE_SHOT 1

// Bytes of the peer's memory that are mapped here.
#define STRAIT_MEMORY 0

// Mappings of the peer's memory.
#define STRAIT_MAPPINGS 1

// Descriptors that came from the peer and that nobody has received yet, and sockets to processes to which it introduced this one.
#define STRAIT_DESCRIPTORS 2

// Lanes of which the peer had this process know.
#define STRAIT_LANES 3

// Bytes of messages that were taken out of shared memory when an end moved, and were not received yet.
#define STRAIT_QUEUED_BYTES 4

// Such messages.
#define STRAIT_QUEUED_MESSAGES 5

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The version of the library, such as `0.1.0`. The text lives for ever.
const char *strait_version(void);

// What a status means, in a few words. Never `NULL`; the text lives for ever.
const char *strait_status_text(int32_t status);

// The figures of the last call of this thread that failed. With no failure yet, the status is `STRAIT_OK`. `out` must not be
// `NULL`.
void strait_last_error(struct strait_error *out);

// Writes what happened in the last call of this thread that failed, and what to do about it, into `buffer`, whose last byte
// is always a zero; what does not fit is left out. Returns the bytes of the whole text without the zero. With `capacity` 0,
// `buffer` may be `NULL`.
size_t strait_last_error_text(char *buffer,
                              size_t capacity);

// The deadline so many nanoseconds from now. A negative number is a deadline that has passed; one that is too large never
// passes.
strait_deadline strait_after(int64_t nanoseconds);

// Makes a channel with both ends in this process. It uses no descriptor and no shared memory.
//
// `options` are for both ends, or `NULL`. `a` and `b` get the ends, which are the caller's; `NULL` on failure. Does not block.
strait_status strait_channel_pair(const struct strait_options *options,
                                  struct strait_channel **a,
                                  struct strait_channel **b);

// Makes a channel over a connected `SOCK_SEQPACKET` Unix socket, to whoever does the same with the other end of it: a way to give
// a channel to a process that is started by means of one's own. Nothing else may be sent or received on the socket.
//
// `socket` is taken if the call succeeds, and closed on `exec` from then on; otherwise it stays the caller's. `options` may be
// `NULL`. `channel` gets the end, which is the caller's; `NULL` on failure. Does not block: what is sent before the peer has
// opened its side waits for it.
strait_status strait_channel_over(int socket,
                                  const struct strait_options *options,
                                  struct strait_channel **channel);

// Makes another reference to an end, for another thread: the same pointer, to be released once more. `NULL` stays `NULL`.
//
// From then on calls on this end cost a few nanoseconds more, as it is counted which are under way, and a thread may close or
// send the end while another one is in a call on it.
struct strait_channel *strait_channel_ref(struct strait_channel *channel);

// Releases a reference. The last one closes the end. `NULL` is let pass. Does not block.
void strait_channel_unref(struct strait_channel *channel);

// Closes an end, and releases the caller's reference. `NULL` is let pass. Does not block.
//
// The peer receives what was sent, and then `STRAIT_PEER_CLOSED`; what it sent and was not received is dropped, handles and all.
// Calls through other references fail with `STRAIT_CLOSED` from now on; those that wait, at once. While a view or
// a reservation of the end is held, it stays open until that is freed.
void strait_channel_close(struct strait_channel *channel);

// Whether a message is there to be received, or the end of the channel. False of a channel that is closed or moved, and of `NULL`.
// Does not block.
bool strait_channel_is_readable(const struct strait_channel *channel);

// Whether a small message could be sent now. False of a channel that is closed or moved, and of `NULL`. Does not block.
bool strait_channel_is_writable(const struct strait_channel *channel);

// Whether the other end is known to be gone: closed, or its process dead. What it sent before may still be there to be received.
// False of a channel that is closed or moved here, and of `NULL`. Does not block.
bool strait_channel_is_peer_closed(const struct strait_channel *channel);

// Moves the channel into memory that nobody has but this process and that of the other end: for an end that was sent here by a
// process that is not trusted. Nothing is lost or reordered, and the other end notices nothing.
//
// Fails with `STRAIT_WOULD_BLOCK` or `STRAIT_TIMED_OUT` while the other end is just being sent elsewhere, or while the other process
// has not opened its side; the channel is as it was.
strait_status strait_channel_rehome(const struct strait_channel *channel,
                                    strait_deadline deadline);

// Makes a data pipe, a one-way stream of bytes whose ends can be sent to other processes.
//
// Its buffer has `capacity` bytes, rounded up to whole elements of `element` bytes each (0 is 1): only whole elements are written and
// read. `producer` and `consumer` get the ends, which are the caller's; `NULL` on failure. Does not block.
strait_status strait_pipe_new(size_t capacity,
                              uint32_t element,
                              struct strait_producer **producer,
                              struct strait_consumer **consumer);

// Ends the stream, and frees its writing end: the consumer reads what was written, and then the end. Room that was begun with is not
// valid any more, and nothing of it was written. `NULL` is let pass. Does not block.
void strait_producer_free(struct strait_producer *producer);

// Writes what there is room for, at least one element; waits for room until the deadline. `written` gets how many bytes that was: less
// than `len` if there was not more room.
//
// `STRAIT_PEER_CLOSED` if the consumer is gone; `STRAIT_NOT_ELEMENTS` if there is less than an element; `STRAIT_IN_USE` while room is held
// that was begun with.
strait_status strait_producer_write(const struct strait_producer *producer,
                                    const void *bytes,
                                    size_t len,
                                    size_t *written,
                                    strait_deadline deadline);

// Writes all of it at once, or nothing; waits for room for all until the deadline.
//
// `STRAIT_OUT_OF_RANGE` if it is more than the capacity; `STRAIT_NOT_ELEMENTS` if it is not whole elements; otherwise as
// `strait_producer_write`.
strait_status strait_producer_write_whole(const struct strait_producer *producer,
                                          const void *bytes,
                                          size_t len,
                                          strait_deadline deadline);

// Begins to write in place: `room` gets where, and `len` how many bytes are free there, at least one element; waits for that until the
// deadline. What is behind the end of the buffer comes with the next call.
//
// The room is to be written to and not read, as the peer may change what is in it, and is valid until `strait_producer_commit` ends
// this. Until then other calls that write fail with `STRAIT_IN_USE`, and the end is not sent. `NULL` and 0 on failure.
strait_status strait_producer_begin(const struct strait_producer *producer,
                                    void **room,
                                    size_t *len,
                                    strait_deadline deadline);

// Ends writing in place: the first `len` bytes of the room were written. 0 writes nothing. The room is not valid any more.
//
// `STRAIT_OUT_OF_RANGE` if there was less room, and `STRAIT_NOT_ELEMENTS` if these are not whole elements: then the room is still
// held. `STRAIT_INVALID_ARGUMENT` if nothing was begun.
strait_status strait_producer_commit(const struct strait_producer *producer,
                                     size_t len);

// How many bytes could be written now without waiting, in `room`. `STRAIT_PEER_CLOSED` if the consumer is known to be gone;
// `STRAIT_WOULD_BLOCK` while another thread waits, or holds room. Does not block.
strait_status strait_producer_room(const struct strait_producer *producer,
                                   size_t *room);

// Bytes of the buffer, whole elements. 0 of `NULL`.
size_t strait_producer_capacity(const struct strait_producer *producer);

// Bytes of an element. 0 of `NULL`.
size_t strait_producer_element(const struct strait_producer *producer);

// Frees a reading end; what is unread is lost. Bytes that were begun with are not valid any more. `NULL` is let pass. Does not block.
void strait_consumer_free(struct strait_consumer *consumer);

// Reads what is there, at least one element; waits for it until the deadline. `count` gets how many bytes: 0 at the end of the stream.
//
// `STRAIT_PEER_CLOSED` if the producer's process died and all that it wrote was read; `STRAIT_NOT_ELEMENTS` if the buffer is shorter than
// an element; `STRAIT_IN_USE` while bytes are held that were begun with.
strait_status strait_consumer_read(const struct strait_consumer *consumer,
                                   void *buffer,
                                   size_t capacity,
                                   size_t *count,
                                   strait_deadline deadline);

// Fills all `len` bytes of the buffer, or reads nothing; waits for so many until the deadline.
//
// `STRAIT_OUT_OF_RANGE` if that is more than the capacity, or if the stream has ended and has fewer left, which can still be read;
// otherwise as `strait_consumer_read`.
strait_status strait_consumer_read_whole(const struct strait_consumer *consumer,
                                         void *buffer,
                                         size_t len,
                                         strait_deadline deadline);

// As `strait_consumer_read` with `STRAIT_NOW`, and the next call that reads gets the same bytes again.
strait_status strait_consumer_peek(const struct strait_consumer *consumer,
                                   void *buffer,
                                   size_t capacity,
                                   size_t *count);

// Drops up to `most` bytes that are there now, whole elements. `count` gets how many. Does not block.
strait_status strait_consumer_discard(const struct strait_consumer *consumer,
                                      size_t most,
                                      size_t *count);

// Begins to read in place: `bytes` gets where, and `len` how many are there, at least one element; waits for that until the deadline.
// What is behind the end of the buffer comes with the next call. At the end of the stream `len` gets 0, and nothing is begun: the end is
// free for whatever is done with it.
//
// The producer can change the bytes while they are looked at: copy what you decide on, once, and decide on the copy. They are valid until
// `strait_consumer_consume` ends this. Until then other calls that read fail with `STRAIT_IN_USE`, and the end is not sent. `NULL` and
// 0 on failure.
strait_status strait_consumer_begin(const struct strait_consumer *consumer,
                                    const void **bytes,
                                    size_t *len,
                                    strait_deadline deadline);

// Ends reading in place: the first `len` bytes were read, and the rest stays unread. The bytes are not valid any more.
//
// `STRAIT_OUT_OF_RANGE` if there were fewer, and `STRAIT_NOT_ELEMENTS` if these are not whole elements: then they are still held.
// `STRAIT_INVALID_ARGUMENT` if nothing was begun; but the 0 bytes at the end of the stream may be consumed as often as one likes.
strait_status strait_consumer_consume(const struct strait_consumer *consumer,
                                      size_t len);

// How many bytes could be read now, in `count`. `STRAIT_WOULD_BLOCK` while another thread waits, or holds bytes. Does not block.
strait_status strait_consumer_available(const struct strait_consumer *consumer,
                                        size_t *count);

// Bytes of the buffer, whole elements. 0 of `NULL`.
size_t strait_consumer_capacity(const struct strait_consumer *consumer);

// Bytes of an element. 0 of `NULL`.
size_t strait_consumer_element(const struct strait_consumer *consumer);

// A handle for a file descriptor, which it owns from now on.
struct strait_handle strait_handle_from_fd(int fd);

// A handle for an end of a channel: it owns the caller's reference from now on.
struct strait_handle strait_handle_from_channel(struct strait_channel *channel);

// A handle for a region, which it owns from now on.
struct strait_handle strait_handle_from_region(struct strait_region *region);

// A handle for the writing end of a data pipe, which it owns from now on.
struct strait_handle strait_handle_from_producer(struct strait_producer *producer);

// A handle for the reading end of a data pipe, which it owns from now on.
struct strait_handle strait_handle_from_consumer(struct strait_consumer *consumer);

// Takes the descriptor out of a handle: it is the caller's, and the handle is nothing. -1 if it is none.
int strait_handle_take_fd(struct strait_handle *handle);

// Takes the end of a channel out of a handle: it is the caller's, and the handle is nothing. `NULL` if it is none.
struct strait_channel *strait_handle_take_channel(struct strait_handle *handle);

// Takes the region out of a handle: it is the caller's, and the handle is nothing. `NULL` if it is none.
struct strait_region *strait_handle_take_region(struct strait_handle *handle);

// Takes the writing end of a data pipe out of a handle: it is the caller's, and the handle is nothing. `NULL` if it is none.
struct strait_producer *strait_handle_take_producer(struct strait_handle *handle);

// Takes the reading end of a data pipe out of a handle: it is the caller's, and the handle is nothing. `NULL` if it is none.
struct strait_consumer *strait_handle_take_consumer(struct strait_handle *handle);

// Closes what a handle names; then it is nothing. `NULL`, and nothing, are let pass.
void strait_handle_close(struct strait_handle *handle);

// Makes a region of `len` zeroes, writable. `region` gets it, and it is the caller's; `NULL` on failure.
strait_status strait_region_new(size_t len,
                                struct strait_region **region);

// Makes a region of these bytes, which are copied, and which nobody can ever change again. `region` gets it, and it is the caller's;
// `NULL` on failure.
strait_status strait_region_sealed(const void *bytes,
                                   size_t len,
                                   struct strait_region **region);

// Makes a region of a memfd, with the rights that it gives. `fd` is taken if the call succeeds; otherwise it stays the caller's.
// `region` gets it, and it is the caller's; `NULL` on failure.
strait_status strait_region_from_fd(int fd,
                                    struct strait_region **region);

// A descriptor of its own for the memory, as other programs take it. `fd` gets it, and it is the caller's to close; -1 on failure.
strait_status strait_region_to_fd(const struct strait_region *region,
                                  int *fd);

// Frees a region; the memory stays as long as anybody else has it. `NULL` is let pass.
void strait_region_free(struct strait_region *region);

// Another handle for the same memory, with the same rights, to send to one more process. It costs no descriptor here, and is the caller's.
// `NULL` stays `NULL`.
struct strait_region *strait_region_duplicate(const struct strait_region *region);

// Its size in bytes, which never changes. 0 of `NULL`.
size_t strait_region_len(const struct strait_region *region);

// What may be done with it now. Others can take rights away, if they may write; nobody can give any back.
strait_status strait_region_access(const struct strait_region *region,
                                   strait_access *access);

// Seals it: nobody, in any process, can ever change it again. Fails with `STRAIT_STILL_MAPPED` as long as it is mapped for writing.
strait_status strait_region_seal(const struct strait_region *region);

// Admits no new writer: whoever has it mapped for writing now goes on, and nobody else can ever write, in whatever process.
strait_status strait_region_admit_no_writer(const struct strait_region *region);

// A handle that can only read, of a region that others go on writing. `reader` gets it, and it is the caller's; `NULL` on failure. Against
// a process of the same user that has `/proc` only sealing helps.
strait_status strait_region_reader(const struct strait_region *region,
                                   struct strait_region **reader);

// Copies `len` bytes from `offset` on to `out`, without mapping anything. Fails with `STRAIT_OUT_OF_RANGE` if there are fewer.
strait_status strait_region_read(const struct strait_region *region,
                                 size_t offset,
                                 void *out,
                                 size_t len);

// Copies `len` bytes to `offset`, without mapping anything. Fails with `STRAIT_OUT_OF_RANGE` if they do not fit.
strait_status strait_region_write(const struct strait_region *region,
                                  size_t offset,
                                  const void *bytes,
                                  size_t len);

// Maps `len` bytes of a region from `offset` on; `how` is one of `STRAIT_MAP_*`.
//
// `mapping` gets it, and it is the caller's; `NULL` on failure: `STRAIT_READ_ONLY`, `STRAIT_NOT_SEALED`, `STRAIT_OUT_OF_RANGE`.
strait_status strait_region_map(const struct strait_region *region,
                                strait_map how,
                                size_t offset,
                                size_t len,
                                struct strait_mapping **mapping);

// Where the bytes are, valid until the mapping is freed; to be written to only if it was made for that. `NULL` of `NULL`.
void *strait_mapping_data(struct strait_mapping *mapping);

// Bytes that are mapped. 0 of `NULL`.
size_t strait_mapping_len(const struct strait_mapping *mapping);

// Takes a mapping away. `NULL` is let pass.
void strait_mapping_free(struct strait_mapping *mapping);

// Sends a message of these bytes; waits for room until the deadline. With `STRAIT_NOW`: only if there is room at once.
//
// `bytes` are copied, straight into shared memory; with `len` 0 they may be `NULL`: no bytes are a message too.
strait_status strait_send(const struct strait_channel *channel,
                          const void *bytes,
                          size_t len,
                          strait_deadline deadline);

// Sends a message of several parts, one after the other, and handles that go with it; waits for room until the deadline.
//
// The `part_count` parts, at most `STRAIT_MAX_PARTS`, are gathered straight into shared memory; none are a message without bytes.
// The `handle_count` handles are taken if the call succeeds; otherwise they stay the caller's. Calls of other threads on an end that
// is sent fail with `STRAIT_MOVED`, those that wait at once, and this one goes on when they have returned; also where sending then fails,
// and the end is as it was. Fails with `STRAIT_CLOSED` or `STRAIT_MOVED` if another thread has closed or sent such an end, and with
// `STRAIT_IN_USE` if a view or a reservation of it is held, or room or bytes of a data pipe, or another thread just sends `channel`
// while it is in a call on that end.
strait_status strait_sendv(const struct strait_channel *channel,
                           const struct iovec *parts,
                           size_t part_count,
                           struct strait_handle *handles,
                           size_t handle_count,
                           strait_deadline deadline);

// Sends `count` messages in a row, at most `STRAIT_MAX_MESSAGES`: as many as fit appear at the peer at once, with one wake-up; waits
// for room for the others until the deadline.
//
// `sent` gets how many were sent, also if the call fails; it may be `NULL`. The failure is that of the first message that was not
// sent. That one and those after it keep their handles.
strait_status strait_send_many(const struct strait_channel *channel,
                               const struct strait_outgoing *messages,
                               size_t count,
                               size_t *sent,
                               strait_deadline deadline);

// Makes an empty message, to receive into. It is the caller's. `NULL` if that fails.
struct strait_message *strait_message_new(void);

// Frees a message, and closes the handles that were not taken. `NULL` is let pass.
void strait_message_free(struct strait_message *message);

// The bytes of a message, which are valid until it is received into again or freed. Never `NULL`, but for `NULL`.
const void *strait_message_bytes(const struct strait_message *message);

// How many bytes a message has.
size_t strait_message_len(const struct strait_message *message);

// Takes the next handles out of a message, in the order in which they were sent: as many as there are and `capacity` takes.
//
// `handles` gets them; they are the caller's. `count` gets how many; 0 when all were taken. Those that do not fit are there for the
// next call; `STRAIT_MAX_HANDLES` always are enough. Fails with `STRAIT_HANDLES_LOST` if not all have arrived; those that did were
// closed, and the bytes are intact.
strait_status strait_message_take_handles(struct strait_message *message,
                                          struct strait_handle *handles,
                                          size_t capacity,
                                          size_t *count);

// Receives the next message into `message`; waits for it until the deadline. With `STRAIT_NOW`: only if it is there.
//
// What `message` had before is gone, whatever happens; after a failure it is empty. In steady flow nothing is allocated. Fails with
// `STRAIT_PEER_CLOSED` once everything that the peer sent was received.
strait_status strait_recv(const struct strait_channel *channel,
                          struct strait_message *message,
                          strait_deadline deadline);

// Receives the next message into the front of a buffer of the caller's; waits for it until the deadline.
//
// `len` gets the bytes of the message. If `capacity` is less, the call fails with `STRAIT_BUFFER_TOO_SMALL`, `len` gets what is
// needed, and the message stays the next one. Its handles go into `handles`, to be taken from there with
// `strait_message_take_handles`; with `NULL` they are closed. What `handles` had before is gone, whatever happens.
strait_status strait_recv_into(const struct strait_channel *channel,
                               void *buffer,
                               size_t capacity,
                               size_t *len,
                               struct strait_message *handles,
                               strait_deadline deadline);

// Receives as many messages as are there, at most `count` and at least one; waits for the first until the deadline.
//
// `messages` are `count` pointers to messages, each another one; `received` gets how many of them, from the first, have got one.
// What they had before is gone. A failure is that of the first; one at a later message is that of the next call.
strait_status strait_recv_many(const struct strait_channel *channel,
                               struct strait_message *const *messages,
                               size_t count,
                               size_t *received,
                               strait_deadline deadline);

// Sends a received message on, handles and all; waits for room until the deadline. Then `message` is empty, and can be received into
// again. If it cannot be sent, it is as it was.
//
// The memory of a large message that its sender has sealed (`strait_reserve_sealed`) is passed on, at a cost that does not grow with
// its size; any other is copied. Whoever gets the memory can see that others have it too. Fails with `STRAIT_HANDLES_LOST` if the message
// did not arrive whole, and with `STRAIT_INVALID_ARGUMENT` if some of its handles were taken and others were not, or its bytes are in
// a buffer of `strait_recv_into`.
strait_status strait_forward(const struct strait_channel *channel,
                             struct strait_message *message,
                             strait_deadline deadline);

// Makes room for a message of `len` bytes, to be filled in place and sent without a copy; waits for it until the deadline, which
// holds for `strait_reservation_commit` too.
//
// `reservation` gets the room, which is the caller's; `NULL` on failure. Bytes that are never written reach the peer as whatever
// was there: zeroes, or bytes of earlier messages to the same peer.
strait_status strait_reserve(const struct strait_channel *channel,
                             size_t len,
                             struct strait_reservation **reservation,
                             strait_deadline deadline);

// Makes fresh memory for a message of `len` bytes that is *sealed* when it is sent: from then on nobody can change it, and the
// receiver can read it in place without trusting this process (`strait_view_is_sealed`). The bytes are zeroes at first.
//
// `reservation` gets the room, which is the caller's; `NULL` on failure. The deadline is that of `strait_reservation_commit`. Costs
// fresh pages for each message: for what is read by somebody who must not copy it.
strait_status strait_reserve_sealed(const struct strait_channel *channel,
                                    size_t len,
                                    struct strait_reservation **reservation,
                                    strait_deadline deadline);

// The room, of as many bytes as were reserved: to be written to and not read, as the peer may be able to change what is in it. Valid
// until the reservation is committed or cancelled. `NULL` of `NULL`, and in the child of a `fork`.
void *strait_reservation_data(struct strait_reservation *reservation);

// Sends the first `len` bytes of the room as the message, with handles that go with it.
//
// The reservation is gone whatever happens. The handles are taken if the call succeeds; otherwise they stay the caller's. A sealed
// message is sent whole: `len` must be what was reserved.
strait_status strait_reservation_commit(struct strait_reservation *reservation,
                                        size_t len,
                                        struct strait_handle *handles,
                                        size_t handle_count);

// Gives the room back; the peer sees nothing. `NULL` is let pass.
void strait_reservation_cancel(struct strait_reservation *reservation);

// Receives the next message without copying it: it is read where the peer wrote it. Waits for it until the deadline.
//
// `view` gets the message, which is the caller's; `NULL` on failure. Free it soon: it is the sender's room.
strait_status strait_recv_in_place(const struct strait_channel *channel,
                                   struct strait_view **view,
                                   strait_deadline deadline);

// How many bytes the message has. This number does not change.
size_t strait_view_len(const struct strait_view *view);

// The bytes, valid until the view is freed. **Unless the message is sealed, the peer can change them while they are looked at**:
// copy what you decide on with `strait_view_copy`, and decide on the copy.
const void *strait_view_data(const struct strait_view *view);

// Whether the sender has sealed the bytes: then nobody can change them any more.
bool strait_view_is_sealed(const struct strait_view *view);

// Copies `len` bytes from `offset` on to `out`. Fails with `STRAIT_INVALID_ARGUMENT` if the message has fewer.
strait_status strait_view_copy(struct strait_view *view,
                               size_t offset,
                               void *out,
                               size_t len);

// Takes the next handles out of the message, as `strait_message_take_handles` does.
strait_status strait_view_take_handles(struct strait_view *view,
                                       struct strait_handle *handles,
                                       size_t capacity,
                                       size_t *count);

// Sends the message on over another channel without looking at it, handles and all; waits for room until the deadline. Of a large
// message that is not sealed this saves one of the two copies that `strait_forward` makes.
//
// If that succeeds the handles are gone; the view stays, and is freed to make room for the sender. Otherwise it is as it was. What was
// seen in the view is for certain what is sent only if the message is sealed: whoever has to check what passes receives it, and calls
// `strait_forward`. Fails with `STRAIT_INVALID_ARGUMENT` if some of the handles were taken and others were not.
strait_status strait_view_forward(struct strait_view *view,
                                  const struct strait_channel *channel,
                                  strait_deadline deadline);

// Frees a view, which makes room for the sender, and closes the handles that were not taken. `NULL` is let pass.
void strait_view_free(struct strait_view *view);

// Makes an end of calls of an end of a channel; the other end has to be made one, too. From here on nothing else may be sent or
// received on it.
//
// `channel`, the caller's reference, is taken if the call succeeds; otherwise it stays the caller's. Calls of other threads on
// it fail with `STRAIT_MOVED`, those that wait at once; `STRAIT_IN_USE` if a view or a reservation of it is held. `end` gets the end of calls, which is the caller's; `NULL` on failure. Does not block.
strait_status strait_call_end_over(struct strait_channel *channel,
                                   struct strait_call_end **end);

// Frees an end of calls. The channel is closed when the requests that were received and not answered are freed, too. `NULL` is let
// pass. Does not block.
void strait_call_end_free(struct strait_call_end *end);

// Calls the other end, and waits for its reply until the deadline, which holds for sending too. Any number of threads may call at once.
//
// Parts and handles are as in `strait_sendv`. `reply` gets the reply; what it had before is gone, whatever happens.
//
// * `STRAIT_OUTCOME_UNKNOWN`: the request was sent, and there will be no reply: the deadline has passed, or the peer is gone.
// * `STRAIT_NOT_ANSWERED`: the other end has dropped the request.
// * Anything else: the request was never sent, and the handles are the caller's still.
strait_status strait_call(const struct strait_call_end *end,
                          const struct iovec *parts,
                          size_t part_count,
                          struct strait_handle *handles,
                          size_t handle_count,
                          struct strait_message *reply,
                          strait_deadline deadline);

// The next request of the other end; waits for it until the deadline.
//
// `request` gets it; what it had before is gone, whatever happens. `replier` gets what answers it, which is the caller's; `NULL` on
// failure.
strait_status strait_call_next(const struct strait_call_end *end,
                               struct strait_message *request,
                               struct strait_replier **replier,
                               strait_deadline deadline);

// Whether nobody waits for the answer any more, as far as is known here. False of `NULL`. Does not block.
bool strait_replier_is_cancelled(const struct strait_replier *replier);

// Answers a request, once; waits for room until the deadline. Parts and handles are as in `strait_sendv`. The replier stays the
// caller's, to be freed; after a failure it can answer still.
strait_status strait_replier_reply(struct strait_replier *replier,
                                   const struct iovec *parts,
                                   size_t part_count,
                                   struct strait_handle *handles,
                                   size_t handle_count,
                                   strait_deadline deadline);

// Frees what answers a request. Without an answer the caller is told that there is none. `NULL` is let pass. Does not block.
void strait_replier_free(struct strait_replier *replier);

// Makes a set without members: it has two descriptors, whatever is in it.
//
// `set` gets it, and it is the caller's; `NULL` on failure.
strait_status strait_wait_set_new(struct strait_wait_set **set);

// Frees a set; its members are in no set any more. `NULL` is let pass.
void strait_wait_set_free(struct strait_wait_set *set);

// Adds a channel, whose events come with this key; keys need not differ. If it is ready now, that is an event. Does not block.
//
// `interest` is `STRAIT_READABLE`, `STRAIT_WRITABLE` or both. The channel stays the caller's. It is in one set at a time, and leaves it
// when it is closed or sent.
strait_status strait_wait_set_add(const struct strait_wait_set *set,
                                  const struct strait_channel *channel,
                                  uint64_t key,
                                  strait_events interest,
                                  strait_mode mode);

// Has a one-shot registration tell once more. If its channel is ready now, that is an event. Does not block.
strait_status strait_wait_set_rearm(const struct strait_wait_set *set,
                                    const struct strait_channel *channel);

// Takes a channel out. Calls that begin after this tell nothing of it. Does not block.
strait_status strait_wait_set_remove(const struct strait_wait_set *set,
                                     const struct strait_channel *channel);

// As `strait_wait_set_add` for an end of a data pipe: `STRAIT_WRITABLE` when there is room for an element, or the consumer is gone.
strait_status strait_wait_set_add_producer(const struct strait_wait_set *set,
                                           const struct strait_producer *producer,
                                           uint64_t key,
                                           strait_mode mode);

// As `strait_wait_set_rearm` for an end of a data pipe.
strait_status strait_wait_set_rearm_producer(const struct strait_wait_set *set,
                                             const struct strait_producer *producer);

// As `strait_wait_set_remove` for an end of a data pipe.
strait_status strait_wait_set_remove_producer(const struct strait_wait_set *set,
                                              const struct strait_producer *producer);

// As `strait_wait_set_add` for an end of a data pipe: `STRAIT_READABLE` when there is an element, or the stream has ended.
strait_status strait_wait_set_add_consumer(const struct strait_wait_set *set,
                                           const struct strait_consumer *consumer,
                                           uint64_t key,
                                           strait_mode mode);

// As `strait_wait_set_rearm` for an end of a data pipe.
strait_status strait_wait_set_rearm_consumer(const struct strait_wait_set *set,
                                             const struct strait_consumer *consumer);

// As `strait_wait_set_remove` for an end of a data pipe.
strait_status strait_wait_set_remove_consumer(const struct strait_wait_set *set,
                                              const struct strait_consumer *consumer);

// Waits until a member is ready, or until the deadline.
//
// `events` gets what was found, at most `capacity` and at least one; `count` gets how many: 0 if the time was up, which is a success.
strait_status strait_wait_set_wait(const struct strait_wait_set *set,
                                   struct strait_event *events,
                                   size_t capacity,
                                   size_t *count,
                                   strait_deadline deadline);

// A descriptor that is readable whenever `strait_wait_set_wait` may have something: for `poll`, `epoll`, or any event loop. It belongs to
// the set. When it is readable, call `strait_wait_set_wait` with `STRAIT_NOW`, as often as there are events or once for each time; the
// call that returns none makes it unreadable. It must not be read from or closed. -1 if `set` is `NULL`.
int strait_wait_set_fd(const struct strait_wait_set *set);

// How many channels are in it.
size_t strait_wait_set_len(const struct strait_wait_set *set);

// Starts a program, with a channel whose other end it takes by `strait_from_parent`.
//
// `program` is looked for in `PATH` if it has no slash. `argv` are its arguments, the first of them the name by which it knows itself,
// and the last `NULL`; `envp` is its environment, which ends with `NULL` too, or `NULL` for that of this process. `options` are for this
// end, or `NULL`. All stay the caller's. `channel` gets this end, which is the caller's; `pid` the process, for which the caller has to
// wait as for any child.
//
// The program inherits one descriptor of Strait's, and no other. What is sent before it takes its end waits for it. If it ends without
// taking it, this end sees `STRAIT_PEER_CLOSED`. Does not block but for starting it.
strait_status strait_spawn(const char *program,
                           const char *const *argv,
                           const char *const *envp,
                           const struct strait_options *options,
                           struct strait_channel **channel,
                           pid_t *pid);

// Takes the channel to the process that started this one by `strait_spawn`, or by the like in another language. Once in the life of a
// process. Does not block.
//
// `options` may be `NULL`. `channel` gets the end, which is the caller's; `NULL` on failure.
strait_status strait_from_parent(const struct strait_options *options,
                                 struct strait_channel **channel);

// Listens under a name. Blocks only while another process of this user takes the same name, or another thread any name.
//
// `options` may be `NULL`. `listener` gets it, and it is the caller's; `NULL` on failure: `STRAIT_NAME_TAKEN` if somebody listens there.
// The name of a process that is gone is taken over.
strait_status strait_listener_bind(const char *name,
                                   const struct strait_listener_options *options,
                                   struct strait_listener **listener);

// Listens on a socket that a service manager made: the one called so in its unit (`FileDescriptorName=`), or with `NULL` the only one.
// Each can be taken once. Otherwise as `strait_listener_bind`.
strait_status strait_listener_activated(const char *name,
                                        const struct strait_listener_options *options,
                                        struct strait_listener **listener);

// Stops listening, and frees the listener; its invitations are refused from now on. `NULL` is let pass.
void strait_listener_free(struct strait_listener *listener);

// The channel to the next process that is let in; waits for one until the deadline. Processes that are refused do not end the call.
//
// `channel` gets this end, which is the caller's; `NULL` on failure.
strait_status strait_listener_accept(const struct strait_listener *listener,
                                     struct strait_channel **channel,
                                     strait_deadline deadline);

// A descriptor that is readable when `strait_listener_accept` with `STRAIT_NOW` has something to do, though not always something to
// return: for any event loop. It belongs to the listener. -1 if `listener` is `NULL`.
int strait_listener_fd(const struct strait_listener *listener);

// Where its socket is. Valid as long as the listener.
const char *strait_listener_path(const struct strait_listener *listener);

// The channel to whoever listens under a name; waits to be let in until the deadline.
//
// `options` may be `NULL`. `channel` gets this end, which is the caller's; `NULL` on failure: `STRAIT_NOBODY_THERE`, `STRAIT_REFUSED`,
// `STRAIT_WRONG_SERVER`.
strait_status strait_connect(const char *name,
                             const struct strait_connect_options *options,
                             struct strait_channel **channel,
                             strait_deadline deadline);

// Invites one process, for so many nanoseconds.
//
// `invitation` gets it, and it is the caller's; `NULL` on failure. It may outlive the listener, but then nobody is let in.
strait_status strait_listener_invite(const struct strait_listener *listener,
                                     uint64_t nanoseconds,
                                     struct strait_invitation **invitation);

// Takes an invitation back, and frees it. `NULL` is let pass.
void strait_invitation_free(struct strait_invitation *invitation);

// Starts a program, as `strait_spawn` does, and invites it over its standard input: it takes its end by `strait_invited`.
//
// `pid` gets the process, for which the caller has to wait. `stdin_fd` gets the other end of its standard input, which is the caller's to
// close; with `NULL` it is closed at once.
strait_status strait_invitation_spawn(const struct strait_invitation *invitation,
                                      const char *program,
                                      const char *const *argv,
                                      const char *const *envp,
                                      pid_t *pid,
                                      int *stdin_fd);

// Writes the line that invites a process to a descriptor that leads to its standard input, for those who start it otherwise. Whoever
// reads it can come. The descriptor stays the caller's. Blocks as long as writing to it does.
strait_status strait_invitation_tell(const struct strait_invitation *invitation,
                                     int fd);

// The channel to whoever was invited, once it has come; waits for it until the deadline.
//
// `channel` gets this end, which is the caller's; `NULL` on failure.
strait_status strait_invitation_accept(const struct strait_invitation *invitation,
                                       struct strait_channel **channel,
                                       strait_deadline deadline);

// The channel to whoever invited this process over its standard input, of which one line is read and no byte more; waits to be let in
// until the deadline.
//
// `options` may be `NULL`. `channel` gets this end, which is the caller's; `NULL` on failure.
strait_status strait_invited(const struct strait_options *options,
                             struct strait_channel **channel,
                             strait_deadline deadline);

// Calls `tell` with each name in a directory, sorted; `NULL` for that of this user. That somebody listens is found out by connecting to
// it, which it does not notice. A directory that is not there has no names.
strait_status strait_names(const char *directory,
                           strait_tell_name tell,
                           void *context);

// Who is at the other end. Within one process, this process. Fails with `STRAIT_WOULD_BLOCK` before the peer has opened its side. Does
// not block.
strait_status strait_channel_peer(const struct strait_channel *channel,
                                  struct strait_peer *peer);

// A descriptor for the process at the other end, which stays its own even when its number is used again, and can be polled for its
// death.
//
// `pidfd` gets it, and it is the caller's to close; -1 on failure. Fails with `STRAIT_WOULD_BLOCK` before the peer has opened its side.
strait_status strait_channel_peer_pidfd(const struct strait_channel *channel,
                                        int *pidfd);

// What this end has done so far. Does not block.
strait_status strait_channel_counters(const struct strait_channel *channel,
                                      struct strait_counters *counters);

// Sets how much of something this process holds: for one peer process, whatever links lead to it, and for all peer processes of one
// user. It holds for what is asked for from now on; what is held stays. Does not block.
strait_status strait_set_limit(strait_resource resource,
                               uint64_t peer,
                               uint64_t user);

// How much of a resource is held for the process at the other end and for its user. Fails with `STRAIT_WOULD_BLOCK` before the peer has
// opened its side, and within one process. Does not block.
strait_status strait_channel_peer_usage(const struct strait_channel *channel,
                                        strait_resource resource,
                                        struct strait_usage *usage);

// Has `tell` called for each peer process that breaks the protocol, in place of what was called before; `NULL` for nothing. The library
// writes no logs.
//
// It is called in whichever thread is just in a call of this library, where that holds no lock: it may call anything. `context` is
// handed to it, and must be good as long as the process lives.
void strait_on_bad_peer(strait_tell_bad_peer tell,
                        void *context);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* STRAIT_H */
