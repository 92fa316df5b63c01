/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libamp: automatic mixed precision behind one C ABI. The host, any training framework that can call C, keeps its
 * tensors, autograd, kernels and optimizer. It describes them once, and libamp wires the policy of a level into the
 * host's own function pointers:
 *
 *     static amp_dtype dtype_of(void *self, void *tensor) { return is_half(tensor) ? AMP_FLOAT16 : AMP_FLOAT32; }
 *     static amp_status cast(void *self, void *tensor, amp_dtype to, void **out) {
 *         *out = tensor_to(tensor, to == AMP_FLOAT16);                 a copy, on the tape
 *         return *out ? AMP_OK : AMP_ERR_HOST_FAILED;
 *     }
 *     static void release(void *self, void *tensor) { tensor_free(tensor); }
 *     ...                                                  view, grad, scale: demo/adapter.c has them all
 *     amp_host host = AMP_HOST_INIT;
 *     host.dtype = dtype_of, host.cast = cast, host.release = release;
 *     host.view = view, host.grad = grad, host.scale = scale;
 *
 *     amp_op op = AMP_OP_INIT;                                         each function pointer that computes
 *     op.name = "linear", op.slot = (amp_fn *)&functions.linear;
 *     op.schema = "linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor";
 *
 *     amp_model model = AMP_MODEL_INIT;
 *     model.host = &host, model.ops = &op, model.n_ops = 1;
 *     amp_optimizer optimizer = AMP_OPTIMIZER_INIT;
 *     optimizer.params = parameters, optimizer.n_params = n;
 *     if (amp_initialize(&model, &optimizer, AMP_O1)) return puts(amp_last_error()), 1;
 *
 *     for (int i = 0; i < iterations; i++) {
 *         amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
 *         amp_step_info info = AMP_STEP_INFO_INIT;
 *         clear_grads(parameters, n);
 *         void *loss = forward(batch(i));                              linear sees fp16: its slot is wrapped
 *         if (amp_scale_loss_begin(&optimizer, loss, &scaled)) return puts(amp_last_error()), 1;
 *         backward(scaled.loss);
 *         if (amp_scale_loss_end(&scaled)) return puts(amp_last_error()), 1;
 *         if (amp_step_begin(&optimizer, &info)) return puts(amp_last_error()), 1;
 *         if (info.action == AMP_STEP) update(parameters, n);          or skip: a gradient was not finite
 *         if (amp_step_end(&optimizer)) return puts(amp_last_error()), 1;
 *     }
 *     return amp_shutdown(model.amp);                                  every slot and every parameter as before
 *
 * Further headers, each a page: amp_types.h (statuses, types; included here), amp_train.h (several losses,
 * micro-batches, masters written between steps), amp_call.h (calls without slots, scopes), amp_raw.h (float buffers,
 * structs), amp_state.h (checkpoints), amp_diagnostics.h (events, counters), amp_gate.h (implementations; what runs in
 * FP32), amp_ranks.h (ranks, devices), amp_api.h (the table for dlopen), amp_kernels.h, amp_optim.h, amp_pack.h,
 * amp_observe.h, amp_device.h, amp_serve.h, amp_nccl.h, amp_mpi.h, amp_symbol.h. amp_all.h has all but the last two.
 *
 * Ownership. "Borrowed": valid during the call only, unless a longer time is stated. "Kept": the pointer must stay
 * valid until amp_shutdown. "Moves": the other side must now give it back or release it.
 *
 * Errors. Every fallible function returns an amp_status; on anything but AMP_OK nothing has changed, nothing has
 * leaked, out-parameters are untouched and amp_last_error() says in words what was wrong, where, and what to do. But
 * amp_scale_loss_end (action: AMP_SKIP), _cancel and amp_step_end close anyway, amp_check clears, amp_shutdown frees.
 *
 * Threads. Different contexts are independent. In one, wrapped ops, amp_op_target, amp_cast_args and _done, scopes,
 * amp_explain and amp_get_op_stats may run on any threads at once. Initialize, shutdown, steps, masters, clipping and
 * states run on one thread at a time, while no other runs ops. Brackets and other diagnostics: one thread at a time.
 */
#ifndef AMP_H
#define AMP_H

#include "amp_scaler.h"
#include "amp_types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header; amp_version() returns that of the library. */
#define AMP_VERSION_MAJOR 0
#define AMP_VERSION_MINOR 1
#define AMP_VERSION_PATCH 0
#define AMP_SOVERSION 0 /* of libamp.so.0. docs/reference/abi.md: what may change */

/* ---- Levels ------------------------------------------------------------------------------------------------------ */

/* Opt levels: O0 to O3 as in Apex; O4 and O5 are O1 and O2 with bfloat16 and no loss scaling, as in ROCm's fork.
 * X(constant, value (from 1, so that a zeroed structure is no level), description, 16-bit type, and the properties
 * that amp_config can override: cast_model_type, patch_ops, keep_batchnorm_fp32, master_weights (1: on),
 * loss_scale). */
#define AMP_LEVEL_MAP(X)                                                                                               \
    X(AMP_O0, 1, "everything in FP32: the reference", AMP_FLOAT16, AMP_FLOAT32, 0, 0, 0, 1.0f)                         \
    X(AMP_O1, 2, "ops cast by the lists, fp16, dynamic scaling; the model stays FP32",                                 \
      AMP_FLOAT16, AMP_DTYPE_UNCHANGED, 1, 0, 0, AMP_DYNAMIC)                                                          \
    X(AMP_O2, 3, "the model in fp16 but for batch norm, FP32 masters, dynamic scaling",                                \
      AMP_FLOAT16, AMP_FLOAT16, 0, 1, 1, AMP_DYNAMIC)                                                                  \
    X(AMP_O3, 4, "all in fp16", AMP_FLOAT16, AMP_FLOAT16, 0, 0, 0, 1.0f)                                               \
    X(AMP_O4, 5, "O1 in bfloat16, without scaling", AMP_BFLOAT16, AMP_DTYPE_UNCHANGED, 1, 0, 0, 1.0f)                  \
    X(AMP_O5, 6, "O2 in bfloat16, without scaling", AMP_BFLOAT16, AMP_BFLOAT16, 0, 1, 1, 1.0f)

/* The levels. */
typedef int32_t amp_level;
enum {
#define AMP_LEVEL_CONSTANT(name, value, text, ...) name = value,
    AMP_LEVEL_MAP(AMP_LEVEL_CONSTANT)
#undef AMP_LEVEL_CONSTANT
};

/* Finds a level by its name: "O1" (the letter O) gives AMP_O1. AMP_ERR_INVALID_ARGUMENT for other names. */
AMP_API AMP_MUST_CHECK amp_status amp_level_from_name(const char *name, amp_level *level);

/* ---- The host's hooks ------------------------------------------------------------------------------------------- */

struct amp_field; /* amp_raw.h */
struct amp_struct;
struct amp_event; /* amp_diagnostics.h */
struct amp_fused; /* amp_optim.h */

/* Reports one field to libamp. emit_self: the last argument of the hook `visit`. */
typedef amp_status (*amp_emit)(void *emit_self, const struct amp_field *field);

/* Flags of amp_host. */
enum {
    /* The tape of the host holds references to the arguments of its ops, so that libamp may release temporaries when
     * the op returns. Without it temporaries live until amp_tape_done, or until every optimizer stepped or skipped. */
    AMP_HOST_TAPE_RETAINS_INPUTS = 1u << 0,
    /* The host seeds backward and reads *amp_scaled_loss.scale on the device. Without it libamp waits for the scale. */
    AMP_HOST_SEEDS_ON_DEVICE = 1u << 1,
    /* `version` misses some writes (PyTorch's `.data`): libamp compares checksums of parameters with masters. */
    AMP_HOST_VERSION_MISSES_WRITES = 1u << 2,
    AMP_HOST_IS_PYTHON = 1u << 3 /* a Python program: remedies in messages and in the trace name Python's functions */
};

/*
 * The functions by which libamp works on tensors of the host. Every hook is optional: a call that needs a missing hook
 * fails and names it; docs/reference/hooks.md lists the hooks that each level needs. A handle (void *tensor) is a
 * tensor of the host, which libamp never interprets. A hook reports failure with AMP_ERR_HOST_FAILED or another
 * negative status. Hooks run on the thread that called libamp. Ops that a hook calls are not cast.
 */
typedef struct amp_host {
    uint32_t struct_size; /* sizeof(amp_host); AMP_HOST_INIT sets it */
    uint32_t flags;       /* AMP_HOST_* */
    void *self;           /* passed to every hook */

    /* Describes the elements of a tensor in *view, which is zeroed before the call. Shape and strides must stay valid
     * until the next call of `view` on this thread. Fails for tensors without plain elements (sparse). */
    amp_status (*view)(void *self, void *tensor, amp_tensor_view *view);
    /* Returns the logical type. Called in every wrapped call, so it should be cheap. Without it: the type of `view`. */
    amp_dtype (*dtype)(void *self, void *tensor);
    /* Makes a copy in another type and records the cast on the tape, so that backward returns a gradient in the type of
     * the source. *out moves to libamp, which passes it to `release`. */
    amp_status (*cast)(void *self, void *tensor, amp_dtype to, void **out);
    /* Releases a handle that had moved to libamp. Cannot fail. */
    void (*release)(void *self, void *tensor);
    /* Returns a number that identifies the storage, the same for every handle on it. 0: none. */
    uint64_t (*id)(void *self, void *tensor);
    /* Returns a number that changes whenever elements change in place. If it misses writes, leave the hook out, or call
     * amp_cache_clear and amp_masters_reconcile after such writes: docs/reference/hooks.md. */
    uint64_t (*version)(void *self, void *tensor);
    /* Returns 1 if the tape records on this thread now. Without it: always 1. */
    int32_t (*grad_enabled)(void *self);
    /* Writes the gradient of a parameter to *grad, or NULL if it has none. The handle is borrowed. */
    amp_status (*grad)(void *self, void *tensor, void **grad);
    /* Replaces the gradient by `grad` (NULL: by none). The old handle moves to libamp, which restores it with another
     * set_grad or passes it to `release`. The reference to `grad` moves to the host. */
    amp_status (*set_grad)(void *self, void *tensor, void *grad);
    /* Exchanges the storage of a handle with *storage. Shape, strides and handle stay, the type may change, and element
     * 0 is the first of the block. Called for parameters and buffers, which are compact, and for gradients, whose
     * strides may leave gaps: the block then includes the gaps. */
    amp_status (*swap_data)(void *self, void *tensor, amp_storage *storage);
    /* Computes loss * factor and records it on the tape. *out moves to libamp. */
    amp_status (*scale)(void *self, void *loss, float factor, void **out);
    /* Allocates `bytes` bytes (never 0) on `device`, aligned for elements of any type. Fills data, owner, bytes. */
    amp_status (*alloc)(void *self, uint64_t bytes, amp_device device, amp_purpose purpose, amp_storage *storage);
    /* Frees a block of `alloc`. Cannot fail. */
    void (*free)(void *self, amp_storage *storage);
    /* Receives skips, scale changes, warnings and deferred errors (amp_diagnostics.h). Must not call libamp. */
    void (*event)(void *self, const struct amp_event *event);
    /* Reduces `n` values over the ranks of a distributed host, in place, with the same result on each: amp_ranks.h. */
    amp_status (*reduce)(void *self, amp_reduction reduction, double *values, size_t n);
    /* Emits each FP32 buffer and handle inside the structs of a call that the op reads or writes (amp_raw.h). op: the
     * name in its descriptor. args[i]: the address of the value of argument i. */
    amp_status (*visit)(void *self, const char *op, void *const *args, amp_emit emit, void *emit_self);
    /* Writes the stream (cudaStream_t) that the host uses on `device` on this thread now: amp_ranks.h. */
    amp_status (*current_stream)(void *self, amp_device device, void **stream);
    /* Like `scale`, with the factor in memory of the device of the loss: amp_ranks.h. */
    amp_status (*scale_by)(void *self, void *loss, const float *factor, void **out);
    /* Returns 0 if there are no other ranks now, so that `reduce` is not called. Equal on every rank. Without it: 1. */
    int32_t (*has_ranks)(void *self);
    /* Like `reduce`, for values in device memory, ordered on `stream`: amp_ranks.h, amp_nccl.h. */
    amp_status (*reduce_on_device)(void *self, amp_reduction reduction, void *stream, float *values, size_t n);
} amp_host;

#define AMP_HOST_INIT AMP_SIZED_(amp_host)

/* ---- Ops -------------------------------------------------------------------------------------------------------- */

/* Flags of amp_op. */
enum {
    AMP_OP_DIRECT = 1u << 0, /* slot is NULL: the host calls amp_cast_args around the function */
    AMP_OP_RETURN_BORROWED = 1u << 1, /* the caller does not release the returned handle */
    AMP_OP_SEEDS = 1u << 2, /* the op reads the seed of backward: `visit` emits it with AMP_ROLE_SEED, or the schema has
                               `float(seed) x[...]`. In a bracket the op sees it times the loss scale, and
                               amp_seed_factor returns 1. Only one bracket may be open at a time */
    AMP_OP_COPY = 1u << 3, /* slot lies in a const table, which is never written: see amp_wrap_table */
    AMP_OP_MATMUL = 1u << 4, /* the op computes a product that amp_matmul can compute in either type: amp_gate.h */
    AMP_OP_STATEFUL = 1u << 5, /* has state, draws random numbers or allocates: amp_config.verify calls it once only */
    AMP_OP_REGISTERED = 1u << 30 /* set by amp_register */
};

/*
 * One function pointer of the host. The schema is its C prototype in PyTorch's notation (docs/reference/schema.md):
 *
 *     linear(Tensor input, Tensor weight, Tensor? bias) -> Tensor
 *     add_(Tensor(a!) self, Tensor other, float alpha) -> void
 *     cat(Tensor[] tensors, int32 n, int32 dim) -> Tensor
 *     step(pointer self) -> int32
 *     matmul(float(out a!) out[M,N], float a[M,K], float b[K,N], int32 M, int32 N, int32 K) -> void
 *     forward(struct layer l, struct network *net) -> void
 *
 * A schema that differs from the real function is undefined behaviour, as a wrong C prototype is. amp_initialize copies
 * descriptors and strings, and keeps the slot and the values behind on_failure and on_skip. A slot that needs no
 * wrapper at the level is neither read nor written.
 */
typedef struct amp_op {
    uint32_t struct_size; /* sizeof(amp_op); AMP_OP_INIT sets it. The stride of arrays, the same in all entries */
    uint32_t flags; /* AMP_OP_* */
    amp_class op_class; /* AMP_BY_LIST (0), or a class that overrides the lists. Levels that cast no ops (O0, O2, O3,
                           O5, patch_ops OFF) leave every op alone, except for the rounding of `emulate` */
    int32_t reserved;   /* 0 */
    const char *name;        /* a name of the cast lists, or another one */
    const char *aliases;     /* further names to search in the lists, comma-separated, or NULL */
    const char *schema;      /* NULL for AMP_OP_DIRECT only */
    const char *backward_of; /* name of the forward op that gives this backward op its class, or NULL */
    amp_fn *slot;            /* address of the function pointer. An empty slot (*slot == NULL) is ignored */
    amp_fn fp16; /* implementation for calls with fp16 in all floating arguments, or NULL: amp_gate.h */
    amp_fn bf16;             /* the same for bfloat16 */
    amp_fn fp32;             /* the same for FP32, instead of the function in the slot */
    const void *on_failure; /* return value if a cast failed and the op was not called (NULL: zeros) */
    const void *on_skip;    /* steps: return value if the step was skipped (NULL: zeros) */
} amp_op;

#define AMP_OP_INIT AMP_SIZED_(amp_op)

/* ---- Model and optimizer ---------------------------------------------------------------------------------------- */

/* The kind of module a parameter or buffer belongs to. */
enum {
    AMP_MODULE_OTHER = 0,     /* any other module */
    AMP_MODULE_BATCH_NORM = 1 /* batch norm: stays FP32 if keep_batchnorm_fp32 is on */
};

/* A parameter of a model, or a floating buffer such as the running statistics of batch norm. */
typedef struct amp_param {
    uint32_t struct_size;
    int32_t module_kind; /* AMP_MODULE_* */
    void *tensor;        /* handle, kept */
    const char *name;    /* copied (NULL: "param.<index>") */
} amp_param;

#define AMP_PARAM_INIT AMP_SIZED_(amp_param)

/* Flags of amp_model. */
enum {
    /* Parameters may be 16-bit before amp_initialize, and keep their type. Masters are then widened from them. Without
     * the flag a 16-bit parameter is an error, since its FP32 value is lost. */
    AMP_MODEL_LOW_PARAMS = 1u << 0,
    /* ops is the whole table of the host, and the model uses a part of it: unused ops are no finding. */
    AMP_MODEL_WHOLE_TABLE = 1u << 1
};

/* A model: its ops, parameters and forward. At O2, O3 and O5 a call of forward casts its floating tensor arguments to
 * the 16-bit type, and its result to FP32 or cast_model_outputs. At every level it enters the scope of the context. If
 * several models share a forward slot, the `self` argument in its schema tells them apart. */
typedef struct amp_model {
    uint32_t struct_size;
    uint32_t flags; /* AMP_MODEL_* */
    const amp_host *host; /* copied; the object of its self is kept */
    void *self;           /* value of the `self` argument of forward (not NULL if its schema has one) */
    amp_op *ops;          /* the ops of the host, borrowed */
    size_t n_ops;         /* entries of ops */
    const amp_param *params; /* parameters and floating buffers, borrowed */
    size_t n_params;      /* entries of params */
    amp_op *forward;      /* one op, or NULL */
    amp_context *amp;     /* written by initialize and shutdown (NULL before) */
    const struct amp_struct *structs; /* structs in the schemas of ops and forward */
    size_t n_structs;          /* entries of structs */
    uint64_t registered;       /* 0, private to amp_register */
} amp_model;

#define AMP_MODEL_INIT AMP_SIZED_(amp_model)

/* Flags of amp_optimizer. */
enum {
    AMP_OPTIMIZER_SHARDED = 1u << 0,       /* params are a part of the parameters, as in ZeRO: amp_ranks.h */
    AMP_OPTIMIZER_HOLDS_MASTERS = 1u << 1, /* the masters are tensors of the optimizer: amp_train.h */
    AMP_OPTIMIZER_SKIPS_ON_DEVICE = 1u << 2, /* the step reads found_inf on the device: amp_ranks.h */
    AMP_OPTIMIZER_GRADS_STAY = 1u << 3 /* gradients are not cleared after a step, as with momentum in them (AMP-M68) */
};

/* An optimizer of the host. A call of a slot in `steps` runs the step on the FP32 masters, or skips it after an
 * overflow. A call of one in `zero_grads` clears the gradients of the masters too. Hosts without such slots call
 * amp_step_begin and amp_step_end. A tied parameter appears once in params. The structure is kept. */
typedef struct amp_optimizer {
    uint32_t struct_size;
    uint32_t flags; /* AMP_OPTIMIZER_* */
    const amp_host *host; /* as in amp_model (NULL: the first model's) */
    void *self;           /* value of the `self` argument of a step (not NULL if its schema has one) */
    void *const *params;  /* borrowed array of the handles (kept) of the parameters to update */
    size_t n_params;      /* entries of params */
    amp_op *steps;        /* step slots, borrowed */
    size_t n_steps;       /* entries of steps */
    amp_op *zero_grads;   /* zero_grad slots, borrowed */
    size_t n_zero_grads;  /* entries of zero_grads */
    amp_context *amp;     /* written by initialize and shutdown (NULL before) */
    const struct amp_struct *structs; /* structs in the schemas of steps and zero_grads */
    size_t n_structs;          /* entries of structs */
    const struct amp_fused *fused; /* an optimizer of libamp, of amp_optim.h (NULL: the host steps) */
} amp_optimizer;

#define AMP_OPTIMIZER_INIT AMP_SIZED_(amp_optimizer)

/* ---- Configuration ---------------------------------------------------------------------------------------------- */

#define AMP_DYNAMIC (-1.0f) /* loss_scale */
#define AMP_NEVER UINT32_MAX /* max_skips */

/* The cast lists. */
enum {
    AMP_LISTS_DEFAULT = 0, /* apex */
    AMP_LISTS_APEX = 1,    /* apex.amp.lists */
    AMP_LISTS_TORCH = 2    /* torch.autocast for CUDA devices */
};

/* Settings of amp_initialize_many. Zero means the default: the property of the level, or the value stated here. As in
 * Apex (frontend.py), O1 and O4 accept no cast_model_type but FP32 and UNCHANGED, no keep_batchnorm_fp32 and no
 * master_weights, and patch_ops = ON is allowed at O1 and O4 only. */
typedef struct amp_config {
    uint32_t struct_size;
    amp_level level;                /* AMP_O0 to AMP_O5 (required) */
    amp_switch enabled;             /* OFF: training runs as without libamp */
    amp_switch patch_ops;           /* ops are cast by the lists (Apex: patch_torch_functions) */
    amp_switch keep_batchnorm_fp32; /* parameters and statistics of batch norm stay FP32 */
    amp_switch master_weights;      /* FP32 masters of 16-bit parameters (SPLIT, STOCHASTIC: docs/guide/memory.md) */
    amp_switch cache;             /* ON: each weight is cast once per iteration (default) */
    amp_dtype cast_model_type;    /* the parameters' type */
    amp_dtype cast_model_outputs; /* type of the results of forward (default: FP32 if parameters are cast) */
    int32_t lists;                /* AMP_LISTS_* */
    int32_t scaler;               /* AMP_SCALER_* */
    uint32_t num_losses;          /* loss scalers (default 1) */
    uint32_t window;              /* brackets without overflow before the scale grows, default by mode (apex: 2000) */
    uint32_t hysteresis;          /* overflows before the scale backs off, default by mode (apex: 1) */
    uint32_t max_skips;           /* skips in a row for AMP_ERR_TOO_MANY_SKIPS, which comes once a row (default 100) */
    float loss_scale;             /* AMP_DYNAMIC, or a static scale > 0 */
    float init_scale;             /* first dynamic scale, from min_scale to max_scale, default by mode (apex: 2^16) */
    float min_scale;              /* least dynamic scale, default by mode (apex: 2^-126) */
    float max_scale;              /* largest dynamic scale, default by mode (apex: 2^24) */
    amp_switch consecutive_hysteresis; /* ON: a bracket without overflow restores the hysteresis; OFF: only growth
                                          of the scale restores it, default by mode (apex: ON) */
    double growth;                /* factor of growth (default 2), multiplied in FP32 by megatron and jmp */
    double backoff; /* factor after an overflow, from 2^-149 (default 0.5, or 1 / growth in modes with one factor) */
    amp_switch emulate; /* ON, for hosts with FP32 only: values rounded to 16 bits in FP32 storage (amp_raw.h) */
    amp_switch gate;    /* calls run in FP32 if the 16-bit type would be slower: amp_gate.h */
    amp_switch check_finite; /* ON: steps with overflows are skipped at a static scale of 1 too; default OFF */
    int32_t log; /* AMP_LOG_*: messages on standard error if there is no hook `event`: amp_diagnostics.h */
    amp_switch verify; /* ON, or AMP_VERIFY=1: checks every wrapped call, for the first run of an adapter: same page */
    amp_switch observe; /* ON, or AMP_OBSERVE=1: amp_observe can see ops that the level does not cast: amp_observe.h */
    const char *trace; /* file for events as JSON Lines, also AMP_TRACE=FILE: docs/reference/trace.md */
} amp_config;

#define AMP_CONFIG_INIT AMP_SIZED_(amp_config)

/* ---- Initialize and shutdown ------------------------------------------------------------------------------------ */

/* Sets the class of every op in model->ops with the name or alias `op` (add_ and layer.add count as add), and of its
 * backward ops (backward_of). Call it before amp_initialize. "name#index" selects one of several ops of exactly that
 * name, from 0. AMP_ERR_NOT_FOUND lists the nearest names. AMP_ERR_CONFLICT: registered before with another class.
 * Names, aliases and backward_of must not change until amp_initialize. Source: Apex, register_half_function etc. */
AMP_API AMP_MUST_CHECK amp_status amp_register(amp_model *model, const char *op, amp_class op_class);

/* Prepares one model and one optimizer (one may be NULL) for a level with its defaults: wraps the slots, casts
 * parameters and makes masters, as the level says. Errors as amp_initialize_many. Source: apex.amp.initialize. */
AMP_API AMP_MUST_CHECK amp_status amp_initialize(amp_model *model, amp_optimizer *optimizer, amp_level level);

/* Prepares several models and optimizers in one context, with overrides. The context is written to `amp` of each, and
 * to *context (may be NULL). Models and optimizers are kept until amp_shutdown, the two arrays are borrowed. On an
 * error no slot, parameter or descriptor has changed. AMP_ERR_MISSING_HOOK, AMP_ERR_SCHEMA, AMP_ERR_CONFLICT
 * (settings), AMP_ERR_READ_ONLY and AMP_ERR_CLOSURE_DENIED (slots). AMP_ERR_WRONG_STATE: initialized already. */
AMP_API AMP_MUST_CHECK amp_status amp_initialize_many(amp_model *const *models, size_t n_models,
                                                      amp_optimizer *const *optimizers, size_t n_optimizers,
                                                      const amp_config *config, amp_context **context);

/* Restores the slots (one shared with other contexts when the last of them ends), gives parameters their first type and
 * the values of the masters, cancels open brackets and frees the context, on most errors too: `amp` of its models and
 * optimizers is NULL then. AMP_ERR_SLOT_TAKEN: another library replaced the pointer in the named slot, which stays and
 * passes calls through. AMP_ERR_READ_ONLY: the memory of a slot became read-only. A hook's error: the named parameters
 * keep their type. AMP_ERR_WRONG_STATE (not freed): a running step, a captured stream, or on this thread a wrapped call
 * or scope of the context. NULL: no effect. */
AMP_API amp_status amp_shutdown(amp_context *context);

/* ---- The bracket around backward -------------------------------------------------------------------------------- */

/* An open bracket. Run backward from `loss`: its gradients are multiplied by `scale`. Leave priv and factor_ alone. */
typedef struct amp_scaled_loss {
    uint32_t struct_size;
    amp_action action;      /* step or skip, written by end (AMP_STEP_ON_DEVICE: a GPU decides, docs/guide/gpus.md) */
    void *loss;             /* the scaled loss, borrowed until end or cancel */
    const float *scale;     /* the loss scale, borrowed until end or cancel */
    const float *found_inf; /* not 0 after an overflow, valid until the next begin with this loss_id */
    amp_device device;      /* device of scale and found_inf */
    float factor_;          /* see amp_seed_factor */
    int32_t reserved;
    void *priv[4];
} amp_scaled_loss;

#define AMP_SCALED_LOSS_INIT AMP_SIZED_(amp_scaled_loss)

/* Opens a bracket around backward: multiplies `loss`, which must live until the end, by its scale (NULL, or no hook
 * scale: amp_seed_factor) and sets existing gradients aside (exceptions: docs/reference/numerics.md). In a bracket with
 * a loss, ops without backward_of are cast only in a scope or a forward slot. Source: apex.amp.scale_loss. */
AMP_API AMP_MUST_CHECK amp_status amp_scale_loss_begin(amp_optimizer *optimizer, void *loss, amp_scaled_loss *scaled);

/* Returns the factor for the seed of backward, for hosts that seed backward themselves: the scale, 1 if the loss or an
 * op already has it, NaN if only a device knows it. Call this only if you apply the factor: if nothing applied the
 * scale, amp_scale_loss_end fails with AMP-M01. */
AMP_API float amp_seed_factor(const amp_scaled_loss *scaled);

/* Closes the bracket: divides the new gradients by the scale (into FP32 gradients of masters, else in place), adds the
 * gradients set aside, updates the scale and writes the decision to `action`. An overflow, an element that is infinite
 * or NaN after this, is no error: the status is AMP_OK, the action AMP_SKIP. Gradients that only amp_optimizer.fused
 * uses are checked here and divided in its step. If a wrapped call failed since the last end, also in forward, its
 * error is returned, new and delayed gradients are dropped and the next step skips. AMP_ERR_TOO_MANY_SKIPS: it ended;
 * the message names the gradient. With the hook reduce an error or cancel on one rank skips on all, scale unchanged. */
AMP_API AMP_MUST_CHECK amp_status amp_scale_loss_end(amp_scaled_loss *scaled);

/* Closes the bracket as if it had not been, also for the next step: new gradients are dropped, those set aside return,
 * and those that an earlier bracket left scaled have their values of begin. At a static scale of 1 without masters they
 * stay as backward left them. With the hook reduce every rank skips, unless all ranks cancel. */
AMP_API amp_status amp_scale_loss_cancel(amp_scaled_loss *scaled);

/* ---- The step ---------------------------------------------------------------------------------------------------- */

/* The decision for a step. */
typedef struct amp_step_info {
    uint32_t struct_size;
    amp_action action; /* AMP_STEP: update, AMP_SKIP: do not, AMP_STEP_ON_DEVICE: update if *found_inf is 0 there */
    const float *found_inf; /* not 0: skip, as `action` says, or on `device` if it is decided there; valid until end */
    float grad_scale;       /* 1: gradients are unscaled */
    amp_device device;      /* device of found_inf */
    int32_t reserved;
} amp_step_info;

#define AMP_STEP_INFO_INIT AMP_SIZED_(amp_step_info)

/* Begin and end a step of a host without a step slot, on one thread; ops in between are not cast. begin puts FP32
 * masters and their gradients under the handles of the host, unless info->action is AMP_SKIP. The host updates them,
 * and end writes them back to the parameters. Call both for AMP_SKIP too: a skip holds until a step ends. */
AMP_API AMP_MUST_CHECK amp_status amp_step_begin(amp_optimizer *optimizer, amp_step_info *info);
AMP_API AMP_MUST_CHECK amp_status amp_step_end(amp_optimizer *optimizer);

/* ---- Masters and clipping ---------------------------------------------------------------------------------------- */

/* One parameter as an optimizer updates it. */
typedef struct amp_master {
    uint32_t struct_size;
    amp_dtype dtype;  /* of data and grad */
    void *param;      /* the host's handle */
    const char *name; /* valid until amp_shutdown */
    void *data;       /* the FP32 master, or the elements of a parameter without one */
    void *grad; /* its gradient, unscaled, or NULL; with AMP_OPTIMIZER_HOLDS_MASTERS that of the master */
    uint64_t size;    /* number of elements */
    int32_t is_master;           /* 1: data is a master */
    int32_t ndim;                /* number of dimensions, or 0 without strides */
    const int64_t *shape;        /* ndim extents */
    const int64_t *strides;      /* of data, in elements (NULL: compact, as every master is) */
    const int64_t *grad_strides; /* of grad, in elements */
} amp_master;

#define AMP_MASTER_INIT AMP_SIZED_(amp_master)

/* Lists the tensors that the optimizer updates, as apex.amp.master_params: fills at most `capacity` entries (at a
 * distance of entry 0's struct_size; masters may be NULL for 0) and writes their total number to *count. Pointers are
 * valid until the next call of this, bracket or step. They may be written to: a forward before the next step sees it
 * after amp_masters_write_back (amp_train.h). Not in brackets and steps, nor while gradients are delayed. */
AMP_API AMP_MUST_CHECK amp_status amp_master_params(amp_optimizer *optimizer, amp_master *masters, size_t capacity,
                                                    size_t *count);

/* Clips the gradients of the masters, or of parameters without masters, to a global L2 norm of at most max_norm > 0:
 * multiplies them by max_norm / (norm + 1e-6) if that is below 1, as torch.nn.utils.clip_grad_norm_. *norm (may be
 * NULL) is the norm before, or infinity if the step will be skipped. Gradients with a norm of infinity or NaN stay.
 * Call it when amp_master_params is allowed, before the step. AMP_OPTIMIZER_SHARDED: all ranks, for the norm of all. */
AMP_API AMP_MUST_CHECK amp_status amp_clip_grad_norm(amp_optimizer *optimizer, float max_norm, float *norm);

/* Clamps the same gradients to +-max_value (> 0), as torch.nn.utils.clip_grad_value_, at the same time. A NaN stays. */
AMP_API AMP_MUST_CHECK amp_status amp_clip_grad_value(amp_optimizer *optimizer, float max_value);

/* ---- Explained --------------------------------------------------------------------------------------------------- */

/* Writes a report as text: the level, its properties, warnings, and one line for each op (NULL: all, else those named
 * `op`) with its class, the list and the reason, the decision of the gate, and the code that multiplies
 * (AMP_OP_MATMUL). Writes at most `capacity` bytes with a final NUL, cutting a longer text; text NULL and capacity 0
 * measure it. *length (may be NULL) is the full length without the NUL. AMP_ERR_NOT_FOUND: no op `op`. */
AMP_API AMP_MUST_CHECK amp_status amp_explain(amp_context *context, const char *op, char *text, size_t capacity,
                                              size_t *length);

#ifdef __cplusplus
}
#endif

#endif /* AMP_H */
