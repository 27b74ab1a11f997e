/* Identifiers: how they come and go, and the lock of all. */
#include "cm/id.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

struct vb_lock vb_cm_ids_lock;

/* All of it but `below` and `birth` is guarded by the lock; those are set before anything else is there, or
 * in a forked child, which has one thread. */
static struct {
	const struct vb_cm_below *below;
	uint32_t birth;
	struct vb_list ids, listeners;
	struct vb_cm_device *devices[VB_MAX_DEVICES]; /* those at work */
} world = {.ids = {&world.ids, &world.ids}, .listeners = {&world.listeners, &world.listeners}};

/* What a child inherits is dead: its calls fail with EIO.  It begins anew, with nothing. */
static void forked(void)
{
	world.birth++;
	vb_list_init(&world.ids);
	vb_list_init(&world.listeners);
	memset(world.devices, 0, sizeof(world.devices));
	vb_cm_ids_lock = (struct vb_lock){0};
	vb_cm_channels_forked();
	vb_cm_board_forked();
}

static void register_handler(void)
{
	pthread_atfork(NULL, NULL, forked);
}

void vb_cm_ids_use(const struct vb_cm_below *b)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, register_handler);
	world.below = b;
}

const struct vb_cm_below *vb_cm_below(void)
{
	return world.below;
}

uint32_t vb_cm_birth(void)
{
	return world.birth;
}

/* The ThreadSanitizer of a program sees malloc() and free() here, and no lock of the library's. */
void AnnotateHappensBefore(const char *file, int line, const void *at) __attribute__((weak));
void AnnotateHappensAfter(const char *file, int line, const void *at) __attribute__((weak));

void vb_cm_ids_enter(void)
{
	vb_lock_take(&vb_cm_ids_lock);
	if (AnnotateHappensAfter)
		AnnotateHappensAfter(__FILE__, __LINE__, &vb_cm_ids_lock);
}

void vb_cm_ids_leave(void)
{
	if (AnnotateHappensBefore)
		AnnotateHappensBefore(__FILE__, __LINE__, &vb_cm_ids_lock);
	if (vb_cm_shown_flush())
		for (int i = 0; i < VB_MAX_DEVICES; i++)
			if (world.devices[i])
				vb_cm_ids_counted(world.devices[i]);
	vb_cm_channel_ring();
}

/* ---- calls ---- */

/* Another thread's call that has given the lock back is done with in a moment. */
static void await_work(const struct vb_cm_id *id)
{
	uint64_t began = 0;

	vb_lock_assert_held(&vb_cm_ids_lock);
	while (id->working) {
		vb_cm_ids_leave();
		vb_cpu_offer(&began);
		vb_cm_ids_enter();
	}
}

int vb_cm_id_hold(struct vb_cm_id *id, const char *call)
{
	if (id->birth != world.birth)
		return vb_refuse(EIO, call, VB_CM_ID_OF_PARENT);
	vb_cm_ids_enter();
	await_work(id);
	return 0;
}

int vb_cm_id_use(struct vb_cm_id *id, const char *call)
{
	int err = vb_cm_id_hold(id, call);

	if (err || !id->ends)
		return err;
	vb_cm_ids_leave();
	return vb_refuse(EINVAL, call,
			 "the id's state \"being destroyed\" does not allow this call: another thread is in "
			 "rdma_destroy_id");
}

int vb_cm_id_enter(struct vb_cm_id *id, enum vb_cm_id_call call)
{
	const char *name = vb_cm_id_call_name(call);
	int err = vb_cm_id_use(id, name);
	const char *instead;
	char why[VB_CM_FAILURE];

	if (err)
		return err;
	err = vb_cm_state_permits(id->state, call);
	if (!err) {
		vb_cm_show(id);
		return 0;
	}
	instead = vb_cm_id_instead(id->state, call);
	vb_cm_id_failure(id, why);
	vb_refuse(err, name, "the id's state \"%s\" does not allow this call%s%s%s",
		  vb_cm_id_state_name(id->state), why, instead ? *why ? "; " : ": " : "",
		  instead ? instead : "");
	vb_cm_ids_leave();
	return err;
}

int vb_cm_id_work(struct vb_cm_id *id, enum vb_cm_id_call call)
{
	int err = vb_cm_id_enter(id, call);

	if (err)
		return err;
	id->working = true; /* vb_cm_id_worked() */
	vb_cm_ids_leave();
	return 0;
}

void vb_cm_id_worked(struct vb_cm_id *id)
{
	vb_cm_ids_enter();
	id->working = false;
	vb_cm_show(id);
	vb_cm_ids_leave();
}

/* ---- coming and going ---- */

struct vb_cm_id *vb_cm_id_make(struct vb_cm_channel *c, void *user, enum rdma_port_space ps,
			       enum ibv_qp_type type)
{
	struct vb_cm_id *id = calloc(1, sizeof(*id)); /* vb_cm_id_free() */

	vb_lock_assert_held(&vb_cm_ids_lock);
	if (!id)
		return NULL;
	id->channel = c;
	id->user = user;
	id->birth = world.birth;
	id->ps = ps;
	id->type = type;
	id->qkey = ps == RDMA_PS_IPOIB ? VB_CM_IPOIB_QKEY : RDMA_UDP_QKEY;
	id->deal.local_psn = world.below->chance() & 0xffffff;
	vb_list_init(&id->undelivered);
	vb_list_init(&id->spare);
	vb_list_init(&id->joins);
	vb_list_init(&id->on_listeners);
	vb_list_append(&world.ids, &id->on_all);
	vb_cm_show_first(id); /* vb_cm_unshow() */
	c->ids++;
	return id;
}

int vb_cm_id_new(struct vb_cm_id **out, struct vb_cm_channel *c, void *user, enum rdma_port_space ps,
		 enum ibv_qp_type type)
{
	if (!c || !vb_cm_type_fits(ps, &type))
		return vb_refuse(EINVAL, "rdma_create_id",
				 "port space 0x%x is unknown, or has no queue pairs of type %d", ps, type);
	if (c->birth != world.birth)
		return vb_refuse(EIO, "rdma_create_id", VB_CM_CHANNEL_OF_PARENT);
	vb_cm_ids_enter();
	*out = vb_cm_id_make(c, user, ps, type);
	vb_cm_ids_leave();
	return *out ? 0 : ENOMEM;
}

static void end_listening(struct vb_cm_id *id, uint64_t now)
{
	for (int i = 0; i < VB_MAX_DEVICES; i++) {
		if (id->listens[i])
			vb_cm_end(id->listens[i], now);
		id->listens[i] = NULL;
	}
}

static void end_connection(struct vb_cm_id *id, uint64_t now)
{
	struct vb_cm_device *d;

	if (!id->conn)
		return;
	d = vb_cm_user(id->conn->cm);
	if (id->conn->state == VB_CM_DREQ_RCVD)
		(void)vb_cm_drep(id->conn, &(struct vb_cm_private){0}, now);
	vb_cm_end(id->conn, now);
	id->conn = NULL;
	world.below->due(d); /* what the end leaves: its numbers rest for a while */
}

void vb_cm_id_undo(struct vb_cm_id *id)
{
	uint64_t now = world.below->now();

	vb_lock_assert_held(&vb_cm_ids_lock);
	end_listening(id, now);
	end_connection(id, now);
	vb_list_unlink(&id->on_listeners);
	vb_list_unlink(&id->on_all);
	id->channel->ids--;
}

/* The room of its channel is gone with it, and nobody knows it any more. */
void vb_cm_id_free(struct vb_cm_id *id)
{
	struct vb_list *n;

	if (id->port)
		world.below->release(id->port);
	while ((n = vb_list_pop(&id->spare)))
		free(vb_list_entry(n, struct vb_cm_item, on_id));
	while ((n = vb_list_pop(&id->joins)))
		free(vb_list_entry(n, struct vb_cm_join, node));
	free(id);
}

void vb_cm_id_end(struct vb_cm_id *id)
{
	struct vb_list orphans;
	uint32_t delivered, migrations;

	if (id->birth != world.birth)
		return; /* the memory stays: another thread of the parent may have been in the middle of it */
	vb_list_init(&orphans);
	vb_cm_ids_enter();
	await_work(id);
	vb_cm_items_drop(id, NULL, &orphans);
	/* Connections that nobody was told of end with their listener, and so do their own events. */
	vb_list_each (node, &orphans)
		vb_cm_items_drop(vb_list_entry(node, struct vb_cm_id, on_all), NULL, &orphans);
	vb_list_each_safe (node, tmp, &orphans) {
		struct vb_cm_id *fresh = vb_list_entry(node, struct vb_cm_id, on_all);

		vb_cm_id_undo(fresh);
		vb_cm_unshow(fresh);
		vb_cm_id_free(fresh);
	}
	id->ends = true;
	vb_cm_show(id);
	vb_cm_id_undo(id);
	delivered = id->delivered;
	migrations = id->migrations;
	vb_cm_ids_leave();
	if (id->port) /* others may have it at once, whatever is not acknowledged yet */
		world.below->release(id->port);
	id->port = NULL;
	vb_cm_acks_await(id, delivered, migrations);
	vb_cm_ids_enter();
	vb_cm_unshow(id);
	vb_cm_ids_leave();
	vb_cm_id_free(id);
}

int vb_cm_id_device(const struct vb_cm_id *id, uint8_t *port)
{
	int k;

	if (id->birth != world.birth)
		return -1;
	vb_cm_ids_enter();
	k = id->device ? (int)id->device->index : -1;
	vb_cm_ids_leave();
	if (port)
		*port = k < 0 ? 0 : 1;
	return k;
}

/* ---- looking through all ---- */

void vb_cm_ids_each(void (*look)(struct vb_cm_id *id, void *with), void *with)
{
	vb_lock_assert_held(&vb_cm_ids_lock);
	vb_list_each (n, &world.ids)
		look(vb_list_entry(n, struct vb_cm_id, on_all), with);
}

void vb_cm_listeners_add(struct vb_cm_id *id)
{
	vb_lock_assert_held(&vb_cm_ids_lock);
	if (!vb_list_linked(&id->on_listeners))
		vb_list_append(&world.listeners, &id->on_listeners);
}

void vb_cm_listeners_each(void (*look)(struct vb_cm_id *id, void *with), void *with)
{
	vb_lock_assert_held(&vb_cm_ids_lock);
	vb_list_each (n, &world.listeners)
		look(vb_list_entry(n, struct vb_cm_id, on_listeners), with);
}

/* ---- devices ---- */

static void show(struct vb_cm_id *id, void *with)
{
	(void)with;
	vb_cm_show(id);
}

int vb_cm_device_open(uint32_t index, struct vb_cm_device **out)
{
	int err = index < VB_MAX_DEVICES ? world.below->open(index, out) : ENODEV;

	if (err)
		return err;
	vb_cm_ids_enter();
	if (!(*out)->lost) { /* whoever wants to use it looks again */
		world.devices[index] = *out;
		if (vb_cm_board_use(&(*out)->shown))
			vb_cm_ids_each(show, NULL);
	}
	vb_cm_ids_leave();
	return 0;
}

struct vb_cm_device *vb_cm_device_at(uint32_t index)
{
	vb_lock_assert_held(&vb_cm_ids_lock);
	return index < VB_MAX_DEVICES ? world.devices[index] : NULL;
}

/* What its engine still says is not heard. */
static void remove_from(struct vb_cm_id *id, void *with)
{
	struct vb_cm_device *d = with;
	uint64_t now = world.below->now();

	if (id->listens[d->index]) {
		vb_cm_end(id->listens[d->index], now);
		id->listens[d->index] = NULL;
	}
	/* a connection may be of another device's engine: of the one that heard the request */
	if (id->conn ? id->conn->cm != d->cm && id->device != d : id->device != d)
		return;
	if (id->conn)
		vb_cm_end(id->conn, now);
	id->conn = NULL;
	if (id->state == VB_ID_REMOVED)
		return;
	id->state = VB_ID_REMOVED;
	vb_cm_id_say(id, RDMA_CM_EVENT_DEVICE_REMOVAL, 0);
}

static void lose(struct vb_cm_device *d)
{
	vb_lock_assert_held(&vb_cm_ids_lock);
	d->lost = true;
	world.devices[d->index] = NULL;
	vb_cm_ids_each(remove_from, d);
	if (vb_cm_board_leave(&d->shown)) {
		for (int i = 0; i < VB_MAX_DEVICES; i++)
			if (world.devices[i])
				vb_cm_board_use(&world.devices[i]->shown);
		vb_cm_ids_each(show, NULL);
	}
}

void vb_cm_ids_device_lost(struct vb_cm_device *d)
{
	vb_cm_ids_enter();
	if (!d->lost) /* else its index may be another one's by now */
		lose(d);
	vb_cm_ids_leave();
}
