/* Adapter numbers, and the QP and SRQ numbers that they make. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/chance.h"
#include "base/fault.h"
#include "base/log.h"
#include "host/private.h"
#include "host/roce.h"

static bool usable(uint32_t qpn)
{
	return qpn > 1 && qpn != 0xffffff; /* SMI, GSI, multicast */
}

/* Connects to the process that has bound that number, and hangs up.  Its PID; 0: there is none that this
 * process may talk to, or it cannot be seen. */
static uint32_t ring_at(uint32_t number)
{
	int fd = vb_number_connect(number);
	struct vb_reach_facts why;
	uint32_t pid = 0;

	if (fd < 0)
		return 0;
	if (vb_contact_may(fd, &pid, &why))
		pid = 0;
	(void)syscall(SYS_close, fd);
	return pid;
}

static _Atomic uint32_t last; /* number that was tried last; 0: none */

/* The number to try next: random in the beginning, the one after the last from then on, so that a number that
 * was given back rests as long as it can.  Of a slot's adapter it has the slot in its low bits (host/roce.h);
 * 0: any number will do. */
static uint32_t next_try(uint32_t slot)
{
	uint32_t n = atomic_load(&last);

	if (!n)
		n = (uint32_t)vb_chance() % (VB_ADAPTERS - 1) + 1;
	else if (!slot)
		n = n % (VB_ADAPTERS - 1) + 1;
	if (slot)
		n = (n / VB_ROCE_SLOTS + 1) * VB_ROCE_SLOTS % VB_ADAPTERS + slot;
	atomic_store(&last, n);
	return n;
}

/* Otherwise the children of one parent would have one number after the other, and with it the QPNs and
 * communication IDs of connections that rest in TIMEWAIT at the other end. */
void vb_numbers_forked(void)
{
	atomic_store(&last, 0);
}

/* A listening socket on the first number that is free, of the slot's if that is not 0. */
static int bind_some(int *sock, uint32_t *number, uint32_t slot)
{
	uint32_t tries = slot ? VB_ADAPTERS / VB_ROCE_SLOTS : VB_ADAPTERS - 1;
	struct sockaddr_un sa;
	socklen_t len;
	int err, fd = vb_own_high(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));

	if (fd < 0)
		return errno;
	for (uint32_t i = 0; i < tries; i++) {
		*number = next_try(slot);
		vb_number_address(&sa, &len, *number);
		if (!bind(fd, (struct sockaddr *)&sa, len)) {
			*sock = fd;
			return 0;
		}
		if (errno != EADDRINUSE) {
			err = errno;
			close(fd);
			return err;
		}
	}
	close(fd);
	return EADDRINUSE;
}

/* Takes one more number. */
int vb_number_bind(struct vb_adapter *a)
{
	uint32_t k = atomic_load_explicit(&a->nnumbers, memory_order_relaxed);
	struct number *n = &a->numbers[k];
	int err;

	vb_mutex_assert_held(&a->qpn_lock);
	if (k == VB_ADAPTER_NUMBERS)
		return ENFILE;
	if (k && !vb_adapter_whole(a))
		return EIO;
	n->qps = calloc(VB_QPN_INDICES, sizeof(*n->qps));
	if (!n->qps)
		return ENOMEM;
	err = bind_some(&n->sock, &n->number, a->roce ? vb_roce_slot(a->roce) : 0);
	if (err)
		goto free_qps;
	n->own = vb_own_of(n->sock);
	/* Listed before anybody can connect to it: contact through several numbers is told apart by the list.
	 */
	a->head->numbers[k] = n->number;
	atomic_store_explicit(&a->head->nnumbers, k + 1, memory_order_release);
	VB_FAULT_POINT("number bound, nobody listens");
	n->src.kind = SRC_LISTEN;
	err = listen(n->sock, VB_BACKLOG) ? errno : vb_ctl_add(a, n->sock, EPOLLIN | EPOLLET, &n->src);
	if (err)
		goto unlist;
	atomic_store_explicit(&a->slot_of[n->number], (uint8_t)(k + 1),
			      memory_order_release); /* vb_qpn_find */
	atomic_store_explicit(&a->nnumbers, k + 1, memory_order_release);
	return 0;
unlist:
	atomic_store_explicit(&a->head->nnumbers, k, memory_order_release);
	close(n->sock);
free_qps:
	free(n->qps);
	n->qps = NULL;
	return err;
}

int vb_adapter_number_add(struct vb_adapter *a)
{
	int err;

	pthread_mutex_lock(&a->qpn_lock);
	err = vb_number_bind(a);
	pthread_mutex_unlock(&a->qpn_lock);
	return err;
}

void vb_numbers_close(struct vb_adapter *a)
{
	uint32_t n = atomic_load_explicit(&a->nnumbers, memory_order_relaxed);

	for (uint32_t i = 0; i < n; i++) {
		vb_own_close(&a->numbers[i].own, a->numbers[i].sock);
		free(a->numbers[i].qps);
	}
	free(a->free_qpns.queue);
	free(a->free_srqns.queue);
}

static void put_free(struct free_numbers *f, uint32_t number)
{
	f->queue[(f->head + f->count++) % f->size] = number;
}

/* Puts the indices of one more adapter number behind what is in the queue; takes a further number if all that
 * there are have been used for this kind.  0 or errno. */
static int extend(struct vb_adapter *a, struct free_numbers *f)
{
	uint32_t size = (f->reach + 1) * VB_QPN_INDICES, *queue;
	int err = 0;

	vb_mutex_assert_held(&a->qpn_lock);
	if (f->reach == atomic_load_explicit(&a->nnumbers, memory_order_relaxed))
		err = vb_number_bind(a);
	if (err)
		return err;
	queue = malloc((size_t)size * sizeof(*queue));
	if (!queue)
		return ENOMEM;
	for (uint32_t i = 0; i < f->count; i++)
		queue[i] = f->queue[(f->head + i) % f->size];
	free(f->queue);
	f->queue = queue;
	f->size = size;
	f->head = 0;
	for (uint32_t i = 0; i < VB_QPN_INDICES; i++) {
		uint32_t number = a->numbers[f->reach].number << VB_QPN_INDEX_BITS | i;

		if (usable(number))
			put_free(f, number);
	}
	f->reach++;
	return 0;
}

/* In the name of the call, or of none.  `rest`: how many are nobody's, and are not given yet. */
static void say_none_left(const struct vb_adapter *a, const char *kind, const char *call, int err,
			  uint32_t rest)
{
	uint32_t all = atomic_load_explicit(&a->nnumbers, memory_order_relaxed) * VB_QPN_INDICES;
	char text[400], held[200];
	struct vb_text t = {text, sizeof(text)};

	if (err == EADDRINUSE)
		vb_text_add(&t, "all %d adapter numbers of this network namespace are in use: %s",
			    VB_ADAPTERS - 1, vb_numbers_say(held, sizeof(held)));
	else if (rest)
		vb_text_add(
		    &t,
		    "%u of this device's %u are in TIMEWAIT after rdma_cm connections. Wait, or set a "
		    "shorter RDMA_OPTION_ID_ACK_TIMEOUT",
		    rest, all);
	else
		vb_text_add(&t, "all %u of this device are in use", all);
	if (err != EADDRINUSE && err != ENFILE) /* else it has all that it may */
		vb_text_add(&t, "; another adapter number cannot be allocated: %s", strerror(err));
	if (call)
		vb_refuse(ENOMEM, call, "no %s number is left: %s", kind, text);
	else
		vb_log(VB_LOG_WARN, "no %s number is left: %s", kind, text);
}

static uint32_t pop_free(struct free_numbers *f)
{
	uint32_t number = f->queue[f->head];

	f->head = (f->head + 1) % f->size;
	f->count--;
	return number;
}

/* The first that need not rest; where all do, one of a further adapter number.  0: there is none, and *err
 * says why. */
static uint32_t take_free(struct vb_adapter *a, struct free_numbers *f, vb_qpn_rests_fn *rests, int *err)
{
	uint32_t number, n;

	vb_mutex_assert_held(&a->qpn_lock);
	*err = 0;
	for (n = f->count; n; n--) {
		number = pop_free(f);
		if (!rests || !rests(a->qpn_user, number))
			return number;
		put_free(f, number);
	}
	n = f->count;
	*err = extend(a, f);
	if (*err)
		return 0;
	while (n--)
		put_free(f, pop_free(f));
	return pop_free(f);
}

static _Atomic(struct vb_qp *) *place(const struct vb_adapter *a, uint32_t qpn)
{
	uint32_t number = qpn >> VB_QPN_INDEX_BITS, k;

	if (number >= VB_ADAPTERS)
		return NULL;
	k = atomic_load_explicit(&a->slot_of[number], memory_order_acquire); /* pairs with vb_number_bind() */
	return k ? &a->numbers[k - 1].qps[qpn % VB_QPN_INDICES] : NULL;
}

void vb_qpn_rest(struct vb_adapter *a, vb_qpn_rests_fn *rests, void *user)
{
	pthread_mutex_lock(&a->qpn_lock);
	a->qpn_rests = rests;
	a->qpn_user = user;
	pthread_mutex_unlock(&a->qpn_lock);
}

uint32_t vb_qpn_take(struct vb_adapter *a, struct vb_qp *qp, const char *call)
{
	uint32_t qpn, rest;
	int err;

	if (vb_adapter_dead(a) || vb_adapter_lost(a))
		return 0;
	pthread_mutex_lock(&a->qpn_lock);
	qpn = take_free(a, &a->free_qpns, a->qpn_rests, &err);
	if (qpn)
		atomic_store_explicit(place(a, qpn), qp, memory_order_release); /* pairs with vb_qpn_find() */
	rest = a->free_qpns.count;
	pthread_mutex_unlock(&a->qpn_lock);
	if (err)
		say_none_left(a, "QP", call, err, rest);
	return qpn;
}

/* What a queue pair has counted becomes part of the adapter's past. */
static void end_traffic(struct vb_adapter *a, struct vb_traffic *t)
{
	struct vb_traffic_past *past = (void *)(a->seg->base + VB_SEG_PAST);

	vb_mutex_assert_held(&a->qpn_lock);
	atomic_fetch_add(&past->seq, 1); /* pairs with tools/counts.c */
	vb_traffic_add(&past->all, t);
	memset(t, 0, sizeof(*t));
	atomic_fetch_add(&past->seq, 1);
}

void vb_qpn_give(struct vb_adapter *a, uint32_t qpn)
{
	_Atomic(struct vb_qp *) *p = place(a, qpn);

	if (!p || vb_adapter_dead(a))
		return;
	pthread_mutex_lock(&a->qpn_lock);
	atomic_store_explicit(p, NULL, memory_order_release);
	end_traffic(a, vb_qpn_traffic(a, qpn));
	put_free(&a->free_qpns, qpn);
	pthread_mutex_unlock(&a->qpn_lock);
}

/* For each packet. */
inline __attribute__((always_inline)) struct vb_qp *vb_qpn_find(const struct vb_adapter *a, uint32_t qpn)
{
	_Atomic(struct vb_qp *) *p = place(a, qpn);

	return p ? atomic_load_explicit(p, memory_order_acquire) : NULL; /* pairs with vb_qpn_take() */
}

uint32_t vb_qpn_whose(const struct vb_adapter *a, uint32_t qpn)
{
	int err = errno;
	uint32_t pid;

	if (place(a, qpn))
		return vb_qpn_find(a, qpn) ? (uint32_t)getpid() : 0;
	pid = usable(qpn) ? ring_at(qpn >> VB_QPN_INDEX_BITS) : 0;
	errno = err;
	return pid;
}

uint32_t vb_srqn_take(struct vb_adapter *a, const char *call)
{
	uint32_t srqn;
	int err;

	if (vb_adapter_dead(a) || vb_adapter_lost(a))
		return 0;
	pthread_mutex_lock(&a->qpn_lock);
	srqn = take_free(a, &a->free_srqns, NULL, &err);
	pthread_mutex_unlock(&a->qpn_lock);
	if (err)
		say_none_left(a, "SRQ", call, err, 0);
	return srqn;
}

void vb_srqn_give(struct vb_adapter *a, uint32_t srqn)
{
	if (vb_adapter_dead(a))
		return;
	pthread_mutex_lock(&a->qpn_lock);
	put_free(&a->free_srqns, srqn);
	pthread_mutex_unlock(&a->qpn_lock);
}

/* Of an entry of the tables that have one for each QP number; SIZE_MAX: there is none. */
static size_t entry_of(const struct vb_adapter *a, uint32_t qpn)
{
	uint32_t k =
	    atomic_load_explicit(&a->slot_of[(qpn >> VB_QPN_INDEX_BITS) % VB_ADAPTERS], memory_order_acquire);

	return k ? (k - 1) * VB_QPN_INDICES + qpn % VB_QPN_INDICES : SIZE_MAX;
}

struct vb_shown_qp *vb_qpn_published(struct vb_adapter *a, uint32_t qpn)
{
	struct vb_shown_qp *table = (void *)(a->seg->base + VB_SEG_QPS);
	size_t k = entry_of(a, qpn);

	return k == SIZE_MAX ? NULL : &table[k];
}

struct vb_traffic *vb_qpn_traffic(struct vb_adapter *a, uint32_t qpn)
{
	struct vb_traffic *table = (void *)(a->seg->base + VB_SEG_TRAFFIC);
	size_t k = entry_of(a, qpn);

	return k == SIZE_MAX ? NULL : &table[k];
}

_Atomic uint64_t *vb_adapter_wrong_icrcs(struct vb_adapter *a)
{
	return &((struct vb_traffic_past *)(void *)(a->seg->base + VB_SEG_PAST))->wrong_icrcs;
}

void vb_qpns_traffic(struct vb_adapter *a, struct vb_traffic *sum)
{
	const struct vb_traffic_past *past = (const void *)(a->seg->base + VB_SEG_PAST);
	uint32_t numbers = atomic_load_explicit(&a->nnumbers, memory_order_acquire), qpn;

	pthread_mutex_lock(&a->qpn_lock); /* else one that ends meanwhile could count twice */
	vb_traffic_add(sum, &past->all);
	sum->count[VB_TRAFFIC_WRONG_ICRC] += atomic_load_explicit(&past->wrong_icrcs, memory_order_relaxed);
	for (uint32_t k = 0; k < numbers; k++) {
		for (uint32_t i = 0; i < VB_QPN_INDICES; i++) {
			qpn = a->numbers[k].number << VB_QPN_INDEX_BITS | i;
			if (atomic_load_explicit(&a->numbers[k].qps[i], memory_order_relaxed) &&
			    qpn != atomic_load_explicit(&a->head->gsi, memory_order_relaxed))
				vb_traffic_add(sum, vb_qpn_traffic(a, qpn));
		}
	}
	pthread_mutex_unlock(&a->qpn_lock);
}
