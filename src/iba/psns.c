#include "iba/psns.h"

#include "iba/pkt.h"

static struct vb_psn_run *newest(struct vb_psns *s)
{
	return s->head ? &s->run[(s->head - 1) % VB_PSN_RUNS] : NULL;
}

/* Whether a packet goes on where the run ends, in every respect. */
static bool goes_on(const struct vb_psns *s, const struct vb_psn_run *r, uint32_t made, bool ends)
{
	return r && r->packets && r->each == made && r->nmade == r->n * r->each && r->ends == ends &&
	       vb_psn_add(r->psn, r->n) == s->psn && vb_psn_add(r->made, r->nmade) == s->made &&
	       r->n < VB_PSN_MASK >> 2;
}

static void note(struct vb_psns *s, uint32_t n, uint32_t made, uint32_t each, bool ends)
{
	struct vb_psn_run *r = newest(s);

	if (n == 1 && goes_on(s, r, made, ends)) {
		r->n++;
		r->nmade += made;
		return;
	}
	s->run[s->head++ % VB_PSN_RUNS] = (struct vb_psn_run){.psn = s->psn,
							      .n = n,
							      .made = s->made,
							      .nmade = made,
							      .each = n == 1 ? made : each,
							      .msn = s->msn,
							      .packets = n == 1,
							      .ends = ends};
}

uint32_t vb_psns_take(struct vb_psns *s, uint32_t psn, uint32_t n, uint32_t made, uint32_t each, bool ends)
{
	uint32_t first;
	int32_t d;

	if (!s->begun) {
		s->begun = true;
		s->psn = s->made = psn;
	}
	d = vb_psn_diff(psn, s->psn);
	if (d < 0)
		return vb_psns_find(s, psn).first;
	/* What was not seen is counted as it stands. */
	s->psn = psn;
	s->made = vb_psn_add(s->made, (uint32_t)d);
	if (n)
		note(s, n, made, each, ends);
	first = s->made;
	s->psn = vb_psn_add(psn, n);
	s->made = vb_psn_add(first, made);
	s->msn = vb_psn_add(s->msn, ends);
	return first;
}

static struct vb_psn_made in_run(const struct vb_psn_run *r, uint32_t k)
{
	bool last = k + 1 == r->n;
	struct vb_psn_made m = {.first = vb_psn_add(r->made, k * r->each)};

	m.last = vb_psn_add(last ? vb_psn_add(r->made, r->nmade) : vb_psn_add(m.first, r->each), VB_PSN_MASK);
	if (r->packets) {
		m.before = r->msn + (r->ends ? k : 0);
		m.msn = m.whole = m.before + r->ends;
	} else {
		m.before = r->msn;
		m.msn = r->msn + (last && r->ends);
		m.whole = r->msn + r->ends;
	}
	return m;
}

struct vb_psn_made vb_psns_find(const struct vb_psns *s, uint32_t psn)
{
	uint32_t n = s->head < VB_PSN_RUNS ? s->head : VB_PSN_RUNS, k, made;
	const struct vb_psn_run *r = NULL;

	for (uint32_t i = 1; i <= n; i++) {
		r = &s->run[(s->head - i) % VB_PSN_RUNS];
		k = (psn - r->psn) & VB_PSN_MASK;
		if (k < r->n)
			return in_run(r, k);
	}
	if (!s->begun)
		made = psn;
	else if (r && vb_psn_diff(psn, r->psn) < 0)
		made = vb_psn_add(r->made, (psn - r->psn) & VB_PSN_MASK);
	else
		made = vb_psn_add(s->made, (psn - s->psn) & VB_PSN_MASK);
	return (struct vb_psn_made){made, made, s->msn, s->msn, s->msn};
}
