/* Opening and closing an adapter, and what becomes of it at fork() and exit(). */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/chance.h"
#include "base/pages.h"
#include "host/devices.h"
#include "host/private.h"
#include "host/roce.h"
#include "iba/profile.h"

pthread_mutex_t vb_host_lock = PTHREAD_MUTEX_INITIALIZER;
static struct vb_list adapters = {&adapters, &adapters};

static struct vb_adapter *adapter_of(struct vb_list *n)
{
	return vb_list_entry(n, struct vb_adapter, node);
}

/* fork(): nobody is in the middle of anything that the child must undo. */
static void before_fork(void)
{
	pthread_mutex_lock(&vb_host_lock);
	vb_list_each (n, &adapters) {
		pthread_mutex_lock(&adapter_of(n)->control);
		pthread_mutex_lock(&adapter_of(n)->qpn_lock);
	}
	pthread_mutex_lock(&vb_segments_lock); /* a leaf: contact takes it under control */
}

static void after_fork(void)
{
	pthread_mutex_unlock(&vb_segments_lock);
	vb_list_each (n, &adapters) {
		pthread_mutex_unlock(&adapter_of(n)->qpn_lock);
		pthread_mutex_unlock(&adapter_of(n)->control);
	}
	pthread_mutex_unlock(&vb_host_lock);
}

static void in_child(void)
{
	struct vb_list *n;

	while ((n = vb_list_pop(&adapters)))
		vb_adapter_forked(adapter_of(n));
	vb_numbers_forked();
	pthread_mutex_init(&vb_host_lock, NULL);
	pthread_mutex_init(&vb_segments_lock, NULL);
}

/* exit() without closing: peers hear that we leave by ourselves.  The engine and other threads may be
 * running; nothing is freed. */
static void at_exit(void)
{
	if (pthread_mutex_trylock(&vb_host_lock))
		return;
	vb_list_each (n, &adapters) {
		struct vb_adapter *a = adapter_of(n);

		if (a->pid != (uint32_t)getpid())
			continue;
		vb_engine_pay(a); /* ACKs that are owed: what this end has received is not lost */
		if (a->roce)
			vb_roce_leave(a->roce);
		vb_conns_bye(a);
	}
	pthread_mutex_unlock(&vb_host_lock);
}

__attribute__((visibility("default"))) void vb_view_traffic(uint32_t device, struct vb_traffic *sum)
{
	memset(sum, 0, sizeof(*sum));
	pthread_mutex_lock(&vb_host_lock);
	vb_list_each (n, &adapters)
		if (adapter_of(n)->head->device == device && adapter_of(n)->pid == (uint32_t)getpid())
			vb_qpns_traffic(adapter_of(n), sum);
	pthread_mutex_unlock(&vb_host_lock);
}

static void register_handlers(void)
{
	pthread_atfork(before_fork, after_fork, in_child);
	atexit(at_exit);
}

void vb_adapter_handle_fork(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, register_handlers);
}

/* Halves of 8 bytes, each at once: of an IPv4 address, which is in the second one, a reader never sees a
 * part. */
void vb_adapter_show_gids(struct vb_adapter *a, const uint8_t (*gids)[16])
{
	uint64_t half;

	for (unsigned i = 0; i < 2 * VB_GID_TABLE; i++) {
		memcpy(&half, (const uint8_t *)gids + 8 * i, 8);
		__atomic_store_n((uint64_t *)(void *)a->head->gids + i, half, __ATOMIC_RELAXED);
	}
}

const uint8_t (*vb_adapter_gids(const struct vb_adapter *a))[16]
{
	return a->head->gids;
}

void vb_adapter_count_qp(struct vb_adapter *a, int n)
{
	if (!vb_adapter_dead(a))
		atomic_fetch_add_explicit(&a->head->qps, (uint32_t)n, memory_order_relaxed);
}

static void fill_head(struct vb_adapter *a, const struct vb_adapter_cfg *cfg)
{
	struct vb_seg_head *h = a->head;
	struct stat st;

	h->magic = VB_SEG_MAGIC;
	h->version = VB_SEG_VERSION;
	h->number = a->numbers[0].number;
	h->incarnation = a->seg->incarnation;
	h->size = VB_SEG_SIZE;
	h->pid = a->pid;
	h->pid_ns = stat("/proc/self/ns/pid", &st) ? 0 : st.st_ino;
	vb_adapter_show_gids(a, cfg->gids);
	h->device = cfg->device;
	h->roots = (uint64_t)(uintptr_t)cfg->roots;
	snprintf(h->profile, sizeof(h->profile), "%s", vb_profile()->name);
	vb_devices_name(h->name, cfg->device);
}

static int open_descriptors(struct vb_adapter *a)
{
	struct epoll_event none = {0};
	int err;

	a->ctl = epoll_create1(EPOLL_CLOEXEC);
	if (a->ctl < 0)
		return errno;
	a->kick = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (a->kick < 0)
		return errno;
	a->shared_inode = vb_own_of(a->kick);
	if (!epoll_ctl(a->ctl, EPOLL_CTL_ADD, a->kick, &none)) /* for vb_adapter_owns() */
		return 0;
	err = errno;
	close(a->kick);
	a->kick = -1;
	return err;
}

static int new_segment(struct vb_adapter *a)
{
	uint64_t incarnation = vb_chance();
	uint32_t offset = (uint32_t)vb_chance();
	int err;

	while (!incarnation)
		incarnation = vb_chance();
	err = vb_segment_make(&a->seg, incarnation);
	if (err)
		return err;
	a->head = (struct vb_seg_head *)a->seg->base;
	a->head->key_offset = offset % (VB_KEY_OFFSET_MAX + 1);
	return 0;
}

static struct vb_adapter *new_adapter(const struct vb_adapter_cfg *cfg)
{
	struct vb_adapter *a = vb_pages_alloc(sizeof(*a));

	if (!a)
		return NULL;
	a->ops = cfg->ops;
	a->wire = cfg->wire;
	a->user = cfg->user;
	a->roce = cfg->roce;
	a->pid = (uint32_t)getpid();
	a->listens_as = geteuid();
	a->ctl = a->kick = a->network = -1;
	a->on_members.kind = SRC_MEMBERS;
	a->on_network.kind = SRC_NETWORK;
	a->on_roce.kind = SRC_ROCE;
	pthread_mutex_init(&a->control, NULL);
	pthread_mutex_init(&a->qpn_lock, NULL);
	vb_list_init(&a->node);
	vb_list_init(&a->conns);
	vb_list_init(&a->dead_conns);
	vb_list_init(&a->stuck_conns);
	vb_list_init(&a->free_peers);
	vb_list_init(&a->members);
	vb_list_init(&a->inlets);
	return a;
}

/* Also for one that is half made. */
static void free_adapter(struct vb_adapter *a)
{
	bool ctl = a->ctl >= 0 && vb_ctl_is_ours(a); /* to be asked while there are numbers */
	struct vb_list *n;

	if (a->kick >= 0)
		vb_adapter_disown(a, a->kick);
	pthread_mutex_lock(&a->control);
	while ((n = a->conns.next) != &a->conns)
		vb_conn_close(a, vb_list_entry(n, struct conn, node));
	vb_conns_bury(a);
	while ((n = vb_list_pop(&a->stuck_conns)))
		free(vb_list_entry(n, struct conn, node));
	pthread_mutex_unlock(&a->control);
	vb_watch_close(a);
	vb_roce_close(a->roce);
	vb_numbers_close(a);
	vb_members_close(a);
	vb_members_free(a);
	vb_inlets_free(a);
	vb_peers_free(a);
	if (a->seg) {
		vb_history_stop((struct vb_history *)(a->seg->base + VB_SEG_HISTORY));
		vb_segment_close(a->seg);
		vb_segment_put(a->seg);
	}
	if (ctl)
		close(a->ctl);
	pthread_mutex_destroy(&a->control);
	pthread_mutex_destroy(&a->qpn_lock);
	free(a);
}

int vb_adapter_open(struct vb_adapter **out, const struct vb_adapter_cfg *cfg)
{
	struct vb_adapter *a = new_adapter(cfg);
	enum vb_open_step unused, *step = cfg->step ? cfg->step : &unused;
	int err;

	*step = VB_OPEN_DESCRIPTORS;
	if (!a)
		return ENOMEM;
	vb_adapter_handle_fork();
	err = open_descriptors(a);
	if (err)
		goto free_a;
	*step = VB_OPEN_SEGMENT;
	err = new_segment(a);
	if (err)
		goto free_a;
	a->presence.awake = (_Atomic uint32_t *)(a->seg->base + VB_SEG_AWAKE);
	a->presence.told = (_Atomic uint32_t *)(a->seg->base + VB_SEG_POLLS);
	a->presence.hints = a->seg->hints;
	/* pairs with free_adapter() */
	vb_history_keep((struct vb_history *)(a->seg->base + VB_SEG_HISTORY));
	*step = VB_OPEN_NUMBER;
	err = vb_adapter_number_add(a);
	if (!err && a->roce)
		err = vb_ctl_add(a, vb_roce_door(a->roce), EPOLLIN | EPOLLET, &a->on_roce);
	if (err)
		goto free_a;
	if (a->ops->network)
		vb_watch_open(a);
	/* Peers may connect already; nobody answers before the engine runs. */
	fill_head(a, cfg);
	*step = VB_OPEN_LINK;
	err = vb_peer_self(a);
	if (err)
		goto free_a;
	pthread_mutex_lock(&vb_host_lock);
	vb_list_append(&adapters, &a->node);
	pthread_mutex_unlock(&vb_host_lock);
	*out = a;
	return 0;
free_a:
	a->roce = NULL; /* the caller's still */
	free_adapter(a);
	return err;
}

int vb_adapter_run(struct vb_adapter *a)
{
	return vb_engine_start(a);
}

void vb_adapter_close(struct vb_adapter *a)
{
	if (vb_adapter_dead(a))
		return; /* inherited: nothing of it is ours */
	pthread_mutex_lock(&vb_host_lock);
	vb_list_unlink(&a->node);
	pthread_mutex_unlock(&vb_host_lock);
	vb_engine_stop(a);
	vb_conns_bye(a);
	free_adapter(a);
}

uint32_t vb_adapter_number(const struct vb_adapter *a)
{
	return a->numbers[0].number;
}

uint32_t vb_adapter_number_count(const struct vb_adapter *a)
{
	return atomic_load_explicit(&a->nnumbers, memory_order_acquire);
}

uint32_t vb_adapter_number_at(const struct vb_adapter *a, uint32_t k)
{
	return k < atomic_load_explicit(&a->nnumbers, memory_order_acquire) ? a->numbers[k].number : 0;
}

bool vb_adapter_has_number(const struct vb_adapter *a, uint32_t number)
{
	return number < VB_ADAPTERS && atomic_load_explicit(&a->slot_of[number], memory_order_acquire);
}

struct vb_roce *vb_adapter_roce(const struct vb_adapter *a)
{
	return a->roce;
}

void *vb_adapter_user(const struct vb_adapter *a)
{
	return a->user;
}

struct vb_key_entry *vb_adapter_key_entries(struct vb_adapter *a)
{
	return (struct vb_key_entry *)(a->seg->base + VB_SEG_KEYS);
}

struct vb_key_slot *vb_adapter_key_slots(struct vb_adapter *a)
{
	return (struct vb_key_slot *)(a->seg->base + VB_SEG_KEY_SLOTS);
}

struct vb_key_marks *vb_adapter_key_marks(struct vb_adapter *a)
{
	return (struct vb_key_marks *)(a->seg->base + VB_SEG_KEY_MARKS);
}

struct vb_pd_slot *vb_adapter_pds(struct vb_adapter *a)
{
	return (struct vb_pd_slot *)(a->seg->base + VB_SEG_PDS);
}

struct vb_drops *vb_adapter_drops(struct vb_adapter *a)
{
	return (struct vb_drops *)(a->seg->base + VB_SEG_DROPS);
}

struct vb_shown_ids vb_adapter_ids(struct vb_adapter *a)
{
	return (struct vb_shown_ids){.marks = (struct vb_shown_marks *)(a->seg->base + VB_SEG_ID_MARKS),
				     .entries = (struct vb_shown_id_entry *)(a->seg->base + VB_SEG_IDS)};
}

struct vb_pd_marks *vb_adapter_pd_marks(struct vb_adapter *a)
{
	return (struct vb_pd_marks *)(a->seg->base + VB_SEG_PD_MARKS);
}

uint32_t vb_adapter_key_offset(const struct vb_adapter *a)
{
	return a->head->key_offset;
}

uint64_t vb_adapter_incarnation(const struct vb_adapter *a)
{
	return a->seg->incarnation;
}

int vb_adapter_fd(struct vb_adapter *a)
{
	if (vb_own_is(&a->seg->own, a->seg->fd))
		return a->seg->fd;
	vb_adapter_lose(a);
	return -1;
}

struct vb_presence *vb_adapter_presence(struct vb_adapter *a)
{
	return &a->presence;
}

void vb_adapter_forked(struct vb_adapter *a)
{
	uint32_t n = atomic_load_explicit(&a->nnumbers, memory_order_relaxed);
	bool ctl = vb_ctl_is_ours(a), kick = ctl && vb_adapter_owns(a, a->kick);

	if (atomic_exchange(&a->dead, true))
		return;
	/* Closed only: the epoll set is the parent's too, and must keep what it watches.  And only what is
	 * ours: the parent may have put files of its own in the places of descriptors that it closed. */
	vb_list_each (i, &a->conns) {
		struct conn *c = vb_list_entry(i, struct conn, node);

		if (ctl && vb_conn_holds_pidfd(a, c))
			close(c->pidfd);
		vb_own_close(&c->own, c->sock);
	}
	for (uint32_t i = 0; i < n; i++)
		vb_own_close(&a->numbers[i].own, a->numbers[i].sock);
	vb_watch_close(a);
	if (a->roce)
		vb_roce_forked(a->roce);
	vb_members_close(a);
	vb_segment_close(a->seg);
	if (ctl)
		close(a->ctl);
	if (kick)
		close(a->kick);
	a->presence.awake = &a->nowhere; /* the segment is not mapped here, nor are the hints */
	a->presence.told = &a->no_polls;
	a->presence.hints = &a->no_hints;
}
