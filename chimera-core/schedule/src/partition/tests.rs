use proptest::prelude::*;

use super::*;

fn placements() -> impl Strategy<Value = Placement> {
    prop_oneof![
        (1usize..=5).prop_map(Placement::line),
        (1usize..=2, 2usize..=2).prop_map(|(depth, v)| Placement::interleaved(depth, v)),
        (1usize..=3).prop_map(|depth| Placement::wave(depth, 2)),
        (1usize..=5).prop_map(|depth| Placement::mirrored(depth, 1)),
    ]
}

/// The busiest worker's time if all pipes carry equally many micro-batches, and the longest stage.
fn figures(layers: &[f64], lens: &[usize], placement: &Placement, speeds: &[f64]) -> (f64, f64) {
    let speed = |worker: &WorkerId| speeds.get(worker.index()).copied().unwrap_or(1.0);
    let mut rest = layers;
    let stages: Vec<f64> =
        lens.iter().map(|len| rest.split_off(..*len).unwrap().iter().sum()).collect();
    let mut busy = vec![0.0; placement.n_workers()];
    let mut longest = 0.0f64;
    for pipe in placement.pipes() {
        for (worker, stage) in pipe.iter().zip(&stages) {
            let takes = stage / speed(worker);
            busy[worker.index()] += takes;
            longest = longest.max(takes);
        }
    }
    (busy.iter().copied().fold(0.0, f64::max), longest)
}

/// Every way to write `n` as a sum of `n_stages` numbers above 0.
fn all(n: usize, n_stages: usize) -> Vec<Vec<usize>> {
    if n_stages == 1 {
        return vec![vec![n]];
    }
    let with = |first: usize| {
        let rests = all(n - first, n_stages - 1).into_iter();
        rests.map(move |rest| [vec![first], rest].concat())
    };
    (1..=n + 1 - n_stages).flat_map(with).collect()
}

proptest! {
    /// With interleaved stages, the longest stage is as short as possible.
    #[test]
    fn no_partition_is_better(
        placement in placements(),
        layers in prop::collection::vec(0u8..20, 1..=9),
        speeds in prop::collection::vec(prop_oneof![Just(1.0), Just(0.5), 0.2f64..2.0], 0..=5),
    ) {
        let layers: Vec<f64> = layers.into_iter().map(f64::from).collect();
        let n_stages = placement.n_stages();
        prop_assume!(layers.len() >= n_stages);
        let lens = balanced(&layers, &placement, &speeds).expect("enough layers");
        prop_assert_eq!(lens.iter().sum::<usize>(), layers.len());
        prop_assert!(lens.len() == n_stages && lens.iter().all(|len| *len > 0));
        let is_folded = is_folded(&placement);
        let of = |lens: &[usize]| {
            let (busiest, longest) = figures(&layers, lens, &placement, &speeds);
            if is_folded || n_stages == placement.n_workers() { (busiest, longest) } else { (longest, longest) }
        };
        let (busiest, longest) = of(&lens);
        for other in all(layers.len(), n_stages) {
            let (busy, long) = of(&other);
            prop_assert!(
                busiest < busy + 1e-6 && (busy > busiest + 1e-6 || longest < long + 1e-6),
                "{:?} has {:?}, {:?} has {:?}", lens, (busiest, longest), other, (busy, long)
            );
        }
    }
}

#[test]
fn a_mirrored_placement_balances_workers() {
    // The head costs as much as three blocks.
    let mut layers = vec![1.0; 12];
    layers[11] += 3.0;
    let of = |placement| {
        let lens = balanced(&layers, &placement, &[]).unwrap();
        figures(&layers, &lens, &placement, &[])
    };
    assert_eq!(of(Placement::line(4)), (4.0, 4.0));
    assert_eq!(of(Placement::mirrored(4, 1)), (8.0, 4.0));
    assert_eq!(balanced(&layers, &Placement::line(13), &[]), None);
    assert_eq!(balanced(&[0.0; 3], &Placement::line(3), &[]), Some(vec![1, 1, 1]));
}

#[test]
fn slow_workers_get_fewer_layers() {
    let of = |placement: Placement, speeds: &[f64]| balanced(&[1.0; 14], &placement, speeds);
    assert_eq!(of(Placement::line(4), &[1.0, 1.0, 0.5, 1.0]), Some(vec![4, 4, 2, 4]));
    // Each pair of workers is as fast as the slower one of them.
    assert_eq!(of(Placement::mirrored(2, 1), &[1.0, 0.5]), Some(vec![7, 7]));
    let lens = of(Placement::wave(2, 2), &[1.0, 0.4]).unwrap();
    assert_eq!((lens[0] + lens[3], lens[1] + lens[2]), (10, 4));
}

#[test]
fn long_chains_are_quick() {
    let mut layers = vec![1.0; 510];
    layers[509] += 40.0;
    for placement in [Placement::mirrored(64, 1), Placement::mirrored(4, 1), Placement::line(64)] {
        let lens = balanced(&layers, &placement, &[]).unwrap();
        assert_eq!(lens.iter().sum::<usize>(), 510);
    }
}

#[test]
fn layers_move_while_that_helps() {
    let wanted = [4usize, 1, 3];
    let mut n_tried = 0;
    let mut step = |lens: &[usize]| {
        n_tried += 1;
        let distance = lens.iter().zip(wanted).map(|(a, b)| a.abs_diff(b)).sum::<usize>();
        Ok::<_, ()>(1.0 + distance as f64)
    };
    assert_eq!(improved(vec![1, 6, 1], 1000, &mut step), Ok(wanted.to_vec()));
    assert!(n_tried < 40, "{n_tried}");
    assert_eq!(improved(vec![1, 6, 1], 0, &mut |_| Err(())), Ok(vec![1, 6, 1]));
    assert_eq!(improved(vec![1, 6, 1], 9, &mut |_| Err(())), Err(()));
}
