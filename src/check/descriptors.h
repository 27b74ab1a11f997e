/* The descriptors that the program has open, for the checker that tells each of them of a peer's WRITE. */
#ifndef VB_CHECK_DESCRIPTORS_H
#define VB_CHECK_DESCRIPTORS_H

/* Before main(): the sanitizer orders nothing by descriptors that it did not see made.  It gets to know pipes
 * and sockets that the process was started with. */
void vb_check_descriptors_inherited(void);
/* Once, before the next one.  It leaves a file and a socket open: a sanitizer takes all files for one and all
 * sockets for one, so what those two are told is told to each that the program opens later. */
void vb_check_descriptors_open(void);
/* Calls act() for each open descriptor, and for some numbers that are not open.  One thread at a time. */
void vb_check_each_descriptor(void act(int fd));

#endif
