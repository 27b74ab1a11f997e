/* The CRC of Ethernet (IEEE 802.3, reflected), which zlib calls crc32().
 *
 * The code is ours, since the libraries that are fast (ISA-L) would be loaded by every program, and those
 * that every system has (zlib) are a tenth as fast.  It uses the carry-less multiplication of the CPU where
 * there is one, on blocks of 512 bits or 128, else eight tables.  These are made when they are first needed:
 * a program that computes no CRC has nothing but untouched pages of it. */
#ifndef VB_BASE_CRC_H
#define VB_BASE_CRC_H

#include <stddef.h>
#include <stdint.h>

/* The CRC of what `before` is the CRC of (0: nothing), followed by these bytes. */
uint32_t vb_crc(uint32_t before, const uint8_t *at, size_t n);
/* The same as if the bits of `ones` were set in the first 8 bytes, of which the first one is in the lowest
 * bits.  n: 8 or more, unless `ones` is 0. */
uint32_t vb_crc_with(uint32_t before, uint64_t ones, const uint8_t *at, size_t n);
/* vb_crc() by tables, for tests. */
uint32_t vb_crc_by_table(uint32_t before, const uint8_t *at, size_t n);

/* CRCs are polynomials over two elements, modulo that of the CRC; the bit of x^0 is the highest one. */
uint32_t vb_crc_times(uint32_t a, uint32_t b);
/* x^-8n: what takes n bytes of zeros off the end. */
uint32_t vb_crc_back(size_t n);

#endif
