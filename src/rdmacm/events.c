/* Event channels and events.  An event that has been taken from a channel is finished here before the program
 * sees it: the id is filled in, its queue pair is moved on.  So whoever takes the event does the work, as
 * rdma_create_qp(3) and rdma_join_multicast(3) promise, and no thread of ours touches a program's objects. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "rdmacm/call.h"
#include "rdmacm/rdmacm.h"

struct event {
	struct rdma_cm_event event;	    /* the program's view */
	struct rdma_event_channel *channel; /* from which it was taken */
	struct vb_cm_id *cm;		    /* what is acknowledged, and */
	enum rdma_cm_event_type type;	    /* as what; the program may see another type */
	uint8_t data[sizeof(((struct vb_cm_news *)0)->data)];
};

/* Closed channels, whose memory stays a channel's: a thread that is about to wait at one which another thread
 * destroys finds it closed (EBADF), as it would find the descriptor (rping's threads end like that). */
static struct vb_rdma_channel *closed;
static pthread_mutex_t closed_lock = PTHREAD_MUTEX_INITIALIZER;

void vb_rdma_channels_forked(void)
{
	closed = NULL;
	pthread_mutex_init(&closed_lock, NULL);
}

static void keep(struct vb_rdma_channel *c)
{
	pthread_mutex_lock(&closed_lock);
	c->next = closed;
	closed = c;
	pthread_mutex_unlock(&closed_lock);
}

static struct vb_rdma_channel *take_memory(void)
{
	struct vb_rdma_channel *c;

	pthread_mutex_lock(&closed_lock);
	c = closed;
	if (c)
		closed = c->next;
	pthread_mutex_unlock(&closed_lock);
	return c ? c : calloc(1, sizeof *c);
}

int vb_rdma_channel_open(struct vb_rdma_channel **out)
{
	struct vb_rdma_channel *c = take_memory(); /* pairs with vb_rdma_channel_close() */
	int err;

	if (!c)
		return ENOMEM;
	err = vb_cm_channel_open(&c->cm, &c->channel.fd);
	if (err)
		keep(c);
	else
		*out = c;
	return err;
}

void vb_rdma_channel_close(struct vb_rdma_channel *c)
{
	vb_cm_channel_close(c->cm);
	c->channel.fd = -1;
	keep(c);
}

VB_EXPORT struct rdma_event_channel *rdma_create_event_channel(void)
{
	struct vb_rdma_channel *c = NULL;
	int was = vb_rdma_enter("rdma_create_event_channel"), err = vb_rdma_channel_open(&c);

	if (!err)
		vb_cm_object_enter(c, VB_CM_OBJECT_CHANNEL);
	return vb_rdma_leave_object(was, err, err ? NULL : &c->channel);
}

VB_EXPORT VB_RDMA_NOTHING(rdma_destroy_event_channel, (channel), struct rdma_event_channel *channel)
{
	if (!vb_cm_object_leave("rdma_destroy_event_channel", channel, VB_CM_OBJECT_CHANNEL))
		vb_rdma_channel_close(vb_rdma_channel(channel));
}

/* Parameters as they came; what they point to is in the event. */
static void show_param(struct event *e, const struct vb_cm_news *n)
{
	const void *from = n->ud ? n->ud_param.private_data : n->conn.private_data;
	const void *data = from ? e->data + ((const uint8_t *)from - n->data) : NULL;

	memcpy(e->data, n->data, sizeof e->data);
	if (n->ud) {
		e->event.param.ud = n->ud_param;
		e->event.param.ud.private_data = data;
	} else {
		e->event.param.conn = n->conn;
		e->event.param.conn.private_data = data;
	}
}

/* The functions of the table below.  False: the event is not for the program. */

static bool fill_in(struct event *e, struct vb_rdma_id *p, enum rdma_cm_event_type failed)
{
	int err = vb_rdma_id_refresh(p);

	if (err) {
		e->event.event = failed;
		e->event.status = -err;
	}
	return true;
}

static bool address_resolved(struct event *e, struct vb_rdma_id *p, const struct vb_cm_news *n)
{
	(void)n;
	return fill_in(e, p, RDMA_CM_EVENT_ADDR_ERROR);
}

static bool route_resolved(struct event *e, struct vb_rdma_id *p, const struct vb_cm_news *n)
{
	(void)n;
	return fill_in(e, p, RDMA_CM_EVENT_ROUTE_ERROR);
}

/* The new id is as its listener is: synchronous or on the same channel, with the same context.  Another
 * thread may be moving the listener, so its channel is the event's. */
static bool requested(struct event *e, struct vb_rdma_id *p, const struct vb_cm_news *n)
{
	struct vb_rdma_id *q;
	bool sync = p->sync && p->id.channel == e->channel;
	int err =
	    vb_rdma_id_make(&q, sync ? NULL : e->channel, p->id.context, p->id.ps, p->id.qp_type, n->fresh);

	if (err) {
		vb_cm_id_end(n->fresh);
	} else {
		err = vb_rdma_id_refresh(q);
		if (err)
			vb_rdma_id_unmake(q);
	}
	if (err) {
		vb_cm_refuse(err, "rdma_get_cm_event", "a connection request was discarded: %s",
			     strerror(err));
		return false;
	}
	if (!n->ud) {
		q->initiator_depth = n->conn.initiator_depth;
		q->responder_resources = n->conn.responder_resources;
	}
	q->remote_ece = n->ece;
	e->event.listen_id = &p->id;
	e->event.id = &q->id;
	vb_cm_object_enter(q, VB_CM_OBJECT_ID);
	return true;
}

/* Without a queue pair the program completes the connection (rdma_establish(3)), else this does. */
static bool answered(struct event *e, struct vb_rdma_id *p, const struct vb_cm_news *n)
{
	int err;

	p->remote_ece = n->ece;
	err = vb_rdma_qp_connect(p, -1, -1);
	if (err == VB_RDMA_NO_QP)
		return true;
	if (!err)
		err = vb_cm_id_establish(p->cm);
	if (!err) {
		e->event.event = RDMA_CM_EVENT_ESTABLISHED;
		return true;
	}
	e->event.event = RDMA_CM_EVENT_CONNECT_ERROR;
	e->event.status = -err;
	p->connect_failed = true;
	vb_rdma_qp_error(p);
	vb_cm_id_reject(p->cm, NULL, 0,
			VB_RDMA_REJ_CONSUMER); /* else the far end would wait for its timeouts */
	return true;
}

static bool rejected(struct event *e, struct vb_rdma_id *p, const struct vb_cm_news *n)
{
	(void)e;
	(void)n;
	if (!p->connect_failed)
		vb_rdma_qp_error(p);
	return !p->connect_failed;
}

static bool disconnected(struct event *e, struct vb_rdma_id *p, const struct vb_cm_news *n)
{
	(void)e;
	(void)n;
	return !p->connect_failed;
}

static bool joined(struct event *e, struct vb_rdma_id *p, const struct vb_cm_news *n)
{
	void *context;
	int err;

	if (!vb_rdma_mcast_context(p, n->join, &context))
		return false;
	e->event.param.ud.private_data = context; /* rdma_join_multicast(3) */
	err = n->event == RDMA_CM_EVENT_MULTICAST_JOIN
		  ? vb_rdma_mcast_joined(p, n->join, &n->ud_param.ah_attr)
		  : 0;
	if (err) {
		e->event.event = RDMA_CM_EVENT_MULTICAST_ERROR;
		e->event.status = -err;
	}
	return true;
}

/* param.arg of newer headers, a member of the same union. */
static bool written(struct event *e, struct vb_rdma_id *p, const struct vb_cm_news *n)
{
	(void)p;
	memset(&e->event.param, 0, sizeof e->event.param);
	memcpy(&e->event.param, &n->arg, sizeof n->arg);
	return true;
}

static bool (*const finish[])(struct event *e, struct vb_rdma_id *p, const struct vb_cm_news *n) = {
    [RDMA_CM_EVENT_ADDR_RESOLVED] = address_resolved,
    [RDMA_CM_EVENT_ROUTE_RESOLVED] = route_resolved,
    [RDMA_CM_EVENT_CONNECT_REQUEST] = requested,
    [RDMA_CM_EVENT_CONNECT_RESPONSE] = answered,
    [RDMA_CM_EVENT_REJECTED] = rejected,
    [RDMA_CM_EVENT_DISCONNECTED] = disconnected,
    [RDMA_CM_EVENT_MULTICAST_JOIN] = joined,
    [RDMA_CM_EVENT_MULTICAST_ERROR] = joined,
    [VB_RDMA_EVENT_ADDRINFO_RESOLVED] = written,
    [VB_RDMA_EVENT_ADDRINFO_ERROR] = written,
    [VB_RDMA_EVENT_USER] = written,
    [VB_RDMA_EVENT_INTERNAL] = written,
};

enum { FINISHED = sizeof(finish) / sizeof(finish[0]) };

static bool take(struct event *e, struct vb_rdma_channel *c, const struct vb_cm_news *n)
{
	struct vb_rdma_id *p = n->user;

	memset(e, 0, sizeof *e);
	e->channel = &c->channel;
	e->cm = n->id;
	e->type = n->event;
	e->event.id = &p->id;
	e->event.event = n->event;
	e->event.status = n->status;
	show_param(e, n);
	return (unsigned)n->event < FINISHED && finish[n->event] ? finish[n->event](e, p, n) : true;
}

int vb_rdma_event_get(struct vb_rdma_channel *c, struct rdma_cm_event **out)
{
	struct event *e = calloc(1, sizeof *e); /* before anything is taken that could be lost */
	struct vb_cm_news n;
	int err;

	if (!e)
		return ENOMEM;
	for (;;) {
		memset(&n, 0, sizeof n);
		vb_cm_log_tell(); /* before it blocks */
		err = vb_cm_channel_get(c->cm, &n);
		if (err) {
			free(e);
			return err;
		}
		if (take(e, c, &n))
			break;
		vb_cm_news_ack(n.id, n.event);
	}
	vb_cm_object_enter(e, VB_CM_OBJECT_EVENT);
	*out = &e->event;
	return 0;
}

/* EINVAL, which has been said: there is no such event (any more). */
static int ack(struct rdma_cm_event *event)
{
	int err = vb_cm_object_leave("rdma_ack_cm_event", event, VB_CM_OBJECT_EVENT);
	struct event *e = (struct event *)event;
	enum rdma_cm_event_type type;
	struct vb_cm_id *cm;

	if (err)
		return err;
	cm = e->cm;
	type = e->type;
	free(e);
	vb_cm_news_ack(cm, type);
	return 0;
}

/* Another thread has destroyed the channel since this one acknowledged its last event.  On a kernel that
 * takes so long that this one is back in the call before, and waits there for good.  Programs take that for
 * granted: while main() returns, their thread would exit() with an error for EBADF.  So it comes late. */
static void come_late(void)
{
	static const struct timespec while_main_returns = {.tv_nsec = 200 * 1000 * 1000};

	nanosleep(&while_main_returns, NULL);
}

VB_EXPORT VB_RDMA_CALL(rdma_get_cm_event, (channel, event), struct rdma_event_channel *channel,
		       struct rdma_cm_event **event)
{
	int err;

	if (!channel || !event)
		return vb_cm_refuse(EINVAL, "rdma_get_cm_event", "channel or event is NULL");
	err = vb_rdma_event_get(vb_rdma_channel(channel), event);
	if (err == EBADF && channel->fd < 0)
		come_late();
	return err;
}

VB_EXPORT VB_RDMA_CALL(rdma_ack_cm_event, (event), struct rdma_cm_event *event)
{
	return ack(event);
}

void vb_rdma_id_ack(struct vb_rdma_id *p)
{
	if (p->id.event)
		ack(p->id.event);
	p->id.event = NULL;
}

int vb_rdma_id_complete(struct vb_rdma_id *p, bool sync)
{
	const struct rdma_cm_event *e;
	int err;

	if (!sync)
		return 0;
	vb_rdma_id_ack(p);
	err = vb_rdma_event_get(vb_rdma_channel(p->id.channel), &p->id.event);
	if (err)
		return err;
	e = p->id.event;
	if (!e->status)
		return 0;
	/* What is positive is the far end's answer, the reason of a REJ or the status of a SIDR_REP: a
	 * refusal. */
	return e->event == RDMA_CM_EVENT_REJECTED || e->status > 0 ? ECONNREFUSED : -e->status;
}
