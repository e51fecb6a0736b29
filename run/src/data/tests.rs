use chimera_core::model::Preset;
use proptest::prelude::*;

use super::*;

fn counting(n: usize, context: usize) -> Corpus {
    Corpus::from_tokens(Tokens::of_ids(&(0..n as u32).collect::<Vec<_>>()), context).unwrap()
}

#[test]
fn a_sample_does_not_depend_on_its_neighbours() {
    let corpus = counting(100_000, 16);
    let batch = |samples| corpus.batch(1, samples).unwrap();
    let whole = batch(20..32);
    assert_eq!(whole.input.len(), 12 * 16);
    let parts = [batch(20..25), batch(25..26), batch(26..32)];
    assert_eq!(whole.input, parts.clone().map(|part| part.input).concat());
    assert_eq!(whole.target, parts.map(|part| part.target).concat());
    assert_ne!(whole, corpus.batch(2, 20..32).unwrap());
    assert_ne!(whole, batch(32..44));
}

proptest! {
    #[test]
    fn an_epoch_is_every_sample_once(
        n in 40usize..3000, context in 1usize..20, seed in any::<u64>(), epoch in 0u64..1 << 30,
    ) {
        let corpus = counting(n, context);
        let n_samples = corpus.datasets[0].n_samples();
        let first = epoch * n_samples;
        let batch = corpus.batch(seed, first..first + n_samples).unwrap();
        for (input, target) in batch.input.iter().zip(&batch.target) {
            prop_assert_eq!(input + 1, *target);
        }
        let mut ids = batch.input;
        ids.sort_unstable();
        let n_seen = (corpus.n_train() - 1) / context * context;
        prop_assert!(ids.into_iter().eq(0..n_seen as u32), "each id but the last few once");
    }
}

#[test]
fn validation_windows_lie_apart_in_the_last_tenth() {
    let corpus = counting(1000, 8);
    assert_eq!((corpus.n_train(), corpus.n_validation()), (900, 100));
    let batch = corpus.validation(5).unwrap();
    let starts: Vec<_> = batch.input.chunks(8).map(|row| row[0]).collect();
    assert_eq!(starts, [900, 922, 945, 968, 991]);
    assert_eq!(batch.target.last(), Some(&999));
    let most = corpus.validation(usize::MAX).unwrap();
    assert_eq!(most.input.len(), 12 * 8);
    assert!(most.input.windows(2).all(|pair| pair[0] < pair[1]));
}

#[test]
fn the_least_data_is_two_windows() {
    let corpus = counting(18, 8);
    assert_eq!((corpus.n_train(), corpus.n_validation()), (9, 9));
    for sample in 0..3 {
        let batch = corpus.batch(0, sample..sample + 1).unwrap();
        assert_eq!(batch.input, (0..8).collect::<Vec<_>>());
    }
    assert_eq!(corpus.validation(9).unwrap().target, (10..18).collect::<Vec<_>>());
    let refusal = Corpus::from_tokens(Tokens::of_ids(&[0; 17]), 8).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "the data has 17 tokens, but sequence 8 needs at least 18: 9 for training and as many \
         for validation"
    );
    assert!(Corpus::from_tokens(Tokens::of_ids(&[0; 17]), usize::MAX).is_err());
}

#[test]
fn other_data_to_validate_with_leaves_all_to_train_on() {
    let ids = |range: Range<u32>| Tokens::of_ids(&range.collect::<Vec<_>>());
    let train = Dataset::to_train_on(ids(0..100), 8, 8).unwrap();
    let held_out = Dataset::to_validate_with(ids(500..550), 8, 8).unwrap();
    assert_eq!(train.n_samples(), 12);
    let corpus = Corpus::of(vec![train], Mixture::new(&[1.0]), Some(held_out), 8);
    assert_eq!((corpus.n_train(), corpus.n_validation()), (100, 50));
    let batch = corpus.validation(3).unwrap();
    let starts: Vec<_> = batch.input.chunks(8).map(|row| row[0]).collect();
    assert_eq!(starts, [500, 520, 541]);
    assert!(corpus.batch(1, 0..12).unwrap().target.iter().all(|id| *id < 100));
    let refusals = [
        ("train on", Dataset::to_train_on(ids(0..8), 8, 8)),
        ("validate with", Dataset::to_validate_with(ids(500..508), 8, 8)),
    ];
    for (what, refusal) in refusals {
        assert_eq!(
            refusal.unwrap_err().to_string(),
            format!("the data to {what} has 8 tokens, but sequence 8 needs at least 9")
        );
    }
}

#[test]
fn datasets_of_a_mixture_go_through_epochs_of_their_own() {
    let ids = |range: Range<u32>| Tokens::of_ids(&range.collect::<Vec<_>>());
    let datasets = [ids(0..900), ids(1000..1100)];
    let datasets = datasets.map(|tokens| Dataset::split(tokens, 8, 8).unwrap()).into();
    let corpus = Corpus::of(datasets, Mixture::new(&[0.75, 0.25]), None, 8);
    assert_eq!((corpus.n_train(), corpus.n_validation()), (900, 100));
    // Each of the 11 samples of the second dataset comes once in 44 of all samples.
    let batch = corpus.batch(1, 0..44).unwrap();
    let (mut first, mut second): (Vec<u32>, Vec<u32>) =
        batch.input.iter().partition(|id| **id < 1000);
    first.sort_unstable();
    first.dedup();
    second.sort_unstable();
    assert_eq!((first.len(), second), (33 * 8, (1000..1088).collect()));
    let again = [corpus.batch(1, 0..7), corpus.batch(1, 7..44)].map(Result::unwrap);
    assert_eq!(again.map(|batch| batch.input).concat(), batch.input);
    assert_eq!(corpus.epochs(88), [66.0 / 101.0, 2.0]);

    let validation = corpus.validation(8).unwrap();
    let starts: Vec<_> = validation.input.chunks(8).map(|row| row[0]).collect();
    assert_eq!(starts, [810, 826, 842, 858, 874, 891, 1090]);
}

#[test]
fn without_files_the_built_in_text_is_read() {
    let tiny = &Preset::named("tiny").unwrap().config;
    let corpus = Corpus::open(&Files::default(), tiny, tiny.context).unwrap();
    assert_eq!(corpus.n_train() + corpus.n_validation(), corpus::TEXT.len());
    assert!(matches!(corpus.tokenizer(), Some(Tokenizer::Bytes)));
    let narrow = ModelConfig { vocab: 64, ..tiny.clone() };
    assert!(Corpus::open(&Files::default(), &narrow, 128).is_err());
}
