/* The variables of the environment that Verbena reads: which there are. */
#ifndef VB_BASE_SETTINGS_H
#define VB_BASE_SETTINGS_H

/* Says once for the process which variables VERBENA_* are none of these, and that the log cannot be written:
 * in the log, and on standard error if VERBENA_LOG is not set. */
void vb_settings_check(void);

#endif
