/* SPDX-License-Identifier: Apache-2.0 */
/* Records of an observed training (amp_observe.h), as tuples that libamp.torch.amp.observing names. */
#include "context.h"

#include <stdlib.h>

/* ---- begin and end ---- */

static const char **read_names(PyObject *list, uint32_t *n) {
    const Py_ssize_t length = PySequence_Size(list);
    const char **names = length < 0 ? NULL : calloc((size_t)length + 1, sizeof *names);
    if (!names) return length < 0 ? NULL : (PyErr_NoMemory(), NULL);
    for (Py_ssize_t i = 0; i < length; i++) {
        PyObject *name = PyList_GetItem(list, i); /* borrowed: the list lives as long as the call */
        names[i] = name ? PyUnicode_AsUTF8AndSize(name, NULL) : NULL;
        if (!names[i]) {
            free(names);
            return NULL;
        }
    }
    *n = (uint32_t)length;
    return names;
}

PyObject *amp_py_Context_observe(PyObject *self, PyObject *args) {
    amp_py_Context *context = amp_py_live(self);
    amp_observe_options options = AMP_OBSERVE_OPTIONS_INIT;
    PyObject *list;
    unsigned what, every, first, after_skip, sample = 1;
    unsigned long long max_bytes;
    if (!context || !PyArg_ParseTuple(args, "IIIIO!K|I:observe", &what, &every, &first, &after_skip,
                                             &PyList_Type, &list, &max_bytes, &sample))
        return NULL;
    const char **names = read_names(list, &options.n_names);
    if (!names) return NULL;
    options.what = what;
    options.every = every;
    options.first = first;
    options.after_skip = after_skip;
    options.names = names;
    options.max_bytes = max_bytes;
    options.sample = sample;
    const amp_status status = amp_observe(context->amp, &options);
    free(names);
    return status == AMP_OK ? Py_NewRef(Py_None) : amp_py_context_raise(context, status);
}

PyObject *amp_py_Context_observe_stop(PyObject *self, PyObject *unused) {
    amp_py_Context *context = amp_py_live(self);
    (void)unused;
    if (!context) return NULL;
    return amp_py_result(amp_observe_stop(context->amp));
}

PyObject *amp_py_Context_observing(PyObject *self, PyObject *unused) {
    const amp_py_Context *context = (amp_py_Context *)self;
    (void)unused;
    return PyBool_FromLong(context->amp && amp_is_observing(context->amp));
}

/* ---- a call ---- */

/* Records a call. `values`: a list of (name, tensor, is_output). is_cast: a conversion, which counts for no op. */
PyObject *amp_py_Context_observe_call(PyObject *self, PyObject *args) {
    amp_py_Context *context = amp_py_live(self);
    amp_observed_call call = AMP_OBSERVED_CALL_INIT;
    PyObject *list;
    int in_backward, is_cast = 0;
    if (!context || !PyArg_ParseTuple(args, "szpO!|pz:observe_call", &call.op, &call.where, &in_backward,
                                             &PyList_Type, &list, &is_cast, &call.line))
        return NULL;
    const Py_ssize_t n = PyList_Size(list);
    amp_observed_value *values = calloc((size_t)n + 1, sizeof *values);
    if (!values) return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *tensor;
        int is_output;
        if (!PyArg_ParseTuple(PyList_GetItem(list, i), "sOp", &values[i].name, &tensor, &is_output)) {
            free(values);
            return NULL;
        }
        values[i].tensor = tensor;
        values[i].is_output = is_output;
    }
    call.in_backward = in_backward;
    call.is_cast = is_cast;
    call.values = values;
    call.n_values = (uint64_t)n;
    const amp_status status = amp_observe_call(context->amp, &call);
    free(values);
    return status == AMP_OK ? Py_NewRef(Py_None) : amp_py_context_raise(context, status);
}

/* A loss and a remark, for the trace. */
PyObject *amp_py_Context_observe_loss(PyObject *self, PyObject *args) {
    const amp_py_Context *context = amp_py_live(self);
    unsigned loss_id;
    double loss;
    if (!context || !PyArg_ParseTuple(args, "Id:observe_loss", &loss_id, &loss)) return NULL;
    return amp_py_result(amp_observe_loss(context->amp, loss_id, loss));
}

PyObject *amp_py_Context_observe_remark(PyObject *self, PyObject *args) {
    const amp_py_Context *context = amp_py_live(self);
    const char *about, *text;
    if (!context || !PyArg_ParseTuple(args, "ss:observe_remark", &about, &text)) return NULL;
    return amp_py_result(amp_observe_remark(context->amp, about, text));
}

/* ---- records ---- */

PyObject *amp_py_Context_observations(PyObject *self, PyObject *unused) {
    const amp_py_Context *context = amp_py_live(self);
    size_t n = 0, told = 0;
    (void)unused;
    if (!context) return NULL;
    amp_status status = amp_get_observations(context->amp, NULL, 0, &n);
    amp_observation *seen = calloc(n + 1, sizeof *seen);
    if (!seen) return PyErr_NoMemory();
    seen[0] = (amp_observation)AMP_OBSERVATION_INIT;
    if (status == AMP_OK && n > 0) status = amp_get_observations(context->amp, seen, n, &told);
    PyObject *list = status == AMP_OK ? PyList_New(0) : amp_py_raise(status);
    for (size_t i = 0; i < n && i < told && list; i++) {
        PyObject *entry = Py_BuildValue("(IzsiKKKNN)", (unsigned)seen[i].what, seen[i].op, seen[i].name,
                                        (int)seen[i].dtype, (unsigned long long)seen[i].iterations,
                                        (unsigned long long)seen[i].lost_fp16, (unsigned long long)seen[i].lost_bf16,
                                        amp_py_statistics(seen[i].last), amp_py_statistics(seen[i].total));
        if (!entry || PyList_Append(list, entry)) Py_CLEAR(list);
        Py_XDECREF(entry);
    }
    free(seen);
    return list;
}

static PyObject *arguments_of(const amp_culprit *culprit) {
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list && i < culprit->n_arguments; i++) {
        const amp_seen_argument *a = &culprit->arguments[i];
        PyObject *entry = Py_BuildValue("(sNiKKdd)", a->name, PyBool_FromLong(a->is_output), (int)a->dtype,
                                        (unsigned long long)a->elements, (unsigned long long)a->nonfinite, a->largest,
                                        a->least);
        if (!entry || PyList_Append(list, entry)) Py_CLEAR(list);
        Py_XDECREF(entry);
    }
    return list;
}

PyObject *amp_py_Context_culprit(PyObject *self, PyObject *unused) {
    const amp_py_Context *context = amp_py_live(self);
    amp_culprit culprit = AMP_CULPRIT_INIT;
    (void)unused;
    if (!context) return NULL;
    const amp_status status = amp_get_culprit(context->amp, &culprit);
    if (status != AMP_OK) return amp_py_raise(status);
    if (culprit.bracket == 0) return Py_NewRef(Py_None);
    return Py_BuildValue("(zKKNNzNizKK)", culprit.op, (unsigned long long)culprit.bracket,
                         (unsigned long long)culprit.call, PyBool_FromLong(culprit.was_cast),
                         PyBool_FromLong(culprit.in_backward), culprit.parameter, arguments_of(&culprit),
                         (int)culprit.cause, culprit.weight, (unsigned long long)culprit.since,
                         (unsigned long long)culprit.since_least);
}

/* ---- memory and the survey ---- */

static const char *name_of_level(int level) {
    switch (level) {
#define LEVEL(name, value, ...) case name: return &#name[4]; /* AMP_O1 */
        AMP_LEVEL_MAP(LEVEL)
#undef LEVEL
    default: return "?";
    }
}

static PyObject *memory_tuple(const amp_memory *m) {
    return Py_BuildValue("(sKKKKKKKKKKKK)", name_of_level((int)m->level), (unsigned long long)m->weights,
                         (unsigned long long)m->gradients, (unsigned long long)m->masters,
                         (unsigned long long)m->master_gradients, (unsigned long long)m->moments,
                         (unsigned long long)m->casts, (unsigned long long)m->most_casts,
                         (unsigned long long)m->outputs, (unsigned long long)m->packed_from,
                         (unsigned long long)m->packed, (unsigned long long)m->masters_split,
                         (unsigned long long)m->moments_8bit);
}

PyObject *amp_py_Context_observe_moments(PyObject *self, PyObject *args) {
    const amp_py_Context *context = amp_py_live(self);
    unsigned long long moments, moments_8bit;
    if (!context || !PyArg_ParseTuple(args, "KK:observe_moments", &moments, &moments_8bit)) return NULL;
    const amp_status status = amp_observe_moments(context->amp, moments, moments_8bit);
    return status == AMP_OK ? Py_NewRef(Py_None) : amp_py_raise(status);
}

PyObject *amp_py_Context_memory(PyObject *self, PyObject *args) {
    const amp_py_Context *context = amp_py_live(self);
    const char *name = NULL;
    amp_memory memory = AMP_MEMORY_INIT;
    amp_level level;
    if (!context || !PyArg_ParseTuple(args, "|z:memory", &name)) return NULL;
    amp_status status = name ? amp_level_from_name(name, &level) : AMP_OK;
    if (status == AMP_OK)
        status = name ? amp_predict_memory(context->amp, level, &memory) : amp_get_memory(context->amp, &memory);
    return status == AMP_OK ? memory_tuple(&memory) : amp_py_raise(status);
}

static PyObject *level_names(uint32_t bits) {
    PyObject *list = PyList_New(0);
    for (int level = 0; list && bits >> level; level++) {
        PyObject *name = bits >> level & 1 ? PyUnicode_FromString(name_of_level(level)) : Py_NewRef(Py_None);
        if (!name || (name != Py_None && PyList_Append(list, name))) Py_CLEAR(list);
        Py_XDECREF(name);
    }
    return list;
}

static PyObject *advice_list(const amp_survey_result *result) {
    PyObject *list = PyList_New(0);
    for (uint64_t i = 0; list && i < result->n_advice; i++) {
        const amp_advice *a = (const amp_advice *)((const char *)result->advice + i * result->advice[0].struct_size);
        PyObject *entry = Py_BuildValue("(szzNKKdN)", a->code, a->op, a->name, level_names(a->levels),
                                        (unsigned long long)a->elements, (unsigned long long)a->of, a->largest,
                                        PyUnicode_FromString(a->message));
        if (!entry || PyList_Append(list, entry)) Py_CLEAR(list);
        Py_XDECREF(entry);
    }
    return list;
}

static PyObject *levels_list(const amp_survey_result *result) {
    PyObject *list = PyList_New(0);
    for (uint64_t i = 0; list && i < result->n_levels; i++) {
        const amp_surveyed_level *level =
            (const amp_surveyed_level *)((const char *)result->levels + i * result->levels[0].struct_size);
        PyObject *entry = Py_BuildValue("(iIN)", (int)level->fits, (unsigned)level->n_advice,
                                        memory_tuple(&level->memory));
        if (!entry || PyList_Append(list, entry)) Py_CLEAR(list);
        Py_XDECREF(entry);
    }
    return list;
}

static PyObject *losses_tuple(const amp_fp8_losses *l) {
    return Py_BuildValue("(KKK)", (unsigned long long)l->zeros, (unsigned long long)l->subnormals,
                         (unsigned long long)l->saturated);
}

static PyObject *fp8_list(const amp_survey_result *result) {
    PyObject *list = PyList_New(0);
    for (uint64_t i = 0; list && i < result->n_fp8; i++) {
        const amp_fp8_input *input =
            (const amp_fp8_input *)((const char *)result->fp8 + i * result->fp8[0].struct_size);
        PyObject *entry = Py_BuildValue("(ssNNKNNKNN)", input->op, input->name, PyBool_FromLong(input->in_backward),
                                        PyBool_FromLong(input->stays), (unsigned long long)input->numbers,
                                        losses_tuple(&input->e4m3), losses_tuple(&input->e5m2),
                                        (unsigned long long)input->block_numbers, losses_tuple(&input->e4m3_blocks),
                                        losses_tuple(&input->e5m2_blocks));
        if (!entry || PyList_Append(list, entry)) Py_CLEAR(list);
        Py_XDECREF(entry);
    }
    return list;
}

PyObject *amp_py_Context_survey(PyObject *self, PyObject *unused) {
    const amp_py_Context *context = amp_py_live(self);
    amp_survey_result result = AMP_SURVEY_RESULT_INIT;
    (void)unused;
    if (!context) return NULL;
    const amp_status status = amp_survey(context->amp, &result);
    if (status != AMP_OK) return amp_py_raise(status);
    return Py_BuildValue("(sdKNNNN)", name_of_level((int)result.level), (double)result.init_scale,
                         (unsigned long long)result.iterations, advice_list(&result), levels_list(&result),
                         fp8_list(&result), PyUnicode_FromString(result.text));
}
