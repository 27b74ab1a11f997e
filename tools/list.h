/* `verbena list`, also for those who have to choose a process. */
#ifndef VB_TOOLS_LIST_H
#define VB_TOOLS_LIST_H

#include <stdio.h>

#include "peek.h"

/* A table of these processes. */
void vb_list_print(FILE *f, const struct peek *all, size_t n);
/* That there is none. */
void vb_list_say_none(void);

#endif
