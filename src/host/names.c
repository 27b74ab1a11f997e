/* Who has bound the abstract names of adapters: what the kernel shows of this network namespace, and of those
 * of other processes. */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/text.h"
#include "host/networks.h"
#include "host/private.h"
#include "iba/reach.h"

#ifndef UDIAG_SHOW_UID /* Linux 5.3 */
#define UDIAG_SHOW_UID 0x40
#define UNIX_DIAG_UID  7
#endif

#define SELF VB_NETWORK_SELF

#define SEEK_APART VB_SEC /* between two searches, which read a file for each process */

enum {
	MOST_PROCESSES = 4096, /* looked through */
	MOST_NETWORKS = 16,
	MOST_USERS = 4, /* told apart in a sentence */
	ANSWER = 32768, /* bytes of one netlink answer */
};

/* The result of a pass over the kernel's list. */
struct owners {
	int32_t uid_of[VB_ADAPTERS]; /* number -> user + 1, 0: free */
};

/* The number in a name, 0: it is no adapter's. */
static uint32_t number_in(const char *name, size_t len)
{
	static const char prefix[] = "verbena/1/";
	char digits[8] = "";
	char *end;
	unsigned long n;

	if (len <= sizeof(prefix) || name[0] || memcmp(name + 1, prefix, sizeof(prefix) - 1))
		return 0;
	name += sizeof(prefix); /* the zero byte in front is as long as the one behind the prefix */
	len -= sizeof(prefix);
	if (len >= sizeof(digits))
		return 0;
	memcpy(digits, name, len);
	n = strtoul(digits, &end, 10);
	return isdigit((unsigned char)digits[0]) && !*end && n < VB_ADAPTERS ? (uint32_t)n : 0;
}

static void take_one(struct owners *o, const struct nlmsghdr *h)
{
	const struct unix_diag_msg *m = NLMSG_DATA(h);
	const struct nlattr *at = (const struct nlattr *)(m + 1);
	size_t left = h->nlmsg_len - NLMSG_LENGTH(sizeof(*m));
	uint32_t uid = 0, number = 0;
	bool known = false;

	while (left >= sizeof(*at) && at->nla_len >= sizeof(*at) && at->nla_len <= left) {
		size_t len = at->nla_len - sizeof(*at), step = NLMSG_ALIGN(at->nla_len);

		if (at->nla_type == UNIX_DIAG_NAME)
			number = number_in((const char *)(at + 1), len);
		if (at->nla_type == UNIX_DIAG_UID && len == sizeof(uid)) {
			memcpy(&uid, at + 1, sizeof(uid));
			known = true;
		}
		if (step > left)
			break;
		left -= step;
		at = (const void *)((const char *)at + step);
	}
	/* Connections that were accepted have the name of their listener, which is of the same user. */
	if (number && known)
		o->uid_of[number] = (int32_t)(uid + 1);
}

static int ask_kernel(int fd)
{
	struct {
		struct nlmsghdr h;
		struct unix_diag_req r;
	} ask = {
	    .h = {.nlmsg_len = sizeof(ask),
		  .nlmsg_type = SOCK_DIAG_BY_FAMILY,
		  .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP},
	    .r = {.sdiag_family = AF_UNIX,
		  .udiag_states = ~0u,
		  .udiag_show = UDIAG_SHOW_NAME | UDIAG_SHOW_UID},
	};

	return send(fd, &ask, sizeof(ask), 0) == sizeof(ask) ? 0 : errno;
}

/* Asks for all sockets; 0, or errno where the kernel does not tell. */
static int read_owners(struct owners *o)
{
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG), err;
	bool more = true;
	char *answer;

	memset(o, 0, sizeof(*o));
	if (fd < 0)
		return errno;
	answer = malloc(ANSWER);
	err = answer ? ask_kernel(fd) : ENOMEM;
	while (!err && more) {
		ssize_t n = recv(fd, answer, ANSWER, 0);
		size_t left = n > 0 ? (size_t)n : 0;

		if (n <= 0)
			err = n ? errno : EPROTO;
		for (struct nlmsghdr *h = (void *)answer; more && NLMSG_OK(h, left);
		     h = NLMSG_NEXT(h, left)) {
			if (h->nlmsg_type == NLMSG_ERROR)
				err = EOPNOTSUPP;
			more = h->nlmsg_type != NLMSG_DONE && h->nlmsg_type != NLMSG_ERROR;
			if (h->nlmsg_type == SOCK_DIAG_BY_FAMILY)
				take_one(o, h);
		}
	}
	free(answer);
	close(fd);
	return err;
}

int32_t *vb_numbers_owners(void)
{
	struct owners *o = malloc(sizeof(*o));

	_Static_assert(sizeof(*o) == sizeof(o->uid_of), "it is nothing else");
	if (o && !read_owners(o))
		return o->uid_of;
	free(o);
	return NULL;
}

/* The numbers that are bound, where the kernel does not tell by whom: each as if it were this user's. */
static int read_names(struct owners *o)
{
	FILE *f = fopen("/proc/thread-self/net/unix", "re");
	char *line = NULL, *at;
	size_t size = 0;
	int err = 0;

	memset(o, 0, sizeof(*o));
	if (!f)
		return errno;
	while (getline(&line, &size, f) > 0) {
		uint32_t number;

		at = strchr(line, '@');
		if (!at)
			continue;
		at[strcspn(at, "\n")] = 0;
		*at = 0; /* as the name begins in the kernel */
		number = number_in(at, strlen(at + 1) + 1);
		if (number)
			o->uid_of[number] = (int32_t)(geteuid() + 1);
	}
	if (ferror(f))
		err = EIO;
	free(line);
	fclose(f);
	return err;
}

int vb_numbers_list(uint32_t **numbers, uint32_t *count)
{
	struct owners *o = malloc(sizeof(*o));
	int err = o ? 0 : ENOMEM;
	uint32_t n = 0;

	*numbers = o ? malloc(VB_ADAPTERS * sizeof(**numbers)) : NULL;
	if (!err && !*numbers)
		err = ENOMEM;
	if (!err && read_owners(o))
		err = read_names(o);
	for (uint32_t i = 1; !err && i < VB_ADAPTERS; i++)
		if (o->uid_of[i] == (int32_t)(geteuid() + 1))
			(*numbers)[n++] = i;
	free(o);
	*count = n;
	if (err) {
		free(*numbers);
		*numbers = NULL;
	}
	return err;
}

const char *vb_numbers_say(char *buf, size_t size)
{
	struct owners *o = malloc(sizeof(*o));
	struct vb_text t = {buf, size};
	uint32_t said = 0, others = 0;
	const char *sep = "";

	buf[0] = 0;
	if (!o || read_owners(o)) {
		free(o);
		vb_text_add(&t, "the kernel does not show by which users");
		return buf;
	}
	for (uint32_t i = 1; i < VB_ADAPTERS; i++) {
		int32_t uid = o->uid_of[i];
		uint32_t n = 0;

		for (uint32_t k = i; uid && k < VB_ADAPTERS; k++) {
			if (o->uid_of[k] != uid)
				continue;
			o->uid_of[k] = 0;
			n++;
		}
		if (n && said++ < MOST_USERS) {
			vb_text_add(&t, "%s%u by user %u%s", sep, n, (uint32_t)uid - 1,
				    (uint32_t)uid - 1 == geteuid() ? " (this one)" : "");
			sep = ", ";
		} else {
			others += n;
		}
	}
	if (others)
		vb_text_add(&t, ", %u by other users", others);
	free(o);
	return buf;
}

/* The inode of the socket that has bound the number, in the table of a process's network; 0: none. */
static unsigned long bound_in(const char *pid, uint32_t number)
{
	char path[64], want[32], *line = NULL;
	unsigned long inode = 0;
	size_t size = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%.20s/net/unix", pid);
	snprintf(want, sizeof(want), " @verbena/1/%u\n", number);
	f = fopen(path, "re");
	if (!f)
		return 0;
	while (!inode && getline(&line, &size, f) > 0) {
		if (strstr(line, want) && sscanf(line, "%*s %*s %*s %*s %*s %*s %lu", &inode) != 1)
			inode = 0;
	}
	free(line);
	fclose(f);
	return inode;
}

/* The networks that were looked into so far. */
struct networks {
	unsigned long ino[MOST_NETWORKS], inode[MOST_NETWORKS]; /* and the socket there, 0: none */
	unsigned n;
};

/* The socket that has the number in the network of this process, 0: none, or it is no other network. */
static unsigned long look_into(struct networks *w, const char *pid, uint32_t number)
{
	unsigned long ino = vb_network_of(pid);

	for (unsigned i = 0; i < w->n; i++) {
		if (w->ino[i] == ino)
			return w->inode[i];
	}
	if (!ino || w->n == MOST_NETWORKS)
		return 0;
	w->ino[w->n] = ino;
	w->inode[w->n] = bound_in(pid, number);
	return w->inode[w->n++];
}

static void seek_elsewhere(uint32_t number, struct vb_reach_facts *t)
{
	struct networks w = {.ino = {vb_network_of(SELF)}, .n = 1}; /* one's own has been asked */
	unsigned looked = 0;
	bool itself = false;
	DIR *dir = opendir("/proc");

	if (!dir)
		return;
	for (struct dirent *e; looked < MOST_PROCESSES && (e = readdir(dir));) {
		unsigned long inode;

		if (!isdigit((unsigned char)e->d_name[0]))
			continue;
		looked++;
		inode = look_into(&w, e->d_name, number);
		if (!inode || itself)
			continue;
		itself = vb_network_has_open(e->d_name, inode);
		if (itself || t->reach != VB_REACH_ELSEWHERE)
			*t = (struct vb_reach_facts){
			    VB_REACH_ELSEWHERE,
			    .elsewhere = {(uint32_t)strtoul(e->d_name, NULL, 10), itself}};
	}
	closedir(dir);
}

bool vb_number_seek(struct vb_adapter *a, uint32_t number, struct vb_reach_facts *t)
{
	uint64_t now = vb_now();
	struct owners *o;

	vb_mutex_assert_held(&a->control);
	if (a->looked && now - a->looked < SEEK_APART)
		return false;
	a->looked = now;
	*t = (struct vb_reach_facts){.reach = VB_REACH_NOBODY};
	if (bound_in(SELF, number)) { /* and yet nobody listens */
		o = malloc(sizeof(*o));
		if (o && !read_owners(o) && o->uid_of[number])
			*t = (struct vb_reach_facts){VB_REACH_DEAF, .uid = {(uint32_t)o->uid_of[number] - 1}};
		free(o);
		return true;
	}
	seek_elsewhere(number, t);
	return true;
}
