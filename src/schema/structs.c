/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Structs. A list of members is read once for its layout, when the schema is checked, and again to build libffi's
 * types, when the closure is made: by the same code, which leaves out the building the first time.
 */
#include "amp_raw.h"
#include "schema/structs.h"
#include "schema/types.h"

#include <stdio.h>
#include <string.h>

ffi_type *amp__ffi_type(uint8_t kind) {
    static ffi_type *const types[] = {
        [AMP__VOID] = &ffi_type_void,     [AMP__INT8] = &ffi_type_sint8,      [AMP__UINT8] = &ffi_type_uint8,
        [AMP__INT16] = &ffi_type_sint16,  [AMP__UINT16] = &ffi_type_uint16,   [AMP__INT32] = &ffi_type_sint32,
        [AMP__UINT32] = &ffi_type_uint32, [AMP__INT64] = &ffi_type_sint64,    [AMP__UINT64] = &ffi_type_uint64,
        [AMP__FLOAT] = &ffi_type_float,   [AMP__DOUBLE] = &ffi_type_double,   [AMP__POINTER] = &ffi_type_pointer,
        [AMP__TENSOR] = &ffi_type_pointer, [AMP__BUFFER] = &ffi_type_pointer,
        [AMP__STRUCT_POINTER] = &ffi_type_pointer,
    };
    return types[kind];
}

#define MAX_DEPTH 8
#define MAX_NAMES 256 /* of a table, that a message looks at */

/* ---- members ---- */

struct reader {
    struct amp__lexer lexer;
    uint32_t depth;
    bool building;
    struct amp__struct_needs needs;
    ffi_type **types;     /* building */
    ffi_type ***pointers; /* building */
    const struct amp__token *wanted; /* a member's name (NULL: none is looked for) */
    uint64_t offset;                 /* offset of that member */
    uint8_t kind;                    /* and its type; AMP__VOID: not found, or no number */
    bool found;
    uint64_t end; /* of the member that reaches furthest */
    bool placed; /* members say where they lie, and are not all there are */
};

/* One pair of braces, or the whole. */
struct group {
    uint64_t size, alignment;
    ffi_type *elements[AMP__STRUCT_SMALL + 1]; /* building; every element has a byte or more */
    size_t n;
};

static amp_status take_members(struct reader *r, struct group *group);

static uint64_t round_up(uint64_t size, uint64_t alignment) { return (size + alignment - 1) / alignment * alignment; }

/* A finished group as a type of its own. */
static ffi_type *finish_group(struct reader *r, const struct group *group) {
    r->needs.types++;
    r->needs.pointers += group->n + 1;
    if (!r->building) return NULL;
    ffi_type *type = (*r->types)++;
    *type = (ffi_type){ .type = FFI_TYPE_STRUCT, .elements = *r->pointers };
    memcpy(*r->pointers, group->elements, group->n * sizeof(ffi_type *));
    (*r->pointers)[group->n] = NULL;
    *r->pointers += group->n + 1;
    return type;
}

/* '{' members '}' or a type of C */
static amp_status take_type(struct reader *r, uint64_t *size, uint64_t *alignment, ffi_type **ffi, uint8_t *kind_out) {
    struct amp__lexer *lexer = &r->lexer;
    *kind_out = AMP__VOID;
    if (amp__lexer_take(lexer, "{")) {
        struct group group = { .alignment = 1 };
        if (++r->depth > MAX_DEPTH)
            return amp__lexer_fault(lexer, lexer->token.at, NULL, "braces nest at most %d deep", MAX_DEPTH);
        AMP_TRY(take_members(r, &group));
        if (!amp__lexer_take(lexer, "}"))
            return amp__lexer_fault(lexer, lexer->token.at, NULL, "expected ',' or '}'");
        r->depth--;
        *size = round_up(group.size, group.alignment);
        *alignment = group.alignment;
        *ffi = finish_group(r, &group);
        return AMP_OK;
    }
    const char *start = lexer->token.at;
    uint8_t kind = AMP__VOID; /* of a struct by its name, too: a pointer to it is all that can be */
    amp__lexer_take(lexer, "const");
    if (amp__lexer_take(lexer, "struct") && lexer->token.kind == AMP__TOKEN_WORD) {
        amp__lexer_advance(lexer);
    } else {
        const struct amp__type *type = amp__type_take(lexer);
        if (!type) return amp__type_unknown(lexer);
        kind = type->kind;
    }
    for (; amp__lexer_take(lexer, "*") || amp__lexer_take(lexer, "const");) kind = AMP__POINTER;
    if (kind == AMP__VOID || kind == AMP__BUFFER)
        return amp__lexer_fault(lexer, start,
                                kind == AMP__VOID ? "write pointer, or a struct's members in braces" : "write uint16",
                                "a member cannot be of this type");
    *kind_out = kind;
    *ffi = amp__ffi_type(kind);
    *size = (*ffi)->size;
    *alignment = (*ffi)->alignment;
    return AMP_OK;
}

/* [word] { '[' number ']' }; the limit keeps all that follows from overflowing */
static amp_status take_count(struct reader *r, uint64_t *count, struct amp__token *name) {
    struct amp__lexer *lexer = &r->lexer;
    struct amp__lexer ahead = *lexer;
    *count = 1;
    *name = (struct amp__token){ .length = 0 };
    if (lexer->token.kind == AMP__TOKEN_WORD && !amp__type_take(&ahead)) {
        *name = lexer->token;
        amp__lexer_advance(lexer);
    }
    while (amp__lexer_take(lexer, "[")) {
        const struct amp__token *token = &lexer->token;
        uint64_t n = 0;
        for (size_t i = 0; token->kind == AMP__TOKEN_NUMBER && i < token->length && n < UINT32_MAX; i++)
            n = n * 10 + (uint64_t)(token->at[i] - '0');
        if (!n || n * *count > AMP__STRUCT_LARGEST)
            return amp__lexer_fault(lexer, token->at, "as in float[4]", "expected a number of elements");
        *count *= n;
        amp__lexer_advance(lexer);
        if (!amp__lexer_take(lexer, "]")) return amp__lexer_fault(lexer, lexer->token.at, NULL, "expected ']'");
    }
    return AMP_OK;
}

/* ['@' number]: offset of the member, in a struct with some members unknown */
static amp_status take_place(struct reader *r, struct group *group) {
    struct amp__lexer *lexer = &r->lexer;
    const char *at = lexer->token.at;
    const bool place = !r->depth && amp__lexer_take(lexer, "@");
    if (r->depth) return AMP_OK;
    if (!group->n) r->placed = place;
    if (place != r->placed)
        return amp__lexer_fault(lexer, at, "as in @0 int32 n, @24 int32 batch",
                                "either all members say where they lie, or none does");
    if (!place) return AMP_OK;
    uint64_t offset = 0;
    const struct amp__token *token = &lexer->token;
    for (size_t i = 0; token->kind == AMP__TOKEN_NUMBER && i < token->length && offset < AMP__STRUCT_LARGEST; i++)
        offset = offset * 10 + (uint64_t)(token->at[i] - '0');
    if (token->kind != AMP__TOKEN_NUMBER || offset >= AMP__STRUCT_LARGEST)
        return amp__lexer_fault(lexer, token->at, "as in @24 int32 batch", "expected an offset in bytes");
    amp__lexer_advance(lexer);
    group->size = offset;
    return AMP_OK;
}

static void match_wanted(struct reader *r, const struct amp__token *name, uint64_t offset, uint8_t kind) {
    if (!r->wanted || r->found || name->length != r->wanted->length) return;
    if (memcmp(name->at, r->wanted->at, name->length) != 0) return;
    r->found = true;
    r->offset = offset;
    r->kind = kind;
}

/* member { ',' member }, also with ';' and a final separator as in C */
static amp_status take_members(struct reader *r, struct group *group) {
    struct amp__lexer *lexer = &r->lexer;
    do {
        uint64_t size = 0, alignment = 1, count;
        ffi_type *ffi = NULL;
        struct amp__token name;
        uint8_t kind;
        if (group->n && (lexer->token.kind == AMP__TOKEN_END || amp__token_is(&lexer->token, "}"))) break;
        const char *start = lexer->token.at;
        AMP_TRY(take_place(r, group));
        AMP_TRY(take_type(r, &size, &alignment, &ffi, &kind));
        AMP_TRY(take_count(r, &count, &name));
        if (r->placed && group->size % alignment)
            return amp__lexer_fault(lexer, start, "give offsetof of the member", "nothing of this type lies there");
        group->size = round_up(group->size, alignment) + size * count;
        if (!r->depth && group->size > r->end) r->end = group->size;
        if (!r->depth && count == 1) match_wanted(r, &name, group->size - size, kind);
        if (group->size > AMP__STRUCT_LARGEST)
            return amp__lexer_fault(lexer, start, NULL, "the members take more than %u bytes", AMP__STRUCT_LARGEST);
        if (alignment > group->alignment) group->alignment = alignment;
        for (uint64_t i = 0; r->building && i < count; i++) group->elements[group->n + i] = ffi;
        group->n += (size_t)count;
    } while (amp__lexer_take(lexer, ",") || amp__lexer_take(lexer, ";"));
    return AMP_OK;
}

static amp_status take_all(struct reader *r, const char *what, const char *members, struct group *group) {
    amp__lexer_start(&r->lexer, what, members);
    AMP_TRY(take_members(r, group));
    if (r->lexer.token.kind != AMP__TOKEN_END)
        return amp__lexer_fault(&r->lexer, r->lexer.token.at, NULL, "expected ',' or the end of the members");
    group->size = round_up(group->size, group->alignment);
    return AMP_OK;
}

/* ---- descriptors ---- */

static const amp_struct *nth(const amp_struct *structs, size_t i) {
    return (const amp_struct *)(const void *)((const char *)structs + i * structs->struct_size);
}

/* Of a struct that travels in registers every member must be known. */
static amp_status check_places(const char *what, const struct amp__struct *type, const struct reader *r) {
    AMP_RETURN_IF(type->size && type->size <= AMP__STRUCT_SMALL, AMP_ERR_SCHEMA,
                  "%s: with at most %u bytes it may travel in registers: list every member, without @", what,
                  AMP__STRUCT_SMALL);
    AMP_RETURN_IF(type->size && r->end > type->size, AMP_ERR_SCHEMA,
                  "%s: one ends at byte %llu, but the struct is declared with %llu byte%s", what,
                  (unsigned long long)r->end, (unsigned long long)type->size, AMP__S(type->size));
    return AMP_OK;
}

static amp_status check_layout(const struct amp__lexer *lexer, const struct amp__struct *type) {
    char what[160];
    struct reader r = { .building = false };
    struct group group = { .alignment = 1 };
    snprintf(what, sizeof what, "%.64s: members of struct %.64s", lexer->op, type->name);
    AMP_TRY(take_all(&r, what, type->members, &group));
    if (r.placed) return check_places(what, type, &r);
    AMP_RETURN_IF(group.size != type->size || group.alignment != type->alignment, AMP_ERR_SCHEMA,
                  "%s: they make a struct of %llu byte%s aligned to %llu, but it is declared with %llu byte%s aligned "
                  "to %u: give sizeof and _Alignof, and every member in its order (packed structs cannot be "
                  "described)", what, (unsigned long long)group.size, AMP__S(group.size),
                  (unsigned long long)group.alignment, (unsigned long long)type->size, AMP__S(type->size),
                  (unsigned)type->alignment);
    return AMP_OK;
}

static amp_status check_descriptor(const struct amp__lexer *lexer, const amp_struct *given) {
    AMP_RETURN_IF(given->flags || given->reserved, AMP_ERR_INVALID_ARGUMENT,
                  "%.64s: struct %.64s: flags and reserved must be 0", lexer->op, given->name);
    const uint32_t a = given->alignment;
    AMP_RETURN_IF(given->size && (!a || (a & (a - 1)) || given->size % a), AMP_ERR_SCHEMA,
                  "%.64s: struct %.64s: %llu byte%s aligned to %u cannot be: give sizeof and _Alignof", lexer->op,
                  given->name, (unsigned long long)given->size, AMP__S(given->size), (unsigned)a);
    return AMP_OK;
}

bool amp__struct_is_known(const struct amp__token *token, const amp_struct *structs, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (nth(structs, i)->name && amp__token_is(token, nth(structs, i)->name)) return true;
    return false;
}

static amp_status no_such_struct(const struct amp__lexer *lexer, const amp_struct *structs, size_t n) {
    const struct amp__token *token = &lexer->token;
    const char *names[MAX_NAMES];
    char word[64] = "", hint[192];
    amp__text text = { hint, sizeof hint, 0 };
    size_t n_names = 0;
    for (size_t i = 0; i < n && n_names < MAX_NAMES; i++)
        if (nth(structs, i)->name) names[n_names++] = nth(structs, i)->name;
    memcpy(word, token->at, token->length < sizeof word ? token->length : sizeof word - 1);
    amp__text_add(&text, "did you mean ");
    const size_t empty = text.length;
    amp__nearest_names(&text, word, names, n_names);
    amp__text_add(&text, "?");
    return amp__lexer_fault(lexer, token->at,
                            text.length > empty + 1 ? hint
                            : n ? "describe it in structs; a pointer that libamp may ignore is a pointer"
                                : "there are none; a pointer that libamp may ignore is a pointer",
                            "structs does not describe it");
}

amp_status amp__struct_find(const struct amp__lexer *lexer, const amp_struct *structs, size_t n_structs,
                            struct amp__struct *out) {
    for (size_t i = 0; i < n_structs; i++) {
        amp_struct given;
        AMP_RETURN_IF(nth(structs, i)->struct_size != structs->struct_size, AMP_ERR_ABI_MISMATCH,
                      "%.64s: structs[%zu].struct_size is %u, but structs[0].struct_size is %u: all elements of an "
                      "array have one size",
                      lexer->op, i, (unsigned)nth(structs, i)->struct_size, (unsigned)structs->struct_size);
        const amp_status status =
            amp__copy_struct(&given, sizeof given, sizeof given, nth(structs, i), structs->struct_size, "amp_struct");
        if (status != AMP_OK) return amp__fail_prefix(status, "%.64s", lexer->op);
        if (!given.name || !amp__token_is(&lexer->token, given.name)) continue;
        AMP_TRY(check_descriptor(lexer, &given));
        const struct amp__struct found = { given.name, given.members, given.size, given.alignment };
        if (found.members) AMP_TRY(check_layout(lexer, &found));
        *out = found;
        return AMP_OK;
    }
    return no_such_struct(lexer, structs, n_structs);
}

amp_status amp__struct_check_value(const struct amp__lexer *lexer, const char *at, const struct amp__struct *type) {
    if (!type->size)
        return amp__lexer_fault(lexer, at, "give sizeof and _Alignof",
                                "to pass this struct by value libamp must know its size");
    if (type->size > AMP__STRUCT_LARGEST)
        return amp__lexer_fault(lexer, at, "pass a pointer to it", "a struct by value has at most %u bytes",
                                AMP__STRUCT_LARGEST);
    if (type->alignment > AMP__STRUCT_ALIGNMENT)
        return amp__lexer_fault(lexer, at, "pass a pointer to it",
                                "a struct aligned to more than %u bytes cannot be passed by value",
                                AMP__STRUCT_ALIGNMENT);
    if (type->size <= AMP__STRUCT_SMALL && !type->members)
        return amp__lexer_fault(lexer, at, "describe them in its amp_struct, as in \"float, float, int32\"",
                                "a struct of at most %u bytes travels in registers that depend on its members",
                                AMP__STRUCT_SMALL);
    return AMP_OK;
}

amp_status amp__struct_member(const struct amp__lexer *lexer, const struct amp__struct *type, uint32_t *offset,
                              uint8_t *kind) {
    struct reader r = { .wanted = &lexer->token };
    struct group group = { .alignment = 1 };
    if (!type->members)
        return amp__lexer_fault(lexer, lexer->token.at, "list them in its amp_struct, all or those with @ and offsetof",
                                "this struct does not tell its members");
    AMP_TRY(take_all(&r, type->name, type->members, &group));
    if (!r.found || r.kind < AMP__INT8 || r.kind > AMP__UINT64)
        return amp__lexer_fault(lexer, lexer->token.at, "name it behind its type, as in int32 n, in its amp_struct",
                                r.found ? "this member is no integer" : "the struct has no member of this name");
    *offset = (uint32_t)r.offset;
    *kind = r.kind;
    return AMP_OK;
}

/* ---- libffi ---- */

void amp__struct_measure(const struct amp__struct *type, struct amp__struct_needs *needs) {
    struct reader r = { .building = false };
    struct group group = { .alignment = 1 };
    *needs = (struct amp__struct_needs){ 1, 2 };
    if (type->size > AMP__STRUCT_SMALL || take_all(&r, type->name, type->members, &group) != AMP_OK) return;
    (void)finish_group(&r, &group);
    *needs = r.needs;
}

ffi_type *amp__struct_build(const struct amp__struct *type, ffi_type **types, ffi_type ***pointers) {
    struct reader r = { .building = type->size <= AMP__STRUCT_SMALL, .types = types, .pointers = pointers };
    struct group group = { .alignment = 1 };
    if (r.building) {
        if (take_all(&r, type->name, type->members, &group) != AMP_OK) return NULL;
        ffi_type *ffi = finish_group(&r, &group);
        size_t offsets[AMP__STRUCT_SMALL];
        if (ffi_get_struct_offsets(FFI_DEFAULT_ABI, ffi, offsets) != FFI_OK) return NULL;
        return ffi->size == type->size && ffi->alignment == type->alignment ? ffi : NULL;
    }
    /* libffi computes size and alignment only where the size is 0; of the elements it wants one to be there. */
    r.building = true;
    group.elements[group.n++] = &ffi_type_uint8;
    ffi_type *ffi = finish_group(&r, &group);
    ffi->size = (size_t)type->size;
    ffi->alignment = (unsigned short)type->alignment;
    return ffi;
}
