/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trains a model of ggml (ggml_opt_fit, ggml_opt_epoch, ggml_opt_eval) at a level of libamp, without a change of ggml.
 * docs/start/ggml.md is the guide. C++17, ggml's folders include and src in the include path. Tried with ggml 0.15.3.
 *
 *     auto amp = amp_ggml_initialize(sched, AMP_O4);
 *     ggml_opt_fit(sched, ...);
 *     amp->check();
 */
#pragma once
#include <amp.hpp>
#include <amp_all.h>
#include <ggml-backend-impl.h>
#include <ggml-impl.h>
#include <gguf.h>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>

/* A step of ggml_opt is one graph: forward, backward, and a node for the update of each parameter. Its products go
 * through slots that libamp wraps, the nodes between them to ggml. The bracket ends before the updates. */
class amp_ggml {
public:
    /* Replaces graph_compute of the scheduler's only backend, a CPU. max_norm clips gradients (0: none). Throws. */
    amp_ggml(ggml_backend_sched_t sched, const amp_config &config, float max_norm)
        : backend_(ggml_backend_sched_get_backend(sched, 0)), config_(config), max_norm_(max_norm) {
        const bool is_cpu = ggml_backend_dev_type(backend_->device) == GGML_BACKEND_DEVICE_TYPE_CPU;
        if (!is_cpu || ggml_backend_sched_get_n_backends(sched) != 1 || backend_->iface.graph_compute == compute)
            throw amp::error(AMP_ERR_UNSUPPORTED, "amp_ggml: a backend beside the CPU, or one with an adapter");
        if (config.level == AMP_O3) config_.emulate = AMP_ON; /* no masters: F32 weights have 16-bit values */
        plain_ = std::exchange(backend_->iface.graph_compute, compute);
        if (all.empty()) plain_supports = std::exchange(backend_->device->iface.supports_op, supports);
        all.push_back(this);
    }
    ~amp_ggml() {
        (void)amp_shutdown(context_);
        backend_->iface.graph_compute = plain_;
        all.erase(std::find(all.begin(), all.end(), this));
        if (all.empty()) backend_->device->iface.supports_op = plain_supports;
    }
    /* Throws the first error of a graph. After it no graph is computed, and ggml's loss is NaN. */
    void check() const {
        if (error_) throw amp::error(*error_);
    }
    /* For amp_health, amp_explain, amp_get_record, amp_observe. NULL before the first graph with parameters. */
    amp_context *context() const { return context_; }

    /* Writes a GGUF file to resume from, between two steps: weights, loss scale, AdamW's moments, number of steps. */
    void save(const std::string &path) const {
        if (!context_ || halfway_ || tensors_) throw amp::error(AMP_ERR_WRONG_STATE, "amp_ggml: not between two steps");
        std::size_t size = 0;
        must(amp_state_save_memory(context_, AMP_STATE_SAFETENSORS, nullptr, 0, &size));
        std::vector<char> state(size);
        must(amp_state_save_memory(context_, AMP_STATE_SAFETENSORS, state.data(), size, &size));
        const file_pointer file(gguf_init_empty(), gguf_free);
        gguf_set_arr_data(file.get(), "libamp.state", GGUF_TYPE_UINT8, state.data(), size);
        gguf_set_val_i64(file.get(), "libamp.steps", steps_);
        for (const weight &w : weights_)
            for (std::size_t k = 0; k < w.moments.size(); k++) {
                ggml_tensor t = in_fp32(w, w.moments[k]);
                ggml_set_name(&t, named(k ? "v." : "m.", w).c_str());
                gguf_add_tensor(file.get(), &t);
            }
        const std::string other = path + ".new";
        if (!gguf_write_to_file(file.get(), other.c_str(), false) || std::rename(other.c_str(), path.c_str()))
            throw amp::error(AMP_ERR_IO, path + ": cannot be written");
    }
    /* Reads such a file. The next graph puts the values in place, and fails if names or sizes differ. */
    void load(const std::string &path) {
        ggml_context *tensors = nullptr;
        file_pointer file(gguf_init_from_file(path.c_str(), { false, &tensors }), gguf_free);
        tensors_.reset(tensors);
        if (!file || gguf_find_key(file.get(), "libamp.state") < 0 || gguf_find_key(file.get(), "libamp.steps") < 0)
            throw amp::error(AMP_ERR_BAD_FILE, path + ": cannot be read, or is no file of amp_ggml");
        file_ = std::move(file);
    }
private:
    using file_pointer = std::unique_ptr<gguf_context, void (*)(gguf_context *)>;
    struct weight {
        ggml_tensor tensor; /* a copy, because ggml_opt makes the tensors of a graph again and again */
        std::vector<float> master;    /* of a 16-bit tensor; at O3 in steps alone */
        std::vector<float *> moments; /* AdamW's, in ggml's memory, after the first update */
        ggml_tensor *update;          /* its update in the present graph, or NULL */
        amp_buffer buffer, gradient;
    };
    inline static std::vector<amp_ggml *> all;
    inline static thread_local amp_ggml *running = nullptr; /* its graph is computed on this thread */
    inline static bool (*plain_supports)(ggml_backend_dev_t, const ggml_tensor *);

    ggml_backend_t backend_;
    ggml_status (*plain_)(ggml_backend_t, ggml_cgraph *);
    amp_config config_;
    float max_norm_;
    std::unique_ptr<amp::error> error_;
    amp_context *context_ = nullptr;
    amp_host host_ = *amp_buffer_host();
    amp_model model_ = AMP_MODEL_INIT;
    amp_optimizer optimizer_ = AMP_OPTIMIZER_INIT;
    int (*products_[2])(ggml_tensor *) = { multiply_plain, multiply_plain }; /* the slots */
    std::vector<weight> weights_;
    float *seed_ = nullptr;      /* the gradient of the loss in the present graph, or NULL: no backward */
    int loss_ = 0, updates_ = 0; /* indices of the loss and the first update there, or the number of nodes */
    std::int64_t steps_ = 0, graphs_ = 0; /* updates of the weights; graphs with updates, skipped or not */
    std::vector<std::uint16_t> scratch_[2];
    file_pointer file_{ nullptr, gguf_free }; /* its weights are not yet in place */
    std::unique_ptr<ggml_context, void (*)(ggml_context *)> tensors_{ nullptr, ggml_free }; /* nor its moments */
    bool halfway_ = false; /* gradients of micro-batches wait for their step */
    static float *data_of(const ggml_tensor *t) { return static_cast<float *>(t->data); }
    static void must(amp_status status) { amp::throwing::done(status); }
    static std::string named(const char *what, const weight &w) { /* cut as ggml cuts names */
        return (what + std::string(w.tensor.name)).substr(0, GGML_MAX_NAME - 1);
    }
    static amp_dtype dtype_of(const ggml_tensor *t) {
        const ggml_backend_buffer_t buffer = (t->view_src ? t->view_src : t)->buffer;
        if (buffer && !ggml_backend_buffer_is_host(buffer)) return AMP_DTYPE_OTHER; /* repacked */
        return t->type == GGML_TYPE_F32 ? AMP_FLOAT32 : t->type == GGML_TYPE_F16 ? AMP_FLOAT16
            : t->type == GGML_TYPE_BF16 ? AMP_BFLOAT16 : AMP_DTYPE_OTHER;
    }
    static std::int64_t stride(const ggml_tensor *t, int i) { return std::int64_t(t->nb[i] / ggml_type_size(t->type)); }
    /* The elements from the first to the last, with those in the gaps of a view. */
    static amp_span span_of(const ggml_tensor *t) {
        return { t->data, ggml_nbytes(t) / ggml_type_size(t->type), dtype_of(t), 0 };
    }
    static bool has_rows(const ggml_tensor *t, int along, int across) {
        return stride(t, along) == 1 && (t->ne[across] == 1 || stride(t, across) >= t->ne[along]);
    }
    /* amp_matmul can compute it, nobody asked for FP32 (ggml_mul_mat_set_prec), and libamp can cast the operands: they
     * are the same or apart. */
    static bool is_product(const ggml_tensor *p) {
        const ggml_tensor *a = p->src[0], *b = p->src[1];
        if (p->op != GGML_OP_OUT_PROD && (p->op != GGML_OP_MUL_MAT || p->op_params[0] == GGML_PREC_F32)) return false;
        if (p->type != GGML_TYPE_F32 || dtype_of(a) == AMP_DTYPE_OTHER || dtype_of(b) == AMP_DTYPE_OTHER) return false;
        const auto x = std::uintptr_t(a->data), y = std::uintptr_t(b->data), nx = ggml_nbytes(a), ny = ggml_nbytes(b);
        if ((x != y || nx != ny) && x < y + ny && y < x + nx) return false;
        return has_rows(a, 0, 1) && (has_rows(b, 0, 1) || (p->op == GGML_OP_OUT_PROD && has_rows(b, 1, 0)));
    }
    /* libamp has cast F32 tensors to `low`. 16-bit tensors of the other type are cast here. */
    const char *elements(const ggml_tensor *t, amp_dtype low, amp_dtype *dtype, int i) {
        const amp_span from = span_of(t);
        *dtype = from.dtype == AMP_FLOAT32 ? low : from.dtype;
        if (low == AMP_FLOAT32 || *dtype == low) return static_cast<char *>(t->data);
        scratch_[i].resize(std::max(scratch_[i].size(), std::size_t(from.size)));
        const amp_span to = { scratch_[i].data(), from.size, *dtype = low, 0 };
        return amp_cast_list(&to, &from, 1) == AMP_OK ? static_cast<char *>(to.data) : nullptr;
    }
    /* In rows, MUL_MAT is d = b a^T and OUT_PROD is d = b^T a, for each index of b's dimensions 2 and 3. Several of
     * these may share one of a. */
    static int multiply(const ggml_tensor *p, amp_dtype low) {
        const ggml_tensor *a = p->src[0], *b = p->src[1];
        const bool out = p->op == GGML_OP_OUT_PROD, rows = has_rows(b, 0, 1);
        const std::int64_t share2 = p->ne[2] / a->ne[2], share3 = p->ne[3] / a->ne[3];
        const std::int64_t inner = share2 == 1 ? 1 : a->ne[2];
        amp_matmul_args args = AMP_MATMUL_ARGS_INIT;
        const char *right = running->elements(a, low, &args.b_dtype, 0);
        const char *left = running->elements(b, low, &args.a_dtype, 1);
        args.m = p->ne[1], args.n = p->ne[0], args.k = a->ne[out], args.d_dtype = AMP_FLOAT32;
        args.transpose_a = out && rows, args.transpose_b = !out;
        args.ld_a = b->ne[rows] == 1 ? 0 : stride(b, rows), args.ld_b = a->ne[1] == 1 ? 0 : stride(a, 1);
        args.batch = share2 == 1 ? p->ne[2] : share2, args.stride_b = share2 == 1 ? stride(a, 2) : 0;
        args.stride_a = stride(b, 2), args.ld_d = stride(p, 1), args.stride_d = stride(p, 2);
        for (std::int64_t i = 0; left && right && i < p->ne[3] * inner; i++) {
            const std::int64_t i3 = i / inner, i2 = i % inner;
            args.b = right + (i3 / share3 * stride(a, 3) + i2 * stride(a, 2)) * (args.b_dtype == AMP_FLOAT32 ? 4 : 2);
            args.a = left + (i3 * stride(b, 3) + i2 * share2 * stride(b, 2)) * (args.a_dtype == AMP_FLOAT32 ? 4 : 2);
            args.d = data_of(p) + i3 * stride(p, 3) + i2 * share2 * stride(p, 2);
            if (amp_matmul(&args) != AMP_OK) return 1;
        }
        return !left || !right;
    }
    template <amp_dtype Low> static int multiply_in(ggml_tensor *p) { return multiply(p, Low); }
    bool run(const ggml_cgraph &g, int from, int to) const {
        ggml_cgraph part = g;
        part.nodes += from, part.n_nodes = to - from, part.n_leafs = 0, part.uid = 0;
        return from == to || plain_(backend_, &part) == GGML_STATUS_SUCCESS;
    }
    void must_run(const ggml_cgraph &g, int from, int to) const {
        if (!run(g, from, to)) throw amp::error(AMP_ERR_HOST_FAILED, "ggml failed, or was aborted");
    }
    static bool is_new(const ggml_tensor *p) { /* ggml has no OUT_PROD of 16-bit tensors */
        return p->op == GGML_OP_OUT_PROD && (p->src[0]->type == GGML_TYPE_F16 || p->src[0]->type == GGML_TYPE_BF16);
    }
    static int multiply_plain(ggml_tensor *p) {
        ggml_cgraph one = {};
        one.nodes = &p;
        return is_new(p) ? multiply(p, AMP_FLOAT32) : !running->run(one, 0, 1);
    }
    static bool supports(ggml_backend_dev_t dev, const ggml_tensor *p) { return is_new(p) || plain_supports(dev, p); }
    static amp_status hook_visit(void *, const char *, void *const *args, amp_emit emit, void *emit_self) {
        ggml_tensor *p = *static_cast<ggml_tensor *const *>(args[0]);
        amp_status status = AMP_OK;
        for (ggml_tensor *t : { p->src[0], p->src[1], p }) {
            amp_field field = AMP_FIELD_INIT;
            field.role = t == p ? AMP_ROLE_UPDATE : AMP_ROLE_READ, field.name = t->name; /* the result stays FP32 */
            field.address = reinterpret_cast<float **>(&t->data), field.size = std::int64_t(span_of(t).size);
            if (status == AMP_OK && t->type == GGML_TYPE_F32) status = emit(emit_self, &field);
        }
        return status;
    }
    void start(const ggml_cgraph &g) {
        static const int failed = 1;
        amp_struct node = AMP_STRUCT_INIT;
        amp_op ops[2] = { AMP_OP_INIT, AMP_OP_INIT };
        std::vector<amp_param> params;
        std::vector<void *> trained;
        for (int i = 0; i < g.n_nodes; i++) {
            const ggml_tensor *t = g.nodes[i];
            if (!(t->flags & GGML_TENSOR_FLAG_PARAM)) continue;
            if (dtype_of(t) == AMP_DTYPE_OTHER || !ggml_is_contiguous(t))
                throw amp::error(AMP_ERR_UNSUPPORTED, std::string(t->name) + ": trained, and no F32 or F16 of the CPU");
            weight &w = weights_.emplace_back(weight{ *t, {}, {}, nullptr, AMP_BUFFER_INIT, AMP_BUFFER_INIT });
            w.buffer.size = w.gradient.size = ggml_nelements(t), w.buffer.data = t->data, w.buffer.dtype = dtype_of(t);
            if (t->type == GGML_TYPE_F32 || config_.level == AMP_O3) continue;
            w.buffer.data = convert(w, true), w.buffer.dtype = AMP_FLOAT32;
        }
        for (weight &w : weights_) {
            params.push_back(AMP_PARAM_INIT), trained.push_back(&w.buffer);
            params.back().tensor = &w.buffer, params.back().name = w.tensor.name;
        }
        for (amp_op &op : ops) {
            op.name = &op == ops ? "MUL_MAT" : "OUT_PROD", op.backward_of = &op == ops ? nullptr : "MUL_MAT";
            op.aliases = "matmul", op.schema = "multiply(struct ggml_tensor *p) -> int32", op.on_failure = &failed;
            op.slot = reinterpret_cast<amp_fn *>(&products_[&op - ops]), op.flags = AMP_OP_MATMUL;
            op.fp16 = reinterpret_cast<amp_fn>(multiply_in<AMP_FLOAT16>);
            op.bf16 = reinterpret_cast<amp_fn>(multiply_in<AMP_BFLOAT16>);
            if (config_.level != AMP_O0) op.fp32 = reinterpret_cast<amp_fn>(multiply_in<AMP_FLOAT32>); /* O0: ggml's */
        }
        node.name = "ggml_tensor", host_.visit = hook_visit;
        host_.grad = [](void *, void *t, void **to) { return *to = static_cast<amp_buffer *>(t)->grad, amp_status(0); };
        model_.host = optimizer_.host = &host_, model_.flags = AMP_MODEL_WHOLE_TABLE | AMP_MODEL_LOW_PARAMS;
        model_.ops = ops, model_.n_ops = 2, model_.structs = &node, model_.n_structs = 1;
        model_.params = params.data(), optimizer_.params = trained.data();
        model_.n_params = optimizer_.n_params = params.size();
        amp_model *models[] = { &model_ };
        amp_optimizer *optimizers[] = { &optimizer_ };
        if (!params.empty()) must(amp_initialize_many(models, 1, optimizers, 1, &config_, &context_));
    }
    static bool is_update(const ggml_tensor *p) {
        return p->op == GGML_OP_OPT_STEP_ADAMW || p->op == GGML_OP_OPT_STEP_SGD;
    }
    weight *weight_of(const ggml_tensor *p) { /* that p updates, or is the gradient of, as its name says */
        for (weight &w : weights_)
            if (is_update(p) ? w.tensor.data == p->src[0]->data : named("grad for ", w) == p->name) return &w;
        return nullptr;
    }
    /* A gradient in planned memory is there from the end of backward to the update: before, that memory is another's.
     * Over micro-batches gradients are added, in place, to a tensor that no node makes. */
    static void set_gradient(weight &w, void *data) {
        w.gradient.data = data, w.buffer.grad = data ? &w.gradient : nullptr;
    }
    void inspect(const ggml_cgraph &g) {
        seed_ = nullptr, loss_ = updates_ = g.n_nodes;
        for (weight &w : weights_) w.update = nullptr, set_gradient(w, nullptr);
        for (int i = 0; i < g.n_nodes; i++) {
            ggml_tensor *p = g.nodes[i], *from = p->src[0], *to = is_update(p) ? p->src[1]->view_src : p->view_src;
            if (p->flags & GGML_TENSOR_FLAG_LOSS) loss_ = i;
            if (i > loss_ && !seed_ && from && from->op == GGML_OP_NONE && from->type == GGML_TYPE_F32 &&
                ggml_nelements(from) == 1 && !(from->flags & GGML_TENSOR_FLAG_PARAM))
                seed_ = data_of(from);
            const bool adds = to && to->op == GGML_OP_NONE;
            weight *w = is_update(p) || adds ? weight_of(p) : nullptr;
            if (w && adds) set_gradient(*w, to->data);
            if (!is_update(p)) continue;
            if (!w || !seed_) throw amp::error(AMP_ERR_UNSUPPORTED, p->name +
                std::string(": its weight is not in the first graph, or its loss not in its own (eval callback?)"));
            w->update = p, updates_ = std::min(updates_, i);
        }
    }
    void observe(const ggml_tensor *p, bool in_backward) const { /* for the culprit: ggml's names of op and tensors */
        std::vector<amp_observed_value> values;
        amp_observed_call call = AMP_OBSERVED_CALL_INIT;
        for (const ggml_tensor *t : p->src)
            if (t && dtype_of(t) != AMP_DTYPE_OTHER && t->data != p->data)
                values.push_back({ t->name, nullptr, span_of(t), 0, 0 });
        if (dtype_of(p) != AMP_DTYPE_OTHER) values.push_back({ p->name, nullptr, span_of(p), 1, 0 });
        call.op = ggml_op_desc(p), call.where = p->name, call.in_backward = in_backward;
        call.values = values.data(), call.n_values = values.size();
        if (!ggml_op_is_empty(p->op)) must(amp_observe_call(context_, &call));
    }
    void run_nodes(const ggml_cgraph &g) {
        const bool watched = amp_is_observing(context_);
        const amp::scope scope(context_);
        int from = 0;
        for (int i = 0; i < updates_; i++) {
            ggml_tensor *p = g.nodes[i];
            const bool product = is_product(p);
            if (!product && !watched) continue;
            must_run(g, from, i + !product);
            from = i + 1;
            if (!product) observe(p, i > loss_);
            if (!product || !products_[p->op == GGML_OP_OUT_PROD](p)) continue;
            must(amp_check(context_));
            throw amp::error(AMP_ERR_HOST_FAILED, std::string(p->name) + ": the product failed: " + amp_last_error());
        }
        must_run(g, from, updates_);
    }
    /* A weight, its master or a moment as an F32 tensor. */
    static ggml_tensor in_fp32(const weight &w, void *data) {
        ggml_tensor t = w.tensor;
        t.type = GGML_TYPE_F32, t.data = data, t.buffer = nullptr, t.view_src = nullptr;
        for (int i = 0; i < GGML_MAX_DIMS; i++) t.nb[i] = i ? t.nb[i - 1] * std::size_t(t.ne[i - 1]) : sizeof(float);
        return t;
    }
    static float *convert(weight &w, bool to_master) {
        w.master.resize(std::size_t(w.buffer.size));
        const amp_span low = span_of(&w.tensor), master = { w.master.data(), w.master.size(), AMP_FLOAT32, 0 };
        must(to_master ? amp_cast_list(&master, &low, 1) : amp_cast_list(&low, &master, 1));
        return w.master.data();
    }
    /* ggml's bias corrections count graphs: skipped ones too, and none of before a load. Of 16-bit weights ggml updates
     * the masters. */
    void update(const ggml_cgraph &g) {
        if (const ggml_tensor *p = g.nodes[updates_]; p->op == GGML_OP_OPT_STEP_ADAMW) {
            float *f = data_of(p->src[4]); /* ..., [1] beta1, [2] beta2, [5] and [6] 1 / (1 - beta^t) */
            const auto corrected = [f](int beta, std::int64_t t) { return 1.0f / (1.0f - powf(f[beta], float(t))); };
            if (graphs_ && f[5] == corrected(1, 1) && f[6] == corrected(2, 1)) steps_ = graphs_ = 0; /* ggml's reset */
            f[5] = corrected(1, steps_ + 1), f[6] = corrected(2, steps_ + 1);
        }
        for (weight &w : weights_) {
            if (!w.update) continue;
            const bool adamw = w.update->op == GGML_OP_OPT_STEP_ADAMW, low = w.tensor.type != GGML_TYPE_F32;
            if (adamw) w.moments = { data_of(w.update->src[2]), data_of(w.update->src[3]) };
            ggml_tensor fp32 = in_fp32(w, low && w.master.empty() ? convert(w, true) : w.master.data());
            if (low) w.update->src[0] = &fp32;
            ggml_cgraph one = {};
            one.nodes = &w.update;
            const bool good = run(one, 0, 1);
            w.update->src[0] = w.update->view_src;
            if (!good) throw amp::error(AMP_ERR_HOST_FAILED, "ggml failed, or was aborted");
            if (low) convert(w, false);
            if (config_.level == AMP_O3) std::vector<float>().swap(w.master);
        }
        steps_++;
    }
    void train(const ggml_cgraph &g) {
        {
            amp::scaled_loss scaled(optimizer_);
            *seed_ = scaled.seed_factor();
            run_nodes(g);
            for (weight &w : weights_)
                if (w.update) set_gradient(w, w.update->src[1]->data);
            scaled.end();
        }
        halfway_ = updates_ == g.n_nodes;
        if (halfway_) return;
        if (max_norm_ > 0.0f) amp::clip_grad_norm(optimizer_, max_norm_);
        amp::step step(optimizer_);
        if (step) update(g);
        graphs_++;
        step.end();
    }
    /* The weights of a file are in place from the next graph on, the moments from the next one with updates. */
    void put_file(bool updates) {
        if (file_) {
            gguf_context *file = file_.get();
            const std::int64_t state = gguf_find_key(file, "libamp.state"), steps = gguf_find_key(file, "libamp.steps");
            must(amp_state_load_memory(context_, gguf_get_arr_data(file, state), gguf_get_arr_n(file, state)));
            for (weight &w : weights_)
                if (!w.master.empty()) convert(w, false);
            steps_ = gguf_get_val_i64(file, steps), graphs_ = 0, file_.reset();
        }
        for (weight &w : weights_)
            for (int k = 0; w.update && k < 2 && w.update->op == GGML_OP_OPT_STEP_ADAMW; k++)
                if (const ggml_tensor *t = ggml_get_tensor(tensors_.get(), named(k ? "v." : "m.", w).c_str()))
                    std::memcpy(w.update->src[2 + k]->data, t->data, ggml_nbytes(t));
        if (updates) tensors_.reset();
    }
    void compute_graph(const ggml_cgraph &g) {
        if (!context_) start(g);
        if (!context_) return must_run(g, 0, g.n_nodes); /* no model yet */
        inspect(g);
        if (tensors_) put_file(updates_ < g.n_nodes);
        seed_ ? train(g) : run_nodes(g);
    }
    static ggml_status compute(ggml_backend_t backend, ggml_cgraph *g) {
        amp_ggml *it = *std::find_if(all.begin(), all.end(), [=](amp_ggml *a) { return a->backend_ == backend; });
        running = it;
        try {
            if (!it->error_) it->compute_graph(*g);
        } catch (const amp::error &e) { /* ggml_opt does not see the status: it will see the loss */
            it->error_.reset(new amp::error(e));
            GGML_LOG_ERROR("amp_ggml: %s\n", e.what());
        }
        if (it->seed_) *std::exchange(it->seed_, nullptr) = 1.0f; /* as ggml_opt set it, once */
        running = nullptr;
        for (int i = 0; it->error_ && i < g->n_nodes; i++)
            if (g->nodes[i]->flags & GGML_TENSOR_FLAG_LOSS) *data_of(g->nodes[i]) = NAN;
        return it->error_ ? GGML_STATUS_FAILED : GGML_STATUS_SUCCESS;
    }
};

/* Makes the adapter before ggml_opt_init or ggml_opt_fit, with all settings of libamp or the level's. */
inline auto amp_ggml_initialize(ggml_backend_sched_t sched, const amp_config &config, float max_norm = 0.0f) {
    return std::make_unique<amp_ggml>(sched, config, max_norm);
}
inline auto amp_ggml_initialize(ggml_backend_sched_t sched, amp_level level) {
    return amp_ggml_initialize(sched, amp::config(level));
}
