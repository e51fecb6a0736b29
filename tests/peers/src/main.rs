//! Comparisons with other frameworks, which are downloaded: each side reads what the other wrote.

mod pytorch;
mod transformers;

use clap::Parser;

/// Comparisons with other frameworks
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", max_term_width = 100)]
enum Comparison {
    /// PyTorch's runtime executes our exports; loss and gradients are compared
    Pytorch(pytorch::Args),
    /// Hugging Face's transformers reads our GPT-2 and we read its; logits are compared
    Transformers(transformers::Args),
}

fn main() -> anyhow::Result<()> {
    match Comparison::parse() {
        Comparison::Pytorch(args) => pytorch::run(&args),
        Comparison::Transformers(args) => transformers::run(&args),
    }
}
