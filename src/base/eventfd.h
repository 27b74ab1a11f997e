/* Taking a token of an eventfd without blocking, whatever the program has made of its O_NONBLOCK. */
#ifndef VB_BASE_EVENTFD_H
#define VB_BASE_EVENTFD_H

/* 0; EAGAIN: there is none; or errno.  No cancellation point: locks may be held. */
int vb_eventfd_try(int fd);

#endif
