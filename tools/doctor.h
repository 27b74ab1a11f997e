/* verbena doctor: what it found, and the parts that look. */
#ifndef VB_TOOLS_DOCTOR_H
#define VB_TOOLS_DOCTOR_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

enum vb_grade {
	VB_OK,
	VB_NOTE,  /* worth knowing; costs nothing in Verbena */
	VB_LIMIT, /* costs a feature or speed */
	VB_FAILS, /* Verbena, or the program, cannot work here */
	VB_GRADES
};

struct vb_finding {
	enum vb_grade grade;
	const char *check; /* its name */
	char text[800], cost[400], remedy[500];
};

enum { VB_FINDINGS = 64 };
struct vb_doctor {
	struct vb_finding at[VB_FINDINGS];
	unsigned n;
	char lib[PATH_MAX]; /* directory of our libraries; "": they cannot be found */
	bool works;	    /* the device opens */
	char foreign[16][64];
	unsigned nforeign;
};

/* Adds a finding.  What it costs and how it is loosened: NULL if there is nothing to say. */
void vb_found(struct vb_doctor *d, enum vb_grade grade, const char *check, const char *cost,
	      const char *remedy, const char *fmt, ...) __attribute__((format(printf, 6, 7)));

/* Runs a function in a child process, since a sandbox may end who makes a call that it denies.  0, the errno
 * that the function returns, or -SIGNAL.  What it writes to `out` is in `said`, which may be NULL. */
typedef int vb_child_fn(void *arg, int out);
int vb_child(vb_child_fn *fn, void *arg, char *said, size_t size);

/* "Operation not permitted", "it ends the process by SIGSYS"; returns buf. */
const char *vb_child_why(char *buf, size_t size, int err);

/* Whether this process may start one more thread: 0 or the errno. */
int vb_try_thread(void *arg, int out);

/* Each adds what it finds. */
void vb_doctor_device(struct vb_doctor *d);  /* opens it; first */
void vb_doctor_calls(struct vb_doctor *d);   /* system calls */
void vb_doctor_memory(struct vb_doctor *d);  /* access to the memory of peers */
void vb_doctor_limits(struct vb_doctor *d);  /* resources of the process */
void vb_doctor_host(struct vb_doctor *d);    /* kernel, user, namespaces, files, CPUs */
void vb_doctor_network(struct vb_doctor *d); /* loopback, and the way to other hosts */
void vb_doctor_others(struct vb_doctor *d);  /* other processes, other devices */
void vb_doctor_library(struct vb_doctor *d); /* rdma-core of this system */
void vb_doctor_program(struct vb_doctor *d, const char *path);

#endif
