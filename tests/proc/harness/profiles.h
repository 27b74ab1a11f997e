/* The rows of the table of profiles, one after another. */
#ifndef VB_TESTS_PROFILES_H
#define VB_TESTS_PROFILES_H

#include "iba/profile.h"
#include "kit.h"

/* The row of the i-th name of vb_profile_names(), NULL behind the last. */
static inline const struct vb_profile *kit_profile(size_t i)
{
	const struct vb_profile *row;
	const char *at = vb_profile_names();
	char name[64];

	for (; i && at; i--) {
		at = strchr(at, ',');
		at = at ? at + 2 : NULL;
	}
	if (!at)
		return NULL;
	snprintf(name, sizeof name, "%.*s", (int)strcspn(at, ","), at);
	row = vb_profile_find(name);
	CHECK(row, "%s", name);
	return row;
}

#endif
