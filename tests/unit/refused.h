/* A call that makes an object is refused. */
#ifndef VB_TESTS_REFUSED_H
#define VB_TESTS_REFUSED_H

/* It gives NULL and this errno. */
#define REFUSED(call, err)                    \
	do {                                  \
		errno = 0;                    \
		assert_null((call));          \
		assert_int_equal(errno, err); \
	} while (0)

#endif
