/* What a datagram costs its sender where one queue pair talks to many processes, each in its turn, beside one
 * that talks to one only.  First those sleep, as such a number of them must on few CPUs: their engines take
 * the datagrams, and have fallen asleep when the next one comes.  They are bound to the other CPU: one that
 * woke on the sender's would run in the middle of what is timed.  Then they poll, but are stopped, so that
 * the sender wakes nobody. */
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "vbench.h"

#define MOST	 500u
#define MESSAGES 4000u
#define PAUSE	 5e4 /* ns between two, in which a peer falls asleep */
#define ROUNDS	 4u
#define POLLS	 1000u /* in a row, after which a process counts as polling */

static void listener(int sock)
{
	char word;

	pin(1);
	if (recv(sock, &word, 1, 0) == 1)
		peers_listen(sock);
}

void peers_listen(int sock)
{
	struct side s = {.sock = sock, .small = true, .type = IBV_QPT_UD};
	char word;

	side_open(&s);
	side_meet(&s); /* a datagram has come */
	while (recv(sock, &word, 1, 0) == 1 && word) {
		for (unsigned i = 0; word == 'p' && i < POLLS; i++)
			side_poll(s.rcq, 1);
		if (word == 'p')
			raise(SIGSTOP);
	}
	side_close(&s);
}

void peers_open(struct side *peers, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		peers[i].type = IBV_QPT_UD;
		if (i)
			side_share(&peers[i], &peers[0]);
		else
			side_open(&peers[0]);
		side_post(&peers[i], IBV_WR_SEND, 8, IBV_SEND_INLINE | IBV_SEND_SIGNALED); /* makes contact */
		side_wait(peers[0].scq, 1);
		side_meet(&peers[i]);
	}
}

void peers_close(struct side *peers, unsigned n)
{
	for (unsigned i = n; i--;) {
		if (send(peers[i].sock, "", 1, 0) != 1)
			die("a peer is gone");
		side_close(&peers[i]);
	}
	for (unsigned i = 0; i < n; i++)
		wait(NULL);
}

void peers_rest(const struct side *s)
{
	double until = now() + PAUSE;

	while (now() < until)
		if (side_poll(s->rcq, 1))
			die("a datagram that nobody sent");
}

/* A post together with the poll for its completion. */
static void datagram(struct side *to)
{
	side_post(to, IBV_WR_SEND, 8, IBV_SEND_INLINE | IBV_SEND_SIGNALED);
	side_wait(to->scq, 1);
}

/* What waking a process takes. */
static void byte(struct side *to)
{
	if (send(to->sock, "b", 1, 0) != 1)
		die("a peer is gone");
}

/* A round is as many as one process's ring has room for. */
static void talk_to_pollers(struct side *all, unsigned n)
{
	static double v[ROUNDS * MOST];
	pid_t stopped[MOST];
	char name[32];

	for (unsigned r = 0; r < ROUNDS; r++) {
		for (unsigned i = 0; i < n; i++) {
			if (send(all[i].sock, "p", 1, 0) != 1)
				die("a peer is gone");
			stopped[i] = waitpid(-1, NULL, WUNTRACED);
		}
		for (unsigned i = 0; i < n; i++) /* what polling has moved to other CPUs comes back */
			datagram(&all[i]);
		for (unsigned i = 0; i < MOST; i++) {
			double t = now();

			datagram(&all[i % n]);
			v[r * MOST + i] = now() - t;
		}
		for (unsigned i = 0; i < n; i++)
			kill(stopped[i], SIGCONT);
		peers_rest(&all[0]);
	}
	snprintf(name, sizeof(name), "peers_awake_%u", n);
	figure(name, spread_rank(v, ROUNDS * MOST, 0.5));
}

static void talk(struct side *all, unsigned n, void (*say)(struct side *to), const char *what)
{
	static double v[MESSAGES];
	char name[32];

	for (unsigned i = 0; i < MESSAGES; i++) {
		double t;

		peers_rest(&all[0]);
		t = now();
		say(&all[i % n]);
		v[i] = now() - t;
	}
	snprintf(name, sizeof(name), "peers_%s_%u", what, n);
	figure(name, spread_rank(v, MESSAGES, 0.5));
}

void peers(void)
{
	static struct side all[MOST];

	side_allow_descriptors();
	side_fork(all, MOST, listener);
	for (unsigned i = 0; i < MOST; i++)
		if (send(all[i].sock, "c", 1, 0) != 1)
			die("a peer is gone");
	pin(0);
	peers_open(all, MOST);
	talk(all, 1, datagram, "send");
	talk(all, MOST, datagram, "send");
	talk_to_pollers(all, 1);
	talk_to_pollers(all, MOST);
	talk(all, 1, byte, "bell");
	talk(all, MOST, byte, "bell");
	unpin();
	peers_close(all, MOST);
}
