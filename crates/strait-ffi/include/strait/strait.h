#ifndef STRAIT_H
#define STRAIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

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
    // This end was sent away in a message, or is just being sent, through another reference to it.
    STRAIT_MOVED = 30,
    // The end to be sent is in use: in a call of another thread, or by a view or a reservation that is still held.
    STRAIT_IN_USE = 31,
    // An argument that cannot be meant: a null pointer, a number out of range, bytes that are not zero where they must be.
    STRAIT_INVALID_ARGUMENT = 32,
    // A defect of Strait, which was caught at the border of the library. What the call did until then is not known.
    STRAIT_PANICKED = 33,
    // An error that this build of the C library has no number for; it has a text.
    STRAIT_OTHER = 34,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum strait_status strait_status;
#else
typedef int32_t strait_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// One end of a channel: a bidirectional, ordered stream of messages between two processes, or within one.
//
// A pointer to one is a reference, which one thread uses at a time. For another thread make one with `strait_channel_ref`. When
// the last reference is released, the end is closed.
typedef struct strait_channel strait_channel;

// A received message: its bytes in memory of this process, which nobody else can change, and its handles. Receiving into it again
// uses its memory again, and closes the handles that were not taken. One thread uses it at a time.
typedef struct strait_message strait_message;

// Room for a message, to be filled where the peer will read it. One thread uses it at a time. Other threads do not send from this
// end while it is held, and the end stays open.
typedef struct strait_reservation strait_reservation;

// A received message, where the peer wrote it. One thread uses it at a time. The end stays open while it is held; a small message
// keeps other threads from receiving from it.
typedef struct strait_view strait_view;

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
    // The limit that it is over: bytes, or handles; of lost handles, how many arrived. Otherwise 0.
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

// Something that travels in a message: a file descriptor, or an end of a channel.
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

// Something that came from a newer library and has no kind here. It can be sent on, or closed by `strait_handle_close`.
#define STRAIT_HANDLE_OTHER 255

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

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
// Calls through other references fail with `STRAIT_CLOSED` from now on; those that wait notice it within 100 ms. While a view or
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

// A handle for a file descriptor, which it owns from now on.
struct strait_handle strait_handle_from_fd(int fd);

// A handle for an end of a channel: it owns the caller's reference from now on.
struct strait_handle strait_handle_from_channel(struct strait_channel *channel);

// Takes the descriptor out of a handle: it is the caller's, and the handle is nothing. -1 if it is none.
int strait_handle_take_fd(struct strait_handle *handle);

// Takes the end of a channel out of a handle: it is the caller's, and the handle is nothing. `NULL` if it is none.
struct strait_channel *strait_handle_take_channel(struct strait_handle *handle);

// Closes what a handle names; then it is nothing. `NULL`, and nothing, are let pass.
void strait_handle_close(struct strait_handle *handle);

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
// The `handle_count` handles are taken if the call succeeds; otherwise they stay the caller's. Fails with `STRAIT_IN_USE`,
// `STRAIT_CLOSED` or `STRAIT_MOVED` if one is an end of a channel that another thread uses, closed or sent.
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

// Frees a view, which makes room for the sender, and closes the handles that were not taken. `NULL` is let pass.
void strait_view_free(struct strait_view *view);

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

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* STRAIT_H */
