/* A sandbox as programs make it, and containers for them. */
#ifndef VB_TESTS_SANDBOX_H
#define VB_TESTS_SANDBOX_H

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "kit.h"

/* From now on this thread, and those that it makes, get EPERM for a call; with SECCOMP_FILTER_FLAG_TSYNC the
 * process's other threads too. */
KIT_UNUSED static void deny(long call, unsigned flags)
{
	struct sock_filter code[] = {
	    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 1),
	    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
	    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = {sizeof code / sizeof *code, code};

	CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	CHECK(!syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &prog), "%s", strerror(errno));
}

#endif
