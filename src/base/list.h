/* A doubly linked list whose links live in the objects.  An unlinked node points to itself, so unlinking
 * twice does no harm and vb_list_linked() is one comparison. */
#ifndef VB_BASE_LIST_H
#define VB_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct vb_list {
	struct vb_list *next, *prev;
};

static inline void vb_list_init(struct vb_list *l)
{
	l->next = l->prev = l;
}

static inline bool vb_list_empty(const struct vb_list *l)
{
	return l->next == l;
}

static inline bool vb_list_linked(const struct vb_list *n)
{
	return n->next != n;
}

static inline void vb_list_append(struct vb_list *head, struct vb_list *n)
{
	n->prev = head->prev;
	n->next = head;
	head->prev->next = n;
	head->prev = n;
}

/* In front of all others. */
static inline void vb_list_push(struct vb_list *head, struct vb_list *n)
{
	vb_list_append(head->next, n);
}

static inline void vb_list_unlink(struct vb_list *n)
{
	n->prev->next = n->next;
	n->next->prev = n->prev;
	vb_list_init(n);
}

static inline struct vb_list *vb_list_pop(struct vb_list *head)
{
	struct vb_list *n = head->next;

	if (n == head)
		return NULL;
	vb_list_unlink(n);
	return n;
}

#define vb_list_entry(node, type, member) ((type *)((char *)(node)-offsetof(type, member)))
#define vb_list_each(node, head)	  for (struct vb_list *node = (head)->next; node != (head); node = node->next)
#define vb_list_each_safe(node, tmp, head)                                           \
	for (struct vb_list *node = (head)->next, *tmp = node->next; node != (head); \
	     node = tmp, tmp = node->next)

#endif
