/* Functions that may be in the process, such as a sanitizer's. */
#ifndef VB_BASE_SYMBOL_H
#define VB_BASE_SYMBOL_H

#include <stdbool.h>

/* Finds a function of that name, into a pointer to a function of any type; false: there is none, and it is
 * NULL.  The program's dlerror() tells nothing of that. */
bool vb_symbol_find(const char *name, void *function);
/* The same in a library that dlopen() has found. */
bool vb_symbol_find_in(void *library, const char *name, void *function);

#endif
