// A program for Fuchsia's headers: two processes that call each other. Without an argument the program starts itself;
// with one it is the child. The exit code is 0 if everything worked.
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <strait/zx.h>
#include <zircon/status.h>
#include <zircon/syscalls.h>

#define CHECK(call, expected)                                                                   \
  do {                                                                                          \
    zx_status_t status_ = (call);                                                               \
    if (status_ != (expected)) {                                                                \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, zx_status_get_string(status_)); \
      exit(1);                                                                                  \
    }                                                                                           \
  } while (0)

#define EXPECT(condition)                                                 \
  do {                                                                    \
    if (!(condition)) {                                                   \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);     \
      exit(1);                                                            \
    }                                                                     \
  } while (0)

_Static_assert(sizeof(zx_channel_iovec_t) == 16, "layout");
_Static_assert(sizeof(zx_handle_disposition_t) == 20, "layout");
_Static_assert(sizeof(zx_handle_info_t) == 16, "layout");
_Static_assert(sizeof(zx_channel_call_args_t) == 48, "layout");
_Static_assert(sizeof(zx_channel_call_etc_args_t) == 48, "layout");
_Static_assert(sizeof(zx_wait_item_t) == 12, "layout");
_Static_assert(sizeof(zx_port_packet_t) == 48, "layout");
_Static_assert(sizeof(zx_packet_signal_t) == 32, "layout");
_Static_assert(sizeof(zx_packet_user_t) == 32, "layout");
_Static_assert(sizeof(zx_info_handle_basic_t) == 32, "layout");
_Static_assert(offsetof(zx_port_packet_t, user) == 16, "layout");
_Static_assert(offsetof(zx_info_handle_basic_t, related_koid) == 16, "layout");

_Static_assert(sizeof(zx_info_handle_count_t) == 4, "layout");
_Static_assert(sizeof(zx_txid_t) == 4 && ZX_WAIT_ASYNC_ONCE == 0 && ZX_INFO_HANDLE_COUNT == 19, "values");

typedef struct {
  zx_txid_t txid;
  uint32_t number;
} message_t;

// Answers each call with the received number plus one and the received handle, until the other end is closed.
static int child(void) {
  zx_handle_t parent;
  CHECK(strait_zx_channel_from_parent(&parent), ZX_OK);
  for (;;) {
    zx_signals_t observed;
    CHECK(zx_object_wait_one(parent, ZX_CHANNEL_READABLE | ZX_CHANNEL_PEER_CLOSED, ZX_TIME_INFINITE, &observed), ZX_OK);
    if (!(observed & ZX_CHANNEL_READABLE)) {
      break;
    }
    message_t message;
    zx_handle_t handle = ZX_HANDLE_INVALID;
    uint32_t bytes, handles;
    CHECK(zx_channel_read(parent, 0, &message, &handle, sizeof(message), 1, &bytes, &handles), ZX_OK);
    EXPECT(bytes == sizeof(message));
    message.number += 1;
    CHECK(zx_channel_write(parent, 0, &message, sizeof(message), &handle, handles), ZX_OK);
  }
  CHECK(zx_handle_close(parent), ZX_OK);
  return 0;
}

// Tests the information about handles, and ports.
static void handles_and_ports(void) {
  zx_handle_t port, event, other;
  CHECK(zx_port_create(0, &port), ZX_OK);
  CHECK(zx_event_create(0, &event), ZX_OK);
  CHECK(zx_handle_check_valid(event), ZX_OK);
  CHECK(zx_handle_check_valid(ZX_HANDLE_INVALID), ZX_ERR_BAD_HANDLE);
  CHECK(zx_handle_duplicate(event, ZX_RIGHT_WAIT, &other), ZX_OK);
  zx_info_handle_count_t count;
  size_t actual, avail;
  CHECK(zx_object_get_info(event, ZX_INFO_HANDLE_COUNT, &count, sizeof(count), &actual, &avail), ZX_OK);
  EXPECT(count.handle_count == 2 && actual == 1 && avail == 1);
  CHECK(zx_object_get_info(other, ZX_INFO_HANDLE_COUNT, &count, sizeof(count), NULL, NULL), ZX_ERR_ACCESS_DENIED);
  CHECK(zx_object_get_info(event, ZX_INFO_HANDLE_COUNT, &count, 3, &actual, &avail), ZX_ERR_BUFFER_TOO_SMALL);
  EXPECT(actual == 0 && avail == 1);
  CHECK(zx_handle_close(other), ZX_OK);
  CHECK(zx_handle_check_valid(other), ZX_ERR_BAD_HANDLE);
  CHECK(zx_object_get_info(event, ZX_INFO_HANDLE_COUNT, &count, sizeof(count), NULL, NULL), ZX_OK);
  EXPECT(count.handle_count == 1);

  // Packets of programs are cancelled by key, and waits for a signal end newest first.
  zx_port_packet_t packet = {.key = 7, .type = ZX_PKT_TYPE_USER};
  CHECK(zx_port_queue(port, &packet), ZX_OK);
  CHECK(zx_port_queue(port, &packet), ZX_OK);
  CHECK(zx_port_cancel_key(port, 0, 7), ZX_OK);
  CHECK(zx_port_wait(port, 0, &packet), ZX_ERR_TIMED_OUT);
  for (uint64_t key = 1; key <= 3; key++) {
    CHECK(zx_object_wait_async(event, port, key, ZX_EVENT_SIGNALED, ZX_WAIT_ASYNC_ONCE), ZX_OK);
  }
  CHECK(zx_object_signal(event, 0, ZX_EVENT_SIGNALED), ZX_OK);
  for (uint64_t key = 3; key >= 1; key--) {
    CHECK(zx_port_wait(port, ZX_TIME_INFINITE, &packet), ZX_OK);
    EXPECT(packet.key == key);
  }
  CHECK(zx_handle_close(event), ZX_OK);
  CHECK(zx_handle_close(port), ZX_OK);
}

int main(int argc, char** argv) {
  if (argc > 1) {
    return child();
  }
  handles_and_ports();
  const char* command[] = {argv[0], "child", NULL};
  zx_handle_t channel;
  pid_t pid;
  CHECK(strait_zx_spawn(command, &pid, &channel), ZX_OK);

  // A call from two regions, with memory that is sent to the child and back.
  zx_handle_t vmo;
  CHECK(zx_vmo_create(4096, 0, &vmo), ZX_OK);
  CHECK(zx_vmo_write(vmo, "there and back", 14, 14), ZX_OK);
  uint32_t txid = 0;
  uint32_t number = 41;
  zx_channel_iovec_t regions[] = {{&txid, sizeof(txid), 0}, {NULL, 0, 0}, {&number, sizeof(number), 0}};
  message_t answer;
  zx_handle_t back;
  zx_channel_call_args_t args = {
      .wr_bytes = regions,
      .wr_handles = &vmo,
      .rd_bytes = &answer,
      .rd_handles = &back,
      .wr_num_bytes = 3,
      .wr_num_handles = 1,
      .rd_num_bytes = sizeof(answer),
      .rd_num_handles = 1,
  };
  uint32_t bytes, handles;
  CHECK(zx_channel_call(channel, ZX_CHANNEL_WRITE_USE_IOVEC, zx_deadline_after(ZX_SEC(60)), &args, &bytes, &handles), ZX_OK);
  EXPECT(bytes == sizeof(answer) && handles == 1);
  EXPECT(answer.number == 42);
  EXPECT(answer.txid >= 0x80000000u);
  EXPECT(zx_handle_close(vmo) == ZX_ERR_BAD_HANDLE);
  char text[14];
  CHECK(zx_vmo_read(back, text, 14, sizeof(text)), ZX_OK);
  EXPECT(memcmp(text, "there and back", sizeof(text)) == 0);
  int fd;
  CHECK(strait_zx_handle_to_fd(back, &fd), ZX_OK);
  EXPECT(pread(fd, text, sizeof(text), 14) == (ssize_t)sizeof(text));
  CHECK(strait_zx_handle_from_fd(fd, &back), ZX_OK);
  CHECK(zx_handle_close(back), ZX_OK);

  // A port gets a packet when the child has exited.
  zx_handle_t port;
  CHECK(zx_port_create(0, &port), ZX_OK);
  CHECK(zx_object_wait_async(channel, port, 7, ZX_CHANNEL_PEER_CLOSED, 0), ZX_OK);
  zx_port_packet_t packet;
  CHECK(zx_port_wait(port, 0, &packet), ZX_ERR_TIMED_OUT);
  kill(pid, SIGKILL);
  CHECK(zx_port_wait(port, zx_deadline_after(ZX_SEC(60)), &packet), ZX_OK);
  EXPECT(packet.key == 7 && packet.type == ZX_PKT_TYPE_SIGNAL_ONE);
  EXPECT(packet.signal.observed & ZX_CHANNEL_PEER_CLOSED);
  EXPECT(waitpid(pid, NULL, 0) == pid);
  CHECK(zx_channel_write(channel, 0, &number, sizeof(number), NULL, 0), ZX_ERR_PEER_CLOSED);

  // A child that exits by itself.
  CHECK(zx_handle_close(channel), ZX_OK);
  CHECK(strait_zx_spawn(command, &pid, &channel), ZX_OK);
  CHECK(zx_handle_close(channel), ZX_OK);
  int ended;
  EXPECT(waitpid(pid, &ended, 0) == pid);
  EXPECT(WIFEXITED(ended) && WEXITSTATUS(ended) == 0);

  CHECK(zx_handle_close(port), ZX_OK);
  EXPECT(strcmp(zx_status_get_string(ZX_ERR_SHOULD_WAIT), "ZX_ERR_SHOULD_WAIT") == 0);
  puts("all went well");
  return 0;
}
