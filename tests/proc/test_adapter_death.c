/* Adapters of processes that come, go, fork and die. */
#include <signal.h>
#include <sys/wait.h>

#include "kit.h"
#include "node.h"

/* Other processes: this program again, told by bytes on its standard input. */

struct child {
	pid_t pid;
	int in, out;
	uint32_t number;
};

static int run_child(void)
{
	struct kit_node *n = kit_node_open();
	uint32_t number = kit_number_of(n);
	char c;
	pid_t held = 0;

	if (write(1, &number, sizeof(number)) != sizeof(number))
		return 1;
	while (read(0, &c, 1) == 1) {
		switch (c) {
		case 'c': /* orderly */
			kit_node_close(n);
			return 0;
		case 'e': /* without closing */
			exit(0);
		case 'd':
			_exit(0);
		case 's': /* sends, then dies at once */
			kit_await_count(n, &n->ups, 1);
			for (int i = 0; i < 500; i++)
				kit_send_to(vb_peer_at(n->a, 1));
			_exit(0);
		case 'f': /* a child that outlives us, with what it inherited */
			held = fork();
			if (!held) {
				if (!vb_adapter_dead(n->a) || vb_peer_get(n->a, 5) ||
				    vb_qpn_take(n->a, KIT_SOME_QP(n), NULL))
					_exit(1);
				vb_adapter_close(n->a);
				pause();
			}
			if (write(1, &held, sizeof(held)) != sizeof(held))
				return 1;
			break;
		case 'r': /* such a one by clone(): nobody closes in it what is ours */
			held = _Fork();
			if (!held)
				for (;;)
					pause();
			if (write(1, &held, sizeof(held)) != sizeof(held))
				return 1;
			break;
		}
	}
	return 0;
}

static void child_start(struct child *c)
{
	int in[2], out[2];

	assert_int_equal(pipe(in), 0);
	assert_int_equal(pipe(out), 0);
	c->pid = fork();
	if (!c->pid) {
		dup2(in[0], 0);
		dup2(out[1], 1);
		for (int fd = 3; fd < 256; fd++)
			close(fd);
		execl("/proc/self/exe", "child", "child", NULL);
		_exit(127);
	}
	close(in[0]);
	close(out[1]);
	c->in = in[1];
	c->out = out[0];
	assert_int_equal(read(c->out, &c->number, sizeof(c->number)), sizeof(c->number));
}

static void child_tell(struct child *c, char what)
{
	assert_int_equal(write(c->in, &what, 1), 1);
}

static void child_end(struct child *c)
{
	int status;

	assert_int_equal(waitpid(c->pid, &status, 0), c->pid);
	close(c->in);
	close(c->out);
}

/* Ends a connected child in one way; says whether that was a goodbye. */
static int goodbye_of(char how)
{
	struct kit_node *x = kit_node_open();
	struct child c;
	struct vb_peer *peer;
	int goodbyes;

	child_start(&c);
	peer = kit_connected(x, c.number);
	assert_int_equal(peer->pid, (uint32_t)c.pid);
	if (how == 'k')
		kill(c.pid, SIGKILL);
	else
		child_tell(&c, how);
	kit_await_count(x, &x->downs, 1);
	assert_int_equal(atomic_load(&peer->state), VB_PEER_DOWN);
	goodbyes = x->goodbyes;
	child_end(&c);
	/* The dead peer's way out swallows nothing and hurts nobody. */
	vb_peer_ring(peer);
	assert_int_not_equal(((struct vb_shm *)peer->lanes[0].out)->out.mtu, 0);
	vb_peer_put(peer);
	kit_node_close(x);
	return goodbyes;
}

static void leaving_says_goodbye(void **state)
{
	(void)state;
	assert_int_equal(goodbye_of('c'), 1);
	assert_int_equal(goodbye_of('e'), 1);
}

static void dying_does_not(void **state)
{
	(void)state;
	for (int i = 0; i < 5; i++)
		assert_int_equal(goodbye_of('k'), 0);
	assert_int_equal(goodbye_of('d'), 0);
}

static void last_words_are_read(void **state)
{
	struct kit_node *x = kit_node_open();
	struct child c;

	(void)state;
	child_start(&c);
	kit_connected(x, c.number);
	child_tell(&c, 's');
	kit_await_count(x, &x->downs, 1);
	assert_int_equal(x->packets, 500);
	child_end(&c);
	kit_node_close(x);
}

static _Atomic uint32_t looks;

static unsigned counted_look(struct vb_adapter *a, enum vb_look how)
{
	atomic_fetch_add(&looks, 1);
	return kit_node_look(a, how);
}

/* A thread that polls is at the ring just then, and loses its CPU there. */
static void last_words_wait_for_who_reads_them(void **state)
{
	struct vb_adapter_ops ops = kit_node_ops;
	struct vb_peer *peer;
	struct kit_node *x;
	struct vb_lock *rx;
	struct child c;
	siginfo_t info;
	double end;

	(void)state;
	ops.progress = counted_look;
	x = kit_node_open_with(&ops);
	child_start(&c);
	peer = kit_connected(x, c.number);
	rx = &peer->lanes[0].rxq->rx;
	vb_lock_take(rx);
	child_tell(&c, 's');
	assert_int_equal(waitid(P_PID, (id_t)c.pid, &info, WEXITED | WNOWAIT), 0);
	atomic_store(&looks, 0);
	end = kit_now() + 0.3;
	while (atomic_load(&looks) < 2 * VB_LANES * VB_RING_SLOTS && !x->downs && kit_now() < end)
		kit_nap(1);
	assert_int_equal(x->downs, 0);
	vb_lock_give(rx);
	kit_await_count(x, &x->downs, 1);
	assert_int_equal(x->packets, 500);
	child_end(&c);
	kit_node_close(x);
}

/* A child of the peer inherits its sockets; death is seen all the same. */
static void a_child_does_not_hide_death(char how)
{
	struct kit_node *x = kit_node_open();
	struct child c;
	pid_t held;

	child_start(&c);
	kit_connected(x, c.number);
	child_tell(&c, how);
	assert_int_equal(read(c.out, &held, sizeof(held)), sizeof(held));
	assert_true(held > 0);
	kill(c.pid, SIGKILL);
	kit_await_count(x, &x->downs, 1);
	assert_int_equal(x->goodbyes, 0);
	assert_int_equal(kill(held, SIGKILL),
			 0); /* it was still there: its adapter was dead, and it went on */
	child_end(&c);
	kit_node_close(x);
}

static void forked_child_does_not_hide_death(void **state)
{
	(void)state;
	a_child_does_not_hide_death('f');
}

/* It holds our end of the connection: nothing hangs up, and only the process itself can be watched. */
static void cloned_child_does_not_hide_death(void **state)
{
	(void)state;
	a_child_does_not_hide_death('r');
}

static void forking_does_not_disturb_the_parent(void **state)
{
	struct kit_node *x;
	struct child c;
	int status;
	pid_t pid;

	(void)state;
	KIT_SKIP_UNDER_TSAN();
	x = kit_node_open();
	child_start(&c);
	kit_connected(x, c.number);
	pid = fork();
	if (!pid) {
		struct kit_node *own = calloc(1, sizeof(*own));
		struct vb_adapter_cfg cfg = {
		    .ops = &kit_node_ops, .wire = &vb_shm_wire, .user = own, .gids = kit_gids};

		/* It may open one of its own. */
		own->arrived = eventfd(0, 0);
		own->changed = eventfd(0, 0);
		if (vb_adapter_open(&own->a, &cfg) || vb_adapter_run(own->a))
			_exit(1);
		kit_connected(own, c.number);
		vb_adapter_close(own->a);
		exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(x->downs, 0);
	child_tell(&c, 'c');
	kit_await_count(x, &x->downs, 1);
	assert_int_equal(x->goodbyes, 1);
	child_end(&c);
	kit_node_close(x);
}

static void other_users_are_refused(void **state)
{
	struct kit_node *x;
	struct vb_peer *peer;
	uint32_t number = 0;
	int out[2], hold[2];
	pid_t pid;

	(void)state;
	KIT_SKIP_UNDER_TSAN();
	if (!kit_can_be(1))
		skip();
	x = kit_node_open();
	assert_int_equal(pipe(out), 0);
	assert_int_equal(pipe(hold), 0);
	pid = fork();
	if (!pid) {
		struct kit_node *own = calloc(1, sizeof(*own));
		struct vb_adapter_cfg cfg = {
		    .ops = &kit_node_ops, .wire = &vb_shm_wire, .user = own, .gids = kit_gids};
		char c;

		close(hold[1]);
		own->changed = eventfd(0, 0);
		if (setresuid(1, 1, 1) || vb_adapter_open(&own->a, &cfg) || vb_adapter_run(own->a))
			_exit(1);
		number = kit_number_of(own);
		if (write(out[1], &number, sizeof(number)) < 0)
			_exit(1);
		/* We refuse them, they refuse us. */
		vb_peer_get(own->a, kit_number_of(x));
		kit_await_count(own, &own->fails, 1);
		(void)!read(hold[0], &c, 1);
		_exit(own->ups);
	}
	close(out[1]);
	assert_int_equal(read(out[0], &number, sizeof(number)), sizeof(number));
	peer = vb_peer_get(x->a, number);
	kit_await_count(x, &x->fails, 1);
	assert_int_equal(atomic_load(&peer->state), VB_PEER_IDLE);
	assert_int_equal(x->ups, 0);
	close(hold[0]);
	close(hold[1]);
	waitpid(pid, NULL, 0);
	close(out[0]);
	kit_node_close(x);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(leaving_says_goodbye),
	    cmocka_unit_test(dying_does_not),
	    cmocka_unit_test(last_words_are_read),
	    cmocka_unit_test(last_words_wait_for_who_reads_them),
	    cmocka_unit_test(forked_child_does_not_hide_death),
	    cmocka_unit_test(cloned_child_does_not_hide_death),
	    cmocka_unit_test(forking_does_not_disturb_the_parent),
	    cmocka_unit_test(other_users_are_refused),
	};

	if (argc > 1 && !strcmp(argv[1], "child"))
		return run_child();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
