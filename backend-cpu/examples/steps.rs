//! Prints the time of a step of GPT-2 on one thread, in f32 and in bf16, alternating: by processor
//! time, which other work on the machine does not add to, and by the clock.
//!
//! `cargo run --release -p chimera-backend-cpu --example steps -- [hidden] [context] [rounds]`

#[cfg(target_os = "linux")]
mod allocator;

use chimera_backend_cpu::Candle;
use chimera_core::lower::Recompute;
use chimera_core::model::{Architecture, ModelConfig};
use chimera_core::schedule::Shape;
use chimera_testkit::equivalence::{RunError, TrialRun};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let numbers = std::env::args().skip(1).map(|text| text.parse());
    let numbers = numbers.collect::<Result<Vec<usize>, _>>()?;
    let nth = |nth: usize, otherwise| numbers.get(nth).copied().unwrap_or(otherwise);
    let (hidden, context, rounds) = (nth(0, 512), nth(1, 256), nth(2, 3));
    let bf16 = Candle::cpu_bf16();
    rayon::ThreadPoolBuilder::new().num_threads(1).build_global()?;
    let devices = [("f32", Candle::cpu()), ("bf16", bf16)];
    let mut least = [[f64::INFINITY; 2]; 2];
    for _ in 0..rounds {
        for ((_, device), least) in devices.iter().zip(&mut least) {
            let got = seconds_of_a_step(device, hidden, context)?;
            for (least, got) in least.iter_mut().zip(got) {
                *least = least.min(got);
            }
        }
    }
    for ((name, _), [processor_s, clock_s]) in devices.iter().zip(least) {
        println!("{name}: {processor_s:.3} s of a processor, {clock_s:.3} s by the clock");
    }
    let ratio = |nth: usize| least[0][nth] / least[1][nth];
    println!("f32 / bf16: {:.2} and {:.2}", ratio(0), ratio(1));
    Ok(())
}

/// Returns the processor time of a step, without the start of the run, and the shortest step by the
/// clock.
fn seconds_of_a_step(device: &Candle, hidden: usize, context: usize) -> Result<[f64; 2], RunError> {
    let run = |steps| TrialRun {
        schedule: "dapple",
        shape: Shape::new(1, 2),
        model: ModelConfig {
            architecture: Architecture::GPT2,
            layers: 4,
            hidden,
            heads: hidden / 64,
            context,
            vocab: 256,
            tied: false,
            llama: None,
            end_of_text: None,
        },
        recompute: Recompute::None,
        split_backward: false,
        micro_batch_size: 4,
        steps,
    };
    let of = |steps| -> Result<(f64, Vec<f64>), RunError> {
        let start = processor_s();
        let result = run(steps).train(|_| Ok(device.clone()))?;
        Ok((processor_s() - start, result.seconds))
    };
    let ((few, _), (many, clock_s)) = (of(1)?, of(5)?);
    Ok([(many - few) / 4.0, clock_s.into_iter().fold(f64::INFINITY, f64::min)])
}

/// Returns the processor time of this process in seconds, on Linux.
fn processor_s() -> f64 {
    const TICKS_PER_S: f64 = 100.0;
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = text.rsplit_once(") ").map_or("", |(_, fields)| fields).split(' ');
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / TICKS_PER_S
}
