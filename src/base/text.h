/* A sentence put together in a buffer of fixed size; what does not fit is cut. */
#ifndef VB_BASE_TEXT_H
#define VB_BASE_TEXT_H

#include <stddef.h>
#include <stdint.h>

struct vb_text {
	char *at;    /* where the next piece goes; terminated */
	size_t left; /* bytes there, the terminator's included */
};

void vb_text_add(struct vb_text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Bytes of the character of UTF-8 at `s`; 0: it is no character, or one that controls a terminal. */
size_t vb_text_character(const char *s);

/* Copies what can be printed, and writes each other byte as \xNN.  What does not fit is cut, between
 * characters. Terminates, and returns the length; `size` is not 0. */
size_t vb_text_escape(char *to, size_t size, const char *from);

/* Tells what was said from what else was: a hash of "name:sentence". */
uint64_t vb_text_hash(const char *name, const char *sentence);

/* How many characters have to be inserted, removed or changed to turn the first `len` bytes of a into b.  A
 * word of more than VB_TEXT_WORD bytes is further from everything than any other is. */
enum { VB_TEXT_WORD = 32 };
unsigned vb_text_distance(const char *a, size_t len, const char *b);

#endif
