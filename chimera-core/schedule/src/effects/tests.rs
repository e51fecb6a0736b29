use super::*;

fn rules(n_stages: usize) -> Rules {
    let recomputed = vec![(PipeId(0), StageId(1))];
    let graph = StageGraph::chain(n_stages);
    let moves = MovedUnits::default();
    Rules {
        graph,
        demand: Demand::default(),
        recomputed,
        selective: vec![],
        keeps_versions: false,
        window: None,
        n_slices: 1,
        moves,
        works: vec![],
        shards_weights: false,
    }
}

fn show(rules: &Rules, kind: Kind, stage: u16, span: Span) -> String {
    let e = rules.effects(&Op { kind, pipe: PipeId(0), stage: StageId(stage), span });
    format!("{:?} -> {:?}", e.eats, e.makes)
}

#[test]
fn ends_of_the_pipe_touch_no_neighbour() {
    let r = rules(3);
    assert_eq!(
        show(&r, Kind::Forward, 0, Span::one(4)),
        "[] -> [activation(pipe 0, stage 0, micro-batch 4), saved activations(pipe 0, stage 0, micro-batch 4)]"
    );
    assert_eq!(
        show(&r, Kind::Backward, 0, Span::one(4)),
        "[saved activations(pipe 0, stage 0, micro-batch 4), gradient(pipe 0, stage 1, micro-batch 4)] -> []"
    );
}

#[test]
fn an_op_of_no_stage_of_the_program_has_effects_too() {
    for kind in Kind::ALL {
        show(&rules(3), kind, u16::MAX, Span { start: u32::MAX, len: u16::MAX });
    }
}

#[test]
fn a_span_travels_whole_and_goes_backward_by_unit() {
    let r = rules(3);
    assert_eq!(
        show(&r, Kind::Forward, 2, Span { start: 2, len: 2 }),
        "[activation(pipe 0, stage 1, micro-batch 2-3)] -> \
         [gradient(pipe 0, stage 3, micro-batch 2), gradient(pipe 0, stage 3, micro-batch 3), \
         saved activations(pipe 0, stage 2, micro-batch 2), saved activations(pipe 0, stage 2, micro-batch 3)]"
    );
}

#[test]
fn a_token_goes_along_each_edge() {
    let graph = StageGraph::new(4, &[0], &[(0, 1), (0, 3), (1, 2), (2, 3)], &[1, 3]);
    let r = Rules { graph: graph.expect("a graph"), ..rules(1) };
    let forward = show(&r, Kind::Forward, 0, Span::one(0));
    assert!(
        forward.starts_with(
            "[] -> [activation(pipe 0, stage 0, micro-batch 0), \
             activation(pipe 0, stage 0 to stage 3, micro-batch 0), "
        ),
        "{forward}"
    );
    let exit = show(&r, Kind::Forward, 1, Span::one(0));
    assert!(exit.contains("gradient(pipe 0, stage 4 to stage 1, micro-batch 0)"), "{exit}");
    assert_eq!(
        show(&r, Kind::Backward, 3, Span::one(0)),
        "[saved activations(pipe 0, stage 3, micro-batch 0), gradient(pipe 0, stage 4, micro-batch 0)] \
         -> [gradient(pipe 0, stage 3 to stage 0, micro-batch 0), gradient(pipe 0, stage 3, micro-batch 0)]"
    );
    let backward = show(&r, Kind::Backward, 0, Span::one(0));
    assert!(
        backward.ends_with(
            "gradient(pipe 0, stage 1, micro-batch 0), \
             gradient(pipe 0, stage 3 to stage 0, micro-batch 0)] -> []"
        ),
        "{backward}"
    );
}

#[test]
fn a_version_lives_from_the_forward_to_the_backward() {
    let r = Rules { keeps_versions: true, ..rules(3) };
    let version = |stage| format!("weight version(pipe 0, stage {stage}, micro-batch 0)]");
    let eaten = |stage| format!("{} ->", version(stage));
    for stage in [0, 1] {
        let forward = show(&r, Kind::Forward, stage, Span::one(0));
        assert!(forward.ends_with(&version(stage)), "{forward}");
    }
    for kind in [Kind::Backward, Kind::BackwardInput] {
        for stage in [0, 1] {
            let backward = show(&r, kind, stage, Span::one(0));
            assert!(backward.contains(&eaten(stage)), "{backward}");
        }
    }
    let recompute = show(&r, Kind::Recompute, 1, Span::one(0));
    assert!(recompute.contains(&eaten(1)) && recompute.ends_with(&version(1)), "{recompute}");
    assert!(!show(&r, Kind::BackwardWeight, 0, Span::one(0)).contains("version"));
}

#[test]
fn a_recomputation_makes_no_version_that_a_forward_made() {
    let r = Rules { keeps_versions: true, ..rules(3) };
    let effects =
        |kind| r.effects(&Op { kind, pipe: PipeId(0), stage: StageId(1), span: Span::one(0) });
    let [forward, again, backward] = [Kind::Forward, Kind::Recompute, Kind::Backward].map(effects);
    assert!(again.makes.iter().all(|token| !forward.makes.contains(token)));
    assert!(again.makes.iter().all(|token| backward.eats.contains(token)));
}

#[test]
fn a_recomputed_stage_keeps_its_input() {
    let r = rules(3);
    assert!(
        show(&r, Kind::Forward, 1, Span::one(0))
            .ends_with("checkpointed input(pipe 0, stage 1, micro-batch 0)]")
    );
    assert_eq!(
        show(&r, Kind::Recompute, 1, Span::one(0)),
        "[checkpointed input(pipe 0, stage 1, micro-batch 0)] -> [saved activations(pipe 0, stage 1, micro-batch 0)]"
    );
}
