/* Files of the program's own, at numbers that were the library's: what they are, and that they stay as they
 * were. */
#ifndef VB_TESTS_MINE_H
#define VB_TESTS_MINE_H

#include "kit.h"

enum { KIT_MINE_MOST = 64, KIT_MINE_KINDS = 4 };

/* Opens a file at the lowest number that is free, which it returns.  kind: 0 a file, 1 an eventfd, 2 an epoll
 * set with a member, 3 a socket; what belongs to these is out of the way. */
int kit_mine_put(int kind);
/* Opens one at that number, in one step: a number that is free for a moment may become the library's, for a
 * moment too. */
void kit_mine_put_at(int number, int kind);
/* All that was put there is there, and nobody has read it, written to it or joined it. */
void kit_mine_check(const char *where);
/* Those that were put so far are checked no more. */
void kit_mine_forget(void);

/* What /proc says that a descriptor is, "" if there is none. */
void kit_fd_kind(int fd, char *to, size_t size);
/* The descriptor of that kind which is in none of the two numbers, -1: none. */
int kit_fd_find(const char *kind, int not1, int not2);

#endif
