/* What the tests with processes share: a device, an RC endpoint, how two of them are connected, children that
 * end with their parent, and what the log says.  A CHECK that fails ends the process with status 1. */
#ifndef VB_TESTS_KIT_H
#define VB_TESTS_KIT_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(c, ...)                                                                               \
	do {                                                                                        \
		if (!(c)) {                                                                         \
			int check_errno_ = errno;                                                   \
			fprintf(stderr, "[%d] %s:%d: %s: ", (int)gettid(), __FILE__, __LINE__, #c); \
			fprintf(stderr, " " __VA_ARGS__);                                           \
			fprintf(stderr, " (errno %d: %s)\n", check_errno_, strerror(check_errno_)); \
			_exit(1);                                                                   \
		}                                                                                   \
	} while (0)

/* Two integers are equal: an exit status, an errno, a status of a completion.  Prints both when they are not.
 */
#define CHECK_EQ(got, want)                                                                              \
	do {                                                                                             \
		long long check_got_ = (long long)(got), check_want_ = (long long)(want);                \
		CHECK(check_got_ == check_want_, "%s is %lld, not %lld", #got, check_got_, check_want_); \
	} while (0)

enum {
	KIT_ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
		  IBV_ACCESS_REMOTE_ATOMIC,
	KIT_SKIP = 77,	     /* the exit status of a test that cannot run here and has said why */
	KIT_FOREIGN = 12345, /* another user's id */
	KIT_QKEY = 0x1ee7a1,
};

/* ---- device and endpoint (end.c) ---- */

/* What a peer must know to connect and to reach memory. */
struct kit_card {
	union ibv_gid gid;
	uint16_t lid; /* 0 but on InfiniBand */
	uint32_t qpn, psn, rkey;
	uint64_t addr;
	uint8_t tclass; /* of packets to there */
};

struct kit_end {
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	uint8_t *buf;
	struct kit_card card;
};

/* The first device of the list, opened. */
struct ibv_context *kit_open(void);

/* An RC QP in INIT with its own CQ and `size` registered bytes; `depth` requests fit into each queue. */
void kit_end_open(struct kit_end *e, struct ibv_pd *pd, int depth, size_t size);
/* kit_end_open() with a CQ that reports to a channel. */
void kit_end_open_on(struct kit_end *e, struct ibv_pd *pd, struct ibv_comp_channel *channel, int depth,
		     size_t size);
/* kit_end_open() with a QP of ibv_create_qp_ex(), whose send_ops_flags are `ops`; its other face. */
struct ibv_qp_ex *kit_end_open_ex(struct kit_end *e, struct ibv_pd *pd, int depth, size_t size, uint64_t ops);
struct ibv_qp_ex *kit_end_open_ex_as(struct kit_end *e, struct ibv_pd *pd, int depth, size_t size,
				     enum ibv_qp_type type, uint64_t ops);
/* kit_end_open() with a QP of another type; one for datagrams (UD) is in RTS, with KIT_QKEY. */
void kit_end_open_as(struct kit_end *e, struct ibv_pd *pd, int depth, size_t size, enum ibv_qp_type type);
/* kit_end_open() with the caller's CQ. */
void kit_end_open_with(struct kit_end *e, struct ibv_pd *pd, struct ibv_cq *cq, int depth, size_t size);
void kit_end_close(struct kit_end *e);

/* An address handle that leads to that process. */
struct ibv_ah *kit_ah(struct ibv_pd *pd, const struct kit_card *to);
/* Posts a SEND, signalled, of `len` bytes at `at`; what ibv_post_send() returns. */
int kit_datagram(struct kit_end *e, struct ibv_ah *ah, uint32_t qpn, uint64_t wr_id, size_t at, uint32_t len);
void kit_end_close_but_cq(struct kit_end *e);

void kit_to_rtr(struct kit_end *e, const struct kit_card *peer);
void kit_to_rtr_with(struct kit_end *e, const struct kit_card *peer, enum ibv_mtu path_mtu);
/* timeout: Local ACK Timeout code; retries: retry_cnt. */
/* 0, or what ibv_modify_qp returns. */
int kit_try_rts(struct kit_end *e, int timeout, int retries);
void kit_to_rts(struct kit_end *e, int timeout, int retries);
void kit_connect_with(struct kit_end *e, const struct kit_card *peer, int timeout, int retries);
/* With timeout 14 and 7 retries. */
void kit_connect(struct kit_end *e, const struct kit_card *peer);

/* Posts a receive of `len` bytes at `at`; what ibv_post_recv() returns. */
int kit_recv(struct kit_end *e, uint64_t wr_id, size_t at, uint32_t len);
/* Posts any operation, signalled; SEND ignores `remote`.  What ibv_post_send() returns. */
int kit_post(struct kit_end *e, enum ibv_wr_opcode op, uint64_t wr_id, size_t at, uint32_t len,
	     const struct kit_card *peer, size_t remote);
/* The next completion, at most `seconds` away.  What fails is said with the line of the test that asked. */
#define kit_wait(e, seconds) kit_wait_at(e, seconds, __FILE__, __LINE__)
struct ibv_wc kit_wait_at(struct kit_end *e, double seconds, const char *file, int line);

/* The next completion, at most 20 seconds away, which is a success of that kind. */
#define kit_expect(e, opcode) kit_expect_at(e, opcode, __FILE__, __LINE__)
struct ibv_wc kit_expect_at(struct kit_end *e, enum ibv_wc_opcode opcode, const char *file, int line);
/* How many the device has dropped in silence for that reason (enum vb_reason). */
uint64_t kit_drops(const struct ibv_context *ctx, uint32_t reason);

/* A SEND to a queue pair of the adapter with that number; its status. */
enum ibv_wc_status kit_ask(uint32_t number, int timeout, int retries);
/* Whether the abstract name of the adapter behind a QPN is still bound. */
bool kit_bound(uint32_t qpn);

/* ---- processes (process.c) ---- */

double kit_now(void); /* seconds */
void kit_nap(int ms);
void kit_nap_us(unsigned us);

/* 0 in the child, which ends with its parent. */
pid_t kit_fork(void);
/* A child that is another user. */
pid_t kit_fork_as(uid_t uid);
/* Whether a child of this process can be that user. */
bool kit_can_be(uid_t uid);
/* The status of the child, once it has ended. */
int kit_reap(pid_t pid);
/* Stops a child with all its threads, and returns when it stands; lets it go on. */
void kit_stop(pid_t pid);
void kit_cont(pid_t pid);
/* Waits until *v reaches n, for as long as it goes on changing: a minute at most after each change. */
void kit_until(_Atomic int *v, int n);
/* Waits until *v reaches n or is negative, a minute at most, without sleeping at all. */
void kit_reach(_Atomic int *v, int n);
/* false: this user cannot have a network namespace of its own; errno says why. */
bool kit_own_network(void);
/* The same for a test that other tests' processes would disturb where ctest runs it beside them (tests/alone
 * cannot help an ordinary user); where there is none it says so, and goes on. */
void kit_alone(void);

/* From now on this thread and those that it makes, or all of the process, get that errno for a system call.
 * false: there are no such filters here; errno says why. */
bool kit_deny(long call, int err, bool all);
/* From now on the process dies of any system call of this thread but its end by _exit(). */
bool kit_deny_every_call(void);

/* Waits until all threads but the main one have blocked, as the kernel says and not the clock. */
void kit_until_blocked(void);
/* While this thread uses 0.2 s of CPU time, the others use next to none. */
void kit_nobody_spins(void);
/* How often threads of a process gave up the CPU so far, or lost it; `but`: without that one, 0: of all. */
struct kit_switches {
	unsigned long slept, forced; /* gave it up to wait; lost it to others */
	bool running;		     /* some thread has the CPU, or waits for it */
};
struct kit_switches kit_switches(pid_t pid, pid_t but);

/* ---- the machine (still.c) ---- */

/* From now on a thread on each CPU that this process may use notes when that CPU runs, and another one how
 * long threads of this session are ready to run and get no CPU; what they note is shared with children that
 * are forked later. */
void kit_watch_cpus(void);
/* For how many seconds a CPU did not run since then, or a thread got none, the longest time in one piece; 0:
 * less than 2. */
double kit_stood_still(double since);

/* How many descriptors this process has, or another, but for the log's, which the library may keep open; how
 * many files of a folder could be the library's. */
int kit_descriptors(void);
int kit_descriptors_of(pid_t pid);
int kit_files(const char *dir);
/* Hands a descriptor to who is at the other end of a socket; receives one, -1 if there was none. */
void kit_fd_send(int sock, int fd);
int kit_fd_receive(int sock);

/* Zeros that children share with this process. */
void *kit_shared(size_t size);
/* Memory that peers can open: zeros over a file whose descriptor stays open, in *fd. */
void *kit_mapped(size_t size, int *fd);
/* Makes a page missing until somebody fills it through the userfaultfd that this returns. */
int kit_missing(void *page, size_t size);

/* Runs f in a child whose standard error is a pipe, with VERBENA_LOG and VERBENA_LOG_LEVEL as given (NULL:
 * not set); what f returns is its exit status.  What was written to the pipe is in text, cut to size. Returns
 * how the child ended, as waitpid() has it. */
int kit_said(const char *log, const char *level, int (*f)(void), char *text, size_t size);

/* Cases of a test, each in a process of its own that gets an alarm after `seconds`. */
struct kit_case {
	const char *name;
	void (*run)(void);
	bool foreign; /* needs another user: skipped where there can be none */
	bool clean;   /* closes all that it opens: it ends by exit(), where sanitizers look for leaks */
};
/* Whether argv[1] is in the name of a case, or is not there.  A program that ends without having had such a
 * case fails. */
bool kit_asked(const char *name, int argc, char **argv);
/* Runs those whose name contains argv[1], all without one. */
void kit_cases(const struct kit_case *cases, size_t n, unsigned seconds, int argc, char **argv);
#define KIT_CASES(cases, seconds) kit_cases(cases, sizeof(cases) / sizeof(cases)[0], seconds, argc, argv)

/* ---- chance (process.c) ---- */

/* The next number of a sequence that *state stands for, any value of it; one below n. */
uint64_t kit_random(uint64_t *state);
uint32_t kit_below(uint64_t *state, uint32_t n);
/* Lets a little time pass, up to `max` turns of a loop, now and then the CPU too. */
void kit_some_time(uint64_t *state, uint32_t max);

/* ---- the log (log.c) ---- */

#define KIT_LOG_NAME "log"
#define KIT_LOG_LINK "/memfd:" KIT_LOG_NAME /* the beginning of its link in /proc/PID/fd */
/* From now on this process's log goes into memory; to be called before the device is opened.  Forked children
 * write to the same memory. */
void kit_log_begin(const char *level);
/* What it has got since the last kit_log_skip(). */
const char *kit_log_text(void);
void kit_log_skip(void);
/* Both: the text, which counts as skipped from now on. */
const char *kit_log_take(void);
bool kit_log_says(const char *what);
/* Waits for it, 20 s at most: whoever holds a lock writes its lines later, and the engine says things when it
 * gets to them. */
void kit_log_await(const char *what);
/* How often it stands there. */
int kit_log_count(const char *what);

#define KIT_LOG_SAYS(...)                                   \
	do {                                                \
		char want_[512];                            \
		snprintf(want_, sizeof want_, __VA_ARGS__); \
		kit_log_await(want_);                       \
	} while (0)
#define KIT_LOG_SAYS_NOT(what) CHECK(!kit_log_says(what), "'%s' in:\n%s", what, kit_log_text())

#endif
