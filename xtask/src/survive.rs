//! Trainings with deaths drawn from seeds, on the simulated transport.

use std::time::Instant;

use anyhow::{Result, bail};
use chimera_core::survival::{Ending, Scenario};

/// What is drawn.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Cases, each of one seed
    #[arg(long, default_value_t = 10_000)]
    cases: u64,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Ranks that die are away for a while, in which the others train without them
    #[arg(long)]
    narrow: bool,
    /// Ranks stall, and die when the others evict them
    #[arg(long, conflicts_with_all = ["narrow", "shadows"])]
    stalls: bool,
    /// What ranks hold has no replicas, but copies with other ranks
    #[arg(long)]
    shadows: bool,
}

/// Cases between two lines of progress.
const LINE: u64 = 1_000;

/// Runs the cases; stops at the first that ends otherwise than it must, and names its seed.
pub(crate) fn run(args: &Args) -> Result<()> {
    let (began, mut undisturbed, mut recovered, mut lost) = (Instant::now(), 0, 0, 0);
    for seed in args.from..args.from.saturating_add(args.cases) {
        let (scenario, how) = match args {
            Args { narrow: true, shadows: true, .. } => {
                (Scenario::draw_narrow_shadowed(seed), " --narrow --shadows")
            }
            Args { narrow: true, .. } => (Scenario::draw_narrow(seed), " --narrow"),
            Args { shadows: true, .. } => (Scenario::draw_shadowed(seed), " --shadows"),
            Args { stalls: true, .. } => (Scenario::draw_stalled(seed), " --stalls"),
            _ => (Scenario::draw(seed), ""),
        };
        match scenario.check() {
            Ok(Ending::Survived { n_recoveries: 0 }) => undisturbed += 1,
            Ok(Ending::Survived { .. }) => recovered += 1,
            Ok(Ending::Lost) => lost += 1,
            Err(why) => bail!(
                "seed {seed}, {scenario}: {why}\nagain: cargo xtask survive --from {seed} --cases 1{how}"
            ),
        }
        let n = seed - args.from + 1;
        if n.is_multiple_of(LINE) || n == args.cases {
            println!(
                "{n} cases in {:.0} s: {recovered} recovered with the weights of the undisturbed training, {lost} lost a stage with all its holders and \
                 said so, {undisturbed} met no death",
                began.elapsed().as_secs_f64()
            );
        }
    }
    Ok(())
}
