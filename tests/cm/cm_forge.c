#include "cm_forge.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "cm_golden.h"

void forge_begin(struct forge *f, uint64_t seed)
{
	*f = (struct forge){.chance = seed * 0x9e3779b97f4a7c15ull + 88172645463325252ull};
}

uint64_t forge_random(struct forge *f)
{
	f->chance ^= f->chance << 13;
	f->chance ^= f->chance >> 7;
	f->chance ^= f->chance << 17;
	return f->chance;
}

uint32_t forge_pick(struct forge *f, uint32_t below)
{
	return (uint32_t)((forge_random(f) >> 16) % below);
}

static uint64_t low_bits(unsigned n)
{
	return UINT64_MAX >> (64 - n);
}

static uint64_t load(const void *at, size_t size)
{
	uint64_t v = 0;

	memcpy(&v, at, size); /* little-endian, as all machines that it runs on */
	return v;
}

static void know(struct forge *f, uint64_t number)
{
	f->known[f->n_known++ % FORGE_KNOWN] = number;
}

void forge_note(struct forge *f, const uint8_t mad[VB_MAD_LEN])
{
	const struct vb_cm_field *row;
	struct vb_cm_msg m;
	size_t n;

	memcpy(f->kept[f->n_kept++ % FORGE_KEPT], mad, VB_MAD_LEN);
	assert_int_equal(vb_cm_msg_get(mad, &m), 0);
	row = vb_cm_fields(m.kind, &n);
	know(f, m.tid);
	for (size_t i = 0; i < n; i++)
		if (row[i].value_bits >= 24)
			know(f, load((const uint8_t *)&m + row[i].at, row[i].size));
}

static uint64_t number(struct forge *f)
{
	switch (forge_pick(f, 8)) {
	case 0:
		return 0;
	case 1:
		return UINT64_MAX;
	case 2:
		return forge_random(f);
	case 3:
		return forge_pick(f, 4);
	default:
		return f->n_known
			   ? f->known[forge_pick(f, f->n_known < FORGE_KNOWN ? f->n_known : FORGE_KNOWN)]
			   : 1;
	}
}

static void put_number(struct forge *f, struct vb_cm_msg *m, const struct vb_cm_field *row)
{
	uint8_t *at = (uint8_t *)m + row->at;
	uint64_t v = number(f);

	if (row->bits > 64) {
		at[forge_pick(f, row->size)] ^= (uint8_t)v;
		return;
	}
	v &= low_bits(row->value_bits);
	memcpy(at, &v, row->size);
}

/* Other numbers in some of a message's fields, or in all of them. */
static void renumber(struct forge *f, uint8_t mad[VB_MAD_LEN], bool all)
{
	uint8_t private[VB_CM_PRIVATE_MAX];
	const struct vb_cm_field *row;
	struct vb_cm_msg m;
	size_t n;

	if (vb_cm_msg_get(mad, &m))
		return;
	memcpy(private, m.private_data.at, m.private_data.len);
	m.private_data.at = private;
	row = vb_cm_fields(m.kind, &n);
	if (all) {
		for (size_t i = 0; i < n; i++)
			put_number(f, &m, &row[i]);
	} else {
		/* The first ones, which say whose it is, more often. */
		for (unsigned left = 1 + forge_pick(f, 3); left--;)
			put_number(f, &m, &row[forge_pick(f, forge_pick(f, 2) ? (uint32_t)n : 2)]);
	}
	if (!forge_pick(f, 4))
		m.tid = number(f);
	if (!forge_pick(f, 4))
	private[forge_pick(f, VB_CM_PRIVATE_MAX)] ^= (uint8_t)forge_random(f);
	vb_cm_msg_put(mad, &m);
}

static void golden_one(struct forge *f, uint8_t mad[VB_MAD_LEN])
{
	memcpy(mad, golden[forge_pick(f, (uint32_t)golden_n)].mad, VB_MAD_LEN);
}

static void random_one(struct forge *f, uint8_t mad[VB_MAD_LEN])
{
	static const uint8_t head[] = {VB_MAD_BASE_VERSION, VB_MAD_CLASS_CM, VB_MAD_CM_VERSION, VB_MAD_SEND};

	for (size_t i = 0; i < VB_MAD_LEN; i++)
		mad[i] = (uint8_t)forge_random(f);
	if (!forge_pick(f, 8))
		return;
	memcpy(mad, head, sizeof(head));
	mad[16] = 0;
	mad[17] = (uint8_t)(VB_CM_REQ + forge_pick(f, VB_CM_APR - VB_CM_REQ + 2));
}

static void check(const uint8_t mad[VB_MAD_LEN])
{
	struct vb_cm_msg m, again;
	uint8_t back[VB_MAD_LEN];
	int err = vb_cm_msg_get(mad, &m);

	assert_true(!err || err == EPROTO);
	if (err)
		return;
	vb_cm_msg_put(back, &m);
	assert_int_equal(vb_cm_msg_get(back, &again), 0);
	assert_memory_equal(&m, &again, offsetof(struct vb_cm_msg, private_data));
	assert_int_equal(m.private_data.len, again.private_data.len);
	assert_memory_equal(m.private_data.at, again.private_data.at, m.private_data.len);
}

void forge_mad(struct forge *f, uint8_t mad[VB_MAD_LEN])
{
	unsigned of = f->n_kept < FORGE_KEPT ? f->n_kept : FORGE_KEPT, way = forge_pick(f, 8);

	if (way && of)
		memcpy(mad, f->kept[forge_pick(f, of)], VB_MAD_LEN);
	else if (forge_pick(f, 2))
		golden_one(f, mad);
	else
		random_one(f, mad);
	switch (way) {
	case 1: /* as it was said */
		break;
	case 2: /* another kind with the same numbers */
		mad[17] = (uint8_t)(VB_CM_REQ + forge_pick(f, VB_CM_APR - VB_CM_REQ + 2));
		break;
	case 3:
		renumber(f, mad, true);
		break;
	case 4:
		mad[17] = (uint8_t)(VB_CM_REQ + forge_pick(f, VB_CM_APR - VB_CM_REQ + 1));
		renumber(f, mad, false);
		break;
	default:
		renumber(f, mad, false);
		break;
	}
	for (unsigned bits = forge_pick(f, 4) ? 0 : 1 + forge_pick(f, 3); bits--;)
		mad[forge_pick(f, 2) ? 16 + forge_pick(f, 64) : forge_pick(f, VB_MAD_LEN)] ^=
		    (uint8_t)(1u << forge_pick(f, 8));
	check(mad);
}
