/* Events on control sockets, handled by the engine or by a waiter. */
#include <sys/epoll.h>

#include "host/private.h"
#include "host/roce.h"

enum { BATCH = 64 };

static bool handle(struct vb_adapter *a, struct source *s)
{
	struct conn *c;
	bool dead = s->kind == SRC_PID, look;

	if (s->kind == SRC_LISTEN) {
		vb_contact_accept(a, (struct number *)s);
		return false;
	}
	if (s->kind == SRC_MEMBERS) {
		if (vb_members_accept(a)) {
			atomic_store(&a->members_wait, true);
			atomic_store(&a->contact_work, true);
			vb_engine_kick(a);
		}
		return false;
	}
	if (s->kind == SRC_INLET) {
		vb_inlet_came(a, s);
		return true;
	}
	if (s->kind == SRC_NETWORK) {
		vb_watch_run(a);
		return false;
	}
	if (s->kind == SRC_ROCE) {
		if (!vb_roce_serve(a->roce, a))
			vb_adapter_lose(a);
		return false;
	}
	c = dead ? vb_containerof(s, struct conn, on_pid) : vb_containerof(s, struct conn, on_sock);
	switch (c->state) {
	case CONN_NEW:
	case CONN_ASKED:
		look = vb_contact_hello(a, c, dead);
		if (dead && c->state == CONN_UP) /* its last word was a hello, and its end is told once */
			look |= vb_conn_read(a, c, true);
		return look;
	case CONN_UP:
		return vb_conn_read(a, c, dead);
	case CONN_DEAD:
		break;
	}
	return false;
}

bool vb_control_run(struct vb_adapter *a)
{
	struct epoll_event ev[BATCH];
	bool look = false;
	int n;

	pthread_mutex_lock(&a->control);
	if (vb_adapter_lost(a) || !vb_ctl_is_ours(a)) { /* somebody else's events, and pointers */
		vb_adapter_lose(a);
		goto unlock;
	}
	vb_ctl_sure(a); /* callers end this */
	n = epoll_wait(a->ctl, ev, BATCH, 0);
	for (int i = 0; i < n && !vb_adapter_lost(a); i++)
		look |= handle(a, ev[i].data.ptr);
	vb_conns_bury(a);
unlock:
	pthread_mutex_unlock(&a->control);
	return look;
}
