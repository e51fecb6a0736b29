//! Values of our options in other programs, with the word for them here.

/// Values by option; those without a word here have advice.
const VALUES: &[(&str, &[(&[&str], &str)])] = &[
    (
        "optimizer",
        &[
            (
                &[
                    "adam",
                    "adamw-torch",
                    "adamw-torch-fused",
                    "adamw-hf",
                    "fused-adam",
                    "adamw-fused",
                ],
                "did you mean `adamw`?",
            ),
            (
                &["adamw-8bit", "adamw-bnb-8bit", "paged-adamw-8bit", "adafactor", "lion"],
                "there is no such optimizer: choose adamw, lamb, sgd, muon or kfac",
            ),
            (&["momentum", "nesterov"], "did you mean `sgd`, with momentum?"),
            (&["k-fac", "shampoo"], "did you mean `kfac`?"),
        ],
    ),
    (
        "lr-schedule",
        &[
            (
                &["cos", "cosine-annealing", "cosine-with-min-lr", "cosine-decay"],
                "did you mean `cosine`?",
            ),
            (&["constant-with-warmup", "const", "none"], "did you mean `constant`?"),
            (&["warmup-stable-decay", "trapezoidal", "trapezoid"], "did you mean `wsd`?"),
            (&["polynomial", "linear-decay"], "did you mean `linear`?"),
        ],
    ),
    (
        "preset",
        &[
            (
                &["gpt2", "gpt-2", "gpt2-small", "openai-community/gpt2"],
                "did you mean `gpt2-124m`?",
            ),
            (&["gpt2-medium", "gpt2-345m", "gpt2-350m"], "did you mean `gpt2-355m`?"),
            (&["gpt2-large", "gpt2-762m"], "did you mean `gpt2-774m`?"),
            (&["gpt2-xl", "gpt2-1.5b"], "did you mean `gpt2-1558m`?"),
            (
                &["llama3", "llama-3-8b", "llama3.1-8b", "meta-llama/meta-llama-3-8b"],
                "did you mean `llama3-8b`?",
            ),
            (&["mistral", "mistral-7b-v0.1"], "did you mean `mistral-7b`?"),
            (&["qwen2.5", "qwen", "qwen/qwen2.5-0.5b"], "did you mean `qwen2.5-0.5b`?"),
            (&["smollm", "huggingfacetb/smollm-135m"], "did you mean `smollm-135m`?"),
            (&["bert", "bert-base-uncased"], "did you mean `bert-base`?"),
        ],
    ),
    (
        "precision",
        &[
            (&["bfloat16", "bf16-mixed", "bf16-true", "bf"], "did you mean `bf16`?"),
            (&["float32", "fp32", "32", "no", "32-true", "float"], "did you mean `f32`?"),
            (
                &["fp16", "float16", "16", "16-mixed", "half", "fp8"],
                "there is no such format here: choose bf16 or f32",
            ),
        ],
    ),
    (
        "model",
        &[
            (&["gpt", "gpt-2", "gpt2-124m", "gpt3", "nanogpt"], "did you mean `gpt2`?"),
            (
                &["llama2", "llama3", "mistral", "qwen2", "qwen"],
                "did you mean `llama`? It has such models, see `preset`",
            ),
        ],
    ),
    (
        "device",
        &[
            (&["gpu", "nvidia", "cuda:all"], "did you mean `cuda`?"),
            (&["mps", "metal", "vulkan", "webgpu", "rocm", "hip", "amd"], "did you mean `wgpu`?"),
        ],
    ),
    (
        "recompute",
        &[
            (&["true", "yes", "on", "uniform", "block"], "did you mean `full`?"),
            (&["false", "no", "off"], "did you mean `none`?"),
        ],
    ),
    (
        "schedule",
        &[
            (&["pipedream-flush", "1f1b-flush", "schedule1f1b"], "did you mean `1f1b`?"),
            (&["zero-bubble", "zerobubble", "zb"], "did you mean `zb-h1`, `zb-h2` or `zb-v`?"),
            (
                &["vpp", "virtual-pipeline", "1f1b-interleaved", "looped-bfs"],
                "did you mean `interleaved`?",
            ),
            (
                &["none", "no-pipelining", "sequential"],
                "did you mean `--depth 1`, which has no pipeline?",
            ),
        ],
    ),
    (
        "transport",
        &[
            (&["gloo", "tcp", "ucc"], "did you mean `mpi`?"),
            (&["thread", "local"], "did you mean `threads`?"),
        ],
    ),
];

/// Returns the question or advice for a value of another program.
pub fn meant(option: &str, value: &str) -> Option<&'static str> {
    let value = value.to_ascii_lowercase().replace('_', "-");
    let (_, values) = VALUES.iter().find(|(name, _)| *name == option)?;
    values.iter().find(|(words, _)| words.contains(&value.as_str())).map(|(_, tip)| *tip)
}

#[cfg(test)]
mod tests {
    use toml::Value;

    use super::*;
    use crate::OPTIONS;
    use chimera_device::Device;

    /// A value that is valid here needs no tip, and a tip names one that is.
    #[test]
    fn tips_are_for_values_that_do_not_exist() {
        for (name, values) in VALUES {
            let option = OPTIONS.iter().find(|option| option.name == *name).expect("an option");
            let holds = |word: &str| {
                let value = Value::String(word.into());
                let is_device = *name != "device" || word.parse::<Device>().is_ok();
                is_device && option.kind.holds(&value) && option.read(&value).is_ok()
            };
            for (words, tip) in *values {
                for word in *words {
                    assert!(!holds(word), "{name} {word}");
                }
                let named = tip.split('`').skip(1).step_by(2);
                for word in named.filter(|word| !word.contains("--") && *word != "preset") {
                    assert!(holds(word), "{name}: {tip}");
                }
            }
        }
    }
}
