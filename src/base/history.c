#include "base/history.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#include "base/text.h"
#include "base/told.h"

enum { PLACES = 32 };

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct vb_lock lock;		   /* guards what follows, and the entries; a leaf */
static _Atomic(struct vb_history *) place; /* one of these: */
static struct vb_history *places[PLACES];
static unsigned nplaces;
static uint64_t hashes[VB_HISTORY]; /* of name and text, so that the entries are not read again */
static uint64_t lasts[VB_HISTORY];

/* In a child of fork(): the place is not mapped there, and the lock's holder may not exist. */
static void forked(void)
{
	atomic_store(&place, NULL);
	nplaces = 0;
	vb_lock_give(&lock);
}

static void init(void)
{
	pthread_atfork(NULL, NULL, forked);
}

void vb_history_handle_fork(void)
{
	pthread_once(&once, init);
}

void vb_history_keep(struct vb_history *h)
{
	vb_history_handle_fork();
	vb_lock_take(&lock);
	if (nplaces < PLACES)
		places[nplaces++] = h;
	if (!atomic_load(&place)) {
		memset(hashes, 0, sizeof hashes);
		memset(lasts, 0, sizeof lasts);
		atomic_store(&place, h);
	}
	vb_lock_give(&lock);
}

bool vb_history_kept(void)
{
	return atomic_load_explicit(&place, memory_order_relaxed) != NULL;
}

static void copy_text(char *to, size_t size, const char *from)
{
	size_t n = strnlen(from, size - 1);

	memcpy(to, from, n);
	memset(to + n, 0, size - n);
}

/* The entry of this sentence, else the one to give up.  *again: it is the former. */
static uint32_t choose(const struct vb_history *h, uint64_t hash, bool *again)
{
	uint32_t used = atomic_load_explicit(&h->used, memory_order_relaxed), oldest = 0;

	vb_lock_assert_held(&lock);
	*again = true;
	for (uint32_t i = 0; i < used; i++) {
		if (hashes[i] == hash)
			return i;
		if (lasts[i] < lasts[oldest])
			oldest = i;
	}
	*again = false;
	return used < VB_HISTORY ? used : oldest;
}

enum { WORDS = sizeof(struct vb_history_line) / sizeof(uint64_t) };
_Static_assert(sizeof(struct vb_history_line) % sizeof(uint64_t) == 0, "whole words");

static void write_entry(struct vb_history *h, uint32_t i, struct vb_history_line *l, bool again)
{
	struct vb_history_entry *e = &h->entries[i];

	vb_lock_assert_held(&lock);
	if (again) {
		l->count = e->line.count + 1;
		l->first = e->line.first;
	}
	vb_told_put(&e->seq, &e->line, l, WORDS);
	if (i >= atomic_load_explicit(&h->used, memory_order_relaxed))
		atomic_store_explicit(&h->used, i + 1, memory_order_release);
	atomic_fetch_add_explicit(&h->said, 1, memory_order_relaxed);
}

/* What was kept there is kept here from now on. */
static void move(struct vb_history *to, const struct vb_history *from)
{
	uint32_t used = atomic_load_explicit(&from->used, memory_order_relaxed);

	vb_lock_assert_held(&lock);
	for (uint32_t i = 0; i < used; i++) {
		struct vb_history_line l = from->entries[i].line;

		write_entry(to, i, &l, false);
	}
	atomic_store_explicit(&to->said, atomic_load_explicit(&from->said, memory_order_relaxed),
			      memory_order_relaxed);
}

void vb_history_stop(struct vb_history *h)
{
	unsigned left = 0;

	vb_lock_take(&lock);
	for (unsigned i = 0; i < nplaces; i++)
		if (places[i] != h)
			places[left++] = places[i];
	nplaces = left;
	if (atomic_load(&place) == h) {
		if (left)
			move(places[0], h);
		atomic_store(&place, left ? places[0] : NULL);
	}
	vb_lock_give(&lock);
}

void vb_history_note(const char *name, int err, const char *text)
{
	struct vb_history_line l = {.count = 1, .err = err};
	uint64_t hash = vb_text_hash(name, text);
	struct vb_history *h;
	struct timespec t;
	bool again;
	uint32_t i;

	if (!vb_history_kept())
		return;
	clock_gettime(CLOCK_REALTIME, &t);
	l.first = l.last = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
	copy_text(l.name, sizeof l.name, name);
	copy_text(l.text, sizeof l.text, text);
	vb_lock_take(&lock); /* given below */
	h = atomic_load(&place);
	if (h) {
		i = choose(h, hash, &again);
		hashes[i] = hash;
		lasts[i] = l.last;
		write_entry(h, i, &l, again);
	}
	vb_lock_give(&lock);
}

bool vb_history_read(const struct vb_history *h, uint32_t i, struct vb_history_line *out)
{
	const struct vb_history_entry *e = &h->entries[i];

	if (i >= VB_HISTORY || i >= atomic_load_explicit(&h->used, memory_order_acquire) ||
	    !vb_told_get(&e->seq, &e->line, out, WORDS))
		return false;
	out->name[VB_HISTORY_NAME - 1] = 0;
	out->text[VB_HISTORY_TEXT - 1] = 0;
	return true;
}
