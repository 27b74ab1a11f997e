/* The check of which processes may connect, and the log of refusals.  Each sentence is logged once for an
 * adapter. */
#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "host/private.h"
#include "iba/reach.h"

enum { OVERFLOW_UID = 65534 };

/* Whether the user that reads as `uid` here is one, and not "anybody who has no name here". */
static bool uid_is_mapped(uint32_t uid)
{
	unsigned long in, out, n;
	bool mapped = false;
	FILE *f = fopen("/proc/self/uid_map", "re");

	if (!f)
		return false;
	while (!mapped && fscanf(f, "%lu %lu %lu", &in, &out, &n) == 3)
		mapped = uid >= in && uid - in < n;
	fclose(f);
	return mapped;
}

static uint32_t overflow_uid(void)
{
	uint32_t uid = OVERFLOW_UID;
	FILE *f = fopen("/proc/sys/kernel/overflowuid", "re");

	if (f) {
		if (fscanf(f, "%u", &uid) != 1)
			uid = OVERFLOW_UID;
		fclose(f);
	}
	return uid;
}

int vb_contact_may(int sock, uint32_t *pid, struct vb_reach_facts *t)
{
	struct ucred cred = {0};
	socklen_t len = sizeof(cred);
	uint32_t overflow;

	*pid = 0;
	if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &cred, &len)) {
		*t = vb_reach_trouble(errno, VB_CALL_PEERCRED);
		return errno;
	}
	*pid = (uint32_t)cred.pid;
	*t = (struct vb_reach_facts){VB_REACH_USER, .user = {cred.uid, *pid}};
	overflow = overflow_uid();
	if (cred.uid != overflow)
		return cred.uid == geteuid() ? 0 : EACCES;
	/* As which everybody reads who has no number here: it is a user only where it is mapped itself. */
	if (uid_is_mapped(overflow))
		return geteuid() == overflow ? 0 : EACCES;
	*t = geteuid() == overflow ? (struct vb_reach_facts){VB_REACH_NAMELESS, .uid = {overflow}}
				   : (struct vb_reach_facts){VB_REACH_UNMAPPED, .process = {*pid}};
	return EACCES;
}

/* Logs that the connection of a process is refused. */
void vb_contact_tell_away(struct vb_adapter *a, const struct vb_reach_facts *t, uint32_t pid)
{
	char text[400] = "";
	struct vb_text why = {text, sizeof(text)};

	if (a->told_uid)
		return;
	a->told_uid = true;
	if (t->reach == VB_REACH_USER)
		vb_log(
		    VB_LOG_WARN,
		    "the connection of a process of user %u (PID %u) is refused: only processes of the same "
		    "user, here %u, can communicate",
		    t->user.uid, pid, geteuid());
	else if (t->reach == VB_REACH_UNMAPPED)
		vb_log(VB_LOG_WARN,
		       "the connection of a process (PID %u) is refused: its user is not mapped in this user "
		       "namespace, and only processes of the same user can communicate",
		       pid);
	else if (vb_reach_add(&why, t))
		vb_log(VB_LOG_WARN, "the connection of a process (PID %u) is refused: %s", pid, text);
}

/* Logs that this process cannot connect, or accept connections, at present. */
void vb_contact_tell_lack(struct vb_adapter *a, const struct vb_reach_facts *t)
{
	char text[400] = "";
	struct vb_text why = {text, sizeof(text)};

	if (a->told_fds || !vb_reach_add(&why, t))
		return;
	a->told_fds = true;
	vb_log(VB_LOG_WARN, "%s", text);
}

/* A process of this user has another version of ours: said at both ends, since neither knows who looks. */
void vb_contact_tell_version(struct vb_adapter *a, uint32_t pid, uint16_t version)
{
	uint64_t who = (uint64_t)pid << 16 | version;

	if (a->told_version == who)
		return;
	a->told_version = who;
	vb_log(VB_LOG_WARN,
	       "no connection with process %u of this user: it uses another version of Verbena (segment "
	       "version %u; this process has %u); all processes of a user must use the same version",
	       pid, version, VB_SEG_VERSION);
}

/* Logs that a process of this user connected and did not follow the protocol. */
void vb_contact_tell_stranger(struct vb_adapter *a, uint32_t pid, const char *what)
{
	if (!a->told_stranger)
		vb_log(VB_LOG_WARN, "the connection of process %u of this user is refused: it %s", pid, what);
	a->told_stranger = true;
}
