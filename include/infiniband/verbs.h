/* The system's <infiniband/verbs.h>, and what Verbena offers beyond it. */
#ifndef VERBENA_VERBS_H
#define VERBENA_VERBS_H

#pragma GCC system_header /* #include_next is an extension, which the user's warnings should not hear of */
#include_next <infiniband/verbs.h>

#endif
