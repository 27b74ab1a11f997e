/* The means by which a process can be checked. */
#include "check/check.h"

const struct vb_checker *const vb_check_rows[] = {&vb_check_asan, &vb_check_tsan, &vb_check_memcheck,
						  &vb_check_msan, NULL};
