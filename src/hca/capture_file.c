#include "hca/capture_file.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/lock.h"
#include "base/log.h"
#include "base/msan.h"
#include "base/pcapng.h"
#include "iba/frame.h"

enum {
	ROOM = 4 << 20,	 /* bytes between two writes; pages that were never used are not there */
	SNAP = 384,	 /* all headers, and a whole MAD behind them */
	LEAST_SNAP = 64, /* a SEND's headers */
	FILES = 1000,
	PATH = 4096,
};

/* A packet in the buffer; its bytes and its comment follow. */
struct record {
	uint64_t when;
	uint32_t size; /* of all of it, a multiple of 8 */
	uint32_t kept, len;
	uint32_t said; /* bytes of the comment, its end included; 0: none */
};

/* Read once from the environment; constant afterwards. */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static const char *path, *wrong;
static char complaint[200];
static uint32_t snap = SNAP, files;
static uint64_t file_size;

static _Atomic bool on;

static struct vb_lock lock; /* guards what follows; a leaf */
static uint8_t *fill;
static size_t used;
static uint64_t lost;

/* Held over writing to the file, so without other locks; before `lock`. */
static pthread_mutex_t writing = PTHREAD_MUTEX_INITIALIZER;
static uint8_t *spare;
static struct vb_pcapng *file;
static bool tried; /* whether the capture has begun, or could not */

static bool parse_size(const char *s, uint64_t *size)
{
	static const char units[] = "KMG";
	const char *unit;
	char *end;

	*size = strtoull(s, &end, 10);
	if (*end && (unit = strchr(units, *end))) {
		*size <<= 10 * (unit - units + 1);
		end++;
	}
	return *s >= '0' && *s <= '9' && !*end && *size >= VB_PCAPNG_SMALLEST && *size < 1ull << 50;
}

static void read_snap(const char *s)
{
	char *end;
	unsigned long n;

	if (!s || !*s)
		return;
	n = strtoul(s, &end, 10);
	if (*s >= '0' && *s <= '9' && !*end && (!n || n >= LEAST_SNAP) && n <= UINT32_MAX) {
		snap = n ? (uint32_t)n : UINT32_MAX;
		return;
	}
	snprintf(complaint, sizeof complaint,
		 "VERBENA_PCAP_SNAP=%.40s is not a number of bytes: use %d or more, or 0 for whole packets",
		 s, LEAST_SNAP);
	wrong = complaint;
}

static void read_ring(const char *s)
{
	unsigned long n;
	char *end;

	if (!s || !*s)
		return;
	n = strtoul(s, &end, 10);
	if (*s >= '0' && *s <= '9' && *end == ':' && n && n <= FILES && parse_size(end + 1, &file_size)) {
		files = (uint32_t)n;
		return;
	}
	snprintf(complaint, sizeof complaint,
		 "VERBENA_PCAP_RING=%.40s is not FILES:SIZE: use 1 to %d files of at least %dK", s, FILES,
		 VB_PCAPNG_SMALLEST >> 10);
	wrong = complaint;
}

static void before_fork(void)
{
	pthread_mutex_lock(&writing);
	vb_lock_take(&lock);
}

static void after_fork(void)
{
	vb_lock_give(&lock);
	pthread_mutex_unlock(&writing);
}

/* The child begins a capture of its own if it opens a device. */
static void in_child(void)
{
	static const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;

	used = 0;
	lost = 0;
	tried = false;
	atomic_store(&on, false);
	atomic_fetch_and(&vb_log_waits, (uint8_t)~VB_LOG_OTHER);
	vb_lock_give(&lock);
	writing = fresh; /* its owner was another thread */
	if (!file)
		return;
	vb_pcapng_forked(file);
	vb_pcapng_close(file);
	file = NULL;
}

/* A copy, since the program may change its environment, and its directory. */
static const char *absolute(const char *name)
{
	char dir[PATH], *copy;

	if (*name == '/' || !getcwd(dir, sizeof dir))
		return strdup(name);
	return asprintf(&copy, "%s/%s", dir, name) < 0 ? NULL : copy;
}

static void read_settings(void)
{
	path = secure_getenv("VERBENA_PCAP");
	if (!path || !*path) {
		path = NULL;
		return;
	}
	read_snap(secure_getenv("VERBENA_PCAP_SNAP"));
	read_ring(secure_getenv("VERBENA_PCAP_RING"));
	path = absolute(path);
	if (path)
		pthread_atfork(before_fork, after_fork, in_child);
}

void vb_capture_handle_fork(void)
{
	pthread_once(&once, read_settings);
}

const char *vb_capture_wrong(void)
{
	pthread_once(&once, read_settings);
	return wrong;
}

const char *vb_capture_path(uint32_t *of)
{
	pthread_once(&once, read_settings);
	*of = files;
	return path;
}

/* Packets and sentences are kept by these. */

static size_t append(uint64_t when, const void *frame, size_t kept, size_t len, const char *comment)
{
	size_t said = comment ? strnlen(comment, VB_PCAPNG_COMMENT) + 1 : 0;
	size_t size = (sizeof(struct record) + kept + said + 7) & ~(size_t)7;
	const struct record r = {when, (uint32_t)size, (uint32_t)kept, (uint32_t)len, (uint32_t)said};
	uint8_t *at = fill + used;

	vb_lock_assert_held(&lock);
	if (ROOM - used < size)
		return 0;
	memcpy(at, &r, sizeof r);
	memcpy(at + sizeof r, frame, kept);
	if (said) {
		memcpy(at + sizeof r + kept, comment, said - 1);
		at[sizeof r + kept + said - 1] = 0;
	}
	return size;
}

void vb_capture_keep(const void *frame, size_t kept, size_t len, const char *comment)
{
	struct timespec t;
	size_t size;

	if (!vb_capture_is_on())
		return;
	vb_lock_take(&lock);		   /* given below */
	clock_gettime(CLOCK_REALTIME, &t); /* here, so that times go up in the file */
	size = append((uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec, frame, kept, len, comment);
	used += size;
	lost += !size;
	atomic_fetch_or(&vb_log_waits, VB_LOG_OTHER);
	vb_lock_give(&lock);
}

static void keep_sentence(const char *sentence)
{
	uint8_t frame[VB_FRAME_MAX];
	size_t len = vb_frame_note(frame, sentence);

	vb_capture_keep(frame, len < snap ? len : snap, len, sentence);
}

/* Writing. */

static int put(const struct record *r)
{
	const uint8_t *bytes = (const uint8_t *)(r + 1);

	return vb_pcapng_packet(file, r->when, bytes, r->kept, r->len,
				r->said ? (const char *)bytes + r->kept : NULL);
}

static int put_lost(uint64_t n, uint64_t when)
{
	uint8_t frame[VB_FRAME_MAX];
	char text[100];
	size_t len;

	snprintf(text, sizeof text,
		 "%llu packets are missing here: they arrived faster than they could be written",
		 (unsigned long long)n);
	len = vb_frame_note(frame, text);
	return vb_pcapng_packet(file, when, frame, len, len, text);
}

static int write_buffer(const uint8_t *from, size_t n, uint64_t missing)
{
	uint64_t when = 0;
	int err = 0;

	for (size_t at = 0; at < n && !err;) {
		const struct record *r = (const struct record *)(const void *)(from + at);

		err = put(r);
		when = r->when;
		at += r->size;
	}
	if (!err && missing)
		err = put_lost(missing, when);
	return err ? err : vb_pcapng_flush(file);
}

/* Packets that other threads keep meanwhile are written too, so a thread that comes back from here finds in
 * the file what it has kept. */
static void write_all(void)
{
	uint64_t missing;
	int err = 0;
	size_t n;

	pthread_mutex_lock(&writing);
	while (!err) {
		uint8_t *full;

		vb_lock_take(&lock); /* given below */
		full = fill;
		n = used;
		missing = lost;
		if (n || missing) {
			fill = spare;
			spare = full;
			used = 0;
			lost = 0;
		} else {
			atomic_fetch_and(&vb_log_waits, (uint8_t)~VB_LOG_OTHER);
		}
		vb_lock_give(&lock);
		if (!n && !missing)
			break;
		err = file ? write_buffer(full, n, missing) : EIO;
	}
	if (err) {
		atomic_store(&on, false);
		atomic_fetch_and(&vb_log_waits, (uint8_t)~VB_LOG_OTHER);
	}
	pthread_mutex_unlock(&writing);
	if (err)
		vb_log(VB_LOG_WARN, "the capture %s stops: %s", path, strerror(err));
}

/* Threads that have not come back from their calls. */
static __attribute__((destructor)) void write_at_exit(void)
{
	if (!vb_capture_is_on() || pthread_mutex_trylock(&writing))
		return;
	pthread_mutex_unlock(&writing);
	if (!vb_lock_try(&lock))
		return;
	vb_lock_give(&lock);
	vb_msan_enter();
	write_all();
	vb_msan_leave();
}

/* Opens FILE; if another process has it, or each process has several files, one with the PID in its name. */
static int open_file(void)
{
	char application[200], with_pid[PATH + 16];
	struct vb_pcapng_cfg cfg = {.path = path,
				    .interface = "verbena",
				    .application = application,
				    .snap = snap == UINT32_MAX ? 0 : snap,
				    .alone = true,
				    .files = files,
				    .file_size = file_size};
	int err;

	snprintf(application, sizeof application, "Verbena, %s (%d)", program_invocation_short_name,
		 (int)getpid());
	snprintf(with_pid, sizeof with_pid, "%s.%d", path, (int)getpid());
	if (files)
		cfg.path = with_pid;
	err = vb_pcapng_open(&file, &cfg); /* in_child(), else it stays */
	if (err != EBUSY)
		return err;
	cfg.path = with_pid;
	return vb_pcapng_open(&file, &cfg);
}

static uint8_t *room(void)
{
	void *p =
	    mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

static int begin(void)
{
	int err;

	if (!fill) /* both stay, in a forked child too */
		fill = room();
	if (!spare)
		spare = room();
	if (!fill || !spare)
		return ENOMEM;
	err = open_file();
	if (err) {
		file = NULL;
		return err;
	}
	vb_log_also(keep_sentence, write_all);
	atomic_store(&on, true);
	return 0;
}

void vb_capture_begin(void)
{
	int err = 0, saved = errno;
	bool first;

	pthread_once(&once, read_settings);
	if (!path)
		return;
	pthread_mutex_lock(&writing);
	first = !tried;
	if (first)
		err = begin();
	tried = true;
	pthread_mutex_unlock(&writing);
	if (first && wrong)
		vb_log_complain("%s", wrong);
	if (err)
		vb_log_complain("the capture %s cannot be written: %s", path, strerror(err));
	errno = saved;
}

bool vb_capture_is_on(void)
{
	return vb_unlikely(atomic_load_explicit(&on, memory_order_relaxed));
}

size_t vb_capture_snap(void)
{
	return snap;
}
