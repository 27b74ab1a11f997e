#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/syscall.h>

#include "kit.h"

static bool filter(struct sock_filter *code, size_t n, unsigned flags)
{
	struct sock_fprog prog = {(unsigned short)n, code};

	return !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) &&
	       !syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &prog);
}

bool kit_deny(long call, int err, bool all)
{
	struct sock_filter code[] = {
	    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 1),
	    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)err),
	    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};

	return filter(code, sizeof code / sizeof *code, all ? SECCOMP_FILTER_FLAG_TSYNC : 0);
}

bool kit_deny_every_call(void)
{
	struct sock_filter code[] = {
	    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
#ifdef __SANITIZE_ADDRESS__
	    /* The sanitizer makes this one by itself before a function that does not return. */
	    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sigaltstack, 1, 0),
#endif
	    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 0, 1),
	    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
	};

	return filter(code, sizeof code / sizeof *code, 0);
}
