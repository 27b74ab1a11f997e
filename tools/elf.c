#include "elf.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.h"

#if defined(__x86_64__)
#define OUR_MACHINE EM_X86_64
#elif defined(__aarch64__)
#define OUR_MACHINE EM_AARCH64
#else
#error "no ELF machine known for this architecture"
#endif

/* A file in memory; every access is checked against its end, and structures against their alignment. */
struct image {
	const uint8_t *at;
	size_t size;
};

static const void *part(const struct image *f, uint64_t offset, uint64_t len)
{
	if (offset > f->size || len > f->size - offset || (len > 1 && offset % _Alignof(uint64_t)))
		return NULL;
	return f->at + offset;
}

/* The i-th program header; NULL past the end. */
static const Elf64_Phdr *phdr(const struct image *f, unsigned i)
{
	const Elf64_Ehdr *h = part(f, 0, sizeof(*h));

	if (!h || i >= h->e_phnum || h->e_phentsize != sizeof(Elf64_Phdr))
		return NULL;
	return part(f, h->e_phoff + (uint64_t)i * sizeof(Elf64_Phdr), sizeof(Elf64_Phdr));
}

/* What the loader will see at a virtual address, as a string within the file. */
static const char *string_at(const struct image *f, uint64_t vaddr)
{
	const Elf64_Phdr *p;

	for (unsigned i = 0; (p = phdr(f, i)); i++) {
		const char *s;

		if (p->p_type != PT_LOAD || vaddr < p->p_vaddr || vaddr - p->p_vaddr >= p->p_filesz)
			continue;
		s = part(f, p->p_offset + (vaddr - p->p_vaddr), 1);
		return s && memchr(s, '\0', f->size - (size_t)((const uint8_t *)s - f->at)) ? s : NULL;
	}
	return NULL;
}

static const Elf64_Dyn *dynamic(const struct image *f, const Elf64_Phdr *p, unsigned i)
{
	const Elf64_Dyn *d;

	if ((uint64_t)i * sizeof(*d) >= p->p_filesz)
		return NULL;
	d = part(f, p->p_offset + (uint64_t)i * sizeof(*d), sizeof(*d));
	return d && d->d_tag != DT_NULL ? d : NULL;
}

static void read_dynamic(const struct image *f, const Elf64_Phdr *p, struct vb_elf *e)
{
	uint64_t strtab = 0, rpath = 0;
	bool has_rpath = false, has_runpath = false;
	const Elf64_Dyn *d;
	const char *s;

	for (unsigned i = 0; (d = dynamic(f, p, i)); i++) {
		if (d->d_tag == DT_STRTAB)
			strtab = d->d_un.d_ptr;
		if (d->d_tag == DT_RUNPATH)
			has_runpath = true;
		if (d->d_tag == DT_RPATH) {
			has_rpath = true;
			rpath = d->d_un.d_val;
		}
	}
	for (unsigned i = 0; (d = dynamic(f, p, i)); i++)
		if (d->d_tag == DT_NEEDED && (s = string_at(f, strtab + d->d_un.d_val)) &&
		    !strncmp(s, "libasan.so", 10))
			e->asan = true;
	if (has_rpath && !has_runpath && (s = string_at(f, strtab + rpath)))
		snprintf(e->rpath, sizeof(e->rpath), "%s", s);
}

static const Elf64_Shdr *shdr(const struct image *f, unsigned i)
{
	const Elf64_Ehdr *h = part(f, 0, sizeof(*h));

	if (!h || i >= h->e_shnum || h->e_shentsize != sizeof(Elf64_Shdr))
		return NULL;
	return part(f, h->e_shoff + (uint64_t)i * sizeof(Elf64_Shdr), sizeof(Elf64_Shdr));
}

/* Whether the file's own symbols have the function; one that was stripped has only those that it exports. */
static bool defines(const struct image *f, const char *name)
{
	const Elf64_Shdr *s, *strings;
	size_t len = strlen(name) + 1;
	const Elf64_Sym *sym;
	const char *text;

	for (unsigned i = 0; (s = shdr(f, i)); i++) {
		if (s->sh_type != SHT_SYMTAB && s->sh_type != SHT_DYNSYM)
			continue;
		strings = shdr(f, s->sh_link);
		text = strings ? part(f, strings->sh_offset, 1) : NULL;
		sym = part(f, s->sh_offset, s->sh_size);
		if (!text || !sym || strings->sh_size > f->size - strings->sh_offset)
			continue;
		for (uint64_t n = s->sh_size / sizeof(*sym); n; n--, sym++)
			if (sym->st_shndx != SHN_UNDEF && ELF64_ST_TYPE(sym->st_info) == STT_FUNC &&
			    sym->st_name < strings->sh_size && len <= strings->sh_size - sym->st_name &&
			    !memcmp(text + sym->st_name, name, len))
				return true;
	}
	return false;
}

static void read_interp(const struct image *f, const Elf64_Phdr *p, struct vb_elf *e)
{
	const char *s = part(f, p->p_offset, 1);

	if (s && p->p_filesz && p->p_filesz <= sizeof(e->interp) && p->p_filesz <= f->size - p->p_offset &&
	    !s[p->p_filesz - 1])
		memcpy(e->interp, s, p->p_filesz);
}

static void read_image(const struct image *f, struct vb_elf *e)
{
	const Elf64_Ehdr *h = part(f, 0, sizeof(*h));
	const Elf64_Phdr *p;

	if (f->size < EI_NIDENT + 4 || memcmp(f->at, ELFMAG, SELFMAG))
		return;
	/* e_machine stands at the same place in both classes */
	e->machine = ((const Elf32_Ehdr *)(const void *)f->at)->e_machine;
	e->bits = f->at[EI_CLASS] == ELFCLASS64 ? 64 : 32;
	e->kind = VB_ELF_FOREIGN;
	if (!h || e->bits != 64 || e->machine != OUR_MACHINE || f->at[EI_DATA] != ELFDATA2LSB)
		return;
	if (!phdr(f, 0)) { /* cut off: the kernel will say so */
		e->kind = VB_ELF_NONE;
		return;
	}
	e->kind = VB_ELF_STATIC;
	e->verbs = defines(f, "ibv_open_device");
	for (unsigned i = 0; (p = phdr(f, i)); i++) {
		if (p->p_type == PT_INTERP) {
			e->kind = VB_ELF_DYNAMIC;
			read_interp(f, p, e);
		}
		if (p->p_type == PT_DYNAMIC)
			read_dynamic(f, p, e);
	}
}

/* Maps the file; 0 or errno.  A file that is too short has no `at`. */
static int open_image(struct image *f, const char *path)
{
	struct stat st;
	void *map;
	int err = 0, fd = open(path, O_RDONLY | O_CLOEXEC);

	*f = (struct image){0};
	if (fd < 0)
		return errno;
	if (fstat(fd, &st) || st.st_size < EI_NIDENT + 4)
		goto close_fd;
	map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (map == MAP_FAILED) {
		err = errno;
		goto close_fd;
	}
	*f = (struct image){map, (size_t)st.st_size}; /* close_image() */
close_fd:
	close(fd);
	return err;
}

static void close_image(struct image *f)
{
	if (f->at)
		munmap((void *)(uintptr_t)f->at, f->size);
}

int vb_elf_read(const char *path, struct vb_elf *e)
{
	struct image f;
	int err = open_image(&f, path);

	memset(e, 0, sizeof(*e));
	if (!err && f.at)
		read_image(&f, e);
	close_image(&f);
	return err;
}

/* The versions of one section. */
static void add_nodes(const struct image *f, const Elf64_Shdr *s, const char *prefix, struct vb_text *t,
		      const char **sep)
{
	const Elf64_Shdr *strings = shdr(f, s->sh_link);
	uint64_t at = s->sh_offset;
	const Elf64_Verdef *v;
	const Elf64_Verdaux *aux;
	const char *name;

	for (uint64_t n = s->sh_info; n && strings; n--, at += v->vd_next) {
		v = at % _Alignof(Elf64_Verdef) ? NULL : part(f, at & ~7ull, sizeof(*v) + 8);
		if (!v)
			return;
		v = (const void *)(f->at + at);
		if ((at + v->vd_aux) % _Alignof(Elf64_Verdaux) ||
		    !part(f, (at + v->vd_aux) & ~7ull, sizeof(*aux) + 8))
			return;
		aux = (const void *)(f->at + at + v->vd_aux);
		name = part(f, strings->sh_offset + aux->vda_name, 1);
		if (name && memchr(name, 0, f->size - (size_t)((const uint8_t *)name - f->at)) &&
		    !strncmp(name, prefix, strlen(prefix))) {
			vb_text_add(t, "%s%s", *sep, name + strlen(prefix));
			*sep = ", ";
		}
		if (!v->vd_next)
			return;
	}
}

void vb_elf_nodes(const char *path, const char *prefix, char *buf, size_t size)
{
	struct vb_text t = {buf, size};
	const char *sep = "";
	const Elf64_Shdr *s;
	struct image f;

	*buf = 0;
	if (open_image(&f, path))
		return;
	for (unsigned i = 0; f.at && (s = shdr(&f, i)); i++)
		if (s->sh_type == SHT_GNU_verdef)
			add_nodes(&f, s, prefix, &t, &sep);
	close_image(&f);
}

bool vb_elf_nodes_cover(const char *all, const char *some)
{
	while (*some) {
		size_t len = strcspn(some, ",");
		const char *at = all;

		while (*at && (strncmp(at, some, len) || (at[len] && at[len] != ',')))
			at += strcspn(at, ",") + strspn(at + strcspn(at, ","), ", ");
		if (!*at)
			return false;
		some += len + strspn(some + len, ", ");
	}
	return true;
}

/* One element of an rpath with $ORIGIN replaced; false if it does not fit. */
static bool expand(const char *element, size_t len, const char *program, char *out, size_t size)
{
	static const char *const names[] = {"$ORIGIN", "${ORIGIN}"};
	const char *slash = strrchr(program, '/');
	int dir = slash ? (int)(slash - program) : 1;

	for (int i = 0; i < 2; i++) {
		size_t n = strlen(names[i]);

		if (len >= n && !strncmp(element, names[i], n))
			return snprintf(out, size, "%.*s%.*s", dir, slash ? program : ".", (int)(len - n),
					element + n) < (int)size;
	}
	return snprintf(out, size, "%.*s", (int)len, element) < (int)size;
}

bool vb_elf_rpath_find(const char *rpath, const char *program, const char *file, char *found, size_t size)
{
	char path[PATH_MAX + 64];

	while (*rpath) {
		size_t len = strcspn(rpath, ":");

		if (len && expand(rpath, len, program, found, size)) {
			snprintf(path, sizeof(path), "%s/%s", found, file);
			if (!access(path, F_OK))
				return true;
		}
		rpath += len + (rpath[len] == ':');
	}
	return false;
}
