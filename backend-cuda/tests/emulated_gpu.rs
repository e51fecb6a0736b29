//! The backend for NVIDIA GPUs on emulated ones: the conformance suites of devices, and training.

#![allow(unsafe_code)] // for opening the emulated libraries

mod emulated;
#[path = "emulated/first_contact.rs"]
mod first_contact;
#[path = "emulated/memory.rs"]
mod memory;
#[path = "emulated/mistakes.rs"]
mod mistakes;

use chimera_backend_cuda::Format;
use chimera_core::comm::{Endpoint, Host, HostStaged, Threads};
use chimera_core::device::reference::Reference;
use chimera_core::device::{Device, DeviceError, Dtype};
use chimera_core::engine::run_threads;
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::Rank;
use chimera_core::layers::{Activation, Embed, IGNORED, Layout, Linear, Loss, Pointwise};
use chimera_core::lower::Recompute;
use chimera_core::model::{Architecture, Llama, ModelConfig};
use chimera_core::schedule::Shape;
use chimera_core::{device, layers};
use chimera_testkit::equivalence::{RunError, TrialRun};

#[test]
fn f32_conforms() {
    let gpu = emulated::gpu(0, Format::F32);
    device::conformance::run(&gpu, 1e-5);
    layers::conformance::run(&gpu, 1e-5);
}

#[test]
fn tf32_conforms() {
    let round = |x: f32| f32::from_bits((x.to_bits() + (1 << 12)) & !((1 << 13) - 1));
    let gpu = emulated::gpu(0, Format::Tf32);
    device::conformance::run(&gpu, 1e-5); // weights, gradients and moments stay f32
    layers::conformance::run_rounded(&gpu, 2e-3, round);
}

#[test]
fn f32_conforms_without_tensor_cores() {
    layers::conformance::run(&emulated::gpu(0, Format::F32).generic(), 1e-5);
}

#[test]
fn bf16_conforms() {
    let round = |x| half::bf16::from_f32(x).to_f32();
    let gpu = emulated::gpu(0, Format::Bf16);
    device::conformance::run(&gpu, 1e-5); // weights, gradients and moments stay f32
    layers::conformance::run_rounded(&gpu, 1e-2, round);
}

#[test]
fn f32_trains_as_the_reference() -> Result<(), RunError> {
    trains(Format::F32, 1e-4)
}

#[test]
fn bf16_trains_beside_the_reference() -> Result<(), RunError> {
    trains(Format::Bf16, 1e-2)
}

#[test]
fn tf32_rounds_the_operands_of_products() -> Result<(), DeviceError> {
    for (format, expected) in [(Format::F32, 3.0 + 3.0 / 4096.0), (Format::Tf32, 3.0)] {
        let gpu = emulated::gpu(0, format);
        let [x, w] = [gpu.upload(&[1, 1], &[1.0 + 1.0 / 4096.0])?, gpu.upload(&[1, 1], &[3.0])?];
        let product = gpu.linear(&x, &w, Layout::InOut, None, None)?;
        assert_eq!(gpu.download(&product)?, [expected]);
    }
    Ok(())
}

/// A kernel would read or change another tensor's memory.
#[test]
fn ids_beyond_their_table_are_refused() -> Result<(), DeviceError> {
    let gpu = emulated::gpu(0, Format::F32);
    let [tokens, positions, dy] = [3, 2, 1].map(|rows| gpu.zeros(&[rows, 4]));
    let [tokens, positions, dy] = [tokens?, positions?, dy?];
    let said = |refused: Result<(), DeviceError>| refused.expect_err("no such row").to_string();
    let read = |id| gpu.embedding(&[id], 1, &tokens, &positions).map(drop);
    read(2)?;
    assert!(said(read(3)).contains("id 3 is not below 3"));
    let (mut d_tokens, mut d_positions) = (gpu.zeros(&[3, 4])?, gpu.zeros(&[2, 4])?);
    let added = gpu.embedding_dw(&[3], 1, &dy, &mut d_tokens, &mut d_positions);
    assert!(said(added).contains("id 3 is not below 3"));
    let loss = |target| gpu.cross_entropy(gpu.zeros(&[1, 4])?, &[target], 1.0).map(drop);
    loss(3)?;
    loss(IGNORED)?;
    assert!(said(loss(4)).contains("target 4 is not below 4"));
    Ok(())
}

/// Activations in bf16 keep their bits through the host, as over MPI.
#[test]
fn bf16_is_sent_in_its_own_type() -> Result<(), RunError> {
    let gpu = emulated::gpu(0, Format::Bf16);
    let values: Vec<f32> = (0..9).map(|i| 0.37 * i as f32).collect();
    let x = gpu.upload(&[3, 3], &values).expect("room");
    let y = gpu.activation(&x, Activation::Tanh).expect("an activation");
    let mut words = Vec::new();
    gpu.download_words(&y, &mut words).expect("words");
    assert_eq!((gpu.dtype(&y), words.len()), (Dtype::Bf16, 5));
    let came = gpu.upload_words(&[3, 3], Dtype::Bf16, words).expect("a tensor");
    assert_eq!((gpu.dtype(&came), gpu.bytes(&came)), (Dtype::Bf16, 18));
    assert_eq!(gpu.download(&came), gpu.download(&y));

    let run = run("chimera", 2);
    let direct = run.train(|_| Ok(emulated::gpu(0, Format::Bf16)))?.losses;
    let staged = run_threads(2, |comm: &mut Threads<Host>| {
        let gpu = emulated::gpu(0, Format::Bf16);
        let rank = comm.rank();
        let trained = run.train_as(gpu.clone(), &mut HostStaged::new(gpu, comm));
        trained.map_err(|e| Fault::new(Class::Usage, rank, e.to_string()))
    })?;
    assert_eq!(staged[0].losses, direct);
    Ok(())
}

/// Trains schedules with a thread and a stream per worker: on one GPU, and alternating on two.
fn trains(format: Format, tolerance: f64) -> Result<(), RunError> {
    for (schedule, depth, architecture) in [
        ("dapple", 1, Architecture::GPT2),
        ("1f1b", 2, Architecture::GPT2),
        ("chimera", 2, Architecture::BERT),
        ("chimera", 4, Architecture::GPT2),
        ("zb-h1", 2, Architecture::LLAMA),
        ("dualpipe", 2, Architecture::GPT2), // pairs of ops, which overlap
        ("chimera", 4, Architecture::LLAMA),
    ] {
        let mut run = run(schedule, depth);
        run.model.architecture = architecture;
        run.model.llama = llama(&run.model);
        let expected = run.train(|_| Ok(Reference))?.losses;
        for n_gpus in 1..=depth.min(2) {
            let gpu = |rank: Rank| emulated::gpu(rank.index() % n_gpus, format);
            let got = run.train(|rank| Ok(gpu(rank)))?.losses;
            assert_eq!(got.len(), 4);
            for (got, expected) in got.iter().zip(&expected) {
                let error = (got - expected).abs() / expected;
                let case = format!("{schedule}, {depth} workers on {n_gpus}");
                assert!(error < tolerance, "{case}: {got} is not {expected}");
            }
        }
    }
    Ok(())
}

/// For a Llama: grouped heads with more features than the hidden size divided by the heads, biases,
/// and a window within the context.
fn llama(model: &ModelConfig) -> Option<Llama> {
    let ModelConfig { architecture, hidden, heads, context, .. } = *model;
    let usual = Llama::usual(hidden, heads);
    let window = Some(context / 2);
    let head_dim = Some(hidden / heads + 2);
    let llama = Llama { kv_heads: heads / 2, head_dim, qkv_bias: true, window, ..usual };
    (architecture == Architecture::LLAMA).then_some(llama)
}

fn run(schedule: &'static str, depth: usize) -> TrialRun {
    let model = ModelConfig {
        architecture: Architecture::GPT2,
        layers: 4,
        hidden: 8,
        heads: 2,
        context: 6,
        vocab: 19,
        tied: false,
        llama: None,
        end_of_text: None,
    };
    TrialRun {
        schedule,
        shape: Shape::new(depth, 4),
        model,
        recompute: Recompute::None,
        split_backward: false,
        micro_batch_size: 1,
        steps: 4,
    }
}
