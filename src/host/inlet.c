/* Sockets of wires to other hosts, in the adapter's epoll set.  They ask for events while the word says
 * asleep. One that wakes a thread while others poll asks for none from then on, until the word becomes asleep
 * again.  A steady one asks for them always, once it is open: little comes by it, and no poll looks there. */
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "host/private.h"

struct inlet {
	struct source src; /* first */
	struct vb_list node;
	int fd;
	bool steady; /* set once */
	_Atomic bool armed;
	void (*came)(void *user);
	void *user;
};

static void ask(struct vb_adapter *a, struct inlet *i, bool on)
{
	struct epoll_event ev = {.events = on ? EPOLLIN : 0, .data.ptr = &i->src};
	int err = errno;

	if (vb_ctl_is_ours(a)) /* else the adapter is about to be lost */
		syscall(SYS_epoll_ctl, a->ctl, EPOLL_CTL_MOD, i->fd, &ev);
	errno = err;
}

static bool is_asleep(const struct vb_adapter *a)
{
	return atomic_load_explicit(a->presence.awake, memory_order_seq_cst) == VB_ASLEEP;
}

/* Store-word/look-whether-armed, against store-armed/look-at-word of vb_inlet_came(). */
void vb_inlets_arm(struct vb_adapter *a)
{
	vb_list_each (n, &a->inlets) {
		struct inlet *i = vb_list_entry(n, struct inlet, node);

		if (!i->steady && !atomic_exchange_explicit(&i->armed, true, memory_order_seq_cst))
			ask(a, i, true);
	}
}

void vb_inlet_came(struct vb_adapter *a, struct source *s)
{
	struct inlet *i = vb_containerof(s, struct inlet, src);

	vb_mutex_assert_held(&a->control);
	if (!i->steady && !is_asleep(a)) {
		ask(a, i, false);
		atomic_store_explicit(&i->armed, false, memory_order_seq_cst);
		if (is_asleep(a))
			vb_inlets_arm(a);
	}
	i->came(i->user);
}

static int add(struct vb_adapter *a, const struct inlet *like)
{
	struct inlet *i = calloc(1, sizeof(*i)); /* vb_inlets_free() */
	int err;

	if (!i)
		return ENOMEM;
	*i = *like;
	i->src.kind = SRC_INLET;
	err = vb_ctl_add(a, i->fd, i->armed ? EPOLLIN : 0, &i->src);
	if (err) {
		free(i);
		return err;
	}
	vb_list_append(&a->inlets, &i->node);
	return 0;
}

int vb_inlet_add(struct vb_adapter *a, int fd, void (*came)(void *user), void *user)
{
	return add(a, &(struct inlet){.fd = fd, .armed = true, .came = came, .user = user});
}

int vb_inlet_add_steady(struct vb_adapter *a, int fd, void (*came)(void *user), void *user)
{
	return add(a, &(struct inlet){.fd = fd, .steady = true, .came = came, .user = user});
}

void vb_inlet_open(struct vb_adapter *a, int fd)
{
	vb_list_each (n, &a->inlets) {
		struct inlet *i = vb_list_entry(n, struct inlet, node);

		if (i->fd == fd)
			ask(a, i, true);
	}
}

void vb_inlets_free(struct vb_adapter *a)
{
	struct vb_list *n;

	while ((n = vb_list_pop(&a->inlets)))
		free(vb_list_entry(n, struct inlet, node));
}
