#include "base/log.h"

#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/history.h"
#include "base/lock.h"
#include "base/log_line.h"
#include "base/log_self.h"
#include "base/log_out.h"
#include "base/msan.h"
#include "base/tally.h"
#include "base/text.h"
#include "base/trace.h"

enum { TEXT = VB_LOG_TEXT, RECENT = 64, NAMES = 64 };
#define AGAIN (60 * VB_SEC) /* from one refusal to the next of its kind that is written */

/* Read once from the environment; constant afterwards. */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static enum vb_log_place place;
static enum vb_log_level limit;
static bool json;
static bool unset;			       /* nobody said where lines go, or that there is to be no log */
static const char *wrong_level, *wrong_format; /* values of the settings */

static _Atomic(void (*)(const char *)) ear; /* vb_log_also() */

/* What was refused lately, by a hash of call and sentence. */
static struct vb_lock recent_lock;
static struct {
	uint64_t hash, when;
} recent[RECENT]; /* guarded by recent_lock */

/* The log has no place to say this. */
static void complain(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void complain(const char *fmt, ...)
{
	struct vb_log_said s;
	va_list ap;

	vb_log_said_begin(&s, VB_LOG_WARN, "", 0);
	va_start(ap, fmt);
	vsnprintf(s.text, sizeof s.text, fmt, ap);
	va_end(ap);
	vb_tally_add(s.level, s.kind);
	vb_log_keep(VB_LOG_STDERR, &s);
}

static enum vb_log_level parse_level(const char *s)
{
	static const char *const names[] = {"error", "warn", "info", "debug"};

	if (!s || !*s)
		return VB_LOG_WARN;
	for (int i = 0; i < 4; i++)
		if (!strcmp(s, names[i]))
			return (enum vb_log_level)i;
	wrong_level = s;
	return VB_LOG_WARN;
}

static bool is_json(const char *s)
{
	if (s && *s && strcmp(s, "text") && strcmp(s, "json"))
		wrong_format = s;
	return s && !strcmp(s, "json");
}

/* no-color.org: what NO_COLOR is does not matter. */
static void read_look(void)
{
	const char *term = getenv("TERM"), *none = getenv("NO_COLOR");

	json = is_json(secure_getenv("VERBENA_LOG_FORMAT"));
	vb_log_set_look(json, term && strcmp(term, "dumb"), !none || !*none);
}

static _Atomic bool refused; /* vb_log_has_refused() */

bool vb_log_has_refused(void)
{
	return atomic_load_explicit(&refused, memory_order_relaxed);
}

/* In a child of fork(): the lock's holder may not exist any more. */
static void forked(void)
{
	atomic_store_explicit(&refused, false, memory_order_relaxed);
	vb_lock_give(&recent_lock);
	vb_log_out_forked();
}

void vb_log_handle_fork(void)
{
	(void)vb_log_wanted(VB_LOG_ERROR); /* read_settings() */
}

static void read_settings(void)
{
	char path[4096];
	const char *to = secure_getenv("VERBENA_LOG");
	size_t n = 0;

	pthread_atfork(NULL, NULL, forked); /* a capture hears what is said, too, where there is no log */
	unset = !to || !*to;
	limit = parse_level(secure_getenv("VERBENA_LOG_LEVEL"));
	read_look();
	vb_log_self_rename();
	if (unset || !strcmp(to, "off"))
		return;
	vb_log_self_prepare();
	if (!strcmp(to, "stderr")) {
		place = VB_LOG_STDERR;
		return;
	}
	/* The program may change its directory later. */
	if (*to != '/') {
		if (!getcwd(path, sizeof path - 1)) {
			complain("VERBENA_LOG=%s is ignored: the working directory has no path: %s", to,
				 strerror(errno));
			return;
		}
		n = strlen(path);
		path[n++] = '/';
	}
	if (n + strlen(to) >= sizeof path) {
		complain("VERBENA_LOG is ignored: its path has more than %zu bytes", sizeof path - 1);
		return;
	}
	strcpy(path + n, to);
	vb_log_set_path(path);
	place = VB_LOG_FILE;
}

static bool shown(enum vb_log_level level)
{
	int err = errno;

	pthread_once(&once, read_settings);
	errno = err;
	return place != VB_LOG_NOWHERE && level <= limit;
}

/* The history, who counts, or who listens. */
static bool somebody_remembers(void)
{
	return vb_history_kept() || vb_tally_kept() || atomic_load_explicit(&ear, memory_order_relaxed);
}

/* They want what tells of failures, the log whatever it was asked for. */
static bool remembered(enum vb_log_level level)
{
	return level <= VB_LOG_WARN && somebody_remembers();
}

static void hear(const char *sentence)
{
	void (*heard)(const char *) = atomic_load(&ear);

	if (heard)
		heard(sentence);
}

void vb_log_also(void (*heard)(const char *sentence), void (*written)(void))
{
	vb_log_set_other(written);
	atomic_store(&ear, heard);
}

bool vb_log_wanted(enum vb_log_level level)
{
	return remembered(level) || shown(level);
}

/* Whatever is said comes by here, once it has been found to be wanted. `remember`: as a failure; `news`: it
 * is not only counted. */
static void pass(const struct vb_log_said *s, bool remember, bool news)
{
	if (s->level <= VB_LOG_WARN)
		VB_TRACE_ERROR((const char *)s->kind, s->err, (const char *)s->text);
	vb_tally_add(s->level, s->kind);
	if (remember)
		vb_history_note(s->kind, s->err, s->text);
	if (!news)
		return;
	if (remember)
		hear(s->text);
	if (shown(s->level))
		vb_log_keep(place, s);
}

static void say(enum vb_log_level level, bool remember, const char *reason, const char *facts,
		const char *fmt, va_list ap) __attribute__((format(printf, 5, 0)));
static void say(enum vb_log_level level, bool remember, const char *reason, const char *facts,
		const char *fmt, va_list ap)
{
	int err = errno;
	struct vb_log_said s;

	vb_msan_enter();
	vb_log_said_begin(&s, level, reason, 0);
	vsnprintf(s.text, sizeof s.text, fmt, ap);
	if (strlen(facts) < sizeof s.facts)
		strcpy(s.facts, facts);
	pass(&s, remember, true);
	vb_msan_leave();
	errno = err;
}

void vb_log(enum vb_log_level level, const char *fmt, ...)
{
	va_list ap;

	if (!vb_log_wanted(level))
		return;
	va_start(ap, fmt);
	say(level, remembered(level), "", "", fmt, ap);
	va_end(ap);
}

static void complain_of(const char *name, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
static void complain_of(const char *name, const char *fmt, va_list ap)
{
	struct vb_log_said s;

	vb_msan_enter();
	vb_log_said_begin(&s, VB_LOG_WARN, name, 0);
	vsnprintf(s.text, sizeof s.text, fmt, ap);
	if (vb_log_wanted(VB_LOG_WARN)) /* this reads the settings, too */
		pass(&s, remembered(VB_LOG_WARN), true);
	if (unset && vb_log_stderr_is_meant())
		vb_log_keep(VB_LOG_STDERR, &s);
	vb_msan_leave();
}

void vb_log_complain(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	complain_of("", fmt, ap);
	va_end(ap);
}

void vb_log_complain_reason(const char *name, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	complain_of(name, fmt, ap);
	va_end(ap);
}

void vb_log_check(void)
{
	bool written = shown(VB_LOG_ERROR);

	if (wrong_level)
		vb_log_complain("VERBENA_LOG_LEVEL=%s is not one of error, warn, info, debug; warn is used",
				wrong_level);
	if (wrong_format)
		vb_log_complain("VERBENA_LOG_FORMAT=%s is not text or json; text is used", wrong_format);
	if (written && place == VB_LOG_FILE)
		vb_log_try_path();
}

void vb_log_note(const char *fmt, ...)
{
	va_list ap;

	if (!somebody_remembers() && !shown(VB_LOG_INFO))
		return;
	va_start(ap, fmt);
	say(VB_LOG_INFO, somebody_remembers(), "", "", fmt, ap);
	va_end(ap);
}

void vb_log_reason(const char *name, const char *fmt, ...)
{
	va_list ap;

	if (!vb_log_wanted(VB_LOG_WARN))
		return;
	va_start(ap, fmt);
	say(VB_LOG_WARN, somebody_remembers(), name, "", fmt, ap);
	va_end(ap);
}

void vb_log_reason_facts(const char *name, const char *facts, const char *fmt, ...)
{
	va_list ap;

	if (!vb_log_wanted(VB_LOG_WARN))
		return;
	va_start(ap, fmt);
	say(VB_LOG_WARN, somebody_remembers(), name, facts, fmt, ap);
	va_end(ap);
}

bool vb_log_wants_facts(void)
{
	return shown(VB_LOG_WARN) && json;
}

/* Whether this was not said within the last minute; remembers it. */
static bool is_news(uint64_t hash)
{
	uint64_t now = vb_now();
	unsigned oldest = 0;
	bool news = true;

	vb_lock_take(&recent_lock); /* given below */
	for (unsigned i = 0; i < RECENT; i++) {
		if (recent[i].hash == hash && recent[i].when) {
			news = now - recent[i].when >= AGAIN;
			oldest = i;
			break;
		}
		if (recent[i].when < recent[oldest].when)
			oldest = i;
	}
	if (news) {
		recent[oldest].hash = hash;
		recent[oldest].when = now;
	}
	vb_lock_give(&recent_lock);
	return news;
}

/* Of which kind a refusal is: its call and its sentence without amounts, decimal numbers that are words of
 * their own.  What is part of a word, an address or a hexadecimal number names something. */
static uint64_t kind_of(const char *call, const char *sentence)
{
	char kind[TEXT], *to = kind, before = ' ';

	for (const char *s = sentence; *s; before = s[-1]) {
		size_t n =
		    isalnum((unsigned char)before) || strchr("_.:", before) ? 0 : strspn(s, "0123456789");

		if (n && !isalnum((unsigned char)s[n]) && s[n] != '_' &&
		    !(s[n] && strchr(".:", s[n]) && isalnum((unsigned char)s[n + 1])))
			s += n;
		else
			*to++ = *s++;
	}
	*to = 0;
	return vb_text_hash(call, kind);
}

static __thread const char *outermost; /* the program's call, NULL: vb_refuse() is told it */

const char *vb_call_begin(const char *name)
{
	const char *before = outermost;

	if (!before)
		outermost = name;
	return before;
}

void vb_call_end(const char *before)
{
	outermost = before;
}

const char *vb_call_name(void)
{
	return outermost;
}

/* What the call is about: without the library's prefix, and without _ex. */
static size_t stem(const char **name)
{
	const char *from = strchr(*name, '_');
	size_t len;

	if (from)
		*name = from + 1;
	len = strlen(*name);
	return len > 3 && !strcmp(*name + len - 3, "_ex") ? len - 3 : len;
}

/* Whether the outermost call's name says all that this one's does. */
static bool says_it(const char *outer, const char *call)
{
	const char *a = outer, *b = call;
	size_t len = stem(&a);

	return (stem(&b) == len && !strncmp(a, b, len)) ||
	       (a - outer == b - call && !strncmp(outer, call, (size_t)(a - outer)));
}

/* In whose name a refusal is said. */
static const char *named(const char *call, char *room, size_t size)
{
	struct vb_text t = {room, size};

	if (!outermost)
		return call;
	if (says_it(outermost, call))
		return outermost;
	vb_text_add(&t, "%s: %s", outermost, call);
	return room;
}

static void refuse(int err, bool busy, const char *call, const char *fmt, va_list ap)
    __attribute__((format(printf, 4, 0)));
static void refuse(int err, bool busy, const char *call, const char *fmt, va_list ap)
{
	char sentence[TEXT], names[NAMES];
	struct vb_log_said s;
	struct vb_text t = {s.text, sizeof s.text};
	const char *name = strerrorname_np(err);
	uint64_t kind;
	bool news;

	if (!busy)
		atomic_store_explicit(&refused, true, memory_order_relaxed);
	if (!vb_log_wanted(VB_LOG_WARN))
		return;
	vb_msan_enter();
	vsnprintf(sentence, sizeof sentence, fmt, ap);
	call = named(call, names, sizeof names);
	vb_log_said_begin(&s, VB_LOG_WARN, outermost ? outermost : call, err);
	vb_text_add(&t, "%s: %s (%s)", call, sentence, name ? name : "?");
	kind = kind_of(call, sentence);
	if (busy && (outermost || !is_news(vb_text_hash("", "busy"))))
		kind ^= s.level = VB_LOG_INFO; /* it may be a warning later */
	news = (shown(VB_LOG_WARN) || atomic_load(&ear)) && is_news(kind);
	pass(&s, true, news);
	vb_msan_leave();
}

int vb_refuse(int err, const char *call, const char *fmt, ...)
{
	int saved = errno;
	va_list ap;

	va_start(ap, fmt);
	refuse(err, false, call, fmt, ap);
	va_end(ap);
	errno = saved;
	return err;
}

int vb_refuse_busy(const char *call, const char *fmt, ...)
{
	int saved = errno;
	va_list ap;

	va_start(ap, fmt);
	refuse(EBUSY, true, call, fmt, ap);
	va_end(ap);
	errno = saved;
	return EBUSY;
}

int vb_decline(int err, const char *call, const char *fmt, ...)
{
	char sentence[TEXT], names[NAMES];
	struct vb_log_said s;
	struct vb_text t = {s.text, sizeof s.text};
	va_list ap;

	if (shown(VB_LOG_DEBUG)) {
		call = named(call, names, sizeof names);
		va_start(ap, fmt);
		vsnprintf(sentence, sizeof sentence, fmt, ap);
		va_end(ap);
		vb_log_said_begin(&s, VB_LOG_DEBUG, call, err);
		vb_text_add(&t, "%s: %s (%s)", call, sentence, strerrorname_np(err));
		pass(&s, false, is_news(kind_of(call, sentence)));
	}
	errno = err;
	return err;
}
