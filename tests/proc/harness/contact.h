/* What tests of contact share: names that anybody can bind, and hellos said by hand. */
#ifndef VB_TESTS_CONTACT_H
#define VB_TESTS_CONTACT_H

#include <sys/socket.h>
#include <sys/un.h>

#include "host/hello.h"
#include "host/segment.h"
#include "kit.h"

/* Fills in the abstract name; its length. */
socklen_t kit_name_address(struct sockaddr_un *sa, const char *name);
/* Binds an abstract name, and listens there unless it is to be deaf.  -1: it is taken. */
int kit_name_bind(const char *name, bool deaf);
/* Binds an adapter's number, as kit_name_bind() does a name. */
int kit_number_bind(uint32_t number, bool deaf);
int kit_number_connect(uint32_t number);

/* A hello as this version says it, but for what a test changes; without a descriptor. */
struct hello kit_hello(void);
/* Hints that go with it, all right: a descriptor. */
int kit_hints(void);
/* A socket whose last close() waits for so many seconds, since nobody reads at its far end. */
int kit_lingering(int seconds);
/* Sends `len` bytes of it with as many descriptors, and closes these. */
void kit_hello_send(int s, const void *h, size_t len, const int *fds, int n);

#endif
