/* The device, opened once for all tests of a program: set-up and tear-down of a group of cmocka's.  The names
 * are short, since nearly every line of such a test has them. */
#ifndef VB_TESTS_DEVICE_H
#define VB_TESTS_DEVICE_H

#include <infiniband/verbs.h>

extern struct ibv_context *ctx; /* set by kit_device_open(), as is pd */
extern struct ibv_pd *pd;

int kit_device_open(void **state);
int kit_device_close(void **state);

#endif
