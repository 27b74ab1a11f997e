/* The ports that this process holds, and the calls.  What an id of this process has is in a table, since the
 * kernel answers about others only; what others have is asked of the kernel (ports_names.c). */
#include "host/ports.h"

#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/pages.h"
#include "host/ports_priv.h"

/* One that an id holds; guarded by ports->lock but where it says otherwise. */
struct vb_port {
	struct vb_list node; /* in its bucket */
	struct vb_ports *ports;
	struct vb_port_name name; /* space, port, family and address are set once */
	int space;		  /* its index; set once */
	uint32_t number;	  /* under which it listens, 0: it does not */
};

static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER; /* guards `all`; before any ports' locks */
static struct vb_list all = {&all, &all};

static struct vb_ports *ports_of(struct vb_list *n)
{
	return vb_list_entry(n, struct vb_ports, node);
}

static struct vb_port *port_of(struct vb_list *n)
{
	return vb_list_entry(n, struct vb_port, node);
}

/* fork(): nobody is in the middle of anything, and the child has no part in the descriptor. */
static void before_fork(void)
{
	pthread_mutex_lock(&all_lock);
	vb_list_each (n, &all) {
		pthread_mutex_lock(&ports_of(n)->turns);
		pthread_mutex_lock(&ports_of(n)->lock);
	}
}

static void after_fork(void)
{
	vb_list_each (n, &all) {
		pthread_mutex_unlock(&ports_of(n)->lock);
		pthread_mutex_unlock(&ports_of(n)->turns);
	}
	pthread_mutex_unlock(&all_lock);
}

/* Closes, and unlocks nothing: the locks are the parent's as long as it has the same open file. */
static void in_child(void)
{
	struct vb_list *n;

	while ((n = vb_list_pop(&all))) {
		struct vb_ports *p = ports_of(n);

		vb_registry_close(&p->registry);
		atomic_store(&p->dead, true);
		pthread_mutex_init(&p->turns, NULL);
		pthread_mutex_init(&p->lock, NULL);
	}
	pthread_mutex_init(&all_lock, NULL);
}

static void register_handlers(void)
{
	pthread_atfork(before_fork, after_fork, in_child);
}

void vb_ports_handle_fork(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, register_handlers);
}

/* 0, or EIO: there is nothing to be asked any more. */
static int usable(struct vb_ports *p)
{
	if (atomic_load_explicit(&p->dead, memory_order_relaxed))
		return EIO;
	if (vb_registry_whole(&p->registry))
		return 0;
	/* For good: the next ports may get that number, and every opening of the file has one inode. */
	atomic_store(&p->dead, true);
	if (!atomic_exchange(&p->told, true))
		vb_log(
		    VB_LOG_ERROR,
		    "this process closed the descriptor that reserves its rdma_cm ports (did it close all "
		    "descriptors from 3 up?): other processes can take the ports, and its listeners are not "
		    "found. Open event channels after closing descriptors, or close only those that the "
		    "program opened");
	return EIO;
}

bool vb_ports_usable(struct vb_ports *p)
{
	return !usable(p);
}

int vb_ports_open(struct vb_ports **out)
{
	struct vb_ports *p = vb_pages_alloc(sizeof(*p)); /* vb_ports_close() */
	int err, cancel;

	if (!p)
		return ENOMEM;
	vb_ports_handle_fork();
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	pthread_mutex_lock(&all_lock); /* open() too: a child that is forked now is to close it */
	err = vb_registry_open(&p->registry);
	if (!err) {
		pthread_mutex_init(&p->turns, NULL);
		pthread_mutex_init(&p->lock, NULL);
		vb_ephemeral_init(&p->ephemeral);
		for (int i = 0; i < VB_PORT_BUCKETS; i++)
			vb_list_init(&p->buckets[i]);
		vb_list_append(&all, &p->node);
	}
	pthread_mutex_unlock(&all_lock);
	pthread_setcancelstate(cancel, NULL);
	if (err) {
		free(p);
		return err;
	}
	*out = p;
	return 0;
}

void vb_ports_close(struct vb_ports *p)
{
	struct vb_list *n;
	int cancel;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	pthread_mutex_lock(&all_lock);
	vb_list_unlink(&p->node);
	vb_registry_close(&p->registry);
	pthread_mutex_unlock(&all_lock);
	for (int i = 0; i < VB_PORT_BUCKETS; i++)
		while ((n = vb_list_pop(&p->buckets[i])))
			free(port_of(n));
	vb_ephemeral_free(&p->ephemeral);
	free(p->behind.at);
	pthread_mutex_destroy(&p->turns);
	pthread_mutex_destroy(&p->lock);
	free(p);
	pthread_setcancelstate(cancel, NULL);
}

static struct vb_list *bucket(struct vb_ports *p, int space, uint32_t port)
{
	return &p->buckets[(port * VB_PORT_SPACES + (uint32_t)space) % VB_PORT_BUCKETS];
}

/* An id of this process that holds what clashes with `name`, but for one; NULL: none. */
static struct vb_port *clash_here(struct vb_ports *p, const struct vb_port_name *name,
				  const struct vb_port *but)
{
	int space = vb_port_space(name->space);

	vb_mutex_assert_held(&p->lock);
	vb_list_each (n, bucket(p, space, name->port)) {
		struct vb_port *other = port_of(n);

		if (other != but && other->space == space && other->name.port == name->port &&
		    vb_port_names_clash(&other->name, name))
			return other;
	}
	return NULL;
}

bool vb_ports_clash_here(struct vb_ports *p, const struct vb_port_name *name)
{
	return clash_here(p, name, NULL);
}

/* Whether another id of this process has that port at all, or, if `claim`, the very same claim. */
static bool is_shared(struct vb_ports *p, const struct vb_port *port, bool claim)
{
	uint64_t at = vb_port_claim(&port->name).at;

	vb_mutex_assert_held(&p->lock);
	vb_list_each (n, bucket(p, port->space, port->name.port)) {
		const struct vb_port *other = port_of(n);

		if (other != port && other->space == port->space && other->name.port == port->name.port &&
		    (!claim || vb_port_claim(&other->name).at == at))
			return true;
	}
	return false;
}

/* Claims a name at a port that is in no block of ours, and asks whether anybody is in the way. */
static int claim(struct vb_ports *p, const struct vb_port_name *name)
{
	int err = vb_registry_hold(&p->registry, vb_port_claim(name));

	vb_mutex_assert_held(&p->lock);
	if (err)
		return err;
	VB_FAULT_POINT("port claimed, nobody asked");
	return vb_registry_clash(&p->registry, name, NULL);
}

/* Lets go of the claim of a port's present name, unless another id has the same, or a block has it. */
static void unclaim(struct vb_port *port)
{
	struct vb_ports *p = port->ports;

	vb_mutex_assert_held(&p->lock);
	if (!vb_ephemeral_block(&p->ephemeral, port->space, port->name.port) && !is_shared(p, port, true))
		vb_registry_drop(&p->registry, vb_port_claim(&port->name));
}

/* The number that was asked for; the caller has put it into the name. */
static int take_given(struct vb_port *port)
{
	struct vb_ports *p = port->ports;
	struct vb_port_block *b = vb_ephemeral_block(&p->ephemeral, port->space, port->name.port);
	int err = 0;

	if (clash_here(p, &port->name, NULL))
		return EADDRINUSE;
	if (b) {
		vb_block_use(&p->ephemeral, b, port->name.port);
		return 0;
	}
	err = claim(p, &port->name);
	if (err)
		unclaim(port);
	else
		vb_ephemeral_mark(&p->ephemeral, port->space, port->name.port, true);
	return err;
}

/* Any number.  A name that may be reused stands by itself: a block has no room for those of others. */
static int take_any(struct vb_port *port)
{
	struct vb_ephemeral *e = &port->ports->ephemeral;
	const struct vb_registry *r = &port->ports->registry;
	uint32_t number;
	int err;

	do {
		err = port->name.reuse ? vb_ephemeral_seek(e, r, port->space, &number)
				       : vb_ephemeral_take(e, r, port->space, &number);
		if (err)
			return err;
		port->name.port = (uint16_t)number;
		if (port->name.reuse)
			err = take_given(port);
	} while (err == EADDRINUSE); /* another process was faster */
	return err;
}

/* One's turn: `turns` and `lock` are held afterwards, but not while others are waited for. */
static int begin(struct vb_ports *p)
{
	int err;

	pthread_mutex_lock(&p->turns);
	err = usable(p);
	if (err) {
		pthread_mutex_unlock(&p->turns);
		return err;
	}
	vb_registry_enter(&p->registry);
	pthread_mutex_lock(&p->lock);
	return 0;
}

static void end(struct vb_ports *p)
{
	pthread_mutex_unlock(&p->lock);
	vb_registry_leave(&p->registry);
	pthread_mutex_unlock(&p->turns);
}

static int bind_it(struct vb_port *port)
{
	struct vb_ports *p = port->ports;
	int err = begin(p);

	if (err)
		return err;
	err = port->name.port ? take_given(port) : take_any(port);
	if (!err)
		vb_list_append(bucket(p, port->space, port->name.port), &port->node);
	end(p);
	return err;
}

int vb_port_bind(struct vb_ports *p, struct vb_port **out, const struct vb_port_name *name)
{
	struct vb_port *port;
	int err, cancel;

	if (vb_port_space(name->space) < 0)
		return EINVAL;
	if (name->family != AF_INET && name->family != AF_INET6 && name->family != VB_AF_IB)
		return EAFNOSUPPORT;
	port = calloc(1, sizeof(*port)); /* vb_port_free() */
	if (!port)
		return ENOMEM;
	vb_list_init(&port->node);
	port->ports = p;
	port->name = *name;
	port->space = vb_port_space(name->space);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	err = bind_it(port);
	pthread_setcancelstate(cancel, NULL);
	if (err) {
		free(port);
		return err;
	}
	*out = port;
	return 0;
}

const struct vb_port_name *vb_port_name(const struct vb_port *port)
{
	return &port->name;
}

/* Has another claim, which is held already, in place of its own. */
static void rename_to(struct vb_port *port, const struct vb_port_name *name)
{
	unclaim(port);
	port->name = *name;
}

int vb_port_set(struct vb_port *port, bool afonly, bool reuse)
{
	struct vb_ports *p = port->ports;
	struct vb_port_name name;
	int err = usable(p);

	if (err)
		return err;
	pthread_mutex_lock(&p->lock);
	name = port->name;
	name.afonly = afonly;
	name.reuse = reuse;
	if (port->number || (port->name.reuse && !reuse))
		err = EINVAL;
	else if (vb_port_claim(&name).at != vb_port_claim(&port->name).at)
		err = vb_registry_hold(&p->registry, vb_port_claim(&name));
	if (!err && vb_port_claim(&name).at != vb_port_claim(&port->name).at)
		rename_to(port, &name);
	pthread_mutex_unlock(&p->lock);
	return err;
}

/* Under its turn: makes a port that may be reused one's own. */
static int exclude(struct vb_port *port)
{
	struct vb_ports *p = port->ports;
	struct vb_port_name name = port->name;
	int err;

	if (!name.reuse)
		return 0;
	name.reuse = false;
	if (clash_here(p, &name, port))
		return EADDRINUSE;
	if (!vb_ephemeral_block(&p->ephemeral, port->space, name.port)) {
		err = claim(p, &name);
		if (err) {
			vb_registry_drop(&p->registry, vb_port_claim(&name));
			return err;
		}
	}
	rename_to(port, &name);
	return 0;
}

int vb_port_listen(struct vb_port *port, uint32_t number)
{
	struct vb_ports *p = port->ports;
	int err, cancel;

	vb_assert(number);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	err = begin(p);
	if (!err) {
		err = port->number ? EINVAL : exclude(port);
		if (!err)
			err = vb_registry_hold(&p->registry, vb_port_listener(&port->name, number));
		if (!err)
			port->number = number;
		end(p);
	}
	pthread_setcancelstate(cancel, NULL);
	return err;
}

static void unlisten(struct vb_port *port)
{
	if (port->number)
		vb_registry_drop(&port->ports->registry, vb_port_listener(&port->name, port->number));
	port->number = 0;
}

/* Nobody is told of it any more before others may have it. */
static void give(struct vb_port *port)
{
	struct vb_ports *p = port->ports;
	struct vb_port_block *b = vb_ephemeral_block(&p->ephemeral, port->space, port->name.port);

	unlisten(port);
	unclaim(port);
	vb_list_unlink(&port->node);
	if (is_shared(p, port, false))
		return;
	if (b)
		vb_block_give(&p->ephemeral, &p->registry, b, port->name.port);
	else
		vb_ephemeral_mark(&p->ephemeral, port->space, port->name.port, false);
}

void vb_port_free(struct vb_port *port)
{
	struct vb_ports *p;

	if (!port)
		return;
	p = port->ports;
	pthread_mutex_lock(&p->lock);
	if (usable(p)) /* nothing to be said to the kernel */
		vb_list_unlink(&port->node);
	else
		give(port);
	pthread_mutex_unlock(&p->lock);
	free(port);
}

/* Whether what listens at `at` takes what comes to `to`. */
static bool takes(const struct vb_port_name *at, const struct vb_port_name *to)
{
	if (vb_port_is_wild(at))
		return vb_port_families_meet(at->family, at->afonly, to->family, true);
	return at->family == to->family && !memcmp(at->addr, to->addr, sizeof(at->addr));
}

enum { SHUN_MS = 500, LOOK_MS = 50 };

/* How to search now; the shunned numbers in `numbers`. */
static struct vb_search search(struct vb_ports *p, uint64_t now, uint32_t numbers[VB_PORTS_SHUNNED])
{
	struct vb_search how = {.shunned = numbers};

	vb_mutex_assert_held(&p->lock);
	if (p->looked && now - p->looked < LOOK_MS * VB_MSEC)
		how.behind = &p->behind;
	for (int i = 0; i < VB_PORTS_SHUNNED; i++)
		if (p->shunned[i].until > now)
			numbers[how.nshunned++] = p->shunned[i].number;
	return how;
}

static bool find_here(struct vb_ports *p, const struct vb_port_name *to, uint32_t *number)
{
	int index = vb_port_space(to->space);
	bool here = false;

	vb_mutex_assert_held(&p->lock);
	vb_list_each (n, bucket(p, index, to->port)) {
		const struct vb_port *own = port_of(n);

		if (own->number && own->space == index && own->name.port == to->port &&
		    takes(&own->name, to)) {
			*number = own->number;
			here = true;
		}
	}
	return here;
}

int vb_ports_find(struct vb_ports *p, uint16_t space, uint16_t port, uint16_t family, const uint8_t addr[16],
		  uint32_t *number)
{
	struct vb_port_name to = {.space = space, .port = port, .family = family};
	uint32_t numbers[VB_PORTS_SHUNNED];
	int err = usable(p);

	if (err || vb_port_space(space) < 0)
		return err ? err : ENOENT;
	memcpy(to.addr, addr, sizeof(to.addr));
	pthread_mutex_lock(&p->lock);
	if (!find_here(p, &to, number)) {
		struct vb_search how = search(p, vb_now(), numbers);

		err = vb_registry_find(&p->registry, &to, &how, number);
	}
	pthread_mutex_unlock(&p->lock);
	return err;
}

void vb_ports_look(struct vb_ports *p)
{
	struct vb_listeners l, old;
	int cancel;

	if (usable(p))
		return;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	atomic_store(&p->unseen, vb_listeners_read(&p->registry, &l)); /* then nobody is behind */
	pthread_mutex_lock(&p->lock);
	old = p->behind;
	p->behind = l;
	p->looked = vb_now();
	pthread_mutex_unlock(&p->lock);
	free(old.at);
	pthread_setcancelstate(cancel, NULL);
}

void vb_ports_shun(struct vb_ports *p, uint32_t number)
{
	uint64_t now = vb_now();
	int at = 0;

	pthread_mutex_lock(&p->lock);
	for (int i = 0; i < VB_PORTS_SHUNNED; i++) { /* its own place, else the one that is over first */
		if (p->shunned[i].number == number) {
			at = i;
			break;
		}
		if (p->shunned[i].until < p->shunned[at].until)
			at = i;
	}
	p->shunned[at].number = number;
	p->shunned[at].until = now + SHUN_MS * VB_MSEC;
	pthread_mutex_unlock(&p->lock);
}

bool vb_ports_shuns(struct vb_ports *p, uint64_t at)
{
	uint32_t numbers[VB_PORTS_SHUNNED];
	struct vb_search how;

	pthread_mutex_lock(&p->lock);
	how = search(p, vb_now(), numbers);
	pthread_mutex_unlock(&p->lock);
	return vb_port_is_shunned(&how, at);
}
