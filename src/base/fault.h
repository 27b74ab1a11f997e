/* Fault points: places where a test has a call fail or the process die.
 *
 * Only in the variant of the library that tests link (VB_FAULTS, build/faults/lib); in the product a point is
 * nothing.  In the variant every call that allocates memory, makes a descriptor or a thread, or reaches into
 * another process is a point by itself (fault.c, through the linker), and VB_FAULT_POINT() marks further
 * instants at which death would hurt.  VERBENA_FAULT says what happens:
 *
 *     count      at exit the number of points that were passed is written to standard error
 *     fail:N     the N-th call that can fail does, with the errno of an exhausted machine, and once
 *     fail:N+    so do all after it
 *     kill:N     SIGKILL at the N-th point of any kind */
#ifndef VB_BASE_FAULT_H
#define VB_BASE_FAULT_H

#ifdef VB_FAULTS
void vb_fault_point(const char *name);
#define VB_FAULT_POINT(name) vb_fault_point(name)
#else
#define VB_FAULT_POINT(name) ((void)0)
#endif

#endif
