/* What upper layers tell each other over the control sockets of their adapters. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "contact.h"
#include "kit.h"
#include "node.h"
#include "host/hello.h"
#include "host/private.h"

enum { SUBJECT = 7 };

struct pair {
	struct kit_node *x, *y;
	struct vb_peer *xy, *yx;
};

/* Whoever was reading is through with it, and has closed what came. */
static void settle_node(struct kit_node *n)
{
	pthread_mutex_lock(&n->a->control);
	pthread_mutex_unlock(&n->a->control);
}

static void settle(struct pair *p)
{
	settle_node(p->x);
	settle_node(p->y);
}

static struct pair pair_open(void)
{
	struct pair p = {.x = kit_node_open(), .y = kit_node_open()};

	p.xy = kit_connected(p.x, kit_number_of(p.y));
	kit_await_count(p.y, &p.y->ups, 1); /* or it would make contact too, and drop that */
	p.yx = kit_connected(p.y, kit_number_of(p.x));
	settle(&p); /* what came with the hellos is closed */
	return p;
}

static void pair_close(struct pair *p)
{
	vb_peer_put(p->xy);
	vb_peer_put(p->yx);
	kit_node_close(p->x);
	kit_node_close(p->y);
}

/* What was heard last, by one node at a time. */
static struct {
	uint8_t msg[VB_TELL_MAX];
	size_t len;
	bool fd;
	ino_t ino;
} heard;

static void remember(struct kit_node *n, struct vb_peer *peer, const void *msg, size_t len, int fd)
{
	struct stat s = {0};

	(void)n;
	(void)peer;
	memcpy(heard.msg, msg, len);
	heard.len = len;
	heard.fd = fd >= 0;
	if (fd >= 0 && (fstat(fd, &s) || !(fcntl(fd, F_GETFD) & FD_CLOEXEC)))
		abort();
	heard.ino = s.st_ino;
}

static void every_size_with_and_without_descriptor(void **state)
{
	struct pair p = pair_open();
	int before = kit_descriptors(), file = memfd_create("x", MFD_CLOEXEC);
	uint8_t msg[VB_TELL_MAX];
	struct stat s;

	(void)state;
	p.y->hear = remember;
	assert_int_equal(fstat(file, &s), 0);
	for (size_t len = 1; len <= VB_TELL_MAX; len++) {
		for (size_t i = 0; i < len; i++)
			msg[i] = (uint8_t)(len * 7 + i);
		assert_true(vb_peer_tell(p.xy, SUBJECT, msg, len, len % 2 ? file : -1));
		kit_await_count(p.y, &p.y->tolds, (int)len);
		assert_int_equal(p.y->subject, SUBJECT);
		assert_int_equal(heard.len, len);
		assert_memory_equal(heard.msg, msg, len);
		assert_int_equal(heard.fd, len % 2);
		assert_int_equal(heard.ino, len % 2 ? s.st_ino : 0);
	}
	close(file);
	settle(&p);
	assert_int_equal(kit_descriptors(), before);
	assert_int_equal(p.x->tolds, 0);
	pair_close(&p);
}

static void what_cannot_be_said(void **state)
{
	struct pair p = pair_open();
	struct vb_peer *self = vb_peer_get(p.x->a, kit_number_of(p.x)), *down;
	uint8_t msg[VB_TELL_MAX + 1] = {0};

	(void)state;
	assert_false(vb_peer_tell(p.xy, SUBJECT, msg, 0, -1));
	assert_false(vb_peer_tell(p.xy, SUBJECT, msg, VB_TELL_MAX + 1, -1));
	assert_false(vb_peer_tell(self, SUBJECT, msg, 1, -1));
	assert_false(vb_peer_tell(p.xy, SUBJECT, msg, 1, 9999)); /* no such descriptor */
	vb_peer_put(self);
	assert_true(vb_peer_tell(p.xy, SUBJECT, msg, 1, -1));
	kit_await_count(p.y, &p.y->tolds, 1);
	vb_peer_put(p.yx);
	kit_node_close(p.y);
	kit_await_count(p.x, &p.x->downs, 1);
	assert_false(vb_peer_tell(p.xy, SUBJECT, msg, 1, -1));
	down = vb_peer_get(p.x->a, p.xy->number); /* nobody is there */
	assert_false(vb_peer_tell(down, SUBJECT, msg, 1, -1));
	vb_peer_put(down);
	vb_peer_put(p.xy);
	kit_node_close(p.x);
}

enum { EXCHANGES = 2000 };

static void answer(struct kit_node *n, struct vb_peer *peer, const void *msg, size_t len, int fd)
{
	uint32_t count;

	(void)n;
	(void)len;
	memcpy(&count, msg, sizeof(count));
	if (count++ < EXCHANGES && !vb_peer_tell(peer, SUBJECT, &count, sizeof(count), fd))
		abort();
}

static void answers_from_where_it_is_told(void **state)
{
	struct pair p = pair_open();
	int before = kit_descriptors(), file = memfd_create("x", MFD_CLOEXEC);
	uint32_t count = 1;

	(void)state;
	p.x->hear = p.y->hear = answer;
	assert_true(vb_peer_tell(p.xy, SUBJECT, &count, sizeof(count), file)); /* and so wakes who sleeps */
	kit_await_count(p.y, &p.y->tolds, EXCHANGES / 2);
	kit_await_count(p.x, &p.x->tolds, EXCHANGES / 2);
	close(file);
	settle(&p);
	assert_int_equal(kit_descriptors(), before);
	pair_close(&p);
}

/* Somebody who polls without end. */
struct spinner {
	struct kit_node *n;
	_Atomic bool stop;
	_Atomic int found_asleep;
};

static void *spin(void *arg)
{
	struct spinner *s = arg;

	while (!atomic_load(&s->stop)) {
		atomic_fetch_add(&vb_adapter_presence(s->n->a)->polls, 1);
		if (atomic_load(vb_adapter_presence(s->n->a)->awake) == VB_ASLEEP) {
			atomic_fetch_add(&s->found_asleep, 1);
			vb_adapter_wake(s->n->a);
		}
		kit_node_look(s->n->a, VB_LOOK_DRAIN);
	}
	return NULL;
}

static void heard_while_the_program_polls(void **state)
{
	struct pair p = pair_open();
	struct spinner s = {.n = p.y};
	pthread_t t;

	(void)state;
	pthread_create(&t, NULL, spin, &s);
	for (int i = 1; i <= 300; i++) {
		assert_true(vb_peer_tell(p.xy, SUBJECT, &i, sizeof(i), -1));
		kit_await_count(p.y, &p.y->tolds, i);
	}
	atomic_store(&s.stop, true);
	pthread_join(t, NULL);
	pair_close(&p);
}

struct waiter {
	struct kit_node *n;
	int until;
};

static void *wait_until(void *arg)
{
	struct waiter *w = arg;

	assert_int_equal(vb_adapter_wait(w->n->a, w->until, &(bool){false}, VB_NEVER), 0);
	return NULL;
}

/* The engine left the control sockets to a waiter; that goes while another thread polls.  Returns whether the
 * engine heard what was told then without having fallen asleep: it may, if the poller does not get to run. */
static bool heard_behind_a_waiter(struct pair *p)
{
	struct spinner s = {.n = p->y};
	struct waiter w = {p->y, eventfd(0, EFD_CLOEXEC)};
	int before = atomic_load(&p->y->tolds), slept;
	pthread_t t, u;
	bool awake;

	pthread_create(&t, NULL, wait_until, &w);
	while (!atomic_load(&p->y->a->parked)) {
		kit_send_to(p->xy);
		kit_await(p->y->arrived);
		poll(NULL, 0, 2);
	}
	pthread_create(&u, NULL, spin, &s);
	while (atomic_load(vb_adapter_presence(p->y->a)->awake) == VB_ASLEEP)
		sched_yield();
	assert_true(vb_peer_tell(p->xy, SUBJECT, "a", 1, -1)); /* to the waiter */
	kit_await_count(p->y, &p->y->tolds, before + 1);
	slept = atomic_load(&s.found_asleep);
	kit_bump(w.until);
	pthread_join(t, NULL);
	assert_true(vb_peer_tell(p->xy, SUBJECT, "b", 1, -1));
	kit_await_count(p->y, &p->y->tolds, before + 2);
	awake = atomic_load(vb_adapter_presence(p->y->a)->awake) == VB_POLLING &&
		atomic_load(&s.found_asleep) == slept;
	atomic_store(&s.stop, true);
	pthread_join(u, NULL);
	close(w.until);
	return awake;
}

static void heard_after_a_waiter_has_gone(void **state)
{
	struct pair p = pair_open();
	int tries = 100;

	(void)state;
	while (!heard_behind_a_waiter(&p))
		assert_true(tries-- > 0);
	pair_close(&p);
}

/* A node that does not read on until it is let. */
static struct {
	int gate; /* eventfd, a semaphore */
	_Atomic bool stuck;
	int next;
	bool in_order;
} deaf;

static void stick(struct kit_node *n, struct vb_peer *peer, const void *msg, size_t len, int fd)
{
	int i;

	(void)n;
	(void)peer;
	(void)len;
	(void)fd;
	memcpy(&i, msg, sizeof(i));
	deaf.in_order &= i == deaf.next++;
	if (i == 0) {
		atomic_store(&deaf.stuck, true);
		kit_await(deaf.gate);
	}
}

static int flood(struct pair *p, int file)
{
	int n = 0;

	deaf.gate = eventfd(0, EFD_CLOEXEC);
	deaf.next = 0;
	deaf.in_order = true;
	atomic_store(&deaf.stuck, false);
	p->y->hear = stick;
	while (vb_peer_tell(p->xy, SUBJECT, &n, sizeof(n), file)) {
		n++;
		while (!atomic_load(&deaf.stuck))
			sched_yield();
	}
	assert_in_range(n, 30, 10000);
	return n;
}

static void flood_stops_at_a_full_socket(void **state)
{
	struct pair p = pair_open();
	int before = kit_descriptors(), file = memfd_create("x", MFD_CLOEXEC), n;
	uint8_t bell = MSG_BELL;

	(void)state;
	n = flood(&p, file);
	for (int i = 0; i < 1000; i++)
		assert_false(vb_peer_tell(p.xy, SUBJECT, &n, sizeof(n), file));
	while (send(p.xy->sock, &bell, 1, MSG_DONTWAIT) == 1) /* bells fill what is left */
		;
	kit_send_to(p.xy); /* these ring in vain */
	kit_send_to(p.xy);
	kit_bump(deaf.gate);
	kit_await(p.y->arrived);
	kit_await(p.y->arrived);
	kit_await_count(p.y, &p.y->tolds, n);
	assert_true(deaf.in_order);
	assert_true(vb_peer_tell(p.xy, SUBJECT, &n, sizeof(n), -1));
	kit_await_count(p.y, &p.y->tolds, n + 1);
	close(deaf.gate);
	close(file);
	settle(&p);
	assert_int_equal(kit_descriptors(), before);
	pair_close(&p);
}

static void goodbye_is_heard_behind_a_flood(void **state)
{
	struct pair p = pair_open();
	int n = flood(&p, -1);

	(void)state;
	vb_peer_put(p.xy);
	kit_node_close(p.x);
	kit_bump(deaf.gate);
	kit_await_count(p.y, &p.y->downs, 1);
	assert_int_equal(p.y->goodbyes, 1);
	assert_int_equal(p.y->tolds, n); /* before the link went down */
	close(deaf.gate);
	vb_peer_put(p.yx);
	kit_node_close(p.y);
}

static void full_table_of_descriptors(void **state)
{
	enum { LIMIT = 200 };
	struct pair p = pair_open();
	struct rlimit old, few;
	int fds[LIMIT], n = 0;

	(void)state;
	p.y->hear = remember;
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
	few = old;
	few.rlim_cur = LIMIT;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
	while ((fds[n] = dup(p.y->changed)) >= 0)
		n++;
	assert_true(vb_peer_tell(p.xy, SUBJECT, "none", 4, fds[0]));
	kit_await_count(p.y, &p.y->tolds, 1);
	assert_int_equal(heard.len, 4);
	assert_false(heard.fd);
	close(fds[--n]);
	assert_true(vb_peer_tell(p.xy, SUBJECT, "one", 3, fds[0]));
	kit_await_count(p.y, &p.y->tolds, 2);
	assert_int_equal(heard.len, 3);
	assert_true(heard.fd);
	while (n)
		close(fds[--n]);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
	pair_close(&p);
}

static void send_raw(int sock, const void *bytes, size_t len, int nfds, int fd)
{
	struct iovec iov = {(void *)(uintptr_t)bytes, len};
	_Alignas(struct cmsghdr) char ctl[CMSG_SPACE(8 * sizeof(int))] = {0};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
	struct cmsghdr *cm = (struct cmsghdr *)ctl;

	if (nfds) {
		m.msg_control = ctl;
		m.msg_controllen = CMSG_SPACE((size_t)nfds * sizeof(int));
		cm->cmsg_level = SOL_SOCKET;
		cm->cmsg_type = SCM_RIGHTS;
		cm->cmsg_len = CMSG_LEN((size_t)nfds * sizeof(int));
		for (int i = 0; i < nfds; i++)
			memcpy(CMSG_DATA(cm) + (size_t)i * sizeof(int), &fd, sizeof(int));
	}
	assert_int_equal(sendmsg(sock, &m, MSG_NOSIGNAL), len);
}

/* More descriptors than one: none is taken, and none stays. */
static void too_many_descriptors(void **state)
{
	struct pair p = pair_open();
	int before = kit_descriptors();
	uint8_t msg[16] = {MSG_TELL};

	(void)state;
	p.y->hear = remember;
	for (int n = 1; n <= 8; n++) {
		send_raw(p.xy->sock, msg, sizeof(msg), n, p.x->changed);
		kit_await_count(p.y, &p.y->tolds, n);
		assert_int_equal(heard.fd, n == 1);
	}
	settle(&p);
	assert_int_equal(kit_descriptors(), before);
	assert_int_equal(kit_peers_up(p.y), 1);
	pair_close(&p);
}

/* Sends `len` bytes and sockets that linger, which are the node's alone when it reads that. */
static void send_lingering(struct kit_node *to, int sock, const void *bytes, size_t len, int n)
{
	int fds[4];

	for (int i = 0; i < n; i++)
		fds[i] = kit_lingering(60);
	pthread_mutex_lock(&to->a->control);
	kit_hello_send(sock, bytes, len, fds, n);
	pthread_mutex_unlock(&to->a->control);
}

/* Whoever closes such a socket last would wait. */
static void sockets_that_linger(void **state)
{
	struct pair p = pair_open();
	uint8_t msg[16] = {MSG_TELL};
	double began = kit_now();

	(void)state;
	p.y->hear = remember;
	for (int n = 1; n <= 4; n++) {
		send_lingering(p.y, p.xy->sock, msg, sizeof(msg), n);
		kit_await_count(p.y, &p.y->tolds, n);
	}
	settle(&p);
	assert_true(kit_now() - began < 30);
	pair_close(&p);
}

static void a_hello_with_sockets_that_linger(void **state)
{
	struct kit_node *y = kit_node_open();
	int s = kit_number_connect(kit_number_of(y));
	struct hello h = kit_hello();
	double began = kit_now();

	(void)state;
	send_lingering(y, s, &h, sizeof(h), 4);
	assert_int_equal(recv(s, &h, sizeof(h), 0), sizeof(h));
	assert_int_equal(h.kind, MSG_REFUSE);
	settle_node(y);
	assert_true(kit_now() - began < 30);
	close(s);
	kit_node_close(y);
}

/* What is left unread when a connection is closed goes with it. */
static void sockets_that_linger_unread(void **state)
{
	struct kit_node *y = kit_node_open();
	int s = kit_number_connect(kit_number_of(y));
	struct hello h = kit_hello();
	double began = kit_now();

	(void)state;
	pthread_mutex_lock(&y->a->control);
	kit_hello_send(s, &h, sizeof(h), NULL, 0); /* which is refused */
	for (int i = 0; i < 3; i++)
		kit_hello_send(s, "", 0, NULL, 0);
	kit_hello_send(s, "x", 1, (int[]){kit_lingering(60)}, 1);
	pthread_mutex_unlock(&y->a->control);
	while (recv(s, &h, sizeof(h), 0) > 0 || errno == ECONNRESET) /* to its end */
		errno = 0;
	settle_node(y);
	assert_true(kit_now() - began < 30);
	close(s);
	kit_node_close(y);
}

static void rubbish_ends_the_link_that_says_it(void **state)
{
	static const struct {
		uint8_t kind;
		size_t len;
		int nfds;
	} what[] = {
	    {MSG_TELL, 1, 0},						 /* no message */
	    {MSG_TELL, 8, 0},	{MSG_TELL, 8, 1},    {MSG_TELL, 137, 0}, /* too long a one */
	    {MSG_TELL, 137, 1}, {MSG_TELL, 4000, 2}, {MSG_BELL, 2, 0},	 {MSG_BELL, 1, 1},
	    {MSG_BYE, 1, 1},	{MSG_HELLO, 48, 1},  {0, 1, 0},		 {MSG_TELL + 1, 16, 0},
	    {255, 16, 1},	{MSG_TELL, 0, 1}, /* an empty packet, as at the end */
	};
	struct kit_node *z = kit_node_open();

	(void)state;
	for (size_t i = 0; i < sizeof(what) / sizeof(what[0]); i++) {
		int before = kit_descriptors();
		struct pair p = pair_open();
		struct vb_peer *zy = kit_connected(z, kit_number_of(p.y));
		uint8_t bytes[4096] = {what[i].kind};

		send_raw(p.xy->sock, bytes, what[i].len, what[i].nfds, p.x->changed);
		kit_await_state(p.y, p.yx, VB_PEER_DOWN);
		kit_await_count(p.y, &p.y->downs, 1);
		kit_await_count(p.x, &p.x->downs, 1);
		assert_int_equal(p.y->goodbyes, 0);
		assert_int_equal(p.y->tolds, 0);
		assert_int_equal(kit_peers_up(p.y), 1);
		assert_true(vb_peer_tell(zy, SUBJECT, "still", 5, -1));
		kit_await_count(p.y, &p.y->tolds, 1);
		vb_peer_put(zy);
		pair_close(&p);
		kit_await_count(z, &z->downs, (int)i + 1);
		settle_node(z);
		assert_int_equal(kit_descriptors(), before);
	}
	kit_node_close(z);
}

/* What follows rubbish in the same batch is not heard, and its descriptors do not stay. */
static void nothing_counts_after_rubbish(void **state)
{
	int before = kit_descriptors();
	struct pair p = pair_open();
	uint8_t msg[16] = {MSG_TELL};

	(void)state;
	pthread_mutex_lock(&p.y->a->control);
	send_raw(p.xy->sock, msg, sizeof(msg), 1, p.x->changed);
	send_raw(p.xy->sock, msg, 3, 1, p.x->changed);
	for (int i = 0; i < 30; i++)
		send_raw(p.xy->sock, msg, sizeof(msg), 1, p.x->changed);
	pthread_mutex_unlock(&p.y->a->control);
	kit_await_count(p.y, &p.y->downs, 1);
	kit_await_count(p.x, &p.x->downs, 1);
	assert_int_equal(p.y->tolds, 1);
	pair_close(&p);
	assert_int_equal(kit_descriptors(), before);
}

static void *tell_on(void *arg)
{
	struct vb_peer *peer = arg;
	uint64_t n = 0;

	while (atomic_load(&peer->state) == VB_PEER_UP) {
		vb_peer_tell(peer, SUBJECT, &n, sizeof(n), -1);
		n++;
	}
	assert_false(vb_peer_tell(peer, SUBJECT, &n, sizeof(n), -1));
	return NULL;
}

static void threads_tell_while_the_peer_goes(void **state)
{
	enum { THREADS = 3 };

	(void)state;
	for (int round = 0; round < 30; round++) {
		int before = kit_descriptors();
		struct pair p = pair_open();
		pthread_t t[THREADS];

		for (int i = 0; i < THREADS; i++)
			pthread_create(&t[i], NULL, tell_on, p.xy);
		kit_await_count(p.y, &p.y->tolds, 10);
		vb_peer_put(p.yx);
		kit_node_close(p.y);
		for (int i = 0; i < THREADS; i++)
			pthread_join(t[i], NULL);
		kit_await_count(p.x, &p.x->downs, 1);
		vb_peer_put(p.xy);
		kit_node_close(p.x);
		assert_int_equal(kit_descriptors(), before);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_size_with_and_without_descriptor),
	    cmocka_unit_test(what_cannot_be_said),
	    cmocka_unit_test(answers_from_where_it_is_told),
	    cmocka_unit_test(heard_while_the_program_polls),
	    cmocka_unit_test(heard_after_a_waiter_has_gone),
	    cmocka_unit_test(flood_stops_at_a_full_socket),
	    cmocka_unit_test(goodbye_is_heard_behind_a_flood),
	    cmocka_unit_test(full_table_of_descriptors),
	    cmocka_unit_test(too_many_descriptors),
	    cmocka_unit_test(sockets_that_linger),
	    cmocka_unit_test(a_hello_with_sockets_that_linger),
	    cmocka_unit_test(sockets_that_linger_unread),
	    cmocka_unit_test(rubbish_ends_the_link_that_says_it),
	    cmocka_unit_test(nothing_counts_after_rubbish),
	    cmocka_unit_test(threads_tell_while_the_peer_goes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
