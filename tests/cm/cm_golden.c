#include "cm_golden.h"

#include <string.h>

#define LENGTH(a) (sizeof(a) / sizeof((a)[0]))

struct golden golden[] = {
#define MAD(story, by, icrc, head, mad) {story, by, icrc, head, mad, 0, {0}, {0}, {0}},
#define TOLD(story, end, events)
#define ATTR(story, end, ...)
#include "golden/mads.h"
#undef MAD
#undef TOLD
};
const size_t golden_n = LENGTH(golden);

const struct golden_told golden_told[] = {
#define MAD(story, by, icrc, head, mad)
#define TOLD(story, end, events) {story, end, events},
#include "golden/mads.h"
#undef TOLD
#undef ATTR
};
const size_t golden_told_n = LENGTH(golden_told);

const struct golden_attr golden_attrs[] = {
#define TOLD(story, end, events)
#define ATTR(story, end, ...) {story, end, __VA_ARGS__},
#include "golden/mads.h"
};
const size_t golden_attrs_n = LENGTH(golden_attrs);

static uint8_t digit(char c)
{
	return (uint8_t)(c <= '9' ? c - '0' : c - 'a' + 10);
}

static size_t bytes_of(uint8_t *to, size_t room, const char *hex)
{
	size_t n = strlen(hex) / 2;

	assert_true(n <= room);
	for (size_t i = 0; i < n; i++)
		to[i] = (uint8_t)(digit(hex[2 * i]) << 4 | digit(hex[2 * i + 1]));
	return n;
}

int golden_read(void **state)
{
	(void)state;
	for (size_t i = 0; i < golden_n; i++) {
		struct golden *g = &golden[i];

		g->head_len = bytes_of(g->head, sizeof(g->head), g->head_hex);
		bytes_of(g->mad, sizeof(g->mad), g->mad_hex);
		assert_int_equal(vb_cm_msg_get(g->mad, &g->m), 0);
	}
	return 0;
}

const char *golden_kind(const struct golden *g)
{
	return vb_cm_kind_name(g->m.kind, NULL);
}

size_t golden_ip_len(const struct golden *g)
{
	return g->head[0] >> 4 == 4 ? 20 : 40;
}

static struct vb_gid gid_at(const struct golden *g, size_t v4, size_t v6)
{
	uint8_t gid[16] = {[10] = 0xff, 0xff};

	if (golden_ip_len(g) == 20)
		memcpy(gid + 12, g->head + v4, 4);
	else
		memcpy(gid, g->head + v6, 16);
	return vb_gid_of(gid);
}

struct vb_gid golden_from(const struct golden *g)
{
	return gid_at(g, 12, 8);
}

struct vb_gid golden_to(const struct golden *g)
{
	return gid_at(g, 16, 24);
}
