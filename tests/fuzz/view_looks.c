/* SPDX-License-Identifier: Apache-2.0 */
#include "view_looks.h"

#include "amp_kernels.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PICK(input, table) ((table)[look_below((input), sizeof(table) / sizeof((table)[0]))])

/* ---- memory: a block ends where a page begins that nobody may touch ---- */

enum { PATTERN = 0xa5, GAP = 1 };
static unsigned char *pages;
static size_t page_size, used[LOOKS], slack[LOOKS]; /* bytes of each block, and behind it (misaligned ones) */
static bool element_byte[LOOKS][LOOK_BYTES];        /* others lie in gaps */

static unsigned char *page_of(unsigned number) { return pages + 2 * number * page_size; }

static void map_pages(void) {
    page_size = 4096;
    pages = mmap(NULL, 2 * LOOKS * page_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) abort();
    for (unsigned i = 0; i < LOOKS; i++)
        if (mprotect(page_of(i) + page_size, page_size, PROT_NONE)) abort();
    memset(page_of(0), PATTERN, page_size);
    for (unsigned i = 1; i < LOOKS; i++) memset(page_of(i), PATTERN, page_size);
}

static unsigned char *block_at(unsigned number) { return page_of(number) + page_size - slack[number] - used[number]; }

bool looks_intact(void) {
    static unsigned char pattern[4096];
    memset(pattern, PATTERN, sizeof pattern);
    for (unsigned i = 0; i < LOOKS; i++)
        if (memcmp(page_of(i), pattern, page_size - slack[i] - used[i]) ||
            memcmp(block_at(i) + used[i], pattern, slack[i]))
            return false;
    for (unsigned i = 0; i < LOOKS; i++)
        for (size_t j = 0; j < used[i]; j++)
            if (!element_byte[i][j] && block_at(i)[j] != GAP) return false;
    return true;
}

/* Where the i-th element in row-major order lies. */
static unsigned char *element(const struct look *look, size_t i) {
    int64_t at = -look->lowest;
    for (int32_t d = look->view.ndim; !look->compact && d-- > 0; i /= (size_t)look->view.shape[d])
        at += (int64_t)(i % (size_t)look->view.shape[d]) * look->view.strides[d];
    return look->block + (size_t)(look->compact ? (int64_t)i : at) * (look->view.dtype.bits / 8u);
}

static void fill(const struct look *look) {
    static const float values[] = { 1.0f, 2.0f, -4.0f, 3.0f, 0.5f };
    const bool floats = look->good && look->dtype != AMP_DTYPE_OTHER;
    memset(look->block, GAP, look->bytes);
    for (size_t j = 0; j < look->bytes; j++) element_byte[look->number][j] = !floats;
    for (size_t i = 0; floats && i < look->size; i++) {
        const float value = values[i % 5];
        const double wide = (double)value;
        const uint16_t half = amp_float_to_half(value), brain = amp_float_to_bfloat16(value);
        unsigned char *at = element(look, i);
        for (size_t j = 0; j < look->view.dtype.bits / 8u; j++)
            element_byte[look->number][at - look->block + (ptrdiff_t)j] = true;
        switch (look->dtype) {
        case AMP_FLOAT16: memcpy(at, &half, 2); break;
        case AMP_BFLOAT16: memcpy(at, &brain, 2); break;
        case AMP_FLOAT64: memcpy(at, &wide, 8); break;
        default: memcpy(at, &value, 4);
        }
    }
}

double look_element(const struct look *look, size_t i) {
    uint16_t half;
    float single;
    double wide;
    switch (look->dtype) {
    case AMP_FLOAT16: return memcpy(&half, element(look, i), 2), (double)amp_half_to_float(half);
    case AMP_BFLOAT16: return memcpy(&half, element(look, i), 2), (double)amp_bfloat16_to_float(half);
    case AMP_FLOAT64: return memcpy(&wide, element(look, i), 8), wide;
    case AMP_FLOAT32: return memcpy(&single, element(look, i), 4), (double)single;
    default: return 0.0;
    }
}

/* ---- the rule, written down a second time ---- */

static bool shape_is_good(const amp_tensor_view *view, uint64_t *size) {
    uint64_t product = 1;
    bool empty = false;
    *size = 0;
    if (view->ndim < 0 || view->ndim > 64 || (view->ndim && !view->shape)) return false;
    for (int32_t i = 0; i < view->ndim; i++) {
        if (view->shape[i] < 0) return false;
        empty |= view->shape[i] == 0;
    }
    for (int32_t i = 0; i < view->ndim; i++)
        if (view->shape[i] && __builtin_mul_overflow(product, (uint64_t)view->shape[i], &product)) return false;
    if (product > INT64_MAX / 8) return false;
    *size = empty ? 0 : product;
    return true;
}

static bool strides_are_compact(const amp_tensor_view *view, uint64_t size) {
    int64_t expected = 1;
    for (int32_t i = view->ndim; view->strides && size && i-- > 0; expected *= view->shape[i])
        if (view->shape[i] != 1 && view->strides[i] != expected) return false;
    return true;
}

__extension__ typedef __int128 wide_int;

/* No two elements may be one: each dimension steps over all that the smaller steps reach. Computed so wide that nothing
 * overflows. */
static bool elements_are_apart(const struct look *look, wide_int *lowest, wide_int *span) {
    const amp_tensor_view *view = &look->view;
    *lowest = 0;
    *span = 1;
    for (int32_t d = 0; d < view->ndim; d++) {
        const wide_int step = view->strides[d], reach = step * (view->shape[d] - 1);
        wide_int below = 0;
        if (view->shape[d] == 1) continue;
        for (int32_t e = 0; e < view->ndim; e++) {
            const wide_int other = view->strides[e];
            const bool smaller = (other < 0 ? -other : other) < (step < 0 ? -step : step);
            const bool equal = e < d && (other == step || other == -step);
            if (view->shape[e] > 1 && (smaller || equal)) below += (other < 0 ? -other : other) * (view->shape[e] - 1);
        }
        if ((step < 0 ? -step : step) <= below) return false;
        *lowest += reach < 0 ? reach : 0;
        *span += reach < 0 ? -reach : reach;
    }
    return true;
}

static bool type_is_known(const amp_tensor_view *view, amp_dtype *dtype) {
    const unsigned code = view->dtype.code, bits = view->dtype.bits;
    *dtype = AMP_DTYPE_OTHER;
    if (bits == 0 || code == 3 || code == 5 || code >= 7 || (code == 2 && bits == 8)) return false;
    if (view->dtype.lanes > 1) return true;
    if (code == 2 && bits == 32) *dtype = AMP_FLOAT32;
    if (code == 2 && bits == 16) *dtype = AMP_FLOAT16;
    if (code == 2 && bits == 64) *dtype = AMP_FLOAT64;
    if (code == 4 && bits == 16) *dtype = AMP_BFLOAT16;
    return true;
}

static bool device_is_host(const amp_tensor_view *view) {
    return view->device.type == 0 || view->device.type == 1 || view->device.type == 3;
}

/* ---- reading ---- */

static void read_type(struct input *in, amp_tensor_view *view, bool simple) {
    static const struct {
        uint8_t code, bits;
    } types[] = { { 2, 32 }, { 2, 16 }, { 4, 16 }, { 2, 64 }, { 0, 32 }, { 1, 8 }, { 3, 64 }, { 5, 64 }, { 2, 8 },
                  { 7, 8 },  { 2, 0 },  { 2, 24 }, { 4, 32 }, { 6, 8 },  { 2, 128 } };
    static const uint16_t lanes[] = { 1, 1, 1, 1, 1, 0, 2, 65535 };
    const unsigned which = look_byte(in);
    const size_t i = simple && which < 192 ? 0 : which % (sizeof types / sizeof types[0]);
    view->dtype.code = types[i].code;
    view->dtype.bits = types[i].bits;
    view->dtype.lanes = which < 224 ? 1 : PICK(in, lanes);
    if (which == 255) view->dtype.code = look_byte(in), view->dtype.bits = look_byte(in);
}

static void read_shape(struct input *in, amp_tensor_view *view) {
    static const int32_t dimensions[] = { 1, 1, 1, 2, 3, 0, 4, -1, 64, 65, INT32_MIN, INT32_MAX };
    static const int64_t extents[] = { 4, 1, 2, 3, 0, 5, -1, INT64_MAX, INT64_MIN, (int64_t)1 << 32, (int64_t)1 << 62 };
    const unsigned which = look_byte(in);
    view->ndim = which < 128 ? 1 : PICK(in, dimensions);
    if (which == 255) return; /* shape NULL */
    const size_t n = view->ndim > 0 && view->ndim <= 64 ? (size_t)view->ndim : 1;
    view->shape = malloc(n * sizeof(int64_t));
    if (!view->shape) abort();
    for (size_t i = 0; i < n; i++) view->shape[i] = i > 3 ? 1 : which < 64 ? 4 : PICK(in, extents);
    uint64_t size; /* nobody has that much memory: such a host would lie */
    if (shape_is_good(view, &size) && size > LOOK_BYTES / 8) view->ndim = 1, view->shape[0] = 4;
}

static void read_strides(struct input *in, amp_tensor_view *view, uint64_t size) {
    static const int64_t strides[] = { 1, 0, -1, 2, 4, INT64_MAX, INT64_MIN, 1000000 };
    const unsigned which = look_byte(in);
    const size_t n = view->ndim > 0 && view->ndim <= 64 ? (size_t)view->ndim : 1;
    if (which < 128 || !view->shape) return;
    view->strides = malloc(n * sizeof(int64_t));
    if (!view->strides) abort();
    int64_t compact = 1;
    for (size_t i = n; i-- > 0;) {
        view->strides[i] = which < 208 || !size ? compact : PICK(in, strides);
        if (size) compact *= view->shape[i];
    }
}

/* The address is right modulo 2^64, whatever the offset. */
static bool read_place(struct input *in, struct look *look, size_t width) {
    const unsigned number = look->number;
    static const uint64_t offsets[] = { 0, 64, 1, UINT64_MAX, (uint64_t)1 << 63, 4096 };
    static const int32_t devices[] = { 1, 0, 3, 2, -1, 12 };
    const unsigned which = look_byte(in);
    const bool misaligned = which >= 224 && width > 1 && look->size;
    look->view.device.type = which % 32 == 31 ? PICK(in, devices) : 1;
    slack[number] = misaligned ? 1 : 0;
    used[number] = look->bytes;
    look->block = block_at(number);
    look->view.byte_offset = which >= 128 ? PICK(in, offsets) : 0;
    const uintptr_t first = (uintptr_t)look->block + (uintptr_t)-look->lowest * width;
    look->view.data = (void *)(first - (uintptr_t)look->view.byte_offset);
    if (which % 32 == 30) look->view.data = NULL;
    return device_is_host(&look->view) && !misaligned && (look->view.data || !look->size);
}

/* Strides that need more memory than there is would be a lie, if libamp may believe them. */
static bool read_layout(struct input *in, struct look *look) {
    wide_int lowest, span;
    if (!look->well_shaped) return read_strides(in, &look->view, 0), false;
    read_strides(in, &look->view, look->size);
    look->compact = strides_are_compact(&look->view, look->size);
    look->span = look->size;
    if (look->compact) return true;
    if (!elements_are_apart(look, &lowest, &span) || span > INT64_MAX / 16) return false;
    if (span > LOOK_BYTES / 8) {
        free(look->view.strides);
        look->view.strides = NULL;
        return look->compact = true;
    }
    look->lowest = (int64_t)lowest;
    look->span = (uint64_t)span;
    return true;
}

void look_read(struct input *in, struct look *look, bool simple, unsigned number) {
    if (!pages) map_pages();
    memset(look, 0, sizeof *look);
    memset(page_of(number), PATTERN, page_size);
    look->number = number;
    read_type(in, &look->view, simple);
    read_shape(in, &look->view);
    look->well_shaped = shape_is_good(&look->view, &look->size);
    const bool known = type_is_known(&look->view, &look->dtype), laid_out = read_layout(in, look);
    const size_t width = look->dtype == AMP_DTYPE_OTHER ? 1 : look->view.dtype.bits / 8u;
    look->bytes = laid_out ? look->span * width : 16;
    look->good = read_place(in, look, width) && known && laid_out;
    fill(look);
}

void look_free(struct look *look) {
    free(look->view.shape);
    free(look->view.strides);
}
