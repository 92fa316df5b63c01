/* SPDX-License-Identifier: Apache-2.0 */

#include "report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- what is drawn ---- */

#define MAX_CURVES 8

struct curve {
    const char *label, *colour;
    float *loss;        /* logarithm of the smoothed mean over the seeds; owned */
    const float *scale; /* of the first seed */
};

struct drawing {
    FILE *out;
    struct curve curves[MAX_CURVES];
    int n_curves;
    int steps, seeds, window;
};

/* A panel: its frame in pixels; the range of its vertical axis, as logarithms. */
struct panel {
    double top, bottom, low, high;
    const char *title;
};

#define WIDTH 960
#define HEIGHT 640
#define LEFT 84.0
#define RIGHT 850.0

/* Okabe and Ito's colours, which people who see fewer of them can tell apart. */
static const char *colour_of(const char *label) {
    static const char *const colours[][2] = { { "FP32", "#000000" }, { "O0", "#999999" }, { "O1", "#0072b2" },
                                              { "O2", "#d55e00" },   { "O3", "#e6a700" }, { "O4", "#009e73" },
                                              { "O5", "#cc79a7" } };
    for (size_t i = 0; i < sizeof colours / sizeof colours[0]; i++)
        if (strcmp(colours[i][0], label) == 0) return colours[i][1];
    return "#56b4e9";
}

/* Geometric mean over the seeds, as befits a logarithmic axis; not finite where a loss is not, or is 0. */
static void average(const struct run_result *runs, size_t n, int steps, float *logarithms) {
    for (int i = 0; i < steps; i++)
        for (size_t j = 0; j < n; j++) logarithms[i] += log10f(runs[j].losses[i]) / (float)n;
}

/* Mean over a window around each step; it narrows towards the first, so that the curve begins where training did. */
static void smooth(const float *values, int n, int window, float *smoothed) {
    for (int i = 0; i < n; i++) {
        const int half = i < window / 2 ? i : window / 2;
        float sum = 0.0F;
        int count = 0;
        for (int j = i - half; j <= i + half && j < n; j++) {
            if (!isfinite(values[j])) continue;
            sum += values[j];
            count++;
        }
        smoothed[i] = isfinite(values[i]) ? sum / (float)count : NAN;
    }
}

static float *smooth_loss(const struct run_result *runs, size_t n, int steps, int window) {
    float *raw = calloc((size_t)steps, sizeof *raw), *smoothed = malloc((size_t)steps * sizeof *smoothed);
    if (raw && smoothed) {
        average(runs, n, steps, raw);
        smooth(raw, steps, window, smoothed);
        free(raw);
        return smoothed;
    }
    free(raw);
    free(smoothed);
    return NULL;
}

static int collect(struct drawing *d, const struct run_result *results, size_t n) {
    size_t group;
    d->steps = results[0].steps;
    d->seeds = (int)report_group(results, n);
    d->window = 1 + d->steps / 50 * 2;
    for (size_t i = 0; i < n && d->n_curves < MAX_CURVES; i += group) {
        struct curve *curve = &d->curves[d->n_curves++];
        group = report_group(results + i, n - i);
        curve->label = results[i].label;
        curve->colour = colour_of(curve->label);
        curve->scale = results[i].scales;
        curve->loss = smooth_loss(results + i, group, d->steps, d->window);
        if (!curve->loss) return -1;
    }
    return 0;
}

/* ---- where things lie ---- */

static double x_at(const struct drawing *d, double step) {
    return LEFT + (RIGHT - LEFT) * (step - 1.0) / fmax(d->steps - 1, 1);
}

static double y_at(const struct panel *p, double logarithm) {
    return p->bottom - (p->bottom - p->top) * (logarithm - p->low) / (p->high - p->low);
}

/* Widens [low, high] to the finite ones of the values. */
static void widen(const float *values, int n, double *low, double *high) {
    for (int i = 0; i < n; i++) {
        if (!isfinite(values[i])) continue;
        *low = fmin(*low, (double)values[i]);
        *high = fmax(*high, (double)values[i]);
    }
}

/* ---- grid and words ---- */

static void text(FILE *out, double x, double y, const char *anchor, const char *what) {
    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y, anchor, what);
}

static void line(FILE *out, double x1, double y1, double x2, double y2, const char *colour) {
    fprintf(out, "<path d=\"M%.1f %.1fL%.1f %.1f\" stroke=\"%s\"/>\n", x1, y1, x2, y2, colour);
}

static void horizontal(const struct drawing *d, const struct panel *p, double logarithm, const char *label) {
    const double y = y_at(p, logarithm);
    line(d->out, LEFT, y, RIGHT, y, "#e4e4e4");
    text(d->out, LEFT - 8, y + 4, "end", label);
}

/* 0.01, 0.02, 0.05, 0.1 ... ; powers of ten alone where there are many. */
static void loss_grid(const struct drawing *d, const struct panel *p) {
    const double decades = p->high - p->low;
    const int every = (int)ceil(decades / 8.0);
    for (int decade = (int)floor(p->low); decade <= (int)ceil(p->high); decade++) {
        static const double steps[] = { 1.0, 2.0, 5.0 };
        for (int i = 0; i < (decades <= 4.0 ? 3 : 1); i++) {
            const double at = decade + log10(steps[i]);
            char label[32];
            if (at < p->low - 1e-9 || at > p->high + 1e-9 || decade % every != 0) continue;
            snprintf(label, sizeof label, "%g", steps[i] * pow(10.0, decade));
            horizontal(d, p, at, label);
        }
    }
}

static void scale_grid(const struct drawing *d, const struct panel *p) {
    int every = 1;
    while ((p->high - p->low) / every > 7.0) every *= 2;
    for (int power = (int)ceil(p->low); power <= p->high; power++) {
        char label[96];
        if (power % every != 0) continue;
        snprintf(label, sizeof label, "2<tspan dy=\"-5\" font-size=\"9\">%d</tspan>", power);
        horizontal(d, p, power, label);
    }
}

/* About ten round numbers of steps, through all panels. */
static void step_grid(const struct drawing *d, const struct panel *p, int labels) {
    const double rough = fmax(d->steps / 10.0, 1.0), unit = pow(10.0, floor(log10(rough)));
    const double every = unit * (rough <= unit ? 1 : rough <= 2 * unit ? 2 : rough <= 5 * unit ? 5 : 10);
    for (double step = every; step <= d->steps; step += every) {
        char label[32];
        line(d->out, x_at(d, step), p->top, x_at(d, step), p->bottom, "#e4e4e4");
        snprintf(label, sizeof label, "%g", step);
        if (labels) text(d->out, x_at(d, step), p->bottom + 18, "middle", label);
    }
}

static void frame(const struct drawing *d, const struct panel *p) {
    const double middle = (p->top + p->bottom) / 2;
    fprintf(d->out, "<path d=\"M%.1f %.1fV%.1fH%.1f\" stroke=\"#444\"/>\n", LEFT, p->top, p->bottom, RIGHT);
    fprintf(d->out, "<text transform=\"translate(24 %.1f) rotate(-90)\" text-anchor=\"middle\">%s</text>\n", middle,
            p->title);
}

static void legend(const struct drawing *d, const struct panel *p) {
    for (int c = 0; c < d->n_curves; c++) {
        const double y = p->top + 10 + 22 * c;
        fprintf(d->out, "<path d=\"M%.1f %.1fh26\" stroke=\"%s\" stroke-width=\"3\"/>\n", RIGHT + 20, y,
                d->curves[c].colour);
        text(d->out, RIGHT + 54, y + 4, "start", d->curves[c].label);
    }
}

/* ---- lines ---- */

static const float *values_of(const struct curve *curve, int of_scale) {
    return of_scale ? curve->scale : curve->loss;
}

/* Curves that are the same share the line: each draws its own dashes of it. */
static void print_dashes(const struct drawing *d, int number, int of_scale) {
    const float *mine = values_of(&d->curves[number], of_scale);
    int same = 0, before = 0;
    for (int c = 0; c < d->n_curves; c++) {
        if (memcmp(values_of(&d->curves[c], of_scale), mine, (size_t)d->steps * sizeof *mine) != 0) continue;
        same++;
        before += c < number;
    }
    if (same > 1) fprintf(d->out, " stroke-dasharray=\"9 %d\" stroke-dashoffset=\"%d\"", 9 * (same - 1), -9 * before);
}

static void begin_path(const struct drawing *d, int number, int of_scale) {
    fprintf(d->out, "<path stroke=\"%s\" stroke-width=\"%s\"", d->curves[number].colour, of_scale ? "2.5" : "1.6");
    print_dashes(d, number, of_scale);
    fprintf(d->out, " d=\"");
}

/* Steps that are not finite are left out. */
static void loss_path(const struct drawing *d, const struct panel *p, int number) {
    const float *loss = d->curves[number].loss;
    const int every = 1 + d->steps / 1000;
    int pen_down = 0;
    begin_path(d, number, 0);
    for (int i = 0; i < d->steps; i += every) {
        const int drawn = isfinite(loss[i]);
        if (drawn) fprintf(d->out, "%c%.1f %.1f", pen_down ? 'L' : 'M', x_at(d, i + 1), y_at(p, (double)loss[i]));
        pen_down = drawn;
    }
    fprintf(d->out, "\"/>\n");
}

static void scale_path(const struct drawing *d, const struct panel *p, int number) {
    const float *scale = d->curves[number].scale;
    begin_path(d, number, 1);
    fprintf(d->out, "M%.1f %.1f", LEFT, y_at(p, log2((double)scale[0])));
    for (int i = 1; i < d->steps; i++)
        if (scale[i] != scale[i - 1])
            fprintf(d->out, "H%.1fV%.1f", x_at(d, i + 1), y_at(p, log2((double)scale[i])));
    fprintf(d->out, "H%.1f\"/>\n", RIGHT);
}

/* ---- the picture ---- */

static void draw_loss(const struct drawing *d) {
    struct panel p = { .top = 56, .bottom = 392, .low = INFINITY, .high = -INFINITY, .title = "training loss" };
    for (int c = 0; c < d->n_curves; c++) widen(d->curves[c].loss, d->steps, &p.low, &p.high);
    if (p.low > p.high) p.low = p.high = 0.0; /* no loss was finite */
    p.low = floor(p.low * 4 - 0.2) / 4;
    p.high = ceil(p.high * 4 + 0.2) / 4;
    loss_grid(d, &p);
    step_grid(d, &p, 0);
    frame(d, &p);
    for (int c = 0; c < d->n_curves; c++) loss_path(d, &p, c);
    legend(d, &p);
}

static void draw_scale(const struct drawing *d) {
    struct panel p = { .top = 424, .bottom = 576, .low = INFINITY, .high = 0.0, .title = "loss scale" };
    for (int c = 0; c < d->n_curves; c++) widen(d->curves[c].scale, d->steps, &p.low, &p.high);
    p.low = log2(p.low) - 1.0;
    p.high = log2(p.high) + 1.0;
    scale_grid(d, &p);
    step_grid(d, &p, 1);
    frame(d, &p);
    for (int c = 0; c < d->n_curves; c++) scale_path(d, &p, c);
    text(d->out, (LEFT + RIGHT) / 2, p.bottom + 42, "middle", "step");
}

int curves_write(FILE *out, const struct run_result *results, size_t n) {
    struct drawing d = { .out = out };
    const int status = collect(&d, results, n);
    if (status == 0) {
        fprintf(out,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
                "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"13\" fill=\"#222\">\n"
                "<style>path { fill: none; stroke-linejoin: round }</style>\n"
                "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
                WIDTH, HEIGHT, WIDTH, HEIGHT);
        fprintf(out, "<text x=\"%.1f\" y=\"30\" font-size=\"17\">Training under each opt level"
                     "<tspan font-size=\"13\" fill=\"#666\" dx=\"12\">", LEFT);
        if (d.seeds > 1)
            fprintf(out, "loss: geometric mean of %d seeds over %d steps</tspan></text>\n", d.seeds, d.window);
        else fprintf(out, "loss: geometric mean over %d steps</tspan></text>\n", d.window);
        draw_loss(&d);
        draw_scale(&d);
        fprintf(out, "</svg>\n");
    }
    for (int c = 0; c < d.n_curves; c++) free(d.curves[c].loss);
    return status;
}
