/* The file of a capture.
 *
 * Whoever keeps a packet holds locks, so it goes to a buffer; the thread writes it where it writes lines of
 * the log: before it returns to the program, before it blocks (base/log.h).  By write(2): what a call has
 * kept is the kernel's when the call returns, whatever then kills the process.  (A shared mapping of the file
 * would need no call, but its end would be zeros or half a packet, which no reader takes, and it raises
 * SIGBUS where the disk is full.)  What finds no room in the buffer is lost, and counted in the file.
 *
 * A process has a file of its own: FILE is that of the first one that opens a device, as long as that one
 * lives; another one's has its PID in the name.  A later one that comes to FILE appends to it. */
#ifndef VB_HCA_CAPTURE_FILE_H
#define VB_HCA_CAPTURE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The sentence about a wrong VERBENA_PCAP_SNAP or VERBENA_PCAP_RING; NULL: both are valid. */
const char *vb_capture_wrong(void);
/* The setting VERBENA_PCAP; NULL: there is to be no capture.  *files: of a ring, 0: it is one file. */
const char *vb_capture_path(uint32_t *files);

/* Has fork() looked after, if there is to be a capture.  Whoever has fork handlers that take locks under
 * which packets are kept calls this before it registers them, since fork() takes the last one's locks first.
 */
void vb_capture_handle_fork(void);

/* Begins the capture, if there is to be one and it has not begun; without locks. */
void vb_capture_begin(void);
bool vb_capture_is_on(void);
/* How many bytes of a frame are kept at most. */
size_t vb_capture_snap(void);
/* Keeps a frame of `len` bytes, of which `kept` are given, with a comment or NULL.  With any lock. */
void vb_capture_keep(const void *frame, size_t kept, size_t len, const char *comment);

#endif
