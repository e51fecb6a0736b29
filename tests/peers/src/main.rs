//! Comparisons with other frameworks, which are downloaded: each side reads what the other wrote.

mod bitsandbytes;
mod peft;
mod pytorch;
mod transformers;

use clap::Parser;

/// Comparisons with other frameworks
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", max_term_width = 100)]
enum Comparison {
    /// Weights in fewer bits are compared with those of bitsandbytes
    Bitsandbytes(bitsandbytes::Args),
    /// Adapters of peft are trained there and here; losses and logits are compared
    Peft(peft::Args),
    /// PyTorch's runtime executes our exports; loss and gradients are compared
    Pytorch(pytorch::Args),
    /// Hugging Face's transformers reads our GPT-2 and we read its; logits are compared
    Transformers(transformers::Args),
}

fn main() -> anyhow::Result<()> {
    match Comparison::parse() {
        Comparison::Bitsandbytes(args) => bitsandbytes::run(&args),
        Comparison::Peft(args) => peft::run(&args),
        Comparison::Pytorch(args) => pytorch::run(&args),
        Comparison::Transformers(args) => transformers::run(&args),
    }
}
