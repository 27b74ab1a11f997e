/* Members: adapters that hold something together find one another by the abstract names that each binds.  The
 * kernel keeps the list: a name is gone with its process, however that ends.  Contact is made with the
 * adapters that the names speak of.
 *
 * Anybody on the host can bind any name.  So a name ends in chance, lest another user have bound it before;
 * and whoever reads the list connects to each name, only to be told by the kernel who listens there: what is
 * not this user's does not count, and is not waited for.  The engine takes these connections away. */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/chance.h"
#include "base/fault.h"
#include "host/hello.h"
#include "host/private.h"

enum { BIND_TRIES = 8, NAME = 96, ACCEPT_BATCH = 64 };

/* One thing that this adapter holds a part of; guarded by qpn_lock. */
struct member {
	struct vb_list node;
	char what[VB_MEMBER_NAME];
	uint32_t refs;
	int sock;
	struct vb_own own; /* it */
};

static struct member *find(struct vb_adapter *a, const char *what)
{
	vb_mutex_assert_held(&a->qpn_lock);
	vb_list_each (n, &a->members) {
		struct member *m = vb_list_entry(n, struct member, node);

		if (!strcmp(m->what, what))
			return m;
	}
	return NULL;
}

/* The name without the number of the member and what follows. */
static int prefix(char *to, size_t size, const char *what)
{
	return snprintf(to, size, "verbena/1/%s/", what);
}

static socklen_t address(struct sockaddr_un *sa, const char *name)
{
	size_t n = strlen(name);

	*sa = (struct sockaddr_un){.sun_family = AF_UNIX};
	if (n > sizeof(sa->sun_path) - 1)
		n = sizeof(sa->sun_path) - 1;
	memcpy(sa->sun_path + 1, name, n);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n);
}

/* Binds a name that nobody has; 0 or errno. */
static int bind_some(int sock, const char *what, uint32_t number)
{
	struct sockaddr_un sa;
	char name[NAME];
	uint64_t chance;
	int n;

	for (int i = 0; i < BIND_TRIES; i++) {
		socklen_t len;

		chance = vb_chance();
		n = prefix(name, sizeof(name), what);
		snprintf(name + n, sizeof(name) - (size_t)n, "%u/%016llx", number,
			 (unsigned long long)chance);
		len = address(&sa, name);
		if (!bind(sock, (struct sockaddr *)&sa, len))
			return 0;
		if (errno != EADDRINUSE)
			return errno;
	}
	return EADDRINUSE;
}

/* A name that is listened at, so that others are told whose it is. */
static int make_name(struct vb_adapter *a, int *sock, const char *what)
{
	int err;

	*sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (*sock < 0)
		return errno;
	err = bind_some(*sock, what, a->numbers[0].number);
	if (!err && listen(*sock, VB_BACKLOG))
		err = errno;
	if (!err) /* edges: where nothing can be accepted, for want of descriptors, the engine must not spin
		   */
		err = vb_ctl_add(a, *sock, EPOLLIN | EPOLLET, &a->on_members);
	if (err)
		close(*sock);
	return err;
}

bool vb_members_accept(struct vb_adapter *a)
{
	bool more = false;

	pthread_mutex_lock(&a->qpn_lock);
	vb_list_each (n, &a->members) {
		const struct member *m = vb_list_entry(n, struct member, node);
		int fd, i;

		if (!vb_own_is(&m->own, m->sock)) {
			vb_adapter_lose(a);
			break;
		}
		for (i = 0; i < ACCEPT_BATCH && (fd = accept4(m->sock, NULL, NULL, SOCK_CLOEXEC)) >= 0; i++)
			vb_foreign_hang_up(fd);
		more |= i == ACCEPT_BATCH;
	}
	pthread_mutex_unlock(&a->qpn_lock);
	return more;
}

void vb_members_listen(struct vb_adapter *a)
{
	pthread_mutex_lock(&a->qpn_lock);
	vb_list_each (n, &a->members) {
		const struct member *m = vb_list_entry(n, struct member, node);

		if (vb_own_is(&m->own, m->sock))
			(void)!listen(m->sock, VB_BACKLOG);
	}
	pthread_mutex_unlock(&a->qpn_lock);
}

static int join(struct vb_adapter *a, const char *what)
{
	struct member *m = find(a, what);
	int err;

	vb_mutex_assert_held(&a->qpn_lock);
	if (m) {
		m->refs++;
		return 0;
	}
	m = calloc(1, sizeof(*m)); /* vb_member_leave(), vb_members_free() */
	if (!m)
		return ENOMEM;
	err = make_name(a, &m->sock, what);
	if (err) {
		free(m);
		return err;
	}
	m->own = vb_own_of(m->sock);
	VB_FAULT_POINT("member's name bound");
	snprintf(m->what, sizeof(m->what), "%s", what);
	m->refs = 1;
	vb_list_append(&a->members, &m->node);
	return 0;
}

int vb_member_join(struct vb_adapter *a, const char *what)
{
	int cancel, err;

	if (vb_adapter_dead(a) || !vb_adapter_whole(a))
		return EIO;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	pthread_mutex_lock(&a->qpn_lock);
	err = join(a, what);
	pthread_mutex_unlock(&a->qpn_lock);
	pthread_setcancelstate(cancel, NULL);
	return err;
}

uint32_t vb_member_count(struct vb_adapter *a, const char *what)
{
	const struct member *m;
	uint32_t n;

	pthread_mutex_lock(&a->qpn_lock);
	m = find(a, what);
	n = m ? m->refs : 0;
	pthread_mutex_unlock(&a->qpn_lock);
	return n;
}

void vb_member_leave(struct vb_adapter *a, const char *what)
{
	struct member *m;
	int cancel;

	if (vb_adapter_dead(a))
		return;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	pthread_mutex_lock(&a->qpn_lock);
	m = find(a, what);
	if (m && !--m->refs) {
		vb_list_unlink(&m->node);
		/* A forked child may hold the description, so that closing alone would leave it in the set.
		 */
		if (vb_own_is(&m->own, m->sock) && vb_ctl_is_ours(a))
			epoll_ctl(a->ctl, EPOLL_CTL_DEL, m->sock, NULL);
		vb_own_close(&m->own, m->sock);
		free(m);
	}
	pthread_mutex_unlock(&a->qpn_lock);
	pthread_setcancelstate(cancel, NULL);
}

/* One more number; 0 or ENOMEM. */
static int add(uint32_t **numbers, uint32_t *count, uint32_t number)
{
	uint32_t *more = *count & (*count - 1)
			     ? *numbers /* room up to the next power of two */
			     : realloc(*numbers, (*count ? 2ull * *count : 1) * sizeof(*more));

	if (!more)
		return ENOMEM;
	*numbers = more;
	more[(*count)++] = number;
	return 0;
}

/* The members found so far. */
struct found {
	uint32_t *numbers, count;
	int32_t *owners; /* of all numbers, once asked for; NULL: the kernel does not tell */
	bool asked;
	uint8_t seen[VB_ADAPTERS / 8]; /* a name is anybody's to bind, as often as he likes */
};

/* A name without room for another connection: it is a member's that does not get to run, if the number that
 * it speaks of is this user's. */
static bool may_be_ours(struct found *f, uint32_t number)
{
	if (!f->asked)
		f->owners = vb_numbers_owners(); /* freed by vb_member_list() */
	f->asked = true;
	return !f->owners || f->owners[number] == (int32_t)(geteuid() + 1);
}

/* Whether this user listens at a name of the list; 0, or errno where that cannot be asked. */
static int is_ours(const char *name, uint32_t number, struct found *f, bool *ours)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), err = 0;
	struct sockaddr_un sa;
	struct vb_reach_facts t;
	socklen_t len;
	uint32_t pid;

	*ours = false;
	if (fd < 0)
		return errno;
	len = address(&sa, name);
	if (!connect(fd, (struct sockaddr *)&sa, len)) {
		err = vb_contact_may(fd, &pid, &t);
		*ours = !err;
		if (err == EACCES)
			err = 0;
	} else if (errno == EAGAIN) {
		*ours = may_be_ours(f, number);
	} else if (errno != ECONNREFUSED) { /* that says: gone, or bound only */
		err = errno;
	}
	vb_foreign_hang_up(fd);
	return err;
}

/* A name of the list, if it speaks of another adapter that is not known yet and is this user's. */
static int consider(struct vb_adapter *a, const char *name, size_t number_at, struct found *f)
{
	unsigned long number = strtoul(name + number_at, NULL, 10);
	bool ours;
	int err;

	if (!number || number >= VB_ADAPTERS || number == a->numbers[0].number ||
	    f->seen[number / 8] & 1 << number % 8)
		return 0;
	err = is_ours(name, (uint32_t)number, f, &ours);
	if (err || !ours)
		return err;
	f->seen[number / 8] |= (uint8_t)(1 << number % 8);
	return add(&f->numbers, &f->count, (uint32_t)number);
}

int vb_member_list(struct vb_adapter *a, const char *what, uint32_t **numbers, uint32_t *count)
{
	FILE *f = fopen("/proc/thread-self/net/unix", "re");
	char start[NAME], *line = NULL, *at;
	struct found found = {0};
	size_t size = 0;
	int err = 0, n;

	*numbers = NULL;
	*count = 0;
	if (!f)
		return errno;
	start[0] = '@';
	n = 1 + prefix(start + 1, sizeof(start) - 1, what);
	while (!err && getline(&line, &size, f) > 0) {
		at = strchr(line, '@');
		if (!at || strncmp(at, start, (size_t)n))
			continue;
		at[strcspn(at, "\n")] = 0;
		err = consider(a, at + 1, (size_t)n - 1, &found);
	}
	if (!err && ferror(f))
		err = EIO;
	free(line);
	free(found.owners);
	fclose(f);
	if (err)
		free(found.numbers);
	if (!err) {
		*numbers = found.numbers;
		*count = found.count;
	}
	return err;
}

void vb_members_close(struct vb_adapter *a)
{
	vb_list_each (n, &a->members) {
		struct member *m = vb_list_entry(n, struct member, node);

		vb_own_close(&m->own, m->sock);
	}
}

void vb_members_free(struct vb_adapter *a)
{
	struct vb_list *n;

	while ((n = vb_list_pop(&a->members)))
		free(vb_list_entry(n, struct member, node));
}
