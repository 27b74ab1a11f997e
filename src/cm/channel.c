/* Event channels: a queue of events behind an eventfd in semaphore mode that counts them, so blocking,
 * O_NONBLOCK, poll and edge-triggered epoll work as on a kernel's file: each event is a write of its own, and
 * so an edge.
 *
 * A program may close that descriptor though it is not its own (base/own.h).  Nothing is written to the
 * number then, and the events that are there are delivered without tokens.
 *
 * A token is written after the lock is given back (vb_cm_channel_ring()).  A reader takes a token first and
 * then, under the lock, the event that it stands for; where that was taken back meanwhile the channel owes it
 * (`debt`), and the reader goes on. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/waiting.h"
#include "base/log.h"
#include "base/text.h"
#include "base/eventfd.h"
#include "cm/id.h"

/* Channels with tokens to write; guarded by the lock. */
static struct vb_list ringing = {&ringing, &ringing};

/* Closed channels, by their `ringing`, to be opened again: their memory stays what it is, since a program's
 * thread may be about to wait at a channel that another one destroys, and then finds it closed (rping does so
 * when it ends).  Guarded by the lock. */
static struct vb_list closed = {&closed, &closed};

enum { CLOSED = -1, GONE = -2 };

/* Open channels, and the set that their descriptors are in, which is open as long as there is one.  Guarded
 * by the lock. */
static struct vb_list all = {&all, &all};
static struct vb_own_set members = {.set = -1, .anchor = -1};

/* Acknowledgements come from any thread, and whoever waits for them sleeps.  Taken before vb_cm_ids_lock. */
static pthread_mutex_t acks_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t acks_come = PTHREAD_COND_INITIALIZER;

void vb_cm_channels_forked(void)
{
	vb_list_init(&ringing);
	vb_list_init(&closed);
	vb_list_init(&all);
	members = VB_OWN_SET_NONE; /* the parent's channels are still told by it */
	acks_lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	acks_come = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
}

/* ---- opening and closing ---- */

static struct vb_cm_channel *take_memory(void)
{
	struct vb_list *n;

	vb_cm_ids_enter();
	n = vb_list_pop(&closed);
	vb_cm_ids_leave();
	return n ? vb_list_entry(n, struct vb_cm_channel, ringing) : calloc(1, sizeof(struct vb_cm_channel));
}

/* The set that channels of now are in; where the program closed it, its members are nobody's any more. */
static int have_set(void)
{
	vb_lock_assert_held(&vb_cm_ids_lock);
	return vb_own_set_is_ours(&members) ? 0 : vb_own_set_open(&members);
}

/* Puts an open descriptor into a channel. */
static int fit(struct vb_cm_channel *c, int fd)
{
	int err;

	vb_lock_assert_held(&vb_cm_ids_lock);
	err = have_set();
	if (!err)
		err = vb_own_set_add(&members, fd);
	if (err)
		return err;
	vb_list_each (n, &all) { /* whoever has that number has lost it */
		struct vb_cm_channel *other = vb_list_entry(n, struct vb_cm_channel, on_all);

		if (other->fd == fd)
			other->fd = GONE;
	}
	c->fd = fd;
	c->own = vb_own_of(fd);
	c->in = members;
	c->birth = vb_cm_birth();
	c->debt = 0;
	c->sync = false;
	atomic_store(&c->filled, false);
	vb_list_init(&c->items);
	vb_list_init(&c->ringing);
	vb_list_append(&all, &c->on_all);
	return 0;
}

/* The last one takes the set along. */
static void unfit(struct vb_cm_channel *c)
{
	vb_lock_assert_held(&vb_cm_ids_lock);
	vb_own_set_drop(&c->in, &c->own, c->fd);
	c->fd = CLOSED;
	vb_list_unlink(&c->on_all);
	if (vb_list_empty(&all))
		vb_own_set_close(&members);
}

int vb_cm_channel_open(struct vb_cm_channel **out, int *fd)
{
	const char *calls = "eventfd2";
	struct vb_cm_channel *c;
	int err = 0;

	if (!vb_cm_below())
		return ENODEV;
	c = take_memory(); /* vb_cm_channel_close() */
	if (!c)
		return ENOMEM;
	*fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
	if (*fd < 0)
		err = errno;
	vb_cm_ids_enter();
	if (!err) {
		err = fit(c, *fd);
		if (err) {
			close(*fd);
			calls = "one of epoll_create1, socket and epoll_ctl";
		}
	}
	if (err)
		vb_list_append(&closed, &c->ringing);
	vb_cm_ids_leave();
	if (err)
		return vb_refuse(err, "rdma_create_event_channel",
				 "%s failed for the channel's descriptor: %s", calls, strerror(err));
	*out = c;
	return 0;
}

void vb_cm_channel_sync(struct vb_cm_channel *c)
{
	c->sync = true;
}

void vb_cm_channel_close(struct vb_cm_channel *c)
{
	uint64_t began = 0;

	if (c->birth != vb_cm_birth()) { /* the parent's: the child has a descriptor of it, and no more */
		if (vb_own_set_has(&c->in, &c->own, c->fd))
			close(c->fd); /* a member it stays, since the set is the parent's, too */
		return;
	}
	vb_cm_ids_enter();
	if (c->ids)
		vb_log(VB_LOG_WARN,
		       "rdma_destroy_event_channel: %u id%s of the channel still exist%s; destroy ids before "
		       "their channel; "
		       "the channel's memory stays allocated for them",
		       c->ids, c->ids == 1 ? "" : "s", c->ids == 1 ? "s" : "");
	vb_list_unlink(&c->ringing);
	c->tokens = 0;
	while (c->writers) {
		vb_cm_ids_leave();
		vb_cpu_offer(&began);
		vb_cm_ids_enter();
	}
	unfit(c);
	c->lives++;
	if (!c->ids)
		vb_list_append(&closed, &c->ringing);
	vb_cm_ids_leave();
}

/* ---- tokens ---- */

/* What this thread waits for.  The token that it would write and then read it hands to itself (`come`). */
static __thread struct {
	const struct vb_cm_channel *channel; /* NULL: it does not wait */
	uint32_t life;			     /* in which of its lives */
	bool come;
	/* It has waited at this one the last time, and has not been seen to do otherwise; and has said that
	 * it will, for an answer. */
	const struct vb_cm_channel *last, *expects;
	const _Atomic bool *soon; /* of the wait: vb_cm_below.wait() */
} mine;

/* A thread that has sent one question after another without waiting in between did not mean to. */
void vb_cm_channel_expect(struct vb_cm_channel *c, struct vb_cm_device *d)
{
	if (mine.expects)
		mine.last = mine.expects = NULL;
	else if ((c->sync || mine.last == c) && vb_cm_below()->expect && vb_cm_below()->expect(d))
		mine.expects = c;
}

/* Not where the program closed it, and the number is another file's. */
static bool is_ours(const struct vb_cm_channel *c)
{
	return vb_own_set_has(&c->in, &c->own, c->fd);
}

static void write_tokens(const struct vb_cm_channel *c, uint32_t n)
{
	uint64_t one = 1;
	ssize_t done;

	if (!is_ours(c))
		return;
	while (n--) {
		do
			done = write(c->fd, &one, sizeof(one));
		while (done < 0 && errno == EINTR);
	}
}

void vb_cm_channel_ring(void)
{
	struct vb_list *node;
	int err = errno;

	vb_lock_assert_held(&vb_cm_ids_lock);
	while ((node = vb_list_pop(&ringing))) {
		struct vb_cm_channel *c = vb_list_entry(node, struct vb_cm_channel, ringing);
		uint32_t n = c->tokens;

		c->tokens = 0;
		if (n && mine.channel == c && mine.life == c->lives && !mine.come) {
			mine.come = true;
			n--;
		}
		c->writers++;
		vb_lock_give(&vb_cm_ids_lock);
		write_tokens(c, n);
		vb_lock_take(&vb_cm_ids_lock);
		c->writers--;
	}
	vb_lock_give(&vb_cm_ids_lock);
	errno = err;
}

static void add_token(struct vb_cm_channel *c)
{
	atomic_store_explicit(&c->filled, true, memory_order_relaxed);
	if (c->fd < 0)
		return;
	c->tokens++;
	if (!vb_list_linked(&c->ringing))
		vb_list_append(&ringing, &c->ringing);
}

/* The descriptor blocks or not as the program chooses, so the call itself has to say that it may not. */
static int read_token_now(const struct vb_cm_channel *c)
{
	return is_ours(c) ? vb_eventfd_try(c->fd) : EBADF;
}

/* Another thread has destroyed the channel in which this one waits: on a kernel it waits for good. */
static void stay(void)
{
	vb_cm_wait_begin();
	for (;;)
		pause();
}

/* A synchronous call blocks; a thread that gets an event, or a request from a listener, sleeps. */
static uint64_t until_it_is_long(const struct vb_cm_channel *c)
{
	uint64_t after = vb_waiting_warn(VB_NEVER);

	return c->sync && after != VB_NEVER ? vb_now() + after : VB_NEVER;
}

static void end_wait(void *w)
{
	mine.channel = NULL;
	vb_waiting_end(w);
}

/* 0; EAGAIN: there is one to be read; or errno. */
static int wait_below(const struct vb_cm_channel *c, uint32_t life)
{
	struct vb_waiting *w = vb_waiting_begin(VB_WAITING_CM_EVENT, c, 0);
	uint64_t until = until_it_is_long(c), began = vb_now();
	int err;

	mine.soon = mine.expects == c ? &c->filled : NULL;
	mine.last = mine.channel = c;
	mine.expects = NULL;
	mine.life = life;
	mine.come = false;
	pthread_cleanup_push(end_wait, w);
	do {
		vb_cm_wait_begin();
		err = vb_cm_below()->wait(c->fd, &mine.come, mine.soon, until);
		vb_cm_wait_end();
		if (err == ETIMEDOUT)
			vb_cm_say_awaited(c, vb_now() - began);
		until = VB_NEVER;
		mine.soon = NULL;
	} while (err == ETIMEDOUT);
	pthread_cleanup_pop(1);
	return mine.come ? 0 : err ? err : EAGAIN;
}

/* Waits for one, unless the program has said O_NONBLOCK. */
static int read_token(const struct vb_cm_channel *c)
{
	uint32_t life = c->lives;
	uint64_t token;
	int err, flags;

	while (vb_cm_below()->wait) {
		err = read_token_now(c);
		if (!err && mine.expects == c) /* it may have slept in poll(2), and nobody rang */
			mine.last = NULL;
		if (err != EAGAIN)
			return err;
		flags = fcntl(c->fd, F_GETFL);
		if (flags < 0 || flags & O_NONBLOCK) {
			mine.last = NULL;
			return flags < 0 ? errno : EAGAIN;
		}
		err = wait_below(c, life);
		if (c->fd == CLOSED ||
		    c->lives != life) /* memory and descriptor may be another channel's by now */
			stay();
		if (err != EAGAIN)
			return err;
	}
	if (!is_ours(c))
		return EBADF;
	vb_cm_wait_begin();
	err = read(c->fd, &token, sizeof(token)) < 0 ? errno : 0;
	vb_cm_wait_end();
	return err;
}

static void take_token_back(struct vb_cm_channel *c)
{
	int err = errno;

	if (c->tokens)
		c->tokens--;
	else if (c->fd >= 0 && read_token_now(c))
		c->debt++; /* a writer or a reader has it in hand */
	errno = err;
}

/* ---- events ---- */

int vb_cm_items_reserve(struct vb_cm_id *id, unsigned n)
{
	unsigned have = 0;

	vb_lock_assert_held(&vb_cm_ids_lock);
	vb_list_each (node, &id->spare)
		have++;
	for (; have < n; have++) {
		struct vb_cm_item *it = calloc(1, sizeof(*it)); /* vb_cm_item_new(), vb_cm_id_free() */

		if (!it)
			return ENOMEM;
		vb_list_append(&id->spare, &it->on_id);
	}
	return 0;
}

struct vb_cm_item *vb_cm_item_new(struct vb_cm_id *id, enum rdma_cm_event_type event, int status)
{
	struct vb_list *node = vb_list_pop(&id->spare);
	struct vb_cm_item *it = node ? vb_list_entry(node, struct vb_cm_item, on_id) : calloc(1, sizeof(*it));

	if (!it)
		return NULL;
	vb_list_init(&it->on_id);
	vb_list_init(&it->on_channel);
	it->news = (struct vb_cm_news){.event = event, .status = status, .id = id, .user = id->user};
	it->news.ud = id->type == IBV_QPT_UD;
	return it;
}

static void count(uint16_t by_event[VB_CM_EVENTS], unsigned event, int more)
{
	if (event < VB_CM_EVENTS)
		by_event[event] = (uint16_t)(by_event[event] + more);
}

void vb_cm_item_post(struct vb_cm_item *it)
{
	struct vb_cm_id *id = it->news.id;

	vb_lock_assert_held(&vb_cm_ids_lock);
	vb_cm_show(id);
	if (id->passive && !id->user) { /* the program knows nothing of it yet (vb_cm_id_accept()) */
		vb_list_append(&id->spare, &it->on_id);
		return;
	}
	count(id->queued, it->news.event, 1);
	vb_list_append(&id->undelivered, &it->on_id);
	vb_list_append(&id->channel->items, &it->on_channel);
	add_token(id->channel);
}

void vb_cm_id_say(struct vb_cm_id *id, enum rdma_cm_event_type event, int status)
{
	struct vb_cm_item *it = vb_cm_item_new(id, event, status);

	if (it)
		vb_cm_item_post(it);
}

int vb_cm_id_write(struct vb_cm_id *id, enum rdma_cm_event_type event, int status, uint64_t arg)
{
	struct vb_cm_item *it;
	int err = vb_cm_id_use(id, "rdma_write_cm_event");

	if (err)
		return err;
	it = vb_cm_item_new(id, event, status);
	if (it) {
		it->news.arg = arg;
		vb_cm_item_post(it);
	}
	vb_cm_ids_leave();
	return it ? 0 : ENOMEM;
}

void vb_cm_items_drop(struct vb_cm_id *id, const struct vb_cm_join *join, struct vb_list *orphans)
{
	vb_lock_assert_held(&vb_cm_ids_lock);
	vb_list_each_safe (node, tmp, &id->undelivered) {
		struct vb_cm_item *it = vb_list_entry(node, struct vb_cm_item, on_id);
		struct vb_cm_id *fresh = it->news.fresh;

		if (join && it->join != join)
			continue;
		vb_list_unlink(&it->on_id);
		vb_list_unlink(&it->on_channel);
		take_token_back(id->channel);
		count(id->queued, it->news.event, -1);
		vb_cm_show(id);
		free(it);
		if (!fresh)
			continue;
		vb_list_unlink(&fresh->on_all);
		vb_list_append(orphans, &fresh->on_all);
	}
}

/* Counts it as delivered; false: what the token stood for was taken back. */
static bool deliver(struct vb_cm_channel *c, struct vb_cm_news *out)
{
	struct vb_cm_item *it;
	struct vb_list *node;

	vb_lock_assert_held(&vb_cm_ids_lock);
	if (c->debt) {
		c->debt--;
		return false;
	}
	node = vb_list_pop(&c->items);
	if (!node)
		return false;
	it = vb_list_entry(node, struct vb_cm_item, on_channel);
	atomic_store_explicit(&c->filled, !vb_list_empty(&c->items), memory_order_relaxed);
	vb_list_unlink(&it->on_id);
	it->news.id->delivered++;
	count(it->news.id->queued, it->news.event, -1);
	count(it->news.id->unacked, it->news.event, 1);
	vb_cm_show(it->news.id);
	it->news.user = it->news.id->user;
	if (it->join)
		it->join->delivered++;
	if (it->news.fresh)
		it->news.id->waiting--;
	*out = it->news;
	free(it);
	if (out->ud && out->ud_param.private_data_len)
		out->ud_param.private_data = out->data;
	if (!out->ud && out->conn.private_data_len)
		out->conn.private_data = out->data;
	return true;
}

/* ---- acknowledgements ---- */

int vb_cm_channel_get(struct vb_cm_channel *c, struct vb_cm_news *out)
{
	bool got;
	int err;

	do {
		if (c->birth != vb_cm_birth())
			return EIO;
		err = read_token(c);
		mine.expects = NULL;
		if (err && is_ours(c))
			return err;
		vb_cm_ids_enter();
		if (err)
			c->debt = 0;
		got = c->fd != CLOSED && deliver(c, out);
		vb_cm_ids_leave();
	} while (!got && !err);
	return got ? 0 : err;
}

/* Whoever waits for this may free the id then. */
static void count_ack(uint32_t *n)
{
	pthread_mutex_lock(&acks_lock);
	++*n;
	pthread_cond_broadcast(&acks_come);
	pthread_mutex_unlock(&acks_lock);
}

void vb_cm_news_ack(struct vb_cm_id *id, enum rdma_cm_event_type event)
{
	if (id->birth != vb_cm_birth())
		return;
	vb_cm_ids_enter();
	if ((unsigned)event < VB_CM_EVENTS && id->unacked[event])
		count(id->unacked, event, -1);
	vb_cm_show(id);
	vb_cm_ids_leave();
	count_ack(&id->acked);
}

#define PATIENCE (5 * VB_SEC)

/* A program that waits here for itself is the usual mistake, and one that nothing else would tell of. */
static void say_unacked(const struct vb_cm_id *id)
{
	char text[256] = "";
	struct vb_text t = {text, sizeof(text)};
	bool sync;

	vb_cm_ids_enter();
	sync = id->channel->sync && id->unacked[RDMA_CM_EVENT_CONNECT_REQUEST];
	for (unsigned e = 0; e < VB_CM_EVENTS; e++)
		if (id->unacked[e])
			vb_text_add(&t, "%s%s", *text ? ", " : "", vb_cm_event_name(e));
	vb_cm_ids_leave();
	if (sync) /* rdma_get_request() took it, and acknowledges it when its id is accepted or destroyed */
		vb_log(VB_LOG_WARN, "rdma_destroy_id() or rdma_migrate_id() of a synchronous listener is "
				    "waiting for an id from "
				    "rdma_get_request(); accept or destroy that id first");
	else
		vb_log(VB_LOG_WARN,
		       "rdma_destroy_id() or rdma_migrate_id() is waiting for rdma_ack_cm_event(): the "
		       "program has "
		       "not "
		       "acknowledged these events of the id: %s",
		       text);
}

/* pthread_cond_wait(3) ends a cancelled thread with the mutex locked. */
static void give_acks_lock(void *lock)
{
	pthread_mutex_unlock(lock);
}

/* Like waiting for an event, this may take for ever. */
static int await_ack(const struct timespec *until)
{
	int err;

	pthread_cleanup_push(give_acks_lock, &acks_lock);
	vb_cm_wait_begin();
	err = until ? pthread_cond_timedwait(&acks_come, &acks_lock, until)
		    : pthread_cond_wait(&acks_come, &acks_lock);
	vb_cm_wait_end();
	pthread_cleanup_pop(0);
	return err;
}

void vb_cm_acks_await(struct vb_cm_id *id, uint32_t delivered, uint32_t migrations)
{
	uint64_t patience = vb_waiting_warn(PATIENCE);
	bool said = patience == VB_NEVER;
	struct vb_waiting *w = NULL;
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	patience += (uint64_t)until.tv_nsec;
	until.tv_sec += (time_t)(patience / VB_SEC);
	until.tv_nsec = (long)(patience % VB_SEC);
	pthread_mutex_lock(&acks_lock);
	if (id->acked < delivered || id->migrated < migrations)
		w = vb_waiting_begin(VB_WAITING_CM_ACKS, id, delivered - id->acked);
	while (id->acked < delivered || id->migrated < migrations) {
		if (await_ack(said ? NULL : &until) != ETIMEDOUT)
			continue;
		said = true;
		if (id->acked >= delivered)
			continue;
		/* without the lock, so that others may acknowledge while the log or a capture is written */
		pthread_mutex_unlock(&acks_lock);
		say_unacked(id);
		vb_log_tell();
		pthread_mutex_lock(&acks_lock);
	}
	pthread_mutex_unlock(&acks_lock);
	vb_waiting_end(w);
}

/* ---- migration ---- */

/* The events of the id, and of connections that come with them, in the order in which they stand. */
static void move_items(struct vb_cm_channel *from, struct vb_cm_channel *to)
{
	vb_list_each_safe (node, tmp, &from->items) {
		struct vb_cm_item *it = vb_list_entry(node, struct vb_cm_item, on_channel);

		if (it->news.id->channel != to)
			continue;
		vb_list_unlink(&it->on_channel);
		take_token_back(from);
		vb_list_append(&to->items, &it->on_channel);
		add_token(to);
	}
}

static void change_channel(struct vb_cm_id *id, struct vb_cm_channel *to)
{
	id->channel->ids--;
	id->channel = to;
	to->ids++;
}

/* The thread returns, or was cancelled as it waited. */
static void end_migration(void *id)
{
	count_ack(&((struct vb_cm_id *)id)->migrated);
}

int vb_cm_id_migrate(struct vb_cm_id *id, struct vb_cm_channel *to)
{
	struct vb_cm_channel *from;
	uint32_t delivered;
	int err;

	if (to->birth != vb_cm_birth())
		return vb_refuse(EIO, "rdma_migrate_id", VB_CM_CHANNEL_OF_PARENT);
	err = vb_cm_id_use(id, "rdma_migrate_id");
	if (err)
		return err;
	from = id->channel;
	if (from != to) {
		change_channel(id, to);
		vb_list_each (node, &id->undelivered) {
			struct vb_cm_item *it = vb_list_entry(node, struct vb_cm_item, on_id);

			if (it->news.fresh)
				change_channel(it->news.fresh, to);
		}
		move_items(from, to);
	}
	delivered = id->delivered;
	id->migrations++; /* whoever takes an event there may end the id meanwhile, which waits for this */
	vb_cm_show(id);
	vb_cm_ids_leave();
	pthread_cleanup_push(end_migration, id);
	vb_cm_acks_await(id, delivered, 0);
	pthread_cleanup_pop(1);
	return 0;
}
