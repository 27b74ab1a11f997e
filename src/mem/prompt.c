#include "mem/prompt.h"

enum {
	APART_FIRST = 64, /* WRITEs from one look to the next */
	APART_LATE = 4 * APART_FIRST,
	APART_MOST = 64 << 10,
	LOOKS = 4, /* in a row that make a proof */
	/* Polls for each WRITE.  Who spins on its memory takes one completion with each WRITE of its own; who
	 * polls meanwhile polls some ten times in the time that a system call takes. */
	POLLS_EACH = 4,
	/* WRITEs over the ring that make up for one that lay: a millisecond, until the bell, against some 0.3
	 * us for each. */
	ENOUGH = 1024,
};

static uint32_t get(const _Atomic uint32_t *v)
{
	return atomic_load_explicit(v, memory_order_relaxed);
}

static void put(_Atomic uint32_t *v, uint32_t n)
{
	atomic_store_explicit(v, n, memory_order_relaxed);
}

/* The proof begins anew. */
static void doubt(struct vb_prompt *p)
{
	put(&p->is, false);
	put(&p->writes, 0);
	put(&p->looks, 0);
}

void vb_prompt_begin(struct vb_prompt *p, const _Atomic uint32_t *own, const _Atomic uint32_t *awake,
		     const _Atomic uint32_t *polls)
{
	doubt(p);
	atomic_store_explicit(&p->own, own, memory_order_relaxed);
	atomic_store_explicit(&p->awake, awake, memory_order_relaxed);
	atomic_store_explicit(&p->polls, polls, memory_order_relaxed);
	put(&p->apart, APART_FIRST);
}

static void look(struct vb_prompt *p, uint32_t writes)
{
	uint32_t polls = get(atomic_load_explicit(&p->polls, memory_order_relaxed)), looks = get(&p->looks);
	bool enough = polls - get(&p->before) >= POLLS_EACH * writes;

	put(&p->before, polls);
	put(&p->writes, 0);
	looks = looks && enough ? looks + 1 : 1;
	put(&p->looks, looks);
	put(&p->is, looks > LOOKS);
}

void vb_prompt_wrote(struct vb_prompt *p, uint32_t n)
{
	uint32_t writes = get(&p->writes) + n;

	if (!vb_prompt_awake(&p->awake)) {
		doubt(p);
		return;
	}
	put(&p->writes, writes);
	if (!get(&p->is) && writes >= get(&p->apart))
		look(p, writes);
}

void vb_prompt_late(struct vb_prompt *p)
{
	uint32_t apart = 4 * get(&p->apart);

	if (!get(&p->is))
		return;
	if (get(&p->writes) >= ENOUGH)
		apart = APART_LATE;
	put(&p->apart, apart < APART_MOST ? apart : APART_MOST);
	doubt(p);
}
