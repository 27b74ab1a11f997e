/* Counters that stay open: a program reads the file again from its beginning, as of sysfs, and finds new
 * numbers. */
#ifndef VB_TOOLS_VIEW_LIVE_H
#define VB_TOOLS_VIEW_LIVE_H

#include <stdbool.h>

/* The descriptor is that file's.  false: no room. */
bool vb_view_live_enter(int fd, const char *path);

#endif
