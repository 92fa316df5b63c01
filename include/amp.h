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
 *     if (amp_initialize(&model, &optimizer, AMP_O1)) return puts(amp_last_error());
 *
 *     for (int i = 0; i < iterations; i++) {
 *         amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
 *         amp_step_info info = AMP_STEP_INFO_INIT;
 *         clear_grads(parameters, n);
 *         void *loss = forward(batch(i));                              linear sees fp16: its slot is wrapped
 *         if (amp_scale_loss_begin(&optimizer, loss, &scaled)) return puts(amp_last_error());
 *         backward(scaled.loss);
 *         if (amp_scale_loss_end(&scaled)) return puts(amp_last_error());
 *         if (amp_step_begin(&optimizer, &info)) return puts(amp_last_error());
 *         if (info.action == AMP_STEP) update(parameters, n);          or skip: a gradient was not finite
 *         if (amp_step_end(&optimizer)) return puts(amp_last_error());
 *     }
 *     return amp_shutdown(model.amp);                                  every slot and every parameter as before
 *
 * Further headers, each a page: amp_types.h (statuses, types; included here), amp_train.h (several losses,
 * micro-batches, masters written between steps), amp_call.h (calls without slots, scopes), amp_raw.h (float buffers,
 * structs), amp_state.h (checkpoints), amp_diagnostics.h (events, counters), amp_gate.h (implementations; what runs in
 * FP32), amp_ranks.h (ranks, devices), amp_api.h (the table for dlopen), amp_kernels.h, amp_optim.h, amp_device.h,
 * amp_nccl.h, amp_symbol.h. amp_all.h has all but the last.
 *
 * Ownership. "Borrowed": valid during the call only, unless a longer time is stated. "Kept": the pointer must stay
 * valid until amp_shutdown. "Moves": the other side must now give it back or release it.
 *
 * Errors. Every fallible function returns an amp_status; on anything but AMP_OK nothing has changed, nothing has
 * leaked, out-parameters are untouched and amp_last_error() says in words what was wrong, where, and what to do. The
 * one exception is amp_scale_loss_end, which closes its bracket whatever it returns.
 *
 * Threads. Different contexts are independent. Within one context, wrapped ops, amp_op_target, amp_cast_args, scopes
 * and the diagnostics may run on any number of threads at once; initialize, shutdown, brackets and steps of one context
 * are the business of one thread at a time, while no other runs that context's ops (brackets: opens or closes one).
 */
#ifndef AMP_H
#define AMP_H

#include "amp_scaler.h"
#include "amp_types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The header's version; amp_version() has the library's. */
#define AMP_VERSION_MAJOR 0
#define AMP_VERSION_MINOR 1
#define AMP_VERSION_PATCH 0
#define AMP_SOVERSION 0 /* 0: the header may still change between releases */

/* ---- Levels ------------------------------------------------------------------------------------------------------ */

/* Opt levels. O0..O3 as in Apex; O4 and O5 are O1 and O2 with bfloat16 and no loss scaling, as in ROCm's fork. One
 * list: the constant, its value (from 1: a zeroed structure is no level), words; the level's 16-bit type and its
 * properties, which amp_config can override: cast_model_type, patch_ops, keep_batchnorm_fp32, master_weights (1: on)
 * and loss_scale. */
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

/* "O1" -> AMP_O1. The letter O, not the digit zero. */
AMP_API AMP_MUST_CHECK amp_status amp_level_from_name(const char *name, amp_level *level);

/* ---- The host's hooks ------------------------------------------------------------------------------------------- */

struct amp_field; /* amp_raw.h */
struct amp_struct;
struct amp_event; /* amp_diagnostics.h */
struct amp_fused; /* amp_optim.h */

/* Tells libamp of one field; `emit_self` is what `visit` was given. */
typedef amp_status (*amp_emit)(void *emit_self, const struct amp_field *field);

/* Flags of amp_host. */
enum {
    /* The host's tape holds its own references to what its ops received: temporaries may go when the op has returned.
     * Without it they live until amp_tape_done or until every optimizer of the context has stepped or skipped. */
    AMP_HOST_TAPE_RETAINS_INPUTS = 1u << 0,
    /* A host that seeds backward itself reads the scale where it lives, from *amp_scaled_loss.scale in the memory of a
     * device, and does not ask amp_seed_factor. Without it libamp waits until it knows the scale. */
    AMP_HOST_SEEDS_ON_DEVICE = 1u << 1,
    /* `version` misses writes (PyTorch's `.data`): checksums find those to parameters with masters. */
    AMP_HOST_VERSION_MISSES_WRITES = 1u << 2
};

/*
 * No hook is required by itself; what needs a missing one refuses by its name. docs/reference/hooks.md has the table of
 * which level needs which. `self` is passed back untouched. A handle is the host's tensor: only the host interprets it.
 * Hooks returning amp_status report failure with AMP_ERR_HOST_FAILED (or any negative status). Hooks are called on the
 * thread that made the call into libamp; ops that a hook calls run as they come.
 */
typedef struct amp_host {
    uint32_t struct_size; /* sizeof(amp_host); AMP_HOST_INIT sets it */
    uint32_t flags;       /* AMP_HOST_* */
    void *self;           /* passed to every hook */

    /* Describe the handle's elements. *view is zeroed before; shape and strides must stay valid until the next view on
     * this thread. Fails for tensors without plain elements (sparse). */
    amp_status (*view)(void *self, void *tensor, amp_tensor_view *view);
    /* The logical type, cheap: asked at every wrapped call. Without it the view's type is taken. */
    amp_dtype (*dtype)(void *self, void *tensor);
    /* A copy in another type, recorded on the host's tape, so that backward returns a gradient in the source's type.
     * *out moves to libamp, which ends it with `release`. */
    amp_status (*cast)(void *self, void *tensor, amp_dtype to, void **out);
    /* Give up a handle that had moved to libamp. Cannot fail. */
    void (*release)(void *self, void *tensor);
    /* A number that names the tensor's storage, the same for every handle on it. 0: none. */
    uint64_t (*id)(void *self, void *tensor);
    /* A number that changes whenever the elements change in place. Where it may stand still, leave the hook out or call
     * amp_cache_clear and amp_masters_reconcile after such writes: docs/reference/hooks.md. */
    uint64_t (*version)(void *self, void *tensor);
    /* Does the tape record on this thread now? Without it: yes. */
    int32_t (*grad_enabled)(void *self);
    /* A parameter's gradient, *grad = NULL if it has none. The handle stays the host's. */
    amp_status (*grad)(void *self, void *tensor, void **grad);
    /* Put `grad` (NULL: none) in the gradient's place. The handle that was there moves to libamp, which gives it back
     * with another set_grad or ends it with `release`; the reference to `grad` moves to the host. */
    amp_status (*set_grad)(void *self, void *tensor, void *grad);
    /* Put *storage under the handle and return in *storage what was there; shape, strides and handle stay, and element
     * 0 is the block's first. The type may change. Called for parameters and buffers, whose views are compact, and for
     * gradients, whose strides may leave gaps: then the block is as long as they reach. */
    amp_status (*swap_data)(void *self, void *tensor, amp_storage *storage);
    /* loss * factor, recorded on the tape. *out moves to libamp. */
    amp_status (*scale)(void *self, void *loss, float factor, void **out);
    /* Memory for `bytes` bytes (never 0) on `device`, aligned for its elements: fill data, owner and bytes. */
    amp_status (*alloc)(void *self, uint64_t bytes, amp_device device, amp_purpose purpose, amp_storage *storage);
    /* End a block that alloc made. Cannot fail. */
    void (*free)(void *self, amp_storage *storage);
    /* Told of skips, scale changes, warnings and kept errors (amp_diagnostics.h). Must not call libamp. */
    void (*event)(void *self, const struct amp_event *event);
    /* Combine `n` values over the ranks of a distributed host, in place, the same result on every rank: amp_ranks.h. */
    amp_status (*reduce)(void *self, amp_reduction reduction, double *values, size_t n);
    /* The FP32 buffers behind the structs of a call, and the handles in them: emit each that the op reads or writes
     * (amp_raw.h). op is its descriptor's name; args[i] is the address of argument i's value. */
    amp_status (*visit)(void *self, const char *op, void *const *args, amp_emit emit, void *emit_self);
    /* The stream (cudaStream_t) on which the host works on `device` on this thread now: amp_ranks.h. */
    amp_status (*current_stream)(void *self, amp_device device, void **stream);
    /* loss * *factor as `scale` does, with the factor in the memory of the loss's device: amp_ranks.h. */
    amp_status (*scale_by)(void *self, void *loss, const float *factor, void **out);
    /* Are there other ranks to ask now? 0: none is asked. Every rank must answer alike. Without it: yes. */
    int32_t (*has_ranks)(void *self);
    /* As `reduce`, for values in a device's memory, in the order of `stream` there: amp_ranks.h, amp_nccl.h. */
    amp_status (*reduce_on_device)(void *self, amp_reduction reduction, void *stream, float *values, size_t n);
} amp_host;

#define AMP_HOST_INIT AMP_SIZED_(amp_host)

/* ---- Ops -------------------------------------------------------------------------------------------------------- */

/* Flags of amp_op. */
enum {
    AMP_OP_DIRECT = 1u << 0, /* slot is NULL: the host calls amp_cast_args around the function */
    AMP_OP_RETURN_BORROWED = 1u << 1, /* the returned handle is not the caller's to release */
    AMP_OP_SEEDS = 1u << 2, /* visit emits AMP_ROLE_SEED in calls of this op: while a bracket is open that buffer
                               is shown times the loss scale, and amp_seed_factor is 1. The same is said by a
                               `float(seed) x[...]` in the schema. One bracket at a time then */
    AMP_OP_COPY = 1u << 3, /* slot lies in a const table, which is never written: see amp_wrap_table */
    AMP_OP_MATMUL = 1u << 4, /* what the op computes is amp_matmul's work in either type: amp_gate.h */
    AMP_OP_STATEFUL = 1u << 5, /* keeps state, draws random numbers or allocates: amp_config.verify adds no call */
    AMP_OP_REGISTERED = 1u << 30 /* set by amp_register */
};

/*
 * One function pointer of the host. `schema`: PyTorch's operator-schema notation, C types (docs/reference/schema.md):
 *
 *     linear(Tensor input, Tensor weight, Tensor? bias) -> Tensor
 *     add_(Tensor(a!) self, Tensor other, float alpha) -> void
 *     cat(Tensor[] tensors, int32 n, int32 dim) -> Tensor
 *     step(pointer self) -> int32
 *     matmul(float(out a!) out[M,N], float a[M,K], float b[K,N], int32 M, int32 N, int32 K) -> void
 *     forward(struct layer l, struct network *net) -> void
 *
 * A schema that does not describe the real function is the host's bug and undefined behaviour, as with any C
 * prototype. Descriptors and strings are copied by amp_initialize; the slot (and what on_failure and on_skip point to)
 * is kept. A slot that gets no wrapper at the level is neither read nor written.
 */
typedef struct amp_op {
    uint32_t struct_size; /* sizeof(amp_op); AMP_OP_INIT sets it. In arrays, the stride: all must agree */
    uint32_t flags; /* AMP_OP_* */
    amp_class op_class; /* AMP_BY_LIST (0), or the class to use whatever the lists say. At the levels that cast no ops
                           (O0, O2, O3, O5, patch_ops OFF) every op is left alone, but for what emulate rounds */
    int32_t reserved;   /* 0 */
    const char *name;        /* as the lists know it, or the host's own */
    const char *aliases;     /* comma-separated further names for the lists, or NULL */
    const char *schema;      /* NULL for AMP_OP_DIRECT only */
    const char *backward_of; /* name of the forward op whose class this backward op shares, or NULL */
    amp_fn *slot;            /* where the host keeps its pointer; an empty slot (*slot == NULL) is passed over */
    amp_fn fp16; /* implementation to call when all floating arguments have that type, or NULL: amp_gate.h */
    amp_fn bf16;             /* the same for bfloat16 */
    amp_fn fp32;             /* the same for FP32, in the place of the host's own function */
    const void *on_failure; /* value of the return type when a cast failed and the op was not called; NULL: zeros */
    const void *on_skip;    /* steps: value of the return type when the step was skipped; NULL: zeros */
} amp_op;

#define AMP_OP_INIT AMP_SIZED_(amp_op)

/* ---- Model and optimizer ---------------------------------------------------------------------------------------- */

/* The kind of module a parameter or buffer belongs to. */
enum {
    AMP_MODULE_OTHER = 0,     /* any other */
    AMP_MODULE_BATCH_NORM = 1 /* batch norm: stays FP32 where keep_batchnorm_fp32 is on */
};

/* A parameter, or a floating buffer such as batch norm's running statistics, of a model. */
typedef struct amp_param {
    uint32_t struct_size;
    int32_t module_kind; /* AMP_MODULE_* */
    void *tensor;        /* handle, kept */
    const char *name;    /* copied; NULL: "param.<index>" */
} amp_param;

#define AMP_PARAM_INIT AMP_SIZED_(amp_param)

/* Flags of amp_model. */
enum {
    /* Parameters, the optimizers' too, may come in 16 bits and stay as they are; where the level has masters, those
     * that an optimizer lists get one, widened from them. Without it such a parameter is refused: its FP32 value is
     * lost. */
    AMP_MODEL_LOW_PARAMS = 1u << 0,
    /* ops is a host's whole table, of which a model uses a part: it is a finding where none is called, never some. */
    AMP_MODEL_WHOLE_TABLE = 1u << 1
};

/* forward: optional op for the host's forward slot. A `self` argument in its schema is compared with `self`, so that
 * many models may share one slot. At O2, O3, O5 its floating tensor arguments are cast to the low type and its result
 * to FP32 (or cast_model_outputs); at every level it enters the context's scope. */
typedef struct amp_model {
    uint32_t struct_size;
    uint32_t flags; /* AMP_MODEL_* */
    const amp_host *host; /* copied, but for self */
    void *self;           /* what a `self` argument of forward is compared with: not NULL then */
    amp_op *ops;          /* the host's function table; borrowed */
    size_t n_ops;         /* entries of ops */
    const amp_param *params; /* parameters and floating buffers; borrowed */
    size_t n_params;      /* entries of params */
    amp_op *forward;      /* one op, or NULL */
    amp_context *amp;     /* written by initialize and shutdown; NULL before */
    const struct amp_struct *structs; /* that the schemas of ops and forward may name */
    size_t n_structs;          /* entries of structs */
    uint64_t registered;       /* amp_register's own; 0 */
} amp_model;

#define AMP_MODEL_INIT AMP_SIZED_(amp_model)

/* Flags of amp_optimizer. */
enum {
    AMP_OPTIMIZER_SHARDED = 1u << 0,       /* it lists a part of the parameters only: amp_ranks.h */
    AMP_OPTIMIZER_HOLDS_MASTERS = 1u << 1, /* it updates the masters itself, as tensors of its own: amp_train.h */
    AMP_OPTIMIZER_SKIPS_ON_DEVICE = 1u << 2, /* its step reads on the device whether to update: amp_ranks.h */
    AMP_OPTIMIZER_GRADS_STAY = 1u << 3 /* its gradients are not cleared after a step: momentum, say (AMP-M68) */
};

/* An optimizer of the host. steps, zero_grads: its slots, wired so that a step steps or skips and hands FP32 masters
 * to the host's optimizer, and zero_grad clears the masters' gradients too. Hosts without such slots call
 * amp_step_begin and amp_step_end. A tied parameter appears once. The structure itself is kept. */
typedef struct amp_optimizer {
    uint32_t struct_size;
    uint32_t flags; /* AMP_OPTIMIZER_* */
    const amp_host *host; /* copied, but for self; NULL: the first model's */
    void *self;           /* what a `self` argument of a step is compared with: not NULL then */
    void *const *params;  /* handles of the parameters that it updates; borrowed */
    size_t n_params;      /* entries of params */
    amp_op *steps;        /* step slots; borrowed */
    size_t n_steps;       /* entries of steps */
    amp_op *zero_grads;   /* zero_grad slots; borrowed */
    size_t n_zero_grads;  /* entries of zero_grads */
    amp_context *amp;     /* written by initialize and shutdown; NULL before */
    const struct amp_struct *structs; /* that the schemas of steps and zero_grads may name */
    size_t n_structs;          /* entries of structs */
    const struct amp_fused *fused; /* libamp's own in place of steps (amp_optim.h); NULL: the host has its own */
} amp_optimizer;

#define AMP_OPTIMIZER_INIT AMP_SIZED_(amp_optimizer)

/* ---- Configuration ---------------------------------------------------------------------------------------------- */

#define AMP_DYNAMIC (-1.0f) /* loss_scale */
#define AMP_NEVER UINT32_MAX /* max_skips */

/* Whose cast lists. */
enum {
    AMP_LISTS_DEFAULT = 0, /* apex */
    AMP_LISTS_APEX = 1,    /* apex.amp.lists */
    AMP_LISTS_TORCH = 2    /* torch.autocast for CUDA devices */
};

/* Zero means default everywhere: the level's property, or the value stated here. Which property a level lets you
 * override follows Apex (frontend.py): those with patch_ops (O1, O4) take no cast_model_type but FP32 or UNCHANGED, no
 * keep_batchnorm_fp32 and no master_weights; patch_ops = ON belongs to them alone. */
typedef struct amp_config {
    uint32_t struct_size;
    amp_level level;                /* AMP_O0, ...; required */
    amp_switch enabled;             /* OFF: everything becomes a pass-through */
    amp_switch patch_ops;           /* Apex: patch_torch_functions */
    amp_switch keep_batchnorm_fp32; /* parameters and statistics of batch norm stay FP32 */
    amp_switch master_weights;      /* FP32 masters of 16-bit parameters; AMP_SPLIT: docs/guide/memory.md */
    amp_switch cache;             /* cast each weight once per iteration; default ON */
    amp_dtype cast_model_type;    /* the parameters' type */
    amp_dtype cast_model_outputs; /* default: FP32 where the model is re-typed */
    int32_t lists;                /* AMP_LISTS_* */
    int32_t scaler;               /* AMP_SCALER_* */
    uint32_t num_losses;          /* loss scalers; default 1 */
    uint32_t window;              /* clean iterations before the scale grows; default: the mode's (apex: 2000) */
    uint32_t hysteresis;          /* overflows until the scale backs off; default: the mode's (apex: 1) */
    uint32_t max_skips;           /* skips in a row before end says AMP_ERR_TOO_MANY_SKIPS; default 100 */
    float loss_scale;             /* AMP_DYNAMIC, or a static scale > 0 */
    float init_scale;             /* dynamic; default: the mode's (apex: 2^16), within min_scale and max_scale */
    float min_scale;              /* dynamic: the floor; default: the mode's (apex: 2^-126) */
    float max_scale;              /* dynamic: the ceiling; default: the mode's (apex: 2^24) */
    amp_switch consecutive_hysteresis; /* ON: a clean iteration restores the hysteresis; OFF: only growth of the scale
                                          does; default: the mode's (apex: ON) */
    double growth;                /* default 2; megatron and jmp multiply in FP32, by the nearest float */
    double backoff; /* default 0.5, or 1 / growth where the mode has one factor for both; 2^-149 at least */
    amp_switch emulate; /* ON, for hosts that know FP32 only: 16-bit values in FP32 storage (amp_raw.h) */
    amp_switch gate;    /* may a call run in FP32 where the 16-bit type would be slower? amp_gate.h */
    amp_switch check_finite; /* ON: skips for what is not finite at a static scale of 1 too (O0, O4); default OFF */
    int32_t log; /* AMP_LOG_*, what standard error is told where no hook `event` listens: amp_diagnostics.h */
    amp_switch verify; /* ON, or AMP_VERIFY=1: every wrapped call is checked, for an adapter's first run: same page */
    amp_switch observe; /* ON, or AMP_OBSERVE=1: amp_observe can see ops that the level leaves alone: amp_observe.h */
    const char *trace; /* a file that is told what happens, as JSON Lines; or AMP_TRACE=FILE: docs/reference/trace.md */
} amp_config;

#define AMP_CONFIG_INIT AMP_SIZED_(amp_config)

/* ---- Initialize and shutdown ------------------------------------------------------------------------------------ */

/* Write `op_class` into every op of the model whose name or alias is `op`, and into those whose backward_of names it.
 * Before initialize. "name#index" picks one of several ops of that name (from 0). AMP_ERR_NOT_FOUND lists the nearest
 * names; AMP_ERR_CONFLICT if the op has another registration already. A large table is read once: names, aliases and
 * backward_of stay from the first registration to initialize. Source: Apex register_half_function and kin. */
AMP_API AMP_MUST_CHECK amp_status amp_register(amp_model *model, const char *op, amp_class op_class);

/* Wire one model and one optimizer (either may be NULL) for a level with all its defaults. */
AMP_API AMP_MUST_CHECK amp_status amp_initialize(amp_model *model, amp_optimizer *optimizer, amp_level level);

/* The same for several models and optimizers under one context, with overrides. *context may be wanted by callers
 * without models and optimizers (inference on direct calls); it is also written into each model and optimizer. All or
 * nothing: on an error no slot, no parameter and no descriptor has changed.
 * The models and optimizers are kept until amp_shutdown; their arrays are not. */
AMP_API AMP_MUST_CHECK amp_status amp_initialize_many(amp_model *const *models, size_t n_models,
                                                      amp_optimizer *const *optimizers, size_t n_optimizers,
                                                      const amp_config *config, amp_context **context);

/* Restore every slot bit for bit (the last context on it does), give the model its FP32 parameters back (the masters'
 * values) and free the context. NULL is a no-op. AMP_ERR_SLOT_TAKEN: somebody wrapped on top of a slot, named in the
 * message; that slot was left as it is and passes calls through; the context is gone all the same. AMP_ERR_READ_ONLY:
 * the same of a slot whose memory became read-only. AMP_ERR_WRONG_STATE: a step or a wrapped call of this context is
 * running on this thread; nothing was done. Open brackets are cancelled. */
AMP_API amp_status amp_shutdown(amp_context *context);

/* ---- The bracket around backward -------------------------------------------------------------------------------- */

/* `loss`: run backward from it. `scale`: the factor that the gradients carry. `action` is the decision, written by end:
 * AMP_STEP_ON_DEVICE where a device made it (docs/guide/gpus.md). priv and names that end in _ are libamp's. */
typedef struct amp_scaled_loss {
    uint32_t struct_size;
    amp_action action;      /* the decision, written by end */
    void *loss;             /* borrowed until end or cancel */
    const float *scale;     /* host or device memory, see `device`; borrowed until end or cancel */
    const float *found_inf; /* != 0: an overflow was found; valid until the next begin with this loss_id */
    amp_device device;      /* where scale and found_inf are */
    float factor_;          /* ask amp_seed_factor */
    int32_t reserved;
    void *priv[4];
} amp_scaled_loss;

#define AMP_SCALED_LOSS_INIT AMP_SIZED_(amp_scaled_loss)

/* Open a bracket: gradients that exist are set aside (but at a static scale of 1 without masters, and where fixed FP32
 * buffers are multiplied by the scale in place: docs/reference/numerics.md), the loss is scaled. loss NULL: the host
 * seeds backward itself. Source of the semantics: apex.amp.scale_loss. */
AMP_API AMP_MUST_CHECK amp_status amp_scale_loss_begin(amp_optimizer *optimizer, void *loss, amp_scaled_loss *scaled);

/* For hosts that seed backward themselves: what to multiply the seed with. 1 where the loss or an op's seed carries the
 * scale already, else the scale; NaN where only a device knows that. Asking is the host's word that it multiplies:
 * amp_scale_loss_end does not divide by a scale that nothing took (AMP-M01). */
AMP_API float amp_seed_factor(const amp_scaled_loss *scaled);

/* Close the bracket: unscale the new gradients (into FP32 master gradients where there are masters, else in place),
 * add what was set aside, update the scale, decide. (Gradients that only an amp_optimizer.fused lists are checked, and
 * stay scaled until its step: see amp_fused.) A gradient is not finite if any element is non-finite after the
 * multiplication and the conversion to its destination type. On an error that a wrapped call kept, the bracket is
 * closed as by cancel, the next step skips and that error is returned; AMP_ERR_TOO_MANY_SKIPS is returned after a
 * completed end and names the first gradient that was not finite. With the hook reduce all ranks decide alike; where
 * another rank had an error or cancelled, the action is AMP_SKIP and no scale moves. */
AMP_API AMP_MUST_CHECK amp_status amp_scale_loss_end(amp_scaled_loss *scaled);

/* Close the bracket as if backward had not happened: new gradients are dropped, those set aside are put back, and
 * gradients that brackets before it left scaled hold again what they held at its begin. With the hook reduce, unless
 * every rank cancels: no rank steps, this one neither. At a static scale of 1 without masters begin sets nothing aside,
 * and gradients stay as backward left them. */
AMP_API amp_status amp_scale_loss_cancel(amp_scaled_loss *scaled);

/* ---- The step ---------------------------------------------------------------------------------------------------- */

/* What amp_step_begin tells. */
typedef struct amp_step_info {
    uint32_t struct_size;
    amp_action action; /* AMP_SKIP: do not update; AMP_STEP_ON_DEVICE: *found_inf 0 says update, on the device alone */
    const float *found_inf; /* != 0: an overflow; with AMP_STEP_ON_DEVICE, since this optimizer's last step */
    float grad_scale;       /* what the gradients still carry: 1 */
    amp_device device;      /* where found_inf is */
    int32_t reserved;
} amp_step_info;

#define AMP_STEP_INFO_INIT AMP_SIZED_(amp_step_info)

/* For hosts without a step slot. begin hands the masters to the optimizer under the parameters' handles unless
 * info->action is AMP_SKIP; end writes them back. Both are called in either case: else the next step skips. */
AMP_API AMP_MUST_CHECK amp_status amp_step_begin(amp_optimizer *optimizer, amp_step_info *info);
AMP_API AMP_MUST_CHECK amp_status amp_step_end(amp_optimizer *optimizer);

/* ---- Masters and clipping ---------------------------------------------------------------------------------------- */

/* One parameter as the optimizer sees it. */
typedef struct amp_master {
    uint32_t struct_size;
    amp_dtype dtype;  /* of data and grad */
    void *param;      /* the host's handle */
    const char *name; /* valid until amp_shutdown */
    void *data;       /* the FP32 master, or the parameter's own elements where it has none */
    void *grad; /* unscaled, of the same type, or NULL; with AMP_OPTIMIZER_HOLDS_MASTERS the master's block */
    uint64_t size;    /* elements */
    int32_t is_master;           /* 1: data is a master */
    int32_t ndim;                /* dimensions of what has strides, else 0 */
    const int64_t *shape;        /* ndim extents */
    const int64_t *strides;      /* of data, in elements; NULL: one compact block, as every master is */
    const int64_t *grad_strides; /* of grad */
} amp_master;

#define AMP_MASTER_INIT AMP_SIZED_(amp_master)

/* What the optimizer updates, as apex.amp.master_params: fills at most `capacity` entries (entry 0's struct_size is
 * the stride) and writes the number there are into *count. Pointers are valid until the next bracket or step; writing
 * through them is allowed. Outside brackets only. */
AMP_API AMP_MUST_CHECK amp_status amp_master_params(amp_optimizer *optimizer, amp_master *masters, size_t capacity,
                                                    size_t *count);

/* Scale the (master) gradients so that their global L2 norm is at most max_norm: by max_norm / (norm + 1e-6) where
 * that is below 1, as torch.nn.utils.clip_grad_norm_. *norm (may be NULL) is the norm before, or infinity where the
 * step will be skipped. Gradients with a non-finite norm are left as they are. Between end and step. With
 * AMP_OPTIMIZER_SHARDED the norm is that of all ranks' parts, and every rank calls this, also when it will skip. */
AMP_API AMP_MUST_CHECK amp_status amp_clip_grad_norm(amp_optimizer *optimizer, float max_norm, float *norm);

/* Clamp the (master) gradients to [-max_value, max_value], as torch.nn.utils.clip_grad_value_; a NaN stays. Between end
 * and step. */
AMP_API AMP_MUST_CHECK amp_status amp_clip_grad_value(amp_optimizer *optimizer, float max_value);

/* ---- Explained --------------------------------------------------------------------------------------------------- */

/* Text for people: the level and its properties, warnings, and op -> class, which list, why, the gate's decision and
 * who multiplies (AMP_OP_MATMUL), one line each; for one op (by name) or all (NULL). Writes at most `capacity` bytes
 * with a final NUL; *length (may be NULL) is the full length without it. text NULL and capacity 0: to measure. */
AMP_API AMP_MUST_CHECK amp_status amp_explain(amp_context *context, const char *op, char *text, size_t capacity,
                                              size_t *length);

#ifdef __cplusplus
}
#endif

#endif /* AMP_H */
