/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handwritten digits of examples/data, trained with PyTorch's C++ front end under each opt level, and a table of
 * what came of it. usage: libtorch_digits [--epochs N] [--level O2]... [FILE]
 */
#include <amp_torch.hpp>
#include <zlib.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace nn = torch::nn;

#ifndef DIGITS_FILE
#define DIGITS_FILE "digits.csv.gz"
#endif

/* ---- data ---- */

struct Digits {
    torch::Tensor images, labels; /* [n, 1, 8, 8] from 0 to 1; [n] */
};

static Digits load(const char *path) {
    const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path, "rb"), gzclose);
    std::vector<float> pixels;
    std::vector<int64_t> labels;
    char line[1024];
    if (!file) throw std::runtime_error(std::string("cannot open ") + path);
    while (gzgets(file.get(), line, sizeof line)) {
        const char *at = line;
        for (int i = 0; i < 64; i++) {
            char *end = nullptr;
            pixels.push_back(std::strtof(at, &end) / 16.0f);
            if (*end != ',') throw std::runtime_error(std::string(path) + ": not 64 pixels and a label");
            at = end + 1;
        }
        labels.push_back(std::atoi(at));
    }
    const auto n = static_cast<int64_t>(labels.size());
    return {torch::tensor(pixels).view({n, 1, 8, 8}), torch::tensor(labels)};
}

/* ---- model ---- */

struct NetImpl : nn::Module {
    nn::Conv2d first{nullptr}, second{nullptr};
    nn::BatchNorm2d first_norm{nullptr}, second_norm{nullptr};
    nn::Linear fc{nullptr};

    NetImpl() {
        first = register_module("first", nn::Conv2d(nn::Conv2dOptions(1, 16, 3).padding(1)));
        first_norm = register_module("first_norm", nn::BatchNorm2d(16));
        second = register_module("second", nn::Conv2d(nn::Conv2dOptions(16, 32, 3).padding(1)));
        second_norm = register_module("second_norm", nn::BatchNorm2d(32));
        fc = register_module("fc", nn::Linear(32 * 4 * 4, 10));
    }
    torch::Tensor forward(torch::Tensor x) {
        x = torch::max_pool2d(torch::relu(first_norm(first(x))), 2);
        x = torch::relu(second_norm(second(x)));
        return fc(x.flatten(1));
    }
};
TORCH_MODULE(Net);

/* ---- training ---- */

struct Result {
    double loss = 0.0, accuracy = 0.0, seconds = 0.0;
    int steps = 0, skipped = 0;
    float scale = 0.0f;
    std::string weights;
};

static Result train(amp_level level, const Digits &train_set, const Digits &test_set, int epochs) {
    torch::manual_seed(0);
    Net net;
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
    auto amp = amp::torch::initialize(net, optimizer, level);
    const int64_t batch = 32, n = train_set.labels.size(0);
    const auto began = std::chrono::steady_clock::now();
    Result result;
    for (int epoch = 0; epoch < epochs; epoch++) {
        const torch::Tensor order = torch::randperm(n);
        for (int64_t at = 0; at + batch <= n; at += batch) {
            const torch::Tensor chosen = order.slice(0, at, at + batch);
            const torch::Tensor loss = [&] {
                const auto guard = amp.autocast(); /* the loss is an op as any other */
                return nn::functional::cross_entropy(amp.forward(net, train_set.images.index({chosen})),
                                                     train_set.labels.index({chosen}));
            }();
            optimizer.zero_grad();
            {
                auto scaled = amp.scale_loss(loss);
                scaled.backward();
            }
            ++(amp.step(optimizer) ? result.steps : result.skipped);
            result.loss = loss.item<double>();
        }
    }
    result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    result.scale = amp.loss_scale();
    result.weights = c10::toString(net->fc->weight.scalar_type());
    const torch::NoGradGuard no_grad;
    net->eval();
    const torch::Tensor found = amp.forward(net, test_set.images).argmax(1);
    result.accuracy = found.eq(test_set.labels).to(torch::kDouble).mean().item<double>();
    return result;
}

int main(int argc, char **argv) {
    int epochs = 8;
    const char *path = DIGITS_FILE;
    std::vector<std::string> levels;
    try {
        for (int i = 1; i < argc; i++) {
            if (!std::strcmp(argv[i], "--epochs") && i + 1 < argc) epochs = std::atoi(argv[++i]);
            else if (!std::strcmp(argv[i], "--level") && i + 1 < argc) levels.emplace_back(argv[++i]);
            else if (argv[i][0] != '-') path = argv[i];
            else throw std::runtime_error("usage: libtorch_digits [--epochs N] [--level O2]... [FILE]");
        }
        if (levels.empty()) levels = {"O0", "O1", "O2", "O3", "O4", "O5"};
        const Digits digits = load(path);
        torch::manual_seed(1998);
        const torch::Tensor order = torch::randperm(digits.labels.size(0));
        const auto part = [&](const torch::Tensor &which) {
            return Digits{digits.images.index({which}), digits.labels.index({which})};
        };
        const Digits test_set = part(order.slice(0, 0, 600)), train_set = part(order.slice(0, 600));
        std::printf("level  weights    accuracy  loss    steps  skipped  scale    seconds\n");
        for (const std::string &name : levels) {
            const Result r = train(amp::level(name.c_str()), train_set, test_set, epochs);
            std::printf("%-6s %-9s  %6.2f %%  %.4f  %5d  %7d  %-7g  %.2f\n", name.c_str(), r.weights.c_str(),
                        100.0 * r.accuracy, r.loss, r.steps, r.skipped, static_cast<double>(r.scale), r.seconds);
        }
    } catch (const std::exception &error) {
        std::fprintf(stderr, "libtorch_digits: %s\n", error.what());
        return 1;
    }
}
