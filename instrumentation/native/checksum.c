/* CRC-32 as zlib has it. Four bytes at a time by tables of nibbles: half a kilobyte in all, for what
 * is larger has left the caches by the time a step ends. Where the processor multiplies without
 * carries, all but the last bytes are folded first (Gopal and others, "Fast CRC Computation for
 * Generic Polynomials Using PCLMULQDQ", Intel 2009).
 */
#include "recorder.h"

#include <string.h>

/* shifted[n][v]: the rest that v leaves in nibble n of a word, counted from the lowest. */
static uint32_t shifted[8][16];

static uint32_t rest_of(uint32_t rest, const char *at, size_t num_words)
{
    for (; num_words > 0; num_words--, at += 4) {
        uint32_t word;
        memcpy(&word, at, 4);
        word ^= rest;
        rest = 0;
        for (int nibble = 0; nibble < 8; nibble++)
            rest ^= shifted[nibble][word >> 4 * nibble & 15];
    }
    return rest;
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

static int folds;

/* The rest of so many lines of 16 bytes, at least one. */
__attribute__((target("pclmul,sse2"))) static uint32_t folded(const char *at, size_t num_lines)
{
    /* What 128 bits further on stand for: x^(128+32) and x^(128-32), divided by the polynomial. */
    const __m128i by = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
    __m128i sum = _mm_xor_si128(_mm_loadu_si128((const __m128i *)at), _mm_cvtsi32_si128(~0));
    for (size_t n = 1; n < num_lines; n++) {
        __m128i further = _mm_xor_si128(_mm_clmulepi64_si128(sum, by, 0x00),
                                        _mm_clmulepi64_si128(sum, by, 0x11));
        sum = _mm_xor_si128(further, _mm_loadu_si128((const __m128i *)(at + 16 * n)));
    }
    char left[16];
    _mm_storeu_si128((__m128i *)left, sum);
    return rest_of(0, left, 4);
}

static void find_out(void)
{
    folds = __builtin_cpu_supports("pclmul");
}
#else
enum { folds = 0 };

static uint32_t folded(const char *at, size_t num_lines)
{
    return rest_of(~0u, at, 4 * num_lines);
}

static void find_out(void) {}
#endif

void prepare_checksum(void)
{
    for (uint32_t value = 0; value < 16; value++) {
        uint32_t rest = value;
        for (int nibble = 7; nibble >= 0; nibble--) {
            for (int bit = 0; bit < 4; bit++)
                rest = rest & 1 ? rest >> 1 ^ 0xEDB88320u : rest >> 1;
            shifted[nibble][value] = rest;
        }
    }
    find_out();
}

uint32_t checksum_of(const void *data, size_t num_words)
{
    size_t num_lines = folds ? num_words / 4 : 0;
    uint32_t rest = num_lines > 0 ? folded(data, num_lines) : ~0u;
    return ~rest_of(rest, (const char *)data + 16 * num_lines, num_words - 4 * num_lines);
}
