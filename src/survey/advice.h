/* SPDX-License-Identifier: Apache-2.0 */
/* The advice of a survey: a list with each kind once for each subject, the worst first. */
#ifndef AMP_ADVICE_H
#define AMP_ADVICE_H

#include "observe/observe.h"

enum amp__advice_kind {
#define ADVICE(name, ...) AMP__##name,
#include "survey/advice.inc"
#undef ADVICE
    AMP__ADVICES
};

struct amp__advised {
    struct amp__advised *next;
    enum amp__advice_kind kind;
    const char *seen; /* the observation, a part of `message` of seen_length bytes */
    size_t seen_length;
    amp_advice advice; /* its texts are `message`, and the observer's */
    char message[];
};

struct amp__advice_list {
    struct amp__advised *first;
    size_t n;
    amp_status status; /* of the memory that it takes */
    bool python;       /* remedies name Python's functions */
};

/* The subject of an advice: an op or a parameter, with elements concerned and observed. */
struct amp__about {
    const struct amp__seen *seen; /* NULL: of all */
    uint32_t levels;
    uint64_t elements, of;
};

/* Once for each kind and op, or parameter: the first word stays, worse numbers replace it. */
void amp__advise(struct amp__advice_list *list, enum amp__advice_kind kind, const struct amp__about *about,
                 const char *format, ...) AMP_PRINTF(4, 5);
bool amp__advises(const struct amp__advice_list *list, enum amp__advice_kind kind);
const char *amp__advice_title(enum amp__advice_kind kind);
const char *amp__advice_mend(const struct amp__advice_list *list, enum amp__advice_kind kind);
/* Can it be mended by amp_register? */
bool amp__is_of_an_op(enum amp__advice_kind kind);
bool amp__is_of_speed(enum amp__advice_kind kind);
void amp__advice_free(struct amp__advice_list *list);

#endif
