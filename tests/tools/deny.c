/* deny CALL ERRNO|kill COMMAND...: runs it where a seccomp filter denies one system call.  Of madvise() that
 * is MADV_POPULATE_READ alone. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CALL(name)                \
	{                         \
#name, SYS_##name \
	}
static const struct {
	const char *name;
	long number;
} calls[] = {CALL(epoll_ctl),  CALL(memfd_create),     CALL(connect),	 CALL(listen),
	     CALL(pidfd_open), CALL(process_vm_readv), CALL(tgkill),	 CALL(statx),
	     CALL(socket),     CALL(madvise),	       CALL(clone3),	 CALL(process_vm_writev),
	     CALL(getsockopt), CALL(eventfd2),	       CALL(getsockname)};

int main(int argc, char **argv)
{
	long number = -1;

	for (size_t i = 0; argc > 3 && i < sizeof(calls) / sizeof(*calls); i++)
		if (!strcmp(argv[1], calls[i].name))
			number = calls[i].number;
	if (number < 0) {
		fprintf(stderr, "deny: no such call, or no command\n");
		return 125;
	}
	uint32_t what =
	    strcmp(argv[2], "kill") ? SECCOMP_RET_ERRNO | (uint32_t)atoi(argv[2]) : SECCOMP_RET_KILL_PROCESS;
	bool all = number != SYS_madvise;
	struct sock_filter code[] = {
	    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)number, 0, 3),
	    BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
		     all ? offsetof(struct seccomp_data, nr) : offsetof(struct seccomp_data, args[2])),
	    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, all ? (uint32_t)number : 22, 0, 1),
	    BPF_STMT(BPF_RET | BPF_K, what),
	    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {sizeof(code) / sizeof(*code), code};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	    syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program)) {
		printf("SKIP: no filter can be set: %s\n", strerror(errno));
		return 77;
	}
	execvp(argv[3], argv + 3);
	return 127;
}
