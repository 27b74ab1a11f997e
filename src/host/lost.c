/* What becomes of an adapter whose descriptors the program has closed (own.c): all links end, the upper layer
 * is told, and the engine blocks on a futex, since it has no descriptor to wait for. */
#include <linux/futex.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "host/private.h"

void vb_lost_block(struct vb_adapter *a, uint64_t for_ns)
{
	struct timespec ts = {(time_t)(for_ns / VB_SEC), (long)(for_ns % VB_SEC)};
	uint32_t seen = atomic_load_explicit(&a->lost_kicks, memory_order_seq_cst);

	/* Who wants to be heard from now on wakes it; who came before is seen here. */
	atomic_store_explicit(&a->dozing, true, memory_order_seq_cst);
	if (!atomic_load_explicit(&a->nudged, memory_order_seq_cst) &&
	    !atomic_load_explicit(&a->stop, memory_order_seq_cst))
		syscall(SYS_futex, &a->lost_kicks, FUTEX_WAIT_PRIVATE, seen, for_ns == VB_NEVER ? NULL : &ts,
			NULL, 0);
	atomic_store_explicit(&a->dozing, false, memory_order_relaxed);
}

static void let_all_go(struct vb_adapter *a)
{
	uint32_t n = atomic_load_explicit(&a->nnumbers, memory_order_acquire);

	vb_mutex_assert_held(&a->control);
	for (uint32_t i = 0; i < n; i++) /* who asks for contact is refused; and whoever waits here wakes */
		if (vb_own_is(&a->numbers[i].own, a->numbers[i].sock))
			shutdown(a->numbers[i].sock, SHUT_RDWR);
	for (uint32_t i = 1; i < vb_peer_count(a); i++) {
		struct peer *p = peer_of(vb_peer_at(a, i));
		int state = atomic_load(&p->pub.state);

		if (state == VB_PEER_UP)
			vb_peer_fall(p, VB_END_LOST, "this process closed descriptors of the device");
		else if (state == VB_PEER_CONTACTING)
			vb_peer_failed(p, false);
	}
	while (a->conns.next != &a->conns)
		vb_conn_close(a, vb_list_entry(a->conns.next, struct conn, node));
}

void vb_lost_settle(struct vb_adapter *a)
{
	int cancel;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE,
			       &cancel); /* a poller may be here, and close() is a point */
	pthread_mutex_lock(&a->control);
	if (!a->settled) {
		a->settled = true;
		let_all_go(a);
		if (a->ops->lost)
			a->ops->lost(a);
		atomic_store_explicit(a->presence.awake, VB_ASLEEP, memory_order_seq_cst);
	}
	pthread_mutex_unlock(&a->control);
	pthread_setcancelstate(cancel, NULL);
}
