// A process in which the kernel refuses `membarrier`, which uses of a handle need to be uncounted: from the start
// ("early"), or only once handles are in steady use ("late"). In both cases the handles are closed while another thread
// uses them. The exit code is 0 if everything worked.
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <zircon/syscalls.h>

#define EXPECT(condition)                                                 \
  do {                                                                    \
    if (!(condition)) {                                                   \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);     \
      exit(1);                                                            \
    }                                                                     \
  } while (0)

static void refuse(void) {
  struct sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    fprintf(stderr, "left out: system calls cannot be refused here\n");
    _exit(0);
  }
  EXPECT(syscall(SYS_membarrier, 0, 0, 0) == -1 && errno == EPERM);
}

static void use(zx_handle_t a, zx_handle_t b) {
  for (int i = 0; i < 1000; i++) {
    char byte = 0;
    EXPECT(zx_channel_write(a, 0, "x", 1, NULL, 0) == ZX_OK);
    EXPECT(zx_channel_read(b, 0, &byte, NULL, 1, 0, NULL, NULL) == ZX_OK && byte == 'x');
  }
}

static void *writes(void *handle) {
  zx_status_t status;
  do {
    status = zx_channel_write(*(zx_handle_t *)handle, 0, "y", 1, NULL, 0);
  } while (status == ZX_OK || status == ZX_ERR_SHOULD_WAIT);
  EXPECT(status == ZX_ERR_BAD_HANDLE);
  return NULL;
}

int main(int argc, char **argv) {
  int early = argc > 1 && strcmp(argv[1], "early") == 0;
  if (early) {
    refuse();
  }
  for (int round = 0; round < 20; round++) {
    zx_handle_t a, b;
    pthread_t thread;
    EXPECT(zx_channel_create(0, &a, &b) == ZX_OK);
    use(a, b);
    EXPECT(pthread_create(&thread, NULL, writes, &a) == 0);
    if (!early && round == 10) {
      refuse();
    }
    for (int i = 0; i < 100; i++) {
      char byte;
      zx_status_t status = zx_channel_read(b, 0, &byte, NULL, 1, 0, NULL, NULL);
      EXPECT(status == ZX_OK || status == ZX_ERR_SHOULD_WAIT);
    }
    EXPECT(zx_handle_close(a) == ZX_OK);
    EXPECT(pthread_join(thread, NULL) == 0);
    EXPECT(zx_handle_close(b) == ZX_OK);
  }
  return 0;
}
