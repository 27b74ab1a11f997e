/* What checkers say, and how they name a request. */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/tally.h"
#include "base/text.h"
#include "check/check.h"
#include "iba/names.h"

enum {
	PLACES = 64,   /* of the program that are told */
	SAID_MOST = 5, /* how often each of them is */
};

/* How often a place of the program was told of a mistake. */
static struct {
	const char *kind;
	const void *where;
	unsigned times;
} told[PLACES]; /* guarded by vb_check_lock */

/* The program's code at a return address.  The call is in front of it. */
static void add_place(struct vb_text *t, const void *where)
{
	const uint8_t *at = (const uint8_t *)where - 1;
	const char *file;
	Dl_info in;

	if (!where)
		return;
	if (!dladdr(at, &in) || !in.dli_fname) {
		vb_text_add(t, ", posted at address %p", where);
		return;
	}
	file = strrchr(in.dli_fname, '/');
	file = file ? file + 1 : in.dli_fname;
	if (in.dli_sname)
		vb_text_add(t, ", posted in %s() (%s+0x%zx)", in.dli_sname, file,
			    (size_t)(at - (const uint8_t *)in.dli_fbase));
	else
		vb_text_add(t, ", posted at %s+0x%zx", file, (size_t)(at - (const uint8_t *)in.dli_fbase));
}

const char *vb_check_name(char *text, size_t size, const struct vb_check_request *r)
{
	const struct vb_check_queue *q = r->queue;
	const char *name = q->kind == VB_CHECK_SENDS ? vb_name_wr_opcode(r->opcode) : NULL;
	struct vb_text t = {text, size};

	*text = 0;
	vb_text_add(&t, "the %s of wr_id %llu (0x%llx) on %s 0x%06x",
		    q->kind != VB_CHECK_SENDS ? "receive"
		    : name		      ? name
					      : "request",
		    (unsigned long long)r->wr_id, (unsigned long long)r->wr_id,
		    q->kind == VB_CHECK_SHARED ? "SRQ" : "QP", q->number);
	add_place(&t, r->where);
	return text;
}

bool vb_check_has_word(const char *word)
{
	const char *s = secure_getenv("VERBENA_CHECK");
	size_t n = strlen(word);

	for (; s && *s; s += strcspn(s, ","), s += *s == ',')
		if (strcspn(s, ",") == n && !strncmp(s, word, n))
			return true;
	return false;
}

void vb_check_say(const char *kind, const char *fmt, ...)
{
	char text[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	vb_log_complain_reason(kind, "%s", text);
}

bool vb_check_is_news(const char *kind, const void *where)
{
	unsigned at = PLACES;

	vb_lock_assert_held(&vb_check_lock);
	for (unsigned i = 0; i < PLACES && at == PLACES; i++)
		if (!told[i].kind || (told[i].kind == kind && told[i].where == where))
			at = i;
	if (at == PLACES || told[at].times == SAID_MOST) {
		vb_tally_add(VB_LOG_WARN, kind);
		return false;
	}
	told[at].kind = kind;
	told[at].where = where;
	told[at].times++;
	return true;
}

static void say_unset(const struct vb_check_request *r, size_t byte, const char *of)
{
	char name[256];

	if (!vb_check_is_news("check-undefined", r->where))
		return;
	vb_check_say("check-undefined",
		     "the program sends byte %zu of %s without having set it: %s. Set all bytes before the "
		     "post, or send fewer",
		     byte, of, vb_check_name(name, sizeof(name), r));
}

void vb_check_say_unset(const struct vb_check_request *r, uint32_t piece, size_t byte)
{
	char of[32];

	snprintf(of, sizeof(of), "piece %u", r->piece[piece].number);
	say_unset(r, byte, of);
}

void vb_check_say_unset_inline(const struct vb_check_request *r, size_t byte)
{
	say_unset(r, byte, "its inline data");
}
